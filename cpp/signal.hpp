// A semaphore that a function of the CUDA driver's can post: how a stream tells a thread that it got somewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <semaphore>

namespace gids {

class Signal {
public:
    // For cuLaunchHostFunc: may be called on any thread, and calls nothing of the driver's.
    static void post(void* signal) { static_cast<Signal*>(signal)->count_.release(); }

    // Takes one post; false after `seconds` without any.
    bool wait(double seconds) { return count_.try_acquire_for(std::chrono::duration<double>(seconds)); }

    std::uintptr_t function() const { return reinterpret_cast<std::uintptr_t>(&Signal::post); }
    std::uintptr_t address() const { return reinterpret_cast<std::uintptr_t>(this); }

private:
    std::counting_semaphore<> count_{0};
};

}  // namespace gids
