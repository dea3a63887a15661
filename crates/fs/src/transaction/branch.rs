//! File systems over branches: that of a transaction, and what it began with.

use super::catalog::schema_name;
use super::grafts::Grafts;
use super::own::BranchTrees;
use super::{ReadSet, TransactionView};
use crate::aside::Aside;
use crate::atomic::AtomicWrites;
use crate::locator::Tree;
use crate::numbers::Numbers;
use crate::room::SharedRoom;
use crate::schema::{FIRST_INO, SCHEMA, Store};
use crate::system::FileSystem;
use crate::views::{Standing, ViewSet};
use crate::{AtimePolicy, FsOptions, FsResult};
use stitch_base::sync::Arc;
use stitch_base::{Ino, PinId};
use stitch_format::fs_transaction::TransactionLife;
use stitch_kv::{Engine, SnapshotEngine, UncommittedEngine};

/// Rules of a transaction's file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BranchRules {
    /// Inodes with smaller numbers are mainline's too.
    pub(super) first_ino: u64,
    pub(super) life: TransactionLife,
}

impl BranchRules {
    /// Reports whether an inode was made in the transaction: no other file system has it.
    pub(crate) const fn owns(self, ino: Ino) -> bool {
        ino.0 >= self.first_ino
    }

    /// Reports whether a sync reaches the medium. What a run has done is made durable by its
    /// commit.
    pub(super) const fn syncs(self) -> bool {
        matches!(self.life, TransactionLife::Named)
    }
}

/// What a file system over branches of mainline's trees needs of mainline.
#[derive(Debug)]
pub(crate) struct Branch {
    pub(crate) numbers: Arc<Numbers>,
    pub(crate) rules: BranchRules,
    /// What a serializable transaction has read.
    pub(crate) reads: Option<Arc<ReadSet>>,
    /// Directories at which clones lie.
    pub(crate) grafts: Grafts,
}

/// Opens file systems over branch trees. They share with mainline the numbers of inodes, the count
/// of the room that was given back, and the memory of atomic writes.
#[derive(Clone, Copy)]
pub(super) struct BranchOpener<'fs> {
    engine: &'fs Arc<dyn Engine>,
    options: &'fs FsOptions,
    numbers: &'fs Arc<Numbers>,
    room: &'fs Arc<SharedRoom>,
    atomic_writes: &'fs AtomicWrites,
}

impl<'fs> BranchOpener<'fs> {
    pub(super) const fn of(mainline: &'fs FileSystem) -> Self {
        Self {
            engine: mainline.engine(),
            options: &mainline.options,
            numbers: &mainline.numbers,
            room: &mainline.standing.room,
            atomic_writes: &mainline.atomic_writes,
        }
    }

    /// Returns the number that the next inode gets, or a smaller one. What branches hold that were
    /// made before has smaller numbers.
    pub(super) fn next_number(&self) -> u64 {
        let next = self.numbers.next();
        debug_assert!(next >= FIRST_INO, "smaller numbers are kept");
        next
    }

    /// Opens the file system over the branches of a number. Clones are shown as `clones_at` shows
    /// them, if at all.
    pub(super) fn open(
        &self,
        number: Ino,
        rules: BranchRules,
        (reads, clones_at): (Option<Arc<ReadSet>>, Option<PinId>),
    ) -> FsResult<FileSystem> {
        let options = FsOptions {
            // A read must not be a change that a commit has to look at.
            atime: AtimePolicy::Noatime,
            ledger: None,
            external: None,
            ..self.options.clone()
        };
        let engine: Arc<dyn Engine> = Arc::new(UncommittedEngine::new(Arc::clone(self.engine)));
        let store = Store::open(&engine, &schema_name(number))?;
        let branch = Branch {
            reads,
            numbers: Arc::clone(self.numbers),
            rules,
            grafts: Grafts::read(&store, clones_at)?,
        };
        // No clone is a part of it: see `Grafts`.
        let standing = Standing {
            number: 0,
            views: Arc::new(ViewSet::none()),
            room: Arc::clone(self.room),
        };
        let mut fs = FileSystem::of_store(
            Arc::clone(self.engine),
            options,
            store,
            standing,
            Aside::default(),
            Some(branch),
        )?;
        debug_assert!(!fs.atomic_writes.any(), "none has started");
        fs.atomic_writes = AtomicWrites::beside(self.atomic_writes);
        debug_assert_eq!(fs.view_number(), 0, "a transaction is one of mainline");
        debug_assert!(fs.branch.is_some(), "it has the rules of its transaction");
        debug_assert!(!fs.is_mainline(), "the records are mainline's");
        Ok(fs)
    }

    /// Opens what a transaction began with, for reading.
    pub(super) fn open_base(&self, view: &TransactionView) -> FsResult<FileSystem> {
        let moments = BranchTrees::of(&view.fs)?.moments();
        debug_assert_eq!(moments.len(), Tree::ALL.len(), "the moment of each tree");
        let past = SnapshotEngine::of_trees(Arc::clone(self.engine), moments);
        let outer = view.outer.as_ref();
        let schema = outer.map_or(SCHEMA.to_owned(), |outer| schema_name(outer.number));
        // The moment is held of the trees that the transaction branched from, not of clones.
        let standing = Standing {
            number: 0,
            views: Arc::new(ViewSet::none()),
            room: Arc::default(),
        };
        let base = FileSystem::open_with(
            Arc::new(past),
            self.options.of_past(),
            &schema,
            standing,
            Aside::default(),
        )?;
        debug_assert!(base.is_read_only(), "the past does not change");
        debug_assert!(base.branch.is_none(), "what it began with has no rules");
        Ok(base)
    }
}
