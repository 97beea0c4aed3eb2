//! Compiles every `kernels/*.cu` to one compressed fatbin and writes a table of them, with the compiler's
//! resource report, for `src/cuda/module.rs` to embed. A spill or a warning about serialised wgmma or an
//! ignored setmaxnreg is a build failure.

use std::collections::VecDeque;
use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

type Result<T> = std::result::Result<T, String>;

fn main() {
    println!("cargo:rerun-if-changed=kernels");
    for name in ["NVCC", "CUDA_HOME", "CUDA_PATH", "PYO3_PYTHON", "VIRTUAL_ENV"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    if let Err(sentence) = build() {
        eprintln!("\ntilewise: {sentence}\n");
        std::process::exit(1);
    }
}

fn build() -> Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo did not set OUT_DIR")?);
    // target/kernels: shared by all profiles, so that checking, testing and building compile once.
    let target = out.ancestors().nth(4).ok_or("OUT_DIR is not below a target folder")?;
    let cache = target.join("kernels");
    fs::create_dir_all(&cache).map_err(|e| format!("cannot make {}: {e}", cache.display()))?;
    let nvcc = find_nvcc()?;
    let version = nvcc_version(&nvcc)?;
    let headers = sources_below(Path::new("kernels"), "cuh")?;
    let files: Vec<PathBuf> =
        sources_below(Path::new("kernels"), "cu")?.into_iter().map(|(path, _)| path).collect();

    let queue: Mutex<VecDeque<&PathBuf>> = Mutex::new(files.iter().collect());
    let done: Mutex<Vec<Result<Compiled>>> = Mutex::new(Vec::new());
    let jobs = env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(1usize);
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(files.len()) {
            scope.spawn(|| {
                while let Some(file) = queue.lock().ok().and_then(|mut q| q.pop_front()) {
                    let compiled = compile(&nvcc, &version, file, &headers, &cache);
                    if let Ok(mut done) = done.lock() {
                        done.push(compiled);
                    }
                }
            });
        }
    });
    let done = done.into_inner().map_err(|_| "a compile thread panicked")?;
    let mut compiled = done.into_iter().collect::<Result<Vec<Compiled>>>()?;
    compiled.sort_by(|a, b| a.stem.cmp(&b.stem));
    fs::write(out.join("fatbins.rs"), table(&version, &compiled))
        .map_err(|e| format!("cannot write fatbins.rs: {e}"))
}

/// Every file below `folder` with this extension, and its text.
fn sources_below(folder: &Path, extension: &str) -> Result<Vec<(PathBuf, String)>> {
    let mut found = Vec::new();
    let entries = fs::read_dir(folder).map_err(|e| format!("cannot list {}: {e}", folder.display()))?;
    for path in entries.flatten().map(|e| e.path()) {
        if path.is_dir() {
            found.extend(sources_below(&path, extension)?);
        } else if path.extension().is_some_and(|e| e == extension) {
            let text =
                fs::read_to_string(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
            found.push((path, text));
        }
    }
    found.sort();
    Ok(found)
}

// --- nvcc

/// NVCC if set; else the nvidia-cuda-nvcc package of the building Python; else a CUDA toolkit.
fn find_nvcc() -> Result<PathBuf> {
    if let Some(named) = env::var_os("NVCC") {
        let path = PathBuf::from(&named);
        return if runs(&path) { Ok(path) } else { Err(format!("NVCC={} does not run", path.display())) };
    }
    let mut tried = Vec::new();
    for python in pythons() {
        if let Some(path) = nvcc_of_python(&python) {
            return Ok(path);
        }
        tried.push(format!("the package nvidia-cuda-nvcc of {}", Path::new(&python).display()));
    }
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        if let Some(home) = env::var_os(variable) {
            let path = PathBuf::from(home).join("bin/nvcc");
            if runs(&path) {
                return Ok(path);
            }
            tried.push(format!("{variable} ({})", path.display()));
        }
    }
    for path in ["nvcc", "/usr/local/cuda/bin/nvcc"] {
        if runs(Path::new(path)) {
            return Ok(PathBuf::from(path));
        }
        tried.push(if path == "nvcc" { "PATH".into() } else { path.into() });
    }
    Err(format!(
        "no nvcc found to compile the kernels with (tried {}); install it with `pip install \
         nvidia-cuda-nvcc==13.0.* nvidia-cuda-crt==13.0.* nvidia-nvvm==13.0.* nvidia-cuda-runtime==13.0.* \
         nvidia-cuda-cccl==13.0.*`, or set NVCC",
        tried.join(", ")
    ))
}

fn runs(nvcc: &Path) -> bool {
    Command::new(nvcc).arg("--version").output().is_ok_and(|o| o.status.success())
}

/// The Python that builds (maturin sets PYO3_PYTHON), the active virtual environment's, the system's.
fn pythons() -> Vec<OsString> {
    let mut found: Vec<OsString> = env::var_os("PYO3_PYTHON").into_iter().collect();
    if let Some(root) = env::var_os("VIRTUAL_ENV") {
        found.push(PathBuf::from(root).join("bin/python").into_os_string());
    }
    found.push("python3".into());
    found
}

