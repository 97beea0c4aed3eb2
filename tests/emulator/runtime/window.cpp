#include "window.h"

#include <link.h>

#include <map>

#include "block.h"

namespace emulator {

namespace {

// Nothing lies at address 0. A multiple of what the largest swizzle pattern repeats after.
constexpr uint32_t FIRST_ADDRESS = 1024;

struct Search {
    uintptr_t code;
    Window found;
};

int find_module(dl_phdr_info* info, size_t, void* data) {
    auto& search = *static_cast<Search*>(data);
    bool ours = false;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto& segment = info->dlpi_phdr[i];
        const uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
        ours |= segment.p_type == PT_LOAD && search.code >= begin && search.code < begin + segment.p_memsz;
    }
    if (!ours) return 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto& segment = info->dlpi_phdr[i];
        if (segment.p_type != PT_TLS) continue;
        search.found.begin = static_cast<unsigned char*>(info->dlpi_tls_data);
        search.found.bytes = segment.p_memsz;
    }
    return 1;
}

}  // namespace

Window window_of(const Kernel& kernel) {
    thread_local std::map<unsigned char* (*)(), Window> known;
    const auto [entry, is_new] = known.try_emplace(kernel.dynamic);
    if (is_new) {
        unsigned char* const dynamic = kernel.dynamic();  // also makes the thread's variables exist
        Search search = {reinterpret_cast<uintptr_t>(kernel.dynamic), {}};
        dl_iterate_phdr(find_module, &search);
        entry->second = {search.found.begin, search.found.bytes, dynamic};
    }
    return entry->second;
}

uint32_t shared_address(const void* p) {
    const Window& window = runner->window();
    const auto at = static_cast<const unsigned char*>(p);
    if (at < window.begin || at > window.begin + window.bytes) fail("%p is no address of shared memory", p);
    return static_cast<uint32_t>(at - window.begin) + FIRST_ADDRESS;
}

void* shared_pointer(uint32_t address, unsigned bytes, unsigned alignment) {
    const Window& window = runner->window();
    const std::size_t offset = address - std::size_t(FIRST_ADDRESS);
    if (address < FIRST_ADDRESS || offset + bytes > window.bytes) {
        fail("shared address %#x does not lie in the block's shared memory", address);
    }
    if (address % alignment != 0) fail("shared address %#x is not aligned to %u bytes", address, alignment);
    unsigned char* const p = window.begin + offset;
    if (p >= window.dynamic && p < window.dynamic + DYNAMIC_BYTES &&
        p + bytes > window.dynamic + runner->launch().dynamic_bytes) {
        fail("shared address %#x lies %ld bytes into the %u bytes of dynamic shared memory", address,
             long(p - window.dynamic), runner->launch().dynamic_bytes);
    }
    return p;
}

void check_global(const void* p, unsigned bytes) {
    if (reinterpret_cast<uintptr_t>(p) % bytes != 0) fail("%p is not aligned to the %u bytes of the access", p, bytes);
    const Window& window = runner->window();
    const auto at = static_cast<const unsigned char*>(p);
    if (at >= window.begin && at < window.begin + window.bytes) fail("%p lies in shared, not in global memory", p);
}

}  // namespace emulator
