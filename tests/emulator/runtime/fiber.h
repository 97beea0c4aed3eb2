// Threads of control that hand the processor to each other by name.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulator {

class Fiber {
public:
    // A fiber of its own: switched to for the first time it calls `entry`, which must never return.
    void prepare(void* stack, std::size_t bytes, void (*entry)());

    // Goes on with `to`; returns when somebody switches to `from`. A fiber that nobody switches to again is forgotten
    // at no cost.
    friend void switch_fiber(Fiber& from, Fiber& to);

private:
#if defined(__x86_64__)
    void* top_ = nullptr;  // of its stack, where its registers are while it waits
#else
    ucontext_t context_;
#endif
};
void switch_fiber(Fiber& from, Fiber& to);

}  // namespace emulator
