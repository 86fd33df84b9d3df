// DeviceQueues: pages of their own for everything, so that pinning one thing never pins half of another.
#include "nvme/device_queues.hpp"

#include <cerrno>
#include <set>

#include "errors.hpp"

namespace gids::nvme {
namespace {

constexpr uint64_t whole_lines(uint64_t bytes) { return (bytes + 127) & ~uint64_t{127}; }
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
                mine.back()->on_device = true;
            }
        }
    } catch (...) {
        release();
        throw;
    }
    device_bytes_ = table_bytes_ =
        whole_lines(drives_.size() * sizeof(DriveRef) + drives_.size() * pairs * sizeof(QueueRef));
    max_bytes_ = ~0u;
    for (const auto& mine : pairs_) {
        copied_.emplace_back(mine.size(), 0);
        for (const auto& pair : mine) {
            device_bytes_ += pair->state.own().size();
            max_bytes_ = std::min(max_bytes_, pair->ref.max_bytes);
        }
    }
}

std::vector<std::pair<uint64_t, std::vector<std::byte>>> DeviceQueues::images(uint64_t base) {
    std::vector<std::pair<uint64_t, std::vector<std::byte>>> found;
    std::vector<std::byte> table(table_bytes_);
    auto* refs = reinterpret_cast<DriveRef*>(table.data());
    auto* queues = reinterpret_cast<QueueRef*>(refs + drives_.size());
    uint64_t at = table_bytes_;
    for (size_t d = 0; d < drives_.size(); ++d) {
        const uint64_t first = static_cast<uint64_t>(reinterpret_cast<std::byte*>(queues) - table.data());
        refs[d] = {reinterpret_cast<const QueueRef*>(base + first), static_cast<uint32_t>(pairs_[d].size())};
        for (size_t i = 0; i < pairs_[d].size(); ++i) {
            QueuePair& pair = *pairs_[d][i];
            const std::lock_guard lock(pair.mutex);
            const std::span<std::byte> own = pair.state.own();
            const auto moved = [&]<class T>(T*& pointer) {
                pointer = reinterpret_cast<T*>(
                    base + at + static_cast<uint64_t>(reinterpret_cast<std::byte*>(pointer) - own.data()));
            };
            *queues = pair.ref;
            moved(queues->control);
            moved(queues->ready);
            moved(queues->free_ids);
            ++queues;
            if (copied_[d][i] != pair.restarts + 1) {
                copied_[d][i] = pair.restarts + 1;
                found.emplace_back(at, std::vector<std::byte>(own.begin(), own.end()));
            }
            at += own.size();
        }
    }
    if (!found.empty()) found.emplace_back(0, std::move(table));
    return found;
}

DeviceQueues::~DeviceQueues() { release(); }

void DeviceQueues::release() {
    for (size_t d = 0; d < pairs_.size(); ++d)
        for (const auto& pair : pairs_[d]) drives_[d]->release_pair(pair);
    pairs_.clear();
}

std::vector<DeviceQueues::Region> DeviceQueues::regions() const {
    std::vector<Region> found{{data().data(), data().size(), false}};
    std::set<std::byte*> registers;
    for (const auto& mine : pairs_)
        for (const auto& pair : mine) {
            const auto state = pair->state.shared();
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
