//! The kernels' files: what they include, what of them the compiler sees, and what they are compiled for.

use std::fs;
use std::path::{Path, PathBuf};

use super::Result;

/// One `kernels/*.cu`.
pub struct KernelFile {
    pub path: PathBuf,
    pub stem: String,
    /// Its own `// targets:` line: `sm_90a` for machine code, `compute_75` for PTX.
    pub complete: Vec<String>,
    /// Those of them that are to be built.
    pub targets: Vec<String>,
    /// The lines of code, with those of the headers it includes.
    code: Vec<(PathBuf, Vec<String>)>,
}

/// The newest target with a front end of its own: that of newer ones would write the same PTX.
const NEWEST_FRONT_END: u32 = 100;

impl KernelFile {
    fn new(path: PathBuf, text: &str, headers: &[(PathBuf, String)]) -> Result<KernelFile> {
        let complete =
            targets(text).ok_or_else(|| format!("{} has no line `// targets: ...`", path.display()))?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let mut code = vec![(path.clone(), code_lines(text))];
        code.extend(included(text, headers).into_iter().map(|(path, text)| (path.clone(), code_lines(text))));
        if let Some((path, line)) =
            code.iter().find_map(|(path, lines)| Some((path, depends_on_newer(lines)?)))
        {
            return Err(format!(
                "{}: `{line}` has no effect: the code for targets above {NEWEST_FRONT_END} is made from the PTX for {NEWEST_FRONT_END}",
                path.display()
            ));
        }
        Ok(KernelFile { path, stem, targets: complete.clone(), complete, code })
    }

    /// Whatever changes what the compiler makes of the file: no comments, no times.
    pub fn code(&self) -> &[(PathBuf, Vec<String>)] {
        &self.code
    }

    /// Of the file's own code and of the headers that it includes.
    pub fn lines(&self) -> usize {
        self.code.iter().map(|(_, lines)| lines.len()).sum()
    }
}

/// Which architecture's PTX a target's code is made from: `100` for `sm_120`, `90a` for `sm_90a`.
pub fn front_end(target: &str) -> String {
    let architecture = target.split('_').nth(1).unwrap_or(target);
    match architecture.parse::<u32>() {
        Ok(number) if number > NEWEST_FRONT_END => NEWEST_FRONT_END.to_string(),
        _ => architecture.to_string(),
    }
}

pub fn kernel_files(folder: &Path) -> Result<Vec<KernelFile>> {
    let headers = files_below(folder, "cuh")?;
    let sources = files_below(folder, "cu")?;
    sources.into_iter().map(|(path, text)| KernelFile::new(path, &text, &headers)).collect()
}

/// Every file below `folder` with this extension, and its text.
fn files_below(folder: &Path, extension: &str) -> Result<Vec<(PathBuf, String)>> {
    let mut found = Vec::new();
    let entries = fs::read_dir(folder).map_err(|e| format!("cannot list {}: {e}", folder.display()))?;
    for path in entries.flatten().map(|e| e.path()) {
        if path.is_dir() {
            found.extend(files_below(&path, extension)?);
        } else if path.extension().is_some_and(|e| e == extension) {
            let text =
                fs::read_to_string(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
            found.push((path, text));
        }
    }
    found.sort();
    Ok(found)
}

/// `// targets: 90a ptx:75` as `sm_90a`, `compute_75`.
fn targets(text: &str) -> Option<Vec<String>> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix("// targets:"))?;
    let name = |target: &str| match target.strip_prefix("ptx:") {
        Some(architecture) => format!("compute_{architecture}"),
        None => format!("sm_{target}"),
    };
    Some(line.split_whitespace().map(name).collect())
}

/// The headers that a file includes, and those that they include, in their order in `headers`.
fn included<'a>(text: &str, headers: &'a [(PathBuf, String)]) -> Vec<&'a (PathBuf, String)> {
    let mut wanted = vec![false; headers.len()];
    let mut texts = vec![text];
    while let Some(text) = texts.pop() {
        for name in text.lines().filter_map(|l| l.trim().strip_prefix("#include \"")) {
            let name = Path::new(name.trim_end_matches('"'));
            for (i, (path, text)) in headers.iter().enumerate() {
                if path.ends_with(name) && !wanted[i] {
                    wanted[i] = true;
                    texts.push(text);
                }
            }
        }
    }
    headers.iter().zip(wanted).filter(|(_, wanted)| *wanted).map(|(header, _)| header).collect()
}

/// The lines that the compiler sees: no comments, no blank lines. A line after `\` belongs to the one before it.
fn code_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut continued = false;
    for line in text.lines() {
        let bare = line.trim();
        let comment = bare.is_empty() || (bare.starts_with("//") && !bare.ends_with('\\'));
        if continued || !comment {
            lines.push(line.to_string());
        }
        continued = line.ends_with('\\');
    }
    lines
}

/// A line that means something else for a target above `NEWEST_FRONT_END`.
fn depends_on_newer(lines: &[String]) -> Option<&String> {
    let newer = |number: &str| number.parse().is_ok_and(|n: u32| n > 10 * NEWEST_FRONT_END);
    let numbers = |line: &String| line.split(|c: char| !c.is_ascii_digit()).any(newer);
    lines.iter().find(|line| line.contains("__CUDA_ARCH__") && numbers(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_no_code() {
        assert_eq!(code_lines("a\n// c\n\n  // d\nb  // e\n"), ["a", "b  // e"]);
        assert_eq!(code_lines("// targets: 75\nint a;\n"), code_lines("// targets: 90\n\nint a;"));
    }

    #[test]
    fn what_a_backslash_continues_is_code() {
        assert_eq!(code_lines("#define A \\\n\nb\n"), ["#define A \\", "", "b"]);
        assert_eq!(code_lines("// x \\\ny\n"), ["// x \\", "y"]);
    }

    #[test]
    fn targets_have_the_compilers_names() {
        let named = targets("// About.\n// targets: 80 90a ptx:75\n").unwrap();
        assert_eq!(named, ["sm_80", "sm_90a", "compute_75"]);
        assert_eq!(targets("// About.\n"), None);
        assert_eq!(named.iter().map(|t| front_end(t)).collect::<Vec<_>>(), ["80", "90a", "75"]);
        assert_eq!(["sm_100", "sm_120"].map(front_end), ["100", "100"]);
    }

    #[test]
    fn headers_of_headers_count_and_others_do_not() {
        let header = |path: &str, text: &str| (PathBuf::from(path), text.to_string());
        let headers = [
            header("kernels/common/a.cuh", "#include \"ptx/b.cuh\""),
            header("kernels/common/c.cuh", ""),
            header("kernels/common/ptx/b.cuh", ""),
        ];
        let found = included("#include \"a.cuh\"\n#include <cstdint>", &headers);
        assert_eq!(found, [&headers[0], &headers[2]]);
    }

    #[test]
    fn code_for_a_target_without_a_front_end_is_refused() {
        let file = |text: &str| KernelFile::new("a.cu".into(), text, &[]).err();
        assert_eq!(file("// targets: 120\n#if __CUDA_ARCH__ >= 1000\n"), None);
        assert!(file("// targets: 120\n#if __CUDA_ARCH__ == 1200\n").unwrap().contains("has no effect"));
    }
}
