//! The contract itself.

use crate::{
    Batch, Capabilities, ChangedKey, Counters, DeletedRange, Guards, Holder, KeyRanges, KvError,
    Limits, NewBranch, PinInfo, PinRanges, Snapshot, SpaceShare, TreeInfo, TreeOptions,
    UpsertRegistry,
};
use stitch_base::{PinId, Seqno, TreeId};

/// Whether a commit may use the space that is kept back for getting out of a full store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpaceClass {
    /// Refused with [`KvError::NoSpace`] while the reserve is all that is left.
    #[default]
    Normal,
    /// For what gives space back: deletes, truncation. May use the reserve.
    Reserve,
    /// For what [`Engine::set_aside`] keeps space for. May use that space, and a part of the
    /// reserve, so that values in it can be put again.
    Allocated,
    /// For what a transaction writes before it commits. Refused while [`kept_from_uncommitted`]
    /// bytes are all that is left to [`SpaceClass::Normal`]: a transaction that fills the store
    /// leaves these to the others.
    Uncommitted,
}

/// Returns the bytes, of those that a store has in all, which are left to
/// [`SpaceClass::Normal`] commits when [`SpaceClass::Uncommitted`] ones find no space: a 32nd, at
/// most 1 GiB.
#[must_use]
pub fn kept_from_uncommitted(total_bytes: u64) -> u64 {
    let kept_bytes = (total_bytes / 32).min(1 << 30);
    debug_assert!(kept_bytes <= total_bytes, "a part of the store");
    kept_bytes
}

/// How a batch is to be committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitOptions {
    /// Return only when the batch (and all before it) is on the medium.
    pub sync: bool,
    /// Which space it may use.
    pub space: SpaceClass,
}

/// Space of a store, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceUsage {
    /// All that user data could ever take.
    pub total_bytes: u64,
    /// What is left for [`SpaceClass::Normal`] commits.
    pub free_bytes: u64,
}

/// A half-open range of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyRange<'a> {
    /// First key of the range.
    pub start: &'a [u8],
    /// First key after the range; `None` for no end.
    pub end: Option<&'a [u8]>,
}

impl<'a> KeyRange<'a> {
    /// `[start, end)`.
    #[must_use]
    pub const fn new(start: &'a [u8], end: &'a [u8]) -> Self {
        Self {
            start,
            end: Some(end),
        }
    }

    /// Every key.
    #[must_use]
    pub const fn all() -> Self {
        Self {
            start: &[],
            end: None,
        }
    }

    /// Every key from `start` on.
    #[must_use]
    pub const fn from(start: &'a [u8]) -> Self {
        Self { start, end: None }
    }
}

/// The first key after all that begin with `prefix`; `None` if there is no key after them.
#[must_use]
pub fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// Order of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Smallest key first.
    #[default]
    Forward,
    /// Largest key first.
    Backward,
}

/// Order in which the keys of a range are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOrder {
    /// All of them, by scans that follow each other.
    Sequential,
    /// By short scans in any order.
    Random,
}

/// How soon a range is read, beside other ranges that are hinted at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Next, or with what is read now.
    Soon,
    /// After what is read now: its blocks must not evict others that are in use.
    Later,
}

/// A range that is likely to be read: see [`Engine::read_ahead`].
#[derive(Clone, Copy, Debug)]
pub struct ReadHint<'a> {
    /// The keys, about a megabyte of them and their values at most.
    pub range: KeyRange<'a>,
    /// Keys behind the range and before this one are wanted, too, as far as the engine reads them
    /// together with the range. Random order only.
    pub beyond: Option<&'a [u8]>,
    /// Order of the reads.
    pub order: ReadOrder,
    /// How soon they come.
    pub priority: Priority,
    /// Each key is read once: its block bypasses the cache.
    pub once: bool,
}

/// A key and its value, borrowed from a scan.
pub type Entry<'a> = (&'a [u8], &'a [u8]);

