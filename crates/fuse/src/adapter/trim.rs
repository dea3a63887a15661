//! `FITRIM`, as fstrim(8) sends it.
//!
//! The kernel passes a `struct fstrim_range` in and out: start, length and minimum length of a free
//! extent, in bytes. The length is returned as the number of discarded bytes.
//!
//! One trim runs at a time, in the thread that received its request; the other threads of the
//! transport serve other requests. An INTERRUPT ends it between two zones.

use stitch_base::sync::Arc;
use stitch_base::sync::atomic::{AtomicU64, Ordering};

use super::Adapter;
use super::process::Process;
use crate::errno::Errno;
use crate::handler::{Answer, Context};
use crate::wire::codec::{Fields, Reader, Sink, WireError};

/// `FITRIM`
pub(super) const FITRIM: u32 = 0xc018_5879;

/// `struct fstrim_range`, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrimArgs {
    /// First byte.
    pub start: u64,
    /// Number of bytes.
    pub len: u64,
    /// Shorter free extents are left alone.
    pub extent_bytes_min: u64,
}

impl TrimArgs {
    fn parse(input: &[u8]) -> Result<Self, WireError> {
        let mut input = Reader::new(input);
        Ok(Self {
            start: input.u64()?,
            len: input.u64()?,
            extent_bytes_min: input.u64()?,
        })
    }
}

/// Discards free space and returns the number of bytes. Ends early with `EINTR` once the second
/// argument returns true.
pub type Trim = Arc<dyn Fn(TrimArgs, &dyn Fn() -> bool) -> Answer<u64> + Send + Sync>;

/// The running trim, if any.
#[derive(Default)]
pub(super) struct Trims {
    trim: Option<Trim>,
    /// Number of its request; 0 if none runs.
    running: AtomicU64,
    /// Number of the request that was interrupted last.
    interrupted: AtomicU64,
}

impl Adapter {
    /// Serves `FITRIM`.
    #[must_use]
    pub fn with_trim(mut self, trim: Trim) -> Self {
        self.trims.trim = Some(trim);
        self
    }
}

impl Trims {
    pub(super) fn serve(
        &self,
        context: &Context<'_>,
        input: &[u8],
        out: &mut Sink<'_>,
    ) -> Answer<i32> {
        let trim = self.trim.as_ref().ok_or(Errno::ENOTTY)?;
        if !Process::of(context).is_admin() {
            return Err(Errno::EPERM);
        }
        let args = TrimArgs::parse(input).map_err(|_| Errno::EINVAL)?;
        self.running
            .compare_exchange(0, context.unique, Ordering::AcqRel, Ordering::Relaxed)
            .map_err(|_| Errno::EBUSY)?;
        let is_interrupted = || self.interrupted.load(Ordering::Acquire) == context.unique;
        let trimmed = trim(args, &is_interrupted);
        self.running.store(0, Ordering::Release);
        let reply = Fields::<24>::default()
            .u64(args.start)
            .u64(trimmed?)
            .u64(args.extent_bytes_min);
        if out.put(&reply.done()) {
            Ok(0)
        } else {
            Err(Errno::EINVAL)
        }
    }

    /// Ends the trim of the request with this number.
    pub(super) fn interrupt(&self, unique: u64) {
        if self.running.load(Ordering::Acquire) == unique {
            self.interrupted.store(unique, Ordering::Release);
        }
    }
}
