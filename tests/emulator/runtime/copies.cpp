#include "copies.h"

#include <algorithm>
#include <cstring>

namespace emulator {

void Copies::land(const Copy& copy) {
    if (copy.from == nullptr) {
        memset(copy.to, 0, copy.bytes);
    } else {
        memcpy(copy.to, copy.from, copy.bytes);
    }
}

void Copies::wait(unsigned pending) {
    const uint64_t done = committed_ > pending ? committed_ - pending : 0;
    const auto rest = std::stable_partition(copies_.begin(), copies_.end(), [&](const Copy& c) { return c.group < done; });
    std::for_each(copies_.begin(), rest, land);
    copies_.erase(copies_.begin(), rest);
}

void Copies::land_some(Random& random, unsigned eagerness) {
    if (copies_.empty() || eagerness == 0) return;
    const auto rest = std::partition(copies_.begin(), copies_.end(), [&](const Copy&) { return random.below(8) < eagerness; });
    std::for_each(copies_.begin(), rest, land);
    copies_.erase(copies_.begin(), rest);
}

void Copies::land_all() {
    std::for_each(copies_.begin(), copies_.end(), land);
    copies_.clear();
}

void Copies::clear() {
    copies_.clear();
    committed_ = 0;
}

}  // namespace emulator
