// VFIO: container and group, BAR 0, bus addresses. Memory is locked by the kernel for as long as it is mapped.
#include "nvme/vfio.hpp"

#include <fcntl.h>
#include <linux/pci_regs.h>
#include <linux/vfio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "interrupted.hpp"
#include "nvme/queue_memory.hpp"

namespace gids::nvme {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;

[[noreturn]] void refuse(const std::string& what, const std::string& path, int error_number) {
    throw StorageError(what, path, 0, 0, error_number);
}

template <class... Argument>
int control(int descriptor, unsigned long request, Argument... argument) {
    return retry_on_eintr([&] { return ioctl(descriptor, request, argument...); });
}

// Owns a file descriptor.
class Descriptor {
public:
    explicit Descriptor(int value = -1) : value_(value) {}
    Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(value_, other.value_);
        return *this;
    }
    ~Descriptor() {
        if (value_ >= 0) close(value_);
    }
    int get() const { return value_; }

private:
    int value_;
};

// The IOMMU domain of one drive, and the bus addresses that are still free in it.
class Domain {
public:
    explicit Domain(const std::string& address) {
        char link[PATH_MAX];
        const std::string path = "/sys/bus/pci/devices/" + address + "/iommu_group";
        const ssize_t length = readlink(path.c_str(), link, sizeof link - 1);
        if (length < 0)
            refuse("the drive has no IOMMU group: switch the IOMMU on (intel_iommu=on or amd_iommu=on)", path, errno);
        link[length] = 0;
        const std::string group = strrchr(link, '/') != nullptr ? strrchr(link, '/') + 1 : link;
        container_ = Descriptor(retry_on_eintr([&] { return open("/dev/vfio/vfio", O_RDWR | O_CLOEXEC); }));
        if (container_.get() < 0) refuse("cannot open VFIO: load vfio-pci", "/dev/vfio/vfio", errno);
        if (control(container_.get(), VFIO_GET_API_VERSION) != VFIO_API_VERSION ||
            control(container_.get(), VFIO_CHECK_EXTENSION, VFIO_TYPE1v2_IOMMU) != 1)
            refuse("this kernel's VFIO lacks type 1 IOMMU support", "/dev/vfio/vfio", ENOTSUP);
        const std::string group_path = "/dev/vfio/" + group;
        group_ = Descriptor(retry_on_eintr([&] { return open(group_path.c_str(), O_RDWR | O_CLOEXEC); }));
        if (group_.get() < 0)
            refuse(errno == EBUSY ? "another process or drive uses this IOMMU group"
                                  : "cannot open the IOMMU group: bind the drive to vfio-pci and own the file",
                   group_path, errno);
        vfio_group_status status{};
        status.argsz = sizeof status;
        if (control(group_.get(), VFIO_GROUP_GET_STATUS, &status) != 0) refuse("no group status", group_path, errno);
        if ((status.flags & VFIO_GROUP_FLAGS_VIABLE) == 0)
            refuse("the IOMMU group is not viable: bind every device of the group to vfio-pci", group_path, EPERM);
        const int container = container_.get();
        if (control(group_.get(), VFIO_GROUP_SET_CONTAINER, &container) != 0 ||
            control(container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU) != 0)
            refuse("cannot attach the group to an IOMMU domain", group_path, errno);
        device_ = Descriptor(control(group_.get(), VFIO_GROUP_GET_DEVICE_FD, address.c_str()));
        if (device_.get() < 0) refuse("cannot get the device from its group", address, errno);
        find_addresses();
    }

    int device() const { return device_.get(); }

    // Gives memory a bus address. Addresses are not used twice: a late write of the drive never meets new memory.
    uint64_t map(void* memory, uint64_t bytes) {
        const std::lock_guard lock(mutex_);
        if (bytes > end_ - next_) refuse("no bus addresses left", "IOMMU", ENOSPC);
        vfio_iommu_type1_dma_map request{};
        request.argsz = sizeof request;
        request.flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE;
        request.vaddr = reinterpret_cast<uintptr_t>(memory);
        request.iova = next_;
        request.size = bytes;
        if (control(container_.get(), VFIO_IOMMU_MAP_DMA, &request) != 0)
            throw StorageError(errno == ENOMEM ? "cannot lock memory for the drive: raise RLIMIT_MEMLOCK (ulimit -l)"
                                               : "cannot map memory for the drive",
                               "IOMMU", next_, bytes, errno);
        const uint64_t iova = next_;
        next_ += (bytes + kHugePage - 1) & ~(kHugePage - 1);
        return iova;
    }