/// A scan under way: a consistent view from when it began.
pub trait Scan {
    /// The next key and value, borrowed until the next call; `None` at the end.
    ///
    /// # Errors
    /// [`KvError::Storage`]; the scan is over then.
    fn next(&mut self) -> Result<Option<Entry<'_>>, KvError>;
}

/// Keys that [`Engine::check`] found unreadable, both ends included: a read of one of them may
/// fail, or find what was written later.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LostKeys {
    /// The tree that they are in.
    pub tree: TreeId,
    /// The first of them.
    pub first: Vec<u8>,
    /// The last of them.
    pub last: Vec<u8>,
}

/// A broken rule that [`Engine::check`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What is broken, as a short stable word: `block-checksum`, `table-order`, `filter-miss`, ...
    pub rule: &'static str,
    /// Where and how, for a person.
    pub detail: String,
    /// What cannot be read because of it.
    pub lost: Option<LostKeys>,
}

/// An ordered, transactional store of trees. Shared by threads.
///
/// Every commit is atomic and ordered; readers see whole commits only. A commit that returned is
/// seen by every read that begins afterwards.
pub trait Engine: Send + Sync {
    /// What it can take.
    fn limits(&self) -> Limits;

    /// Returns which optional parts of the contract it has: none unless it says so.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Living trees, by number. A tree that was dropped while a pin saw it is not among them.
    fn trees(&self) -> Vec<TreeInfo>;

    /// The trees that a snapshot reads, by number: those of its moment that are living, and, of a
    /// snapshot that [`Self::open_pin`] returned, those that were dropped while the pin saw them.
    /// Of a pin of some trees, only these are listed.
    /// No two have the same name. An engine without pins returns its living trees.
    fn trees_at(&self, at: &Snapshot) -> Vec<TreeInfo> {
        debug_assert!(!self.capabilities().pins, "an engine with pins knows more");
        let _ = at;
        self.trees()
    }

    /// Returns the keys that a snapshot holds of a tree, if it does not hold all: those of a
    /// narrowed pin, or of the moment of a branch that begins at one.
    fn held_ranges(&self, tree: TreeId, at: &Snapshot) -> Option<KeyRanges> {
        let _ = (tree, at);
        debug_assert!(
            !self.capabilities().pins_of_ranges,
            "an engine that narrows pins knows more"
        );
        None
    }

    /// Makes an empty tree.
    ///
    /// # Errors
    /// [`KvError::TreeExists`], [`KvError::Invalid`] (a name longer than
    /// [`TREE_NAME_BYTES_MAX`](crate::TREE_NAME_BYTES_MAX)), [`KvError::ReadOnly`],
    /// [`KvError::Closed`], [`KvError::Poisoned`], and errors of kind
    /// [`NoSpace`](stitch_base::ErrorKind::NoSpace): the store lists no more trees. Dropping one
    /// makes room.
    ///
    /// # Durability
    /// On the medium when this returns.
    fn create_tree(&self, name: &str, options: &TreeOptions) -> Result<TreeId, KvError>;

    /// Removes a tree and all that is in it, at a cost that does not depend on its size. Snapshots
    /// taken before lose sight of it. Pins that hold it do not: snapshots that [`Self::open_pin`]
    /// returns read it by its number, and its space comes back when the last such pin goes.
    ///
    /// # Errors
    /// [`KvError::NoTree`], [`KvError::ReadOnly`], [`KvError::Closed`], [`KvError::Poisoned`].
    ///
    /// # Durability
    /// On the medium when this returns.
    fn drop_tree(&self, tree: TreeId) -> Result<(), KvError>;

    /// Removes several trees and all that is in them, as [`Self::drop_tree`]. An engine with one
    /// record of all trees removes them in one step. Others do so one after the other.
    ///
    /// # Errors
    /// As [`Self::drop_tree`].
    ///
    /// # Durability
    /// On the medium when this returns.
    fn drop_trees(&self, trees: &[TreeId]) -> Result<(), KvError> {
        trees.iter().try_for_each(|tree| self.drop_tree(*tree))
    }

