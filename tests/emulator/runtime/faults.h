// Turns the faults of a running kernel into failures of its launch.
#pragma once

#include <csignal>

namespace emulator {

// For the whole process, while a grid runs; then whoever handled them before does so again.
class HandlersInstalled {
public:
    HandlersInstalled();
    ~HandlersInstalled();

private:
    struct sigaction before_[3];
};

// For one thread of the operating system: a stack to handle faults on, even one of a full stack.
class FaultsReported {
public:
    FaultsReported();
    ~FaultsReported();

private:
    void* stack_;
    stack_t before_;
};

}  // namespace emulator
