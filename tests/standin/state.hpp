// What the files of the stand-in share: the device's memory, queues of work, injected faults.
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

namespace standin {

// GIDS_STANDIN_FAIL="cuMemAllocAsync:3:2,cuLaunchKernelEx:1:719": the third call of the one returns 2, and so on.
// A count of 0 fails every call.
CUresult injected(const char* call);
// An error of work that ran later than its call; every later call that waits reports it, as a real context does.
CUresult sticky();
void set_sticky(CUresult error);
uint64_t setting(const char* name, uint64_t otherwise);
void complain(const std::string& message);

// The device's memory is host memory with rubbish in it and red zones around it.
CUresult allocate(std::size_t bytes, CUdeviceptr* out);
CUresult release(CUdeviceptr pointer);
CUresult allocate_host(std::size_t bytes, void** out);
CUresult release_host(void* pointer);

// True if [pointer, pointer + bytes) lies in one live device allocation, or in no device allocation at all (host).
bool plausible_range(CUdeviceptr pointer, std::size_t bytes);

// Puts work at the end of a stream's queue. Streams run their queues on threads of their own.
void enqueue(CUstream stream, std::function<void()> work);
CUresult synchronize(CUstream stream);
void synchronize_all();

}  // namespace standin

struct Context {
    CUdevice device;
};
Context* primary_context();
Context*& current_context();
