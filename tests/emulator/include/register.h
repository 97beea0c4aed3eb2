// How a compiled kernel file makes its kernels known to the runtime. Included by what host_build.py appends to the file.
#pragma once

#include <cstddef>
#include <utility>

#include "emulator.h"

namespace __attribute__((visibility("default"))) emulator {

// __launch_bounds__; 0: not said.
struct LaunchBounds {
    unsigned threads = 0, blocks = 0, cluster = 0;
};

// Room for a block's dynamic shared memory.
constexpr unsigned DYNAMIC_BYTES = 256 * 1024;

struct Kernel {
    const char* name;
    LaunchBounds bounds;
    unsigned char* (*dynamic)();  // dynamic shared memory, of the calling thread of the operating system
    void (*erased)();
    void (*call)(void (*erased)(), void* const* parameters);
};
void add_kernel(const Kernel& kernel);

template <class... P, std::size_t... I>
void call_with(void (*kernel)(P...), void* const* parameters, std::index_sequence<I...>) {
    kernel(*static_cast<const std::remove_const_t<P>*>(parameters[I])...);
}

struct Registration {
    template <class... P>
    Registration(const char* name, LaunchBounds bounds, unsigned char* (*dynamic)(), void (*kernel)(P...)) {
        add_kernel({name, bounds, dynamic, reinterpret_cast<void (*)()>(kernel),
                    [](void (*erased)(), void* const* parameters) {
                        call_with(reinterpret_cast<void (*)(P...)>(erased), parameters, std::index_sequence_for<P...>());
                    }});
    }
};

}  // namespace emulator
