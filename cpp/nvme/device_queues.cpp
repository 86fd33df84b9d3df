// DeviceQueues: one table of views, pages of their own for everything, so that pinning one thing never pins half of
// another.
#include "nvme/device_queues.hpp"

#include <cerrno>
#include <set>

#include "errors.hpp"

namespace gids::nvme {
namespace {

constexpr uint64_t whole_pages(uint64_t bytes) { return (bytes + kPage - 1) & ~(kPage - 1); }

}  // namespace

DeviceQueues::DeviceQueues(std::vector<std::shared_ptr<Drive>> drives, uint32_t pairs, uint32_t ids,
                           uint64_t data_bytes)
    : drives_(std::move(drives)) {
    if (drives_.empty() || pairs < 1 || ids < 1 || data_bytes < kPage)
        throw ConfigError("queues for kernels need drives, pairs, ids, and a page of data (got " +
                          std::to_string(drives_.size()) + ", " + std::to_string(pairs) + ", " + std::to_string(ids) +
                          ", " + std::to_string(data_bytes) + ")");
    data_ = drives_[0]->device().allocate(whole_pages(data_bytes));
    try {
        for (const auto& drive : drives_) {
            auto& mine = pairs_.emplace_back();
            for (uint32_t i = 0; i < pairs; ++i) {
                mine.push_back(drive->open_pair(ids, data_->bytes()));
                if (mine.back()->bytes_per_id != 0)
                    throw StorageError("drives of one set must reach the same memory", drive->name(), 0, data_bytes,
                                       EFAULT);
                const std::lock_guard lock(mine.back()->mutex);
                mine.back()->foreign_clock = true;
            }
        }
        table_bytes_ = whole_pages(drives_.size() * sizeof(DriveRef) + drives_.size() * pairs * sizeof(QueueRef));
        table_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, table_bytes_)));
        if (!table_) throw std::bad_alloc();
    } catch (...) {
        release();
        throw;
    }
    auto* refs = reinterpret_cast<DriveRef*>(table_.get());
    auto* queues = reinterpret_cast<QueueRef*>(refs + drives_.size());
    max_bytes_ = ~0u;
    for (size_t d = 0; d < drives_.size(); ++d) {
        refs[d] = {queues, pairs};
        for (const auto& pair : pairs_[d]) {
            *queues++ = pair->ref;
            max_bytes_ = std::min(max_bytes_, pair->ref.max_bytes);
        }
    }
}

DeviceQueues::~DeviceQueues() { release(); }

void DeviceQueues::release() {
    for (size_t d = 0; d < pairs_.size(); ++d)
        for (const auto& pair : pairs_[d]) drives_[d]->release_pair(pair);
    pairs_.clear();
}

std::vector<DeviceQueues::Region> DeviceQueues::regions() const {
    std::vector<Region> found{{table_.get(), table_bytes_, false}, {data().data(), data().size(), false}};
    std::set<std::byte*> registers;
    for (const auto& mine : pairs_)
        for (const auto& pair : mine) {
            const auto state = pair->state.memory();
            found.push_back({state.data(), state.size(), false});
            found.push_back({pair->rings->bytes().data(), whole_pages(pair->rings->bytes().size()), false});
            for (uint32_t* doorbell : {pair->ref.sq_doorbell, pair->ref.cq_doorbell}) {
                auto* page = reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(doorbell) & ~(kPage - 1));
                if (registers.insert(page).second) found.push_back({page, kPage, true});
            }
        }
    return found;
}

std::unique_ptr<DeviceQueues::Run> DeviceQueues::begin() {
    for (size_t d = 0; d < pairs_.size(); ++d)
        for (const auto& pair : pairs_[d]) {
            // Under the mutex: either the watchdog sees this kernel, or we see that it took the pair.
            const std::lock_guard lock(pair->mutex);
            if (!pair->closed_reason.empty()) {
                const std::string reason = pair->closed_reason;
                const int error_number = pair->closed_error;
                throw StorageError("drive " + drives_[d]->name() + " is closed: " + reason, drives_[d]->name(), 0, 0,
                                   error_number);
            }
        }
    auto run = std::make_unique<Run>(*this);  // nothing below throws: its end takes back what is counted here
    for (const auto& mine : pairs_)
        for (const auto& pair : mine) {
            const std::lock_guard lock(pair->mutex);
            ++pair->kernels;
        }
    return run;
}

void DeviceQueues::end() {
    for (const auto& mine : pairs_)
        for (const auto& pair : mine) --pair->kernels;
}

void DeviceQueues::pump() {
    for (const auto& drive : drives_) drive->device().pump();
}

std::vector<QueuePair::Failure> DeviceQueues::take_failures() {
    std::vector<QueuePair::Failure> found;
    for (const auto& mine : pairs_)
        for (const auto& pair : mine) {
            const std::lock_guard lock(pair->mutex);
            for (auto& failure : pair->failures) found.push_back(std::move(failure));
            pair->failures.clear();
        }
    return found;
}

}  // namespace gids::nvme
