// Stands in for kernels/common/ptx/tma.cuh.
#pragma once

#include "hopper.h"

struct alignas(64) TensorMap {
    uint64_t opaque[16];
};

namespace ptx {

inline void tma_prefetch_map(const TensorMap&) {}
inline void bulk_load(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
    emulator::bulk_load(shared, global, bytes, barrier);
}
inline void tma_load_2d(uint32_t shared, const TensorMap& map, uint32_t barrier, int32_t x, int32_t y) {
    const int32_t at[] = {x, y};
    emulator::tma_load(shared, &map, barrier, at, 2);
}
inline void tma_load_5d(uint32_t shared, const TensorMap& map, uint32_t barrier, int32_t x, int32_t y,
                        const int32_t (&batch)[3]) {
    const int32_t at[] = {x, y, batch[0], batch[1], batch[2]};
    emulator::tma_load(shared, &map, barrier, at, 5);
}
inline void tma_multicast_2d(uint32_t shared, const TensorMap& map, uint32_t barrier, int32_t x, int32_t y,
                             uint16_t blocks) {
    const int32_t at[] = {x, y};
    emulator::tma_multicast(shared, &map, barrier, at, 2, blocks);
}
inline void tma_multicast_5d(uint32_t shared, const TensorMap& map, uint32_t barrier, int32_t x, int32_t y,
                             const int32_t (&batch)[3], uint16_t blocks) {
    const int32_t at[] = {x, y, batch[0], batch[1], batch[2]};
    emulator::tma_multicast(shared, &map, barrier, at, 5, blocks);
}

inline void tma_store_2d(const TensorMap& map, uint32_t shared, int32_t x, int32_t y) {
    const int32_t at[] = {x, y};
    emulator::tma_store(&map, shared, at, 2);
}
inline void tma_store_5d(const TensorMap& map, uint32_t shared, int32_t x, int32_t y, const int32_t (&batch)[3]) {
    const int32_t at[] = {x, y, batch[0], batch[1], batch[2]};
    emulator::tma_store(&map, shared, at, 5);
}
inline void tma_store_commit() { emulator::tma_store_commit(); }
inline void tma_store_wait_read() { emulator::tma_store_wait_read(); }
inline void fence_async_proxy() { emulator::fence_async_proxy(); }

}  // namespace ptx
