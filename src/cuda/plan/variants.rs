//! The table of variants that a developer can force. `_core.variants` hands it to the benchmark, the kernel cases, the
//! tests of variants and the site; `_core.force_*` take their names from it.

use super::add::Schedule;
use super::softmax::Forced;

/// A variant of an operation's kernels, by name.
#[derive(Debug)]
pub struct Forcible<T: 'static> {
    pub name: &'static str,
    /// What the variant does with a problem: the layout, and where the data is meanwhile.
    pub about: &'static str,
    /// What the parameter counts; empty where there is none.
    pub parameter: &'static str,
    /// Parameters that tests and measurements try, least first.
    pub values: &'static [u64],
    /// Of softmax: elements of a row that the variant can do.
    pub row_length: u64,
    /// Of softmax: whether it does rows that are not contiguous.
    pub columns: bool,
    pub make: fn(u64) -> T,
}

const fn plain<T>(name: &'static str, about: &'static str, make: fn(u64) -> T) -> Forcible<T> {
    Forcible { name, about, parameter: "", values: &[1], row_length: 5003, columns: false, make }
}

const fn counting(
    name: &'static str,
    about: &'static str,
    (parameter, values): (&'static str, &'static [u64]),
    make: fn(u64) -> Forced,
) -> Forcible<Forced> {
    Forcible { name, about, parameter, values, row_length: 5003, columns: false, make }
}

const STAGES: (&str, &[u64]) = ("stages in shared memory", &[1, 2, 4]);
const BLOCKS: (&str, &[u64]) = ("blocks of a cluster", &[1, 2, 4, 8, 16]);

pub const ADD: [Forcible<Schedule>; 2] = [
    plain("fixed_grid", "contiguous operands: one block a tile", |_| Schedule::FixedGrid),
    plain("grid_stride", "contiguous operands: blocks that run at once loop over tiles", |_| {
        Schedule::GridStride
    }),
];

/// In the order of the rows' lengths; `row_length` is one of which the variant takes the row.
pub const SOFTMAX: [Forcible<Forced>; 10] = [
    Forcible { row_length: 13, ..plain("short", "packed short rows: a thread to a row", |_| Forced::Short) },
    Forcible {
        row_length: 61,
        ..counting(
            "warp",
            "rows in the registers of a warp or a part of one",
            ("vectors of a row in flight per lane", &[1, 2, 4]),
            Forced::Warp,
        )
    },
    Forcible {
        row_length: 1301,
        ..counting("misaligned", "misaligned rows: tiles through shared memory", STAGES, Forced::Misaligned)
    },
    plain("block", "rows in the registers of a block", |_| Forced::Block),
    counting("pipeline", "rows in shared memory, prefetched by persistent blocks", STAGES, Forced::Pipeline),
    plain("online", "rows of any length, read twice by one block", |_| Forced::Online),
    Forcible {
        columns: true,
        ..counting(
            "cluster",
            "rows in the registers of a cluster, columns in its shared memory",
            BLOCKS,
            Forced::Cluster,
        )
    },
    counting("smem", "rows in the shared memory of a cluster", BLOCKS, Forced::Smem),
    Forcible {
        row_length: 20011,
        columns: true,
        ..counting(
            "split",
            "long rows and columns, in two launches",
            ("slices of a row or column", &[1, 2, 9]),
            Forced::Split,
        )
    },
    counting(
        "grid",
        "few long rows, in one cooperative launch",
        ("slices of a row", &[1, 2, 33]),
        Forced::Grid,
    ),
];

/// Kernels of matmul, whose further choices `_core.force_matmul_kernel` describes.
pub const MATMUL: [(&str, &str); 7] = [
    ("blocks", "a block a tile: matmul_mma.cu, matmul_tf32.cu, matmul_dmma.cu, matmul_simt.cu"),
    ("wgmma", "float16 and bfloat16 on compute capability 9.0: matmul_wgmma.cu"),
    ("bf16x6", "float32 on compute capability 9.0, from bfloat16 parts: matmul_split.cu, matmul_bf16x6.cu"),
    (
        "few",
        "few rows or columns on compute capability 9.0: matmul_wgmma_few.cu, of float32 matmul_bf16x6_few.cu",
    ),
    ("tf32", "float32 as TF32 on compute capability 9.0: matmul_repack.cu, matmul_wgmma_tf32.cu"),
    (
        "skinny",
        "up to 16 rows or columns of fp16 and bf16, up to 64 of other dtypes: matmul_skinny.cu, matmul_skinny_simt.cu",
    ),
    ("copied", "operands that vectors do not fit, copied first: matmul_repack.cu, matmul_mma.cu"),
];

/// The entry with this name.
pub fn find<T>(table: &'static [Forcible<T>], name: &str) -> Option<&'static Forcible<T>> {
    table.iter().find(|entry| entry.name == name)
}
