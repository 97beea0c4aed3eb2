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

struct Mailbox {
    uint64_t* state;

    void open(emulator::Site site = emulator::Site::here()) const {
        if (threadIdx.x == 0) emulator::mailbox_open(state);
        __syncwarp(~0u, site);
    }
    void expect(uint32_t bytes) const { emulator::mailbox_expect(state, bytes); }
    template <int WORDS> void send(void* slot, uint32_t rank, const uint32_t* words) const {
        emulator::mailbox_send(state, slot, rank, words, WORDS * 4);
    }
    void wait(uint32_t parity, emulator::Site site = emulator::Site::here()) const {
        emulator::mailbox_wait(state, parity, site);
    }
};

}  // namespace ptx
