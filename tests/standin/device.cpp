// Initialisation, devices, contexts, versions, error names, rules that are forgiven, and the faults that tests inject.
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>

#include "state.hpp"

namespace standin {

namespace {

std::mutex fault_mutex;
std::map<std::string, int> calls;  // guarded by fault_mutex
std::atomic<CUresult> sticky_error{CUDA_SUCCESS};
std::atomic<bool> initialized{false};

std::mutex rules_mutex;
std::set<std::string>& forgiven_rules() {  // guarded by rules_mutex
    static std::set<std::string> rules = [] {
        std::set<std::string> from;
        const char* text = std::getenv("GIDS_STANDIN_FORGIVE");
        const std::string all = text == nullptr ? "" : text;
        for (std::size_t at = 0; at < all.size();) {
            const std::size_t end = std::min(all.find(',', at), all.size());
            from.insert(all.substr(at, end - at));
            at = end + 1;
        }
        return from;
    }();
    return rules;
}

std::mutex contexts_mutex;                           // guards Context::retained
thread_local std::vector<Context*> thread_contexts;  // the last is current
thread_local bool in_host_function = false;

}  // namespace

InHostFunction::InHostFunction() { in_host_function = true; }
InHostFunction::~InHostFunction() { in_host_function = false; }

CUresult injected(const char* call) {
    if (in_host_function) {
        complain(std::string(call) + " in a function of cuLaunchHostFunc, which must not call the driver");
        return CUDA_ERROR_NOT_PERMITTED;
    }
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

CUresult sticky() { return sticky_error.load(); }
void set_sticky(CUresult error) { sticky_error.store(error); }

uint64_t setting(const char* name, uint64_t otherwise) {
    const char* text = std::getenv(name);
    return text != nullptr && *text != 0 ? std::strtoull(text, nullptr, 10) : otherwise;
}

void complain(const std::string& message) { std::fprintf(stderr, "gids stand-in for libcuda: %s\n", message.c_str()); }

std::string hexadecimal(CUdeviceptr pointer) {
    char text[32];
    std::snprintf(text, sizeof text, "0x%llx", pointer);
    return text;
}

bool forgiven(const char* rule) {
    const std::lock_guard<std::mutex> lock(rules_mutex);
    return forgiven_rules().count(rule) != 0;
}

int device_count() { return static_cast<int>(std::min<uint64_t>(setting("GIDS_STANDIN_DEVICES", 2), kMostDevices)); }

Context* primary_context(CUdevice device) {
    static std::array<Context, kMostDevices> contexts = [] {
        std::array<Context, kMostDevices> made{};
        for (int i = 0; i < kMostDevices; ++i) made[static_cast<std::size_t>(i)].device = i;
        return made;
    }();
    return device >= 0 && device < device_count() ? &contexts[static_cast<std::size_t>(device)] : nullptr;
}

Context* context(const char* call) {
    if (!thread_contexts.empty()) return thread_contexts.back();
    if (forgiven("context")) return primary_context(0);
    if (call != nullptr) complain(std::string(call) + " on a thread with no current context");
    return nullptr;
}

}  // namespace standin

using standin::primary_context;
using standin::thread_contexts;

// For tests: count calls from here on; forget an error that a real context would keep until the process ends; forgive
// a rule, or no longer.
STANDIN_API void gids_standin_forget_calls() {
    const std::lock_guard<std::mutex> lock(standin::fault_mutex);
    standin::calls.clear();
}
STANDIN_API void gids_standin_recover() { standin::set_sticky(CUDA_SUCCESS); }
STANDIN_API void gids_standin_forgive(const char* rule, int yes) {
    const std::lock_guard<std::mutex> lock(standin::rules_mutex);
    if (yes != 0) standin::forgiven_rules().insert(rule);
    else standin::forgiven_rules().erase(rule);
}

STANDIN_API CUresult cuInit(unsigned flags) {
    ENTER(cuInit);
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (standin::device_count() == 0) return CUDA_ERROR_NO_DEVICE;
    standin::initialized = true;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDriverGetVersion(int* version) {
    ENTER(cuDriverGetVersion);
    *version = static_cast<int>(standin::setting("GIDS_STANDIN_DRIVER", 13000));
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDeviceGetCount(int* count) {
    ENTER(cuDeviceGetCount);
    if (!standin::initialized) return CUDA_ERROR_NOT_INITIALIZED;
    *count = standin::device_count();
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    ENTER(cuDeviceGet);
    if (!standin::initialized) return CUDA_ERROR_NOT_INITIALIZED;
    if (ordinal < 0 || ordinal >= standin::device_count()) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDeviceGetName(char* name, int length, CUdevice) {
    ENTER(cuDeviceGetName);
    std::snprintf(name, static_cast<std::size_t>(length), "gids stand-in (no GPU: kernels run on the CPU)");
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
    std::memcpy(uuid->bytes, "gids-stand-in-00", 16);
    uuid->bytes[15] = static_cast<char>('0' + device);
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
    ENTER(cuDeviceGetAttribute);
    if (primary_context(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    static const std::map<int, unsigned> kValues = {
        {kMaxThreadsPerBlock, kMaxThreads},
        {kMaxBlockDimX, kMaxBlockX},
        {kMaxBlockDimY, kMaxBlockY},
        {kMaxBlockDimZ, kMaxBlockZ},
        {kMaxGridDimX, kMaxGridX},
        {kMaxGridDimY, kMaxGridY},
        {kMaxGridDimZ, kMaxGridZ},
        {kWarpSize, 32},
        {kMaxRegistersPerBlock, kRegistersPerBlock},
        {kMaxSharedMemoryPerBlock, kSharedBytes},
        {kMaxSharedMemoryPerBlockOptin, kSharedBytes},
        {kMultiprocessorCount, 2},
        {kCanMapHostMemory, 1},
        {kAsyncEngineCount, 2},
        {kUnifiedAddressing, 1},
        {kStreamPrioritiesSupported, 1},
        {kComputeCapabilityMajor, 9},
        {kComputeCapabilityMinor, 0},
        {kHostRegisterSupported, 1},
        {kCanUseHostPointerForRegisteredMem, 1},
        {kReadOnlyHostRegisterSupported, 1},
        {kMemoryPoolsSupported, 1},
        {kDmaBufSupported, 1},
    };
    if (attribute == kReadOnlyHostRegisterSupported && !standin::registers_read_only()) {
        *value = 0;
        return CUDA_SUCCESS;
    }
    const auto found = kValues.find(attribute);
    *value = found == kValues.end() ? 0 : static_cast<int>(found->second);
    if (attribute == kIntegrated) *value = standin::forgiven("integrated") ? 1 : 0;
    if (attribute == kPciBusId) *value = 1 + device;
    return CUDA_SUCCESS;
}
// A link that carries every atomic operation, or with GIDS_STANDIN_HOST_ATOMICS=0 none: then the answer for each is 0.
STANDIN_API CUresult cuDeviceGetHostAtomicCapabilities(unsigned* capabilities, const int* operations, unsigned count,
                                                       CUdevice device) {
    ENTER(cuDeviceGetHostAtomicCapabilities);
    if (primary_context(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (capabilities == nullptr || operations == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    constexpr unsigned kSigned = 1, kUnsigned = 2, kReduction = 4, kScalar32 = 8, kScalar64 = 16;
    const unsigned every = kSigned | kUnsigned | kReduction | kScalar32 | kScalar64;
    std::fill_n(capabilities, count, standin::setting("GIDS_STANDIN_HOST_ATOMICS", 1) != 0 ? every : 0);
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
    std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0", 1 + device);
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDeviceCanAccessPeer(int* can, CUdevice, CUdevice) {
    *can = 0;  // as two cards without NVLink on most boards
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    ENTER(cuDevicePrimaryCtxRetain);
    *context = primary_context(device);
    if (*context == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    const std::lock_guard<std::mutex> lock(standin::contexts_mutex);
    ++(*context)->retained;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    Context* context = primary_context(device);
    if (context == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    const std::lock_guard<std::mutex> lock(standin::contexts_mutex);
    if (context->retained == 0) {
        standin::complain("a primary context is released more often than it was retained");
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    --context->retained;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
    Context* context = primary_context(device);
    if (context == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    const std::lock_guard<std::mutex> lock(standin::contexts_mutex);
    *flags = 0;
    *active = context->retained > 0 ? 1 : 0;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxGetCurrent(CUcontext* context) {
    *context = thread_contexts.empty() ? nullptr : thread_contexts.back();
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxSetCurrent(CUcontext context) {
    ENTER(cuCtxSetCurrent);
    if (!thread_contexts.empty()) thread_contexts.pop_back();
    if (context != nullptr) thread_contexts.push_back(context);
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxPushCurrent_v2(CUcontext context) {
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    thread_contexts.push_back(context);
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxPopCurrent_v2(CUcontext* context) {
    if (thread_contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (context != nullptr) *context = thread_contexts.back();
    thread_contexts.pop_back();
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxCreate_v4(CUcontext* context, void*, unsigned, CUdevice device) {
    *context = primary_context(device);  // kvikio asks for it by name and makes none
    return *context == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_NOT_SUPPORTED;
}
STANDIN_API CUresult cuCtxDestroy_v2(CUcontext) { return CUDA_ERROR_NOT_SUPPORTED; }
STANDIN_API CUresult cuCtxGetDevice(CUdevice* device) {
    ENTER_TO_END(cuCtxGetDevice);
    *device = standin::context(nullptr)->device;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    ENTER_TO_END(cuCtxGetStreamPriorityRange);
    *least = 0;
    *greatest = -5;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxSynchronize() {
    ENTER_TO_END(cuCtxSynchronize);
    standin::trace("sync context", nullptr, "cuCtxSynchronize", 0);
    return standin::synchronize_all("cuCtxSynchronize", standin::context(nullptr));
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
        {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"},
        {702, "CUDA_ERROR_LAUNCH_TIMEOUT"},
        {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
        {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
        {719, "CUDA_ERROR_LAUNCH_FAILED"},
        {800, "CUDA_ERROR_NOT_PERMITTED"},
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
