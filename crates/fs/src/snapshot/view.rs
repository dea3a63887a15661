//! A snapshot that is open.

use super::parts::{PartNumbers, PastViews};
use super::{OTHERS_EXECUTE, SnapshotInfo, pin_name};
use crate::system::FileSystem;
use crate::{Attr, DirName, FsError, FsOptions, FsResult};
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_kv::{Engine, SnapshotEngine};

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

/// A directory of a moment, on the way along a path.
struct PathStep {
    fs: Arc<FileSystem>,
    view: u64,
    attr: Attr,
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

    /// Reports whether some directory above the snapshot's did not let everybody pass. Then only
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

    /// Returns the file system of a clone at that moment.
    pub(crate) fn open_view(&self, number: u64) -> FsResult<Arc<FileSystem>> {
        self.views.open(number)
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
    /// [`FsError::Stale`] if its path does not lead there.
    pub(crate) fn open_pin(
        engine: &Arc<dyn Engine>,
        options: &FsOptions,
        pin: &str,
        info: SnapshotInfo,
    ) -> FsResult<Self> {
        let at = engine.open_pin(pin)?;
        let past = SnapshotEngine::new(Arc::clone(engine), at);
        let views = PastViews::new(FileSystem::open_past(Arc::new(past), options.of_past())?);
        let (found, is_private) = walk(&views, &info)?;
        let clones = views.mainline().clones();
        let clones = clones.iter().map(|info| info.number).collect();
        Ok(Self {
            numbers: PartNumbers::new(info.view, found.fs.next_number(), clones),
            fs: found.fs,
            info,
            is_private,
            views,
        })
    }
}

/// Looks up the directory of a snapshot along its path, through clones, so that it is known.
/// Reports whether some directory above it does not let everybody pass.
fn walk(views: &PastViews, info: &SnapshotInfo) -> FsResult<(PathStep, bool)> {
    let elsewhere = || FsError::Stale(info.root);
    let mainline = views.mainline();
    let mut at = PathStep {
        fs: Arc::clone(mainline),
        view: 0,
        attr: mainline.get_attr(Ino::ROOT)?,
    };
    let mut is_private = false;
    let names = info.path.split(|byte| *byte == b'/');
    for name in names.filter(|name| !name.is_empty()) {
        is_private |= at.attr.perm & OTHERS_EXECUTE == 0;
        at = step(views, &at, name).map_err(|error| match error {
            FsError::NotFound | FsError::NotDir => elsewhere(),
            other => other,
        })?;
    }
    if (at.view, at.attr.ino) != (info.view, info.root) {
        return Err(elsewhere());
    }
    // Kept as an open file is: no lookup that is taken back makes it unknown.
    at.fs.open_handle(at.attr.ino)?;
    at.fs.forget(at.attr.ino, 1);
    Ok((at, is_private))
}

/// Looks up a name in a directory, and enters the clone that lies there.
fn step(views: &PastViews, at: &PathStep, name: &[u8]) -> FsResult<PathStep> {
    let found = at.fs.lookup(DirName::new(at.attr.ino, name));
    // What was passed stays known as long as what is below it.
    at.fs.forget(at.attr.ino, 1);
    let attr = found?;
    let Some(info) = at.fs.clone_at(attr.ino) else {
        return Ok(PathStep {
            fs: Arc::clone(&at.fs),
            view: at.view,
            attr,
        });
    };
    at.fs.forget(attr.ino, 1);
    let fs = views.open(info.number)?;
    let attr = fs.lookup(DirName::new(info.root, b"."))?;
    debug_assert_eq!(attr.ino, info.root, "a directory is its own `.`");
    Ok(PathStep {
        fs,
        view: info.number,
        attr,
    })
}
