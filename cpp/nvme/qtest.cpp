// QtestMachine: the text protocol of QEMU's -qtest socket. Doorbells are words of ours that pump() carries over.
#include "nvme/qtest.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "errors.hpp"
#include "interrupted.hpp"
#include "nvme/queue_memory.hpp"
#include "nvme_queue.cuh"

namespace gids::nvme {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kSocketTimeoutSeconds = 20;

template <class... Values>
std::string line(const char* format, Values... values) {
    char buffer[128];
    std::snprintf(buffer, sizeof buffer, format, values...);
    return buffer;
}

class QtestMemory final : public DmaMemory {
public:
    QtestMemory(std::shared_ptr<QtestMachine> machine, uint64_t address, uint64_t bytes, bool owned)
        : machine_(std::move(machine)), address_(address), bytes_(bytes), owned_(owned) {}
    ~QtestMemory() override {
        if (owned_) machine_->give_back(address_, bytes_);
    }
    std::span<std::byte> bytes() const override { return {machine_->ram(address_), bytes_}; }
    DmaView view() const override { return {address_, nullptr, 12}; }
    std::string notes() const override { return {}; }
    void abandon() override { owned_ = false; }

private:
    std::shared_ptr<QtestMachine> machine_;
    uint64_t address_, bytes_;
    bool owned_;
};

class QtestDevice final : public Device {
public:
    QtestDevice(std::shared_ptr<QtestMachine> machine, int slot)
        : machine_(std::move(machine)), slot_(slot), bar_(0xe0000000ull + static_cast<uint64_t>(slot) * 0x100000) {
        const uint32_t id = config_read(0);
        if (id == 0xffffffff || config_read(8) >> 8 != 0x010802)
            throw StorageError("no NVMe function in this slot of the test machine", name(), 0, 0, ENODEV);
        config_write(0x10, static_cast<uint32_t>(bar_));
        config_write(0x14, 0);
        config_write(0x04, 0x0406);  // memory space, bus master, no INTx
    }

    std::string name() const override { return "qtest:" + std::to_string(slot_); }

    uint32_t read32(uint32_t offset) override {
        if (machine_->vanished(slot_)) return 0xffffffff;
        try {
            return static_cast<uint32_t>(machine_->command(line("readl 0x%" PRIx64 "\n", bar_ + offset), 1));
        } catch (const StorageError&) {
            return 0xffffffff;  // QEMU has ended: to the driver, a device that is gone
        }
    }
    uint64_t read64(uint32_t offset) override { return read32(offset) | uint64_t{read32(offset + 4)} << 32; }
    void write32(uint32_t offset, uint32_t value) override {
        send(line("writel 0x%" PRIx64 " 0x%x\n", bar_ + offset, value), 1);
    }
    void write64(uint32_t offset, uint64_t value) override {
        write32(offset, static_cast<uint32_t>(value));
        write32(offset + 4, static_cast<uint32_t>(value >> 32));
    }

    uint32_t* doorbell(uint32_t offset) override {
        const std::lock_guard lock(mutex_);
        for (Doorbell& bell : doorbells_) {
            if (bell.offset != offset) continue;
            *bell.word = bell.sent = 0;
            return bell.word.get();
        }
        doorbells_.push_back({offset, std::make_unique<uint32_t>(0), 0});
        return doorbells_.back().word.get();
    }

    void pump() override {
        const std::lock_guard lock(mutex_);
        std::string lines;
        size_t count = 0;
        for (Doorbell& bell : doorbells_) {
            // acquire: pairs with write_doorbell; the entries are in shared memory before QEMU hears of them.
            const uint32_t value = system_ref<uint32_t>(*bell.word).load(memory_order_acquire);
            if (value == bell.sent) continue;
            lines += line("writel 0x%" PRIx64 " 0x%x\n", bar_ + bell.offset, value);
            bell.sent = value;
            ++count;
        }
        if (count != 0) send(lines, count);
    }

    std::unique_ptr<DmaMemory> allocate(uint64_t bytes) override {
        const uint64_t address = machine_->allocate(bytes);
        return std::make_unique<QtestMemory>(machine_, address, bytes, /*owned=*/true);
    }
    std::unique_ptr<DmaMemory> map(std::span<std::byte> memory) override {
        const std::optional<uint64_t> address = machine_->address_of(memory);
        if (!address) return nullptr;  // not in the machine's RAM
        return std::make_unique<QtestMemory>(machine_, *address, memory.size(), /*owned=*/false);
    }

private:
    struct Doorbell {
        uint32_t offset;
        std::unique_ptr<uint32_t> word;
        uint32_t sent;  // what the controller was told last
    };

