#include "launch.h"

#include <atomic>
#include <mutex>
#include <thread>

#include "faults.h"

namespace emulator {

std::map<std::string, KernelState>& kernels() {
    static std::map<std::string, KernelState> all;
    return all;
}

void add_kernel(const Kernel& kernel) { kernels()[kernel.name].kernel = kernel; }

namespace {

// Runners keep their stacks, and so are kept.
std::mutex idle_mutex;
std::vector<std::unique_ptr<Runner>> idle;

std::unique_ptr<Runner> take_runner() {
    const std::lock_guard lock(idle_mutex);
    if (idle.empty()) return std::make_unique<Runner>();
    auto runner = std::move(idle.back());
    idle.pop_back();
    return runner;
}

}  // namespace

// One cluster after the other, its blocks on a thread of the operating system each.
static std::string run_clusters(const Launch& launch) {
    const unsigned clusters = launch.grid.x / launch.cluster;
    const uint64_t all = uint64_t(clusters) * launch.grid.y * launch.grid.z;
    const unsigned threads = launch.block.x * launch.block.y * launch.block.z;
    const HandlersInstalled handlers;
    for (uint64_t i = 0; i < all; ++i) {
        const uint64_t c = launch.seed % 2 ? all - 1 - i : i;
        Cluster cluster(launch.cluster, launch.cluster * threads);
        std::mutex failure_mutex;
        std::string failure;
        const auto work = [&](unsigned rank) {
            const FaultsReported faults;
            auto runner = take_runner();
            const uint3 index = {unsigned(c % clusters) * launch.cluster + rank, unsigned(c / clusters % launch.grid.y),
                                 unsigned(c / clusters / launch.grid.y)};
            if (!runner->run(launch, index, &cluster, rank)) {
                const std::lock_guard lock(failure_mutex);
                // The other blocks only fail because one has.
                if (failure.empty() || failure.find("another block") != failure.npos) failure = runner->failure;
            }
            const std::lock_guard lock(idle_mutex);
            idle.push_back(std::move(runner));
        };
        std::vector<std::thread> workers;
        for (unsigned rank = 1; rank < launch.cluster; ++rank) workers.emplace_back(work, rank);
        work(0);
        for (std::thread& worker : workers) worker.join();
        if (!failure.empty()) return failure;
    }
    return {};
}

std::string run_grid(const Launch& launch) {
    if (launch.cluster > 1 || launch.cooperative) return run_clusters(launch);
    const dim3 grid = launch.grid;
    const uint64_t blocks = uint64_t(grid.x) * grid.y * grid.z;
    std::atomic<uint64_t> taken{0};
    std::atomic<bool> failed{false};
    std::mutex failure_mutex;
    std::string failure;

    // No kernel may rely on the order of its blocks.
    const bool backwards = Random(launch.seed).one_in(2);
    const auto work = [&] {
        const FaultsReported faults;
        auto runner = take_runner();
        for (uint64_t i; !failed && (i = taken++) < blocks;) {
            const uint64_t b = backwards ? blocks - 1 - i : i;
            const uint3 index = {unsigned(b % grid.x), unsigned(b / grid.x % grid.y), unsigned(b / grid.x / grid.y)};
            if (runner->run(launch, index)) continue;
            const std::lock_guard lock(failure_mutex);
            if (!failed.exchange(true)) failure = runner->failure;
        }
        const std::lock_guard lock(idle_mutex);
        idle.push_back(std::move(runner));
    };

    const HandlersInstalled handlers;
    const unsigned helpers = std::min<uint64_t>(std::thread::hardware_concurrency(), blocks / 2);
    std::vector<std::thread> threads;
    for (unsigned i = 1; i < helpers; ++i) threads.emplace_back(work);
    work();
    for (std::thread& thread : threads) thread.join();
    return failure;
}

}  // namespace emulator
