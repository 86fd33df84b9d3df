// Drive: queue pairs on a controller. Recovery goes abort -> delete queues -> reset -> fail what was in flight -> begin
// again, and ends in a closed drive with a reason where any of it cannot be confirmed.
#include "nvme/drive.hpp"

#include <pthread.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "errors.hpp"
#include "nvme/status.hpp"

namespace gids::nvme {
namespace {

constexpr auto kAbortGrace = std::chrono::milliseconds(20);
constexpr auto kReleasePatience = std::chrono::milliseconds(100);

// A drive that was told to forget a command may still be writing: these ids stay out of use with their buffers.
uint32_t usable_ids(const QueueRef& ref) {
    uint32_t count = 0;
    for (uint32_t id = 0; id < ref.ids; ++id) count += slot_state(ref.slots[id].word) != kPoisoned;
    return count;
}

// Takes what answers there are. Where a GPU drives the pair only it knows how far they were taken, and it took all that
// its kernels waited for.
void drain_rest(QueuePair& pair) {
    if (!pair.on_device) drain(kSerial, pair.ref, pair.ref.depth, [](uint32_t, uint64_t, uint32_t) { return true; });
}

}  // namespace

uint64_t now_ns() {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
            .count());
}

void DriveOptions::check() const {
    if (depth < 2 || depth > 65536)
        throw ConfigError("NVMe queue depth must be from 2 to 65536 (got " + std::to_string(depth) + ")");
    if (pairs < 1 || pairs > 1024)
        throw ConfigError("NVMe queue pairs must be from 1 to 1024 (got " + std::to_string(pairs) + ")");
    if (max_io_bytes < 4096 || max_io_bytes % 4096 != 0)
        throw ConfigError("NVMe max_io_bytes must be a multiple of 4096 (got " + std::to_string(max_io_bytes) + ")");
    if (timeout.count() < 1 || admin_timeout.count() < 1)
        throw ConfigError("NVMe time-outs must be at least 1 ms (got " + std::to_string(timeout.count()) + " and " +
                          std::to_string(admin_timeout.count()) + ")");
}

Drive::Drive(std::shared_ptr<Device> device, const DriveOptions& options)
    : device_(std::move(device)), options_(options) {
    options.check();
    controller_ = std::make_unique<Controller>(device_, options.pairs, options.admin_timeout);
    depth_ = std::bit_floor(std::min(options.depth, info().max_queue_entries));
    pairs_.resize(info().io_queues);
    watchdog_ = std::thread([this] { watch(); });
    pthread_setname_np(watchdog_.native_handle(), "gids-nvme-watch");
}

Drive::~Drive() { close(); }

const NamespaceInfo& Drive::find_namespace(uint32_t nsid) const {
    for (const NamespaceInfo& space : info().namespaces) {
        if (space.nsid != nsid) continue;
        if (space.metadata_bytes != 0)
            throw ConfigError("namespace " + std::to_string(nsid) + " of " + name() +
                              " must be formatted without metadata (has " + std::to_string(space.metadata_bytes) +
                              " bytes per block)");
        return space;
    }
    throw ConfigError("namespace of " + name() + " must be an active one (got " + std::to_string(nsid) + ")");
}

void Drive::create(QueuePair& pair) {
    const QueueShape& shape = pair.state.shape();
    std::memset(pair.rings->bytes().data(), 0, pair.rings->bytes().size());
    pair.ref.sq_doorbell = device_->doorbell(submission_doorbell(pair.id, info().doorbell_stride));
    pair.ref.cq_doorbell = device_->doorbell(completion_doorbell(pair.id, info().doorbell_stride));
    const DmaView view = pair.rings->view();
    controller_->create_pair(pair.id, shape.depth, view.iova(0), view.iova(shape.sq_bytes()));
}

