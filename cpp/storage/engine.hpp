// The interface between the reader and whatever moves bytes: io_uring, threads, memory, an NVMe queue pair.
//
// An Engine is opened once for the files of one table. Each I/O thread of the reader then makes one Queue and is the
// only thread that ever calls it, so a Queue needs no locks towards its caller.
//
// What the caller owes: at most depth() requests in flight; buffers from the memory it gave to make_queue(), aligned to
// at least 512 bytes, or pages of any other where Engine::reads_anywhere(), untouched until the request's
// completion was reaped; offsets and lengths that are multiples of Engine::block_bytes(); tags that are unique among
// the requests in flight.
//
// What the implementer owes: every accepted request completes exactly once, in any order, with the number of bytes read
// (fewer than asked only at the end of the file or where the device gave less) or with a negative errno; no exception
// for what happens to a single request; no call that blocks longer than its timeout; nothing written to a buffer after
// its completion was handed out; cancel() that asks requests in flight to end early, where the device can; a destructor
// that returns even when requests never do (abandoning, not freeing, what they may still write to).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "storage/layout.hpp"

namespace gids::storage {

struct IoRequest {
    uint64_t tag;
    uint64_t offset;
    uint32_t length;
    uint32_t file;
    std::byte* buffer;   // null where the engine says !needs_staging()
    bool staged = true;  // false: the buffer lies outside the memory given to make_queue()
};

struct IoCompletion {
    uint64_t tag;
    int64_t result;         // bytes read, or -errno
    const std::byte* data;  // null: in the request's buffer; else in the engine's own memory, until the queue ends
};

using Microseconds = std::chrono::microseconds;

class Queue {
public:
    virtual ~Queue() = default;
    virtual unsigned depth() const = 0;
    // Accepts all requests. They may be handed to the device only by the next reap().
    virtual void submit(std::span<const IoRequest> requests) = 0;
    // Waits until `at_least` completions are there or the time is over, then gives as many as there are and fit.
    virtual size_t reap(std::span<IoCompletion> completions, size_t at_least, Microseconds timeout) = 0;
    // Why a request failed, where there is more to say than errno does; until the next reap().
    virtual std::string explain(uint64_t /*tag*/) const { return {}; }
    virtual void cancel() {}
};

class Engine {
public:
    virtual ~Engine() = default;
    virtual std::string name() const = 0;
    // What the engine had to do without and why ("buffered reads: tmpfs refuses O_DIRECT"); empty when nothing.
    virtual std::string notes() const { return {}; }
    // Power of two: offsets and lengths of requests must be multiples of it. 1 where any byte can be addressed.
    virtual uint64_t block_bytes() const = 0;
    // False where completions point into the engine's own memory.
    virtual bool needs_staging() const { return true; }
    // False where the device writes to staging only.
    virtual bool reads_anywhere() const { return false; }
    // True where that memory may vanish, as that of a mapped file does: then rows are copied by the kernel, which
    // reports what a load would die of, and file_bytes() tells afterwards how much of the file was really there.
    virtual bool guarded() const { return false; }
    virtual uint64_t file_bytes(size_t /*file*/) const { return ~uint64_t{0}; }
    // The processor that hears from the device, where it is a certain one; else -1.
    virtual int home_cpu() const { return -1; }
    // `staging` outlives the queue, and is never freed if the queue had to abandon requests (see Staging::abandon).
    virtual std::unique_ptr<Queue> make_queue(std::span<std::byte> staging, unsigned depth) = 0;
};

struct FaultOptions {
    int64_t fail_at = -1;   // the n-th request (from 0) of each queue completes with -error_number
    int error_number = 5;   // EIO
    int64_t short_at = -1;  // the n-th request gives only short_bytes bytes
    int64_t short_bytes = 0;
    int64_t stuck_at = -1;  // the n-th request never completes
    int64_t delay_us = 0;   // every completion is held back this long
    bool reorder = false;   // completions held at the same time come out in reverse order
    int64_t block_at = -1;  // the n-th request blocks the thread that submits it for block_us, as a hung server does
    int64_t block_us = 0;
};

struct EngineOptions {
    std::string engine = "uring";  // a name; what "auto" means is decided above this layer
    bool sqpoll = false;
    bool iopoll = false;
    std::optional<FaultOptions> fault;
};

// Opens the files of a table. Throws StorageError for files, ConfigError for an engine that is unknown or that this
// machine refuses.
std::unique_ptr<Engine> open_engine(const TableLayout& layout, const EngineOptions& options);

// Engines by name with why each cannot be used here; an empty reason means that it can.
std::vector<std::pair<std::string, std::string>> engine_availability();

std::unique_ptr<Engine> open_uring(const TableLayout& layout, const EngineOptions& options);
std::unique_ptr<Engine> open_pread(const TableLayout& layout);
std::unique_ptr<Engine> open_mmap(const TableLayout& layout);
std::unique_ptr<Engine> open_memory(const TableLayout& layout);
std::unique_ptr<Engine> wrap_in_faults(std::unique_ptr<Engine> inner, const FaultOptions& options);
// Empty where io_uring works, else the reason.
std::string uring_refusal();

}  // namespace gids::storage
