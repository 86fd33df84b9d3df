// Copies, fills and what a pointer is. A copy of pageable memory is staged or waited for, as the driver documents.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "state.hpp"

namespace {

using standin::HostKind;

constexpr std::size_t kPieceBytes = 64 << 10;  // other streams run between pieces of a copy

struct End {
    bool device;
    HostKind host;
};

bool classify(CUdeviceptr pointer, std::size_t bytes, const char* call, End* out) {
    standin::Range range{};
    if (standin::find_allocation(pointer, &range)) {
        *out = {true, HostKind::kPinned};
        if (pointer + bytes <= range.begin + range.bytes) return true;
        standin::complain(std::string(call) + ": a copy of " + std::to_string(bytes) + " bytes leaves its allocation");
        return false;
    }
    if (standin::in_device_view(pointer)) {
        standin::complain(std::string(call) + ": " + standin::hexadecimal(pointer) +
                          " is device memory that was freed");
        return false;
    }
    *out = {false, standin::classify_host(pointer, bytes, standin::context(nullptr))};
    if (pointer == 0) return false;
    if (out->host != HostKind::kPartly) return true;
    standin::complain(std::string(call) + ": " + std::to_string(bytes) + " bytes at " + standin::hexadecimal(pointer) +
                      " leave the pinned or registered range that they begin or end in");
    return false;
}

// A copy of pinned or registered memory that runs now: it must not have been freed since it was asked for.
bool still_pinned(CUdeviceptr pointer, std::size_t bytes, const End& end, const Context* context) {
    if (end.device || end.host == HostKind::kPageable || standin::classify_host(pointer, bytes, context) == end.host)
        return true;
    standin::complain("a copy of " + std::to_string(bytes) + " bytes at " + standin::hexadecimal(pointer) +
                      ": host memory that was freed or unregistered before the copy ran");
    standin::set_sticky(CUDA_ERROR_ILLEGAL_ADDRESS);
    return false;
}

// Work that runs now may use only what stream order has allocated and not yet freed.
bool running(CUdeviceptr pointer, const char* what) {
    standin::Range range{};
    if (!standin::in_device_view(pointer) || standin::find_running(pointer, &range)) return true;
    standin::complain(std::string(what) + " at " + standin::hexadecimal(pointer) +
                      ": device memory that in stream order is not allocated yet, or freed");
    standin::set_sticky(CUDA_ERROR_ILLEGAL_ADDRESS);
    return false;
}

void move_bytes(CUdeviceptr to, CUdeviceptr from, const char* staged, std::size_t bytes) {
    if (standin::sticky() != CUDA_SUCCESS) return;  // nothing runs in a context that an error has ended
    if (!running(to, "a copy writes") || (staged == nullptr && !running(from, "a copy reads"))) return;
    const char* source = staged != nullptr ? staged : standin::bytes_at(from);
    char* target = standin::bytes_at(to);
    if (bytes <= kPieceBytes) {  // may overlap only when it is one piece
        std::memmove(target, source, bytes);
        return;
    }
    for (std::size_t at = 0; at < bytes; at += kPieceBytes) {
        std::memcpy(target + at, source + at, std::min(kPieceBytes, bytes - at));
        std::this_thread::yield();
    }
}

// Whether this pageable copy first waits for its stream: documented as possible, so neither may be relied on.
bool waits_first() {
    static std::atomic<uint64_t> state{standin::setting("GIDS_STANDIN_SEED", 0) * 2 + 1};
    uint64_t x = state.fetch_add(0x9E3779B97F4A7C15ull);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    return (x >> 40 & 3) == 0;
}

CUresult copy(const char* call, CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    if (!standin::is_live(stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (bytes == 0) return CUDA_SUCCESS;
    End target{}, source{};
    if (!classify(to, bytes, call, &target) || !classify(from, bytes, call, &source)) return CUDA_ERROR_INVALID_VALUE;
    const bool pageable = (!target.device && target.host == HostKind::kPageable) ||
                          (!source.device && source.host == HostKind::kPageable);
    const char* kind = target.device   ? (source.device ? "copy d2d"
                                          : pageable    ? "copy h2d pageable"
                                                        : "copy h2d pinned")
                       : source.device ? (pageable ? "copy d2h pageable" : "copy d2h pinned")
                                       : "copy h2h";
    standin::trace(kind, stream, call, bytes);
    if (pageable && target.device) {
        if (waits_first())
            if (const CUresult failed = standin::synchronize(stream, call); failed != CUDA_SUCCESS) return failed;
        const char* begin = reinterpret_cast<const char*>(from);
        auto staged = std::make_shared<std::vector<char>>(begin, begin + bytes);
        standin::enqueue(stream, [=] { move_bytes(to, 0, staged->data(), bytes); });
        return CUDA_SUCCESS;
    }
    const Context* context = standin::context(nullptr);
    standin::enqueue(stream, [=] {
        if (still_pinned(to, bytes, target, context) && still_pinned(from, bytes, source, context))
            move_bytes(to, from, nullptr, bytes);
    });
    // To pageable memory, and between host memories, the call returns when the copy is done.
    const bool synchronous = !target.device && (pageable || !source.device);
    return synchronous ? standin::synchronize(stream, call) : CUDA_SUCCESS;
}

CUresult copy_and_wait(const char* call, CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    const CUresult result = copy(call, to, from, bytes, nullptr);
    return result != CUDA_SUCCESS ? result : standin::synchronize(nullptr, call);
}

template <class T>
CUresult fill(const char* call, CUdeviceptr to, T value, std::size_t count, CUstream stream) {
    if (!standin::is_live(stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (count == 0) return CUDA_SUCCESS;
    End target{};
    if (!classify(to, count * sizeof(T), call, &target)) return CUDA_ERROR_INVALID_VALUE;
    if (!target.device && target.host == HostKind::kPageable) {
        standin::complain(std::string(call) + ": " + standin::hexadecimal(to) + " is pageable host memory");
        return CUDA_ERROR_INVALID_VALUE;
    }
    standin::trace("fill", stream, call, count * sizeof(T));
    standin::enqueue(stream, [=] {
        if (standin::sticky() != CUDA_SUCCESS || !running(to, "a fill writes")) return;
        char* memory = standin::bytes_at(to);
        for (std::size_t i = 0; i < count; ++i) std::memcpy(memory + i * sizeof(T), &value, sizeof(T));
    });
    return CUDA_SUCCESS;
}

}  // namespace

// A file of the right size; its bytes are not the allocation's, which no test pretends.
STANDIN_API CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr pointer, std::size_t bytes, int type,
                                                   unsigned long long) {
    ENTER(cuMemGetHandleForAddressRange);
    constexpr int kDmaBufDescriptor = 1;
    standin::Range range{};
    if (type != kDmaBufDescriptor || bytes == 0 || bytes % 4096 != 0 || pointer % 4096 != 0 ||
        !standin::find_allocation(pointer, &range) || pointer + bytes > range.begin + range.bytes)
        return CUDA_ERROR_INVALID_VALUE;
    const int file = memfd_create("gids stand-in dma-buf", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
    std::memcpy(handle, &file, sizeof file);
    return CUDA_SUCCESS;
}

STANDIN_API CUresult cuPointerGetAttribute(void* data, int attribute, CUdeviceptr pointer) {
    ENTER(cuPointerGetAttribute);
    standin::Range range{};
    const bool device = standin::find_allocation(pointer, &range);
    if (!device && !standin::find_pinned(pointer, &range)) return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
        case kPointerContext:
            *static_cast<CUcontext*>(data) = standin::primary_context(range.device);
            break;
        case kPointerMemoryType:
            *static_cast<unsigned*>(data) = device ? kMemoryTypeDevice : kMemoryTypeHost;
            break;
        case kPointerDevicePointer:
            *static_cast<CUdeviceptr*>(data) = pointer;
            break;
        case kPointerHostPointer:
            if (device && !standin::forgiven("integrated")) return CUDA_ERROR_INVALID_VALUE;
            *static_cast<CUdeviceptr*>(data) = pointer;
            break;
        case kPointerBufferId:
            *static_cast<uint64_t*>(data) = range.begin;
            break;
        case kPointerIsManaged:
            *static_cast<int*>(data) = 0;
            break;
        case kPointerDeviceOrdinal:
            *static_cast<int*>(data) = range.device;
            break;
        case kPointerRangeStart:
            *static_cast<CUdeviceptr*>(data) = range.begin;
            break;
        case kPointerRangeSize:
            *static_cast<std::size_t*>(data) = range.bytes;
            break;
        case kPointerMapped:
            *static_cast<int*>(data) = 1;
            break;
        case kPointerMempoolHandle:
            *static_cast<void**>(data) = nullptr;
            break;
        default:
            return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuPointerGetAttributes(unsigned count, const int* attributes, void** data, CUdeviceptr pointer) {
    for (unsigned i = 0; i < count; ++i)
        if (cuPointerGetAttribute(data[i], attributes[i], pointer) != CUDA_SUCCESS) std::memset(data[i], 0, 4);
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuPointerSetAttribute(const void*, int, CUdeviceptr) { return CUDA_SUCCESS; }
STANDIN_API CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr pointer) {
    ENTER_TO_END(cuMemGetAddressRange);
    standin::Range range{};
    if (!standin::find_allocation(pointer, &range)) return CUDA_ERROR_NOT_FOUND;
    if (base != nullptr) *base = range.begin;
    if (bytes != nullptr) *bytes = range.bytes;
    return CUDA_SUCCESS;
}

STANDIN_API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    ENTER_IN_CONTEXT(cuMemcpyAsync);
    return copy("cuMemcpyAsync", to, from, bytes, stream);
}
STANDIN_API CUresult cuMemcpyBatchAsync_v2(const CUdeviceptr* to, const CUdeviceptr* from, const std::size_t* bytes,
                                           std::size_t count, const void*, const std::size_t*, std::size_t,
                                           CUstream stream) {
    ENTER_IN_CONTEXT(cuMemcpyBatchAsync);
    for (std::size_t i = 0; i < count; ++i)
        if (const CUresult result = copy("cuMemcpyBatchAsync", to[i], from[i], bytes[i], stream);
            result != CUDA_SUCCESS)
            return result;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
    ENTER_IN_CONTEXT(cuMemcpyHtoDAsync);
    return copy("cuMemcpyHtoDAsync", to, reinterpret_cast<CUdeviceptr>(from), bytes, stream);
}
STANDIN_API CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    ENTER_IN_CONTEXT(cuMemcpyDtoHAsync);
    return copy("cuMemcpyDtoHAsync", reinterpret_cast<CUdeviceptr>(to), from, bytes, stream);
}
STANDIN_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    ENTER_IN_CONTEXT(cuMemcpyDtoDAsync);
    return copy("cuMemcpyDtoDAsync", to, from, bytes, stream);
}
STANDIN_API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t bytes) {
    ENTER_IN_CONTEXT(cuMemcpyHtoD);
    return copy_and_wait("cuMemcpyHtoD", to, reinterpret_cast<CUdeviceptr>(from), bytes);
}
STANDIN_API CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t bytes) {
    ENTER_IN_CONTEXT(cuMemcpyDtoH);
    return copy_and_wait("cuMemcpyDtoH", reinterpret_cast<CUdeviceptr>(to), from, bytes);
}
STANDIN_API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t count, CUstream stream) {
    ENTER_IN_CONTEXT(cuMemsetD8Async);
    return fill("cuMemsetD8Async", to, value, count, stream);
}
STANDIN_API CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, std::size_t count, CUstream stream) {
    ENTER_IN_CONTEXT(cuMemsetD16Async);
    return fill("cuMemsetD16Async", to, value, count, stream);
}
STANDIN_API CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t count, CUstream stream) {
    ENTER_IN_CONTEXT(cuMemsetD32Async);
    return fill("cuMemsetD32Async", to, value, count, stream);
}