std::shared_ptr<QueuePair> Drive::open_pair(uint32_t ids, std::span<std::byte> target) {
    const std::lock_guard lock(mutex_);
    if (!closed_reason_.empty()) throw StorageError(name() + " is closed: " + closed_reason_, name(), 0, 0, ENODEV);
    const auto free = std::find(pairs_.begin(), pairs_.end(), nullptr);
    if (free == pairs_.end())
        throw ConfigError("I/O queue pairs of " + name() + " in use must be at most " + std::to_string(pairs_.size()) +
                          ", which is what the drive granted: close a reader or open the drive with more pairs");
    // Twice the ids, so that a burst of answers and the next commands fit the rings without waiting for each other.
    const uint32_t depth = std::min(depth_, std::bit_ceil(std::max(2 * ids, 2u)));
    const QueueShape shape{depth, std::clamp(ids, 1u, depth - 1), info().page_bits};
    auto pair = std::make_shared<QueuePair>(shape);
    pair->id = static_cast<uint32_t>(free - pairs_.begin()) + 1;
    pair->rings = device_->allocate(shape.dma_bytes());
    pair->state.attach(pair->ref, pair->rings->bytes().data(), pair->rings->view());
    pair->ref.max_bytes = static_cast<uint32_t>(
        std::min<uint64_t>({options_.max_io_bytes, info().max_transfer_bytes, max_listed_bytes(info().page_bits)}));
    pair->ref.ack_batch = std::clamp(depth / 4, 1u, depth - 1);
    if (!target.empty()) pair->data = device_->map(target);
    if (!pair->data) {
        pair->bytes_per_id = pair->ref.max_bytes;
        pair->data = device_->allocate(pair->bytes_per_id * shape.ids);
    }
    pair->ref.data = pair->data->view();
    pair->ref.data_bytes = pair->data->bytes().size();
    create(*pair);
    *free = pair;
    return pair;
}