    /// Gives a tree other options. They hold for what is written from now on, by commits and by
    /// background work; what is stored stays as it is until it is rewritten.
    ///
    /// # Errors
    /// [`KvError::NoTree`] and as [`Self::create_tree`].
    ///
    /// # Durability
    /// On the medium when this returns: a tree keeps its options when the store is opened again.
    fn alter_tree(&self, tree: TreeId, options: &TreeOptions) -> Result<(), KvError>;

    /// Applies a batch, whole or not at all, after every batch that returned before.
    ///
    /// # Errors
    /// [`KvError::NoTree`], [`KvError::TooLarge`], [`KvError::NoSpace`], [`KvError::ReadOnly`],
    /// [`KvError::Invalid`] (an unknown upsert function), [`KvError::Closed`]: nothing is applied.
    /// [`KvError::Storage`], [`KvError::Poisoned`]: reopen the store.
    ///
    /// # Durability
    /// Survives a killed process when this returns; a power cut with `options.sync`, or after the
    /// next [`Self::sync`], or after a few seconds. After a power cut the store is as it was after
    /// some commit: never a later one without an earlier one.
    fn commit(&self, batch: &Batch, options: CommitOptions) -> Result<Seqno, KvError>;

    /// Applies a batch, whole or not at all, if nothing that `guards` name has changed since their
    /// moments. The check and the commit are one step: no other commit comes between them. With an
    /// empty batch it only checks. See [`Guards`] for what a change is.
    ///
    /// # Errors
    /// [`KvError::Conflict`] with the first key that changed: nothing is applied, read again and
    /// decide again. [`KvError::TooLarge`] also for the guards, [`KvError::NoTree`] also for a
    /// guard on a tree that is gone, [`KvError::Unsupported`] from an engine without
    /// [`Capabilities::guards`]; as [`Self::commit`].
    ///
    /// # Durability
    /// As [`Self::commit`].
    ///
    /// # Cost
    /// For each guard, a search among what was written after its moment. Without guards, that of
    /// [`Self::commit`].
    fn commit_guarded(
        &self,
        batch: &Batch,
        guards: &Guards,
        options: CommitOptions,
    ) -> Result<Seqno, KvError> {
        if guards.is_empty() {
            return self.commit(batch, options);
        }
        Err(KvError::Unsupported("guards"))
    }

    /// The keys under `guards` that changed since their moments, by tree and key, at most
    /// `count_max` of them. Other commits may come before a later call.
    ///
    /// # Errors
    /// [`KvError::NoTree`], [`KvError::Storage`], [`KvError::Unsupported`] from an engine without
    /// [`Capabilities::guards`].
    fn changed_keys(&self, guards: &Guards, count_max: usize) -> Result<Vec<ChangedKey>, KvError> {
        let _ = (guards, count_max);
        Err(KvError::Unsupported("guards"))
    }

    /// Returns the keys of a range that may hold something else at `to`, or now, than at `from`,
    /// which is not later: in order, the first `count_max` of them. Fewer are all. Every key that
    /// holds something else is among them. Others that were written between the two moments may be.
    ///
    /// # Errors
    /// [`KvError::NoTree`] also for a tree that was made after `from`; [`KvError::NotHeld`];
    /// [`KvError::Storage`];
    /// [`KvError::Unsupported`] from an engine without [`Capabilities::keys_between`].
    ///
    /// # Cost
    /// That of reading the keys that were written between the moments, with what is stored beside
    /// them, and of a scan at `from` of the ranges that were deleted between.
    fn keys_between(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        (from, to): (&Snapshot, Option<&Snapshot>),
        count_max: usize,
    ) -> Result<Vec<Vec<u8>>, KvError> {
        let _ = (tree, range, from, to, count_max);
        Err(KvError::Unsupported(
            "keys that changed between two moments",
        ))
    }

    /// The upsert functions that it folds with. An engine that takes no writes may have none.
    fn upserts(&self) -> &UpsertRegistry {
        static NONE: UpsertRegistry = UpsertRegistry::new();
        &NONE
    }

