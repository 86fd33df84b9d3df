// QEMU's NVMe device without a guest (-qtest): RAM is a file that we map, registers go through a socket. For tests.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "nvme/device.hpp"

namespace gids::nvme {

// One QEMU process. Several controllers share its RAM and its socket.
class QtestMachine {
public:
    // `ram_path` is the file behind the machine's memory, which begins at bus address 0.
    QtestMachine(const std::string& socket_path, const std::string& ram_path);
    ~QtestMachine();
    QtestMachine(const QtestMachine&) = delete;
    QtestMachine& operator=(const QtestMachine&) = delete;

    // Sends commands in one write and reads as many answers; returns the value of the last. Throws StorageError when
    // QEMU is gone or refuses.
    uint64_t command(const std::string& lines, size_t count);
    // Bytes of RAM that nobody uses, page aligned and zeroed; returns their bus address.
    uint64_t allocate(uint64_t bytes);
    void give_back(uint64_t address, uint64_t bytes);
    std::byte* ram(uint64_t address) { return ram_ + address; }
    // The bus address of memory that lies in RAM.
    std::optional<uint64_t> address_of(std::span<std::byte> memory) const;
    // As a drive that is pulled: from now on registers read as all ones and writes are lost. For one slot, or none
    // (-1).
    void vanish(int slot) { vanished_.store(slot, std::memory_order_release); }
    bool vanished(int slot) const { return vanished_.load(std::memory_order_acquire) == slot; }

private:
    std::mutex mutex_;
    int socket_ = -1;
    std::byte* ram_ = nullptr;
    uint64_t ram_bytes_ = 0;
    uint64_t next_ = 1 << 20;                     // guarded by mutex_; the first megabyte has holes
    std::multimap<uint64_t, uint64_t> returned_;  // guarded by mutex_: size -> address
    std::string input_;                           // guarded by mutex_
    std::atomic<int> vanished_{-1};
};

// The NVMe function in PCI slot `slot` of bus 0.
std::shared_ptr<Device> open_qtest(std::shared_ptr<QtestMachine> machine, int slot);

}  // namespace gids::nvme
