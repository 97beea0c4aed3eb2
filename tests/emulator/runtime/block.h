// One block of threads and its scheduler.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../include/register.h"
#include "cluster.h"
#include "copies.h"
#include "engine.h"
#include "fiber.h"
#include "random.h"
#include "wgmma.h"
#include "window.h"

namespace emulator {

struct Thread {
    Coordinates coordinates;
    Fiber fiber;
    unsigned index = 0;  // in the block
    const char* waits_in = nullptr;
    Site site{"", 0};  // of the last instruction that can wait
    Copies copies;
    bool arrived = false;  // at the cluster's barrier, in this round
    unsigned round = 0;
    unsigned registers = 0;
    std::vector<uint32_t> unpublished;  // mbarriers that it has initialised, and not fenced since

    unsigned lane() const { return index % 32; }
};

// An instruction that some lanes of a warp have reached, and others have not.
struct Together {
    const char* name;
    Site site;
    uint32_t mask = 0, arrived = 0;  // no lanes: not in use
    void* lanes[32];
};

struct Warp {
    uint32_t runnable = 0, finished = 0, exists = 0;  // lanes
    Together under_way[4];
    WgmmaPipeline wgmma;
};

struct Barrier {
    Site site;
    unsigned expected = 0, passed = 0;  // of them, those that did not wait
    std::vector<unsigned> arrived;      // threads that wait
};

// What a launch says of every block.
struct Launch {
    Kernel kernel;
    dim3 grid, block;
    unsigned dynamic_bytes;
    void* const* parameters;
    uint64_t seed;
    unsigned cluster = 1;  // blocks of one
    unsigned registers = 0;  // of a thread; none if nobody said
    bool cooperative = false;  // all blocks run at the same time; they are then as many as those of one cluster
    std::atomic<bool>* waits = nullptr;  // set by who waits for the launch before
};

// Runs blocks, one after the other, on the calling thread of the operating system.
class Runner {
public:
    Runner();
    ~Runner();

    // False if the block failed, for the reason that `failure` then holds.
    bool run(const Launch& launch, uint3 block_index, Cluster* cluster = nullptr, unsigned rank = 0);
    std::string failure;

    // For the running thread.
    void barrier(unsigned id, unsigned count, Site site);
    void together(const char* name, Site site, uint32_t mask, bool aligned, void* lane, Execute execute);
    void barrier_arrive(unsigned id, unsigned count, Site site);
    void wait_for(uint32_t mbarrier, Site site);
    void wake_waiting_for(uint32_t mbarrier);
    void resize_registers(unsigned registers, Site site);
    void progress();  // of what was started, by chance
    Engine& engine() { return engine_; }
    WgmmaPipeline& wgmma_pipeline() { return warps_[running_->index / 32].wgmma; }
    void send(unsigned to, uint32_t mbarrier, const std::function<void()>& land);
    void publish(const std::vector<uint32_t>& mbarriers);
    [[noreturn]] void fail(const std::string& what);
    Thread& running() { return *running_; }
    Random& random() { return random_; }
    bool in_stack_guard(const void* p) const;

    unsigned eagerness() const { return eagerness_; }
    const Window& window() const { return window_; }
    const Launch& launch() const { return *launch_; }
    Cluster* cluster() const { return cluster_; }
    unsigned rank() const { return rank_; }
    template <class Ready> void wait_for_cluster(const char* in, Site site, Ready ready);

private:
    static void enter();
    void prepare(const Launch& launch, uint3 block_index);
    void poison();
    void wait(const char* in, Site site);  // until somebody makes the running thread runnable again
    void give_way();                       // or not
    Barrier& arrive(unsigned id, unsigned count, Site site);
    void open(Barrier& barrier);
    void go_on_with_another();
    void wait_for_news();
    bool take_inbox(Cluster& cluster);
    void take_inbox();
    void join(bool joins);
    void exit_cluster();
    Thread* choose();
    void make_runnable(unsigned thread) { warps_[thread / 32].runnable |= 1u << thread % 32; }
    void finished();
    std::string deadlock() const;

    Fiber main_;
    Random random_{0};
    const Launch* launch_ = nullptr;
    std::vector<std::unique_ptr<Thread>> threads_;  // as many as were ever needed
    std::vector<Warp> warps_;
    std::vector<unsigned> order_;  // of warps: the first one with a runnable lane goes on
    std::vector<Barrier> barriers_;
    Thread* running_ = nullptr;
    unsigned free_registers_ = 0;               // that threads of the block have given back
    std::vector<unsigned> short_of_registers_;  // threads
    unsigned count_ = 0, unfinished_ = 0;
    Engine engine_;
    std::vector<std::pair<uint32_t, unsigned>> waiting_;  // mbarrier and thread
    Window window_{};
    unsigned eagerness_ = 0;  // of cp.async to land before it must
    unsigned char* stacks_ = nullptr;
    bool failed_ = false;
    Cluster* cluster_ = nullptr;
    unsigned rank_ = 0;
    std::vector<unsigned> parked_;  // threads that wait for another block
    uint64_t seen_ = 0;  // the cluster's version when the first of them looked
};

// The runner of the calling thread of the operating system while it runs a block.
extern thread_local __attribute__((tls_model("initial-exec"))) Runner* runner;

}  // namespace emulator
