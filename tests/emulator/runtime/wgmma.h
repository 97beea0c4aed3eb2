// The products that one warp has started.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "../include/hopper.h"

namespace emulator {

class WgmmaPipeline {
public:
    void issue(const WarpgroupProduct (&lanes)[32]);
    void fence() { fenced_ = true; }
    void commit() { ++groups_; }
    // Does all but the `pending` newest groups, and gives back the accumulators that nothing is done to any more.
    void wait(unsigned pending, unsigned place);
    // Does the oldest; `place` is the warp's in its warpgroup.
    void step(unsigned place);
    bool empty() const { return works_.empty(); }

private:
    struct Work {
        WarpgroupProduct product;
        uint64_t group;
        std::vector<double> a;  // 16 rows, if they are in registers
    };
    struct Accumulators {
        float* lanes[32];
        unsigned columns;
        std::vector<float> values;  // 16 rows
        // Of register i of a lane.
        unsigned place(unsigned lane, unsigned i) const {
            return (lane / 4 + i / 2 % 2 * 8) * columns + i / 4 * 8 + lane % 4 * 2 + i % 2;
        }
    };
    std::deque<Work> works_;
    std::map<float*, Accumulators> accumulators_;  // under way, by lane 0's
    uint64_t groups_ = 0;
    bool fenced_ = false;
};

}  // namespace emulator
