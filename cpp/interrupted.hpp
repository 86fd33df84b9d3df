// One rule for system calls that a signal may interrupt: call again.
#pragma once

#include <cerrno>

namespace gids {

// Calls until the answer is not "interrupted". For calls that answer -1 and set errno, as the C library's do, and that
// may be repeated as they are: all of ours, except close(), which has closed the descriptor even then.
template <class Call>
auto retry_on_eintr(Call&& call) -> decltype(call()) {
    for (;;) {
        const auto result = call();
        if (result != -1 || errno != EINTR) return result;
    }
}

// The same for calls that answer -errno, as liburing's do.
template <class Call>
int retry_on_negative_eintr(Call&& call) {
    int result = -EINTR;
    while (result == -EINTR) result = call();
    return result;
}

}  // namespace gids
