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

std::string run_grid(const Launch& launch) {
    const dim3 grid = launch.grid;
    const uint64_t blocks = uint64_t(grid.x) * grid.y * grid.z;
    std::atomic<uint64_t> taken{0};
    std::atomic<bool> failed{false};
    std::mutex failure_mutex;
    std::string failure;

    const auto work = [&] {
        const FaultsReported faults;
        auto runner = take_runner();
        for (uint64_t i; !failed && (i = taken++) < blocks;) {
            // No kernel may rely on the order of its blocks: half of the grids are run from the end.
            const uint64_t b = launch.seed % 2 ? blocks - 1 - i : i;
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
