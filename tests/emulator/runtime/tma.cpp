// The tensor memory accelerator.
#include "tma.h"

#include <cstring>
#include <functional>

#include "../include/hopper.h"
#include "block.h"

namespace emulator {

namespace {

struct Box {
    TensorMapImage map;
    int32_t origin[5];
    uint32_t shared;

    unsigned row_bytes() const { return map.box[0] * map.element_bytes; }
    // Swizzled rows are as long as the swizzle is wide, filled or not.
    unsigned pitch() const { return map.swizzle_bits == 0 ? row_bytes() : 16u << map.swizzle_bits; }
    unsigned rows() const {
        unsigned n = 1;
        for (unsigned d = 1; d < map.rank; ++d) n *= map.box[d];
        return n;
    }

    // Calls f(16 bytes of shared memory, the same of the tensor, begin, end) for all of the box; bytes begin to end of
    // the 16 are inside the tensor.
    template <class F> void for_each_chunk(F f) const {
        for (unsigned row = 0; row < rows(); ++row) {
            unsigned char* from = map.base;
            bool inside = true;
            for (unsigned d = 1, rest = row; d < map.rank; rest /= map.box[d], ++d) {
                const int64_t index = origin[d] + int64_t(rest % map.box[d]);
                inside &= index >= 0 && index <= map.last[d];
                from += index * int64_t(map.strides[d]);
            }
            for (unsigned byte = 0; byte < row_bytes(); byte += 16) {
                const int64_t at = origin[0] * int64_t(map.element_bytes) + byte;
                const int64_t end = (int64_t(map.last[0]) + 1) * map.element_bytes;
                const auto within = [](int64_t v) { return unsigned(v < 0 ? 0 : v > 16 ? 16 : v); };
                uint32_t to = shared + row * pitch() + byte;
                to ^= (to >> 7 & ((1u << map.swizzle_bits) - 1)) << 4;
                auto* const chunk = static_cast<unsigned char*>(shared_pointer(to, 16, 16));
                f(chunk, from + at, within(-at), inside ? within(end - at) : 0);
            }
        }
    }
};

Box box_of(uint32_t shared, const void* map, const int32_t* coordinates, unsigned rank) {
    Box box;
    memcpy(&box.map, map, sizeof(box.map));
    if (box.map.tag != TensorMapImage::TAG) fail("no tensor map, or none that was encoded");
    if (box.map.rank != rank) fail("an instruction of %u dimensions for a tensor map of %u", rank, box.map.rank);
    if (reinterpret_cast<uintptr_t>(map) % 64 != 0) fail("a tensor map that is not aligned to 64 bytes");
    memcpy(box.origin, coordinates, rank * sizeof(int32_t));
    if (box.origin[0] * int64_t(box.map.element_bytes) % 16 != 0) {
        fail("a box that begins between multiples of 16 bytes of a row");  // to an H200 an illegal instruction
    }
    box.shared = shared;
    shared_pointer(shared, box.rows() * box.pitch(), box.map.swizzle_bits == 0 ? 128 : 128u << box.map.swizzle_bits);
    return box;
}

// Ties away from zero; infinities and NaN stay what they are.
void round_to_tf32(unsigned char* chunk) {
    uint32_t bits[4];
    memcpy(bits, chunk, 16);
    for (uint32_t& word : bits) {
        if ((word & 0x7f800000u) != 0x7f800000u) word = (word + 0x1000u) & 0xffffe000u;
    }
    memcpy(chunk, bits, 16);
}

std::function<void()> landing(const Box& box, uint32_t barrier) {
    return [box, barrier] {
        box.for_each_chunk([&box](unsigned char* chunk, const unsigned char* from, unsigned begin, unsigned end) {
            memset(chunk, 0, 16);
            if (begin < end) memcpy(chunk + begin, from + begin, end - begin);
            if (box.map.rounds_to_tf32) round_to_tf32(chunk);
        });
        mbarrier_receive(barrier, box.rows() * box.row_bytes());
    };
}

}  // namespace

void bulk_load(uint32_t shared, const void* global, unsigned bytes, uint32_t barrier) {
    if (bytes == 0 || (bytes | reinterpret_cast<uintptr_t>(global)) % 16 != 0) {
        fail("a bulk copy of %u bytes from %p: neither may lie between multiples of 16", bytes, global);
    }
    void* const to = shared_pointer(shared, bytes, 16);
    runner->engine().start([=] {
        memcpy(to, global, bytes);
        mbarrier_receive(barrier, bytes);
    });
    runner->progress();
}

void tma_load(uint32_t shared, const void* map, uint32_t barrier, const int32_t* coordinates, unsigned rank) {
    runner->engine().start(landing(box_of(shared, map, coordinates, rank), barrier));
    runner->progress();
}

void tma_store(const void* map, uint32_t shared, const int32_t* coordinates, unsigned rank) {
    const Box box = box_of(shared, map, coordinates, rank);
    const auto& unfenced = runner->engine().unfenced;
    for (uint32_t at = shared / 16; at < (shared + box.rows() * box.pitch()) / 16; ++at) {
        if (unfenced.count(at)) fail("has the engine read shared memory that was written without fence.proxy.async since");
    }
    runner->engine().start_for(runner->running().index, [box] {
        box.for_each_chunk([](const unsigned char* chunk, unsigned char* to, unsigned begin, unsigned end) {
            if (begin < end) memcpy(to + begin, chunk + begin, end - begin);
        });
    });
    runner->progress();
}
void tma_store_commit() { runner->engine().commit(runner->running().index); }
void tma_store_wait_read() { runner->engine().wait(runner->running().index); }

void wrote_shared(uint32_t shared, unsigned bytes) {
    for (uint32_t at = shared / 16; at <= (shared + bytes - 1) / 16; ++at) {
        runner->engine().unfenced[at] = runner->running().index;
    }
}
void fence_async_proxy() {
    auto& unfenced = runner->engine().unfenced;
    for (auto it = unfenced.begin(); it != unfenced.end();) {
        it = it->second == runner->running().index ? unfenced.erase(it) : std::next(it);
    }
}

void tma_multicast(uint32_t shared, const void* map, uint32_t barrier, const int32_t* coordinates, unsigned rank,
                   unsigned blocks) {
    const auto land = landing(box_of(shared, map, coordinates, rank), barrier);
    if (blocks == 0 || blocks >> cluster_blocks() != 0) {
        fail("a multicast to blocks %#x of a cluster of %u", blocks, cluster_blocks());
    }
    for (unsigned to = 0; to < cluster_blocks(); ++to) {
        if (!(blocks >> to & 1)) continue;
        if (to == cluster_rank()) {
            runner->engine().start(land);
        } else {
            runner->send(to, barrier, land);
        }
    }
    runner->progress();
}

}  // namespace emulator
