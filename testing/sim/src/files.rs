//! The file system on any engine as a system under test.

mod atomic;
pub(crate) mod fault;
pub(crate) mod lengths;
mod ops;
mod past;
mod tree;
pub mod views;

pub use atomic::StagedWrites;
pub use ops::{FsOp, What};
pub use tree::{Node, Tree, read};

use crate::kv::{Audit, Host, OpenEngine, Step};
use crate::{Ack, System, SystemError};
use past::{History, Pages};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use stitch_base::clock::{Clock, Timestamp};
use stitch_base::random::Rng;
use stitch_base::sync::Arc;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_base::{ErrorKind, Ino};
use stitch_device::{CrashDevice, CrashPlan, Device, MemDevice};
use stitch_fs::{
    AtimePolicy, External, ExternalFiles, ExternalName, FileKind, FileSystem, FsError, FsOptions,
    MemFiles,
};
use stitch_kv::{Engine, ModelEngine, UpsertRegistry};

/// Most unlinked files that stay open at a time.
const HELD_MAX: usize = 4;

/// A file system on engines of one kind.
pub struct FsSystem<H> {
    host: H,
    name: &'static str,
    image: MemDevice,
    /// Files larger than this are plain files.
    external_from: Option<u64>,
    /// Plain files are lent to a kernel that reads them itself.
    lends: bool,
    /// Half of all operations write some pages.
    writes_much: bool,
    /// A third of all operations are atomic writes.
    writes_atomically: bool,
    /// Operations are those of [`lengths`], with writes of so many bytes at most.
    longest_write: Option<u64>,
}

impl<H> std::fmt::Debug for FsSystem<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FsSystem")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// An open file system.
pub struct LiveFs {
    fs: FileSystem,
    step: Step,
    audit: Option<Audit>,
    clock: Arc<SetClock>,
    held: Vec<Ino>,
    files: Option<MemFiles>,
    lent: BTreeSet<ExternalName>,
}

impl LiveFs {
    /// An answer, if all that is taken of the medium has an owner after it.
    fn audited(&self, ack: Ack) -> Result<Ack, SystemError> {
        let found = self
            .audit
            .as_ref()
            .and_then(|audit| audit().into_iter().next());
        found.map_or(Ok(ack), |found| {
            Err(SystemError::new(ErrorKind::Bug, found))
        })
    }
}

/// The file system on the model engine.
pub struct FsModel {
    fs: FileSystem,
    clock: Arc<SetClock>,
    tree: Tree,
    seconds: u64,
    pasts: BTreeMap<Ino, History>,
    /// Inodes of which a name went with a removed tree.
    loose: BTreeSet<Ino>,
}

impl FsModel {
    /// Takes note of inodes with further names that have a name below this directory, which goes.
    fn note_links(&mut self, dir: &str) {
        let below = format!("{dir}/");
        for (path, node) in &self.tree {
            let is_linked = node.attr.kind != FileKind::Directory && node.attr.nlink > 1;
            if is_linked && path.starts_with(&below) {
                let ino = tree::ino(&self.fs, path).expect("it is there");
                self.loose.insert(ino);
            }
        }
    }

    /// Marks the inodes whose link count is uncertain.
    fn mark_loose(&mut self) {
        if self.loose.is_empty() {
            return;
        }
        for (path, node) in &mut self.tree {
            let ino = tree::ino(&self.fs, path).expect("it is there");
            node.has_removed_name = self.loose.contains(&ino);
        }
    }
}

/// A clock that shows what it is told.
#[derive(Debug, Default)]
struct SetClock {
    seconds: AtomicU64,
}

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        let seconds = self.seconds.load(Ordering::SeqCst);
        Timestamp::from_parts(i64::try_from(seconds).expect("small"), 5)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_secs(self.seconds.load(Ordering::SeqCst))
    }

    fn sleep(&self, _duration: Duration) {}
}

fn options(clock: &Arc<SetClock>) -> FsOptions {
    FsOptions {
        clock: Arc::clone(clock) as Arc<dyn Clock>,
        atime: AtimePolicy::Noatime,
        name_seed: Some(7),
        // Room for a few directories, and each answer without reading is compared with a read.
        names_bytes: 1000,
        confirm_names: true,
        // A power cut falls between batches, too.
        rollback_batch_bytes: Some(600),
        ..FsOptions::default()
    }
}

