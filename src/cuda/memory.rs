//! Device memory and events, for results whose library has no allocator that we could ask.

use std::ptr::with_exposed_provenance_mut;
use std::sync::OnceLock;

use cudarc::driver::{result, sys};

use super::RawStream;
use super::driver::{Relaxed, error};
use super::gpu::Gpu;
use crate::error::Result;

/// Memory from the device's stream-ordered pool, given back when dropped.
#[derive(Debug)]
pub struct Block {
    pub address: usize,
    gpu: &'static Gpu,
    ordinal: i32,
    /// A library's own, which may be destroyed before the memory is given back.
    stream: RawStream,
    written: OnceLock<Event>,
}

/// The legacy default stream: it lasts as long as its context.
const LEGACY: RawStream = 0;

impl Block {
    /// Uninitialised memory that work queued on `stream` from now on may use.
    pub fn allocate(op: &'static str, ordinal: i32, bytes: usize, stream: RawStream) -> Result<Block> {
        let gpu = Gpu::get(op, ordinal)?;
        let _entered = gpu.context.enter(op)?;
        // SAFETY: the context of the stream's device is current; nothing reads the memory before it is
        // written, as it is only ever an output.
        let address = unsafe { result::malloc_async(with_exposed_provenance_mut(stream), bytes.max(1)) }
            .map_err(|e| error(op, "allocating the result", e))?;
        Ok(Block { address: address as usize, gpu, ordinal, stream, written: OnceLock::new() })
    }

    /// Says that the work which writes the memory is queued. From here on its stream is not needed any more.
    pub fn written(&self, op: &'static str) -> Result<()> {
        let event = Event::record(op, self.ordinal, self.stream)?;
        // Said once only.
        let _ = self.written.set(event);
        Ok(())
    }

    /// Lets `stream` go on only after the memory is written.
    pub fn hold_back(&self, op: &'static str, stream: RawStream) -> Result<()> {
        self.written.get().map_or(Ok(()), |written| written.hold_back(op, stream))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // Nothing can be done about failures here; they surface in the next call.
        let Ok(_entered) = self.gpu.context.enter("free") else { return };
        let _relaxed = Relaxed::begin();
        // Without the event this is still within the call that got the stream.
        let stream = if self.written.get().is_some() { LEGACY } else { self.stream };
        let _ = self.hold_back("free", stream);
        // SAFETY: allocated by `allocate`, freed only here, after everybody who used it let go.
        let _ = unsafe {
            result::free_async(self.address as sys::CUdeviceptr, with_exposed_provenance_mut(stream))
        };
    }
}

/// A point in a stream's work.
#[derive(Debug)]
pub struct Event {
    event: sys::CUevent,
    gpu: &'static Gpu,
}

// SAFETY: an event handle is a name that any thread may pass to the driver, which locks internally.
unsafe impl Send for Event {}
// SAFETY: as above; the handle is never changed after creation.
unsafe impl Sync for Event {}

impl Event {
    /// The point that `stream` has been given work up to.
    pub fn record(op: &'static str, ordinal: i32, stream: RawStream) -> Result<Event> {
        let fail = |e| error(op, "recording an event", e);
        let gpu = Gpu::get(op, ordinal)?;
        let _entered = gpu.context.enter(op)?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
            .map(|event| Event { event, gpu });
        let event = event.map_err(fail)?;
        // SAFETY: the event was just created in the current context, which is the stream's.
        unsafe { result::event::record(event.event, with_exposed_provenance_mut(stream)) }.map_err(fail)?;
        Ok(event)
    }

    /// Whether the work before this point is done. Also true if the device failed: nothing runs then.
    pub fn is_done(&self) -> bool {
        let _relaxed = Relaxed::begin();
        // SAFETY: the event lives until drop.
        let state = unsafe { result::event::query(self.event) };
        !matches!(state, Err(e) if e.0 == sys::CUresult::CUDA_ERROR_NOT_READY)
    }

    /// Lets `stream` go on only after this point; the host does not wait.
    pub fn hold_back(&self, op: &'static str, stream: RawStream) -> Result<()> {
        let _entered = self.gpu.context.enter(op)?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the event lives until drop, and the driver keeps what it needs of it beyond.
        unsafe { result::stream::wait_event(with_exposed_provenance_mut(stream), self.event, flags) }
            .map_err(|e| error(op, "ordering two streams", e))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Ok(_entered) = self.gpu.context.enter("free") else { return };
        // SAFETY: created by `record`, destroyed only here.
        let _ = unsafe { result::event::destroy(self.event) };
    }
}
