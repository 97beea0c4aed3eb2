// Messages between blocks of one launch through global memory: 8 bytes of data and an 8-byte tag in one access, so that
// a block that sees the tag has the data.
#pragma once

#include <cstdint>

namespace ptx {

__device__ __forceinline__ void send_message(void* to, uint64_t word, uint64_t tag) {
    asm volatile(
        "{\n"
        ".reg .b128 message;\n"
        "mov.b128 message, {%1, %2};\n"
        "st.relaxed.gpu.global.b128 [%0], message;\n"
        "}" ::"l"(__cvta_generic_to_global(to)),
        "l"(word), "l"(tag)
        : "memory");
}

// Until a message with this tag lies there. Its sender must be running, or have run: the launch is a cooperative one.
__device__ __forceinline__ uint64_t wait_for_message(const void* at, uint64_t tag) {
    uint64_t word, seen;
    do {
        asm volatile(
            "{\n"
            ".reg .b128 message;\n"
            "ld.relaxed.gpu.global.b128 message, [%2];\n"
            "mov.b128 {%0, %1}, message;\n"
            "}"
            : "=l"(word), "=l"(seen)
            : "l"(__cvta_generic_to_global(at))
            : "memory");
    } while (seen != tag);
    return word;
}

}  // namespace ptx
