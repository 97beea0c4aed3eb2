// Thread block clusters (sm_90): blocks that run at the same time and reach each other's shared memory (distributed
// shared memory). Older devices have clusters of one block.
#pragma once

#include <cstdint>

namespace ptx {

__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}

__device__ __forceinline__ uint32_t cluster_blocks() {
    uint32_t blocks = 1;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
#endif
    return blocks;
}

// The barrier of all threads of a cluster, in two halves. Relaxed: it orders no memory (a release would wait for
// everything the thread has stored anywhere), which transaction barriers do not need.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// The barrier of all threads of a cluster: what they wrote before is visible to all.
__device__ __forceinline__ void cluster_sync() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// Where block `rank` of the cluster has what this one has at `here` in shared memory; may be read like memory of one's
// own while that block is there.
template <class T> __device__ __forceinline__ const T* in_block(const T* here, uint32_t rank) {
    uint64_t there = reinterpret_cast<uint64_t>(here);
#if __CUDA_ARCH__ >= 900
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(here), "r"(rank));
#endif
    return reinterpret_cast<const T*>(there);
}

// An mbarrier whose phase ends when an announced number of bytes has come from the blocks of the cluster.
struct TransactionBarrier {
    uint64_t* state;

    __device__ __forceinline__ uint32_t address() const {
        return static_cast<uint32_t>(__cvta_generic_to_shared(state));
    }
    // By all threads of the block, before cluster_arrive. The warp waits because compute-sanitizer takes the one thread's
    // init for a write by each of its lanes, and warns of a race with the next use.
    __device__ __forceinline__ void open() const {
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x == 0) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" ::"r"(address())
                         : "memory");
        }
        __syncwarp();
#endif
    }
    // By one thread, before the others may send.
    __device__ __forceinline__ void expect(uint32_t bytes) const {
#if __CUDA_ARCH__ >= 900
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
#endif
    }
    // Stores 8 or 16 bytes to `buffer` in block `rank`, and counts them at that block's barrier.
    template <int WORDS>
    __device__ __forceinline__ void send(void* buffer, uint32_t rank, const uint32_t* words) const {
#if __CUDA_ARCH__ >= 900
        uint32_t to, barrier;
        asm("mapa.shared::cluster.u32 %0, %1, %2;"
            : "=r"(to)
            : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(buffer))), "r"(rank));
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(barrier) : "r"(address()), "r"(rank));
        if constexpr (WORDS == 2) {
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(to),
                         "r"(words[0]), "r"(words[1]), "r"(barrier)
                         : "memory");
        } else {
            asm volatile(
                "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(barrier)
                : "memory");
        }
#endif
    }
    // Waits for all announced bytes; rounds alternate between parity 0 and 1.
    __device__ __forceinline__ void wait(uint32_t parity) const {
#if __CUDA_ARCH__ >= 900
        asm volatile(
            "{\n"
            ".reg .pred done;\n"
            "again:\n"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
            "@!done bra again;\n"
            "}" ::"r"(address()),
            "r"(parity)
            : "memory");
#endif
    }
};

}  // namespace ptx
