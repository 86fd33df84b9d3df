// The engine `nvme`: the reader's requests become NVMe reads on queue pairs in userspace, with retries and reasons.
#include "nvme/engine.hpp"

#include <cerrno>
#include <cstring>
#include <deque>
#include <thread>
#include <unordered_map>

#include "errors.hpp"
#include "nvme/status.hpp"

namespace gids::nvme {
namespace {

using storage::IoCompletion;
using storage::IoRequest;
using storage::Microseconds;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kMaxRetries = 3;
constexpr int kEagerLooks = 50;  // polls before a reaper begins to sleep between looks
constexpr auto kNap = std::chrono::microseconds(20);
constexpr auto kLockPatience = std::chrono::milliseconds(1);

class NvmeQueue final : public storage::Queue {
public:
    NvmeQueue(std::vector<MappedFile> files, std::span<std::byte> staging, unsigned depth)
        : files_(std::move(files)), staging_(staging), requests_(depth) {
        for (uint32_t i = depth; i > 0; --i) free_requests_.push_back(i - 1);
        const auto& drives = files_.front().set->drives();
        lanes_.resize(drives.size());
        try {
            for (size_t d = 0; d < drives.size(); ++d) {
                lanes_[d].drive = drives[d];
                lanes_[d].pair = drives[d]->open_pair(depth, staging);
            }
        } catch (...) {
            release();
            throw;
        }
    }

    ~NvmeQueue() override { release(); }
    unsigned depth() const override { return static_cast<unsigned>(requests_.size()); }

    void submit(std::span<const IoRequest> requests) override {
        for (const IoRequest& request : requests) {
            const uint32_t index = free_requests_.back();
            free_requests_.pop_back();
            // +1 for this function: a request cannot finish before it is cut up.
            requests_[index] = {request.tag, 0, 1, 0, 0, {}};
            cut(index, request);
            settle(index);
        }
    }

    size_t reap(std::span<IoCompletion> completions, size_t at_least, Microseconds timeout) override {
        reasons_.clear();
        const auto deadline = Clock::now() + timeout;
        for (int looks = 0;; ++looks) {
            for (Lane& lane : lanes_) serve(lane);
            if (finished_.size() >= at_least || Clock::now() >= deadline) break;
            if (looks > kEagerLooks) std::this_thread::sleep_for(kNap);
            else std::this_thread::yield();
        }
        size_t count = 0;
        while (count < completions.size() && !finished_.empty()) {
            Finished& done = finished_.front();
            completions[count++] = {done.tag, done.result, nullptr};
            if (!done.reason.empty()) reasons_[done.tag] = std::move(done.reason);
            finished_.pop_front();
        }
        return count;
    }

    std::string explain(uint64_t tag) const override {
        const auto found = reasons_.find(tag);
        return found == reasons_.end() ? std::string() : found->second;
    }

    void cancel() override {
        for (Lane& lane : lanes_) fail_waiting(lane, ECANCELED, "cancelled");
    }

private:
    void release() {
        for (Lane& lane : lanes_)
            if (lane.pair) lane.drive->release_pair(lane.pair);
    }

    struct Request {
        uint64_t tag;
        uint64_t first_ns;  // when its first command went to a drive
        uint32_t pieces;    // not yet settled
        uint32_t bytes;     // of pieces that arrived
        int error_number;   // of the first piece that failed
        std::string reason;
    };
    struct Piece {  // one NVMe command
        uint64_t lba;
        std::byte* target;
        uint32_t request, nsid, blocks, bytes;
        uint32_t retries = 0;
    };
    struct Lane {
        std::shared_ptr<Drive> drive;
        std::shared_ptr<QueuePair> pair;
        std::deque<uint32_t> waiting;  // pieces
        size_t in_flight = 0;
    };
    struct Finished {
        uint64_t tag;
        int64_t result;
        std::string reason;
    };

    // What lies past the file's end stays out: the reader knows what a short read means.
    void cut(uint32_t index, const IoRequest& request) {
        const MappedFile& file = files_[request.file];
        const auto limit = [this](uint32_t drive) { return lanes_[drive].pair->ref.max_bytes; };
        cut_range(*file.set, *file.map, request.offset, request.length, limit, [&](const Cut& cut) {
            Lane& lane = lanes_[cut.drive];
            const Piece piece{cut.lba, request.buffer + cut.done, index, cut.nsid, cut.blocks, cut.bytes};
            ++requests_[index].pieces;
            if (cut.aligned) lane.waiting.push_back(store(piece));
            else fail(lane, piece, EINVAL, "the file's place on the drive is not aligned to its blocks");
            return cut.aligned;
        });
    }

    uint32_t store(Piece piece) {
        if (free_pieces_.empty()) {
            pieces_.push_back(piece);
            return static_cast<uint32_t>(pieces_.size() - 1);
        }
        const uint32_t index = free_pieces_.back();
        free_pieces_.pop_back();
        pieces_[index] = piece;
        return index;
    }

    // One piece fewer to wait for; the request is finished with its last.
    void settle(uint32_t index) {
        Request& request = requests_[index];
        if (--request.pieces != 0) return;
        const int64_t result = request.error_number != 0 ? -request.error_number : int64_t{request.bytes};
        finished_.push_back({request.tag, result, std::move(request.reason)});
        free_requests_.push_back(index);
    }

