//! Which code a GPU runs, of all that a kernel file was compiled for. The build script asks the same, to build for
//! some GPUs alone.

/// A GPU's compute capability, (major, minor).
pub type Capability = (u32, u32);

/// What a GPU runs of these targets: machine code of its own generation that is not newer than itself, else what its
/// driver makes of the newest PTX.
pub fn runs<T: AsRef<str>>(targets: &[T], gpu: Capability) -> Option<&str> {
    let fitting = targets.iter().filter_map(|target| Some((rank(target.as_ref(), gpu)?, target.as_ref())));
    fitting.max_by_key(|&(rank, _)| rank).map(|(_, target)| target)
}

/// How well `sm_80`, `sm_90a` or `compute_75` fits a GPU, the best highest; None: it does not run there.
fn rank(target: &str, (major, minor): Capability) -> Option<(bool, u32, bool)> {
    let (kind, architecture) = target.split_once('_')?;
    let digits = architecture.trim_end_matches(char::is_alphabetic);
    let (number, own) = (digits.parse::<u32>().ok()?, 10 * major + minor);
    let (alone, machine_code) = (digits != architecture, kind == "sm");
    let fits = if alone { number == own } else { number <= own && (!machine_code || number / 10 == major) };
    fits.then_some((machine_code, number, alone))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: [&str; 6] = ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120", "compute_75"];
    const HALVES: [&str; 5] = ["sm_80", "sm_90", "sm_100", "sm_120", "compute_80"];

    #[test]
    fn machine_code_of_the_same_generation_comes_first() {
        let of_most = |gpu| runs(&MOST, gpu);
        assert_eq!(of_most((7, 5)), Some("sm_75"));
        assert_eq!([(8, 0), (8, 6), (8, 9)].map(of_most), [Some("sm_80"); 3]);
        assert_eq!(of_most((9, 0)), Some("sm_90"));
        assert_eq!([(10, 0), (10, 3)].map(of_most), [Some("sm_100"); 2]);
        assert_eq!([(12, 0), (12, 1)].map(of_most), [Some("sm_120"); 2]);
    }

    #[test]
    fn other_generations_run_ptx_if_any() {
        assert_eq!(runs(&MOST, (11, 0)), Some("compute_75"));
        assert_eq!(runs(&HALVES, (13, 0)), Some("compute_80"));
        assert_eq!(runs(&HALVES, (7, 5)), None);
        assert_eq!(runs(&MOST, (7, 0)), None);
        assert_eq!(runs(&["sm_90", "sm_100"], (12, 0)), None);
        assert_eq!(runs(&["sm_86"], (8, 0)), None);
    }

    #[test]
    fn code_for_one_architecture_runs_there_alone() {
        assert_eq!(runs(&["sm_90", "sm_90a"], (9, 0)), Some("sm_90a"));
        assert_eq!(runs(&["sm_100a"], (10, 3)), None);
    }
}