/// pip's isolated builds make their packages visible through PYTHONPATH, so no -I, -E or -S here.
fn nvcc_of_python(python: &OsString) -> Option<PathBuf> {
    const SCRIPT: &str = "import importlib.metadata as m
for f in m.distribution('nvidia-cuda-nvcc').files or []:
    if f.stem == 'nvcc' and f.parent.name == 'bin' and f.suffix in ('', '.exe'): print(f.locate())";
    let output = Command::new(python).args(["-c", SCRIPT]).output().ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.lines().next()?.trim());
    runs(&path).then_some(path)
}

fn nvcc_version(nvcc: &Path) -> Result<String> {
    let output =
        Command::new(nvcc).arg("--version").output().map_err(|e| format!("nvcc does not run: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split(", V").nth(1).and_then(|rest| rest.split_whitespace().next());
    version.map(str::to_string).ok_or_else(|| format!("nvcc --version said nothing of its version: {text}"))
}

// --- one kernel file

const NVCC_FLAGS: [&str; 8] = [
    "-std=c++17",
    "-O3",
    "-fatbin",
    "--compress-mode=size",
    "-Xptxas",
    "-v",
    "-Ikernels",
    "-Ikernels/common",
];

struct Compiled {
    stem: String,
    targets: Vec<String>,
    kernels: Vec<Resources>,
    fatbin: PathBuf,
}

struct Resources {
    kernel: String,
    target: String,
    registers: u32,
    shared_bytes: u32,
    stack_bytes: u32,
    spill_bytes: u32,
}

/// The file's own line `// targets: 75 90a ptx:75` as (target names, nvcc arguments).
fn targets(file: &Path, text: &str) -> Result<(Vec<String>, Vec<String>)> {
    let line = text.lines().find_map(|l| l.trim().strip_prefix("// targets:"));
    let line = line.ok_or_else(|| format!("{} has no line `// targets: ...`", file.display()))?;
    let mut names = Vec::new();
    let mut arguments = Vec::new();
    for target in line.split_whitespace() {
        let (arch, kind) = match target.strip_prefix("ptx:") {
            Some(arch) => (arch, "compute"),
            None => (target, "sm"),
        };
        names.push(format!("{kind}_{arch}"));
        arguments.push("-gencode".to_string());
        arguments.push(format!("arch=compute_{arch},code={kind}_{arch}"));
    }
    Ok((names, arguments))
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

fn compile(
    nvcc: &Path,
    version: &str,
    file: &Path,
    headers: &[(PathBuf, String)],
    cache: &Path,
) -> Result<Compiled> {
    let text = fs::read_to_string(file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
    let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let (targets, gencode) = targets(file, &text)?;

    // Only what changed is compiled again: included headers and flags count, paths and times do not.
    let mut hasher = DefaultHasher::new();
    (version, &text, included(&text, headers), &gencode, NVCC_FLAGS).hash(&mut hasher);
    let fatbin = cache.join(format!("{stem}-{:016x}.fatbin", hasher.finish()));
    let report_file = fatbin.with_extension("ptxas");
    let failed = |e| format!("cannot write to {}: {e}", cache.display());
    // An entry counts only if it is whole: an empty image would be embedded as readily as a good one.
    let kept = fs::read_to_string(&report_file).ok().filter(|_| fatbin.metadata().is_ok_and(|m| m.len() > 0));
    if let Some(Ok(kernels)) = kept.map(|report| resources(file, &report)) {
        return Ok(Compiled { kernels, stem, targets, fatbin });
    }

    // Another build may be at the same file: each writes under a name of its own, and renames.
    let unfinished = fatbin.with_extension(std::process::id().to_string());
    let output = Command::new(nvcc)
        .args(NVCC_FLAGS)
        .args(&gencode)
        .arg("-o")
        .arg(&unfinished)
        .arg(file)
        .output()
        .map_err(|e| format!("nvcc does not run: {e}"))?;
    let report =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(format!("nvcc could not compile {}:\n{report}", file.display()));
    }
    let kernels = resources(file, &report)?;
    fs::write(&report_file, &report).map_err(failed)?;
    fs::rename(&unfinished, &fatbin).map_err(failed)?;
    Ok(Compiled { stem, targets, kernels, fatbin })
}

/// Reads `ptxas -v`; refuses what would silently cost speed.
fn resources(file: &Path, report: &str) -> Result<Vec<Resources>> {
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

/// The Rust source of the table that `src/cuda/module.rs` includes.
fn table(version: &str, compiled: &[Compiled]) -> String {
    let mut rust =
        format!("pub const NVCC_VERSION: &str = {version:?};\n\npub static FATBINS: &[Fatbin] = &[\n");
    for c in compiled {
        let _ = writeln!(rust, "    Fatbin {{ file: {:?}, targets: &{:?},", c.stem, c.targets);
        let _ =
            writeln!(rust, "        image: &Aligned(*include_bytes!({:?})),\n        kernels: &[", c.fatbin);
        for k in &c.kernels {
            let _ = writeln!(
                rust,
                "            KernelResources {{ kernel: {:?}, target: {:?}, registers: {}, shared_bytes: {}, \
                 stack_bytes: {}, spill_bytes: {} }},",
                k.kernel, k.target, k.registers, k.shared_bytes, k.stack_bytes, k.spill_bytes
            );
        }
        rust.push_str("        ] },\n");
    }
    rust.push_str("];\n");
    rust
}
