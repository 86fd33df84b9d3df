// What the files of the stand-in share: contexts, the device's memory, queues of work, rules, injected faults.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "abi.hpp"

#define STANDIN_API extern "C" [[gnu::visibility("default")]]
// First line of every call: an injected fault wins over the call's own work.
#define ENTER(name) \
    if (const CUresult fault = standin::injected(#name); fault != CUDA_SUCCESS) return fault
// Of calls whose documentation lists CUDA_ERROR_INVALID_CONTEXT: none of them works on a thread without a context.
#define ENTER_TO_END(name) \
    ENTER(name);           \
    if (standin::context(#name) == nullptr) return CUDA_ERROR_INVALID_CONTEXT
// Of calls that begin something: "may also return error codes from previous, asynchronous launches", and after an
// error that ends the context all of them do. Calls that wait or free do their work, and then return it too.
#define ENTER_IN_CONTEXT(name) \
    ENTER_TO_END(name);        \
    if (const CUresult error = standin::sticky(); error != CUDA_SUCCESS) return error

struct Context {
    CUdevice device;
    int retained = 0;
};

namespace standin {

constexpr int kMostDevices = 8;

// GIDS_STANDIN_FAIL="cuMemAllocAsync:3:2,cuLaunchKernelEx:1:719": the third call of the one returns 2, and so on.
// A count of 0 fails every call.
CUresult injected(const char* call);
// An error of work that ran later than its call; every later call that waits reports it, as a real context does.
CUresult sticky();
void set_sticky(CUresult error);
uint64_t setting(const char* name, uint64_t otherwise);
void complain(const std::string& message);
std::string hexadecimal(CUdeviceptr pointer);

// Rules that a test asked to forgive, each with a reason in docs/standin.md: GIDS_STANDIN_FORGIVE="integrated,context",
// or gids_standin_forgive() while the process runs.
bool forgiven(const char* rule);

int device_count();
Context* primary_context(CUdevice device);
// The calling thread's context. Complains, if there is none and the caller's name is given.
Context* context(const char* call);

// Device memory has two views of the same bytes: one whose addresses are the device's pointers and which nobody may
// touch, and one through which kernels and copies reach it.
CUresult allocate(CUdevice device, std::size_t bytes, CUdeviceptr* out);
CUresult allocate_ordered(CUdevice device, std::size_t bytes, CUstream stream, CUdeviceptr* out);
CUresult release(CUdeviceptr pointer, CUstream stream, bool ordered);
// Where the bytes of a pointer are: in the other view for device memory, else the pointer itself.
char* bytes_at(CUdeviceptr pointer);
struct Range {
    CUdeviceptr begin;
    std::size_t bytes;
    CUdevice device;
};
// The live allocation that a pointer points into (or just past), as the host sees it: what was freed is gone.
bool find_allocation(CUdeviceptr pointer, Range* out);
// The same, as work that runs now sees it: what is freed later in stream order is still there.
bool find_running(CUdeviceptr pointer, Range* out);
// Whether memory that lives is a pool's.
bool of_pool(CUdeviceptr pointer);
bool in_device_view(CUdeviceptr pointer);
// The pointer of bytes that kernels and copies reach by another address; else the address itself.
CUdeviceptr pointer_of(CUdeviceptr address);
void device_statistics(std::size_t* bytes, std::size_t* pieces);
std::size_t memory_limit();
std::size_t memory_used(CUdevice device);

// Host memory: pinned by the driver, registered, or pageable.
enum class HostKind { kPinned, kRegistered, kPageable, kPartly };
// For calls of a context, which knows only of what was registered in it, or PORTABLE.
HostKind classify_host(CUdeviceptr pointer, std::size_t bytes, const Context* context);
// Whether kernels of a context may use a host address; says what is wrong, if not.
std::string why_unreachable(CUdeviceptr pointer, const Context* context);
bool find_pinned(CUdeviceptr pointer, Range* out);
// Whether kernels of a device may touch all of some bytes now, by either address of device memory; and the range that
// these are part of.
bool may_touch(CUdeviceptr address, std::size_t bytes, CUdevice device, CUdeviceptr* begin, CUdeviceptr* end);
// Whether the device takes pages that are mapped read-only; GIDS_STANDIN_READ_ONLY=0: it does not.
bool registers_read_only();
void host_statistics(std::size_t* pinned, std::size_t* registered);

// Marks the calling thread as inside a function of cuLaunchHostFunc, which must not call the driver.
class InHostFunction {
public:
    InHostFunction();
    ~InHostFunction();
    InHostFunction(const InHostFunction&) = delete;
    InHostFunction& operator=(const InHostFunction&) = delete;
};

// Marks the calling thread as the device while it runs work: faults in the protected view then open it.
class OnDevice {
public:
    OnDevice();
    ~OnDevice();
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;
};

// Puts work at the end of a stream's queue. Streams run their queues on threads of their own; `kernel` names work that
// may spin.
void enqueue(CUstream stream, std::function<void()> work, const std::string& kernel = {});
CUresult synchronize(CUstream stream, const char* call);
// Whether a call that frees memory first waits for streams, as drivers may: with an even GIDS_STANDIN_SEED.
bool frees_wait();
// Waits for all streams of a context; of every context, if none is given.
CUresult synchronize_all(const char* call, const Context* context = nullptr);
bool is_live(CUstream stream);
bool is_default(CUstream stream);
CUdevice device_of(CUstream stream);
int number_of(CUstream stream);
// Ends the kernel that runs in the lane-by-lane build, if it can be.
void stop_kernel();

// What happened, for virtual time; see trace.cpp.
bool tracing();
uint64_t trace(const char* kind, CUstream stream, const std::string& name, uint64_t bytes,
               const std::string& more = {});
// What the next launch of this thread is for, as its caller told (gids_standin_items); 0 if it did not.
uint64_t take_items();
void trace_work(uint64_t record, const std::string& counts);

}  // namespace standin
