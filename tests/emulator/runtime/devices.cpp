#include "devices.h"

#include <cstdlib>
#include <cstring>

namespace emulator {

namespace {

constexpr std::size_t GB = std::size_t(1) << 30;
constexpr Device DEVICES[] = {
    {"h200", "NVIDIA H200 (emulated)", 9, 0, 132, 2048, 32, 233472, 232448, 60 << 20, 141 * GB},
    {"a100", "NVIDIA A100-SXM4-80GB (emulated)", 8, 0, 108, 2048, 32, 167936, 166912, 40 << 20, 80 * GB},
    {"l4", "NVIDIA L4 (emulated)", 8, 9, 58, 1536, 24, 102400, 101376, 48 << 20, 24 * GB},
    {"b200", "NVIDIA B200 (emulated)", 10, 0, 148, 2048, 32, 233472, 232448, 126 << 20, 180 * GB},
    {"rtx5090", "NVIDIA GeForce RTX 5090 (emulated)", 12, 0, 170, 1536, 24, 102400, 101376, 96 << 20, 32 * GB},
    {"t4", "Tesla T4 (emulated)", 7, 5, 40, 1024, 16, 65536, 65536, 4 << 20, 16 * GB},
};

const char* from_environment(const char* variable, const char* otherwise) {
    const char* value = getenv(variable);
    return value == nullptr || *value == 0 ? otherwise : value;
}

}  // namespace

const Device* device() {
    static const Device* const chosen = []() -> const Device* {
        const char* key = from_environment("TILEWISE_EMULATED_DEVICE", "h200");
        for (const Device& known : DEVICES) {
            if (strcmp(known.key, key) != 0) continue;
            static Device device = known;
            const int multiprocessors = atoi(from_environment("TILEWISE_EMULATED_MULTIPROCESSORS", "0"));
            if (multiprocessors > 0) device.multiprocessors = multiprocessors;
            return &device;
        }
        return nullptr;
    }();
    return chosen;
}

unsigned usable_multiprocessors() {
    const int part = atoi(from_environment("TILEWISE_EMULATED_PARTITION", "0"));
    return part > 0 ? part : device()->multiprocessors;
}

}  // namespace emulator
