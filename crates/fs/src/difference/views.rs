//! The views of a store at a moment: their records, their trees, and the names in all of them.

use super::moment::Moment;
use super::side::join;
use crate::locator::Tree;
use crate::schema::{SCHEMA, Store, view_schema};
use crate::{FsError, FsResult};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::rc::Rc;
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_format::fs_inode::{FileKind, InodeHead, MetaRow};
use stitch_format::fs_view::{ViewRecord, ViewState};
use stitch_kv::{Engine, Snapshot, SnapshotEngine};

/// A directory of a view.
pub(super) type ViewDir = (u64, Ino);

/// Mainline and all clones as one moment has them.
pub(super) struct ViewsAt<'f> {
    engine: &'f Arc<dyn Engine>,
    mainline: Moment<'f>,
    records: BTreeMap<u64, ViewRecord>,
    /// Numbers of clones, by the directory that they lie at.
    by_graft: HashMap<ViewDir, u64>,
    opened: RefCell<HashMap<u64, Moment<'f>>>,
}

impl<'f> ViewsAt<'f> {
    /// Reads the records of a moment.
    pub(super) fn read(engine: &'f Arc<dyn Engine>, at: &Snapshot) -> FsResult<Self> {
        let mainline = Self::open(engine, SCHEMA, at)?;
        let records = mainline.clones()?;
        let graft = |(number, record): (&u64, &ViewRecord)| ((record.home, record.graft), *number);
        let by_graft = records.iter().map(graft).collect();
        debug_assert!(!records.contains_key(&0), "mainline has no record");
        debug_assert!(
            records
                .values()
                .all(|record| record.state == ViewState::Live),
            "clones in use"
        );
        Ok(Self {
            engine,
            mainline,
            records,
            by_graft,
            opened: RefCell::default(),
        })
    }

    /// Opens the trees of a schema as a moment has them.
    fn open(engine: &'f Arc<dyn Engine>, schema: &str, at: &Snapshot) -> FsResult<Moment<'f>> {
        let past = SnapshotEngine::new(Arc::clone(engine), at.clone());
        let past: Arc<dyn Engine> = Arc::new(past);
        let store = Rc::new(Store::open(&past, schema)?);
        debug_assert_ne!(
            store.tree(Tree::Meta),
            store.tree(Tree::Sys),
            "each tree is one"
        );
        Ok(Moment::new(&**engine, store, at))
    }

    /// Returns the trees of a view.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there was no such view.
    pub(super) fn moment(&self, view: u64) -> FsResult<Moment<'f>> {
        if view == 0 {
            return Ok(self.mainline.clone());
        }
        if let Some(moment) = self.opened.borrow().get(&view) {
            return Ok(moment.clone());
        }
        if !self.records.contains_key(&view) {
            return Err(FsError::NotFound);
        }
        debug_assert!(view > 0, "mainline is open");
        let moment = Self::open(self.engine, &view_schema(view), &self.mainline.at)?;
        self.opened.borrow_mut().insert(view, moment.clone());
        Ok(moment)
    }

    /// Returns the clones that lie in a view, by number.
    pub(super) fn clones_in(&self, view: u64) -> impl Iterator<Item = (u64, &ViewRecord)> {
        let all = self.records.iter();
        all.filter(move |(_, record)| record.home == view)
            .map(|(number, record)| (*number, record))
    }

    /// Returns the clone that lies at a directory, with its own directory.
    fn clone_at(&self, dir: ViewDir) -> Option<ViewDir> {
        let number = *self.by_graft.get(&dir)?;
        debug_assert!(
            self.records[&number].graft == dir.1,
            "it lies at the directory"
        );
        Some((number, self.records[&number].root))
    }

    /// Returns the directory of a clone; `None` if there was no such clone.
    pub(super) fn root(&self, view: u64) -> Option<Ino> {
        self.records.get(&view).map(|record| record.root)
    }

    /// Returns the head of a clone's directory.
    pub(super) fn root_head(&self, view: u64) -> FsResult<InodeHead> {
        debug_assert!(view > 0, "mainline has no record");
        let record = self.records.get(&view).ok_or(FsError::NotFound)?;
        let head = self.moment(view)?.head_at(&record.path)?;
        head.filter(|head| head.ino == record.root)
            .ok_or(FsError::Stale(record.root))
    }

    /// Calls `visit` with the path of each name below a directory, and in the clones that lie
    /// there, until it breaks. Paths begin with `base`.
    ///
    /// # Errors
    /// [`FsError::Perm`] for a directory whose head `may_list` refuses; those of a read.
    pub(super) fn walk(
        &self,
        dir: ViewDir,
        base: &[u8],
        may_list: &dyn Fn(&InodeHead) -> bool,
        visit: &mut dyn FnMut(Vec<u8>) -> ControlFlow<()>,
    ) -> FsResult<()> {
        // Damaged rows may form a ring.
        let mut seen = BTreeSet::from([dir]);
        let mut waiting = vec![(dir, base.to_vec())];
        while let Some(((view, dir), base)) = waiting.pop() {
            debug_assert!(
                seen.contains(&(view, dir)),
                "each directory is seen before its names are"
            );
            let moment = self.moment(view)?;
            let flow = moment.each_name(dir, |name, row| {
                let path = join(&base, &name.name);
                debug_assert!(path.len() > base.len(), "a path grows with each name");
                if let MetaRow::Inode(head, _) = row
                    && head.kind == FileKind::Directory
                {
                    let (below, head) = match self.clone_at((view, head.ino)) {
                        Some(clone) => (clone, self.root_head(clone.0)?),
                        None => ((view, head.ino), *head),
                    };
                    if !may_list(&head) {
                        return Err(FsError::Perm);
                    }
                    if seen.insert(below) {
                        waiting.push((below, path.clone()));
                    }
                }
                Ok(visit(path))
            })?;
            if flow.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Reports whether there are at least so many names below a directory, and in the clones that
    /// lie there.
    pub(super) fn has_names_below(&self, dir: ViewDir, count: usize) -> FsResult<bool> {
        let mut found = 0;
        if count > 0 {
            self.walk(dir, b"", &|_| true, &mut |_| {
                found += 1;
                match found < count {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            })?;
        }
        debug_assert!(found <= count, "the walk ends with the last one");
        Ok(found >= count)
    }
}
