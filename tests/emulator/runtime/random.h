// Cheap random numbers that repeat from run to run.
#pragma once

#include <cstdint>

namespace emulator {

class Random {
public:
    explicit Random(uint64_t seed) : state_((seed + 1) * 0x9e3779b97f4a7c15u) { next(); }

    uint32_t next() {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 7;
        state_ ^= state_ << 17;
        return static_cast<uint32_t>(state_ >> 32);
    }
    uint32_t below(uint32_t n) { return static_cast<uint32_t>((uint64_t(next()) * n) >> 32); }
    bool one_in(uint32_t n) { return below(n) == 0; }

private:
    uint64_t state_;
};

}  // namespace emulator
