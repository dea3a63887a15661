//! Requests for what a directory needs of the space; see [`crate::usage`].
//!
//! One such request runs at a time, in the thread that received it, as [`crate::Trim`] does. An
//! INTERRUPT ends it.

use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_base::sync::atomic::{AtomicU64, Ordering};

use super::Views;
use super::changes::check_owner;
use super::node::Node;
use crate::adapter::report::put_framed;
use crate::errno::Errno;
use crate::handler::{Answer, Context, Handler as _};
use crate::wire::codec::Sink;

/// Returns what the directory with this number in the mount needs, as JSON. Ends early, with
/// `EINTR`, once the second argument returns true.
pub type TellUsage = Arc<dyn Fn(Ino, &dyn Fn() -> bool) -> Answer<Vec<u8>> + Send + Sync>;

/// The request that runs, if any.
#[derive(Default)]
pub(super) struct UsageRequests {
    tell: Option<TellUsage>,
    /// Number of the request; 0 if none runs.
    running: AtomicU64,
    /// Number of the request that was interrupted last.
    interrupted: AtomicU64,
}

impl UsageRequests {
    /// Ends the request with this number.
    pub(super) fn interrupt(&self, unique: u64) {
        if self.running.load(Ordering::Acquire) == unique {
            self.interrupted.store(unique, Ordering::Release);
        }
    }

    fn run(&self, context: &Context<'_>, dir: Ino) -> Answer<Vec<u8>> {
        let tell = self.tell.as_ref().ok_or(Errno::ENOTTY)?;
        self.running
            .compare_exchange(0, context.unique, Ordering::AcqRel, Ordering::Relaxed)
            .map_err(|_| Errno::EBUSY)?;
        let is_interrupted = || self.interrupted.load(Ordering::Acquire) == context.unique;
        let told = tell(dir, &is_interrupted);
        self.running.store(0, Ordering::Release);
        told
    }
}

impl Views {
    /// Tells owners what their directories need of the space.
    #[must_use]
    pub fn with_usage(mut self, tell: TellUsage) -> Self {
        self.usage.tell = Some(tell);
        self
    }

    /// Serves a request for what a directory needs.
    pub(super) fn ask_usage(
        &self,
        context: &Context<'_>,
        dir: Ino,
        input: &[u8],
        out: &mut Sink<'_>,
    ) -> Answer<i32> {
        if !crate::usage::is_request(input) {
            return Err(Errno::EINVAL);
        }
        match self.node(dir) {
            Node::Mainline | Node::Past(..) => {}
            Node::Live(slot, _) if !slot.is_transaction() => {}
            _ => return Err(Errno::ENOTSUP),
        }
        let attr = self.getattr(context, dir)?.attr;
        if attr.mode & libc::S_IFMT != libc::S_IFDIR {
            return Err(Errno::ENOTDIR);
        }
        check_owner(context, attr.uid)?;
        put_framed(&self.usage.run(context, dir)?, out)?;
        Ok(0)
    }
}
