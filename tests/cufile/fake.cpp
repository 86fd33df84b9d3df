// A libcufile.so.0 for machines without GPUDirect Storage, compiled against NVIDIA's own header. It reads files on
// threads of its own and writes device memory through the CUDA driver (the stand-in), in any order; it is strict about
// what cuFile documents, and goes wrong on request (gids_cufile_inject).
#include <cufile.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "cufile/library.hpp"

// The layouts that gids declares for itself are NVIDIA's.
namespace mine = gids::cufile;
static_assert(sizeof(mine::Request) == sizeof(CUfileIOParams_t));
static_assert(offsetof(mine::Request, base) == offsetof(CUfileIOParams_t, u.batch.devPtr_base));
static_assert(offsetof(mine::Request, file_offset) == offsetof(CUfileIOParams_t, u.batch.file_offset));
static_assert(offsetof(mine::Request, base_offset) == offsetof(CUfileIOParams_t, u.batch.devPtr_offset));
static_assert(offsetof(mine::Request, size) == offsetof(CUfileIOParams_t, u.batch.size));
static_assert(offsetof(mine::Request, file) == offsetof(CUfileIOParams_t, fh));
static_assert(offsetof(mine::Request, opcode) == offsetof(CUfileIOParams_t, opcode));
static_assert(offsetof(mine::Request, cookie) == offsetof(CUfileIOParams_t, cookie));
static_assert(sizeof(mine::Event) == sizeof(CUfileIOEvents_t));
static_assert(offsetof(mine::Event, status) == offsetof(CUfileIOEvents_t, status));
static_assert(offsetof(mine::Event, result) == offsetof(CUfileIOEvents_t, ret));
static_assert(sizeof(mine::Descriptor) == sizeof(CUfileDescr_t));
static_assert(offsetof(mine::Descriptor, fd) == offsetof(CUfileDescr_t, handle));
static_assert(sizeof(mine::Properties) == sizeof(CUfileDrvProps_t));
static_assert(offsetof(mine::Properties, max_device_pinned_mem_size) ==
              offsetof(CUfileDrvProps_t, max_device_pinned_mem_size));
static_assert(offsetof(mine::Properties, max_batch_io_size) == offsetof(CUfileDrvProps_t, max_batch_io_size));
static_assert(mine::kBatchSupported == 1u << CU_FILE_BATCH_IO_SUPPORTED);
static_assert(mine::kComplete == CUFILE_COMPLETE && mine::kFailed == CUFILE_FAILED &&
              mine::kCanceled == CUFILE_CANCELED && mine::kTimeout == CUFILE_TIMEOUT &&
              mine::kInvalid == CUFILE_INVALID && mine::kPending == CUFILE_PENDING && mine::kWaiting == CUFILE_WAITING);
static_assert(mine::kSubmitInternal == CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR && mine::kNoMemory == CU_FILE_NOMEM_ERROR);

