// Initialisation, the one device, contexts, versions, error names, and the faults that tests inject.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "state.hpp"

namespace standin {

namespace {
std::mutex fault_mutex;
std::map<std::string, int> calls;  // guarded by fault_mutex
std::mutex sticky_mutex;
CUresult sticky_error = CUDA_SUCCESS;  // guarded by sticky_mutex
}  // namespace

CUresult injected(const char* call) {
    const char* plan = std::getenv("GIDS_STANDIN_FAIL");
    if (plan == nullptr || *plan == 0) return CUDA_SUCCESS;
    const std::lock_guard<std::mutex> lock(fault_mutex);
    const int count = ++calls[call];
    const std::string all = plan;
    for (std::size_t at = 0; at < all.size();) {
        const std::size_t end = std::min(all.find(',', at), all.size());
        const std::string item = all.substr(at, end - at);
        char name[128];
        int which = 0, error = 0;
        if (std::sscanf(item.c_str(), "%127[^:]:%d:%d", name, &which, &error) == 3 && std::strcmp(name, call) == 0 &&
            (which == 0 || which == count))
            return error;
        at = end + 1;
    }
    return CUDA_SUCCESS;
}

CUresult sticky() {
    const std::lock_guard<std::mutex> lock(sticky_mutex);
    return sticky_error;
}
void set_sticky(CUresult error) {
    const std::lock_guard<std::mutex> lock(sticky_mutex);
    sticky_error = error;
}

uint64_t setting(const char* name, uint64_t otherwise) {
    const char* text = std::getenv(name);
    return text != nullptr && *text != 0 ? std::strtoull(text, nullptr, 10) : otherwise;
}

void complain(const std::string& message) { std::fprintf(stderr, "gids stand-in for libcuda: %s\n", message.c_str()); }

}  // namespace standin

Context* primary_context() {
    static Context context{0};
    return &context;
}
Context*& current_context() {
    thread_local Context* current = nullptr;
    return current;
}

// For tests: count calls from here on; forget an error that a real context would keep until the process ends.
STANDIN_API void gids_standin_forget_calls() {
    const std::lock_guard<std::mutex> lock(standin::fault_mutex);
    standin::calls.clear();
}
STANDIN_API void gids_standin_recover() { standin::set_sticky(CUDA_SUCCESS); }

STANDIN_API CUresult cuInit(unsigned flags) {
    ENTER(cuInit);
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    return standin::setting("GIDS_STANDIN_DEVICES", 1) == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}
STANDIN_API CUresult cuDriverGetVersion(int* version) {
    ENTER(cuDriverGetVersion);
    *version = static_cast<int>(standin::setting("GIDS_STANDIN_DRIVER", 13000));
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDeviceGetCount(int* count) {
    ENTER(cuDeviceGetCount);
    *count = static_cast<int>(standin::setting("GIDS_STANDIN_DEVICES", 1));
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    ENTER(cuDeviceGet);
    if (ordinal != 0) return CUDA_ERROR_INVALID_DEVICE;
    *device = 0;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDeviceGetName(char* name, int length, CUdevice) {
    ENTER(cuDeviceGetName);
    std::snprintf(name, static_cast<std::size_t>(length), "gids stand-in (no GPU: kernels run on the CPU)");
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice) {
    std::memcpy(uuid->bytes, "gids-stand-in-00", 16);
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice) {
    ENTER(cuDeviceGetAttribute);
    static const std::map<int, int> kValues = {
        {kMaxThreadsPerBlock, 1024},
        {kMaxBlockDimX, 1024},
        {kMaxBlockDimY, 1024},
        {kMaxBlockDimZ, 64},
        {kMaxGridDimX, 2147483647},
        {kMaxGridDimY, 65535},
        {kMaxGridDimZ, 65535},
        {kWarpSize, 32},
        {kMaxSharedMemoryPerBlock, 48 << 10},
        {kMultiprocessorCount, 2},
        {kIntegrated, 1},
        {kCanMapHostMemory, 1},
        {kAsyncEngineCount, 2},
        {kUnifiedAddressing, 1},
        {kStreamPrioritiesSupported, 1},
        {kComputeCapabilityMajor, 9},
        {kComputeCapabilityMinor, 0},
        {kHostRegisterSupported, 1},
        {kMemoryPoolsSupported, 1},
        {kDmaBufSupported, 1},
    };
    const auto found = kValues.find(attribute);
    *value = found == kValues.end() ? 0 : found->second;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
    ENTER(cuDevicePrimaryCtxRetain);
    *context = primary_context();
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
STANDIN_API CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
    *flags = 0;
    *active = 1;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxGetCurrent(CUcontext* context) {
    *context = current_context();
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxSetCurrent(CUcontext context) {
    ENTER(cuCtxSetCurrent);
    current_context() = context;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxPushCurrent_v2(CUcontext context) {
    current_context() = context;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxPopCurrent_v2(CUcontext* context) {
    *context = current_context();
    current_context() = nullptr;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxCreate_v4(CUcontext* context, void*, unsigned, CUdevice) {
    *context = primary_context();
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxDestroy_v2(CUcontext) { return CUDA_SUCCESS; }
STANDIN_API CUresult cuCtxGetDevice(CUdevice* device) {
    if (current_context() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    *device = 0;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext) {
    *device = 0;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxSynchronize() {
    ENTER(cuCtxSynchronize);
    standin::synchronize_all();
    return standin::sticky();
}
STANDIN_API CUresult cuGetErrorName(CUresult error, const char** name) {
    static const std::map<CUresult, const char*> kNames = {
        {0, "CUDA_SUCCESS"},
        {1, "CUDA_ERROR_INVALID_VALUE"},
        {2, "CUDA_ERROR_OUT_OF_MEMORY"},
        {3, "CUDA_ERROR_NOT_INITIALIZED"},
        {100, "CUDA_ERROR_NO_DEVICE"},
        {101, "CUDA_ERROR_INVALID_DEVICE"},
        {200, "CUDA_ERROR_INVALID_IMAGE"},
        {201, "CUDA_ERROR_INVALID_CONTEXT"},
        {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
        {400, "CUDA_ERROR_INVALID_HANDLE"},
        {500, "CUDA_ERROR_NOT_FOUND"},
        {600, "CUDA_ERROR_NOT_READY"},
        {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"},
        {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
        {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
        {719, "CUDA_ERROR_LAUNCH_FAILED"},
        {801, "CUDA_ERROR_NOT_SUPPORTED"},
    };
    const auto found = kNames.find(error);
    *name = found == kNames.end() ? "CUDA_ERROR_UNKNOWN" : found->second;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuGetErrorString(CUresult error, const char** text) { return cuGetErrorName(error, text); }
// Private tables of the driver, which NVRTC asks for; the stand-in has none, and NVRTC goes on without.
STANDIN_API CUresult cuGetExportTable(const void** table, const CUuuid*) {
    *table = nullptr;
    return CUDA_ERROR_NOT_FOUND;
}
