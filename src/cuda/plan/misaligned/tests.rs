//! Assertions that a launch for tiles of misaligned rows is legal and covers all rows.

use super::*;

/// Asserts that the launch is possible, and that it covers the rows.
pub fn legal<const N: usize>(
    rows: &MisalignedRows<N>,
    device: &DeviceFacts,
    misaligned: Misaligned<N>,
    plan: &LaunchPlan<MisalignedParams<N>>,
) {
    let Misaligned { values, lanes, threads, stages, blocks_per_multiprocessor, shared } = misaligned;
    let params = &plan.params;
    assert!(threads == lanes || (lanes <= 32 && threads % lanes == 0), "{misaligned:?}");
    assert!(threads <= 256 && threads % 32 == 0 && (1..=4).contains(&stages), "{misaligned:?}");
    // Halves are read in pairs, and the singles before and behind have different lanes.
    let unit = rows.unit();
    assert!(lanes >= unit && u64::from(params.units_per_lane) * unit <= values, "{misaligned:?}");
    assert!(u64::from(params.units_per_lane) * lanes >= rows.length / unit, "{misaligned:?}");
    assert!(params.tiles * misaligned.tile_rows() >= rows.count() && plan.grid[0] > 0, "{plan}");
    for (range, operand) in shared.iter().zip(rows.operands) {
        let size = operand.dtype.size() as u64;
        let (count, each) =
            if range.packed { (1, misaligned.tile_rows()) } else { (misaligned.tile_rows(), 1) };
        assert_eq!(range.vectors, range.pitch * count);
        // Wherever a tile begins.
        for tile in 0..VECTOR_BYTES {
            let begin = operand.address as u64 + tile * misaligned.tile_rows() * rows.length * size;
            let before = if range.packed { begin % VECTOR_BYTES } else { VECTOR_BYTES - size };
            assert!(range.pitch * VECTOR_BYTES >= before + each * rows.length * size, "{misaligned:?}");
        }
    }
    let shared = u64::from(plan.shared_bytes) + STATIC_SHARED;
    assert!(shared <= u64::from(device.shared_bytes_per_block), "{plan}");
    let resident = u64::from(device.shared_bytes_per_multiprocessor) / shared;
    assert!((1..=resident).contains(&blocks_per_multiprocessor), "{plan}");
    assert!(threads * blocks_per_multiprocessor <= u64::from(device.threads_per_multiprocessor));
}
