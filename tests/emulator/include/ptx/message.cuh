// Stands in for kernels/common/ptx/message.cuh.
#pragma once

#include "emulator.h"

namespace ptx {

inline void send_message(void* to, uint64_t word, uint64_t tag) { emulator::message_send(to, word, tag); }
inline uint64_t wait_for_message(const void* at, uint64_t tag, emulator::Site site = emulator::Site::here()) {
    return emulator::message_wait(at, tag, site);
}

}  // namespace ptx
