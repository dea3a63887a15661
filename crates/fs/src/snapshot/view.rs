//! A snapshot that is open.

use super::follow::{follow_path, walk_path};
use super::parts::{PartNumbers, PastViews};
use super::{SnapshotInfo, pin_name};
use crate::system::FileSystem;
use crate::transaction::ReadSet;
use crate::views::InnerClone;
use crate::{CloneInfo, CloneSource, FsOptions, FsResult};
use stitch_base::sync::Arc;
use stitch_kv::{Engine, Snapshot, SnapshotEngine};

/// The file system as it was when a snapshot was created, with the clones that lie in it. It keeps
/// that moment's data for as long as it lives, also after the snapshot was deleted.
#[derive(Debug)]
pub struct SnapshotView {
    /// That which has the directory.
    fs: Arc<FileSystem>,
    pub(super) info: SnapshotInfo,
    is_private: bool,
    pub(super) views: PastViews,
    pub(super) numbers: PartNumbers,
}

impl SnapshotView {
    /// Returns the file system of that moment that has the directory, which is known in it. It can
    /// be read only. Clones that lie in it are other file systems: see [`Self::part`].
    #[must_use]
    pub const fn fs(&self) -> &Arc<FileSystem> {
        &self.fs
    }

    /// Returns what the snapshot is of.
    #[must_use]
    pub const fn info(&self) -> &SnapshotInfo {
        &self.info
    }

    /// Reports whether some directory above the snapshot's did not let all users pass. Then only
    /// the owner of the directory may enter the snapshot by its name.
    #[must_use]
    pub const fn is_private(&self) -> bool {
        self.is_private
    }

    /// Notes of all its file systems that readers keep what they have read; see
    /// [`FileSystem::readers_keep_contents`].
    pub fn readers_keep_contents(&mut self) {
        self.views.readers_keep_contents();
    }

    /// Notes what is read of its clones from now on in the set of a transaction.
    pub(crate) fn note_reads(&mut self, reads: Arc<ReadSet>) {
        debug_assert_eq!(self.info.view, 0, "the whole file system is shown");
        self.views.note_reads(reads);
    }

    /// Returns the numbers of the clones that the snapshot shows.
    pub(crate) fn inner_clones(&self) -> FsResult<Vec<u64>> {
        let source = CloneSource {
            fs: &self.fs,
            dir: self.info.root,
            snapshot: Some(&self.info.name),
        };
        let inner =
            source.inner_clones(&self.views.mainline.clones(), &self.fs.standing.views.ways)?;
        debug_assert!(
            inner
                .iter()
                .all(|clone| clone.info.number != self.info.view),
            "its own view does not lie in it"
        );
        Ok(inner.iter().map(|clone| clone.info.number).collect())
    }

    /// Returns the clones that lie in a clone which the snapshot shows, each after the one that it
    /// lies in.
    pub(crate) fn clones_in(&self, clone: &CloneInfo) -> FsResult<Vec<InnerClone>> {
        let all = self.views.mainline.clones();
        if all.iter().all(|info| info.home != clone.number) {
            return Ok(Vec::new());
        }
        let fs = self.open_view(clone.number)?;
        let source = CloneSource {
            fs: &fs,
            dir: clone.root,
            snapshot: Some(&self.info.name),
        };
        let inner = source.inner_clones(&all, &fs.standing.views.ways)?;
        debug_assert!(
            inner.iter().all(|inner| inner.info.number != clone.number),
            "it does not lie in itself"
        );
        Ok(inner)
    }

    /// Returns the file system of a clone at that moment.
    pub(crate) fn open_view(&self, number: u64) -> FsResult<Arc<FileSystem>> {
        let fs = self.views.open(number)?;
        debug_assert_eq!(fs.view_number(), number, "the clone that was asked for");
        Ok(fs)
    }

    pub(crate) fn open(
        engine: &Arc<dyn Engine>,
        options: &FsOptions,
        info: SnapshotInfo,
    ) -> FsResult<Self> {
        Self::open_pin(engine, options, &pin_name(&info.name), info)
    }

    /// Opens the directory that `info` tells of, as a pin shows it.
    ///
    /// # Errors
    /// [`crate::FsError::Stale`] if its path does not lead there.
    pub(crate) fn open_pin(
        engine: &Arc<dyn Engine>,
        options: &FsOptions,
        pin: &str,
        info: SnapshotInfo,
    ) -> FsResult<Self> {
        let views = views_of(engine, options, engine.open_pin(pin)?)?;
        let (mainline, dir) = (Arc::clone(&views.mainline), (info.view, info.root));
        let (fs, is_private) = follow_path(mainline, &info.path, dir, |fs, at| {
            let clone = fs.clone_at(at);
            let enter = |info: CloneInfo| FsResult::Ok((views.open(info.number)?, info.root));
            clone.map(enter).transpose()
        })?;
        Ok(Self::new(views, fs, info, is_private))
    }

    /// Opens the directory that `info` tells of, as a pin shows it. The path of `info` is that in
    /// the file system which has the directory.
    ///
    /// # Errors
    /// [`crate::FsError::Stale`] if the path does not lead there; [`crate::FsError::NotFound`] if
    /// there was no such view.
    pub(crate) fn open_in_view(
        engine: &Arc<dyn Engine>,
        options: &FsOptions,
        pin: &str,
        info: SnapshotInfo,
    ) -> FsResult<Self> {
        let views = views_of(engine, options, engine.open_pin(pin)?)?;
        let fs = views.open(info.view)?;
        debug_assert_eq!(fs.view_number(), info.view, "the view that was asked for");
        let is_private = walk_path(&fs, info.root, &info.path)?;
        Ok(Self::new(views, fs, info, is_private))
    }

    fn new(views: PastViews, fs: Arc<FileSystem>, info: SnapshotInfo, is_private: bool) -> Self {
        debug_assert!(fs.is_read_only(), "the past does not change");
        debug_assert_eq!(fs.view_number(), info.view, "it has the directory");
        let clones = views.mainline.clones();
        let clones = clones.iter().map(|info| info.number).collect();
        let numbers = PartNumbers::new(info.view, fs.numbers.next(), clones);
        debug_assert_eq!(
            numbers.first(info.view),
            Some(0),
            "numbers of its own view stay"
        );
        Self {
            numbers,
            fs,
            info,
            is_private,
            views,
        }
    }
}

/// Opens the file systems of a store as a snapshot of the engine shows them.
pub(super) fn views_of(
    engine: &Arc<dyn Engine>,
    options: &FsOptions,
    at: Snapshot,
) -> FsResult<PastViews> {
    let past = SnapshotEngine::new(Arc::clone(engine), at);
    let mainline = FileSystem::open_past(Arc::new(past), options.of_past())?;
    debug_assert!(mainline.is_read_only(), "the past does not change");
    Ok(PastViews::new(mainline))
}
