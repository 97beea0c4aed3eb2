//! The tests of what the build script is made of, which stand beside it.

#[allow(dead_code)] // The script's own `main`, and what only that needs.
#[path = "../build.rs"]
mod build_script;
