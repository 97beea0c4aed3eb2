// The GPUs that the emulator can claim to be.
#pragma once

#include <cstddef>

namespace emulator {

struct Device {
    const char* key;  // TILEWISE_EMULATED_DEVICE
    const char* name;
    int major, minor;
    int multiprocessors, threads_per_multiprocessor, blocks_per_multiprocessor;
    int shared_per_multiprocessor, shared_per_block;
    int l2_bytes;
    std::size_t memory_bytes;
};

// As the environment says: TILEWISE_EMULATED_DEVICE, an H200 if it is not set, with as many multiprocessors as
// TILEWISE_EMULATED_MULTIPROCESSORS: with few, small problems fill the device.
const Device* device();

// Of them, those that launches get: a green context's, say. TILEWISE_EMULATED_PARTITION; all if it is not set.
unsigned usable_multiprocessors();

}  // namespace emulator
