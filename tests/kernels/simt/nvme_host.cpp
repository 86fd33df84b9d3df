// The host's side of the NVMe entry points for tests: queues on a drive made of memory or on QEMU's controller, and the
// thread that plays the drive or carries doorbells to it. Plain C++, built with the sanitizer of the lanes.
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "nvme/drive.hpp"
#include "nvme/qtest.hpp"
#include "nvme/stub_controller.hpp"
#include "nvme_read.cuh"

using namespace gids::nvme;

namespace {

struct Host {
    std::vector<std::unique_ptr<StubController>> stubs;
    std::shared_ptr<Drive> drive;
    std::unique_ptr<DmaMemory> data;
    std::vector<std::shared_ptr<QueuePair>> pairs;
    std::vector<QueueRef> queues;
    DriveRef ref{};
    bool answers = true;  // false: a drive that takes commands and is never heard of again
    std::atomic<bool> stop{false};
    std::thread thread;

    void start() {
        ref = {queues.data(), static_cast<uint32_t>(queues.size())};
        thread = std::thread([this] {
            while (!stop.load(std::memory_order_acquire)) {
                size_t done = 0;
                for (auto& stub : stubs) done += answers ? stub->step(13) : 0;
                if (drive) drive->device().pump();
                if (done == 0) std::this_thread::yield();
            }
        });
    }
};

}  // namespace

extern "C" {

void* gids_nvme_stub(uint32_t depth, uint32_t ids, uint32_t queues, uint32_t ack_batch, uint32_t hold_every,
                     int answers) {
    auto host = std::make_unique<Host>();
    for (uint32_t i = 0; i < queues; ++i) {
        StubOptions options;
        options.shape = {depth, ids, 12};
        options.ack_batch = ack_batch;
        options.hold_every = hold_every;
        options.reorder = true;
        options.paged = i % 2 == 1;
        host->stubs.push_back(std::make_unique<StubController>(options));
        host->stubs.back()->status_of = [](const Command& command) { return command.dw[10] % 97 == 5 ? 0x281u : 0u; };
        host->queues.push_back(host->stubs.back()->queue());
    }
    host->answers = answers != 0;
    host->start();
    return host.release();
}

void* gids_nvme_qemu(const char* socket, const char* ram, int slot, uint32_t queues, uint32_t ids, uint64_t bytes) {
    try {
        auto host = std::make_unique<Host>();
        DriveOptions options;
        options.pairs = queues;
        options.depth = 1024;
        host->drive = std::make_shared<Drive>(open_qtest(std::make_shared<QtestMachine>(socket, ram), slot), options);
        host->data = host->drive->device().allocate(bytes);
        for (uint32_t i = 0; i < queues; ++i) {
            host->pairs.push_back(host->drive->open_pair(ids, host->data->bytes()));
            host->queues.push_back(host->pairs.back()->ref);
        }
        host->start();
        return host.release();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return nullptr;
    }
}

const void* gids_nvme_drives(void* handle) { return &static_cast<Host*>(handle)->ref; }

uint32_t gids_nvme_queues(void* handle) { return static_cast<Host*>(handle)->ref.num_queues; }

void* gids_nvme_data(void* handle, uint32_t queue) {
    auto* host = static_cast<Host*>(handle);
    return host->data ? host->data->bytes().data() : host->stubs[queue]->data();
}

// For a drive that does not answer by itself: answers all that it was sent, on the caller's thread.
void gids_nvme_answer(void* handle) {
    for (auto& stub : static_cast<Host*>(handle)->stubs)
        while (stub->step() != 0) {
        }
}

// Tells who uses what memory of a drive while kernels run, in the words of tests/ptx/regions.hpp; what is not told, as
// the views of the queues and what only submitters touch, is the device's.
void gids_nvme_regions(void* handle, void (*tell)(const char* kind, uint64_t address, uint64_t bytes)) {
    auto* host = static_cast<Host*>(handle);
    const auto say = [&](const char* kind, const void* at, uint64_t bytes) {
        tell(kind, reinterpret_cast<uint64_t>(at), bytes);
    };
    for (uint32_t i = 0; i < host->queues.size(); ++i) {
        const QueueRef& q = host->queues[i];
        say("drive_reads", q.sq, q.depth * sizeof(Command));
        say("drive_writes", q.cq, q.depth * sizeof(Completion));
        say("drive_reads", q.prp_lists, uint64_t{q.ids} << q.page_bits);
        if (host->data == nullptr || i == 0) say("drive_data", gids_nvme_data(handle, i), q.data_bytes);
        say("mmio", q.sq_doorbell, sizeof(uint32_t));
        say("mmio", q.cq_doorbell, sizeof(uint32_t));
        say("host", q.shared, sizeof(QueueShared));
        say("host_writes", &q.shared->closed, sizeof(uint32_t));
        say("host", q.slots, q.ids * sizeof(Slot));
        // What the watchdog looks at: submitted_ns and word, side by side.
        for (uint32_t id = 0; id < q.ids; ++id)
            say("host_writes", &q.slots[id].submitted_ns, sizeof(uint64_t) + sizeof(uint32_t));
    }
}

// Stops the drive's thread; gives what went wrong: rules broken, stray completions, commands seen.
void gids_nvme_stop(void* handle, uint64_t* out) {
    const std::unique_ptr<Host> host(static_cast<Host*>(handle));
    host->stop.store(true, std::memory_order_release);
    host->thread.join();
    out[0] = out[1] = out[2] = 0;
    for (auto& stub : host->stubs) {
        out[0] += stub->violations.size();
        out[2] += stub->commands;
    }
    for (const QueueRef& queue : host->queues) out[1] += queue.shared->spurious + queue.shared->late;
    for (auto& pair : host->pairs) host->drive->release_pair(pair);
    if (host->drive) host->drive->close();
}
}
