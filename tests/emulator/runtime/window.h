// The block's shared memory as the addresses of 32 bits that PTX knows it by.
#pragma once

#include "../include/register.h"

namespace emulator {

// Where a kernel file's shared variables lie for the calling thread of the operating system: they are its
// thread-local variables. The dynamic part comes somewhere among the static ones.
struct Window {
    unsigned char* begin;
    std::size_t bytes;
    unsigned char* dynamic;
};
Window window_of(const Kernel& kernel);

}  // namespace emulator
