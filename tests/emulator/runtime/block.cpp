#include "block.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>

namespace emulator {

thread_local __attribute__((tls_model("initial-exec"))) Runner* runner = nullptr;
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
    free_registers_ = 0;
    short_of_registers_.clear();
    waiting_.clear();
    for (unsigned i = 0; i < count_; ++i) {
        Thread& thread = *threads_[i];
        thread.coordinates = {{i % size.x, i / size.x % size.y, i / size.x / size.y}, block_index, size, launch.grid};
        thread.index = i;
        thread.site = {"its start", 0};
        thread.copies.clear();
        thread.arrived = false;
        thread.unpublished.clear();
        thread.registers = launch.registers;
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
    if (engine_.has_works(running_->index)) fail("returns while boxes that it has sent may still be read from shared memory");
    if (!warp.wgmma.empty()) fail("returns while its warp's wgmma are under way");
    running_->copies.land_all();
    warp.runnable &= ~me;
    warp.finished |= me;
    if (unfinished_ == 1) take_inbox();
    if (unfinished_ == 1 && !engine_.empty()) {
        fail("returns as the last of its block, while boxes or arrivals are on their way to it");
    }
    exit_cluster();
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
        const uint32_t transposed = lanes >> first | (first == 0 ? 0 : lanes << (32 - first));
        return threads_[w * 32 + (first + __builtin_ctz(transposed)) % 32].get();
    }
    return nullptr;
}

void Runner::go_on_with_another() {
    Thread* next = choose();
    while (next == nullptr) {
        if (!engine_.step(random_)) {
            if (cluster_ == nullptr) fail(deadlock());
            wait_for_news();
        }
        next = choose();
    }
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

}  // namespace emulator
