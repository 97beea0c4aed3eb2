// Blocks that run at the same time, each on a thread of the operating system, and reach each other's shared memory.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace emulator {

class Runner;

struct Cluster {
    Cluster(unsigned blocks, unsigned threads) : blocks(blocks), threads(threads), members(blocks), inboxes(blocks) {}

    const unsigned blocks, threads;  // of all blocks
    std::mutex mutex;                // of all that follows
    std::condition_variable changed;
    uint64_t version = 0;  // of what a thread may wait for
    std::vector<Runner*> members;  // null: has not begun, or has returned
    std::vector<std::vector<std::function<void()>>> inboxes;  // what others have sent to each, and it has not seen
    std::set<std::pair<unsigned, uint32_t>> barriers;  // block and shared address of mbarriers that all may use
    unsigned arrived = 0, rounds = 0;  // of the barrier of all threads; who has exited has arrived
    unsigned exited = 0;
    unsigned asleep = 0;  // blocks in which nobody can go on, unless something has changed
    unsigned returned = 0;
    bool failed = false;

    void change() {
        ++version;
        asleep = 0;
        changed.notify_all();
    }
    void arrive() {
        if (++arrived < threads) return;
        arrived = exited;
        ++rounds;
        change();
    }
};

}  // namespace emulator
