// Device memory: two views of one file. The addresses that callers get are of the view that nobody may touch; kernels
// and copies use the other. Pools reuse blocks last in, first out, as soon as stream order allows it.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "state.hpp"

struct Pool {
    CUdevice device = 0;
    uint64_t release_threshold = 0;
};

namespace {

// Blocks begin at odd multiples of kAlign: no more is promised than that.
constexpr std::size_t kAlign = 256, kGranule = 2 * kAlign, kRedBytes = 256, kPage = 4096;
constexpr unsigned char kRed = 0xA5, kRubbish = 0xCD, kFreed = 0xDD;

struct Block {
    std::size_t bytes, capacity;
    bool ordered;  // of a pool
};
struct Freed {
    CUdeviceptr begin;
    int stream;                                 // number of the stream in whose order it was freed
    std::shared_ptr<std::atomic<bool>> passed;  // whether that stream got there
};

// The addresses of one device.
class Arena {
public:
    explicit Arena(CUdevice device) : device_(device) {
        // Addresses are four times the memory: what is cached by size must not starve what is not.
        const std::size_t bytes = 4 * ((standin::memory_limit() + kPage - 1) / kPage * kPage) + (64 << 20);
        const int file = memfd_create("gids stand-in device memory", MFD_CLOEXEC);
        if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) std::abort();
        const int access = standin::forgiven("integrated") ? PROT_READ | PROT_WRITE : PROT_NONE;
        void* shown = mmap(nullptr, bytes, access, MAP_SHARED | MAP_NORESERVE, file, 0);
        void* real = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
        if (shown == MAP_FAILED || real == MAP_FAILED) std::abort();
        close(file);
        shown_ = static_cast<char*>(shown);
        real_ = static_cast<char*>(real);
        bytes_ = bytes;
        holes_[kAlign] = bytes - kAlign;
    }

    bool contains(CUdeviceptr pointer) const { return pointer >= begin() && pointer < begin() + bytes_; }
    char* real(CUdeviceptr pointer) const { return real_ + (pointer - begin()); }
    bool backs(CUdeviceptr address) const {
        const auto from = reinterpret_cast<CUdeviceptr>(real_);
        return address >= from && address < from + bytes_;
    }
    CUdeviceptr shown(CUdeviceptr address) const { return begin() + (address - reinterpret_cast<CUdeviceptr>(real_)); }
    CUdeviceptr begin() const { return reinterpret_cast<CUdeviceptr>(shown_); }
    void protect(int access) const { mprotect(shown_, bytes_, access); }
    CUdevice device() const { return device_; }

    CUresult allocate(std::size_t bytes, int stream, bool ordered, CUdeviceptr* out) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (used_ > standin::memory_limit() || bytes > standin::memory_limit() - used_) return CUDA_ERROR_OUT_OF_MEMORY;
        const std::size_t capacity = (bytes + kRedBytes + kGranule - 1) / kGranule * kGranule;
        std::optional<CUdeviceptr> begin = ordered ? reuse(capacity, stream) : std::nullopt;
        if (!begin) begin = carve(capacity);
        if (!begin) {
            trim();
            begin = carve(capacity);
        }
        if (!begin) return CUDA_ERROR_OUT_OF_MEMORY;
        used_ += bytes;
        live_[*begin] = {bytes, capacity, ordered};
        *out = *begin;
        return CUDA_SUCCESS;
    }

    // The host's side of a free; gives the block, whose bytes may still be in use, and when it may be another's.
    bool forget(CUdeviceptr pointer, int stream, Block* out, std::shared_ptr<std::atomic<bool>>* passed) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto found = live_.find(pointer);
        if (found == live_.end()) return false;
        *out = found->second;
        live_.erase(found);
        used_ -= out->bytes;
        *passed = std::make_shared<std::atomic<bool>>(false);
        if (out->ordered) cached_[out->capacity].push_back({pointer, stream, *passed});
        return true;
    }
    // After forget() of memory that is no pool's, when nobody uses its bytes any more.
    void give_back(CUdeviceptr pointer, const Block& block) {
        const std::lock_guard<std::mutex> lock(mutex_);
        give_hole(pointer - begin(), block.capacity);
    }
    // Held from the choice of a pool's block to its place in a stream's queue, and so for a free: threads that share a
    // stream would else queue the free of a block behind its next allocation.
    std::mutex& order() { return order_; }

    bool find(CUdeviceptr pointer, standin::Range* out, bool running) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto& pieces = running ? running_ : live_;
        auto after = pieces.upper_bound(pointer);
        if (after == pieces.begin()) return false;
        --after;
        if (pointer > after->first + after->second.bytes) return false;
        *out = {after->first, after->second.bytes, device_};
        return true;
    }
    bool is_ordered(CUdeviceptr pointer) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto found = live_.find(pointer);
        return found != live_.end() && found->second.ordered;
    }
    void begins(CUdeviceptr pointer, const Block& block) {
        const std::lock_guard<std::mutex> lock(mutex_);
        running_[pointer] = block;
    }
    void ends(CUdeviceptr pointer) {
        const std::lock_guard<std::mutex> lock(mutex_);
        running_.erase(pointer);
    }
    std::size_t used() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return used_;
    }
    std::size_t pieces() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return live_.size();
    }

