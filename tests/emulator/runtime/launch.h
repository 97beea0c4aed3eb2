// Grids, and the kernels there are.
#pragma once

#include <map>
#include <string>

#include "block.h"

namespace emulator {

// What only the compiler of the real thing knows of a kernel, and how often it was launched.
struct KernelState {
    Kernel kernel;
    unsigned registers = 0, static_bytes = 0;
    unsigned dynamic_limit = 48 * 1024;
    unsigned launches = 0;
    bool large_clusters = false;  // of more than 8 blocks
};
// Every kernel of the loaded files, by name.
std::map<std::string, KernelState>& kernels();

// Runs all blocks of a grid. Empty, or what went wrong.
std::string run_grid(const Launch& launch);

}  // namespace emulator
