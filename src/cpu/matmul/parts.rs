//! The parts of a product that threads take. A part has the bits of the whole, since the order of an element's sum depends on
//! k alone.

use std::ops::Range;

/// Products of elements below which a part takes less time than a thread to hear of it.
const LEAST: usize = 1 << 19;

/// Elements of a part, about: as many as keep what a thread widens and packs of it at a few MB.
const AREA: usize = 1 << 20;

/// Parts that threads take one by one: `rows` times `columns` of them.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    pub rows: usize,
    pub columns: usize,
}

impl Parts {
    /// Of an m x n product over k, of which a part packs rows of a and columns of b at these costs, beside one another.
    pub fn of(m: usize, n: usize, k: usize, [row, column]: [usize; 2], threads: usize) -> Parts {
        // At least a few tiles each.
        let fits = |parts: &Parts| m / parts.rows >= MULTIPLE.min(m) && n / parts.columns >= MULTIPLE.min(n);
        // A part widens and packs its rows of a and its columns of b.
        let packed = |parts: &Parts| parts.columns * m * row + parts.rows * n * column;
        let even = (m * n).div_ceil(AREA).next_multiple_of(threads);
        let wanted = if threads == 1 { 1 } else { ((m * n).saturating_mul(k) / LEAST).min(even) };
        let best = |count: usize| {
            // Of many, one more does no harm.
            let rows = (1..=count).filter(|rows| count >= 4 * threads || count.is_multiple_of(*rows));
            let all = rows.map(|rows| Parts { rows, columns: count.div_ceil(rows) });
            all.filter(fits).min_by_key(packed)
        };
        (2..=wanted).rev().find_map(best).unwrap_or(Parts { rows: 1, columns: 1 })
    }

    pub fn count(self) -> usize {
        self.rows * self.columns
    }

    /// Rows and columns of the `i`-th part.
    pub fn nth(self, m: usize, n: usize, i: usize) -> (Range<usize>, Range<usize>) {
        (part(m, self.rows, i / self.columns), part(n, self.columns, i % self.columns))
    }
}

/// Panels of b are whole in parts that begin at multiples of it.
const MULTIPLE: usize = 32;

fn part(len: usize, parts: usize, i: usize) -> Range<usize> {
    let start = |i: usize| match split(len, parts, i) {
        start if i < parts => (start + MULTIPLE / 2) / MULTIPLE * MULTIPLE,
        end => end,
    };
    start(i)..start(i + 1)
}

/// 0..len in as few ranges of at most `most` as possible, all about as long.
pub fn even(len: usize, most: usize) -> impl DoubleEndedIterator<Item = Range<usize>> {
    let parts = len.div_ceil(most);
    (0..parts).map(move |i| split(len, parts, i)..split(len, parts, i + 1))
}

/// Where the `i`-th of `parts` parts begins, all about as long. An expanded k times its number of parts is more than 64
/// bits hold.
pub fn split(len: usize, parts: usize, i: usize) -> usize {
    (len as u128 * i as u128 / parts as u128) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: usize = 512;

    #[test]
    fn parts_cover_all_and_are_about_as_long_whatever_the_length() {
        let parts: Vec<_> = even(1300, K).collect();
        assert_eq!(parts, [0..433, 433..866, 866..1300]);
        let mut parts = even((1 << 46) + 1, K);
        assert_eq!(parts.next(), Some(0..511));
        assert_eq!(parts.next_back().map(|last| last.end), Some((1 << 46) + 1));
    }

    #[test]
    fn parts_are_disjoint_cover_all_and_are_summed_up_as_the_whole() {
        for (m, n) in [(512, 512), (3, 5000), (64, 64), (65, 3), (50, 60), (30_000, 30_000), (2, 100_000)] {
            for threads in [1, 2, 3, 7, 64] {
                let parts = Parts::of(m, n, 10_000, [1, 1], threads);
                let [mut covered, mut ends] = [0; 2];
                for i in 0..parts.count() {
                    let (rows, columns) = parts.nth(m, n, i);
                    covered += rows.len() * columns.len();
                    ends = ends.max(rows.end * n + columns.end);
                    assert!(!rows.is_empty() && !columns.is_empty());
                }
                assert_eq!((covered, ends), (m * n, m * n + n), "{m} x {n}, {threads} threads: {parts:?}");
                assert!(threads > 1 || parts.count() == 1);
            }
        }
        assert_eq!(Parts::of(512, 512, 512, [1, 1], 2).count(), 2);
        assert_eq!(Parts::of(512, 512, 8, [1, 1], 64).count(), 4);
    }
}
