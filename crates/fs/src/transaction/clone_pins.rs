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
//! A transaction in another one shows clones as that one does, and has no pin. Of a serializable
//! one, what is read at the pin is noted in its read set (see [`super::reads`]).

use super::{ReadSet, TransactionIsolation, Transactions};
use crate::pins::pinned_transaction;
use crate::snapshot::SnapshotView;
use crate::system::FileSystem;
use crate::views::ViewSet;
use crate::{FsError, FsOptions, FsResult};
use std::collections::BTreeMap;
use stitch_base::sync::Arc;
use stitch_base::{Ino, PinId, TreeId};
use stitch_format::fs_transaction::{transaction_of_pin, transaction_pin, transaction_tree};
use stitch_kv::{Engine, KvError, PinInfo, Snapshot, TreeInfo};

/// Creates, finds and drops the pins of transactions.
#[derive(Clone, Copy)]
pub(super) struct ClonePins<'fs> {
    pub(super) engine: &'fs Arc<dyn Engine>,
    options: &'fs FsOptions,
    /// The clones of the store, and the rollbacks in them.
    pub(super) views: &'fs ViewSet,
}

impl<'fs> ClonePins<'fs> {
    pub(super) fn of(mainline: &'fs FileSystem) -> Self {
        Self {
            engine: mainline.engine(),
            options: &mainline.options,
            views: &mainline.standing.views,
        }
    }

    /// Pins the present for a transaction that is about to begin. Returns the moment; `None` in a
    /// store without clones, and where the transaction cannot show them.
    ///
    /// # Durability
    /// On the medium when this returns.
    pub(super) fn create(self, number: Ino) -> FsResult<Option<Snapshot>> {
        debug_assert!(number.0 > 0, "0 is no number");
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
        Ok(self.info(number)?.map(|pin| pin.id))
    }

    fn info(self, number: Ino) -> FsResult<Option<PinInfo>> {
        if !self.engine.capabilities().pins {
            return Ok(None);
        }
        let pin = self.engine.pin_by_name(&transaction_pin(number.0))?;
        debug_assert!(
            pin.as_ref()
                .is_none_or(|pin| transaction_of_pin(&pin.name) == Some(number.0)),
            "the pin of the transaction"
        );
        Ok(pin)
    }

    /// Returns the moment of the pin of a transaction, if it has one.
    pub(super) fn moment(self, number: Ino) -> FsResult<Option<Snapshot>> {
        debug_assert!(number.0 > 0, "0 is no number");
        let pin = self.info(number)?;
        let moment = pin.map(|pin| self.engine.open_pin(&pin.name));
        Ok(moment.transpose()?)
    }

    /// Returns the trees of a moment by their names.
    pub(super) fn trees_at(self, moment: &Snapshot) -> BTreeMap<String, TreeId> {
        let trees = self.engine.trees_at(moment);
        let count = trees.len();
        let named = trees.into_iter().map(|tree| (tree.name, tree.id));
        let named: BTreeMap<String, TreeId> = named.collect();
        debug_assert_eq!(named.len(), count, "a name is of one tree");
        named
    }

    /// Opens what the pin of a transaction shows, if it has one. What is read of it is not noted.
    pub(super) fn open(self, number: Ino) -> FsResult<Option<SnapshotView>> {
        let Some(pin) = self.info(number)? else {
            return Ok(None);
        };
        let Some(info) = pinned_transaction(&pin) else {
            return Ok(None);
        };
        debug_assert!(info.path.is_empty(), "it shows the root directory");
        debug_assert_eq!(info.view, 0, "it shows mainline");
        SnapshotView::open_pin(self.engine, self.options, &pin.name, info).map(Some)
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

/// Where reads at the pins of transactions are noted.
#[derive(Clone, Copy)]
pub(crate) struct PinReads<'fs> {
    fs: &'fs FileSystem,
}

impl<'fs> PinReads<'fs> {
    pub(crate) const fn of(fs: &'fs FileSystem) -> Self {
        Self { fs }
    }

    /// Returns the read set of the transaction that a pin is of; `None` if that does not check its
    /// reads, or nothing can be written.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if the transaction has ended.
    pub(crate) fn of_pin(self, pin: &PinInfo) -> FsResult<Option<Arc<ReadSet>>> {
        let number = transaction_of_pin(&pin.name);
        let number = number.ok_or(FsError::Invalid("the pin of no transaction"))?;
        if self.fs.is_read_only() || !self.fs.is_mainline() {
            return Ok(None);
        }
        debug_assert!(self.fs.branch.is_none(), "mainline has the transactions");
        let found = self.fs.transactions().reads_at_pin(Ino(number));
        found.map_err(|error| match error {
            FsError::Ended => FsError::NotFound,
            error => error,
        })
    }
}

impl Transactions<'_> {
    fn reads_at_pin(&self, number: Ino) -> FsResult<Option<Arc<ReadSet>>> {
        debug_assert!(number.0 > 0, "0 is no number");
        debug_assert!(self.is_mainline, "mainline is asked");
        if let Some(reads) = self.table.reads.find(number) {
            return Ok(Some(reads));
        }
        let record = self.catalog.open_record(number)?;
        if record.isolation != TransactionIsolation::Serializable {
            return Ok(None);
        }
        // Its set is kept from here on.
        let _one_at_a_time = self.table.change();
        Ok(self.view_of(number)?.fs.reads.clone())
    }
}
