// How threads wait for each other: barriers, instructions of a warp, mbarriers; and what they started meanwhile.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "../include/hopper.h"
#include "block.h"

namespace emulator {

// The same pointer, mostly.
static bool same(const char* a, const char* b) { return a == b || strcmp(a, b) == 0; }
static bool same(Site a, Site b) { return a.line == b.line && same(a.file, b.file); }
static std::string name(Site s) { return std::string(s.file) + ":" + std::to_string(s.line); }

Barrier& Runner::arrive(unsigned id, unsigned count, Site site) {
    running_->copies.land_some(random_, eagerness_);
    Barrier& barrier = barriers_[id];
    const unsigned expected = count == 0 ? count_ : count;
    if (barrier.arrived.empty() && barrier.passed == 0) {
        barrier.site = site;
        barrier.expected = expected;
    }
    running_->site = site;
    // Barriers with a number of their own are met from different lines on purpose.
    if (id == 0 && !same(barrier.site, site)) {
        fail("is at the barrier of " + name(site) + ", while others wait at that of " + name(barrier.site));
    }
    if (barrier.expected != expected) fail("brings another count of threads to barrier " + std::to_string(id));
    if (id == 0 && count == 0 && unfinished_ != count_) {
        fail("waits in __syncthreads, but " + std::to_string(count_ - unfinished_) + " of the block have returned");
    }
    return barrier;
}

void Runner::open(Barrier& barrier) {
    for (const unsigned thread : barrier.arrived) make_runnable(thread);
    barrier.arrived.clear();
    barrier.passed = 0;
    for (unsigned i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random_.below(i)]);
}

void Runner::barrier(unsigned id, unsigned count, Site site) {
    Barrier& barrier = arrive(id, count, site);
    barrier.arrived.push_back(running_->index);
    if (barrier.arrived.size() + barrier.passed < barrier.expected) return wait("a barrier", site);
    open(barrier);
    give_way();
}

void Runner::barrier_arrive(unsigned id, unsigned count, Site site) {
    Barrier& barrier = arrive(id, count, site);
    ++barrier.passed;
    if (barrier.arrived.size() + barrier.passed == barrier.expected) open(barrier);
}

void Runner::wait_for(uint32_t mbarrier, Site site) {
    running_->site = site;
    waiting_.push_back({mbarrier, running_->index});
    wait("mbarrier.try_wait", site);
}

void Runner::wake_waiting_for(uint32_t mbarrier) {
    const auto rest = std::partition(waiting_.begin(), waiting_.end(), [&](auto& w) { return w.first != mbarrier; });
    for (auto it = rest; it != waiting_.end(); ++it) make_runnable(it->second);
    waiting_.erase(rest, waiting_.end());
}

void Runner::progress() {
    if (eagerness_ == 0) return;
    if (random_.below(8) < eagerness_) {
        take_inbox();
        engine_.step(random_);
    }
    if (random_.below(8) < eagerness_) wgmma_pipeline().step(running_->index / 32 % 4);
}

// A thread that asks for more than there are waits for others to give some back; if nobody does, that is a deadlock.
void Runner::resize_registers(unsigned registers, Site site) {
    running_->site = site;
    if (launch_->registers == 0) return;
    while (registers > running_->registers + free_registers_) {
        short_of_registers_.push_back(running_->index);
        wait("setmaxnreg", site);
    }
    free_registers_ += running_->registers - registers;
    running_->registers = registers;
    for (const unsigned thread : short_of_registers_) make_runnable(thread);
    short_of_registers_.clear();
}

void Runner::together(const char* what, Site site, uint32_t mask, bool aligned, void* lane, Execute execute) {
    running_->copies.land_some(random_, eagerness_);
    progress();
    Warp& warp = warps_[running_->index / 32];
    const uint32_t me = 1u << running_->lane();
    running_->site = site;
    if (!(mask & me)) fail(std::string("takes part in ") + what + ", but its mask leaves it out");
    if (mask & ~warp.exists) fail(std::string("waits in ") + what + " for lanes that the block does not have");
    if (mask & warp.finished) fail(std::string("waits in ") + what + " for lanes that have returned");
    Together* mine = nullptr;
    for (Together& t : warp.under_way) {
        if (t.mask == 0 && mine == nullptr) mine = &t;
        if (!(t.mask & mask)) continue;
        if (t.mask != mask || !same(t.name, what) || (aligned && !same(t.site, site))) {
            fail(std::string("is in ") + what + " of " + name(site) + ", while lanes of its mask wait in " + t.name + " of " +
                 name(t.site));
        }
        mine = &t;
        break;
    }
    if (mine == nullptr) fail("more instructions of a warp under way than the emulator has room for");
    if (mine->mask == 0) *mine = {what, site, mask, 0, {}};
    mine->arrived |= me;
    mine->lanes[running_->lane()] = lane;
    if (mine->arrived != mask) return wait(what, site);
    execute(mine->lanes, mask);
    mine->mask = 0;
    warp.runnable |= mask;
    if (random_.one_in(4)) give_way();
}

// ------------------------------------------------------------------------------------- what device code calls

void fail(const char* format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    runner->fail(text);
}
void barrier(unsigned id, unsigned count, Site site) { runner->barrier(id, count, site); }
void barrier_arrive(unsigned id, unsigned count, Site site) { runner->barrier_arrive(id, count, site); }
void resize_registers(unsigned registers, Site site) { runner->resize_registers(registers, site); }
void together(const char* name, Site site, uint32_t mask, bool aligned, void* lane, Execute execute) {
    runner->together(name, site, mask, aligned, lane, execute);
}
void copy_async(uint32_t shared, const void* global, unsigned bytes, bool valid) {
    void* to = shared_pointer(shared, bytes, bytes);
    if (valid) check_global(global, bytes);
    runner->running().copies.start(to, valid ? global : nullptr, bytes);
    runner->running().copies.land_some(runner->random(), runner->eagerness());
}
void wait_for_grid_before() {
    if (runner->launch().waits != nullptr) *runner->launch().waits = true;
}
void commit_copies() { runner->running().copies.commit(); }
void wait_for_copies(unsigned pending) { runner->running().copies.wait(pending); }

}  // namespace emulator
