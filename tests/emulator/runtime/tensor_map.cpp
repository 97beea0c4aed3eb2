// cuTensorMapEncodeTiled, with the driver's rules.
#include <cstring>

#include "tma.h"

namespace {

constexpr int SUCCESS = 0, INVALID_VALUE = 1;
constexpr unsigned TFLOAT32 = 11;
constexpr uint8_t ELEMENT_BYTES[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};  // of CUtensorMapDataType

bool aligned(const void* p, unsigned bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

}  // namespace

extern "C" __attribute__((visibility("default"))) int cuTensorMapEncodeTiled(
    void* map, unsigned type, uint32_t rank, void* base, const uint64_t* sizes, const uint64_t* strides,
    const uint32_t* box, const uint32_t* steps, int interleave, unsigned swizzle, int, int) {
    if (rank == 0 || rank > 5 || type >= sizeof(ELEMENT_BYTES) || interleave != 0 || swizzle > 3) return INVALID_VALUE;
    if (!aligned(map, 64) || !aligned(base, 16)) return INVALID_VALUE;
    emulator::TensorMapImage image = {};
    image.tag = image.TAG;
    image.rank = static_cast<uint8_t>(rank);
    image.element_bytes = ELEMENT_BYTES[type];
    image.rounds_to_tf32 = type == TFLOAT32;
    image.swizzle_bits = static_cast<uint8_t>(swizzle);  // of 32, 64, 128 bytes
    image.base = static_cast<unsigned char*>(base);
    const uint32_t row_bytes = box[0] * image.element_bytes;
    if (row_bytes % 16 != 0 || (swizzle != 0 && row_bytes > 16u << swizzle)) return INVALID_VALUE;
    for (uint32_t d = 0; d < rank; ++d) {
        const uint64_t stride = d == 0 ? image.element_bytes : strides[d - 1];
        if (box[d] == 0 || box[d] > 256 || steps[d] != 1) return INVALID_VALUE;
        if (sizes[d] == 0 || sizes[d] > uint64_t(1) << 32) return INVALID_VALUE;
        // The documents leave open whether a stride may be 0.
        if (d > 0 && (stride == 0 || stride % 16 != 0 || stride >= uint64_t(1) << 40)) return INVALID_VALUE;
        image.last[d] = static_cast<uint32_t>(sizes[d] - 1);
        image.box[d] = static_cast<uint16_t>(box[d]);
        image.strides[d] = stride;
    }
    memcpy(map, &image, sizeof(image));
    return SUCCESS;
}
