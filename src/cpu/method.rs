//! What solves a problem on a CPU, as `explain` names it.

use super::isa;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Method {
    /// What they run over.
    pub loops: &'static str,
    /// Where they are.
    pub file: String,
    /// What they are compiled for, of what the CPU has.
    pub instructions: &'static str,
}

impl Method {
    /// Loops in this file of `src/cpu`, for the widest instructions.
    pub fn new(loops: &'static str, file: &str) -> Method {
        Method { loops, file: format!("src/cpu/{file}"), instructions: isa::name() }
    }

    pub fn with(self, instructions: &'static str) -> Method {
        Method { instructions, ..self }
    }
}
