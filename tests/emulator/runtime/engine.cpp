#include "engine.h"

namespace emulator {

bool Engine::step(Random& random) {
    if (works_.empty()) return false;
    std::swap(works_[random.below(works_.size())], works_.back());
    const auto land = std::move(works_.back());
    works_.pop_back();
    land();
    return true;
}

}  // namespace emulator
