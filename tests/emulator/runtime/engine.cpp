#include "engine.h"

#include <algorithm>

namespace emulator {

bool Engine::step(Random& random) {
    if (works_.empty()) return false;
    std::swap(works_[random.below(works_.size())], works_.back());
    const auto land = std::move(works_.back().land);
    works_.pop_back();
    land();
    return true;
}

void Engine::commit(unsigned thread) {
    for (Work& work : works_) work.committed |= work.thread == thread;
}

void Engine::wait(unsigned thread) {
    const auto others = [&](const Work& work) { return work.thread != thread || !work.committed; };
    const auto own = std::stable_partition(works_.begin(), works_.end(), others);
    const std::vector<Work> now(std::make_move_iterator(own), std::make_move_iterator(works_.end()));
    works_.erase(own, works_.end());
    for (const Work& work : now) work.land();
}

bool Engine::has_works(unsigned thread) const {
    return std::any_of(works_.begin(), works_.end(), [&](const Work& work) { return work.thread == thread; });
}

}  // namespace emulator
