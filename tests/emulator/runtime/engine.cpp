#include "engine.h"

#include <algorithm>

namespace emulator {

bool Engine::step(Random& random) {
    if (works_.empty()) return false;
    std::swap(works_[random.below(works_.size())], works_.back());
    const Work work = std::move(works_.back());
    works_.pop_back();
    work.copy();
    return true;
}

void Engine::wait(unsigned thread, unsigned pending) {
    const uint64_t committed = groups_[thread];
    const uint64_t done = committed > pending ? committed - pending : 0;
    const auto ready = [&](const Work& w) { return w.thread == thread && w.group < done; };
    std::vector<Work> now;
    std::copy_if(works_.begin(), works_.end(), std::back_inserter(now), ready);
    works_.erase(std::remove_if(works_.begin(), works_.end(), ready), works_.end());
    for (const Work& work : now) work.copy();
}

bool Engine::has_stores(unsigned thread) const {
    return std::any_of(works_.begin(), works_.end(), [&](const Work& w) { return w.thread == thread; });
}

}  // namespace emulator
