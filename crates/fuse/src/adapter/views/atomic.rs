//! FLUSH, which ends atomic writes, routed to the view that the file is in.

use stitch_base::Ino;

use super::Views;
use super::node::Node;
use crate::errno::Errno;
use crate::handler::{Answer, Context};

impl Views {
    /// FLUSH. `ENOSYS` in a mount without atomic writes: the kernel sends no more.
    pub(super) fn flush_file(&self, context: &Context<'_>, ino: Ino) -> Answer<()> {
        if !self.mainline.options.atomic_writes {
            return Err(Errno::ENOSYS);
        }
        match self.node(ino) {
            Node::Mainline => self.mainline.flush_request(context, ino),
            Node::Live(slot, ino) => {
                let flushed = self.live(slot, |adapter| adapter.flush_request(context, ino));
                // Nothing is lost with a view that is gone.
                flushed.or(Ok(()))
            }
            _ => Ok(()),
        }
    }
}