    /// Makes every commit that returned before durable.
    ///
    /// # Errors
    /// [`KvError::Storage`], [`KvError::Poisoned`]: what was not durable may be lost; reopen.
    fn sync(&self) -> Result<(), KvError>;

    /// Holds this moment open for reading. O(1).
    fn snapshot(&self) -> Snapshot;

    /// Holds the present of all trees in the store under a name: reads of this moment work until
    /// the pin is dropped, in this life of the store and in later ones. Costs one sync of the log
    /// and one record in the engine's list of trees, whatever the store holds.
    ///
    /// # Errors
    /// [`KvError::Unsupported`], [`KvError::PinExists`], [`KvError::Invalid`] (a name that is empty
    /// or longer than [`PIN_NAME_BYTES_MAX`](crate::PIN_NAME_BYTES_MAX)), [`KvError::TooLarge`]
    /// (more than [`PIN_USER_BYTES_MAX`](crate::PIN_USER_BYTES_MAX) bytes of the user),
    /// [`KvError::ReadOnly`], [`KvError::Closed`], [`KvError::Poisoned`], and errors of kind
    /// [`NoSpace`](stitch_base::ErrorKind::NoSpace): the store lists no more pins. Dropping one
    /// makes room.
    ///
    /// # Durability
    /// The pin, and every commit that it sees, are on the medium when this returns.
    fn create_pin(&self, name: &str, user: &[u8]) -> Result<PinInfo, KvError> {
        let _ = (name, user);
        Err(KvError::Unsupported("pins"))
    }

    /// Creates a pin that holds some trees alone: the living ones for which `is_held` returns true.
    /// What is replaced in other trees takes no space for its sake. They are chosen in the same
    /// step as the moment, so no tree comes or goes between. Where all are chosen, the pin is one
    /// of [`Self::create_pin`].
    ///
    /// A snapshot that [`Self::open_pin`] returns reads the chosen trees. Of every other tree that
    /// was made before the pin, reads, guards, branches and [`Self::keys_between`] are refused as
    /// [`KvError::NotHeld`]; so is a later branch of such a tree. Trees that were made later are
    /// read as at any snapshot.
    ///
    /// An engine without [`Capabilities::pins_of_trees`] creates a pin of all trees, and does not
    /// call `is_held`. The call may not come back to the engine.
    ///
    /// # Errors
    /// As [`Self::create_pin`].
    ///
    /// # Durability
    /// As [`Self::create_pin`].
    fn create_pin_of(
        &self,
        name: &str,
        user: &[u8],
        is_held: &dyn Fn(&TreeInfo) -> bool,
    ) -> Result<PinInfo, KvError> {
        let _ = is_held;
        debug_assert!(
            !self.capabilities().pins_of_trees,
            "an engine with them makes them"
        );
        self.create_pin(name, user)
    }

    /// Returns the pins in the order of their creation. Reads nothing from the medium.
    ///
    /// # Errors
    /// [`KvError::Unsupported`].
    fn pins(&self) -> Result<Vec<PinInfo>, KvError> {
        Err(KvError::Unsupported("pins"))
    }

    /// Returns the pin of this name; `None` if there is none. Reads nothing from the medium, and
    /// costs no list of all pins in an engine that has many.
    ///
    /// # Errors
    /// As [`Self::pins`].
    fn pin_by_name(&self, name: &str) -> Result<Option<PinInfo>, KvError> {
        Ok(self.pins()?.into_iter().find(|pin| pin.name == name))
    }

    /// Returns the pin of this number; see [`Self::pin_by_name`].
    ///
    /// # Errors
    /// As [`Self::pins`].
    fn pin_by_id(&self, id: PinId) -> Result<Option<PinInfo>, KvError> {
        Ok(self.pins()?.into_iter().find(|pin| pin.id == id))
    }

