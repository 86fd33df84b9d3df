// Controller: registers of chapter 3, admin commands of chapter 5 of the NVMe base specification 1.4.
#include "nvme/controller.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <thread>

#include "errors.hpp"
#include "nvme/status.hpp"
#include "nvme_queue.cuh"

namespace gids::nvme {
namespace {

constexpr uint32_t kCap = 0x00, kCc = 0x14, kCsts = 0x1c, kAqa = 0x24, kAsq = 0x28, kAcq = 0x30;
constexpr uint32_t kInterruptMask = 0x0c;
constexpr uint32_t kAdminDepth = 16;
constexpr uint32_t kAllOnes = 0xffffffff;
constexpr uint32_t kCcEnable = 1;
constexpr uint32_t kDeleteSq = 0x00, kCreateSq = 0x01, kDeleteCq = 0x04, kCreateCq = 0x05, kIdentify = 0x06,
                   kAbort = 0x08, kSetFeatures = 0x09;
constexpr uint32_t kFeatureQueues = 0x07;
constexpr uint32_t kMaxNamespaces = 1024;  // what one page of active namespace ids holds

using Clock = std::chrono::steady_clock;

// Identify strings are padded with spaces.
std::string text(const std::byte* from, size_t length) {
    std::string value(reinterpret_cast<const char*>(from), length);
    const size_t end = value.find_last_not_of(std::string(" \0", 2));
    value.resize(end == std::string::npos ? 0 : end + 1);
    return value;
}

template <class T>
T load(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

}  // namespace

Controller::Controller(std::shared_ptr<Device> device, uint32_t queues, Milliseconds admin_timeout)
    : device_(std::move(device)), admin_timeout_(admin_timeout) {
    const uint64_t cap = device_->read64(kCap);
    if (cap == ~uint64_t{0}) fail("the device is not there (registers read as all ones)", ENODEV);
    if ((cap >> 37 & 1) == 0) fail("the controller does not speak the NVM command set", ENOTSUP);
    const uint32_t page_bits = 12 + static_cast<uint32_t>(cap >> 48 & 0xf);  // CAP.MPSMIN: the smallest page it knows
    info_.page_bits = page_bits;
    info_.max_queue_entries = static_cast<uint32_t>(cap & 0xffff) + 1;
    info_.doorbell_stride = static_cast<uint32_t>(cap >> 32 & 0xf);
    ready_timeout_ = Milliseconds(std::max<uint64_t>(cap >> 24 & 0xff, 1) * 500);  // CAP.TO
    const uint64_t page = uint64_t{1} << page_bits;
    memory_ = device_->allocate(3 * page);
    std::byte* base = memory_->bytes().data();
    sq_ = reinterpret_cast<Command*>(base);
    cq_ = reinterpret_cast<Completion*>(base + page);
    data_ = base + 2 * page;
    data_iova_ = memory_->view().iova(2 * page);
    reset();
    identify(queues);
}

Controller::~Controller() { disable(); }

bool Controller::disable() noexcept {
    if (disabled_) return true;
    if (health() != Health::kGone) {
        device_->write32(kCc, device_->read32(kCc) & ~kCcEnable);
        disabled_ = wait_ready(false, ready_timeout_);
    }
    // Not confirmed: the admin memory must stay the drive's.
    if (!disabled_) memory_->abandon();
    return disabled_;
}

void Controller::fail(const std::string& what, int error_number) const {
    throw StorageError("NVMe controller " + device_->name() + ": " + what, device_->name(), 0, 0, error_number);
}

Health Controller::health() {
    const uint32_t csts = device_->read32(kCsts);
    if (csts == kAllOnes) return Health::kGone;
    if ((csts & 2) != 0) return Health::kFatal;
    return (csts & 1) != 0 ? Health::kReady : Health::kNotReady;
}

bool Controller::wait_ready(bool ready, Milliseconds limit) {
    const auto deadline = Clock::now() + limit;
    for (;;) {
        const uint32_t csts = device_->read32(kCsts);
        if (csts == kAllOnes) return false;
        if ((csts & 1) == (ready ? 1u : 0u)) return true;
        if (ready && (csts & 2) != 0) return false;
        if (Clock::now() > deadline) return false;
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
}

void Controller::reset() {
    const std::lock_guard lock(admin_mutex_);
    if (health() == Health::kGone) fail("the device has left the bus (registers read as all ones)", ENODEV);
    device_->write32(kCc, device_->read32(kCc) & ~kCcEnable);
    if (!wait_ready(false, ready_timeout_)) {
        if (health() == Health::kGone) fail("the device left the bus during reset", ENODEV);
        fail("reset was not confirmed within " + std::to_string(ready_timeout_.count()) + " ms", ETIMEDOUT);
    }
    enable();
}

void Controller::enable() {
    const uint64_t page = uint64_t{1} << info_.page_bits;
    std::memset(memory_->bytes().data(), 0, 3 * page);
    tail_ = head_ = 0;
    sq_doorbell_ = device_->doorbell(submission_doorbell(0, info_.doorbell_stride));
    cq_doorbell_ = device_->doorbell(completion_doorbell(0, info_.doorbell_stride));
    const DmaView view = memory_->view();
    device_->write32(kAqa, (kAdminDepth - 1) << 16 | (kAdminDepth - 1));
    device_->write64(kAsq, view.iova(0));
    device_->write64(kAcq, view.iova(page));
    device_->write32(kInterruptMask, kAllOnes);  // we poll
    // 64-byte and 16-byte entries, page size, NVM command set, round robin.
    device_->write32(kCc, 6u << 16 | 4u << 20 | (info_.page_bits - 12) << 7 | kCcEnable);
    if (!wait_ready(true, ready_timeout_)) {
        const Health now = health();
        if (now == Health::kGone) fail("the device left the bus while it was enabled", ENODEV);
        if (now == Health::kFatal) fail("fatal status (CSTS.CFS) while it was enabled", EIO);
        fail("not ready within " + std::to_string(ready_timeout_.count()) + " ms", ETIMEDOUT);
    }
}

Controller::Answer Controller::admin(Command command) {
    const std::lock_guard lock(admin_mutex_);
    const uint32_t id = next_id_++ & 0x7fff;
    command.dw[0] = (command.dw[0] & 0xffff) | id << 16;
    sq_[tail_] = command;
    tail_ = (tail_ + 1) % kAdminDepth;
    write_doorbell(sq_doorbell_, tail_);
    const auto deadline = Clock::now() + admin_timeout_;
    for (uint32_t idle = 0;; ++idle) {
        device_->pump();
        Completion& entry = cq_[head_ % kAdminDepth];
        // acquire: the data page and the rest of the entry were written before the phase flipped.
        const uint32_t dw3 = system_ref<uint32_t>(entry.dw[3]).load(memory_order_acquire);
        if (completion_phase(dw3) == ((head_ / kAdminDepth & 1) ^ 1)) {
            const Answer answer{completion_status(dw3), entry.dw[0]};
            ++head_;
            write_doorbell(cq_doorbell_, head_ % kAdminDepth);
            if (completion_id(dw3) == id) return answer;
            continue;  // the late answer to a command that was given up
        }
        if (Clock::now() > deadline) {
            const Health now = health();
            if (now == Health::kGone) fail("the device has left the bus (registers read as all ones)", ENODEV);
            if (now == Health::kFatal) fail("fatal status (CSTS.CFS)", EIO);
            fail("no answer to admin command " + std::to_string(command.dw[0] & 0xff) + " within " +
                     std::to_string(admin_timeout_.count()) + " ms",
                 ETIMEDOUT);
        }
        if (idle > 50) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
}

Controller::Answer Controller::checked(const char* what, const Command& command) {
    const Answer answer = admin(command);
    if (answer.status != 0)
        fail(std::string(what) + ": " + describe_status(answer.status), status_errno(answer.status));
    return answer;
}

void Controller::identify(uint32_t queues) {
    const auto page = [&](uint32_t nsid, uint32_t what) {
        Command command{};
        command.dw[0] = kIdentify;
        command.dw[1] = nsid;
        command.dw[6] = static_cast<uint32_t>(data_iova_);
        command.dw[7] = static_cast<uint32_t>(data_iova_ >> 32);
        command.dw[10] = what;
        checked("identify", command);
    };
    page(0, 1);
    info_.serial = text(data_ + 4, 20);
    info_.model = text(data_ + 24, 40);
    info_.firmware = text(data_ + 64, 8);
    const auto mdts = load<uint8_t>(data_ + 77);
    info_.max_transfer_bytes =
        mdts == 0 || mdts > 40 ? std::numeric_limits<uint64_t>::max() : uint64_t{1} << (mdts + info_.page_bits);
    page(0, 2);
    std::vector<uint32_t> active;
    for (uint32_t i = 0; i < kMaxNamespaces; ++i) {
        const auto nsid = load<uint32_t>(data_ + i * 4);
        if (nsid == 0) break;
        active.push_back(nsid);
    }
    for (const uint32_t nsid : active) {
        page(nsid, 0);
        const uint32_t format = load<uint8_t>(data_ + 26) & 0xf;
        const auto lbaf = load<uint32_t>(data_ + 128 + format * 4);
        info_.namespaces.push_back({nsid, load<uint64_t>(data_), lbaf >> 16 & 0xff, lbaf & 0xffff});
    }
    Command command{};
    command.dw[0] = kSetFeatures;
    command.dw[10] = kFeatureQueues;
    command.dw[11] = (queues - 1) << 16 | (queues - 1);
    const uint32_t granted = checked("set number of queues", command).result;
    info_.io_queues = std::min({queues, (granted & 0xffff) + 1, (granted >> 16) + 1});
}

void Controller::create_pair(uint32_t queue, uint32_t depth, uint64_t sq_iova, uint64_t cq_iova) {
    if (queue < 1 || queue > info_.io_queues)
        throw ConfigError("I/O queue of " + device_->name() + " must be in [1, " + std::to_string(info_.io_queues) +
                          "] (got " + std::to_string(queue) + ")");
    Command command{};
    command.dw[0] = kCreateCq;
    command.dw[6] = static_cast<uint32_t>(cq_iova);
    command.dw[7] = static_cast<uint32_t>(cq_iova >> 32);
    command.dw[10] = (depth - 1) << 16 | queue;
    command.dw[11] = 1;  // physically contiguous, no interrupts
    checked("create completion queue", command);
    command.dw[0] = kCreateSq;
    command.dw[6] = static_cast<uint32_t>(sq_iova);
    command.dw[7] = static_cast<uint32_t>(sq_iova >> 32);
    command.dw[11] = queue << 16 | 1;
    const Answer answer = admin(command);
    if (answer.status != 0) {
        Command undo{};
        undo.dw[0] = kDeleteCq;
        undo.dw[10] = queue;
        admin(undo);
        fail("create submission queue: " + describe_status(answer.status), status_errno(answer.status));
    }
}

void Controller::delete_pair(uint32_t queue) {
    Command command{};
    command.dw[10] = queue;
    command.dw[0] = kDeleteSq;
    checked("delete submission queue", command);
    command.dw[0] = kDeleteCq;
    checked("delete completion queue", command);
}

bool Controller::abort(uint32_t queue, uint32_t id) {
    Command command{};
    command.dw[0] = kAbort;
    command.dw[10] = id << 16 | queue;
    const Answer answer = admin(command);
    return answer.status == 0 && (answer.result & 1) == 0;
}

bool Controller::shutdown() noexcept {
    try {
        if (health() != Health::kReady) return false;
        const uint32_t cc = device_->read32(kCc);
        device_->write32(kCc, (cc & ~(3u << 14)) | 1u << 14);
        const auto deadline = Clock::now() + ready_timeout_;
        while (Clock::now() < deadline) {
            const uint32_t csts = device_->read32(kCsts);
            if (csts == kAllOnes) return false;
            if ((csts >> 2 & 3) == 2) return true;
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
    } catch (const std::exception&) {
        return false;
    }
    return false;
}

}  // namespace gids::nvme
