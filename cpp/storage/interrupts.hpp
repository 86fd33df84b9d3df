// Which processor hears from a disk: a thread that waits for it there needs no other one to be woken.
#pragma once

#include <sys/types.h>

#include <filesystem>

namespace gids::storage {

// The processor that took nearly all interrupts of the disk that holds `device`; -1 where they are spread, as those of
// drives with a queue per processor are, or where the kernel does not tell. `sys` is another root for tests.
int interrupt_cpu(dev_t device, const std::filesystem::path& sys = "/sys");

// Moves the calling thread to that processor, if it may run there, and leaves the scheduler free to move it again.
void move_to_cpu(int cpu);

}  // namespace gids::storage
