//! Few columns: some rows of them, packed in memory, are taken for one, so that loops over a row are long. What is found of
//! the columns of the long row is then joined for the columns that are the same.

use super::*;

/// Columns of a long row at most; and of a row that is long as it is.
const WIDEST: i64 = 8 * LANES as i64;
const MANY: i64 = 64;

/// Rows to take for one: as many as make the least work of the `length`, where a row costs as much as two groups, the rest of
/// a group as much as two more, and each column that is the same some. 1 where rows are not packed in all operands, each
/// with its step along a column.
pub fn rows_in_one<const N: usize>(rows: &[i64], length: i64, operands: [(&Strided, i64); N]) -> i64 {
    let columns = rows.last().copied().unwrap_or(1);
    let packed = operands.iter().all(|(t, step)| t.strides.last() == Some(&1) && *step == columns);
    if !packed || !(2..MANY).contains(&columns) {
        return 1;
    }
    let work = |rows: &i64| {
        let (wide, lanes) = (rows * columns, LANES as i64);
        let of_row = wide / lanes + if wide % lanes == 0 { 2 } else { 5 };
        // Among equals the most rows.
        (((length - 1) / rows + 1) * of_row + 4 * rows, -rows)
    };
    // Two long rows at least.
    (1..=(WIDEST / columns).min(length / 2)).min_by_key(work).unwrap_or(1)
}

/// Dimensions with the last multiplied.
pub fn widened(rows: &[i64], by: i64) -> Dims {
    let mut rows: Dims = rows.iter().copied().collect();
    if let Some(last) = rows.last_mut() {
        *last *= by;
    }
    rows
}

/// Joins the values of columns that are the same, which recur with a period; each gets what they make together. They are in
/// the order in which [`groups::visit`] sees a row of `T`.
#[inline(always)]
pub fn join<T: Float, R: Copy + Default>(values: &mut [R], period: usize, with: impl Fn(R, R) -> R) {
    if T::EVEN_FIRST {
        reorder(values, |place| 2 * (place % LANES) + place / LANES);
    }
    let (first, rest) = values.split_at_mut(period);
    for row in rest.chunks_exact(period) {
        for (joined, &value) in first.iter_mut().zip(row) {
            *joined = with(*joined, value);
        }
    }
    for row in rest.chunks_exact_mut(period) {
        row.copy_from_slice(first);
    }
    if T::EVEN_FIRST {
        reorder(values, |place| place % 2 * LANES + place / 2);
    }
}

/// Moves each value of a pair of groups to the place that `to` names.
#[inline(always)]
fn reorder<R: Copy + Default>(values: &mut [R], to: impl Fn(usize) -> usize) {
    for pair in values.as_chunks_mut::<{ 2 * LANES }>().0 {
        let mut moved = [R::default(); 2 * LANES];
        for (place, &value) in pair.iter().enumerate() {
            moved[to(place)] = value;
        }
        *pair = moved;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_joined_in_the_order_of_their_columns() {
        let columns: Vec<f64> = (0..70).map(f64::from).collect();
        let expected: Vec<f64> =
            (0..70).map(|c| (0..7).map(|row| f64::from(c % 10 + 10 * row)).sum()).collect();
        let mut natural = columns.clone();
        join::<f32, _>(&mut natural, 10, |a, b| a + b);
        assert_eq!(natural, expected);
        // Two pairs of groups, then a rest in order.
        let even_first = |values: &[f64]| {
            let mut moved = values.to_vec();
            reorder(&mut moved, |place| place % 2 * LANES + place / 2);
            moved
        };
        let mut alternating = even_first(&columns);
        assert_eq!(alternating[..2], [0.0, 2.0]);
        join::<bf16, _>(&mut alternating, 10, |a, b| a + b);
        assert_eq!(alternating, even_first(&expected));
    }

    #[test]
    fn rows_in_one_make_whole_groups() {
        let of = |length: i64, columns: i64, step: i64| {
            let strides = [length * columns, 1].into_iter().collect();
            let operand = Strided { address: 0, dtype: DType::F32, strides };
            rows_in_one(&[3, columns], length, [(&operand, step)])
        };
        assert_eq!([of(4096, 16, 16), of(1000, 10, 10), of(1000, 7, 7)], [8, 8, 16]);
        assert_eq!([of(4099, 20, 20), of(1000, 64, 64), of(1000, 10, 11), of(16, 16, 16)], [4, 1, 1, 4]);
        assert_eq!([of(21, 21, 21), of(2, 3, 3), of(1, 3, 3)], [3, 1, 1]);
    }
}
