// The part of cuFile's C interface that gids calls, loaded at run time: a wheel needs neither its header nor its
// library.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <string>

namespace gids::cufile {

// Layouts of cufile.h, 1.6 to 1.16; tests/cufile compares them with NVIDIA's header.
struct Error {
    int code = 0;  // CUfileOpError: 0, or 5001 and beyond
    int cuda = 0;  // CUresult, where the code says that the CUDA driver failed
};

enum Code : int {  // those that say "retry later"
    kSubmitInternal = 5040,
    kNoMemory = 5043,
};

enum Status : unsigned {
    kWaiting = 0x01,
    kPending = 0x02,
    kInvalid = 0x04,
    kCanceled = 0x08,
    kComplete = 0x10,
    kTimeout = 0x20,
    kFailed = 0x40,
};

struct Descriptor {
    int type = 1;  // CU_FILE_HANDLE_TYPE_OPAQUE_FD
    union {
        int fd;
        void* handle;
    };
    const void* operations = nullptr;
};

struct Properties {
    struct {
        unsigned major_version, minor_version;
        size_t poll_thresh_size, max_direct_io_size;
        unsigned dstatusflags, dcontrolflags;
    } nvfs;
    unsigned fflags;
    unsigned max_device_cache_size, per_buffer_cache_size, max_device_pinned_mem_size;  // KiB
    unsigned max_batch_io_size, max_batch_io_timeout_msecs;
};
inline constexpr unsigned kBatchSupported = 1u << 1, kP2pSupported = 1u << 4;  // of fflags

struct Request {
    int mode = 1;  // CUFILE_BATCH
    void* base = nullptr;
    off_t file_offset = 0;
    off_t base_offset = 0;
    size_t size = 0;
    void* file = nullptr;
    int opcode = 0;  // CUFILE_READ
    void* cookie = nullptr;
};

struct Event {
    void* cookie = nullptr;
    unsigned status = 0;
    size_t result = 0;  // bytes, or minus an errno
};

// Functions of libcufile, and of libcuda the one that gives a thread its context. Trivially copyable; tests fill it in.
struct Library {
    Error (*handle_register)(void** handle, Descriptor* descriptor) = nullptr;
    void (*handle_deregister)(void* handle) = nullptr;
    Error (*properties)(Properties* out) = nullptr;
    Error (*set_up)(void** batch, unsigned entries) = nullptr;
    Error (*submit)(void* batch, unsigned count, Request* requests, unsigned flags) = nullptr;
    Error (*get_status)(void* batch, unsigned at_least, unsigned* count, Event* events, timespec* timeout) = nullptr;
    Error (*cancel)(void* batch) = nullptr;
    void (*destroy)(void* batch) = nullptr;
    int (*set_context)(void* context) = nullptr;
};

// Loads `path` (a name or a file) and libcuda.so.1. Throws ConfigError where one cannot be loaded or lacks a function.
Library load_library(const std::string& path);

// "cuFile error 5043", with the CUDA driver's error where there is one.
std::string describe(const Error& error);

}  // namespace gids::cufile