    void fail(const Lane& lane, const Piece& piece, int error_number, const std::string& why) {
        Request& request = requests_[piece.request];
        if (request.error_number == 0) {
            request.error_number = error_number;
            request.reason = "read of drive " + lane.drive->name() + " (serial " + lane.drive->info().serial +
                             "), namespace " + std::to_string(piece.nsid) + ", LBA " + std::to_string(piece.lba) +
                             ", " + std::to_string(piece.blocks) + " blocks: " + why +
                             (piece.retries != 0 ? ", after " + std::to_string(piece.retries) + " retries" : "");
        }
        settle(piece.request);
    }

    void fail_waiting(Lane& lane, int error_number, const std::string& why) {
        while (!lane.waiting.empty()) {
            const uint32_t index = lane.waiting.front();
            lane.waiting.pop_front();
            fail(lane, pieces_[index], error_number, why);
            free_pieces_.push_back(index);
        }
    }

    void serve(Lane& lane) {
        QueuePair& pair = *lane.pair;
        std::unique_lock lock(pair.mutex, kLockPatience);
        if (!lock) return;  // the watchdog has the drive; look again later
        for (QueuePair::Failure& failure : pair.failures) {
            const auto index = static_cast<uint32_t>(failure.user);
            --lane.in_flight;
            fail(lane, pieces_[index], failure.error_number, failure.reason);
            free_pieces_.push_back(index);
        }
        pair.failures.clear();
        if (!pair.closed_reason.empty()) {
            fail_waiting(lane, pair.closed_error, "the drive is closed: " + pair.closed_reason);
            return;
        }
        uint32_t sent = 0;
        while (!lane.waiting.empty() && send(lane, lane.waiting.front())) {
            lane.waiting.pop_front();
            ++sent;
        }
        ring(kSerial, pair.ref, sent);
        lane.in_flight += sent;
        lane.drive->device().pump();
        drain(kSerial, pair.ref, pair.ref.depth, [&](uint32_t id, uint64_t user, uint32_t status) {
            receive(lane, id, static_cast<uint32_t>(user), status);
            return true;
        });
    }

    bool send(Lane& lane, uint32_t index) {
        Piece& piece = pieces_[index];
        const uint64_t now = now_ns();
        uint64_t& first = requests_[piece.request].first_ns;
        if (first == 0) first = now;
        const QueuePair& pair = *lane.pair;
        const auto offset = pair.bytes_per_id != 0 ? 0 : static_cast<uint64_t>(piece.target - staging_.data());
        const Read read{piece.lba, offset, piece.blocks, piece.bytes, piece.nsid, 0};
        return enqueue(kSerial, pair.ref, true, read, index, first, pair.bytes_per_id) == Enqueue::kDone;
    }

    void receive(Lane& lane, uint32_t id, uint32_t index, uint32_t status) {
        Piece& piece = pieces_[index];
        --lane.in_flight;
        if (status == 0) {
            const QueuePair& pair = *lane.pair;
            if (pair.bytes_per_id != 0)
                std::memcpy(piece.target, pair.data->bytes().data() + id * pair.bytes_per_id, piece.bytes);
            requests_[piece.request].bytes += piece.bytes;
            settle(piece.request);
        } else if (may_retry(status) && piece.retries < kMaxRetries && in_first_half(lane, piece)) {
            ++piece.retries;
            lane.waiting.push_front(index);
            return;
        } else {
            fail(lane, piece, status_errno(status), describe_status(status));
        }
        free_pieces_.push_back(index);
    }

    // A retry close to the request's deadline would only turn an error into a time-out and a reset.
    bool in_first_half(const Lane& lane, const Piece& piece) const {
        const auto half = static_cast<uint64_t>(std::chrono::nanoseconds(lane.drive->options().timeout).count()) / 2;
        return now_ns() - requests_[piece.request].first_ns < half;
    }

    const std::vector<MappedFile> files_;
    const std::span<std::byte> staging_;
    std::vector<Lane> lanes_;  // by drive of the set
    std::vector<Request> requests_;
    std::vector<uint32_t> free_requests_;
    std::vector<Piece> pieces_;
    std::vector<uint32_t> free_pieces_;
    std::deque<Finished> finished_;
    std::unordered_map<uint64_t, std::string> reasons_;
};

class NvmeEngine final : public storage::Engine {
public:
    explicit NvmeEngine(const storage::TableLayout& layout) {
        for (const storage::StripeFile& file : layout.files()) {
            files_.push_back(find_file(file.path));
            if (files_.back().set != files_.front().set)
                throw ConfigError("files of one table must be on drives opened together (got " + file.path + ")");
        }
        for (const auto& drive : files_.front().set->drives())
            for (const NamespaceInfo& space : drive->info().namespaces)
                block_bytes_ = std::max(block_bytes_, uint64_t{1} << space.block_bits);
    }
    std::string name() const override { return "nvme"; }
    std::string notes() const override {
        std::string notes;
        for (const auto& drive : files_.front().set->drives()) {
            const std::string note = drive->notes();
            if (!note.empty()) notes += (notes.empty() ? "" : "; ") + drive->name() + ": " + note;
        }
        return notes;
    }
    uint64_t block_bytes() const override { return block_bytes_; }
    std::unique_ptr<storage::Queue> make_queue(std::span<std::byte> staging, unsigned depth) override {
        return std::make_unique<NvmeQueue>(files_, staging, depth);
    }

private:
    std::vector<MappedFile> files_;
    uint64_t block_bytes_ = 512;
};

}  // namespace

std::unique_ptr<storage::Engine> open_engine(const storage::TableLayout& layout) {
    return std::make_unique<NvmeEngine>(layout);
}

}  // namespace gids::nvme