    /// Returns a snapshot of the pin's moment. It reads the trees of that moment, those included
    /// that were dropped since, and goes on when the pin is dropped. A tree that is dropped after
    /// the pin is lost to it. O(1).
    ///
    /// # Errors
    /// [`KvError::Unsupported`], [`KvError::PinNotFound`].
    fn open_pin(&self, name: &str) -> Result<Snapshot, KvError> {
        let _ = name;
        Err(KvError::Unsupported("pins"))
    }

    /// Removes a pin. What only it saw becomes garbage: background work finds all of it and gives
    /// its space back, once the snapshots that were opened from it are gone too.
    /// [`Self::quiesce`] waits for that. Works in a full store.
    ///
    /// # Errors
    /// [`KvError::Unsupported`], [`KvError::PinNotFound`], [`KvError::ReadOnly`],
    /// [`KvError::Closed`], [`KvError::Poisoned`].
    ///
    /// # Durability
    /// On the medium when this returns.
    fn drop_pin(&self, name: &str) -> Result<(), KvError> {
        let _ = name;
        Err(KvError::Unsupported("pins"))
    }

    /// Gives a pin other bytes of the user. Its number, moment and place in the order stay.
    ///
    /// # Errors
    /// [`KvError::PinNotFound`], and as [`Self::create_pin`].
    ///
    /// # Durability
    /// On the medium when this returns.
    fn alter_pin(&self, name: &str, user: &[u8]) -> Result<(), KvError> {
        let _ = (name, user);
        Err(KvError::Unsupported("pins"))
    }

    /// Narrows a pin: of each tree in `ranges` it holds these keys alone from now on, of its other
    /// trees what it held. What is replaced beside the ranges takes no space for its sake any more.
    /// Returns the pin as it is listed then; one of all trees lists the trees that it sees. Once a
    /// tree is narrowed, its next ranges lie within those before.
    ///
    /// A snapshot that [`Self::open_pin`] returns afterwards reads these keys. Reads, scans, guards
    /// and [`Self::keys_between`] of a key or range that is not within one of the ranges are
    /// refused as [`KvError::KeysNotHeld`]. A branch of the tree begins with these keys alone: see
    /// [`Self::branch_trees`]. Snapshots that were opened before go on and hold what they did.
    ///
    /// An engine without [`Capabilities::pins_of_ranges`] leaves the pin as it is.
    ///
    /// # Errors
    /// [`KvError::PinNotFound`], [`KvError::NotHeld`] (a tree that the pin does not hold),
    /// [`KvError::Invalid`] (more than [`PIN_RANGES_MAX`](crate::PIN_RANGES_MAX) ranges of a tree,
    /// or a key that the pin does not hold), [`KvError::TooLarge`] (more than
    /// [`PIN_RANGES_BYTES_MAX`](crate::PIN_RANGES_BYTES_MAX) bytes of keys of a tree), and as
    /// [`Self::create_pin`]; then the pin is as it was.
    ///
    /// # Durability
    /// On the medium when this returns.
    fn narrow_pin(&self, name: &str, ranges: &PinRanges) -> Result<PinInfo, KvError> {
        let _ = ranges;
        debug_assert!(
            !self.capabilities().pins_of_ranges,
            "an engine with them narrows pins"
        );
        let found = self.pin_by_name(name)?;
        found.ok_or_else(|| KvError::PinNotFound(name.to_owned()))
    }

