// cp.async: copies that one thread has started.
#pragma once

#include <cstdint>
#include <vector>

#include "random.h"

namespace emulator {

// A copy lands when its thread waits for its group, or at any moment before, or, if nobody ever waits for it, at any
// moment after: chance decides.
class Copies {
public:
    void start(void* to, const void* from, unsigned bytes) { copies_.push_back({to, from, bytes, committed_}); }
    void commit() { ++committed_; }
    // All but the `pending` newest groups that were committed.
    void wait(unsigned pending);
    // Some of them, in any order. `eagerness`: about this many of 8.
    void land_some(Random& random, unsigned eagerness);
    void land_all();
    void clear();

private:
    struct Copy {
        void* to;
        const void* from;  // null: zeros
        unsigned bytes;
        uint64_t group;
    };
    static void land(const Copy& copy);

    std::vector<Copy> copies_;
    uint64_t committed_ = 0;
};

}  // namespace emulator
