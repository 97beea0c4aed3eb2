// Stands in for kernels/common/ptx/cluster.cuh.
#pragma once

#include "emulator.h"

namespace ptx {

inline uint32_t cluster_rank() { return emulator::cluster_rank(); }
inline uint32_t cluster_blocks() { return emulator::cluster_blocks(); }
inline void cluster_arrive(emulator::Site site = emulator::Site::here()) { emulator::cluster_arrive(site); }
inline void cluster_wait(emulator::Site site = emulator::Site::here()) { emulator::cluster_wait(site); }
inline void cluster_sync(emulator::Site site = emulator::Site::here()) {
    emulator::cluster_arrive(site);
    emulator::cluster_wait(site);
}
template <class T> const T* in_block(const T* here, uint32_t rank) {
    return static_cast<const T*>(emulator::in_block(here, rank));
}

struct TransactionBarrier {
    uint64_t* state;

    void open(emulator::Site site = emulator::Site::here()) const {
        if (threadIdx.x == 0) emulator::transaction_barrier_open(state);
        __syncwarp(~0u, site);
    }
    void expect(uint32_t bytes) const { emulator::transaction_barrier_expect(state, bytes); }
    template <int WORDS> void send(void* buffer, uint32_t rank, const uint32_t* words) const {
        emulator::transaction_barrier_send(state, buffer, rank, words, WORDS * 4);
    }
    void wait(uint32_t parity, emulator::Site site = emulator::Site::here()) const {
        emulator::transaction_barrier_wait(state, parity, site);
    }
};

}  // namespace ptx