    /// Makes branch trees: each begins with what its parent holds now, or held at `at`, and has the
    /// parent's options. All of them are made, in one step and of one moment, or none. Copies
    /// nothing; returns their numbers in the order of `branches`. A parent that was dropped since
    /// is taken while the pin that `at` was opened from sees it ([`Self::trees_at`]).
    ///
    /// Where `at` holds ranges of the keys of a parent ([`Self::narrow_pin`]), the branch begins
    /// with these keys, and no other key is there: reads return nothing, as for a key that was
    /// never written. It holds them alone ([`TreeInfo::branch_ranges`]), takes writes of all keys,
    /// and beside them reads of the parent at [`Self::branch_moment`] are refused as
    /// [`KvError::KeysNotHeld`].
    ///
    /// # Errors
    /// [`KvError::Unsupported`], [`KvError::NoTree`] (a parent that was not there at `at`, or is
    /// dropped and no pin sees it), [`KvError::NotHeld`], [`KvError::TooDeep`], and as
    /// [`Self::create_tree`].
    ///
    /// # Durability
    /// On the medium when this returns, with every commit that the branches see. Of
    /// [temporary](NewBranch::temporary) ones nothing is, nor of what is written to them.
    ///
    /// # Cost
    /// One sync of the log and one record in the engine's list of trees. Reads of a branch look at
    /// its own sources, then at those of each parent.
    fn branch_trees(
        &self,
        branches: &[NewBranch<'_>],
        at: Option<&Snapshot>,
    ) -> Result<Vec<TreeId>, KvError> {
        let _ = (branches, at);
        Err(KvError::Unsupported("branch trees"))
    }

    /// The keys that may hold something else in a branch tree than its parent held where the branch
    /// begins: those that were written to it, in order, at most `count_max` of them and only such
    /// as lie after `after`. A range that was deleted in the branch counts as the keys that the
    /// parent held in it. Fewer than `count_max` are the last ones.
    ///
    /// # Errors
    /// [`KvError::Unsupported`], [`KvError::NoTree`], [`KvError::Storage`], [`KvError::Invalid`]
    /// for a tree that is no branch.
    ///
    /// # Cost
    /// That of a scan of what was written to the branch, and of the deleted ranges in the parent.
    fn branch_keys(
        &self,
        branch: TreeId,
        after: Option<&[u8]>,
        count_max: usize,
    ) -> Result<Vec<Vec<u8>>, KvError> {
        let _ = (branch, after, count_max);
        Err(KvError::Unsupported("branch trees"))
    }

    /// Returns the ranges of keys that were deleted in a branch tree: in order, without overlap,
    /// each with its first key and the first key after it. A guard on each finds what others put
    /// into them since, which [`Self::branch_keys`] does not name.
    ///
    /// # Errors
    /// As [`Self::branch_keys`].
    fn branch_deleted_ranges(&self, branch: TreeId) -> Result<Vec<DeletedRange>, KvError> {
        let _ = branch;
        Err(KvError::Unsupported("branch trees"))
    }

    /// Returns the moment at which a branch tree begins, for reads of its parent, which may be
    /// hidden, and for guards on it. Of other trees it promises nothing. O(1).
    ///
    /// # Errors
    /// [`KvError::Unsupported`], [`KvError::NoTree`], [`KvError::Invalid`] for a tree that is no
    /// branch.
    fn branch_moment(&self, branch: TreeId) -> Result<Snapshot, KvError> {
        let _ = branch;
        Err(KvError::Unsupported("branch trees"))
    }

    /// Lets parents give up what these branch trees have replaced: a row of the parent that every
    /// reader of a branch finds deleted or overwritten in the branch need not be kept for its sake.
    /// Reads of the branches stay as they are. From now on until the store is closed, a read of a
    /// parent at [`Self::branch_moment`] may miss such rows, or find older ones in their place: for
    /// branches that are never merged. Those that are dropped are treated so in any case. An engine
    /// may do nothing, and not look at the numbers.
    ///
    /// # Errors
    /// [`KvError::NoTree`], [`KvError::Invalid`] for a tree that is no branch.
    ///
    /// # Cost
    /// None here. In the background, a scan of the keys of a branch after it was written out.
    fn release_replaced(&self, branches: &[TreeId]) -> Result<(), KvError> {
        debug_assert!(
            branches.is_empty() || self.capabilities().branches,
            "they are branch trees"
        );
        Ok(())
    }

    /// Lets the parent of a branch tree give up all keys but these for the sake of the branch. The
    /// caller knows that readers of the branch, at `at` and later, read nothing else there. The
    /// rest is as with [`Self::release_replaced`]. Returns false, and does nothing, while the
    /// branch has a reader, a pin or a branch from before `at`. An engine may do nothing.
    ///
    /// # Errors
    /// As [`Self::release_replaced`].
    ///
    /// # Cost
    /// None here.
    fn release_beside(
        &self,
        branch: TreeId,
        ranges: &KeyRanges,
        at: &Snapshot,
    ) -> Result<bool, KvError> {
        debug_assert!(self.capabilities().branches, "it is a branch tree");
        let _ = (branch, ranges, at);
        Ok(true)
    }

    /// Does in advance the part of [`Self::absorb`] of these branches that can run while others
    /// write. A caller that absorbs under locks of its own calls this before it takes them, once
    /// there are no more writes to the branches. It changes nothing that a reader sees. The call is
    /// optional. Writes to the branches may come, too: what they leave is done by a later call, or
    /// by the absorb.
    ///
    /// # Errors
    /// As [`Self::absorb`]. None if the engine can do nothing ahead.
    fn prepare_absorb(&self, branches: &[TreeId]) -> Result<(), KvError> {
        let _ = branches;
        Ok(())
    }

    /// Gives what was written to branch trees to their parents, then applies `batch`, and drops the
    /// branches: one commit, whole or not at all, if nothing that `guards` name has changed since
    /// their moments. Each message that was written to a branch is applied to what the parent holds
    /// by then. To refuse the commit if another writer changed the same keys, add a guard on each
    /// of [`Self::branch_keys`], or [one on all of them](Guards::written), as of
    /// [`Self::branch_moment`].
    ///
    /// # Errors
    /// [`KvError::Conflict`], [`KvError::NoTree`] (a branch or a parent that is not alive),
    /// [`KvError::Invalid`] (a tree that is no branch, that is named twice, or that has a branch
    /// itself; the parent of another one of the list), and as [`Self::commit_guarded`].
    ///
    /// What was written to the branches may be of any length. The batch is no longer than any
    /// other.
    ///
    /// # Durability
    /// As [`Self::commit`].
    ///
    /// # Cost
    /// At most that of writing what the branches hold once more, in a bounded amount of memory.
    fn absorb(
        &self,
        branches: &[TreeId],
        batch: &Batch,
        guards: &Guards,
        options: CommitOptions,
    ) -> Result<Seqno, KvError> {
        let _ = (branches, batch, guards, options);
        Err(KvError::Unsupported("branch trees"))
    }

    /// The value of a key now, or at a snapshot of this store.
    ///
    /// # Errors
    /// [`KvError::NoTree`], [`KvError::NotHeld`] (at a snapshot of a pin of other trees),
    /// [`KvError::Storage`].
    fn get(
        &self,
        tree: TreeId,
        key: &[u8],
        at: Option<&Snapshot>,
    ) -> Result<Option<bytes::Bytes>, KvError>;

    /// Returns the values of several keys, in the order of `keys`, all as of one moment: now, or
    /// that of a snapshot of this store. A key may be named more than once.
    ///
    /// # Errors
    /// As [`Self::get`].
    ///
    /// # Cost
    /// At most that of a [`Self::get`] for each key. An engine may read what several keys share
    /// once, and blocks of several keys by one request.
    fn get_many(
        &self,
        tree: TreeId,
        keys: &[&[u8]],
        at: Option<&Snapshot>,
    ) -> Result<Vec<Option<bytes::Bytes>>, KvError> {
        let now = at.is_none().then(|| self.snapshot());
        let at = at.or(now.as_ref());
        keys.iter().map(|key| self.get(tree, key, at)).collect()
    }

    /// Walks a range in order, as of now or of a snapshot.
    ///
    /// # Errors
    /// As [`Self::get`].
    fn scan(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        direction: Direction,
        at: Option<&Snapshot>,
    ) -> Result<Box<dyn Scan + '_>, KvError>;

    /// Scans upward like [`Self::scan`], for a caller that will read all of a bounded range: the
    /// engine may read its blocks together.
    ///
    /// # Errors
    /// As [`Self::scan`].
    fn scan_whole(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        at: Option<&Snapshot>,
    ) -> Result<Box<dyn Scan + '_>, KvError> {
        self.scan(tree, range, Direction::Forward, at)
    }