fn registry() -> UpsertRegistry {
    let mut registry = UpsertRegistry::default();
    stitch_fs::register_upserts(&mut registry);
    registry
}

fn error(e: FsError) -> SystemError {
    SystemError::new(e.kind(), e)
}

/// An error that says something about the request, not about the store.
fn is_answer(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NotFound | ErrorKind::Exists | ErrorKind::Invalid | ErrorKind::Unsupported
    )
}

impl<H: Host> FsSystem<H> {
    /// Formats a file system on an engine of `host`.
    ///
    /// # Panics
    /// If that fails.
    pub fn new(host: H, name: &'static str) -> Self {
        let device = Arc::new(CrashDevice::from_image(&host.image(), CrashPlan::NEVER));
        let engine = host
            .open(Arc::clone(&device) as Arc<dyn Device>, registry())
            .expect("a fresh medium opens");
        let engine = engine.engine;
        let clock = Arc::new(SetClock::default());
        FileSystem::format(&engine, &options(&clock), (0, 0)).expect("a fresh engine takes one");
        engine.close().expect("a fresh engine closes");
        let image = device.kill_image();
        Self {
            host,
            name,
            image,
            external_from: None,
            lends: false,
            writes_much: false,
            writes_atomically: false,
            longest_write: None,
        }
    }

    /// With many more writes of some pages.
    #[must_use]
    pub fn with_many_writes(mut self) -> Self {
        self.writes_much = true;
        self
    }

    /// With atomic writes of files.
    #[must_use]
    pub fn with_atomic_writes(mut self) -> Self {
        self.writes_atomically = true;
        self
    }

    /// With a few files whose lengths change all the time, by writes of at most `longest` bytes.
    #[must_use]
    pub fn with_lengths(mut self, longest: u64) -> Self {
        self.longest_write = Some(longest);
        self
    }

    /// With files larger than `bytes` beside the store.
    #[must_use]
    pub fn with_external(mut self, bytes: u64) -> Self {
        self.external_from = Some(bytes);
        self
    }

    /// With those lent, one now and then.
    #[must_use]
    pub fn with_lending(mut self) -> Self {
        self.lends = true;
        self
    }

    /// Lends one of the files, if it is external.
    fn lend_one(live: &mut LiveFs, model: &FsModel, at: u64) -> Result<(), SystemError> {
        let files = model.tree.iter();
        let files = files.filter(|(_, node)| node.attr.kind == FileKind::Regular);
        let paths: Vec<&String> = files.map(|(path, _)| path).collect();
        if paths.is_empty() {
            return Ok(());
        }
        let index = at % paths.len() as u64;
        let path = paths[usize::try_from(index).expect("below the number of files")];
        match tree::with_path(&live.fs, path, |ino| live.fs.lend(ino)) {
            Ok(lent) => {
                live.lent.extend(lent);
                Ok(())
            }
            // The model may be an operation ahead.
            Err(FsError::NotFound | FsError::NotDir) => Ok(()),
            Err(e) => Err(error(e)),
        }
    }

    /// Does one operation at the time that the clock shows.
    fn do_one(live: &mut LiveFs, op: &FsOp) -> Result<Ack, SystemError> {
        if matches!(op.what, What::Step) {
            return (live.step)().and_then(|_| live.audited(Ack::Done));
        }
        let done = ops::run(&live.fs, op, &mut live.held);
        while live.held.len() > HELD_MAX {
            live.fs.close_handle(live.held.remove(0));
        }
        let is_sync = match &op.what {
            What::Sync | What::SyncFile { .. } => true,
            What::AtomicWrite(write) => write.is_committed,
            _ => false,
        };
        live.audited(match done {
            Ok(()) if is_sync => Ack::Durable,
            Ok(()) => Ack::Done,
            // The model answers the same, or the states differ.
            Err(e) if is_answer(e.kind()) => Ack::Done,
            Err(FsError::NoSpace) => Ack::Refused,
            Err(e) => return Err(error(e)),
        })
    }