    // As a posted write on a bus: what nobody takes is lost without a word.
    void send(const std::string& lines, size_t count) {
        if (machine_->vanished(slot_)) return;
        try {
            machine_->command(lines, count);
        } catch (const StorageError&) {
            machine_->vanish(slot_);
        }
    }
    uint32_t config_address(uint32_t offset) const { return 0x80000000u | static_cast<uint32_t>(slot_) << 11 | offset; }
    uint32_t config_read(uint32_t offset) {
        return static_cast<uint32_t>(
            machine_->command(line("outl 0xcf8 0x%x\ninl 0xcfc\n", config_address(offset)), 2));
    }
    void config_write(uint32_t offset, uint32_t value) {
        machine_->command(line("outl 0xcf8 0x%x\noutl 0xcfc 0x%x\n", config_address(offset), value), 2);
    }

    std::shared_ptr<QtestMachine> machine_;
    const int slot_;
    const uint64_t bar_;
    std::mutex mutex_;
    std::vector<Doorbell> doorbells_;  // guarded by mutex_
};

}  // namespace

QtestMachine::QtestMachine(const std::string& socket_path, const std::string& ram_path) {
    const auto refuse = [&](const char* what, const std::string& path) {
        const int error = errno;
        if (socket_ >= 0) close(socket_);
        throw StorageError(what, path, 0, 0, error);
    };
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (socket_path.size() >= sizeof address.sun_path)
        throw ConfigError("socket path must be shorter than 108 bytes (got " + socket_path + ")");
    std::memcpy(address.sun_path, socket_path.c_str(), socket_path.size() + 1);
    socket_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (socket_ < 0 ||
        retry_on_eintr([&] { return connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address); }) != 0)
        refuse("cannot connect to QEMU", socket_path);
    const timeval limit{kSocketTimeoutSeconds, 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    const int file = retry_on_eintr([&] { return open(ram_path.c_str(), O_RDWR | O_CLOEXEC); });
    if (file < 0) refuse("cannot open the machine's memory", ram_path);
    struct stat status {};
    if (retry_on_eintr([&] { return fstat(file, &status); }) != 0)
        refuse("cannot find the size of the machine's memory", ram_path);
    ram_bytes_ = static_cast<uint64_t>(status.st_size);
    void* memory = mmap(nullptr, ram_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) refuse("cannot map the machine's memory", ram_path);
    ram_ = static_cast<std::byte*>(memory);
}

QtestMachine::~QtestMachine() {
    munmap(ram_, ram_bytes_);
    close(socket_);
}

uint64_t QtestMachine::command(const std::string& lines, size_t count) {
    const std::lock_guard lock(mutex_);
    for (size_t sent = 0; sent < lines.size();) {
        const ssize_t n =
            retry_on_eintr([&] { return send(socket_, lines.data() + sent, lines.size() - sent, MSG_NOSIGNAL); });
        if (n <= 0) throw StorageError("QEMU does not listen any more", "qtest", 0, 0, errno);
        sent += static_cast<size_t>(n);
    }
    const auto deadline = Clock::now() + std::chrono::seconds(kSocketTimeoutSeconds);
    uint64_t value = 0;
    while (count != 0) {
        const size_t end = input_.find('\n');
        if (end == std::string::npos) {
            char buffer[4096];
            const ssize_t n = recv(socket_, buffer, sizeof buffer, 0);
            // Not retry_on_eintr: each call waits anew, so that signals could put the end off for ever.
            if (n < 0 && errno == EINTR && Clock::now() < deadline) continue;
            if (n <= 0) throw StorageError("QEMU does not answer any more", "qtest", 0, 0, n < 0 ? errno : EPIPE);
            input_.append(buffer, static_cast<size_t>(n));
            continue;
        }
        const std::string answer = input_.substr(0, end);
        input_.erase(0, end + 1);
        if (answer.rfind("IRQ", 0) == 0) continue;
        if (answer.rfind("OK", 0) != 0) throw StorageError("QEMU refused a command: " + answer, "qtest", 0, 0, EPROTO);
        if (answer.size() > 3) value = std::strtoull(answer.c_str() + 3, nullptr, 0);
        --count;
    }
    return value;
}

std::optional<uint64_t> QtestMachine::address_of(std::span<std::byte> memory) const {
    const auto begin = reinterpret_cast<uintptr_t>(memory.data()), base = reinterpret_cast<uintptr_t>(ram_);
    if (begin < base || begin - base > ram_bytes_ || memory.size() > ram_bytes_ - (begin - base)) return std::nullopt;
    return begin - base;
}

uint64_t QtestMachine::allocate(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    const uint64_t rounded = (bytes + kPage - 1) & ~(kPage - 1);
    uint64_t address = next_;
    if (const auto used = returned_.find(rounded); used != returned_.end()) {
        address = used->second;
        returned_.erase(used);
    } else if (rounded > ram_bytes_ - next_) {
        throw StorageError("the test machine has no memory left", "qtest", next_, bytes, ENOMEM);
    } else {
        next_ += rounded;
    }
    std::memset(ram_ + address, 0, rounded);
    return address;
}

void QtestMachine::give_back(uint64_t address, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    returned_.emplace((bytes + kPage - 1) & ~(kPage - 1), address);
}

std::shared_ptr<Device> open_qtest(std::shared_ptr<QtestMachine> machine, int slot) {
    return std::make_shared<QtestDevice>(std::move(machine), slot);
}

}  // namespace gids::nvme
