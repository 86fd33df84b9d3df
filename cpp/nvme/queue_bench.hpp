// Speed of the queue code alone: threads submit to and drain drives made of memory, whose own work is not timed.
#pragma once

#include <cstdint>

namespace gids::nvme {

struct QueueRate {
    double commands_per_second;  // of all threads together
    double ns_per_command;       // of one thread, in queue code
};

// Each of `threads` threads moves `commands` 4 KiB reads, `batch` at a time: submit and ring, let the drive answer,
// drain. `shared`: all threads use one queue pair; else each has its own.
QueueRate measure_queue(uint32_t threads, bool shared, uint64_t commands, uint32_t batch);

}  // namespace gids::nvme
