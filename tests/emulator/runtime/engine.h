// What a block has asked for and does not wait for yet: boxes on their way, and bytes that it wrote but has not fenced.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "random.h"

namespace emulator {

// Boxes are copied in any order, at any moment from when they are asked for until somebody waits for them.
class Engine {
public:
    void load(std::function<void()> copy) { works_.push_back({LOAD, 0, std::move(copy)}); }
    void store(unsigned thread, std::function<void()> copy) { works_.push_back({thread, groups_[thread], std::move(copy)}); }
    void commit(unsigned thread) { ++groups_[thread]; }
    // All stores of the thread but those of its `pending` newest groups.
    void wait(unsigned thread, unsigned pending);
    bool has_stores(unsigned thread) const;
    bool empty() const { return works_.empty(); }

    // One box, whichever; false if there is none.
    bool step(Random& random);

    // By address / 16: who wrote these bytes and has not fenced since.
    std::unordered_map<uint32_t, unsigned> unfenced;

private:
    static constexpr unsigned LOAD = ~0u;
    struct Work {
        unsigned thread;
        uint64_t group;
        std::function<void()> copy;
    };
    std::vector<Work> works_;
    std::unordered_map<unsigned, uint64_t> groups_;  // that each thread has committed
};

}  // namespace emulator
