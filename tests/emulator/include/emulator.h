// What device code sees of the emulator: where the running thread stands, and how it waits for others.
#pragma once

#include <cstdint>

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

namespace __attribute__((visibility("default"))) emulator {

// A line of a kernel. As a default argument, here() is the line of the call.
struct Site {
    const char* file;
    int line;
    static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

struct Coordinates {
    uint3 thread, block;
    dim3 block_size, grid_size;
};
// Of the running thread.
extern thread_local __attribute__((tls_model("initial-exec"))) const Coordinates* coordinates;

// Ends the launch with an error that names the running thread.
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...);

// All `count` threads that name barrier `id` wait for each other; 0: the whole block.
void barrier(unsigned id, unsigned count, Site site);

// An instruction that the lanes in `mask` execute together: the last of them to arrive calls `execute` with what
// each lane brought. Aligned: all 32 lanes must be at the same instruction.
using Execute = void (*)(void* const (&lanes)[32], uint32_t mask);
void together(const char* name, Site site, uint32_t mask, bool aligned, void* lane, Execute execute);

// The 32-bit address of an object in the block's shared memory, and back. `bytes` at it must lie there, aligned.
uint32_t shared_address(const void* p);
void* shared_pointer(uint32_t address, unsigned bytes, unsigned alignment);

// Checks an access of global memory for its alignment, and for not being in shared memory.
void check_global(const void* p, unsigned bytes);

// cp.async of the running thread.
void copy_async(uint32_t shared, const void* global, unsigned bytes, bool valid);
void commit_copies();
void wait_for_copies(unsigned pending);

// The cluster of the running thread's block; without one, rank 0 of 1. Its barrier, and 64 bits of shared memory that
// let who waits for them go on when as many bytes have come from other blocks as were announced.
unsigned cluster_rank();
unsigned cluster_blocks();
void cluster_arrive(Site site);
void cluster_wait(Site site);
const void* in_block(const void* here, unsigned rank);  // the same object of another block
void transaction_barrier_open(uint64_t* state);
void transaction_barrier_expect(uint64_t* state, uint32_t bytes);
void transaction_barrier_send(uint64_t* state, void* buffer, unsigned rank, const void* data, unsigned bytes);
void transaction_barrier_wait(uint64_t* state, uint32_t parity, Site site);

// The running thread waits for the launch before, which may have begun later than this one.
void wait_for_grid_before();

// Words in global memory from one block of a cooperative launch to another, each under a tag of 64 bits.
void message_send(void* to, uint64_t word, uint64_t tag);
uint64_t message_wait(const void* at, uint64_t tag, Site site);

}  // namespace emulator
