//! TILEWISE_CUDA_TARGETS: which GPUs a build is for.

use super::Result;
use super::targets::{Capability, runs};

/// What the variable asks for.
#[derive(Debug, PartialEq)]
pub enum Selection {
    All,
    /// What these GPUs run of a complete build; with no GPU, no kernels at all. `emulated`: and of all others the names and
    /// resources, for tests/emulator; with no GPU, one file for all targets, so that all of the build is run.
    For {
        gpus: Vec<Capability>,
        emulated: bool,
    },
}

const EMULATED: &str = "emulated";

/// The file that a build for the emulator alone compiles.
const SAMPLE: &str = "add";

impl Selection {
    /// `all`, `none`, or compute capabilities as nvidia-smi prints them or without the dot, and `emulated`.
    pub fn parse(asked: &str) -> Result<Selection> {
        let words = asked.split([',', ';', ' ', '\n', '\t']).filter(|word| !word.is_empty());
        let words: Vec<&str> = words.collect();
        match words[..] {
            [] | ["all"] => Ok(Selection::All),
            ["none"] => Ok(Selection::For { gpus: Vec::new(), emulated: false }),
            _ => {
                let gpus = words.iter().filter(|&&word| word != EMULATED).map(|word| capability(word));
                Ok(Selection::For { gpus: gpus.collect::<Result<_>>()?, emulated: words.contains(&EMULATED) })
            }
        }
    }

    /// Whether kernels are in the build that have no code there.
    pub fn emulated(&self) -> bool {
        matches!(self, Selection::For { emulated: true, .. })
    }

    /// Those of a file's targets that are to be built.
    pub fn of(&self, file: &str, targets: &[String]) -> Vec<String> {
        let wanted = |target: &&String| match self {
            Selection::All => true,
            Selection::For { gpus, emulated: true } if gpus.is_empty() => file == SAMPLE,
            Selection::For { gpus, .. } => {
                gpus.iter().any(|&gpu| runs(targets, gpu) == Some(target.as_str()))
            }
        };
        targets.iter().filter(wanted).cloned().collect()
    }
}

fn capability(word: &str) -> Result<Capability> {
    let parsed = match word.split_once('.') {
        Some((major, minor)) => major.parse().ok().zip(minor.parse().ok()),
        None => word.parse().ok().filter(|number: &u32| *number >= 10).map(|n| (n / 10, n % 10)),
    };
    parsed.filter(|(_, minor)| *minor < 10).ok_or_else(|| {
        let native = "$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader)";
        format!(
            "TILEWISE_CUDA_TARGETS has {word:?}; accepted: all, none, or the compute capabilities of GPUs such as 8.6 \
             or 90 (for the GPUs of this machine: TILEWISE_CUDA_TARGETS=\"{native}\")"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(asked: &str, targets: &[&str]) -> Vec<String> {
        let targets: Vec<String> = targets.iter().map(|target| target.to_string()).collect();
        Selection::parse(asked).unwrap().of("matmul", &targets)
    }

    const MOST: [&str; 4] = ["sm_80", "sm_90", "sm_100", "compute_75"];

    #[test]
    fn all_is_what_the_file_says() {
        assert_eq!(of("all", &MOST), MOST);
        assert_eq!(of("", &MOST), MOST);
    }

    #[test]
    fn none_is_nothing() {
        assert_eq!(of("none", &MOST), [""; 0]);
    }

    #[test]
    fn a_gpu_gets_what_it_would_run_of_all() {
        assert_eq!(of("8.6", &MOST), ["sm_80"]);
        assert_eq!(of("90", &MOST), ["sm_90"]);
        assert_eq!(of("90", &["sm_90a"]), ["sm_90a"]);
        assert_eq!(of("120", &MOST), ["compute_75"]);
        assert_eq!(of("8.0", &["sm_90a"]), [""; 0]);
        assert_eq!(of("6.1", &MOST), [""; 0]);
    }

    #[test]
    fn several_gpus_are_a_list_with_any_separators() {
        for asked in ["9.0,8.0", "80 90", "8.0\n9.0\n8.9\n", "90; 80"] {
            assert_eq!(of(asked, &MOST), ["sm_80", "sm_90"]);
        }
    }

    #[test]
    fn the_emulator_is_one_more_than_the_gpus() {
        for (asked, built) in [("emulated", vec![]), ("8.0,emulated", vec!["sm_80"])] {
            assert!(Selection::parse(asked).unwrap().emulated());
            assert_eq!(of(asked, &MOST), built);
        }
        let sample = ["sm_75", "compute_75"].map(String::from);
        assert_eq!(Selection::parse("emulated").unwrap().of(SAMPLE, &sample), sample);
        assert_eq!(Selection::parse("8.0,emulated").unwrap().of(SAMPLE, &sample), ["compute_75"]);
        assert!(["all", "none", "8.0"].iter().all(|asked| !Selection::parse(asked).unwrap().emulated()));
    }

    #[test]
    fn what_is_no_gpu_is_refused() {
        for asked in ["native", "sm_90", "9", "90a", "8.60", "all none", "-90"] {
            assert!(Selection::parse(asked).unwrap_err().contains("accepted: all, none"), "{asked}");
        }
    }
}
