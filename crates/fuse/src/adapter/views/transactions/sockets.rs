//! Sockets on which the records of transactions are served.

use std::fmt::Debug;

use stitch_base::sync::Arc;
use stitch_fs::TransactionView;

use crate::adapter::views::control::ControlLink;
use crate::handler::Answer;

/// Serves the records of transactions to other programs, a socket for each. Shared by threads.
pub trait TransactionSockets: Debug + Send + Sync {
    /// Returns the link to the socket of an open transaction. Begins to serve it, if it is not
    /// served.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a transaction without the records that are served; `EACCES` if its owner
    /// could not reach the socket; those of the system.
    fn open(&self, view: &Arc<TransactionView>) -> Answer<ControlLink>;

    /// Ends the socket of a transaction, if it has one. Not from the thread that serves it.
    fn end(&self, number: u64);

    /// Ends all sockets, for good.
    fn end_all(&self);
}
