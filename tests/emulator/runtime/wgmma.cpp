// Warpgroup products. Each warp does its own 16 rows of the 64, at the wait for them or at a random moment before; while
// they are under way, the accumulators hold NaN.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "../include/hopper.h"
#include "block.h"
#include "numbers.h"

namespace emulator {

namespace {

// Elements of k of a product: 32 bytes.
constexpr unsigned k_of(Element element) { return element == Element::tf32 ? 8 : 16; }

// The fields of a 64-bit description of a tile.
struct Tile {
    uint32_t start, leading, stride;  // bytes

    explicit Tile(uint64_t bits)
        : start((bits & 0x3fff) << 4), leading((bits >> 16 & 0x3fff) << 4), stride((bits >> 32 & 0x3fff) << 4) {
        if (bits >> 62 != 1) fail("a tile without the swizzle of 128 bytes, which is all that the emulator knows");
        if (bits >> 49 & 7) fail("a tile with a base offset, which the emulator does not know");
    }

    // Elements (mn, k), as numbers: out[mn * mn_step + k * k_step], for `count` of mn from `first` on.
    void read(bool mn_major, Element element, unsigned first, unsigned count, double* out, unsigned mn_step,
              unsigned k_step) const {
        if (element == Element::tf32) {
            if (mn_major) fail("a tile of floats that is not K-major");
            read_as<uint32_t>(false, element, first, count, out, mn_step, k_step, [](auto bits) { return of_tf32(bits); });
        } else if (element == Element::bf16) {
            read_as<uint16_t>(mn_major, element, first, count, out, mn_step, k_step, [](auto bits) { return of_bf16(bits); });
        } else {
            read_as<uint16_t>(mn_major, element, first, count, out, mn_step, k_step, [](auto bits) { return of_f16(bits); });
        }
    }

private:
    // A row of 128 bytes is of k, or of mn: 16 bytes at a time.
    template <class Bits, class Convert>
    void read_as(bool mn_major, Element element, unsigned first, unsigned count, double* out, unsigned mn_step,
                 unsigned k_step, Convert convert) const {
        constexpr unsigned EACH = 16 / sizeof(Bits);
        const auto chunk = [&](uint32_t at, double* to, unsigned step) {
            at ^= (at >> 7 & 7) << 4;
            Bits bits[EACH];
            memcpy(bits, shared_pointer(at, 16, 16), 16);
            for (unsigned i = 0; i < EACH; ++i) to[i * step] = convert(bits[i]);
        };
        const unsigned K = k_of(element);
        if (mn_major) {
            for (unsigned k = 0; k < K; ++k) {
                for (unsigned mn = first; mn < first + count; mn += EACH) {
                    const uint32_t at = start + mn / 64 * leading + k / 8 * stride + k % 8 * 128 + mn % 64 * sizeof(Bits);
                    chunk(at, out + (mn - first) * mn_step + k * k_step, mn_step);
                }
            }
            return;
        }
        for (unsigned mn = first; mn < first + count; ++mn) {
            for (unsigned k = 0; k < K; k += EACH) {
                const uint32_t at = start + mn / 8 * stride + mn % 8 * 128 + k * sizeof(Bits);
                chunk(at, out + (mn - first) * mn_step + k * k_step, k_step);
            }
        }
    }
};

}  // namespace

// Of one warp, whose place in its warpgroup is `place`.
void WgmmaPipeline::issue(const WarpgroupProduct (&lanes)[32]) {
    const WarpgroupProduct& p = lanes[0];
    auto& d = accumulators_[p.d];
    if (d.values.empty()) {
        if (!fenced_) fail("starts a wgmma without a wgmma.fence since it could look at its accumulators");
        d.columns = p.n;
        d.values.resize(16 * p.n);
        for (unsigned lane = 0; lane < 32; ++lane) {
            d.lanes[lane] = lanes[lane].d;
            for (unsigned i = 0; i < p.n / 2; ++i) {
                d.values[d.place(lane, i)] = lanes[lane].d[i];
                lanes[lane].d[i] = NAN;
            }
        }
    }
    std::vector<double> a;
    const unsigned K = k_of(p.element), each = K / 8;  // neighbours in a register
    for (unsigned i = 0; p.a_in_registers && i < 16 * K; ++i) {
        const unsigned row = i / K, k = i % K / each, half = i % each;
        const uint32_t word = lanes[row % 8 * 4 + k % 4].a_registers[row / 8 + k / 4 * 2];
        a.push_back(p.element == Element::tf32 ? of_tf32(word) : of_bf16(uint16_t(word >> half * 16)));
    }
    works_.push_back({p, groups_, a});
}

void WgmmaPipeline::step(unsigned place) {
    if (works_.empty()) return;
    const auto [p, group, registers] = std::move(works_.front());
    works_.pop_front();
    constexpr unsigned STEP = 256 + 8;  // from k to k: the columns of a tile, and a line lest they share a cache's set
    // On the heap: a kernel's thread has a small stack.
    thread_local std::vector<double> b(16 * STEP), tile(16 * 16);
    const unsigned K = k_of(p.element);
    const double* a = registers.data();
    if (registers.empty()) {
        Tile(p.a).read(p.a_mn_major, p.element, place * 16, 16, tile.data(), K, 1);
        a = tile.data();
    }
    Tile(p.b).read(p.b_mn_major, p.element, 0, p.n, b.data(), 1, STEP);
    float* const values = accumulators_[p.d].values.data();
    for (unsigned first = 0; first < p.n; first += 8) {
        double sums[16][8] = {};
        add_products(a, b.data() + first, STEP, K, sums);
        for (unsigned row = 0; row < 16; ++row) {
            float* const d = values + row * p.n + first;
            for (unsigned i = 0; i < 8; ++i) d[i] = float((p.accumulate ? double(d[i]) : 0.0) + sums[row][i]);
        }
    }
}

void WgmmaPipeline::wait(unsigned pending, unsigned place) {
    while (!works_.empty() && works_.front().group + pending < groups_) step(place);
    for (auto it = accumulators_.begin(); it != accumulators_.end();) {
        auto& [key, d] = *it;
        bool busy = false;
        for (const Work& work : works_) busy |= work.product.d == key;
        if (busy) {
            ++it;
            continue;
        }
        for (unsigned lane = 0; lane < 32; ++lane) {
            for (unsigned i = 0; i < d.columns / 2; ++i) d.lanes[lane][i] = d.values[d.place(lane, i)];
        }
        it = accumulators_.erase(it);
    }
    fenced_ = false;
}

// ------------------------------------------------------------------------------------- what device code calls

void wgmma(const WarpgroupProduct& product, Site site) {
    WarpgroupProduct mine = product;
    together("wgmma", site, ~0u, true, &mine, [](void* const(&lanes)[32], uint32_t) {
        WarpgroupProduct products[32];
        for (unsigned lane = 0; lane < 32; ++lane) {
            products[lane] = *static_cast<WarpgroupProduct*>(lanes[lane]);
            if (products[lane].a != products[0].a || products[lane].b != products[0].b ||
                products[lane].accumulate != products[0].accumulate) {
                fail("the lanes of a warp describe different tiles to a wgmma");
            }
        }
        runner->wgmma_pipeline().issue(products);
    });
    runner->progress();
}
void wgmma_fence(Site site) {
    together("wgmma.fence", site, ~0u, true, nullptr,
             [](void* const(&)[32], uint32_t) { runner->wgmma_pipeline().fence(); });
}
void wgmma_commit(Site site) {
    together("wgmma.commit_group", site, ~0u, true, nullptr,
             [](void* const(&)[32], uint32_t) { runner->wgmma_pipeline().commit(); });
}
void wgmma_wait(unsigned pending, Site site) {
    together("wgmma.wait_group", site, ~0u, true, &pending, [](void* const(&lanes)[32], uint32_t) {
        runner->wgmma_pipeline().wait(*static_cast<unsigned*>(lanes[0]), runner->running().index / 32 % 4);
    });
}

}  // namespace emulator
