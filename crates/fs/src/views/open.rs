//! Opening the file systems of views.

use super::{CloneInfo, LiveView, Standing};
use crate::aside::Aside;
use crate::atomic::AtomicWrites;
use crate::schema::view_schema;
use crate::snapshot::walk_path;
use crate::system::FileSystem;
use crate::transaction::ReadSet;
use crate::{FsError, FsOptions, FsResult};
use stitch_base::sync::Arc;
use stitch_format::fs_view::ViewState;
use stitch_kv::Engine;

/// Opens views of a store. Their file systems share with the one that opens them what all of an
/// engine have in common: the records of views, the count of what was given back, the room that is
/// set aside, and the memory of atomic writes.
///
/// Invariant: a writable view is open once in a process, but while it is made.
#[derive(Clone, Copy)]
pub(crate) struct ViewOpener<'fs> {
    engine: &'fs Arc<dyn Engine>,
    options: &'fs FsOptions,
    standing: &'fs Standing,
    aside: &'fs Aside,
    atomic_writes: &'fs AtomicWrites,
}

impl<'fs> ViewOpener<'fs> {
    pub(crate) const fn of(fs: &'fs FileSystem) -> Self {
        Self {
            engine: fs.engine(),
            options: &fs.options,
            standing: &fs.standing,
            aside: &fs.aside,
            atomic_writes: &fs.atomic_writes,
        }
    }

    /// Returns where the file system stands that opens them.
    pub(crate) const fn standing(&self) -> &'fs Standing {
        self.standing
    }

    /// Opens the file system of a clone. If it is open already, that one is returned. Its directory
    /// is known in it.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there is none, or it was removed.
    pub(crate) fn open(&self, number: u64) -> FsResult<Arc<LiveView>> {
        let view = self.standing.views.open_once(number, |record| {
            let fs = self.open_trees(number)?;
            walk_path(&fs, record.root, &record.path)?;
            Ok(LiveView {
                fs: Arc::new(fs),
                info: CloneInfo::of(number, record),
            })
        })?;
        debug_assert_eq!(
            view.fs.view_number(),
            number,
            "the clone that was asked for"
        );
        Ok(view)
    }

    /// Opens a clone as it is in the snapshot that the file system is of. Its directory is known.
    /// Reads of it are noted in `reads`, the set of a transaction.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there was none.
    pub(crate) fn open_past(&self, number: u64, reads: Option<&ReadSet>) -> FsResult<FileSystem> {
        debug_assert!(self.options.read_only, "the past does not change");
        let record = self.standing.views.record(number);
        let record = record.ok_or(FsError::NotFound)?;
        debug_assert_eq!(record.state, ViewState::Live, "it is in use");
        let mut fs = self.open_trees(number)?;
        let enter = |reads: &ReadSet| reads.enter_clone(&CloneInfo::of(number, &record));
        fs.reads = reads.map(enter).transpose()?.map(Arc::new);
        walk_path(&fs, record.root, &record.path)?;
        debug_assert!(fs.is_read_only(), "the past does not change");
        debug_assert_eq!(fs.view_number(), number, "the clone that was asked for");
        Ok(fs)
    }

    /// Runs `body` with the file system of a view that has no record yet: nothing else opens it.
    pub(super) fn with_unrecorded<T>(
        &self,
        number: u64,
        body: impl FnOnce(&FileSystem) -> FsResult<T>,
    ) -> FsResult<T> {
        debug_assert!(
            self.standing.views.record(number).is_none(),
            "one with a record may be open"
        );
        let view = self.open_trees(number)?;
        debug_assert_eq!(view.view_number(), number, "the view that was asked for");
        let done = body(&view);
        view.aside.release(view.engine().as_ref());
        done
    }

    /// Opens the trees of a view by the name of their schema.
    fn open_trees(&self, number: u64) -> FsResult<FileSystem> {
        debug_assert!(number > 0, "mainline is open");
        let options = FsOptions {
            ledger: None,
            external: None,
            ..self.options.clone()
        };
        let standing = Standing {
            number,
            views: Arc::clone(&self.standing.views),
            room: Arc::clone(&self.standing.room),
        };
        let (engine, aside) = (Arc::clone(self.engine), Aside::beside(self.aside));
        let view = FileSystem::open_with(engine, options, &view_schema(number), standing, aside)?;
        Ok(view.with_writes_beside(self.atomic_writes))
    }
}

impl Drop for LiveView {
    fn drop(&mut self) {
        // Inode numbers that were set aside are skipped, as after a crash: another thread may be
        // opening the view again.
        self.fs.aside.release(self.fs.engine().as_ref());
    }
}
