//! The order in which a matmul's blocks visit the tiles of the result. The twin of
//! kernels/common/tile_order.cuh.

use std::collections::HashSet;

use super::index::Divisor;

/// Row and column of a tile.
pub type Tile = (u32, u32);

/// Kernels find the tiles of one matrix by numbers below it.
pub const MOST_TILES: u64 = 1 << 31;

/// Bands of `group_m` rows of tiles, each band walked down its columns: blocks that run at the same time
/// then share both rows of a and columns of b in L2. The last band may have fewer rows.
/// Needs `pid < num_m * num_n` and `1 <= group_m <= num_m`.
pub fn tile_at(pid: u32, num_m: u32, num_n: u32, group_m: u32) -> Tile {
    // A band of many columns has more tiles than pids count.
    let num_in_group = u64::from(group_m) * u64::from(num_n);
    let first_m = (u64::from(pid) / num_in_group) as u32 * group_m;
    let group_size = group_m.min(num_m - first_m);
    let in_group = (u64::from(pid) % num_in_group) as u32;
    (first_m + in_group % group_size, in_group / group_size)
}

/// How many tiles there are, and what a kernel needs to find the one of a pid: `TileOrder` of the twin.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileOrder {
    by_band: Divisor,
    by_rows: Divisor,
    by_last_rows: Divisor,
    pub tiles_m: u32,
    pub tiles_n: u32,
    pub group_m: u32,
    unused: u32,
}

const _: () = assert!(size_of::<TileOrder>() == 64);

impl TileOrder {
    /// Needs `1 <= group_m <= tiles_m`.
    pub fn new(tiles_m: u32, tiles_n: u32, group_m: u32) -> TileOrder {
        let by = |tiles: u64| Divisor::new(tiles.clamp(1, MOST_TILES));
        let last_rows = (tiles_m - 1) % group_m + 1;
        TileOrder {
            by_band: by(u64::from(group_m) * u64::from(tiles_n)),
            by_rows: by(group_m.into()),
            by_last_rows: by(last_rows.into()),
            tiles_m,
            tiles_n,
            group_m,
            unused: 0,
        }
    }

