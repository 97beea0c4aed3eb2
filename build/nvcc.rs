//! Where nvcc is, and the tools beside it.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Result;

/// The compiler and the tools that it calls itself.
pub struct Nvcc {
    pub path: PathBuf,
    pub version: String,
    pub ptxas: PathBuf,
    pub fatbinary: PathBuf,
}

impl Nvcc {
    pub fn find() -> Result<Nvcc> {
        let path = find_nvcc()?;
        let version = version(&path)?;
        // nvcc may be a link or a script: it knows where its tools are.
        let plan = Command::new(&path).args(["--dryrun", "-ptx", "any.cu"]).output();
        let plan = plan.map_err(|e| format!("nvcc does not run: {e}"))?;
        let plan = String::from_utf8_lossy(&plan.stderr).into_owned();
        let folder = plan.lines().find_map(|line| line.strip_prefix("#$ _HERE_="));
        let folder = folder
            .map(str::trim)
            .ok_or_else(|| format!("nvcc --dryrun said nothing of its tools: {plan}"))?;
        let tool = |name| Path::new(folder).join(name);
        Ok(Nvcc { path, version, ptxas: tool("ptxas"), fatbinary: tool("fatbinary") })
    }
}

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

fn version(nvcc: &Path) -> Result<String> {
    let output =
        Command::new(nvcc).arg("--version").output().map_err(|e| format!("nvcc does not run: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split(", V").nth(1).and_then(|rest| rest.split_whitespace().next());
    version.map(str::to_string).ok_or_else(|| format!("nvcc --version said nothing of its version: {text}"))
}
