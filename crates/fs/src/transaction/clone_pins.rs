//! Pins of the moments at which transactions began: they keep what a transaction shows of clones.
//!
//! ```text
//! begin    store with clones:  pin "txn/N"; branches of mainline's trees at its moment; record N
//!          others:             branches of mainline's trees as they are; record N
//! rebase   likewise, under the new number
//! end      branches and record go, then the pin
//! open     pins without an open record are dropped
//! ```
//!
//! A transaction in another one shows clones as that one does, and has no pin. A serializable one
//! has none: its commit checks what was read, and reads of a pin are not noted.

use crate::system::FileSystem;
use crate::views::ViewSet;
use crate::{FsError, FsResult};
use stitch_base::sync::Arc;
use stitch_base::{Ino, PinId};
use stitch_format::fs_transaction::{transaction_of_pin, transaction_pin, transaction_tree};
use stitch_kv::{Engine, KvError, Snapshot, TreeInfo};

/// Creates, finds and drops the pins of transactions.
#[derive(Clone, Copy)]
pub(super) struct ClonePins<'fs> {
    engine: &'fs Arc<dyn Engine>,
    /// The clones of the store, and the rollbacks in them.
    views: &'fs ViewSet,
}

impl<'fs> ClonePins<'fs> {
    pub(super) fn of(mainline: &'fs FileSystem) -> Self {
        Self {
            engine: mainline.engine(),
            views: &mainline.standing.views,
        }
    }

    /// Pins the present for a transaction that is about to begin. Returns the moment; `None` in a
    /// store without clones, and where the transaction cannot show them.
    ///
    /// # Durability
    /// On the medium when this returns.
    pub(super) fn create(self, number: Ino) -> FsResult<Option<Snapshot>> {
        if !self.engine.capabilities().pins || !self.views.has_any() {
            return Ok(None);
        }
        // No transaction shows half of a rollback.
        let _whole = self.views.snapshot_change.lock();
        let interrupted = self.views.under_way.interrupted();
        let is_there = |view: &u64| *view == 0 || self.views.record(*view).is_some();
        if interrupted.iter().any(is_there) {
            return Ok(None);
        }
        let name = transaction_pin(number.0);
        // What other transactions have written is not shown: their commits stay cheap.
        let is_held = |tree: &TreeInfo| transaction_tree(&tree.name).is_none();
        self.engine.create_pin_of(&name, &[], &is_held)?;
        let moment = self.engine.open_pin(&name);
        if moment.is_err() {
            self.drop_pin(number);
        }
        Ok(Some(moment?))
    }

    /// Returns the number of the pin of a transaction, if it has one.
    pub(super) fn find(self, number: Ino) -> FsResult<Option<PinId>> {
        if !self.engine.capabilities().pins {
            return Ok(None);
        }
        let pin = self.engine.pin_by_name(&transaction_pin(number.0))?;
        debug_assert!(
            pin.as_ref()
                .is_none_or(|pin| transaction_of_pin(&pin.name) == Some(number.0)),
            "the pin of the transaction"
        );
        Ok(pin.map(|pin| pin.id))
    }

    /// Drops the pin of a transaction that has ended, if it has one. One that stays is dropped at
    /// the next open.
    pub(super) fn drop_pin(self, number: Ino) {
        // Most have none, and a drop waits for what the engine installs.
        let dropped = match self.find(number) {
            Ok(None) => return,
            Ok(Some(_)) => match self.engine.drop_pin(&transaction_pin(number.0)) {
                Err(KvError::PinNotFound(_)) => Ok(()),
                done => done.map_err(FsError::from),
            },
            Err(error) => Err(error),
        };
        if let Err(error) = dropped {
            tracing::warn!(%error, number = number.0, "the pin of a transaction stays");
        }
    }

    /// Drops the pins of all transactions but those of these numbers, in order: a crash left them.
    pub(super) fn drop_all_but(self, open: &[Ino]) -> FsResult<()> {
        debug_assert!(open.is_sorted(), "it is searched by halves");
        if !self.engine.capabilities().pins {
            return Ok(());
        }
        let numbers = self.engine.pins()?.into_iter();
        let numbers = numbers.filter_map(|pin| transaction_of_pin(&pin.name).map(Ino));
        for number in numbers.filter(|number| open.binary_search(number).is_err()) {
            self.drop_pin(number);
        }
        Ok(())
    }
}
