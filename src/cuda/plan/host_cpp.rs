//! For tests: the kernels' headers of pure index arithmetic, compiled as plain C++ and run here.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// What a C++ program prints, which may include everything in kernels/common that needs no CUDA. None,
/// with the reason printed, on a machine without a C++ compiler.
pub fn run(program: &str) -> Option<String> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("tilewise-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let (source, executable) = (folder.join("main.cpp"), folder.join("main"));
    std::fs::write(&source, program).unwrap();
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let compiled = Command::new(&compiler)
        .args(["-std=c++17", "-O1", "-I", concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/common"), "-o"])
        .args([&executable, &source])
        .status();
    let printed = match compiled {
        Err(e) => {
            println!("skipped: no C++ compiler ({compiler}: {e})");
            None
        }
        Ok(status) => {
            assert!(status.success(), "does not compile as plain C++:\n{program}");
            let output = Command::new(&executable).output().unwrap();
            let printed = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success(), "{printed}");
            Some(printed)
        }
    };
    std::fs::remove_dir_all(&folder).unwrap();
    printed
}