private:
    // Last in, first out; another stream's block only once that stream has passed the free.
    std::optional<CUdeviceptr> reuse(std::size_t capacity, int stream) {
        auto& blocks = cached_[capacity];
        for (auto block = blocks.rbegin(); block != blocks.rend(); ++block)
            if (block->stream == stream || block->passed->load()) {
                const CUdeviceptr begin = block->begin;
                blocks.erase(std::next(block).base());
                return begin;
            }
        return std::nullopt;
    }
    std::optional<CUdeviceptr> carve(std::size_t capacity) {
        for (const auto& [at, size] : holes_) {
            if (capacity > size) continue;
            const std::size_t from = at, rest = size - capacity;
            holes_.erase(from);
            if (rest != 0) holes_[from + capacity] = rest;
            return begin() + from;
        }
        return std::nullopt;
    }
    void give_hole(std::size_t at, std::size_t bytes) {
        auto next = holes_.lower_bound(at);
        if (next != holes_.end() && at + bytes == next->first) {
            bytes += next->second;
            next = holes_.erase(next);
        }
        if (next != holes_.begin() && std::prev(next)->first + std::prev(next)->second == at)
            std::prev(next)->second += bytes;
        else holes_[at] = bytes;
    }
    void trim() {
        for (auto& [capacity, blocks] : cached_)
            for (std::size_t i = blocks.size(); i-- > 0;)
                if (blocks[i].passed->load()) {
                    give_hole(blocks[i].begin - begin(), capacity);
                    blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i));
                }
    }

    CUdevice device_;
    char *shown_ = nullptr, *real_ = nullptr;
    std::size_t bytes_ = 0;
    std::mutex order_, mutex_;
    std::size_t used_ = 0;                              // guarded by mutex_, as all below
    std::map<std::size_t, std::size_t> holes_;          // offset -> bytes that nothing has
    std::map<std::size_t, std::vector<Freed>> cached_;  // capacity -> blocks of the pool, the latest last
    std::map<CUdeviceptr, Block> live_;                 // as the host sees it
    std::map<CUdeviceptr, Block> running_;              // as the work that runs now sees it
};

std::mutex arenas_mutex;
std::atomic<Arena*> arenas[standin::kMostDevices];  // made under arenas_mutex, never destroyed

// Which thread is the device, and whether it has opened the protected view. Read by a signal handler.
thread_local bool on_device __attribute__((tls_model("initial-exec"))) = false;
thread_local bool has_opened __attribute__((tls_model("initial-exec"))) = false;
std::atomic<int> openers{0};
struct sigaction earlier;

Arena* arena_of(CUdeviceptr pointer) {
    for (const auto& arena : arenas)
        if (Arena* made = arena.load(std::memory_order_acquire); made != nullptr && made->contains(pointer))
            return made;
    return nullptr;
}

void protect_all(int access) {
    for (const auto& arena : arenas)
        if (Arena* made = arena.load(std::memory_order_acquire)) made->protect(access);
}

