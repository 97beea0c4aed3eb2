//! kernels/resources.txt: what ptxas reported of every kernel for every GPU. A build for tests/emulator, which runs no machine
//! code, takes from there what it does not compile.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use super::Result;
use super::resources::Resources;

pub const PATH: &str = "kernels/resources.txt";

/// By file: `add` has those of kernels/add.cu.
pub fn read(path: &Path) -> Result<HashMap<String, Vec<Resources>>> {
    let text = fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    parse(&text)
        .map_err(|line| format!("{}: what is `{line}`? `make kernels` writes this file", path.display()))
}

/// A line is a file, a kernel, and of each target its name, registers and bytes of static shared memory.
fn parse(text: &str) -> std::result::Result<HashMap<String, Vec<Resources>>, &str> {
    let mut files: HashMap<String, Vec<Resources>> = HashMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let (Some(file), Some(kernel)) = (words.next(), words.next()) else { return Err(line) };
        for word in words {
            let mut parts = word.split(':');
            let target = parts.next().unwrap_or_default().to_string();
            let mut number = || parts.next()?.parse().ok();
            let (Some(registers), Some(shared_bytes)) = (number(), number()) else { return Err(line) };
            let kernel = kernel.to_string();
            // With spills there would have been no build to record.
            let resources =
                Resources { kernel, target, registers, shared_bytes, stack_bytes: 0, spill_bytes: 0 };
            files.entry(file.to_string()).or_default().push(resources);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_kernel_and_its_targets() {
        let files =
            parse("# nvcc 13.0\nadd add_f16 sm_75:30:0 sm_90:32:16\nadd add_f32 sm_75:28:0\n").unwrap();
        let kernels: Vec<_> = files["add"]
            .iter()
            .map(|r| (r.kernel.as_str(), r.target.as_str(), r.registers, r.shared_bytes))
            .collect();
        let expected =
            [("add_f16", "sm_75", 30, 0), ("add_f16", "sm_90", 32, 16), ("add_f32", "sm_75", 28, 0)];
        assert_eq!(kernels, expected);
    }

    #[test]
    fn anything_else_is_refused() {
        for line in ["add", "", "add add_f16 sm_75", "add add_f16 sm_75:30", "add add_f16 sm_75:x:0"] {
            assert!(
                parse(&format!("add add_f32 sm_75:28:0\n{line}\n")).is_err_and(|what| what == line),
                "{line}"
            );
        }
    }
}
