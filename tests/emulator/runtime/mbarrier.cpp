// Barriers in shared memory that count arrivals and bytes.
#include <algorithm>

#include "../include/hopper.h"
#include "block.h"

namespace emulator {

namespace {

constexpr unsigned TAG = 0x15a5a;
struct MBarrier {
    uint64_t expected : 12, pending : 12, phase : 1;
    int64_t bytes : 22;  // announced, and not yet come
    uint64_t tag : 17;   // no memory that was not initialised has it
};
static_assert(sizeof(MBarrier) == 8, "");

MBarrier& at(uint32_t address, bool fresh = false) {
    auto& barrier = *static_cast<MBarrier*>(shared_pointer(address, 8, 8));
    if (!fresh && barrier.tag != TAG) fail("no mbarrier was initialised at shared address %#x", address);
    return barrier;
}

void end_phase(uint32_t address, MBarrier& barrier) {
    if (barrier.pending != 0 || barrier.bytes != 0) return;
    barrier.phase ^= 1;
    barrier.pending = barrier.expected;
    runner->wake_waiting_for(address);
}

}  // namespace

void mbarrier_init(uint32_t address, unsigned arrivals) {
    if (arrivals == 0 || arrivals > 1024) fail("an mbarrier for %u arrivals", arrivals);
    MBarrier& barrier = at(address, true);
    barrier = {};
    barrier.expected = barrier.pending = arrivals;
    barrier.tag = TAG;
    runner->running().unpublished.push_back(address);
}

void mbarrier_publish() {
    runner->publish(runner->running().unpublished);
    runner->running().unpublished.clear();
}

void mbarrier_arrive(uint32_t address, unsigned bytes_to_come) {
    MBarrier& barrier = at(address);
    if (barrier.pending == 0) fail("more arrivals at the mbarrier %#x than it was initialised for", address);
    barrier.bytes += bytes_to_come;
    --barrier.pending;
    end_phase(address, barrier);
}

// An address of shared memory in the cluster: the block's, above what any block's own can be. An address of the running
// block's own is one, too.
constexpr unsigned RANK_SHIFT = 24;

uint32_t mbarrier_of_block(uint32_t address, unsigned rank) {
    shared_pointer(address, 8, 8);
    if (rank >= cluster_blocks()) fail("asks for block %u of a cluster of %u", rank, cluster_blocks());
    return address + ((rank + 1) << RANK_SHIFT);
}

void mbarrier_arrive_there(uint32_t address) {
    const unsigned block = address >> RANK_SHIFT;
    const uint32_t there = address & ((1u << RANK_SHIFT) - 1);
    if (block == 0 || block - 1 == cluster_rank()) return mbarrier_arrive(there, 0);
    if (block > cluster_blocks()) fail("arrives at block %u of a cluster of %u", block - 1, cluster_blocks());
    runner->send(block - 1, there, [there] { mbarrier_arrive(there, 0); });
}

void mbarrier_receive(uint32_t address, unsigned bytes) {
    MBarrier& barrier = at(address);
    barrier.bytes -= bytes;
    end_phase(address, barrier);
}

void mbarrier_wait(uint32_t address, uint32_t parity, Site site) {
    runner->progress();
    while (at(address).phase == (parity & 1)) runner->wait_for(address, site);
}

}  // namespace emulator
