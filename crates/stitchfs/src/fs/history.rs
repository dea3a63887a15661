//! The history of a file system.

use super::{Dir, Files, Open};
use crate::StoreError;
use crate::owner::Owner;
use stitch_base::PinId;
use stitch_fs::{HistoryRound, LaterClones, MomentInfo, RollbackRights};

/// A moment of the history of a file system. Another file system refuses it.
#[derive(Clone, Debug)]
pub struct HistoryMoment {
    info: MomentInfo,
    owner: Owner,
}

impl HistoryMoment {
    /// Returns what is known of it.
    #[must_use]
    pub const fn info(&self) -> &MomentInfo {
        &self.info
    }

    /// Returns its number in the file system that `asked` is of.
    ///
    /// # Errors
    /// [`StoreError::Foreign`].
    fn id_for(&self, asked: &Open) -> Result<PinId, StoreError> {
        let handle = || format!("moment {}", self.info.name());
        self.owner.check(handle, &asked.life.store.instance)?;
        Ok(self.info.id)
    }
}

impl Files {
    /// Returns the moments of the history, in the order of their creation.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn moments(&self) -> Result<Vec<HistoryMoment>, StoreError> {
        let owner = Owner::new(&self.open.life.store.instance);
        let moment = |info| HistoryMoment {
            info,
            owner: owner.clone(),
        };
        Ok(self
            .open
            .fs
            .history()
            .moments()?
            .into_iter()
            .map(moment)
            .collect())
    }

    /// Creates a moment of the history if one is due and anything was written since the last one,
    /// and drops those that are too old: one round of what a mount does by itself. None is created
    /// unless [`StoreOptions::history`](crate::StoreOptions::history) is set.
    ///
    /// # Errors
    /// [`NoSpace`](crate::ErrorKind::NoSpace); [`Unsupported`](crate::ErrorKind::Unsupported) for a
    /// store that takes no snapshots.
    ///
    /// # Cost
    /// None if nothing is to be done; otherwise a sync of the log and a record for a new moment,
    /// and a record for each that is dropped.
    pub fn run_history(&self) -> Result<HistoryRound, StoreError> {
        Ok(self.open.fs.history().run()?)
    }

    /// Opens the root directory as it was at a moment. It can be read only, and stays readable when
    /// the moment is dropped.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) if it was dropped;
    /// [`Invalid`](crate::ErrorKind::Invalid) for a moment of another store or instance.
    pub fn open_moment(&self, moment: &HistoryMoment) -> Result<Dir, StoreError> {
        let view = self.open.fs.history().open(moment.id_for(&self.open)?)?;
        self.dir_of(view)
    }
}

impl Dir {
    /// Reports whether this directory, or anything below it, is different at two moments; the
    /// second is the present for `None`.
    ///
    /// # Errors
    /// As [`Files::open_moment`]; [`Invalid`](crate::ErrorKind::Invalid) also if the second moment
    /// is before the first.
    ///
    /// # Cost
    /// A scan of all names below the directory at both, up to the first difference.
    pub fn has_changed(
        &self,
        from: &HistoryMoment,
        to: Option<&HistoryMoment>,
    ) -> Result<bool, StoreError> {
        let open = self.hold.open();
        let from = from.id_for(open)?;
        let to = to.map(|to| to.id_for(open)).transpose()?;
        Ok(open.fs.history().has_changed(self.hold.ino(), from, to)?)
    }

    /// Makes this directory, and all below it, what it was at a moment. Inode numbers stay. Clones
    /// that lie in it keep their contents. Those of the moment that were destroyed since, or moved
    /// out, are made again of what they were then. `later` says what becomes of those that were
    /// made after the moment, or moved in.
    ///
    /// # Errors
    /// As [`Files::open_moment`]; [`NotFound`](crate::ErrorKind::NotFound) also if the directory
    /// had another path then; [`Exists`](crate::ErrorKind::Exists) if later clones are to be kept
    /// and there are any: [`StoreError::kept_clones`] names them. Nothing is changed then.
    ///
    /// # Durability
    /// On the medium when this returns.
    pub fn roll_back_to(
        &self,
        moment: &HistoryMoment,
        later: LaterClones,
    ) -> Result<(), StoreError> {
        let open = self.hold.open();
        let id = moment.id_for(open)?;
        let rights = RollbackRights {
            owner: None,
            later_clones: later,
        };
        open.fs.roll_back_to_moment(id, self.hold.ino(), rights)?;
        Ok(())
    }
}
