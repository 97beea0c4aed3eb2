// "Device" memory: memory of the host between pages that nobody may touch.
#pragma once

#include <cstddef>
#include <string>

namespace emulator {

// `bytes` bytes at an address that is `residue` modulo 16, filled with 0xff; as near as that allows to the forbidden
// page before them, or, if at_end, to the one behind them.
void* allocate(std::size_t bytes, unsigned residue, bool at_end);
// False if something was written beside it, within its pages.
bool free_memory(void* p);
// Kernels may read it only.
void seal(void* p);

// Where an address lies, seen from the nearest allocation.
std::string describe(const void* p);

}  // namespace emulator