namespace {

constexpr size_t kPage = 4096;

struct Batch {
    unsigned entries = 0;
    std::vector<CUfileIOEvents_t> done;  // not yet told
    unsigned in_flight = 0;
    bool cancelled = false, dead = false;
};

struct Task {
    std::shared_ptr<Batch> batch;
    CUfileIOParams_t request;
    void* context;
};

// Counted from 1 over all entries (submissions for submit_error) since the last injection; 0: never.
struct Faults {
    unsigned fail_entry = 0, short_entry = 0, stuck_entry = 0, submit_error = 0, submit_code = 0;
    bool ignore_cancel = false;
};

// guards everything below; never destroyed, because the threads are not ended
std::mutex& mutex = *new std::mutex;
std::condition_variable& changed = *new std::condition_variable;
std::map<const char*, size_t> registered;  // base -> bytes
size_t registered_bytes = 0, most_registered_bytes = 0;
std::deque<Task>& tasks = *new std::deque<Task>;
std::vector<Task> stuck;
Faults faults;
unsigned seen_entries = 0, seen_submissions = 0;
uint64_t total_submissions = 0, total_entries = 0, broken_rules = 0, status_calls = 0;
bool workers_started = false;
std::mt19937 random_order(7);

template <class F>
F cuda(const char* name) {
    static void* library = dlopen("libcuda.so.1", RTLD_NOW);
    return reinterpret_cast<F>(library == nullptr ? nullptr : dlsym(library, name));
}

unsigned setting(const char* name, unsigned otherwise) {
    const char* value = std::getenv(name);
    return value == nullptr ? otherwise : static_cast<unsigned>(std::atol(value));
}

CUfileError_t status(CUfileOpError code) { return {code, 0}; }

void rule(const char* what) {
    ++broken_rules;
    std::fprintf(stderr, "gids fake libcufile: %s\n", what);
}

// Reads as cuFile does: what is not aligned goes through a buffer, whatever lies in one registered range or in none.
ssize_t transfer(const CUfileIOParams_t& request, size_t size) {
    const auto& at = request.u.batch;
    const int fd = static_cast<int>(reinterpret_cast<intptr_t>(request.fh)) - 1;
    const size_t begin = at.file_offset / kPage * kPage;
    const size_t room = (at.file_offset - begin + size + kPage - 1) / kPage * kPage;
    std::unique_ptr<char, void (*)(void*)> memory(static_cast<char*>(std::aligned_alloc(kPage, room)), std::free);
    const ssize_t got = pread(fd, memory.get(), room, static_cast<off_t>(begin));
    if (got < 0) return -errno;
    const ssize_t useful = std::min<ssize_t>(got - (at.file_offset - begin), static_cast<ssize_t>(size));
    if (useful <= 0) return 0;
    const auto copy = cuda<CUresult (*)(CUdeviceptr, const void*, size_t)>("cuMemcpyHtoD_v2");
    const auto target = reinterpret_cast<CUdeviceptr>(at.devPtr_base) + static_cast<CUdeviceptr>(at.devPtr_offset);
    if (copy(target, memory.get() + (at.file_offset - begin), static_cast<size_t>(useful)) != 0) return -EFAULT;
    return useful;
}

void work() {
    for (;;) {
        std::unique_lock lock(mutex);
        changed.wait(lock, [] { return !tasks.empty(); });
        std::swap(tasks[random_order() % tasks.size()], tasks.front());
        const Task task = tasks.front();
        tasks.pop_front();
        ++seen_entries;
        CUfileIOEvents_t event{task.request.cookie, CUFILE_COMPLETE, 0};
        if (task.batch->cancelled) {
            event.status = CUFILE_CANCELED;
            event.ret = static_cast<size_t>(-ECANCELED);
        } else if (seen_entries == faults.stuck_entry) {
            stuck.push_back(task);
            continue;
        } else if (seen_entries == faults.fail_entry) {
            event.status = CUFILE_FAILED;
            event.ret = static_cast<size_t>(-EIO);
        } else {
            const size_t size = task.request.u.batch.size / (seen_entries == faults.short_entry ? 2 : 1);
            lock.unlock();
            cuda<CUresult (*)(void*)>("cuCtxSetCurrent")(task.context);
            const ssize_t result = transfer(task.request, size);
            lock.lock();
            event.ret = static_cast<size_t>(result);
            if (result < 0) event.status = CUFILE_FAILED;
        }
        if (!task.batch->dead) task.batch->done.push_back(event);
        --task.batch->in_flight;
        changed.notify_all();
    }
}

void start_workers() {
    if (workers_started) return;
    workers_started = true;
    for (int i = 0; i < 3; ++i) std::thread(work).detach();
}

// Whether a transfer lies in the range that was registered at its base, or touches no registered memory at all.
bool placed(const CUfileIOParams_t& request) {
    const auto& at = request.u.batch;
    const char* base = static_cast<const char*>(at.devPtr_base);
    if (const auto found = registered.find(base); found != registered.end())
        return at.devPtr_offset >= 0 && at.devPtr_offset + at.size <= found->second;
    const char* begin = base + at.devPtr_offset;
    for (const auto& [from, bytes] : registered)
        if (begin < from + bytes && from < begin + at.size) return false;
    return true;
}

}  // namespace

