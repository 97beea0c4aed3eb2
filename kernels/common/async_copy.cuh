// Copies from global to shared memory that a thread need not wait for at once; before sm_80 it does.
#pragma once

#include "dtype.cuh"
#include "ptx/cp_async.cuh"

__device__ __forceinline__ void copy_async(uint4* to, const void* from) {
#if __CUDA_ARCH__ >= 800
    const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    ptx::cp_async_16(address, from);
#else
    store_shared_vector(to, load_vector(from));
#endif
}
// Of 4, 8 or 16 bytes, with more around the last.
template <int BYTES> __device__ __forceinline__ void copy_async_of(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
    const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    ptx::cp_async_around<BYTES>(address, from);
#else
    uint32_t word[BYTES / 4];
    ptx::load_global<BYTES>(from, word);
    __builtin_memcpy(__builtin_assume_aligned(to, BYTES), word, BYTES);
#endif
}
__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
    ptx::cp_async_commit();
#endif
}
// Until at most `pending` of the thread's latest groups are unfinished.
__device__ __forceinline__ void wait_for_copies(uint32_t pending) {
#if __CUDA_ARCH__ >= 800
    switch (pending) {
    case 0: ptx::cp_async_wait<0>(); break;
    case 1: ptx::cp_async_wait<1>(); break;
    case 2: ptx::cp_async_wait<2>(); break;
    default: ptx::cp_async_wait<3>(); break;
    }
#endif
}