// Kernels find pointers in memory, which nobody translated: for as long as such a kernel runs, the view is open.
void on_fault(int signal, siginfo_t* info, void* more) {
    const auto address = reinterpret_cast<CUdeviceptr>(info->si_addr);
    Arena* arena = arena_of(address);
    if (arena != nullptr && on_device) {
        if (!has_opened) {
            has_opened = true;
            openers.fetch_add(1);
        }
        protect_all(PROT_READ | PROT_WRITE);
        return;
    }
    if (arena != nullptr) {
        char text[256];
        const int length = std::snprintf(text, sizeof text,
                                         "gids stand-in for libcuda: host code touched device memory at 0x%llx (byte "
                                         "%llu of device %d); only kernels "
                                         "and copies reach it\n",
                                         address, address - arena->begin(), arena->device());
        if (write(STDERR_FILENO, text, static_cast<std::size_t>(length)) < 0) _exit(1);
    }
    if ((earlier.sa_flags & SA_SIGINFO) != 0 && earlier.sa_sigaction != nullptr) {
        earlier.sa_sigaction(signal, info, more);
    } else if (earlier.sa_handler != SIG_DFL && earlier.sa_handler != SIG_IGN) {
        earlier.sa_handler(signal);
    } else {
        std::signal(SIGSEGV, SIG_DFL);  // and fault again
    }
}

Arena& arena_for(CUdevice device) {
    auto& slot = arenas[device];
    if (Arena* made = slot.load(std::memory_order_acquire)) return *made;
    const std::lock_guard<std::mutex> lock(arenas_mutex);
    static const bool handling = [] {
        struct sigaction action {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
        return sigaction(SIGSEGV, &action, &earlier) == 0;
    }();
    if (!handling) std::abort();
    if (slot.load() == nullptr) slot.store(new Arena(device), std::memory_order_release);
    return *slot.load();
}

void fill_fresh(const Arena& arena, CUdeviceptr pointer, const Block& block) {
    char* memory = arena.real(pointer);
    std::memset(memory, kRubbish, block.bytes);
    std::memset(memory + block.bytes, kRed, block.capacity - block.bytes);
}

// The device's side of a free: the end must be whole, and whoever still reads gets rubbish.
void end_block(Arena& arena, CUdeviceptr pointer, const Block& block) {
    char* memory = arena.real(pointer);
    for (std::size_t i = block.bytes; i < block.capacity; ++i)
        if (static_cast<unsigned char>(memory[i]) != kRed) {
            standin::complain("something was written outside an allocation of " + std::to_string(block.bytes) +
                              " bytes");
            standin::set_sticky(CUDA_ERROR_LAUNCH_FAILED);
            break;
        }
    std::memset(memory, kFreed, block.bytes);
    arena.ends(pointer);
}

}  // namespace

namespace standin {

std::size_t memory_limit() { return setting("GIDS_STANDIN_MEMORY", std::size_t{2} << 30); }
std::size_t memory_used(CUdevice device) { return arena_for(device).used(); }

CUresult allocate(CUdevice device, std::size_t bytes, CUdeviceptr* out) {
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    Arena& arena = arena_for(device);
    const CUresult result = arena.allocate(bytes, -1, false, out);
    if (result != CUDA_SUCCESS) return result;
    const Block block{bytes, (bytes + kRedBytes + kGranule - 1) / kGranule * kGranule, false};
    fill_fresh(arena, *out, block);
    arena.begins(*out, block);
    return CUDA_SUCCESS;
}

CUresult allocate_ordered(CUdevice device, std::size_t bytes, CUstream stream, CUdeviceptr* out) {
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    Arena& arena = arena_for(device);
    const std::lock_guard<std::mutex> order(arena.order());
    const CUresult result = arena.allocate(bytes, number_of(stream), true, out);
    if (result != CUDA_SUCCESS) return result;
    const Block block{bytes, (bytes + kRedBytes + kGranule - 1) / kGranule * kGranule, true};
    enqueue(stream, [&arena, pointer = *out, block] {
        fill_fresh(arena, pointer, block);
        arena.begins(pointer, block);
    });
    return CUDA_SUCCESS;
}

CUresult release(CUdeviceptr pointer, CUstream stream, bool ordered) {
    if (pointer == 0) return CUDA_SUCCESS;
    Arena* arena = arena_of(pointer);
    Block block{};
    std::shared_ptr<std::atomic<bool>> passed;
    std::unique_lock<std::mutex> order;
    if (arena != nullptr) order = std::unique_lock<std::mutex>(arena->order());
    if (arena == nullptr || !arena->forget(pointer, ordered ? number_of(stream) : -1, &block, &passed)) {
        complain("a pointer is freed that is not live (" + hexadecimal(pointer) + ")");
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!ordered) {
        order.unlock();
        end_block(*arena, pointer, block);
        *passed = true;
        if (!block.ordered) arena->give_back(pointer, block);
        return sticky();
    }
    enqueue(stream, [arena, pointer, block, passed] {
        end_block(*arena, pointer, block);
        *passed = true;
        if (!block.ordered) arena->give_back(pointer, block);
    });
    return sticky();
}

char* bytes_at(CUdeviceptr pointer) {
    const Arena* arena = arena_of(pointer);
    return arena == nullptr ? reinterpret_cast<char*>(pointer) : arena->real(pointer);
}
CUdeviceptr pointer_of(CUdeviceptr address) {
    for (const auto& slot : arenas)
        if (const Arena* arena = slot.load(std::memory_order_acquire); arena != nullptr && arena->backs(address))
            return arena->shown(address);
    return address;
}
bool in_device_view(CUdeviceptr pointer) { return arena_of(pointer) != nullptr; }
bool find_allocation(CUdeviceptr pointer, Range* out) {
    Arena* arena = arena_of(pointer);
    return arena != nullptr && arena->find(pointer, out, false);
}
bool find_running(CUdeviceptr pointer, Range* out) {
    Arena* arena = arena_of(pointer);
    return arena != nullptr && arena->find(pointer, out, true);
}
bool of_pool(CUdeviceptr pointer) {
    Arena* arena = arena_of(pointer);
    return arena != nullptr && arena->is_ordered(pointer);
}
void device_statistics(std::size_t* bytes, std::size_t* pieces) {
    *bytes = *pieces = 0;
    for (const auto& slot : arenas)
        if (Arena* arena = slot.load()) {
            *bytes += arena->used();
            *pieces += arena->pieces();
        }
}

OnDevice::OnDevice() { on_device = true; }
OnDevice::~OnDevice() {
    on_device = false;
    if (!has_opened) return;
    has_opened = false;
    // A thread that opened it in between faults once more, and opens it again.
    if (openers.fetch_sub(1) == 1 && !forgiven("integrated")) protect_all(PROT_NONE);
}

}  // namespace standin

