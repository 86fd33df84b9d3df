// The part of the CUDA driver's binary interface that the stand-in implements: types and numbers, written from the
// public documentation, so that building it needs no CUDA toolkit.
#pragma once

#include <cstddef>
#include <cstdint>

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct Context*;
using CUstream = struct Stream*;
using CUevent = struct Event*;
using CUlibrary = struct Library*;
using CUmodule = struct Library*;
using CUkernel = struct Kernel*;
using CUfunction = struct Kernel*;
using CUmemoryPool = struct Pool*;
using CUhostFn = void (*)(void*);

enum : CUresult {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
    CUDA_ERROR_LAUNCH_TIMEOUT = 702,
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
    CUDA_ERROR_LAUNCH_FAILED = 719,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
};

enum : int {  // CUdevice_attribute
    kMaxThreadsPerBlock = 1,
    kMaxBlockDimX = 2,
    kMaxBlockDimY = 3,
    kMaxBlockDimZ = 4,
    kMaxGridDimX = 5,
    kMaxGridDimY = 6,
    kMaxGridDimZ = 7,
    kMaxSharedMemoryPerBlock = 8,
    kWarpSize = 10,
    kMaxRegistersPerBlock = 12,
    kMultiprocessorCount = 16,
    kIntegrated = 18,
    kCanMapHostMemory = 19,
    kPciBusId = 33,
    kPciDeviceId = 34,
    kAsyncEngineCount = 40,
    kUnifiedAddressing = 41,
    kStreamPrioritiesSupported = 78,
    kComputeCapabilityMajor = 75,
    kComputeCapabilityMinor = 76,
    kManagedMemory = 83,
    kHostNativeAtomicSupported = 86,
    kPageableMemoryAccess = 88,
    kConcurrentManagedAccess = 89,
    kCanUseHostPointerForRegisteredMem = 91,
    kMaxSharedMemoryPerBlockOptin = 97,
    kHostRegisterSupported = 99,
    kPageableMemoryUsesHostPageTables = 100,
    kReadOnlyHostRegisterSupported = 113,
    kMemoryPoolsSupported = 115,
    kDmaBufSupported = 124,
    kGpuDirectRdmaSupported = 116,
};

enum : int {  // CUpointer_attribute
    kPointerContext = 1,
    kPointerMemoryType = 2,
    kPointerDevicePointer = 3,
    kPointerHostPointer = 4,
    kPointerSyncMemops = 6,
    kPointerBufferId = 7,
    kPointerIsManaged = 8,
    kPointerDeviceOrdinal = 9,
    kPointerIsLegacyCudaIpcCapable = 10,
    kPointerRangeStart = 11,
    kPointerRangeSize = 12,
    kPointerMapped = 13,
    kPointerMempoolHandle = 17,
};
constexpr unsigned kMemoryTypeHost = 1, kMemoryTypeDevice = 2;

enum : unsigned {  // CU_MEMHOSTREGISTER_*
    kRegisterPortable = 1,
    kRegisterDeviceMap = 2,
    kRegisterIoMemory = 4,
    kRegisterReadOnly = 8,
};
constexpr unsigned kHostAllocFlags = 7;  // CU_MEMHOSTALLOC_*: portable, device map, write-combined
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventDisableTiming = 2, kEventInterprocess = 4, kEventFlags = 7;  // CU_EVENT_*

// The default device, and what a launch may ask of it: the limits of compute capability 9.0 without opting in.
constexpr unsigned kMaxThreads = 1024, kMaxBlockX = 1024, kMaxBlockY = 1024, kMaxBlockZ = 64;
constexpr unsigned kMaxGridX = 2147483647, kMaxGridY = 65535, kMaxGridZ = 65535;
constexpr unsigned kSharedBytes = 48 << 10, kRegistersPerBlock = 64 << 10;
constexpr unsigned kParameterBytes = 4096;  // 32,764 from CUDA 12.1 on; older drivers take 4,096

struct CUuuid {
    char bytes[16];
};

struct CUlaunchConfig {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    CUstream stream;
    void* attributes;
    unsigned attribute_count;
};