    fn open_with(
        &self,
        device: Arc<dyn Device>,
        files: Option<&MemFiles>,
    ) -> Result<LiveFs, SystemError> {
        let OpenEngine {
            engine,
            step,
            audit,
            ..
        } = self.host.open(device, registry())?;
        let clock = Arc::new(SetClock::default());
        let mut options = options(&clock);
        options.external = files.map(|files| External {
            files: Arc::new(files.clone()),
            from_bytes: self.external_from,
            is_synchronous: false,
        });
        let fs = FileSystem::open(engine, options).map_err(error)?;
        Ok(LiveFs {
            fs,
            step,
            audit,
            clock,
            held: Vec::new(),
            files: files.cloned(),
            lent: BTreeSet::new(),
        })
    }

    /// Gives a file of the model the contents that were found after an error.
    fn take_found(&self, model: &mut FsModel, path: &str, pages: &Pages) {
        let node = &model.tree[path];
        let old = node.past.as_ref().expect("it is a plain file").pages();
        let seconds = node.attr.ctime.0.div_euclid(1_000_000_000);
        let seconds = u64::try_from(seconds).expect("of the clock");
        model.clock.seconds.store(seconds, Ordering::SeqCst);
        ops::take_found(&model.fs, path, &old, pages).expect("the model takes it");
        model.tree = tree::read(&model.fs).expect("the model can be read");
        model.mark_loose();
        self.note_pasts(model, None);
    }

    /// Tells the histories of the files what an operation has done, and the tree of them.
    fn note_pasts(&self, model: &mut FsModel, what: Option<&What>) {
        if self.external_from.is_none() {
            return;
        }
        let synced = match what {
            Some(What::SyncFile { path }) => tree::ino(&model.fs, path).ok(),
            _ => None,
        };
        for (path, node) in &mut model.tree {
            if node.attr.kind != FileKind::Regular {
                continue;
            }
            let ino = tree::ino(&model.fs, path).expect("it is there");
            let pages = tree::pages(&model.fs, path, node).expect("the model can be read");
            let history = model.pasts.entry(ino).or_default();
            history.note(node.attr.size, pages);
            if matches!(what, Some(What::Sync)) || synced == Some(ino) {
                history.sync();
            }
            node.past = history.past();
        }
    }
}

impl<H: Host> System for FsSystem<H> {
    type Op = FsOp;
    type State = Tree;
    type Model = FsModel;
    type Live = LiveFs;

