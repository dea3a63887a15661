//! The directories of a transaction at which clones lie.
//!
//! A transaction has branches of mainline's trees alone. Of a clone these hold the *graft*, an
//! empty directory. Shown as one, it would lose data: `cp -r`, `tar` and `rsync --delete` would
//! take the clone for empty, and a commit would make that durable. So a graft refuses what depends
//! on its contents:
//!
//! | at a graft | result |
//! |---|---|
//! | `stat` of it, its name in its parent | as of any directory |
//! | a rename of it | it moves, and the clone with it at the commit |
//! | `lookup` or `readdir` in it, a new name in it | [`FsError::Unsupported`] |
//! | its removal, a rename over it | [`FsError::Unsupported`] |
//! | a change of its mode, owner, times, flags or extended attributes | [`FsError::Unsupported`] |
//!
//! Attributes are of the clone's own directory, which the graft only stands for: a change of the
//! graft would show nowhere.
//!
//! The contents are in another file system: where the transaction has a pin (see `clone_pins`),
//! that of the clone at the pin's moment ([`PinnedClone`]). It can be read only. An adapter shows
//! it where the graft is.
//!
//! The records of clones are in mainline's `sys` tree, which is branched with the others. So the
//! grafts are those of the moment at which the transaction, or the outermost one around it, began.

use crate::schema::Store;
use crate::snapshot::PartNumbers;
use crate::system::FileSystem;
use crate::views::ViewSet;
use crate::{FsError, FsResult};
use std::collections::BTreeMap;
use stitch_base::{Ino, PinId};

/// A clone that a transaction shows as it was when the transaction began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinnedClone {
    /// Pin of that moment, which [`History::open_pinned`](crate::History::open_pinned) opens.
    pub pin: PinId,
    /// Number that the directory of the clone has in what the pin shows; `None` if numbers have no
    /// room for the clone.
    pub number: Option<Ino>,
}

/// The grafts of a transaction's file system; none in any other.
#[derive(Debug, Default)]
pub(crate) struct Grafts {
    /// Each with the number that the directory of its clone has at the pin.
    numbers: BTreeMap<Ino, Option<Ino>>,
    /// Pin of the moment at which the transaction began.
    pin: Option<PinId>,
}

impl Grafts {
    /// Reads them from the branch trees of a transaction, which shows clones as a pin does.
    pub(super) fn read(store: &Store, pin: Option<PinId>) -> FsResult<Self> {
        let clones = ViewSet::read_live(store)?;
        let next = store.number(&store.keys.next_ino())?;
        let all = clones.iter().map(|info| info.number).collect();
        let parts = PartNumbers::new(0, next, all);
        let in_mainline = clones.iter().filter(|info| info.home == 0);
        let numbers = in_mainline.map(|info| {
            let first = parts.first(info.number);
            (info.graft, first.map(|first| Ino(first | info.root.0)))
        });
        let numbers: BTreeMap<Ino, Option<Ino>> = numbers.collect();
        debug_assert!(!numbers.contains_key(&Ino::ROOT), "a clone has a name");
        debug_assert!(
            numbers.values().flatten().all(|number| number.0 >= next),
            "numbers in clones are none of mainline's"
        );
        Ok(Self { numbers, pin })
    }

    /// Reports whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Refuses a graft.
    ///
    /// # Errors
    /// [`FsError::Unsupported`].
    pub(crate) fn refuse(&self, ino: Ino) -> FsResult<()> {
        match self.numbers.contains_key(&ino) {
            true => Err(FsError::Unsupported),
            false => Ok(()),
        }
    }

    fn shown_at(&self, ino: Ino) -> Option<PinnedClone> {
        let number = *self.numbers.get(&ino)?;
        self.pin.map(|pin| PinnedClone { pin, number })
    }
}

impl FileSystem {
    /// Returns the clone that a transaction shows at a directory; `None` in any other file system,
    /// and in a transaction that does not show clones.
    #[must_use]
    pub fn shown_clone_at(&self, graft: Ino) -> Option<PinnedClone> {
        let shown = self.grafts.shown_at(graft);
        debug_assert!(
            shown.is_none() || self.branch.is_some(),
            "others have no grafts"
        );
        shown
    }
}
