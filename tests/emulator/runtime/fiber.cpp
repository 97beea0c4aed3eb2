#include "fiber.h"

#include <cstdint>

#if defined(__x86_64__)

// The registers that a function must preserve, then the stack: 20 times faster than swapcontext, which asks the kernel
// for the signal mask.
extern "C" void emulator_switch(void** from, void* to);
asm(R"(
.pushsection .text
.type emulator_switch, @function
emulator_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
.popsection
)");

namespace emulator {

void Fiber::prepare(void* stack, std::size_t bytes, void (*entry)()) {
    auto top = (reinterpret_cast<uintptr_t>(stack) + bytes) & ~uintptr_t(15);
    auto* slot = reinterpret_cast<void**>(top);
    *--slot = nullptr;  // where `entry` would return to; also aligns the stack as after a call
    *--slot = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; ++i) *--slot = nullptr;
    top_ = slot;
}

void switch_fiber(Fiber& from, Fiber& to) { emulator_switch(&from.top_, to.top_); }

}  // namespace emulator

#else

namespace emulator {

void Fiber::prepare(void* stack, std::size_t bytes, void (*entry)()) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = bytes;
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
}

void switch_fiber(Fiber& from, Fiber& to) { swapcontext(&from.context_, &to.context_); }

}  // namespace emulator

#endif
