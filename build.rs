//! Compiles every `kernels/*.cu`, for the GPUs that TILEWISE_CUDA_TARGETS names, to one compressed fatbin and writes
//! a table of them, with the compiler's resource report, for `src/cuda/module.rs` to embed. A spill or a warning about
//! serialised wgmma or an ignored setmaxnreg is a build failure.

#[path = "build/compile.rs"]
mod compile;
#[path = "build/nvcc.rs"]
mod nvcc;
#[path = "build/parallel.rs"]
mod parallel;
#[path = "build/record.rs"]
mod record;
#[path = "build/resources.rs"]
mod resources;
#[path = "build/selection.rs"]
mod selection;
#[path = "build/sources.rs"]
mod sources;
#[path = "src/cuda/targets.rs"]
mod targets;

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use compile::Compiled;
use nvcc::Nvcc;
use selection::Selection;
use sources::KernelFile;

pub type Result<T> = std::result::Result<T, String>;

fn main() {
    println!("cargo:rerun-if-changed=kernels");
    for name in ["TILEWISE_CUDA_TARGETS", "NVCC", "CUDA_HOME", "CUDA_PATH", "PYO3_PYTHON", "VIRTUAL_ENV"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    if let Err(sentence) = build() {
        eprintln!("\ntilewise: {sentence}\n");
        std::process::exit(1);
    }
}

fn build() -> Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo did not set OUT_DIR")?);
    // target/kernels: shared by all profiles, so that checking, testing and building compile once. A build that names
    // its triple has a folder of that name in between.
    let triple = env::var("TARGET").map_err(|_| "cargo did not set TARGET")?;
    let mut folders = out.ancestors().skip(4).skip_while(|folder| folder.ends_with(&triple));
    let target = folders.next().ok_or("OUT_DIR is not below a target folder")?;
    let selection = Selection::parse(&env::var("TILEWISE_CUDA_TARGETS").unwrap_or_default())?;
    let mut files = sources::kernel_files(Path::new("kernels"))?;
    for file in &mut files {
        file.targets = selection.of(&file.stem, &file.complete);
    }
    let nvcc = if files.iter().all(|file| file.targets.is_empty()) { None } else { Some(Nvcc::find()?) };
    let mut compiled = match &nvcc {
        Some(nvcc) => compile::compile(nvcc, &files, &target.join("kernels"))?,
        None => files.iter().map(Compiled::empty).collect(),
    };
    if selection.emulated() {
        let mut recorded = record::read(Path::new(record::PATH))?;
        for c in &mut compiled {
            let others = recorded.remove(&c.file.stem).unwrap_or_default().into_iter();
            c.kernels.extend(others.filter(|kernel| !c.file.targets.contains(&kernel.target)));
        }
    }
    let table = table(nvcc.map(|nvcc| nvcc.version), &compiled, selection.emulated());
    fs::write(out.join("fatbins.rs"), table).map_err(|e| format!("cannot write fatbins.rs: {e}"))
}

/// The Rust source of the table that `src/cuda/module.rs` includes.
fn table(nvcc: Option<String>, compiled: &[Compiled], emulated: bool) -> String {
    let mut rust = format!(
        "/// None: nothing was compiled.\npub const NVCC_VERSION: Option<&str> = {nvcc:?};\n\
         /// Kernels without machine code, too: a build for tests/emulator.\npub const EMULATED: bool = {emulated};\n\n\
         pub static FATBINS: &[Fatbin] = &[\n"
    );
    for c in compiled {
        let KernelFile { stem, complete, targets, .. } = c.file;
        let targets = if emulated { complete } else { targets };
        let nothing = if emulated { "*b\"none\"" } else { "[]" };
        let image = c.fatbin.as_ref().map_or(nothing.into(), |path| format!("*include_bytes!({path:?})"));
        let _ =
            writeln!(rust, "    Fatbin {{ file: {stem:?}, complete: &{complete:?}, targets: &{targets:?},");
        let _ = writeln!(rust, "        image: &Aligned({image}),\n        kernels: &[");
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
