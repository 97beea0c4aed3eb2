//! AMX: tiles of 16 x 16 sums of products of pairs of bfloat16, 32 of k in an instruction. Two by two of them are a tile of
//! ours. Rust has no stable intrinsics for it.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::cell::Cell;
use std::mem::{MaybeUninit, offset_of};
use std::sync::LazyLock;

use half::bf16;

use crate::cpu::isa::{CACHE_LINE, has_avx512};
use crate::cpu::parallel;
use crate::cpu::register::x86::transpose_4;
use crate::cpu::register::{Operands, Tiles, prefetch};

type Pair = [bf16; 2];

/// Rows of a hardware tile, and pairs or sums in a row: 64 bytes.
const SIDE: usize = 16;

/// To be used where [`is_usable`] says so.
pub struct Amx;

/// Whether this CPU has AMX for bfloat16.
fn is_there() -> bool {
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    // CPUs with AVX-512 have the leaf.
    has_avx512() && __cpuid_count(7, 0).edx & (AMX_BF16 | AMX_TILE) == AMX_BF16 | AMX_TILE
}

/// Whether it is there and the kernel lets this process use it, for which a process has to ask once. Found out once: on a virtual
/// machine the hypervisor answers the first question, in 2 us.
pub fn is_usable() -> bool {
    static USABLE: LazyLock<bool> = LazyLock::new(|| is_there() && is_permitted());
    *USABLE
}

#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const REQUEST_PERMISSION: libc::c_int = 0x1023;
    const TILE_DATA: libc::c_ulong = 18;
    // SAFETY: the call takes two numbers and changes only what this process may use.
    unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// All eight tiles whole.