    /// Prefetches a range that [`Self::scan_whole`] will soon read. Returns without a wait; the
    /// engine may ignore the hint. Returns whether the range is being read or in memory: if not,
    /// the caller may give the hint again later.
    fn read_ahead(&self, tree: TreeId, hint: &ReadHint<'_>) -> bool {
        let _ = (tree, hint);
        false
    }

    /// What the engine has done since it was opened.
    fn counters(&self) -> Counters;

    /// Space of the store.
    fn space(&self) -> SpaceUsage;

    /// Returns for each holder how many bytes come back if it alone is dropped: what no other pin,
    /// no other tree and no reader of the present needs. Background work gives them back
    /// while the store is idle. An estimate of the bytes of the medium; snapshots that are open do
    /// not count. `watch` is called with done and total bytes; `None` if
    /// it returned false.
    ///
    /// # Errors
    /// [`KvError::Unsupported`] from an engine without [`Capabilities::space_shares`],
    /// [`KvError::PinNotFound`], [`KvError::NoTree`], [`KvError::Storage`], [`KvError::Invalid`] if
    /// two holders have a pin or a tree in common.
    ///
    /// # Cost
    /// One walk for all holders together, by the indexes of what holds several versions of its
    /// keys. Long values are not read.
    fn exclusive_space(
        &self,
        holders: &[Holder<'_>],
        watch: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Option<Vec<u64>>, KvError> {
        let _ = (holders, watch);
        Err(KvError::Unsupported("shares of space"))
    }

    /// Returns what the rows in `ranges` of a tree take, as of now or of a snapshot. The ranges are
    /// in order and apart. An estimate of the bytes of the medium. Of a snapshot nothing is
    /// exclusive: its rows cannot be deleted.
    ///
    /// # Errors
    /// [`KvError::Unsupported`] from an engine without [`Capabilities::space_shares`],
    /// [`KvError::NoTree`], [`KvError::Storage`].
    ///
    /// # Cost
    /// For each range a search, and a walk by the indexes. Long values are not read.
    fn range_space(
        &self,
        tree: TreeId,
        ranges: &[KeyRange<'_>],
        at: Option<&Snapshot>,
    ) -> Result<SpaceShare, KvError> {
        let _ = (tree, ranges, at);
        Err(KvError::Unsupported("shares of space"))
    }

    /// Sets how many bytes commits of the other classes leave to those of
    /// [`SpaceClass::Allocated`], instead of the number set before. They are not free in
    /// [`Self::space`]. A caller that has committed with that class sets less afterwards. The
    /// number is not stored: it is 0 at open.
    ///
    /// # Errors
    /// [`KvError::NoSpace`] if it is more than before, and as much more is not free: nothing is
    /// changed.
    fn set_aside(&self, bytes: u64) -> Result<(), KvError>;

    /// Reads everything and checks every rule of the engine: checksums, order, filters, space.
    /// `progress` is called with done and total bytes.
    ///
    /// # Errors
    /// [`KvError::Storage`] only where the check itself cannot go on.
    fn check(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Vec<Violation>, KvError>;

    /// Waits until background work that gives space back has nothing left to do. For tests and
    /// tools.
    ///
    /// # Errors
    /// The first failure of that work.
    fn quiesce(&self) -> Result<(), KvError>;

    /// Writes everything out and stops background work. Later calls that write are refused as
    /// [`KvError::Closed`]; reads go on. What a plain drop skips is only speed of the next open,
    /// never safety.
    ///
    /// # Errors
    /// As [`Self::sync`].
    fn close(&self) -> Result<(), KvError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_the_next_key_that_lacks_it() {
        assert_eq!(prefix_end(b"ab").as_deref(), Some(&b"ac"[..]));
        assert_eq!(prefix_end(&[1, 255, 255]).as_deref(), Some(&[2][..]));
        assert_eq!(prefix_end(&[255, 255]), None);
        assert_eq!(prefix_end(b""), None);
    }
}
