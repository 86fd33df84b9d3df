// A drive made of memory, with a thread that plays it: what `gids selftest` runs the queue's entry points against.
#pragma once

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "nvme/stub_controller.hpp"
#include "nvme_read.cuh"

namespace gids::nvme {

class StubDrive {
public:
    StubDrive(uint32_t depth, uint32_t ids, uint64_t data_bytes) : controller_(pages(sizeof(StubController))) {
        StubOptions options;
        options.shape = {depth, ids, 12};
        options.data_bytes = data_bytes;
        options.reorder = true;
        stub_ = new (controller_.get()) StubController(options);
        table_.reset(pages(sizeof(DriveRef) + sizeof(QueueRef)));
        auto* queue = new (table_.get() + sizeof(DriveRef)) QueueRef(stub_->queue());
        new (table_.get()) DriveRef{queue, 1};
        thread_ = std::thread([this] {
            while (!stop_.load(std::memory_order_relaxed))
                if (stub_->step() == 0) std::this_thread::yield();
        });
    }
    ~StubDrive() {
        stop();
        stub_->~StubController();
    }
    StubDrive(const StubDrive&) = delete;
    StubDrive& operator=(const StubDrive&) = delete;

    const DriveRef* refs() const { return reinterpret_cast<const DriveRef*>(table_.get()); }
    std::byte* data() { return stub_->data(); }

    // Whole pages of host memory that kernels touch.
    std::vector<std::span<std::byte>> regions() {
        auto found = stub_->regions();
        found.emplace_back(controller_.get(), whole_pages(sizeof(StubController)));
        found.emplace_back(table_.get(), whole_pages(sizeof(DriveRef) + sizeof(QueueRef)));
        return found;
    }

    // Ends the thread; what it found wrong with the queue code, one line each.
    std::vector<std::string> stop() {
        stop_.store(true, std::memory_order_relaxed);
        if (thread_.joinable()) thread_.join();
        return stub_->violations;
    }

private:
    static constexpr uint64_t whole_pages(uint64_t bytes) { return (bytes + kPage - 1) & ~(kPage - 1); }
    static std::byte* pages(uint64_t bytes) {
        void* memory = std::aligned_alloc(kPage, whole_pages(bytes));
        if (memory == nullptr) throw std::bad_alloc();
        return static_cast<std::byte*>(memory);
    }
    struct Free {
        void operator()(std::byte* memory) const { std::free(memory); }
    };

    std::unique_ptr<std::byte, Free> controller_, table_;
    StubController* stub_ = nullptr;  // in controller_: its doorbells are on pages of their own
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

}  // namespace gids::nvme
