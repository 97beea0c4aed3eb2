//! What ptxas reported of every kernel.

use std::path::Path;

use super::Result;

pub struct Resources {
    pub kernel: String,
    pub target: String,
    pub registers: u32,
    pub shared_bytes: u32,
    pub stack_bytes: u32,
    pub spill_bytes: u32,
}

/// Reads `ptxas -v`; refuses what would silently cost speed.
pub fn resources(file: &Path, report: &str) -> Result<Vec<Resources>> {
    let number_before = |line: &str, words: &str| -> u32 {
        let before = line.split(words).next().filter(|_| line.contains(words));
        before.and_then(|b| b.split_whitespace().last()).and_then(|n| n.parse().ok()).unwrap_or(0)
    };
    let mut kernels: Vec<Resources> = Vec::new();
    for line in report.lines() {
        // C7500 to C7599: wgmma serialised (C7510, C7514, ...), setmaxnreg ignored (C7508).
        if line.contains("(C75") {
            return Err(format!("ptxas warns about {}: {line}", file.display()));
        }
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            let mut quoted = rest.split('\'');
            let kernel = quoted.next().unwrap_or_default().to_string();
            let target = quoted.nth(1).unwrap_or_default().to_string();
            kernels.push(Resources {
                kernel,
                target,
                registers: 0,
                shared_bytes: 0,
                stack_bytes: 0,
                spill_bytes: 0,
            });
        } else if let Some(last) = kernels.last_mut() {
            if line.contains("bytes stack frame") {
                last.stack_bytes = number_before(line, " bytes stack frame");
                last.spill_bytes =
                    number_before(line, " bytes spill stores") + number_before(line, " bytes spill loads");
            } else if line.contains("Used ") && line.contains(" registers") {
                last.registers = number_before(line, " registers");
                last.shared_bytes = number_before(line, " bytes smem");
            }
        }
    }
    if kernels.is_empty() {
        return Err(format!("ptxas reported no kernel of {}: is that nvcc?", file.display()));
    }
    match kernels.iter().find(|k| k.spill_bytes > 0) {
        Some(k) => {
            Err(format!("{} spills {} bytes on {} ({})", k.kernel, k.spill_bytes, k.target, file.display()))
        }
        None => Ok(kernels),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'add_f16' for 'sm_90'
ptxas info    : Function properties for add_f16
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers, used 1 barriers, 48 bytes smem
ptxas info    : Compiling entry function 'add_f32' for 'sm_90'
ptxas info    : Function properties for add_f32
    8 bytes stack frame, 4 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers
";

    fn of(report: &str) -> Result<Vec<(String, u32, u32, u32)>> {
        let resources = resources(Path::new("add.cu"), report)?;
        Ok(resources
            .into_iter()
            .map(|r| (r.kernel + "/" + &r.target, r.registers, r.shared_bytes, r.stack_bytes))
            .collect())
    }

    #[test]
    fn every_kernel_has_its_figures() {
        let report = REPORT.replace("4 bytes spill", "0 bytes spill");
        let expected = [("add_f16/sm_90".to_string(), 30, 48, 0), ("add_f32/sm_90".to_string(), 32, 0, 8)];
        assert_eq!(of(&report).unwrap(), expected);
    }

    #[test]
    fn what_costs_speed_in_silence_is_refused() {
        assert!(of(REPORT).unwrap_err().contains("add_f32 spills 4 bytes on sm_90"));
        let serialised = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async";
        assert!(of(serialised).unwrap_err().contains("ptxas warns about add.cu"));
        assert!(of("").unwrap_err().contains("no kernel"));
    }
}
