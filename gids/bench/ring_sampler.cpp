// A stand-in for RingSampler (HotStorage '25) after its paper, for `gids bench sample`: offsets in memory, one io_uring
// read of 4 bytes for every sampled edge, mini-batches shared out over threads with a ring of 512 each, completions
// polled, one group of reads prepared while the other is under way, targets deduplicated between layers.
//
// ring_sampler INDPTR.npy INDICES.bin THREADS BATCH FANOUT... ; every line on stdin is a number of batches to sample,
// and every line on stdout the edges of them.
#include <fcntl.h>
#include <liburing.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr unsigned kRing = 512;

struct Graph {
    std::vector<int64_t> indptr;
    int indices;  // descriptor
};

Graph load(const char* indptr, const char* indices) {
    const int file = open(indptr, O_RDONLY);
    uint16_t header = 0;
    struct stat status {};
    if (file < 0 || fstat(file, &status) != 0 || pread(file, &header, 2, 8) != 2) std::exit(2);
    Graph graph;
    graph.indptr.resize(static_cast<size_t>(status.st_size - 10 - header) / 8);
    const size_t bytes = graph.indptr.size() * 8;
    for (size_t done = 0; done < bytes;) {
        const ssize_t got = pread(file, reinterpret_cast<char*>(graph.indptr.data()) + done, bytes - done,
                                  static_cast<off_t>(10u + header + done));
        if (got <= 0) std::exit(2);
        done += static_cast<size_t>(got);
    }
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
    graph.indices = open(indices, O_RDONLY);
    if (graph.indices < 0) std::exit(2);
    posix_fadvise(graph.indices, 0, 0, POSIX_FADV_RANDOM);  // a page for each read, as the paper's memory figures say
    return graph;
}

class Sampler {
public:
    Sampler(const Graph& graph, std::vector<int> fanouts, uint64_t seed)
        : graph_(graph), fanouts_(std::move(fanouts)), random_(seed) {
        if (io_uring_queue_init(kRing, &ring_, 0) != 0) std::exit(3);
        if (io_uring_register_files(&ring_, &graph_.indices, 1) != 0) std::exit(3);
    }
    ~Sampler() { io_uring_queue_exit(&ring_); }
    Sampler(const Sampler&) = delete;
    Sampler& operator=(const Sampler&) = delete;

    int64_t sample(std::vector<int32_t> targets) {
        int64_t edges = 0;
        for (const int fanout : fanouts_) {
            offsets_.clear();
            for (const int32_t node : targets) choose(node, fanout);
            neighbors_.resize(offsets_.size());
            read();
            edges += static_cast<int64_t>(neighbors_.size());
            targets.insert(targets.end(), neighbors_.begin(), neighbors_.end());
            std::sort(targets.begin(), targets.end());
            targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
        }
        return edges;
    }

private:
    void choose(int32_t node, int fanout) {
        const int64_t begin = graph_.indptr[static_cast<size_t>(node)];
        const int64_t degree = graph_.indptr[static_cast<size_t>(node) + 1] - begin;
        if (degree <= fanout) {
            for (int64_t i = 0; i < degree; ++i) offsets_.push_back(begin + i);
            return;
        }
        const size_t first = offsets_.size();  // Floyd's algorithm
        for (int64_t j = degree - fanout; j < degree; ++j) {
            const auto drawn = static_cast<int64_t>(random_() % static_cast<uint64_t>(j + 1));
            const bool taken = std::find(offsets_.begin() + static_cast<int64_t>(first), offsets_.end(),
                                         begin + drawn) != offsets_.end();
            offsets_.push_back(begin + (taken ? j : drawn));
        }
    }

    void reap(size_t& done) {
        unsigned head = 0, count = 0;
        io_uring_cqe* completion = nullptr;
        io_uring_for_each_cqe(&ring_, head, completion) {
            if (completion->res != 4) std::exit(4);
            ++count;
        }
        io_uring_cq_advance(&ring_, count);
        done += count;
    }

    // Half of the ring is prepared while the other half is under way.
    void read() {
        size_t next = 0, done = 0;
        while (done < offsets_.size()) {
            const size_t end = std::min(offsets_.size(), next + kRing / 2);
            for (; next < end; ++next) {
                io_uring_sqe* entry = io_uring_get_sqe(&ring_);
                io_uring_prep_read(entry, 0, &neighbors_[next], 4, static_cast<uint64_t>(offsets_[next]) * 4);
                entry->flags |= IOSQE_FIXED_FILE;
            }
            io_uring_submit(&ring_);
            while (next - done > kRing / 2 || (next == offsets_.size() && done < next)) reap(done);
        }
    }

    const Graph& graph_;
    const std::vector<int> fanouts_;
    std::mt19937_64 random_;
    io_uring ring_{};
    std::vector<int64_t> offsets_;
    std::vector<int32_t> neighbors_;
};

}  // namespace

int main(int argc, char** argv) {
    if (argc < 6) return 1;
    const Graph graph = load(argv[1], argv[2]);
    const int threads = std::atoi(argv[3]), batch = std::atoi(argv[4]);
    std::vector<int> fanouts;  // nearest the targets first
    for (int i = 5; i < argc; ++i) fanouts.push_back(std::atoi(argv[i]));
    std::vector<std::unique_ptr<Sampler>> samplers;
    for (int i = 0; i < threads; ++i)
        samplers.push_back(std::make_unique<Sampler>(graph, fanouts, static_cast<uint64_t>(i)));
    const auto nodes = static_cast<uint64_t>(graph.indptr.size() - 1);
    long wanted = 0;
    uint64_t number = 0;
    while (std::scanf("%ld", &wanted) == 1) {
        std::vector<std::vector<int32_t>> targets(static_cast<size_t>(wanted));
        for (auto& of_batch : targets) {
            std::mt19937_64 random(++number);
            for (int i = 0; i < batch; ++i) of_batch.push_back(static_cast<int32_t>(random() % nodes));
        }
        std::atomic<int64_t> edges{0};
        std::vector<std::thread> running;
        for (int t = 0; t < threads; ++t)
            running.emplace_back([&, t] {
                for (size_t b = static_cast<size_t>(t); b < targets.size(); b += static_cast<size_t>(threads))
                    edges += samplers[static_cast<size_t>(t)]->sample(targets[b]);
            });
        for (auto& thread : running) thread.join();
        std::printf("%ld\n", static_cast<long>(edges.load()));
        std::fflush(stdout);
    }
    return 0;
}
