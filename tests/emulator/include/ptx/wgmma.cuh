// Stands in for kernels/common/ptx/wgmma.cuh.
#pragma once

#include "dtype.cuh"
#include "hopper.h"

namespace ptx {

inline void wgmma_fence(emulator::Site site = emulator::Site::here()) { emulator::wgmma_fence(site); }
inline void wgmma_commit(emulator::Site site = emulator::Site::here()) { emulator::wgmma_commit(site); }
template <int PENDING> void wgmma_wait(emulator::Site site = emulator::Site::here()) {
    emulator::wgmma_wait(PENDING, site);
}
template <int N> void wgmma_pin(float (&)[N]) {}
template <int N> void wgmma_pin(uint32_t (&)[N]) {}

template <bool MN_MAJOR> uint64_t wgmma_tile(uint32_t shared) {
    constexpr uint64_t PANEL = MN_MAJOR ? 64 * 128 / 16 : 1;
    return uint64_t(1) << 62 | uint64_t(8 * 128 / 16) << 32 | PANEL << 16 | (shared & 0x3FFFF) >> 4;
}

inline uint64_t wgmma_tile_at(uint64_t tile, uint32_t bytes) { return tile + bytes / 16; }

template <class T> constexpr emulator::Element element_of() {
    using emulator::Element;
    return same_type<T, f32> ? Element::tf32 : same_type<T, bf16> ? Element::bf16 : Element::f16;
}

template <int N> struct Wgmma {
    static_assert(N % 8 == 0 && N >= 8 && N <= 256, "");
    template <class T, bool A_MN, bool B_MN>
    static void add(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate,
                    emulator::Site site = emulator::Site::here()) {
        emulator::wgmma({N, element_of<T>(), A_MN, B_MN, accumulate, a, b, d}, site);
    }
};

template <int N> struct WgmmaOfRegisters {
    template <class T>
    static void add(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate,
                    emulator::Site site = emulator::Site::here()) {
        emulator::WarpgroupProduct product{N, element_of<T>(), false, false, accumulate, 0, b, d};
        product.a_registers = {a[0], a[1], a[2], a[3]};
        product.a_in_registers = true;
        emulator::wgmma(product, site);
    }
};

}  // namespace ptx