static WHOLE: Configuration = Configuration {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// A stretch of k, of whole hardware tiles: read by the assembly below.
#[repr(C)]
struct Stretch {
    a: *const Pair,
    /// Bytes from a row to the next.
    a_step: isize,
    /// Rows of pairs, each of a tile's width.
    b: *const Pair,
    steps: usize,
}

/// What is left of k, filled up with zeros, which no operand need have behind it.
#[repr(C)]
#[derive(Default)]
struct Last {
    a: [[Pair; SIDE]; Amx::HEIGHT],
    b: [[Pair; Amx::WIDTH]; SIDE],
}

impl Tiles for Amx {
    type Factor = Pair;
    type Sum = f32;
    const HEIGHT: usize = 2 * SIDE;
    const WIDTH: usize = 2 * SIDE;
    const LEN: usize = 2 * SIDE;
    const ROWS_ALONG_K: bool = true;

    #[inline(always)]
    unsafe fn transpose(from: *const Pair, from_step: usize, to: *mut Pair, to_step: usize) {
        // SAFETY: the caller's promise; a CPU with AMX has AVX.
        unsafe { transpose_4(from, from_step, to, to_step) }
    }

    #[inline(always)]
    unsafe fn begin() {
        ALONE.set(parallel::is_alone());
        // SAFETY: the caller's promise; no other code knows of the tiles.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const WHOLE, options(nostack, readonly)) };
    }
    #[inline(always)]
    unsafe fn end() {
        // SAFETY: as above.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }

    #[inline(always)]
    unsafe fn tile<const KEEP: bool>(operands: Operands<Pair, f32>) {
        // Rows of pairs are nobody's operands, of which b would be copied.
        debug_assert!(!KEEP && operands.b_step == 128);
        // SAFETY: the caller's promise.
        unsafe { tile::<false>(operands) }
    }
}

/// Asks for rows of a 512 bytes ahead if `AHEAD`: they are read once, from memory.
///
/// # Safety
/// As of `multiply`; the factors of a row of a follow one another, as do the rows of b.
pub unsafe fn tile<const AHEAD: bool>(operands: Operands<Pair, f32>) {
    // SAFETY: the caller's promise.
    unsafe {
        match (operands.columns <= SIDE, ALONE.get()) {
            (true, false) => tile_of::<AHEAD, false, false>(operands),
            (true, true) => tile_of::<AHEAD, false, true>(operands),
            (false, false) => tile_of::<AHEAD, true, false>(operands),
            (false, true) => tile_of::<AHEAD, true, true>(operands),
        }
    }
}

thread_local! {
    /// [`parallel::is_alone`], since `begin`.
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// The same of `SIDE` columns, or of twice as many if `WIDE`. If `ALONE` b is loaded past the first-level cache, where rows of a
/// stay; a thread that shares its core with another gains more where b is asked for ahead (docs/measurements/cpu_matmul.md).
///
/// # Safety
/// As of `tile`.
unsafe fn tile_of<const AHEAD: bool, const WIDE: bool, const ALONE: bool>(operands: Operands<Pair, f32>) {
    for i in 0..Amx::HEIGHT {
        let row = operands.awaited.wrapping_byte_offset(i as isize * operands.awaited_step);
        prefetch(row);
        prefetch(row.wrapping_byte_add(CACHE_LINE));
    }
    let Operands { a, a_steps: [a_step, _], b, k, to, to_step, earlier, earlier_step, .. } = operands;
    let (whole, rest) = (k / SIDE, k % SIDE);
    let mut last = MaybeUninit::<Last>::uninit();
    if rest > 0 {
        let done = whole * SIDE;
        let last = last.write(Last::default());
        for (i, row) in last.a.iter_mut().enumerate() {
            let from = a.wrapping_byte_offset(i as isize * a_step).wrapping_add(done);
            // SAFETY: the caller's promise; `rest` factors of the row are left.
            unsafe { from.copy_to_nonoverlapping(row.as_mut_ptr(), rest) };
        }
        for (i, row) in last.b[..rest].iter_mut().enumerate() {
            let from = b.wrapping_add((done + i) * Amx::WIDTH);
            // SAFETY: as above.
            unsafe { from.copy_to_nonoverlapping(row.as_mut_ptr(), Amx::WIDTH) };
        }
    }
    let last = last.as_ptr();
    let stretches = [
        Stretch { a, a_step, b, steps: whole },
        Stretch {
            a: last.cast(),
            a_step: (SIDE * size_of::<Pair>()) as isize,
            b: last.wrapping_byte_add(offset_of!(Last, b)).cast(),
            steps: usize::from(rest > 0),
        },
    ];
    // SAFETY: the caller's promise of what may be read and written; `stretches` says the same of k in steps of 16 pairs.
    // The tiles are configured, and no other code knows of them.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "test {b}, {b}",
            "jz 2f",
            "mov {row}, {step}",
            "shl {row}, 4",
            "add {row}, {b}",
            "tileloadd tmm0, [{b} + {step}]",
            "tileloadd tmm2, [{row} + {step}]",
            ".if {wide}",
            "tileloadd tmm1, [{b} + {step} + 64]",
            "tileloadd tmm3, [{row} + {step} + 64]",
            ".endif",
            "2:",
            "mov {a}, [{stretch}]",
            "mov {a_step}, [{stretch} + 8]",
            "mov {b}, [{stretch} + 16]",
            "mov {steps}, [{stretch} + 24]",
            "mov {row}, {a_step}",
            "shl {row}, 4",
            "add {row}, {a}",
            "mov {step}, 128",
            "test {steps}, {steps}",
            "jz 4f",
            "3:",
            "tileloadd tmm4, [{a} + {a_step}]",
            ".if {alone}",
            "tileloaddt1 tmm6, [{b} + {step}]",
            ".else",
            "tileloadd tmm6, [{b} + {step}]",
            ".endif",
            "tileloadd tmm5, [{row} + {a_step}]",
            ".if {ahead}",
            "lea {ahead_of_row}, [{a} + 512]",
            ".rept 16",
            "prefetcht1 [{ahead_of_row}]",
            "prefetcht1 [{ahead_of_row} + {a_step}]",
            "lea {ahead_of_row}, [{ahead_of_row} + 2 * {a_step}]",
            ".endr",
            ".endif",
            ".if {wide} && {alone}",
            "tileloaddt1 tmm7, [{b} + {step} + 64]",
            ".elseif {wide}",
            "tileloadd tmm7, [{b} + {step} + 64]",
            ".endif",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm2, tmm5, tmm6",
            ".if {wide}",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm3, tmm5, tmm7",
            ".endif",
            // Rows of b two steps ahead, which the second-level cache has: of the next panel at the end of this one.
            ".ifeq {alone}",
            ".irp row, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
            "prefetcht0 [{b} + 4096 + 128 * \\row]",
            ".if {wide}",
            "prefetcht0 [{b} + 4096 + 128 * \\row + 64]",
            ".endif",
            ".endr",
            ".endif",
            "add {a}, 64",
            "add {row}, 64",
            "add {b}, 2048",
            "dec {steps}",
            "jnz 3b",
            "4:",
            "add {stretch}, 32",
            "cmp {stretch}, {end}",
            "jne 2b",
            "mov {row}, {to_step}",
            "shl {row}, 4",
            "add {row}, {to}",
            "tilestored [{to} + {to_step}], tmm0",
            "tilestored [{row} + {to_step}], tmm2",
            ".if {wide}",
            "tilestored [{to} + {to_step} + 64], tmm1",
            "tilestored [{row} + {to_step} + 64], tmm3",
            ".endif",
            wide = const WIDE as u8,
            ahead = const AHEAD as u8,
            alone = const ALONE as u8,
            ahead_of_row = out(reg) _,
            row = out(reg) _,
            b = inout(reg) earlier => _,
            step = inout(reg) earlier_step => _,
            to = in(reg) to,
            to_step = in(reg) to_step,
            stretch = inout(reg) stretches.as_ptr() => _,
            end = in(reg) stretches.as_ptr_range().end,
            a = out(reg) _,
            a_step = out(reg) _,
            steps = out(reg) _,
            options(nostack),
        );
    }
}
