// What is on its way to a block: boxes that it has asked for, boxes and arrivals that other blocks send.
#pragma once

#include <functional>
#include <vector>

#include "random.h"

namespace emulator {

// Lands in any order, at any moment from when it was sent until nobody can go on without it.
class Engine {
public:
    void start(std::function<void()> land) { works_.push_back(std::move(land)); }
    bool empty() const { return works_.empty(); }
    // One of them, whichever; false if there is none.
    bool step(Random& random);

private:
    std::vector<std::function<void()>> works_;
};

}  // namespace emulator