    bool unmap(uint64_t iova, uint64_t bytes) {
        vfio_iommu_type1_dma_unmap request{};
        request.argsz = sizeof request;
        request.iova = iova;
        request.size = bytes;
        return control(container_.get(), VFIO_IOMMU_UNMAP_DMA, &request) == 0;
    }

private:
    // The widest range of addresses that the IOMMU translates and nothing else claims.
    void find_addresses() {
        std::vector<std::byte> buffer(sizeof(vfio_iommu_type1_info));
        auto* info = reinterpret_cast<vfio_iommu_type1_info*>(buffer.data());
        info->argsz = static_cast<uint32_t>(buffer.size());
        if (control(container_.get(), VFIO_IOMMU_GET_INFO, info) != 0) refuse("no IOMMU information", "IOMMU", errno);
        const uint32_t needed = info->argsz;
        if (needed > buffer.size()) {
            buffer.assign(needed, std::byte{0});
            info = reinterpret_cast<vfio_iommu_type1_info*>(buffer.data());
            info->argsz = needed;
            if (control(container_.get(), VFIO_IOMMU_GET_INFO, info) != 0)
                refuse("no IOMMU information", "IOMMU", errno);
        }
        next_ = uint64_t{1} << 32;
        end_ = uint64_t{1} << 38;  // what the narrowest IOMMUs in use translate, if the kernel does not say
        if ((info->flags & VFIO_IOMMU_INFO_CAPS) == 0) return;
        for (uint32_t at = info->cap_offset; at != 0 && at + sizeof(vfio_info_cap_header) <= buffer.size();) {
            const auto* header = reinterpret_cast<const vfio_info_cap_header*>(buffer.data() + at);
            if (header->id == VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE) {
                const auto* ranges = reinterpret_cast<const vfio_iommu_type1_info_cap_iova_range*>(header);
                uint64_t widest = 0;
                for (uint32_t i = 0; i < ranges->nr_iovas; ++i) {
                    const auto& range = ranges->iova_ranges[i];
                    if (range.end - range.start <= widest) continue;
                    widest = range.end - range.start;
                    next_ = std::max<uint64_t>((range.start + kHugePage - 1) & ~(kHugePage - 1), kHugePage);
                    end_ = range.end;
                }
            }
            at = header->next;
        }
    }

    Descriptor container_, group_, device_;
    std::mutex mutex_;
    uint64_t next_ = 0, end_ = 0;  // guarded by mutex_
};

class VfioMemory final : public DmaMemory {
public:
    // Memory of our own: huge pages where some are reserved, else ordinary pages.
    VfioMemory(std::shared_ptr<Domain> domain, uint64_t bytes)
        : domain_(std::move(domain)), used_(bytes), owned_(true) {
        mapped_ = (bytes + kHugePage - 1) & ~(kHugePage - 1);
        void* memory = bytes >= kHugePage / 2 ? mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
                                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_POPULATE, -1, 0)
                                              : MAP_FAILED;
        if (memory == MAP_FAILED) {
            if (bytes >= kHugePage / 2) notes_ = "4 KiB pages: no huge pages are reserved (vm.nr_hugepages)";
            mapped_ = (bytes + kPage - 1) & ~(kPage - 1);
            memory = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (memory == MAP_FAILED) refuse("cannot allocate memory for the drive", "memory", errno);
        }
        memory_ = static_cast<std::byte*>(memory);
        // A forked child must not have these pages copied away from under the drive.
        madvise(memory, mapped_, MADV_DONTFORK);
        attach();
    }

    // Memory of the caller, whole pages.
    VfioMemory(std::shared_ptr<Domain> domain, std::span<std::byte> memory)
        : domain_(std::move(domain)), memory_(memory.data()), used_(memory.size()), mapped_(memory.size()) {
        attach();
    }

    ~VfioMemory() override {
        // Unmapped, the IOMMU stops whatever the drive may still send here; only then may the pages go.
        const bool safe = !attached_ || domain_->unmap(iova_, mapped_);
        if (owned_ && safe) munmap(memory_, mapped_);
    }

    std::span<std::byte> bytes() const override { return {memory_, used_}; }
    DmaView view() const override { return {iova_, nullptr, 12}; }
    std::string notes() const override { return notes_; }
    void abandon() override { attached_ = attached_ && !domain_->unmap(iova_, mapped_); }

