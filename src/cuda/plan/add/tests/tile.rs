//! Where a transposed operand's tile lies in shared memory.

use crate::cuda::plan::host_cpp;

/// The header itself, compiled as plain C++: no two slots are one, and what a warp reads of a transposed operand's tile
/// meets each bank as seldom as the header says.
#[test]
fn the_tile_in_shared_memory() {
    let program = r#"
#include "transposed_tile.cuh"
#include <cstdio>
#include <set>
#include <map>
#include <utility>
template <int B> int passes(const std::set<int>& words) {
    std::map<int, int> banks; int worst = 0;
    for (int w : words) { int n = ++banks[w % 32]; worst = n > worst ? n : worst; }
    return worst;
}
template <int B> void tile() {
    using L = TransposedTile<B>;
    std::set<int> slots;
    for (int r = 0; r < L::ROWS; r += L::EACH) for (int c = 0; c < L::COLUMNS; ++c) slots.insert(L::vector_at(r, c));
    bool whole = (int)slots.size() == L::VECTORS && *slots.begin() == 0 && *slots.rbegin() == L::VECTORS - 1;
    auto words = [](std::set<int>& to, int r, int c) {
        int byte = L::vector_at(r, c) * 16 + r % L::EACH * B;
        for (int b = 0; b < B; b += 4) to.insert((byte + b) / 4);
    };
    int vectors = 0, singles = 0, threads = 256;
    std::set<std::pair<int, int>> made;
    for (int warp = 0; warp < threads; warp += 32) for (int i = 0; i < L::VECTORS / threads; ++i) {
        for (int t = warp; t < warp + 32; ++t) made.insert({L::template row_of<256>(t, i), L::template column_of<256>(t, i)});
        // A matrix is read at once, a row of it by 16 bytes; else an element of each vector.
        for (int k = 0; k < (L::MATRICES ? 4 : L::EACH); ++k) {
            std::set<int> read;
            for (int t = warp; t < warp + 32; ++t) {
                if (!L::MATRICES) { words(read, L::template row_of<256>(t, i), L::template column_of<256>(t, i) + k); continue; }
                if (t % 32 / 8 != k) continue;
                int slot = L::template matrix_row<256>(t, i);
                for (int w = 0; w < 4; ++w) read.insert(slot * 4 + w);
                // It gives words k of the vectors of a row, two columns each.
                int first = warp + t % 8 / 2;
                int row = L::template row_of<256>(first, i), column = L::template column_of<256>(first, i) + 2 * k + t % 2;
                whole = whole && slot == L::vector_at(row, column) && row % L::EACH == 0;
            }
            int n = passes<B>(read); vectors = n > vectors ? n : vectors;
        }
    }
    whole = whole && (int)made.size() == L::VECTORS;
    for (auto [r, c] : made) whole = whole && r < L::ROWS && c < L::COLUMNS && c % L::EACH == 0;
    for (int warp = 0; warp < L::ROWS * L::COLUMNS; warp += 32) {
        std::set<int> read;
        for (int i = warp; i < warp + 32; ++i) words(read, i / L::COLUMNS, i % L::COLUMNS);
        int n = passes<B>(read); singles = n > singles ? n : singles;
    }
    printf("%d %d %d %d\n", B, whole, vectors, singles);
}
int main() { tile<1>(); tile<2>(); tile<4>(); tile<8>(); }
"#;
    let Some(printed) = host_cpp::run(program) else { return };
    assert_eq!(printed.lines().collect::<Vec<_>>(), ["1 1 1 4", "2 1 1 4", "4 1 2 4", "8 1 4 4"]);
}
