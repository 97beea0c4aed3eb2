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
}

void mbarrier_arrive(uint32_t address, unsigned bytes_to_come) {
    MBarrier& barrier = at(address);
    if (barrier.pending == 0) fail("more arrivals at the mbarrier %#x than it was initialised for", address);
    barrier.bytes += bytes_to_come;
    --barrier.pending;
    end_phase(address, barrier);
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
