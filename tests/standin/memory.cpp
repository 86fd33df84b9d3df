// Device and pinned memory: host memory with a limit, rubbish inside, red zones around, and a table of what is live.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "state.hpp"

struct Pool {
    uint64_t release_threshold = 0;
};

namespace {

constexpr std::size_t kRedBytes = 256;
constexpr unsigned char kRed = 0xA5, kRubbish = 0xCD;

struct Piece {
    std::size_t bytes;
    char* memory;  // kRedBytes before the pointer that the caller has
};

std::mutex memory_mutex;
std::map<CUdeviceptr, Piece> device_pieces;     // guarded by memory_mutex
std::map<CUdeviceptr, Piece> host_pieces;       // guarded by memory_mutex
std::map<CUdeviceptr, std::size_t> registered;  // guarded by memory_mutex
std::size_t device_bytes = 0;                   // guarded by memory_mutex

std::size_t limit() { return standin::setting("GIDS_STANDIN_MEMORY", std::size_t{2} << 30); }

CUresult give(std::map<CUdeviceptr, Piece>& pieces, std::size_t bytes, CUdeviceptr* out) {
    char* memory = static_cast<char*>(std::aligned_alloc(256, (bytes + 2 * kRedBytes + 255) / 256 * 256));
    if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    std::memset(memory, kRed, kRedBytes);
    std::memset(memory + kRedBytes, kRubbish, bytes);
    std::memset(memory + kRedBytes + bytes, kRed, kRedBytes);
    *out = reinterpret_cast<CUdeviceptr>(memory + kRedBytes);
    pieces[*out] = {bytes, memory};
    return CUDA_SUCCESS;
}

CUresult take(std::map<CUdeviceptr, Piece>& pieces, CUdeviceptr pointer) {
    const auto found = pieces.find(pointer);
    if (found == pieces.end()) {
        standin::complain("a pointer is freed that is not live");
        return CUDA_ERROR_INVALID_VALUE;
    }
    const Piece piece = found->second;
    pieces.erase(found);
    bool whole = true;
    for (std::size_t i = 0; i < kRedBytes; ++i)
        whole &= static_cast<unsigned char>(piece.memory[i]) == kRed &&
                 static_cast<unsigned char>(piece.memory[kRedBytes + piece.bytes + i]) == kRed;
    std::free(piece.memory);
    if (whole) return CUDA_SUCCESS;
    standin::complain("something was written outside an allocation of " + std::to_string(piece.bytes) + " bytes");
    standin::set_sticky(CUDA_ERROR_LAUNCH_FAILED);
    return CUDA_ERROR_LAUNCH_FAILED;
}

// The piece that a pointer points into, or nullptr.
const std::pair<const CUdeviceptr, Piece>* piece_of(const std::map<CUdeviceptr, Piece>& pieces, CUdeviceptr pointer) {
    auto after = pieces.upper_bound(pointer);
    if (after == pieces.begin()) return nullptr;
    --after;
    return pointer < after->first + after->second.bytes || pointer == after->first ? &*after : nullptr;
}

CUresult copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    if (!standin::plausible_range(to, bytes) || !standin::plausible_range(from, bytes)) {
        standin::complain("a copy of " + std::to_string(bytes) + " bytes leaves its allocation");
        return CUDA_ERROR_INVALID_VALUE;
    }
    standin::enqueue(stream,
                     [=] { std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes); });
    return CUDA_SUCCESS;
}

template <class T>
CUresult fill(CUdeviceptr to, T value, std::size_t count, CUstream stream) {
    if (!standin::plausible_range(to, count * sizeof(T))) return CUDA_ERROR_INVALID_VALUE;
    standin::enqueue(stream, [=] {
        for (std::size_t i = 0; i < count; ++i)
            std::memcpy(reinterpret_cast<char*>(to) + i * sizeof(T), &value, sizeof(T));
    });
    return CUDA_SUCCESS;
}

}  // namespace

