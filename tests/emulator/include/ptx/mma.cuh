// Stands in for kernels/common/ptx/mma.cuh, which says what lies where. Sums are exact up to one rounding to float
// for each mma; a tensor core's own are a little worse.
#pragma once

#include <cmath>

#include "dtype.cuh"
#include "emulator.h"

namespace ptx {

struct Mma {
    float (&d)[4];
    const uint32_t (&a)[4];
    const uint32_t (&b)[2];
};

// Element i of a word: one of two halves, or the one float.
template <class T> double element_of(uint32_t word, int i) {
    T half;
    half.bits = static_cast<uint16_t>(word >> (16 * i));
    return number(half);
}
template <> inline double element_of<f32>(uint32_t word, int) {
    return __uint_as_float(word & 0xffffe000u);  // a tf32 has no more bits
}

template <class T> void mma_of_warp(void* const (&lanes)[32], uint32_t) {
    constexpr int EACH = sizeof(T) == 4 ? 1 : 2, K = 8 * EACH;  // elements of a word, of k
    double a[16][K], b[K][8];
    for (int lane = 0; lane < 32; ++lane) {
        const auto& mine = *static_cast<Mma*>(lanes[lane]);
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < EACH; ++i) {
            for (int word = 0; word < 4; ++word) {
                a[g + word % 2 * 8][(t + word / 2 * 4) * EACH + i] = element_of<T>(mine.a[word], i);
            }
            for (int word = 0; word < 2; ++word) b[(t + word * 4) * EACH + i][g] = element_of<T>(mine.b[word], i);
        }
    }
    for (int lane = 0; lane < 32; ++lane) {
        const auto& mine = *static_cast<Mma*>(lanes[lane]);
        for (int e = 0; e < 4; ++e) {
            const int row = lane / 4 + e / 2 * 8, col = lane % 4 * 2 + e % 2;
            double sum = mine.d[e];
            for (int k = 0; k < K; ++k) sum += a[row][k] * b[k][col];
            mine.d[e] = static_cast<float>(sum);
        }
    }
}

template <class T>
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                  emulator::Site site = emulator::Site::here()) {
    Mma mine = {d, a, b};
    emulator::together("mma.m16n8k16", site, ~0u, true, &mine, mma_of_warp<T>);
}
inline void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                             emulator::Site site = emulator::Site::here()) {
    Mma mine = {d, a, b};
    emulator::together("mma.m16n8k8", site, ~0u, true, &mine, mma_of_warp<f32>);
}

struct DoubleMma {
    double (&d)[4];
    const double (&a)[4];
    const double (&b)[2];
};

inline void double_mma_of_warp(void* const (&lanes)[32], uint32_t) {
    double a[16][8], b[8][8];
    for (int lane = 0; lane < 32; ++lane) {
        const auto& mine = *static_cast<DoubleMma*>(lanes[lane]);
        for (int k = 0; k < 2; ++k) {
            for (int half = 0; half < 2; ++half) a[lane / 4 + half * 8][lane % 4 + k * 4] = mine.a[k * 2 + half];
            b[lane % 4 + k * 4][lane / 4] = mine.b[k];
        }
    }
    for (int lane = 0; lane < 32; ++lane) {
        const auto& mine = *static_cast<DoubleMma*>(lanes[lane]);
        for (int e = 0; e < 4; ++e) {
            const int row = lane / 4 + e / 2 * 8, col = lane % 4 * 2 + e % 2;
            for (int k = 0; k < 8; ++k) mine.d[e] = std::fma(a[row][k], b[k][col], mine.d[e]);
        }
    }
}

inline void mma_m16n8k8_f64(double (&d)[4], const double (&a)[4], const double (&b)[2],
                            emulator::Site site = emulator::Site::here()) {
    DoubleMma mine = {d, a, b};
    emulator::together("mma.m16n8k8", site, ~0u, true, &mine, double_mma_of_warp);
}

// Ties away from zero; infinities and NaN stay what they are.
inline uint32_t to_tf32(uint32_t bits) {
    return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & 0xffffe000u;
}

}  // namespace ptx
