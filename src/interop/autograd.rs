//! What torch's autograd is asked before its tensors are used, and told after one has been overwritten.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBool};

use super::Argument;
use crate::error::{Error, Result};

/// The functions of torch for it, looked up once.
#[derive(Debug)]
pub struct Autograd {
    is_grad_enabled: Py<PyAny>,
    forward_ad: Py<PyAny>,
    increment_version: IncrementVersion,
}

/// torch.autograd.graph.increment_version, or below it the function in C at a third of the cost, which
/// takes a tuple (since torch 2.5).
#[derive(Debug)]
enum IncrementVersion {
    Public(Py<PyAny>),
    Direct(Py<PyAny>),
}

impl Autograd {
    pub fn of(torch: &Bound<'_, PyAny>) -> PyResult<Autograd> {
        let py = torch.py();
        let autograd = torch.getattr("autograd")?;
        let on_cpu = [("device", "cpu")].into_py_dict(py)?;
        let probe = torch.call_method("empty", (0,), Some(&on_cpu))?;
        let increment_version = match torch.getattr("_C")?.getattr_opt("_increment_version")? {
            Some(direct) if direct.call1(((probe,),)).is_ok() => IncrementVersion::Direct(direct.unbind()),
            _ => IncrementVersion::Public(autograd.getattr("graph")?.getattr("increment_version")?.unbind()),
        };
        Ok(Autograd {
            is_grad_enabled: torch.getattr("is_grad_enabled")?.unbind(),
            forward_ad: autograd.getattr("forward_ad")?.unbind(),
            increment_version,
        })
    }

    /// Refuses tensors whose gradients would be lost without a word.
    pub fn refuse(&self, argument: Argument, tensor: &Bound<'_, PyAny>) -> Result<()> {
        let py = tensor.py();
        let Argument { op, name, .. } = argument;
        let truth = PyBool::new(py, true);
        if tensor.getattr(intern!(py, "requires_grad"))?.is(truth)
            && self.is_grad_enabled.bind(py).call0()?.is_truthy()?
        {
            return Err(Error::RequiresGrad { op, argument: name });
        }
        if self.is_dual(tensor)? {
            return Err(Error::TensorKind {
                op,
                argument: name,
                got: "a dual tensor of forward-mode differentiation".into(),
                remedy: "pass its primal, of torch.autograd.forward_ad.unpack_dual",
            });
        }
        Ok(())
    }

    /// Whether a tensor carries a tangent of forward-mode differentiation, which its memory does not show.
    fn is_dual(&self, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = tensor.py();
        let forward = self.forward_ad.bind(py);
        // torch's own guard: -1 outside of every dual_level.
        let level = forward.getattr_opt(intern!(py, "_current_level"))?;
        if level.is_none_or(|l| l.extract::<i64>().unwrap_or(-1) < 0) {
            return Ok(false);
        }
        let unpacked = forward.call_method1(intern!(py, "unpack_dual"), (tensor,))?;
        Ok(!unpacked.getattr(intern!(py, "tangent"))?.is_none())
    }

    /// Counts one more version of a tensor: by comparing versions, autograd notices that what it saved for
    /// a backward pass has been overwritten.
    pub fn overwritten(&self, tensor: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = tensor.py();
        match &self.increment_version {
            IncrementVersion::Public(function) => function.bind(py).call1((tensor,)),
            IncrementVersion::Direct(function) => function.bind(py).call1(((tensor,),)),
        }
        .map(|_| ())
    }
}