namespace standin {

CUresult allocate(std::size_t bytes, CUdeviceptr* out) {
    const std::lock_guard<std::mutex> lock(memory_mutex);
    if (bytes > limit() - device_bytes || device_bytes > limit()) return CUDA_ERROR_OUT_OF_MEMORY;
    device_bytes += bytes;
    return give(device_pieces, bytes, out);
}
CUresult release(CUdeviceptr pointer) {
    if (pointer == 0) return CUDA_SUCCESS;
    const std::lock_guard<std::mutex> lock(memory_mutex);
    const auto found = device_pieces.find(pointer);
    if (found != device_pieces.end()) device_bytes -= found->second.bytes;
    return take(device_pieces, pointer);
}
CUresult allocate_host(std::size_t bytes, void** out) {
    const std::lock_guard<std::mutex> lock(memory_mutex);
    CUdeviceptr pointer = 0;
    const CUresult result = give(host_pieces, bytes, &pointer);
    *out = reinterpret_cast<void*>(pointer);
    return result;
}
CUresult release_host(void* pointer) {
    const std::lock_guard<std::mutex> lock(memory_mutex);
    return take(host_pieces, reinterpret_cast<CUdeviceptr>(pointer));
}
bool plausible_range(CUdeviceptr pointer, std::size_t bytes) {
    const std::lock_guard<std::mutex> lock(memory_mutex);
    for (const auto* pieces : {&device_pieces, &host_pieces})
        if (const auto* piece = piece_of(*pieces, pointer))
            return pointer + bytes <= piece->first + piece->second.bytes;
    return pointer != 0 || bytes == 0;
}

}  // namespace standin

// Bytes and pieces that are live, for tests of leaks.
STANDIN_API void gids_standin_live(std::size_t* bytes, std::size_t* pieces, std::size_t* pinned, std::size_t* mapped) {
    const std::lock_guard<std::mutex> lock(memory_mutex);
    *bytes = device_bytes;
    *pieces = device_pieces.size();
    *pinned = host_pieces.size();
    *mapped = registered.size();
}

