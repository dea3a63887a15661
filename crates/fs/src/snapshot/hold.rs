//! Holds: a snapshot with a tag cannot be deleted.
//!
//! ```text
//! hold("mon", "audit"), hold("mon", "backup")   tags of "mon": audit, backup
//! delete("mon")                                 Held("audit, backup")
//! release("mon", "audit")                       tags of "mon": backup
//! ```
//!
//! The tags are in the user bytes of the snapshot's pin: one edit of the version log changes them.

use super::{SnapshotInfo, Snapshots, pin_name};
use crate::{FsError, FsResult};
use stitch_format::fs_snapshot::{RECORD_BYTES_MAX, SnapshotRecord, is_tag};

impl Snapshots<'_> {
    /// Holds a snapshot under a tag: until it is released, the snapshot cannot be deleted.
    ///
    /// # Errors
    /// [`FsError::NotFound`]; [`FsError::Exists`] if it is held under this tag already;
    /// [`FsError::Invalid`] for what is no tag; [`FsError::TooBig`] where no tag more fits;
    /// [`FsError::ReadOnly`].
    ///
    /// # Durability
    /// On the medium when this returns.
    pub fn hold(&self, name: &str, tag: &str) -> FsResult<()> {
        if !is_tag(tag) {
            return Err(FsError::Invalid("no tag of a hold"));
        }
        self.change_record(name, |record| match record.tags.insert(tag.to_owned()) {
            true => Ok(()),
            false => Err(FsError::Exists),
        })
    }

    /// Releases a snapshot that is held under a tag.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there is no such snapshot; [`FsError::NoData`] if it is not held
    /// under this tag; [`FsError::ReadOnly`].
    ///
    /// # Durability
    /// On the medium when this returns.
    pub fn release(&self, name: &str, tag: &str) -> FsResult<()> {
        self.change_record(name, |record| match record.tags.remove(tag) {
            true => Ok(()),
            false => Err(FsError::NoData),
        })
    }

    fn change_record(
        &self,
        name: &str,
        change: impl FnOnce(&mut SnapshotRecord) -> FsResult<()>,
    ) -> FsResult<()> {
        self.check_writable()?;
        let _changing = self.views.snapshot_change.lock();
        let mut record = self.pins.snapshot(name)?.into_record();
        let (root, view) = (record.root, record.view);
        change(&mut record)?;
        debug_assert_eq!(record.root, root, "it stays a snapshot of the directory");
        debug_assert_eq!(record.view, view, "it stays in the file system");
        debug_assert!(
            record.tags.iter().all(|tag| is_tag(tag)),
            "a reader takes each"
        );
        let user = record.encode();
        if user.len() > RECORD_BYTES_MAX {
            return Err(FsError::TooBig);
        }
        debug_assert_eq!(
            SnapshotRecord::decode(&user).as_ref(),
            Ok(&record),
            "a reader takes what is written"
        );
        Ok(self.pins.engine.alter_pin(&pin_name(name), &user)?)
    }
}

impl SnapshotInfo {
    fn into_record(self) -> SnapshotRecord {
        SnapshotRecord {
            root: self.root,
            view: self.view,
            created_ns: self.created.0,
            owner: self.owner,
            is_automatic: self.is_automatic,
            tags: self.tags.into_iter().collect(),
            path: self.path,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FsOptions;
    use crate::system::FileSystem;
    use stitch_base::Ino;
    use stitch_base::sync::Arc;

    fn with_snapshot() -> FileSystem {
        let engine = crate::testing::formatted(&FsOptions::default());
        let fs = FileSystem::open(engine, FsOptions::default()).unwrap();
        fs.snapshots().create(Ino::ROOT, "mon").unwrap();
        fs
    }

    #[test]
    fn a_held_snapshot_is_deleted_once_all_tags_are_released() {
        let fs = with_snapshot();
        fs.snapshots().hold("mon", "backup").unwrap();
        fs.snapshots().hold("mon", "audit").unwrap();
        let refused = fs.snapshots().delete("mon").unwrap_err();
        assert!(matches!(refused, FsError::Held(tags) if tags == "audit, backup"));
        assert_eq!(fs.snapshots().get("mon").unwrap().tags, ["audit", "backup"]);
        fs.snapshots().release("mon", "audit").unwrap();
        assert!(matches!(
            fs.snapshots().delete("mon"),
            Err(FsError::Held(_))
        ));
        // Another life of the file system knows of it.
        let again = FileSystem::open(Arc::clone(fs.engine()), FsOptions::default()).unwrap();
        assert!(matches!(
            again.snapshots().delete("mon"),
            Err(FsError::Held(_))
        ));
        again.snapshots().release("mon", "backup").unwrap();
        again.snapshots().delete("mon").unwrap();
        assert!(again.snapshots().list().unwrap().is_empty());
    }

    #[test]
    fn what_cannot_be_held_or_released_is_refused() {
        let fs = with_snapshot();
        let hold = |name: &str, tag: &str| fs.snapshots().hold(name, tag);
        assert!(matches!(hold("tue", "a"), Err(FsError::NotFound)));
        assert!(matches!(hold("mon", ""), Err(FsError::Invalid(_))));
        assert!(matches!(hold("mon", "a\nb"), Err(FsError::Invalid(_))));
        hold("mon", "a").unwrap();
        assert!(matches!(hold("mon", "a"), Err(FsError::Exists)));
        let release = |name: &str, tag: &str| fs.snapshots().release(name, tag);
        assert!(matches!(release("tue", "a"), Err(FsError::NotFound)));
        assert!(matches!(release("mon", "b"), Err(FsError::NoData)));
        let full = (0..100).find_map(|number| hold("mon", &format!("{number:064}")).err());
        assert!(matches!(full, Some(FsError::TooBig)));
        assert!(
            fs.snapshots().get("mon").unwrap().tags.len() > 50,
            "many fit"
        );
    }
}