void Drive::release_pair(const std::shared_ptr<QueuePair>& pair) {
    pair->released = true;
    const auto deadline = std::chrono::steady_clock::now() + kReleasePatience;
    for (;;) {
        {
            const std::lock_guard lock(mutex_);
            if (retire(pair)) return;
        }
        if (std::chrono::steady_clock::now() > deadline) return;
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
}

bool Drive::retire(const std::shared_ptr<QueuePair>& pair) {
    const std::lock_guard lock(pair->mutex);
    const auto place = std::find(pairs_.begin(), pairs_.end(), pair);
    if (place == pairs_.end()) return true;
    if (pair->closed_reason.empty()) {
        device_->pump();
        drain_rest(*pair);
        for (uint32_t id = 0; id < pair->ref.ids; ++id)
            if (slot_state(pair->ref.slots[id].word) == kInFlight) return false;
        pair->closed_reason = "closed by its owner";
        pair->closed_error = EBADF;
        try {
            controller_->delete_pair(pair->id);
        } catch (const StorageError&) {
            // The queue id stays taken, and so does the memory: the drive may still know both.
            pair->rings->abandon();
            pair->data->abandon();
            return true;
        }
    }
    stats_.spurious += pair->ref.shared->spurious;
    stats_.late += pair->ref.shared->late;
    *place = nullptr;
    return true;
}

std::vector<std::byte> Drive::read(uint32_t nsid, uint64_t lba, uint64_t bytes) {
    const NamespaceInfo& space = find_namespace(nsid);
    const uint64_t block = uint64_t{1} << space.block_bits;
    if (bytes == 0 || bytes % block != 0 || lba >= space.blocks || bytes / block > space.blocks - lba)
        throw ConfigError("read of " + name() + " must be whole blocks inside the namespace (got LBA " +
                          std::to_string(lba) + ", " + std::to_string(bytes) + " bytes)");
    std::vector<std::byte> result(bytes);
    const auto pair = open_pair(1, {});
    const std::shared_ptr<void> closer(nullptr, [&](void*) { release_pair(pair); });
    for (uint64_t done = 0; done < bytes;) {
        const uint64_t piece = std::min<uint64_t>(bytes - done, pair->ref.max_bytes / block * block);
        bool settled = false;
        std::string problem;
        int error_number = 0;
        bool sent = false;
        for (uint32_t looks = 0; !settled; ++looks) {
            if (looks > 20) std::this_thread::sleep_for(std::chrono::microseconds(20));
            const std::lock_guard lock(pair->mutex);
            if (!pair->failures.empty()) {
                problem = pair->failures.back().reason;
                error_number = pair->failures.back().error_number;
                break;
            }
            if (!pair->closed_reason.empty()) {
                problem = pair->closed_reason;
                error_number = pair->closed_error;
                break;
            }
            if (!sent) {
                const Read read{lba + done / block,           0,    static_cast<uint32_t>(piece / block),
                                static_cast<uint32_t>(piece), nsid, 0};
                sent = enqueue(kSerial, pair->ref, true, read, 0, now_ns(), pair->bytes_per_id) == Enqueue::kDone;
                ring(kSerial, pair->ref, sent ? 1 : 0);
            }
            device_->pump();
            drain(kSerial, pair->ref, 1, [&](uint32_t id, uint64_t, uint32_t status) {
                settled = true;
                if (status != 0) {
                    problem = describe_status(status);
                    error_number = status_errno(status);
                } else {
                    std::memcpy(result.data() + done, pair->data->bytes().data() + id * pair->bytes_per_id, piece);
                }
                return true;
            });
        }
        if (!problem.empty())
            throw StorageError("read of " + name() + ", namespace " + std::to_string(nsid) + ", LBA " +
                                   std::to_string(lba + done / block) + ": " + problem,
                               name(), (lba << space.block_bits) + done, piece, error_number);
        done += piece;
    }
    return result;
}

std::string Drive::notes() {
    const std::lock_guard lock(mutex_);
    for (const auto& pair : pairs_)
        if (pair) return pair->rings->notes();
    return {};
}

std::string Drive::closed_reason() {
    const std::lock_guard lock(mutex_);
    return closed_reason_;
}

DriveStats Drive::stats() {
    const std::lock_guard lock(mutex_);
    DriveStats stats = stats_;
    for (const auto& pair : pairs_) {
        if (!pair) continue;
        stats.spurious += atomic_ref<uint32_t>(pair->ref.shared->spurious).load(memory_order_relaxed);
        stats.late += atomic_ref<uint32_t>(pair->ref.shared->late).load(memory_order_relaxed);
    }
    return stats;
}

bool Drive::is_late(QueuePair& pair, uint32_t id, uint32_t word) const {
    if (slot_state(word) != kInFlight) return false;
    const auto limit = static_cast<uint64_t>(std::chrono::nanoseconds(options_.timeout).count());
    const uint64_t now = now_ns();
    uint64_t since = system_ref<uint64_t>(pair.ref.slots[id].submitted_ns).load(memory_order_relaxed);
    if (pair.on_device) {
        if (pair.first_seen.empty()) pair.first_seen.resize(pair.ref.ids);
        auto& [seen, when] = pair.first_seen[id];
        if (seen != word) {
            seen = word;
            when = now;
        }
        since = when;
    }
    return now > since && now - since > limit;
}

bool Drive::expired(QueuePair& pair) {
    bool late = false;
    for (uint32_t id = 0; id < pair.ref.ids; ++id) {
        const uint32_t word = system_ref<uint32_t>(pair.ref.slots[id].word).load(memory_order_acquire);
        late = is_late(pair, id, word) || late;
    }
    return late;
}

bool Drive::kernels_left() const {
    for (const auto& pair : pairs_) {
        if (!pair) continue;
        // A kernel that still polls leaves when it sees this; threads of ours are kept out by the mutex.
        system_ref<uint32_t>(pair->ref.shared->closed).store(1, memory_order_release);
    }
    const auto deadline = std::chrono::steady_clock::now() + options_.admin_timeout;
    for (const auto& pair : pairs_)
        while (pair && pair->kernels.load() != 0) {
            if (std::chrono::steady_clock::now() > deadline) return false;
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
    return true;
}

void Drive::watch() {
    const auto period = std::clamp<std::chrono::milliseconds>(options_.timeout / 8, std::chrono::milliseconds(1),
                                                              std::chrono::milliseconds(100));
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, period, [this] { return stopping_; })) {
        if (!closed_reason_.empty()) continue;
        try {
            const Health health = controller_->health();
            if (health == Health::kGone) {
                recover("the device has left the bus (registers read as all ones)", ENODEV);
            } else if (health == Health::kFatal) {
                recover("the controller reported a fatal status (CSTS.CFS)", EIO);
            } else {
                bool late = false;
                const auto pairs = pairs_;  // retire() takes entries out
                for (const auto& pair : pairs) {
                    if (!pair || (pair->released && retire(pair))) continue;
                    const std::lock_guard pair_lock(pair->mutex);
                    late = late || expired(*pair);
                }
                if (late)
                    recover("a command was not answered within " + std::to_string(options_.timeout.count()) + " ms",
                            ETIMEDOUT);
            }
        } catch (const std::exception& error) {
            recover(error.what(), EIO);
        }
    }
}