    fn name(&self) -> &'static str {
        self.name
    }

    fn image(&self) -> MemDevice {
        self.image.clone()
    }

    fn model(&self) -> FsModel {
        let engine: Arc<dyn Engine> = Arc::new(ModelEngine::new(registry()));
        let clock = Arc::new(SetClock::default());
        FileSystem::format(&engine, &options(&clock), (0, 0)).expect("the model takes one");
        let fs = FileSystem::open(engine, options(&clock)).expect("the model opens");
        let tree = tree::read(&fs).expect("the model can be read");
        FsModel {
            fs,
            clock,
            tree,
            seconds: 0,
            pasts: BTreeMap::new(),
            loose: BTreeSet::new(),
        }
    }

    fn generate(&self, model: &FsModel, rng: &mut Rng) -> FsOp {
        let at = model.seconds + 1;
        if let Some(longest) = self.longest_write {
            return lengths::generate(&model.tree, at, longest, rng);
        }
        let write = if self.writes_much && rng.one_in(2) {
            ops::write_some(&model.tree, at, rng)
        } else if self.writes_atomically && rng.one_in(3) {
            atomic::generate(&model.tree, at, rng)
        } else {
            None
        };
        write.unwrap_or_else(|| ops::generate(&model.tree, at, rng))
    }

    fn apply(&self, model: &mut FsModel, op: &FsOp) {
        model.seconds = op.at;
        if let What::Found { path, pages } = &op.what {
            self.take_found(model, path, pages);
            return;
        }
        model.clock.seconds.store(op.at, Ordering::SeqCst);
        if let What::RemoveTree { path } = &op.what {
            model.note_links(path);
        }
        let done = ops::run(&model.fs, op, &mut Vec::new());
        if let Err(e) = &done {
            assert!(is_answer(e.kind()), "the model says {e} to {op:?}");
        }
        model.tree = tree::read(&model.fs).expect("the model can be read");
        model.mark_loose();
        self.note_pasts(model, done.is_ok().then_some(&op.what));
    }

    fn model_state(&self, model: &FsModel) -> Tree {
        model.tree.clone()
    }

    fn open(&self, device: Arc<dyn Device>) -> Result<LiveFs, SystemError> {
        self.open_with(device, None)
    }

    fn open_beside(
        &self,
        device: Arc<dyn Device>,
        files: &MemFiles,
    ) -> Result<LiveFs, SystemError> {
        self.open_with(device, self.external_from.map(|_| files))
    }

    fn is_exact(&self, found: &Tree, expected: &Tree) -> bool {
        let contents =
            |tree: &Tree| -> Vec<_> { tree.values().map(|n| n.content.clone()).collect() };
        contents(found) == contents(expected)
    }

    fn ties_states(&self) -> bool {
        self.external_from.is_some()
    }

    fn run(&self, live: &mut LiveFs, op: &FsOp, model: &FsModel) -> Result<Ack, SystemError> {
        live.clock.seconds.store(op.at, Ordering::SeqCst);
        if self.lends && op.at.is_multiple_of(3) && !matches!(op.what, What::Step) {
            Self::lend_one(live, model, op.at)?;
        }
        Self::do_one(live, op)
    }

    fn is_write(&self, op: &FsOp) -> bool {
        // Others may be refused for reasons of their own, and be acknowledged without a write.
        matches!(op.what, What::SetTimes { .. })
    }

    fn state(&self, live: &LiveFs) -> Result<Tree, SystemError> {
        let mut tree = tree::read(&live.fs).map_err(error)?;
        if live.files.is_some() {
            for (path, node) in &mut tree {
                let is_file = node.attr.kind == FileKind::Regular;
                if is_file && tree::is_external(&live.fs, path).map_err(error)? {
                    node.pages = Some(tree::pages(&live.fs, path, node).map_err(error)?);
                }
            }
        }
        Ok(tree)
    }

    fn compare_readable(&self, live: &LiveFs, expected: &Tree) -> Result<u64, String> {
        let mut errors = 0;
        for (path, node) in expected {
            let mut firsts = BTreeMap::new();
            let found = tree::with_path(&live.fs, path, |ino| {
                tree::node(&live.fs, ino, &node.first, &mut firsts)
            });
            match found {
                Ok(found) if found == *node => {}
                Ok(found) => return Err(format!("{path:?} is {found:?}, not {node:?}")),
                Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Io) => errors += 1,
                Err(e) => return Err(format!("{path:?}: {e}")),
            }
        }
        Ok(errors)
    }

    fn check(&self, live: &LiveFs) -> Result<Vec<String>, SystemError> {
        let engine = live.fs.engine();
        let kv = |e: stitch_kv::KvError| SystemError::new(e.kind(), e);
        let broken = engine.check(&mut |_, _| {}).map_err(kv)?;
        let mut out: Vec<String> = broken
            .into_iter()
            .map(|v| format!("{}: {}", v.rule, v.detail))
            .collect();
        if live.files.is_some() {
            // Plain files without rows go when that is durable.
            live.fs.sync().map_err(error)?;
        }
        let files = live.files.as_ref().map(|files| files as &dyn ExternalFiles);
        let issues = stitch_fs::fsck::check_with_files(engine, &[], files, &mut |_| {});
        let issues = issues.map_err(error)?;
        out.extend(issues.into_iter().map(|issue| issue.to_string()));
        out.extend(live.audit.iter().flat_map(|audit| audit()));
        Ok(out)
    }

    fn quiesce(&self, live: &LiveFs) -> Result<(), SystemError> {
        let settled = live.fs.engine().quiesce();
        settled.map_err(|e| SystemError::new(e.kind(), e))
    }

    fn close(&self, live: LiveFs) -> Result<(), SystemError> {
        for ino in live.held {
            live.fs.close_handle(ino);
        }
        live.fs.close().map_err(error)?;
        live.fs
            .engine()
            .close()
            .map_err(|e| SystemError::new(e.kind(), e))
    }

    fn difference(&self, found: &Tree, expected: &Tree) -> String {
        tree::difference(found, expected)
    }
}

#[cfg(test)]
mod tests;
