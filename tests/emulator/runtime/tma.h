// Tensor maps, as cuTensorMapEncodeTiled makes them here.
#pragma once

#include <cstdint>

namespace emulator {

// Fits into the 128 bytes of a CUtensorMap.
struct TensorMapImage {
    uint32_t tag;
    uint8_t rank, element_bytes;
    uint8_t swizzle_bits;  // of a row's number that are mixed into the 16-byte chunk's: 3 for 128 bytes
    uint8_t rounds_to_tf32;
    unsigned char* base;
    uint32_t last[5];      // index of each dimension, innermost first
    uint16_t box[5];
    uint64_t strides[5];  // bytes; of the innermost, its elements'

    static constexpr uint32_t TAG = 0x7e4507a9;
};
static_assert(sizeof(TensorMapImage) <= 128, "");

}  // namespace emulator