extern "C" {

CUfileError_t cuFileDriverOpen(void) { return status(CU_FILE_SUCCESS); }
#undef cuFileDriverClose
CUfileError_t cuFileDriverClose(void) { return status(CU_FILE_SUCCESS); }
CUfileError_t cuFileDriverClose_v2(void) { return status(CU_FILE_SUCCESS); }
CUfileError_t cuFileGetVersion(int* version) {
    *version = 1160;
    return status(CU_FILE_SUCCESS);
}
CUfileError_t cuFileDriverGetProperties(CUfileDrvProps_t* out) {
    *out = {};
    out->nvfs.major_version = setting("GIDS_CUFILE_NVFS", 2);
    out->nvfs.max_direct_io_size = 16 << 10;
    out->fflags = setting("GIDS_CUFILE_BATCH", 1) != 0 ? 1u << CU_FILE_BATCH_IO_SUPPORTED : 0;
    out->max_device_cache_size = 128 << 10;
    out->per_buffer_cache_size = 1 << 10;
    out->max_device_pinned_mem_size = setting("GIDS_CUFILE_PINNED_KIB", 32u << 20);
    out->max_batch_io_size = setting("GIDS_CUFILE_ENTRIES", 128);
    out->max_batch_io_timeout_msecs = 0;
    return status(CU_FILE_SUCCESS);
}
CUfileError_t cuFileDriverSetPollMode(bool, size_t) { return status(CU_FILE_SUCCESS); }
CUfileError_t cuFileDriverSetMaxDirectIOSize(size_t) { return status(CU_FILE_SUCCESS); }
CUfileError_t cuFileDriverSetMaxCacheSize(size_t) { return status(CU_FILE_SUCCESS); }
CUfileError_t cuFileDriverSetMaxPinnedMemSize(size_t) { return status(CU_FILE_SUCCESS); }
CUfileError_t cuFileStreamRegister(CUstream, unsigned) { return status(CU_FILE_SUCCESS); }
CUfileError_t cuFileStreamDeregister(CUstream) { return status(CU_FILE_SUCCESS); }
CUfileError_t cuFileReadAsync(CUfileHandle_t, void*, size_t*, off_t*, off_t*, ssize_t*, CUstream) {
    return status(CU_FILE_ASYNC_NOT_SUPPORTED);
}
CUfileError_t cuFileWriteAsync(CUfileHandle_t, void*, size_t*, off_t*, off_t*, ssize_t*, CUstream) {
    return status(CU_FILE_ASYNC_NOT_SUPPORTED);
}

CUfileError_t cuFileHandleRegister(CUfileHandle_t* handle, CUfileDescr_t* descriptor) {
    const int flags = fcntl(descriptor->handle.fd, F_GETFL);
    if (descriptor->type != CU_FILE_HANDLE_TYPE_OPAQUE_FD || flags < 0 || (flags & O_DIRECT) == 0)
        return status(CU_FILE_INVALID_FILE_OPEN_FLAG);
    *handle = reinterpret_cast<void*>(static_cast<intptr_t>(descriptor->handle.fd) + 1);
    return status(CU_FILE_SUCCESS);
}
void cuFileHandleDeregister(CUfileHandle_t) {}

CUfileError_t cuFileBufRegister(const void* base, size_t length, int) {
    const std::lock_guard lock(mutex);
    if (registered.contains(static_cast<const char*>(base))) return status(CU_FILE_MEMORY_ALREADY_REGISTERED);
    if (registered_bytes + length > size_t{setting("GIDS_CUFILE_PINNED_KIB", 32u << 20)} << 10) {
        rule("more memory registered than max_device_pinned_mem_size");
        return status(CU_FILE_GPU_MEMORY_PINNING_FAILED);
    }
    registered[static_cast<const char*>(base)] = length;
    registered_bytes += length;
    most_registered_bytes = std::max(most_registered_bytes, registered_bytes);
    return status(CU_FILE_SUCCESS);
}
CUfileError_t cuFileBufDeregister(const void* base) {
    const std::lock_guard lock(mutex);
    const auto found = registered.find(static_cast<const char*>(base));
    if (found == registered.end()) return status(CU_FILE_MEMORY_NOT_REGISTERED);
    registered_bytes -= found->second;
    registered.erase(found);
    return status(CU_FILE_SUCCESS);
}

ssize_t cuFileRead(CUfileHandle_t file, void* base, size_t size, off_t file_offset, off_t base_offset) {
    CUfileIOParams_t request{};
    request.u.batch = {base, file_offset, base_offset, size};
    request.fh = file;
    return transfer(request, size);
}
ssize_t cuFileWrite(CUfileHandle_t, const void*, size_t, off_t, off_t) { return -EROFS; }

CUfileError_t cuFileBatchIOSetUp(CUfileBatchHandle_t* batch, unsigned entries) {
    if (entries == 0 || entries > setting("GIDS_CUFILE_ENTRIES", 128)) return status(CU_FILE_INVALID_VALUE);
    *batch = new std::shared_ptr<Batch>(std::make_shared<Batch>());
    (*static_cast<std::shared_ptr<Batch>*>(*batch))->entries = entries;
    return status(CU_FILE_SUCCESS);
}

CUfileError_t cuFileBatchIOSubmit(CUfileBatchHandle_t handle, unsigned count, CUfileIOParams_t* requests, unsigned) {
    const auto& batch = *static_cast<std::shared_ptr<Batch>*>(handle);
    void* context = nullptr;
    cuda<CUresult (*)(void**)>("cuCtxGetCurrent")(&context);
    const std::lock_guard lock(mutex);
    start_workers();
    if (context == nullptr) {
        rule("a batch submitted by a thread without a CUDA context");
        return status(CU_FILE_INVALID_CONTEXT_ERROR);
    }
    if (++seen_submissions == faults.submit_error) return status(static_cast<CUfileOpError>(faults.submit_code));
    if (batch->in_flight != 0 || count > batch->entries) {
        rule("more in one batch than it was set up for, or not all of the last one ended");
        return status(CU_FILE_BATCH_FULL);
    }
    for (unsigned i = 0; i < count; ++i) {
        const auto& at = requests[i].u.batch;
        if (requests[i].mode != CUFILE_BATCH || requests[i].opcode != CUFILE_READ || at.size == 0) {
            rule("an entry is no read of some bytes");
            return status(CU_FILE_INVALID_VALUE);
        }
        if (!placed(requests[i])) {
            rule("registered memory must be named by the address that was registered, and hold the whole read");
            return status(CU_FILE_INVALID_MAPPING_RANGE);
        }
        if (at.file_offset % kPage != 0 ||
            (reinterpret_cast<uintptr_t>(at.devPtr_base) + at.devPtr_offset) % kPage != 0)
            rule("a read that is not aligned goes through a buffer of cuFile's");
    }
    batch->cancelled = false;
    for (unsigned i = 0; i < count; ++i) tasks.push_back({batch, requests[i], context});
    batch->in_flight += count;
    ++total_submissions;
    total_entries += count;
    changed.notify_all();
    return status(CU_FILE_SUCCESS);
}

CUfileError_t cuFileBatchIOGetStatus(CUfileBatchHandle_t handle, unsigned at_least, unsigned* count,
                                     CUfileIOEvents_t* events, struct timespec* timeout) {
    const auto& batch = *static_cast<std::shared_ptr<Batch>*>(handle);
    std::unique_lock lock(mutex);
    ++status_calls;
    const auto enough = [&] { return batch->done.size() >= at_least; };
    if (timeout == nullptr) changed.wait(lock, enough);
    else
        changed.wait_for(lock, std::chrono::seconds(timeout->tv_sec) + std::chrono::nanoseconds(timeout->tv_nsec),
                         enough);
    const size_t told = std::min<size_t>(*count, batch->done.size());
    std::copy_n(batch->done.begin(), told, events);
    batch->done.erase(batch->done.begin(), batch->done.begin() + static_cast<std::ptrdiff_t>(told));
    *count = static_cast<unsigned>(told);
    return status(CU_FILE_SUCCESS);
}

CUfileError_t cuFileBatchIOCancel(CUfileBatchHandle_t handle) {
    const auto& batch = *static_cast<std::shared_ptr<Batch>*>(handle);
    const std::lock_guard lock(mutex);
    if (faults.ignore_cancel) return status(CU_FILE_SUCCESS);
    batch->cancelled = true;
    for (auto task = stuck.begin(); task != stuck.end();) {
        if (task->batch != batch) {
            ++task;
            continue;
        }
        batch->done.push_back({task->request.cookie, CUFILE_CANCELED, static_cast<size_t>(-ECANCELED)});
        --batch->in_flight;
        task = stuck.erase(task);
    }
    changed.notify_all();
    return status(CU_FILE_SUCCESS);
}

void cuFileBatchIODestroy(CUfileBatchHandle_t handle) {
    auto* batch = static_cast<std::shared_ptr<Batch>*>(handle);
    {
        const std::lock_guard lock(mutex);
        (*batch)->dead = true;
    }
    delete batch;
}

// For tests: what goes wrong from now on, and what was seen.
__attribute__((visibility("default"))) void gids_cufile_inject(unsigned fail_entry, unsigned short_entry,
                                                               unsigned stuck_entry, unsigned submit_error,
                                                               unsigned submit_code, int ignore_cancel) {
    const std::lock_guard lock(mutex);
    faults = {fail_entry, short_entry, stuck_entry, submit_error, submit_code, ignore_cancel != 0};
    seen_entries = seen_submissions = 0;
}
// submissions, entries, rules broken, bytes registered, most of them at any time, status calls
__attribute__((visibility("default"))) void gids_cufile_counts(uint64_t* out) {
    const std::lock_guard lock(mutex);
    const uint64_t values[] = {total_submissions, total_entries,         broken_rules,
                               registered_bytes,  most_registered_bytes, status_calls};
    std::copy(std::begin(values), std::end(values), out);
}
}
