#include "block.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>

namespace emulator {

thread_local Runner* runner = nullptr;
thread_local __attribute__((tls_model("initial-exec"))) const Coordinates* coordinates = nullptr;

namespace {
constexpr std::size_t STACK_BYTES = 60 * 1024, GUARD_BYTES = 4096, STRIDE = STACK_BYTES + GUARD_BYTES;
constexpr unsigned MAX_THREADS = 1024;
constexpr unsigned char POISON = 0xff;  // NaN in every floating type
constexpr std::size_t CANARY_BYTES = 1024;
}  // namespace

Runner::Runner() {
    void* p = mmap(nullptr, STRIDE * MAX_THREADS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) abort();
    stacks_ = static_cast<unsigned char*>(p);
    for (unsigned i = 0; i < MAX_THREADS; ++i) mprotect(stacks_ + i * STRIDE, GUARD_BYTES, PROT_NONE);
}

Runner::~Runner() { munmap(stacks_, STRIDE * MAX_THREADS); }

bool Runner::in_stack_guard(const void* p) const {
    const auto at = static_cast<const unsigned char*>(p);
    return at >= stacks_ && at < stacks_ + STRIDE * MAX_THREADS && (at - stacks_) % STRIDE < GUARD_BYTES;
}

// ------------------------------------------------------------------------------------------ a block's life

bool Runner::run(const Launch& launch, uint3 block_index, Cluster* cluster, unsigned rank) {
    cluster_ = cluster;
    rank_ = rank;
    parked_.clear();
    prepare(launch, block_index);
    poison();
    join(true);
    runner = this;
    running_ = choose();
    coordinates = &running_->coordinates;
    switch_fiber(main_, running_->fiber);
    runner = nullptr;
    join(false);
    const unsigned char* const canary = window_.dynamic + launch.dynamic_bytes;
    if (!failed_ && !std::all_of(canary, canary + CANARY_BYTES, [](unsigned char c) { return c == POISON; })) {
        failure = "a thread wrote behind the " + std::to_string(launch.dynamic_bytes) + " bytes of dynamic shared memory";
        failed_ = true;
    }
    return !failed_;
}

void Runner::join(bool joins) {
    if (cluster_ == nullptr) return;
    const std::lock_guard lock(cluster_->mutex);
    cluster_->members[rank_] = joins ? this : nullptr;
    if (joins) return;
    ++cluster_->returned;
    cluster_->failed |= failed_;
    cluster_->change();
}

void Runner::prepare(const Launch& launch, uint3 block_index) {
    launch_ = &launch;
    const dim3& size = launch.block;
    const uint64_t number = (uint64_t(block_index.z) * launch.grid.y + block_index.y) * launch.grid.x + block_index.x;
    random_ = Random(launch.seed + number * 0x10001);
    // In half of the blocks no copy lands before it is waited for.
    const unsigned moods[] = {0, 0, 1, 4};
    eagerness_ = moods[random_.below(4)];
    failed_ = false;
    count_ = unfinished_ = size.x * size.y * size.z;
    while (threads_.size() < count_) threads_.push_back(std::make_unique<Thread>());
    warps_.assign((count_ + 31) / 32, {});
    barriers_.assign(16, {});
    engine_ = {};
    waiting_.clear();
    for (unsigned i = 0; i < count_; ++i) {
        Thread& thread = *threads_[i];
        thread.coordinates = {{i % size.x, i / size.x % size.y, i / size.x / size.y}, block_index, size, launch.grid};
        thread.index = i;
        thread.site = {"its start", 0};
        thread.copies.clear();
        thread.arrived = false;
        // Stacks that begin equally far from a page would share a few lines of the cache.
        thread.fiber.prepare(stacks_ + i * STRIDE + GUARD_BYTES, STACK_BYTES - i % 32 * 128, enter);
        make_runnable(i);
        warps_[i / 32].exists |= 1u << i % 32;
    }
    order_.resize(warps_.size());
    for (unsigned i = 0; i < order_.size(); ++i) order_[i] = i;
    for (unsigned i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random_.below(i)]);
}

// Whatever shared memory holds when a block begins, no kernel may rely on.
void Runner::poison() {
    window_ = window_of(launch_->kernel);
    unsigned char* const end = window_.begin + window_.bytes;
    memset(window_.begin, POISON, window_.dynamic - window_.begin);
    memset(window_.dynamic, POISON, launch_->dynamic_bytes + CANARY_BYTES);
    memset(window_.dynamic + DYNAMIC_BYTES, POISON, end - (window_.dynamic + DYNAMIC_BYTES));
}

void Runner::enter() {
    runner->launch_->kernel.call(runner->launch_->kernel.erased, runner->launch_->parameters);
    runner->finished();
}

