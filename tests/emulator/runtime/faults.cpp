#include "faults.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <ucontext.h>

#include "block.h"
#include "memory.h"

namespace emulator {

namespace {

constexpr int SIGNALS[3] = {SIGSEGV, SIGBUS, SIGILL};
constexpr std::size_t STACK = 64 * 1024;

std::string access(const siginfo_t& info, [[maybe_unused]] const void* context) {
    const char* verb = "touches ";
#if defined(__x86_64__)
    const auto& registers = static_cast<const ucontext_t*>(context)->uc_mcontext.gregs;
    verb = registers[REG_ERR] & 2 ? "writes " : "reads ";
#endif
    char address[32];
    snprintf(address, sizeof(address), "%p, ", info.si_addr);
    return verb + std::string(address) + describe(info.si_addr);
}

// Never returns: the faulting thread is given up, and the runner goes on without it.
void handle(int signal, siginfo_t* info, void* context) {
    if (runner == nullptr) {
        // Not a kernel's doing: with the default action back, the instruction faults again.
        ::signal(signal, SIG_DFL);
        return;
    }
    if (signal == SIGILL) runner->fail("undefined behaviour: a misaligned address, or an index outside its array");
    if (runner->in_stack_guard(info->si_addr)) runner->fail("needs more stack than the emulator gives a thread");
    runner->fail(access(*info, context));
}

}  // namespace

HandlersInstalled::HandlersInstalled() {
    struct sigaction action = {};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int i = 0; i < 3; ++i) sigaction(SIGNALS[i], &action, &before_[i]);
}
HandlersInstalled::~HandlersInstalled() {
    for (int i = 0; i < 3; ++i) sigaction(SIGNALS[i], &before_[i], nullptr);
}

FaultsReported::FaultsReported() : stack_(malloc(STACK)) {
    stack_t stack = {};
    stack.ss_sp = stack_;
    stack.ss_size = STACK;
    sigaltstack(&stack, &before_);
}
FaultsReported::~FaultsReported() {
    sigaltstack(&before_, nullptr);
    free(stack_);
}

}  // namespace emulator