    /// By name, as plans print it.
    pub fn settings(&self) -> [(&'static str, u64); 3] {
        [("tiles_m", self.tiles_m), ("tiles_n", self.tiles_n), ("group_m", self.group_m)]
            .map(|(name, value)| (name, u64::from(value)))
    }
}

/// How many rows of tiles to band together when `concurrent` blocks run at the same time: as many as make
/// the rows of a plus the columns of b that those blocks read, tile_m high and tile_n wide, the fewest.
pub fn group_m(num_m: u32, num_n: u32, (tile_m, tile_n): (u32, u32), concurrent: u32) -> u32 {
    let footprint = |group: u32| {
        // Blocks beyond the end of a band are in the next.
        let rows = group.max(concurrent.div_ceil(num_n)).min(num_m);
        let columns = concurrent.div_ceil(rows).min(num_n);
        u64::from(rows) * u64::from(tile_m) + u64::from(columns) * u64::from(tile_n)
    };
    [8, 16, 4, 2, 1].into_iter().min_by_key(|&group| footprint(group)).unwrap_or(8).min(num_m)
}

/// How many rows of tiles of a, and columns of tiles of b, the first `concurrent` blocks read between them.
pub fn strips_read(num_m: u32, num_n: u32, group_m: u32, concurrent: u32) -> (u64, u64) {
    let blocks = u64::from(concurrent).min(u64::from(num_m) * u64::from(num_n)) as u32;
    let tiles = (0..blocks).map(|pid| tile_at(pid, num_m, num_n, group_m));
    let (rows, columns): (HashSet<u32>, HashSet<u32>) = tiles.unzip();
    (rows.len() as u64, columns.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    use crate::cuda::plan::host_cpp;

    /// (num_m, num_n, group_m)
    fn cases() -> Vec<(u32, u32, u32)> {
        let mut cases = vec![(1, 70_000, 1), (70_000, 1, 8), (257, 129, 16), (100, 7, 100)];
        for num_m in 1..=19 {
            for num_n in [1, 2, 3, 5, 8, 13] {
                cases.extend((1..=num_m).map(|group_m| (num_m, num_n, group_m)));
            }
        }
        cases
    }

    #[test]
    fn every_tile_is_visited_once() {
        for (num_m, num_n, group_m) in cases() {
            let seen: HashSet<Tile> =
                (0..num_m * num_n).map(|pid| tile_at(pid, num_m, num_n, group_m)).collect();
            assert_eq!(seen.len() as u32, num_m * num_n, "{num_m} x {num_n} by {group_m}");
            assert!(seen.iter().all(|&(m, n)| m < num_m && n < num_n), "{num_m} x {num_n} by {group_m}");
        }
    }

    #[test]
    fn bands_are_walked_down_their_columns() {
        // Ten rows in bands of four: the last has two.
        let first: Vec<Tile> = (0..6).map(|pid| tile_at(pid, 10, 8, 4)).collect();
        assert_eq!(first, [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (1, 1)]);
        let last: Vec<Tile> = (64..68).map(|pid| tile_at(pid, 10, 8, 4)).collect();
        assert_eq!(last, [(8, 0), (9, 0), (8, 1), (9, 1)]);
    }

    #[test]
    fn bands_may_have_more_tiles_than_fit_32_bits() {
        let columns = 1 << 29;
        assert_eq!(tile_at(1 << 20, 16, columns, 16), (0, 1 << 16));
        assert_eq!(tile_at(u32::MAX, 16, columns, 8), (7, columns - 1));
        assert_eq!(strips_read(16, columns, 16, 160), (16, 10));
    }

    #[test]
    fn groups_keep_the_footprint_small() {
        assert_eq!(group_m(32, 16, (128, 256), 132), 16);
        assert_eq!(group_m(32, 32, (128, 128), 264), 16);
        assert_eq!(group_m(16, 16, (128, 128), 64), 8);
        assert_eq!(group_m(1, 500, (64, 64), 132), 1);
        assert_eq!(group_m(500, 1, (64, 64), 132), 8);
    }

    #[test]
    fn grouped_order_reads_fewer_strips() {
        // Nine blocks of 9 x 9 tiles: one row of a and all of b, or three of each.
        assert_eq!(strips_read(9, 9, 1, 9), (1, 9));
        assert_eq!(strips_read(9, 9, 3, 9), (3, 3));
        assert_eq!(strips_read(2, 2, 1, 100), (2, 2));
    }

    #[test]
    fn the_kernels_order_is_this_one() {
        let mut table = String::new();
        for (num_m, num_n, group_m) in cases() {
            let order = TileOrder::new(num_m, num_n, group_m);
            let divisors = [order.by_band, order.by_rows, order.by_last_rows].map(|d| d.for_cpp()).join(", ");
            let _ = write!(table, "{{{divisors}, {num_m}, {num_n}, {group_m}, 0}},");
        }
        let main = format!(
            "#include \"tile_order.cuh\"\n#include <cstdio>\n\
             const TileOrder cases[] = {{{table}}};\n\
             int main() {{\n\
             for (const auto& c : cases) for (uint32_t pid = 0; pid < c.tiles_m * c.tiles_n; ++pid) {{\n\
             const Tile t = c.at(pid);\n\
             std::printf(\"%u %u\\n\", t.m, t.n);\n}}\n}}\n"
        );
        let Some(theirs) = host_cpp::run(&main) else { return };
        let mut theirs = theirs.lines();
        for (num_m, num_n, group_m) in cases() {
            for pid in 0..num_m * num_n {
                let (m, n) = tile_at(pid, num_m, num_n, group_m);
                assert_eq!(
                    theirs.next(),
                    Some(format!("{m} {n}").as_str()),
                    "{num_m} {num_n} {group_m} {pid}"
                );
            }
        }
        assert_eq!(theirs.next(), None);
    }
}