STANDIN_API CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice) {
    *bytes = limit();
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total) {
    ENTER(cuMemGetInfo);
    const std::lock_guard<std::mutex> lock(memory_mutex);
    *total = limit();
    *free_bytes = *total - device_bytes;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuMemAlloc_v2(CUdeviceptr* out, std::size_t bytes) {
    ENTER(cuMemAlloc);
    return standin::allocate(bytes, out);
}
STANDIN_API CUresult cuMemFree_v2(CUdeviceptr pointer) {
    ENTER(cuMemFree);
    standin::synchronize_all();
    return standin::release(pointer);
}
STANDIN_API CUresult cuMemAllocAsync(CUdeviceptr* out, std::size_t bytes, CUstream) {
    ENTER(cuMemAllocAsync);
    return standin::allocate(bytes, out);
}
STANDIN_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr* out, std::size_t bytes, CUmemoryPool, CUstream) {
    ENTER(cuMemAllocFromPoolAsync);
    return standin::allocate(bytes, out);
}
STANDIN_API CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    ENTER(cuMemFreeAsync);
    standin::enqueue(stream, [=] { standin::release(pointer); });
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice) {
    static Pool only;
    *pool = &only;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
    return cuDeviceGetDefaultMemPool(pool, device);
}
STANDIN_API CUresult cuDeviceSetMemPool(CUdevice, CUmemoryPool) { return CUDA_SUCCESS; }
STANDIN_API CUresult cuMemPoolCreate(CUmemoryPool* pool, const void*) {
    ENTER(cuMemPoolCreate);
    *pool = new Pool;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    delete pool;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int, void* value) {
    std::memcpy(&pool->release_threshold, value, 8);
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void* value) {
    if (attribute <= 3) {
        const int yes = 1;
        std::memcpy(value, &yes, 4);
    } else {
        std::memcpy(value, &pool->release_threshold, 8);
    }
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuMemPoolTrimTo(CUmemoryPool, std::size_t) { return CUDA_SUCCESS; }
STANDIN_API CUresult cuMemPoolSetAccess(CUmemoryPool, const void*, std::size_t) { return CUDA_SUCCESS; }

STANDIN_API CUresult cuMemHostAlloc(void** out, std::size_t bytes, unsigned) {
    ENTER(cuMemHostAlloc);
    return standin::allocate_host(bytes, out);
}
STANDIN_API CUresult cuMemAllocHost_v2(void** out, std::size_t bytes) {
    ENTER(cuMemAllocHost);
    return standin::allocate_host(bytes, out);
}
STANDIN_API CUresult cuMemFreeHost(void* pointer) {
    ENTER(cuMemFreeHost);
    standin::synchronize_all();
    return standin::release_host(pointer);
}
STANDIN_API CUresult cuMemHostRegister_v2(void* pointer, std::size_t bytes, unsigned) {
    ENTER(cuMemHostRegister);
    const std::lock_guard<std::mutex> lock(memory_mutex);
    const auto key = reinterpret_cast<CUdeviceptr>(pointer);
    if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (registered.count(key) != 0) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    registered[key] = bytes;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuMemHostUnregister(void* pointer) {
    ENTER(cuMemHostUnregister);
    standin::synchronize_all();
    const std::lock_guard<std::mutex> lock(memory_mutex);
    return registered.erase(reinterpret_cast<CUdeviceptr>(pointer)) == 1 ? CUDA_SUCCESS
                                                                         : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}
STANDIN_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* pointer, unsigned) {
    ENTER(cuMemHostGetDevicePointer);
    const std::lock_guard<std::mutex> lock(memory_mutex);
    const auto key = reinterpret_cast<CUdeviceptr>(pointer);
    auto after = registered.upper_bound(key);
    const bool is_registered = after != registered.begin() && key < std::prev(after)->first + std::prev(after)->second;
    if (!is_registered && piece_of(host_pieces, key) == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = key;
    return CUDA_SUCCESS;
}

// A file of the right size; its bytes are not the allocation's, which no test pretends.
STANDIN_API CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr pointer, std::size_t bytes, int type,
                                                   unsigned long long) {
    ENTER(cuMemGetHandleForAddressRange);
    constexpr int kDmaBufDescriptor = 1;
    if (type != kDmaBufDescriptor || bytes == 0 || bytes % 4096 != 0 || !standin::plausible_range(pointer, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    const int file = memfd_create("gids stand-in dma-buf", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
    std::memcpy(handle, &file, sizeof file);
    return CUDA_SUCCESS;
}

STANDIN_API CUresult cuPointerGetAttribute(void* data, int attribute, CUdeviceptr pointer) {
    ENTER(cuPointerGetAttribute);
    const std::lock_guard<std::mutex> lock(memory_mutex);
    const auto* device = piece_of(device_pieces, pointer);
    const auto* host = piece_of(host_pieces, pointer);
    const auto* piece = device ? device : host;
    if (piece == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const unsigned type = device ? kMemoryTypeDevice : kMemoryTypeHost;
    switch (attribute) {
        case kPointerContext:
            *static_cast<CUcontext*>(data) = primary_context();
            break;
        case kPointerMemoryType:
            *static_cast<unsigned*>(data) = type;
            break;
        case kPointerDevicePointer:
        case kPointerHostPointer:
            *static_cast<CUdeviceptr*>(data) = pointer;
            break;
        case kPointerBufferId:
            *static_cast<uint64_t*>(data) = piece->first;
            break;
        case kPointerIsManaged:
            *static_cast<int*>(data) = 0;
            break;
        case kPointerDeviceOrdinal:
            *static_cast<int*>(data) = 0;
            break;
        case kPointerRangeStart:
            *static_cast<CUdeviceptr*>(data) = piece->first;
            break;
        case kPointerRangeSize:
            *static_cast<std::size_t*>(data) = piece->second.bytes;
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
    const std::lock_guard<std::mutex> lock(memory_mutex);
    const auto* piece = piece_of(device_pieces, pointer);
    if (piece == nullptr) return CUDA_ERROR_NOT_FOUND;
    *base = piece->first;
    *bytes = piece->second.bytes;
    return CUDA_SUCCESS;
}

STANDIN_API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    ENTER(cuMemcpyAsync);
    return copy(to, from, bytes, stream);
}
STANDIN_API CUresult cuMemcpyBatchAsync_v2(const CUdeviceptr* to, const CUdeviceptr* from, const std::size_t* bytes,
                                           std::size_t count, const void*, const std::size_t*, std::size_t,
                                           CUstream stream) {
    ENTER(cuMemcpyBatchAsync);
    for (std::size_t i = 0; i < count; ++i)
        if (const CUresult result = copy(to[i], from[i], bytes[i], stream); result != CUDA_SUCCESS) return result;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
    ENTER(cuMemcpyHtoDAsync);
    return copy(to, reinterpret_cast<CUdeviceptr>(from), bytes, stream);
}
STANDIN_API CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    ENTER(cuMemcpyDtoHAsync);
    return copy(reinterpret_cast<CUdeviceptr>(to), from, bytes, stream);
}
STANDIN_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    ENTER(cuMemcpyDtoDAsync);
    return copy(to, from, bytes, stream);
}
STANDIN_API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t bytes) {
    ENTER(cuMemcpyHtoD);
    const CUresult result = copy(to, reinterpret_cast<CUdeviceptr>(from), bytes, nullptr);
    return result != CUDA_SUCCESS ? result : standin::synchronize(nullptr);
}
STANDIN_API CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t bytes) {
    ENTER(cuMemcpyDtoH);
    const CUresult result = copy(reinterpret_cast<CUdeviceptr>(to), from, bytes, nullptr);
    return result != CUDA_SUCCESS ? result : standin::synchronize(nullptr);
}
STANDIN_API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t count, CUstream stream) {
    ENTER(cuMemsetD8Async);
    return fill(to, value, count, stream);
}
STANDIN_API CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, std::size_t count, CUstream stream) {
    ENTER(cuMemsetD16Async);
    return fill(to, value, count, stream);
}
STANDIN_API CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t count, CUstream stream) {
    ENTER(cuMemsetD32Async);
    return fill(to, value, count, stream);
}
