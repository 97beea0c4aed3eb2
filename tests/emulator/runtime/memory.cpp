#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>

namespace emulator {

namespace {

constexpr std::size_t PAGE = 4096;
constexpr unsigned char UNWRITTEN = 0xff, BESIDE = 0xfe;

struct Allocation {
    unsigned char* pages;  // the first one is forbidden, as is the last
    std::size_t page_bytes, bytes;
    bool sealed = false;
};
std::mutex mutex;
std::map<unsigned char*, Allocation> allocations;

}  // namespace

void* allocate(std::size_t bytes, unsigned residue, bool at_end) {
    const std::size_t inner = (bytes + 16 + PAGE - 1) / PAGE * PAGE;
    const std::size_t page_bytes = inner + 2 * PAGE;
    void* const mapped = mmap(nullptr, page_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    auto* const pages = static_cast<unsigned char*>(mapped);
    unsigned char* const first = pages + PAGE;
    mprotect(first, inner, PROT_READ | PROT_WRITE);
    memset(first, BESIDE, inner);
    unsigned char* p = first + residue;
    if (at_end) {
        p = first + inner - bytes;
        p -= (reinterpret_cast<uintptr_t>(p) - residue) % 16;
    }
    memset(p, UNWRITTEN, bytes);
    const std::lock_guard lock(mutex);
    allocations[p] = {pages, page_bytes, bytes};
    return p;
}

bool free_memory(void* p) {
    const std::lock_guard lock(mutex);
    const auto found = allocations.find(static_cast<unsigned char*>(p));
    if (found == allocations.end()) return false;
    const auto& [pages, page_bytes, bytes, sealed] = found->second;
    const auto untouched = [](unsigned char c) { return c == BESIDE; };
    const bool intact = std::all_of(pages + PAGE, found->first, untouched) &&
                        std::all_of(found->first + bytes, pages + page_bytes - PAGE, untouched);
    munmap(pages, page_bytes);
    allocations.erase(found);
    return intact;
}

void seal(void* p) {
    const std::lock_guard lock(mutex);
    const auto found = allocations.find(static_cast<unsigned char*>(p));
    if (found == allocations.end()) return;
    Allocation& a = found->second;
    mprotect(a.pages + PAGE, a.page_bytes - 2 * PAGE, PROT_READ);
    a.sealed = true;
}

std::string describe(const void* p) {
    const auto at = static_cast<const unsigned char*>(p);
    const std::lock_guard lock(mutex);
    for (const auto& [begin, a] : allocations) {
        if (at < a.pages || at >= a.pages + a.page_bytes) continue;
        const std::string whole = "an allocation of " + std::to_string(a.bytes) + " bytes";
        if (at < begin) return std::to_string(begin - at) + " bytes before " + whole;
        if (at >= begin + a.bytes) return std::to_string(at - begin - a.bytes) + " bytes behind " + whole;
        return "byte " + std::to_string(at - begin) + " of " + whole + (a.sealed ? ", which is only read" : "");
    }
    return "in no allocation";
}

}  // namespace emulator
