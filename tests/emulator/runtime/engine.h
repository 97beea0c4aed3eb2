// What is on its way to a block: boxes that it has asked for, boxes and arrivals that other blocks send. And from it.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "random.h"

namespace emulator {

// Lands in any order, at any moment from when it was sent until nobody can go on without it.
class Engine {
public:
    void start(std::function<void()> land) { works_.push_back({NOBODY, false, std::move(land)}); }
    // That the thread may wait for, once it has committed it.
    void start_for(unsigned thread, std::function<void()> land) { works_.push_back({thread, false, std::move(land)}); }
    void commit(unsigned thread);
    void wait(unsigned thread);
    bool has_works(unsigned thread) const;
    bool empty() const { return works_.empty(); }
    // One of them, whichever; false if there is none.
    bool step(Random& random);

    // By address / 16: who wrote these bytes and has not fenced since.
    std::unordered_map<uint32_t, unsigned> unfenced;

private:
    static constexpr unsigned NOBODY = ~0u;
    struct Work {
        unsigned thread;
        bool committed;
        std::function<void()> land;
    };
    std::vector<Work> works_;
};

}  // namespace emulator
