// The tensor memory accelerator (sm_90): one thread asks, an engine copies a box of a tensor from global to
// shared memory. A tensor map, encoded by the host, says where the tensor lies and how the box is laid out in shared
// memory. What of a box is outside the tensor is read as zeros.
#pragma once

#include <cstdint>

// CUtensorMap.
struct alignas(64) TensorMap {
    uint64_t opaque[16];
};

namespace ptx {

__device__ __forceinline__ void tma_prefetch_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Copies bytes that lie one behind the other, a multiple of 16 of them from a multiple of 16 to one; no map is needed.
__device__ __forceinline__ void bulk_load(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
        "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(barrier)
        : "memory");
}

// Copies the box at (x, y) of a matrix, innermost dimension first, and at `batch` of a batch of up to three dimensions,
// to shared memory; its bytes, zeros included, count towards the barrier's phase.
__device__ __forceinline__ void tma_load_2d(uint32_t shared, const TensorMap& map, uint32_t barrier, int32_t x,
                                            int32_t y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4}], [%2];" ::"r"(shared),
        "l"(&map), "r"(barrier), "r"(x), "r"(y)
        : "memory");
}
__device__ __forceinline__ void tma_load_5d(uint32_t shared, const TensorMap& map, uint32_t barrier, int32_t x,
                                            int32_t y, const int32_t (&batch)[3]) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared),
        "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(batch[0]), "r"(batch[1]), "r"(batch[2])
        : "memory");
}
// The same to several blocks of a cluster, bit r of `blocks` for the one of rank r: to this place in their shared memory,
// and counted by this barrier there.
__device__ __forceinline__ void tma_multicast_2d(uint32_t shared, const TensorMap& map, uint32_t barrier, int32_t x,
                                                 int32_t y, uint16_t blocks) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%3, %4}], [%2], %5;" ::"r"(shared),
        "l"(&map), "r"(barrier), "r"(x), "r"(y), "h"(blocks)
        : "memory");
}
__device__ __forceinline__ void tma_multicast_5d(uint32_t shared, const TensorMap& map, uint32_t barrier, int32_t x,
                                                 int32_t y, const int32_t (&batch)[3], uint16_t blocks) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(shared),
        "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(batch[0]), "r"(batch[1]), "r"(batch[2]), "h"(blocks)
        : "memory");
}

// Copies a box from shared memory; what of it is outside the tensor is left out. The thread that asks may wait, for what it
// has committed: at once, or the engine takes its time.
__device__ __forceinline__ void tma_store_2d(const TensorMap& map, uint32_t shared, int32_t x, int32_t y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map),
                 "r"(shared), "r"(x), "r"(y)
                 : "memory");
}
__device__ __forceinline__ void tma_store_5d(const TensorMap& map, uint32_t shared, int32_t x, int32_t y,
                                             const int32_t (&batch)[3]) {
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
        "r"(shared), "r"(x), "r"(y), "r"(batch[0]), "r"(batch[1]), "r"(batch[2])
        : "memory");
}
__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until none of them reads shared memory any more.
__device__ __forceinline__ void tma_store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// Ordinary writes to shared memory before this are seen by the engine after it.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace ptx
