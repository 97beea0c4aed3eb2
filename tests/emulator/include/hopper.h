// What device code sees of Hopper's asynchronous machinery: barriers in shared memory, the tensor memory accelerator,
// warpgroup products. Shared memory is given by its 32-bit addresses.
#pragma once

#include <array>

#include "emulator.h"

namespace __attribute__((visibility("default"))) emulator {

void mbarrier_init(uint32_t barrier, unsigned arrivals);
// What the running thread has initialised may be used by other blocks from here on.
void mbarrier_publish();
void mbarrier_arrive(uint32_t barrier, unsigned bytes_to_come);
// The address by which to arrive at the barrier that another block has there.
uint32_t mbarrier_of_block(uint32_t barrier, unsigned rank);
void mbarrier_arrive_there(uint32_t barrier);
void mbarrier_wait(uint32_t barrier, uint32_t parity, Site site);

// A copy has arrived.
void mbarrier_receive(uint32_t barrier, unsigned bytes);

// A numbered barrier, by threads that do not wait for it.
void barrier_arrive(unsigned id, unsigned count, Site site);

// setmaxnreg: the running thread has so many registers from here on.
void resize_registers(unsigned registers, Site site);

// Bytes that lie one behind the other.
void bulk_load(uint32_t shared, const void* global, unsigned bytes, uint32_t barrier);
// One box of the tensor that `map` describes, at these coordinates, innermost first.
void tma_load(uint32_t shared, const void* map, uint32_t barrier, const int32_t* coordinates, unsigned rank);
// To the blocks of the cluster whose ranks' bits are set.
void tma_multicast(uint32_t shared, const void* map, uint32_t barrier, const int32_t* coordinates, unsigned rank,
                   unsigned blocks);

// A box on its way out, until the same thread waits for it, if it has committed it.
void tma_store(const void* map, uint32_t shared, const int32_t* coordinates, unsigned rank);
void tma_store_commit();
void tma_store_wait_read();
// Ordinary writes to shared memory that the engine may not read until the thread has fenced.
void wrote_shared(uint32_t shared, unsigned bytes);
void fence_async_proxy();

// d += a b of one warp's 16 rows; the tiles are described by 64 bits each, or a is in registers.
enum class Element { f16, bf16, tf32 };
struct WarpgroupProduct {
    unsigned n;
    Element element;
    bool a_mn_major, b_mn_major, accumulate;
    uint64_t a, b;
    float* d;  // n / 2 of them
    std::array<uint32_t, 4> a_registers = {};
    bool a_in_registers = false;
};
void wgmma(const WarpgroupProduct& product, Site site);
void wgmma_fence(Site site);
void wgmma_commit(Site site);
void wgmma_wait(unsigned pending, Site site);

}  // namespace emulator