void Drive::fail_in_flight(QueuePair& pair, const std::string& reason, int error_number) {
    for (uint32_t id = 0; id < pair.ref.ids; ++id) {
        Slot& slot = pair.ref.slots[id];
        if (slot_state(slot.word) != kInFlight) continue;
        if (is_late(pair, id, slot.word)) {
            poison(pair.ref, id, slot.word);
            ++stats_.timeouts;
            pair.failures.push_back(
                {slot.user, ETIMEDOUT, "no answer within " + std::to_string(options_.timeout.count()) + " ms"});
        } else {
            slot.word = with_state(slot.word, kAnswered);
            pair.failures.push_back({slot.user, error_number, "in flight when the drive was stopped: " + reason});
        }
    }
}

void Drive::recover(const std::string& reason, int error_number) {
    std::vector<std::unique_lock<std::timed_mutex>> locks;
    for (const auto& pair : pairs_)
        if (pair) locks.emplace_back(pair->mutex);
    if (!kernels_left()) {
        controller_->disable();
        close_locked(reason + "; a kernel did not leave the queues", error_number);
        return;
    }
    const bool reachable = error_number != ENODEV;
    try {
        for (const auto& pair : pairs_) {
            if (!pair) continue;
            const size_t before = pair->failures.size();
            fail_in_flight(*pair, reason, error_number);
            if (!reachable || controller_->health() != Health::kReady) continue;
            for (uint32_t id = 0; id < pair->ref.ids && pair->failures.size() > before; ++id)
                if (slot_state(pair->ref.slots[id].word) == kPoisoned && controller_->abort(pair->id, id))
                    ++stats_.aborted;
        }
        if (reachable && controller_->health() == Health::kReady) {
            // The drive may use the grace to answer what it aborted; those answers are counted as late and dropped.
            std::this_thread::sleep_for(kAbortGrace);
            device_->pump();
            for (const auto& pair : pairs_) {
                if (!pair) continue;
                drain_rest(*pair);
                if (pair->closed_reason.empty()) controller_->delete_pair(pair->id);
            }
        }
    } catch (const StorageError&) {
        // Abort and delete are courtesies; the reset below is what counts.
    }
    try {
        controller_->reset();
        ++stats_.resets;
        for (const auto& pair : pairs_) {
            if (!pair) continue;
            pair->state.restart();
            ++pair->restarts;
            if (usable_ids(pair->ref) == 0) {
                pair->closed_reason = "every command id of this queue has timed out";
                pair->closed_error = ETIMEDOUT;
            } else if (pair->closed_reason.empty()) {
                create(*pair);
            }
        }
    } catch (const std::exception& error) {
        close_locked(reason + "; " + error.what(), error_number);
    }
}

void Drive::close_locked(const std::string& reason, int error_number) {
    closed_reason_ = reason;
    for (const auto& pair : pairs_) {
        if (!pair) continue;
        system_ref<uint32_t>(pair->ref.shared->closed).store(1, memory_order_release);
        fail_in_flight(*pair, reason, error_number);
        pair->closed_reason = reason;
        pair->closed_error = error_number;
        // Nobody confirmed that the drive has stopped writing.
        pair->rings->abandon();
        pair->data->abandon();
    }
}

void Drive::close() {
    std::vector<std::shared_ptr<QueuePair>> open;
    {
        const std::lock_guard lock(mutex_);
        if (stopping_) return;
        stopping_ = true;
        open = pairs_;
    }
    wake_.notify_all();
    if (watchdog_.joinable()) watchdog_.join();
    const std::lock_guard lock(mutex_);
    if (!closed_reason_.empty()) return;
    std::vector<std::unique_lock<std::timed_mutex>> locks;
    for (const auto& pair : open)
        if (pair) locks.emplace_back(pair->mutex);
    try {
        for (const auto& pair : open)
            if (pair && pair->closed_reason.empty()) controller_->delete_pair(pair->id);
        controller_->shutdown();
    } catch (const StorageError&) {
        // Deleting and announcing are courtesies; disabling is what counts.
    }
    const bool stopped = controller_->disable();
    closed_reason_ = "closed";
    for (const auto& pair : open) {
        if (!pair) continue;
        system_ref<uint32_t>(pair->ref.shared->closed).store(1, memory_order_release);
        fail_in_flight(*pair, "the drive was closed", ECANCELED);
        pair->closed_reason = "the drive was closed";
        pair->closed_error = EBADF;
        if (!stopped) {
            pair->rings->abandon();
            pair->data->abandon();
        }
    }
}

}  // namespace gids::nvme
