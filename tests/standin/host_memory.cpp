// Host memory that the device may use: pinned by the driver, or registered page by page with the flags that count.
#include <sys/mman.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "state.hpp"

namespace {

constexpr CUdeviceptr kPage = 4096;
constexpr std::size_t kRedBytes = 256;
constexpr unsigned char kRed = 0xA5, kRubbish = 0xCD, kFreed = 0xDD;

struct Pinned {
    std::size_t bytes, mapped_bytes;
    char* memory;
};
struct Registered {
    CUdeviceptr end;      // of its last page
    CUdeviceptr pointer;  // as given
    std::size_t bytes;
    unsigned flags;
    const Context* context;
};

std::mutex host_mutex;
std::map<CUdeviceptr, Pinned> pinned;          // guarded by host_mutex
std::map<CUdeviceptr, Registered> registered;  // first page -> range; guarded by host_mutex

const std::pair<const CUdeviceptr, Pinned>* pinned_at(CUdeviceptr pointer) {
    auto after = pinned.upper_bound(pointer);
    if (after == pinned.begin()) return nullptr;
    --after;
    return pointer <= after->first + after->second.bytes ? &*after : nullptr;
}
const Registered* registered_at(CUdeviceptr pointer) {
    auto after = registered.upper_bound(pointer);
    if (after == registered.begin()) return nullptr;
    --after;
    return pointer < after->second.end ? &after->second : nullptr;
}

bool known_in(const Registered& range, const Context* context) {
    return (range.flags & kRegisterPortable) != 0 || range.context == context;
}

enum class Mapping { kNone, kReadOnly, kWritable };
// What the process may do with all of a range, by /proc/self/maps.
Mapping mapping_of(CUdeviceptr begin, CUdeviceptr end) {
    std::FILE* maps = std::fopen("/proc/self/maps", "re");
    if (maps == nullptr) return Mapping::kWritable;
    char line[512], access[8];
    CUdeviceptr covered = begin;
    bool writable = true;
    while (covered < end && std::fgets(line, sizeof line, maps) != nullptr) {
        uint64_t from = 0, to = 0;
        if (std::sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s", &from, &to, access) != 3) continue;
        if (to <= covered) continue;
        if (from > covered || access[0] != 'r') break;
        writable = writable && access[1] == 'w';
        covered = to;
    }
    std::fclose(maps);
    if (covered < end) return Mapping::kNone;
    return writable ? Mapping::kWritable : Mapping::kReadOnly;
}

CUresult pin(std::size_t bytes, void** out) {
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    const std::size_t mapped = (bytes + 2 * kRedBytes + kPage - 1) / kPage * kPage + kPage;
    void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    char* begin = static_cast<char*>(memory) + kPage;  // pinned memory begins on a page, as the driver's does
    std::memset(begin - kRedBytes, kRed, kRedBytes);
    std::memset(begin, kRubbish, bytes);
    std::memset(begin + bytes, kRed, kRedBytes);
    const std::lock_guard<std::mutex> lock(host_mutex);
    pinned[reinterpret_cast<CUdeviceptr>(begin)] = {bytes, mapped, static_cast<char*>(memory)};
    *out = begin;
    return CUDA_SUCCESS;
}

}  // namespace

namespace standin {

HostKind classify_host(CUdeviceptr pointer, std::size_t bytes, const Context* context) {
    const std::lock_guard<std::mutex> lock(host_mutex);
    if (const auto* piece = pinned_at(pointer))
        return pointer + bytes <= piece->first + piece->second.bytes ? HostKind::kPinned : HostKind::kPartly;
    if (const auto* range = registered_at(pointer)) {
        if (!known_in(*range, context)) return HostKind::kPageable;
        return pointer + bytes <= range->end ? HostKind::kRegistered : HostKind::kPartly;
    }
    const auto next = registered.lower_bound(pointer);
    if (next != registered.end() && next->first < pointer + bytes && known_in(next->second, context))
        return HostKind::kPartly;
    return HostKind::kPageable;
}

std::string why_unreachable(CUdeviceptr pointer, const Context* context) {
    const std::lock_guard<std::mutex> lock(host_mutex);
    if (pinned_at(pointer) != nullptr) return "";
    const auto* range = registered_at(pointer);
    if (range == nullptr) return "is host memory that is not registered";
    if ((range->flags & kRegisterDeviceMap) == 0) return "is registered without CU_MEMHOSTREGISTER_DEVICEMAP";
    if (!known_in(*range, context)) return "is registered in another context without CU_MEMHOSTREGISTER_PORTABLE";
    return "";
}

bool find_pinned(CUdeviceptr pointer, Range* out) {
    const std::lock_guard<std::mutex> lock(host_mutex);
    if (const auto* piece = pinned_at(pointer)) {
        *out = {piece->first, piece->second.bytes, 0};
        return true;
    }
    if (const auto* range = registered_at(pointer)) {
        *out = {range->pointer, range->bytes, range->context->device};
        return true;
    }
    return false;
}

bool may_touch(CUdeviceptr address, std::size_t bytes, CUdevice device, CUdeviceptr* begin, CUdeviceptr* end) {
    const CUdeviceptr pointer = pointer_of(address);
    Range range{};
    if (find_running(pointer, &range)) {
        if (range.device != device) return false;
    } else if (in_device_view(pointer) || !why_unreachable(pointer, primary_context(device)).empty() ||
               !find_pinned(pointer, &range)) {
        return false;
    }
    *begin = range.begin + (address - pointer);
    *end = *begin + range.bytes;
    return address >= *begin && address + bytes <= *end;
}

bool registers_read_only() { return setting("GIDS_STANDIN_READ_ONLY", 1) != 0; }

void host_statistics(std::size_t* pinned_count, std::size_t* registered_count) {
    const std::lock_guard<std::mutex> lock(host_mutex);
    *pinned_count = pinned.size();
    *registered_count = registered.size();
}

}  // namespace standin

// Bytes and pieces that are live, for tests of leaks.
STANDIN_API void gids_standin_live(std::size_t* bytes, std::size_t* pieces, std::size_t* pins, std::size_t* mapped) {
    standin::device_statistics(bytes, pieces);
    standin::host_statistics(pins, mapped);
}

STANDIN_API CUresult cuMemHostAlloc(void** out, std::size_t bytes, unsigned flags) {
    ENTER_IN_CONTEXT(cuMemHostAlloc);
    if (flags > kHostAllocFlags) return CUDA_ERROR_INVALID_VALUE;
    standin::trace("pin", nullptr, "cuMemHostAlloc", bytes);
    return pin(bytes, out);
}
STANDIN_API CUresult cuMemAllocHost_v2(void** out, std::size_t bytes) {
    ENTER_IN_CONTEXT(cuMemAllocHost);
    standin::trace("pin", nullptr, "cuMemAllocHost", bytes);
    return pin(bytes, out);
}
STANDIN_API CUresult cuMemFreeHost(void* pointer) {
    ENTER_TO_END(cuMemFreeHost);
    standin::trace("unpin", nullptr, "cuMemFreeHost", 0);
    if (standin::frees_wait()) standin::synchronize_all("cuMemFreeHost");
    const std::lock_guard<std::mutex> lock(host_mutex);
    const auto found = pinned.find(reinterpret_cast<CUdeviceptr>(pointer));
    if (found == pinned.end()) {
        standin::complain("pinned memory is freed that is not live");
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto [begin, piece] = *found;
    pinned.erase(found);
    const auto* memory = reinterpret_cast<unsigned char*>(begin);
    bool whole = true;
    for (std::size_t i = 0; i < kRedBytes; ++i)
        whole = whole && memory[piece.bytes + i] == kRed && *(memory - 1 - i) == kRed;
    // A copy that runs on stays within the process; what it brings is rubbish, and a later one finds that it is freed.
    if (standin::frees_wait()) munmap(piece.memory, piece.mapped_bytes);
    else std::memset(reinterpret_cast<void*>(begin), kFreed, piece.bytes);
    if (whole) return standin::sticky();
    standin::complain("something was written outside pinned memory of " + std::to_string(piece.bytes) + " bytes");
    standin::set_sticky(CUDA_ERROR_LAUNCH_FAILED);
    return CUDA_ERROR_LAUNCH_FAILED;
}

STANDIN_API CUresult cuMemHostRegister_v2(void* pointer, std::size_t bytes, unsigned flags) {
    ENTER_IN_CONTEXT(cuMemHostRegister);
    const auto key = reinterpret_cast<CUdeviceptr>(pointer);
    if (pointer == nullptr || bytes == 0 || flags > 15) return CUDA_ERROR_INVALID_VALUE;
    standin::trace("register", nullptr, "cuMemHostRegister", bytes);
    const CUdeviceptr begin = key / kPage * kPage, end = (key + bytes + kPage - 1) / kPage * kPage;
    if ((flags & kRegisterIoMemory) != 0 && standin::setting("GIDS_STANDIN_PRIVILEGED", 1) == 0)
        return CUDA_ERROR_NOT_PERMITTED;
    if ((flags & kRegisterReadOnly) != 0 && !standin::registers_read_only()) return CUDA_ERROR_NOT_SUPPORTED;
    const Mapping mapping = mapping_of(begin, end);
    if (mapping == Mapping::kNone) {
        standin::complain(standin::hexadecimal(key) + " is registered, but " + std::to_string(bytes) +
                          " bytes of it are not mapped");
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (mapping == Mapping::kReadOnly && (flags & kRegisterReadOnly) == 0) {
        standin::complain(standin::hexadecimal(key) +
                          " is mapped read-only, and registered without CU_MEMHOSTREGISTER_READ_ONLY");
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::lock_guard<std::mutex> lock(host_mutex);
    const auto after = registered.lower_bound(end);
    const bool overlaps = after != registered.begin() && std::prev(after)->second.end > begin;
    const auto pin_after = pinned.lower_bound(end);
    const bool is_pinned =
        pin_after != pinned.begin() && std::prev(pin_after)->first + std::prev(pin_after)->second.bytes > begin;
    if (overlaps || is_pinned) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    registered[begin] = {end, key, bytes, flags, standin::context(nullptr)};
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuMemHostUnregister(void* pointer) {
    ENTER_TO_END(cuMemHostUnregister);
    standin::trace("unregister", nullptr, "cuMemHostUnregister", 0);
    if (standin::frees_wait()) standin::synchronize_all("cuMemHostUnregister");
    const std::lock_guard<std::mutex> lock(host_mutex);
    const auto key = reinterpret_cast<CUdeviceptr>(pointer);
    const auto found = registered.find(key / kPage * kPage);
    if (found == registered.end() || found->second.pointer != key) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    registered.erase(found);
    return standin::sticky();
}
STANDIN_API CUresult cuMemHostGetFlags(unsigned* flags, void* pointer) {
    ENTER_IN_CONTEXT(cuMemHostGetFlags);
    const std::lock_guard<std::mutex> lock(host_mutex);
    const auto* range = registered_at(reinterpret_cast<CUdeviceptr>(pointer));
    if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = range->flags;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* pointer, unsigned) {
    ENTER_IN_CONTEXT(cuMemHostGetDevicePointer);
    const auto key = reinterpret_cast<CUdeviceptr>(pointer);
    if (!standin::why_unreachable(key, standin::context(nullptr)).empty()) return CUDA_ERROR_INVALID_VALUE;
    *out = key;
    return CUDA_SUCCESS;
}