private:
    void attach() {
        try {
            iova_ = domain_->map(memory_, mapped_);
            attached_ = true;
        } catch (...) {
            if (owned_) munmap(memory_, mapped_);
            throw;
        }
    }

    std::shared_ptr<Domain> domain_;
    std::byte* memory_ = nullptr;
    uint64_t used_ = 0, mapped_ = 0, iova_ = 0;
    bool owned_ = false, attached_ = false;
    std::string notes_;
};

class VfioDevice final : public Device {
public:
    explicit VfioDevice(std::string address)
        : address_(std::move(address)), domain_(std::make_shared<Domain>(address_)) {
        vfio_region_info bar{};
        bar.argsz = sizeof bar;
        bar.index = VFIO_PCI_BAR0_REGION_INDEX;
        if (control(domain_->device(), VFIO_DEVICE_GET_REGION_INFO, &bar) != 0 || bar.size < 0x2000 ||
            (bar.flags & VFIO_REGION_INFO_FLAG_MMAP) == 0)
            refuse("BAR 0 of the function cannot be mapped", address_, errno);
        bar_bytes_ = bar.size;
        void* memory = mmap(nullptr, bar_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, domain_->device(),
                            static_cast<off_t>(bar.offset));
        if (memory == MAP_FAILED) refuse("cannot map BAR 0", address_, errno);
        bar_ = static_cast<std::byte*>(memory);
        enable_bus_master();
    }

    ~VfioDevice() override { munmap(bar_, bar_bytes_); }

    std::string name() const override { return address_; }
    uint32_t read32(uint32_t offset) override { return *reinterpret_cast<volatile uint32_t*>(bar_ + offset); }
    // Two halves: not every bridge carries 64-bit accesses, and no register that we read changes between them.
    uint64_t read64(uint32_t offset) override { return read32(offset) | uint64_t{read32(offset + 4)} << 32; }
    void write32(uint32_t offset, uint32_t value) override {
        *reinterpret_cast<volatile uint32_t*>(bar_ + offset) = value;
    }
    void write64(uint32_t offset, uint64_t value) override {
        write32(offset, static_cast<uint32_t>(value));
        write32(offset + 4, static_cast<uint32_t>(value >> 32));
    }
    uint32_t* doorbell(uint32_t offset) override {
        if (offset + 4 > bar_bytes_) refuse("doorbell lies outside BAR 0", address_, ERANGE);
        return reinterpret_cast<uint32_t*>(bar_ + offset);
    }

    std::unique_ptr<DmaMemory> allocate(uint64_t bytes) override {
        return std::make_unique<VfioMemory>(domain_, bytes);
    }
    std::unique_ptr<DmaMemory> map(std::span<std::byte> memory) override {
        if (reinterpret_cast<uintptr_t>(memory.data()) % kPage != 0 || memory.size() % kPage != 0) return nullptr;
        try {
            return std::make_unique<VfioMemory>(domain_, memory);
        } catch (const StorageError&) {
            return nullptr;  // too much memory to lock: the pair's own buffers are smaller
        }
    }

private:
    void enable_bus_master() {
        vfio_region_info config{};
        config.argsz = sizeof config;
        config.index = VFIO_PCI_CONFIG_REGION_INDEX;
        if (control(domain_->device(), VFIO_DEVICE_GET_REGION_INFO, &config) != 0)
            refuse("no access to PCI configuration space", address_, errno);
        uint16_t command = 0;
        const auto at = static_cast<off_t>(config.offset + PCI_COMMAND);
        if (retry_on_eintr([&] { return pread(domain_->device(), &command, 2, at); }) != 2)
            refuse("cannot read the command register", address_, errno);
        command |= PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_INTX_DISABLE;
        if (retry_on_eintr([&] { return pwrite(domain_->device(), &command, 2, at); }) != 2)
            refuse("cannot enable bus mastering", address_, errno);
    }

    const std::string address_;
    std::shared_ptr<Domain> domain_;
    std::byte* bar_ = nullptr;
    uint64_t bar_bytes_ = 0;
};

}  // namespace

std::shared_ptr<Device> open_vfio(const std::string& address) { return std::make_shared<VfioDevice>(address); }

}  // namespace gids::nvme