using standin::context;

STANDIN_API CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice) {
    *bytes = standin::memory_limit();
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total) {
    ENTER_IN_CONTEXT(cuMemGetInfo);
    *total = standin::memory_limit();
    *free_bytes = *total - standin::memory_used(context(nullptr)->device);
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuMemAlloc_v2(CUdeviceptr* out, std::size_t bytes) {
    ENTER_IN_CONTEXT(cuMemAlloc);
    standin::trace("alloc", nullptr, "cuMemAlloc", bytes);
    return standin::allocate(context(nullptr)->device, bytes, out);
}
STANDIN_API CUresult cuMemFree_v2(CUdeviceptr pointer) {
    ENTER_TO_END(cuMemFree);
    standin::trace("free", nullptr, "cuMemFree", 0);
    // Of a pool's memory all accesses are taken to be over: "performs no further synchronization".
    standin::Range range{};
    if (standin::frees_wait() && !standin::of_pool(pointer) && standin::find_allocation(pointer, &range))
        standin::synchronize_all("cuMemFree", standin::primary_context(range.device));
    return standin::release(pointer, nullptr, false);
}
namespace {
// The default streams belong to the current context; other streams bring theirs.
CUresult allocate_on(const char* call, CUdeviceptr* out, std::size_t bytes, CUstream stream) {
    if (standin::is_default(stream) && context(call) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (!standin::is_live(stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult error = standin::sticky(); error != CUDA_SUCCESS) return error;
    standin::trace("pool alloc", stream, call, bytes);
    return standin::allocate_ordered(standin::device_of(stream), bytes, stream, out);
}
}  // namespace
STANDIN_API CUresult cuMemAllocAsync(CUdeviceptr* out, std::size_t bytes, CUstream stream) {
    ENTER(cuMemAllocAsync);
    return allocate_on("cuMemAllocAsync", out, bytes, stream);
}
STANDIN_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr* out, std::size_t bytes, CUmemoryPool, CUstream stream) {
    ENTER(cuMemAllocFromPoolAsync);
    return allocate_on("cuMemAllocFromPoolAsync", out, bytes, stream);
}
STANDIN_API CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    ENTER(cuMemFreeAsync);
    if (standin::is_default(stream) && context("cuMemFreeAsync") == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (!standin::is_live(stream)) return CUDA_ERROR_INVALID_HANDLE;
    standin::trace("pool free", stream, "cuMemFreeAsync", 0);
    return standin::release(pointer, stream, true);
}
STANDIN_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
    static Pool pools[standin::kMostDevices];
    if (standin::primary_context(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    pools[device].device = device;
    *pool = &pools[device];
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