void Runner::finished() {
    Warp& warp = warps_[running_->index / 32];
    const uint32_t me = 1u << running_->lane();
    for (const Together& t : warp.under_way) {
        if (t.mask & me) fail(std::string("returns, but its warp waits for it in ") + t.name);
    }
    if (!barriers_[0].arrived.empty()) fail("returns, but others of its block wait for it in __syncthreads");
    if (engine_.has_stores(running_->index)) fail("returns while its bulk stores may still read shared memory");
    if (!warp.wgmma.empty()) fail("returns while its warp's wgmma are under way");
    running_->copies.land_all();
    warp.runnable &= ~me;
    warp.finished |= me;
    if (unfinished_ == 1 && !engine_.empty()) fail("returns as the last of its block, while boxes are on their way to it");
    if (--unfinished_ == 0) switch_fiber(running_->fiber, main_);
    go_on_with_another();
}

void Runner::fail(const std::string& what) {
    const auto& [thread, block, block_size, grid] = running_->coordinates;
    char where[256];
    snprintf(where, sizeof(where), "%s, block (%u, %u, %u), thread (%u, %u, %u), after %s:%d: ", launch_->kernel.name,
             block.x, block.y, block.z, thread.x, thread.y, thread.z, running_->site.file, running_->site.line);
    failure = where + what;
    failed_ = true;
    switch_fiber(running_->fiber, main_);
    abort();
}

// ---------------------------------------------------------------------------------------------- scheduling

// One warp runs as far ahead of the others as barriers let it, then another one: so that a barrier that is missing is
// missed. Now and then another warp takes the lead.
Thread* Runner::choose() {
    if (random_.one_in(64)) std::swap(order_[0], order_[random_.below(order_.size())]);
    for (const unsigned w : order_) {
        const uint32_t lanes = warps_[w].runnable;
        if (lanes == 0) continue;
        const unsigned first = random_.below(32);
        const uint32_t turned = lanes >> first | (first == 0 ? 0 : lanes << (32 - first));
        return threads_[w * 32 + (first + __builtin_ctz(turned)) % 32].get();
    }
    return nullptr;
}

void Runner::go_on_with_another() {
    Thread* next = choose();
    while (next == nullptr && !parked_.empty()) {
        wait_for_news();
        next = choose();
    }
    while (next == nullptr && engine_.step(random_)) next = choose();
    if (next == nullptr) fail(deadlock());
    if (next == running_) return;
    Thread* const self = running_;
    running_ = next;
    coordinates = &next->coordinates;
    switch_fiber(self->fiber, next->fiber);
}

void Runner::wait(const char* in, Site site) {
    running_->waits_in = in;
    warps_[running_->index / 32].runnable &= ~(1u << running_->lane());
    go_on_with_another();
}

void Runner::give_way() { go_on_with_another(); }

std::string Runner::deadlock() const {
    std::map<std::string, unsigned> waiting;
    for (unsigned i = 0; i < count_; ++i) {
        if (warps_[i / 32].finished >> i % 32 & 1) continue;
        const Thread& t = *threads_[i];
        waiting[std::string(t.waits_in) + " at " + t.site.file + ":" + std::to_string(t.site.line)]++;
    }
    std::string text = "nobody can go on:";
    for (const auto& [where, threads] : waiting) text += " " + std::to_string(threads) + " threads wait in " + where + ";";
    text += " " + std::to_string(count_ - unfinished_) + " have returned";
    return text;
}

// ------------------------------------------------------------------------------------------ waiting for others

static bool same(Site a, Site b) { return a.line == b.line && strcmp(a.file, b.file) == 0; }
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
    if (random_.below(8) < eagerness_) engine_.step(random_);
    if (random_.below(8) < eagerness_) wgmma_pipeline().step(running_->index / 32 % 4);
}

void Runner::check_fenced(uint32_t shared, unsigned bytes) {
    if (engine_.unfenced.empty()) return;
    for (uint32_t at = shared / 16; at <= (shared + bytes - 1) / 16; ++at) {
        const auto found = engine_.unfenced.find(at);
        if (found == engine_.unfenced.end()) continue;
        fail("has the engine read shared address " + std::to_string(at * 16) + ", which thread " +
             std::to_string(found->second) + " wrote without fence.proxy.async since");
    }
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
        if (t.mask != mask || strcmp(t.name, what) != 0 || (aligned && !same(t.site, site))) {
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
void together(const char* name, Site site, uint32_t mask, bool aligned, void* lane, Execute execute) {
    runner->together(name, site, mask, aligned, lane, execute);
}
void copy_async(uint32_t shared, const void* global, unsigned bytes, bool valid) {
    void* to = shared_pointer(shared, bytes, bytes);
    if (valid) check_global(global, bytes);
    runner->running().copies.start(to, valid ? global : nullptr, bytes);
    runner->running().copies.land_some(runner->random(), runner->eagerness());
}
void commit_copies() { runner->running().copies.commit(); }
void wait_for_copies(unsigned pending) { runner->running().copies.wait(pending); }

}  // namespace emulator
