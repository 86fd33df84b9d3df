// Copies within this process done by the kernel: a source that cannot be read is an error, not a signal.
#pragma once

#include <sys/uio.h>

#include <span>

namespace gids::storage {

// Copies piece by piece from `from` to `to`, which have as many pieces of the same lengths, at most kMostPieces. False
// when any byte of the source is not there.
constexpr size_t kMostPieces = 256;
bool kernel_copy(std::span<const iovec> to, std::span<const iovec> from);

// Whether the kernel lets this process do so; some containers forbid it.
bool kernel_copies();

}  // namespace gids::storage
