//! A store, open: device, volume, engine and, on top, the file system.

use crate::engine::{self, Instance, Opened, Resized};
use crate::keys::{AttachedKeys, KeyServer};
use crate::make::{self, MakeOptions, RootOwner};
use crate::records::{RoundGates, StoreRecords};
use crate::{EngineKind, StoreError, external};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::time::Duration;
use stitch_base::ErrorKind;
use stitch_base::sync::{Arc, Mutex};
use stitch_device::{Device, IoMode};
use stitch_fs::{
    AtimePolicy, Caller, CompressOptions, External, ExternalFiles, FileSystem, FsError, FsOptions,
    Ledger, SetAttr, fsck,
};
use stitch_fuse::{MountMode, TransactionSockets};
use stitch_kv::{Engine, LostKeys, UpsertRegistry};
use stitch_volume::{Durability, TrimRange, Volume};
use stitch_vt::{Defragged, StitchByKey, Watch};
use uuid::Uuid;

/// How to open a store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Write nothing at all.
    pub read_only: bool,
    /// Memory for buffers and caches together, in bytes.
    pub memory_bytes: u64,
    /// Part of that memory which the engine leaves to the program, for rows of keys that it serves,
    /// in bytes; 0 by default.
    pub key_rows_bytes: u64,
    /// How often what was acknowledged is made durable: what a power cut may take.
    pub sync_interval: Duration,
    /// How long mounts keep the history of the file system, in whole seconds; `None` for not at
    /// all. A program keeps it by [`Files::run_history`](crate::fs::Files::run_history).
    pub history: Option<Duration>,
    /// When reading a file changes its time of access.
    pub atime: AtimePolicy,
    /// What an operation survives when it returns.
    pub durability: Durability,
    /// Gives up a damaged end of the log: the operations in it are lost, and all after them.
    pub drop_log_tail: bool,
    /// How the file system is compressed from now on; by default as it was. Kept in the store.
    pub compress: CompressOptions,
    /// Upsert functions of the program's own trees, by numbers from 1024 on. To be given at every
    /// opening: a value cannot be read while a function that is to be folded into it is missing.
    pub upserts: UpsertRegistry,
    /// Stitching thresholds by key, for trees that are not alike all over.
    pub stitch_by_key: Option<StitchByKey>,
    /// Tells the device of zones as they become free.
    pub discard: bool,
    /// How a block device is read and written. A file goes through the page cache; `Direct` and
    /// `Ring` are errors there.
    pub io: IoMode,
    /// Which instance of the store is meant; by default the one that every store has, `main`. All
    /// are opened, and share the memory.
    pub instance: Option<String>,
    /// Which files become plain files from now on, for a store in a file or a directory. Those that
    /// are so already stay.
    pub large_files: LargeFiles,
}

/// Which files become plain files beside a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LargeFiles {
    /// As the store was made: with the RocksDB engine, those that [`MakeOptions::large_files`]
    /// says, else none.
    #[default]
    AsMade,
    /// None.
    Inside,
    /// Those that become larger than so many bytes, from [`LARGE_FILES_MIN`] to
    /// [`LARGE_FILES_MAX`].
    External(u64),
}

impl LargeFiles {
    /// Returns the size beyond which files become plain files, `made` by default; `None` for no
    /// file.
    pub(crate) fn threshold(self, made: Option<u64>) -> Option<u64> {
        let bytes = match self {
            Self::AsMade => made,
            Self::Inside => None,
            Self::External(bytes) => Some(bytes),
        };
        bytes.map(|bytes| bytes.clamp(LARGE_FILES_MIN, LARGE_FILES_MAX))
    }
}

/// Least size above which files may be plain files beside the store.
pub const LARGE_FILES_MIN: u64 = 4 << 10;
/// Largest such size: so many bytes are copied at most when a file leaves the store.
pub const LARGE_FILES_MAX: u64 = 1 << 30;

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            memory_bytes: crate::memory::BUDGET_BYTES_MIN,
            key_rows_bytes: 0,
            sync_interval: Duration::from_secs(5),
            history: None,
            atime: AtimePolicy::default(),
            durability: Durability::default(),
            drop_log_tail: false,
            compress: CompressOptions::default(),
            upserts: UpsertRegistry::default(),
            stitch_by_key: None,
            discard: false,
            io: IoMode::default(),
            instance: None,
            large_files: LargeFiles::default(),
        }
    }
}

/// Makes a store at `path` with an empty file system in it. `progress` is told bytes done and bytes
/// to do.
///
/// # Errors
/// See [`StoreError`]. Nothing is left behind where there was nothing.
///
/// # Durability
/// The store is durable when this returns.
pub fn make(
    path: &Path,
    options: &MakeOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Made, StoreError> {
    if options.engine == EngineKind::RocksDb {
        let fill = &mut |engine: &Arc<dyn Engine>| format_file_system(engine, options);
        let (path, identity) = engine::make_in_directory(path, options, fill)?;
        return Ok(Made {
            path,
            engine: options.engine,
            uuid: Uuid::from_bytes(identity.uuid),
            label: identity.label,
            superblock: None,
        });
    }
    make::on_device(path, options, IoMode::Auto, &mut |device| {
        make::format_device(device.as_ref(), options, progress)?;
        let superblock = Volume::identify(device.as_ref())?;
        let made = Made {
            path: device.geometry().into_path(),
            engine: options.engine,
            uuid: Uuid::from_bytes(superblock.uuid),
            label: superblock.label.clone(),
            superblock: Some(superblock),
        };
        let store = Store::on_device(Arc::clone(device), &StoreOptions::default())?;
        format_file_system(store.engine(), options)?;
        store.close()?;
        Ok(made)
    })
}

/// A store that was made.
#[derive(Clone, Debug)]
pub struct Made {
    /// The file, device or directory.
    pub path: PathBuf,
    /// What keeps its records.
    pub engine: EngineKind,
    /// Its number.
    pub uuid: Uuid,
    /// Name given by the user.
    pub label: String,
    /// What it is, of a store on a volume.
    pub superblock: Option<stitch_format::superblock::Superblock>,
}

/// What is wrong with a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What is broken, as a short stable word.
    pub rule: String,
    /// Where and how, for a person.
    pub detail: String,
    /// What it concerns.
    pub inodes: Vec<fsck::Owner>,
    /// Whether [`Store::repair`] can do something about it.
    pub is_repairable: bool,
}

impl Finding {
    /// Returns a finding that concerns no single inode.
    #[must_use]
    pub fn new(rule: &str, detail: String, is_repairable: bool) -> Self {
        Self {
            rule: rule.to_owned(),
            detail,
            inodes: Vec::new(),
            is_repairable,
        }
    }
}

/// What a check found.
#[derive(Debug, Default)]
pub struct Checked {
    /// All that is wrong.
    pub findings: Vec<Finding>,
    /// Of file systems, with the instances that they are in.
    issues: Vec<(String, Vec<fsck::Issue>)>,
    /// Uuid and path of the store that was checked, which may be opened anew for its repair.
    store: Option<(Uuid, PathBuf)>,
}

/// An open store. Closing it writes everything out; dropping it is as safe, but the next open has
/// more to do.
pub struct Store {
    path: PathBuf,
    keys: AttachedKeys,
    gates: Arc<RoundGates>,
    mode: Arc<MountMode>,
    /// The first instance, which knows the others.
    pub(crate) first: Instance,
    /// The instance that was asked for.
    pub(crate) instance: Instance,
    options: StoreOptions,
    damage: Vec<Finding>,
    /// Lives as long as the file system that was opened last: two would use the same inode numbers.
    opened: Mutex<Weak<StoreRecords>>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("path", &self.path)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the store at `path`: a file, a directory with a store in it, or a block device. What
    /// is there tells the engine.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn open(path: &Path, options: &StoreOptions) -> Result<Self, StoreError> {
        let opened = engine::open(path, options, engine_bytes(options))?;
        Self::of(opened, options)
    }

    /// Opens the store on a device.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn on_device(device: Arc<dyn Device>, options: &StoreOptions) -> Result<Self, StoreError> {
        let memory_bytes = engine_bytes(options);
        let opened = engine::open_device(device, options, memory_bytes)?;
        Self::of(opened, options)
    }

    fn of(opened: Opened, options: &StoreOptions) -> Result<Self, StoreError> {
        let Opened { first, damage } = opened;
        let name = first.path();
        Ok(Self {
            path: name.canonicalize().unwrap_or(name),
            keys: AttachedKeys::default(),
            gates: Arc::default(),
            mode: Arc::default(),
            instance: first.find(options.instance.as_deref())?,
            first,
            options: options.clone(),
            damage,
            opened: Mutex::default(),
        })
    }

    /// Opens the file system in the store.
    ///
    /// # Errors
    /// [`StoreError::NoFileSystem`]; [`StoreError::FileSystemOpen`] until the one that was opened
    /// before is dropped, with its snapshots; see [`StoreError`].
    pub fn file_system(&self) -> Result<FileSystem, StoreError> {
        self.file_system_on(None)
    }

    /// Opens the file system with a ledger, which says what an earlier process knew, if there was
    /// one.
    pub(crate) fn file_system_on(
        &self,
        ledger: Option<Arc<dyn Ledger>>,
    ) -> Result<FileSystem, StoreError> {
        let made = self.instance.large_files();
        let from_bytes = self.options.large_files.threshold(made);
        let files =
            self.large_files(&self.instance, from_bytes.is_some(), self.options.read_only)?;
        let external = files.map(|files| External {
            files,
            from_bytes,
            is_synchronous: self.options.durability == Durability::Device,
        });
        let mut opened = self.opened.lock();
        if opened.upgrade().is_some() {
            return Err(StoreError::FileSystemOpen {
                path: self.path.clone(),
                instance: self.instance.name().to_owned(),
            });
        }
        let records = Arc::new(StoreRecords::new(Arc::clone(&self.gates)));
        *opened = Arc::downgrade(&records);
        let options = FsOptions {
            external,
            ledger,
            records,
            read_only: self.options.read_only,
            atime: self.options.atime,
            inodes_max: inodes_max(self.options.memory_bytes),
            history_s: self.options.history.map(|kept| kept.as_secs()),
            names_bytes: usize::try_from(name_bytes(self.options.memory_bytes))
                .unwrap_or(usize::MAX),
            ..FsOptions::default()
        };
        if !self.options.read_only {
            let set = stitch_fs::set_compression(self.engine(), self.options.compress);
            set.map_err(|error| self.explain(error))?;
        }
        let opened = FileSystem::open(Arc::clone(self.engine()), options);
        opened.map_err(|error| self.explain(error))
    }

    /// The folder of large files of an instance, if there is one or one is wanted.
    fn large_files(
        &self,
        instance: &Instance,
        is_wanted: bool,
        read_only: bool,
    ) -> Result<Option<Arc<dyn ExternalFiles>>, StoreError> {
        let is_needed = stitch_fs::has_external_files(&instance.engine);
        let request = external::Request {
            store: &self.path,
            uuid: self.uuid(),
            instance: instance.name(),
            shares_space: instance.is_in_host_space(),
            is_wanted,
            is_needed: is_needed.map_err(|error| self.explain(error))?,
            read_only,
        };
        request.find()
    }

    /// How often what was acknowledged is made durable.
    pub(crate) const fn sync_interval(&self) -> Duration {
        self.options.sync_interval
    }

    fn explain(&self, error: FsError) -> StoreError {
        match error.kind() {
            ErrorKind::NotFound => StoreError::NoFileSystem {
                path: self.path.clone(),
                instance: self.instance.name().to_owned(),
                is_empty: self.has_no_trees(),
                others: self.file_systems(),
            },
            _ => error.into(),
        }
    }

    fn has_no_trees(&self) -> bool {
        let all = self.first.all();
        all.iter().all(|one| one.engine.trees().is_empty())
    }

    /// Names of the instances that have a file system, `main` first.
    #[must_use]
    pub fn file_systems(&self) -> Vec<String> {
        let mut all = self.first.all();
        all.retain(Instance::has_file_system);
        all.iter().map(|one| one.name().to_owned()).collect()
    }

    /// The file or device, with its full path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Damage that opening has met and got around. Opening for writing has repaired it.
    #[must_use]
    pub fn damage(&self) -> &[Finding] {
        &self.damage
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.instance.engine
    }

    /// What it is: path, label, uuid, sizes, space.
    #[must_use]
    pub fn identity(&self) -> Value {
        let mut out = self.instance.identity(&self.path);
        out["instance"] = json!(self.instance.name());
        let space = self.engine().space();
        out["space_total_bytes"] = json!(space.total_bytes);
        out["space_free_bytes"] = json!(space.free_bytes);
        out["memory_budget_bytes"] = json!(self.options.memory_bytes);
        out["read_only"] = json!(self.options.read_only);
        out["sync"] = json!(self.options.durability == Durability::Device);
        out
    }

    /// What device and engine have done since the store was opened, by name.
    #[must_use]
    pub fn counters(&self) -> Vec<(String, u64)> {
        let counters = self.engine().counters();
        let named = counters.iter();
        named
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }

    /// Reads everything and checks every rule of the engine and of the file system, in all
    /// instances. `progress` is told bytes done and bytes to do, and that twice: first for blocks,
    /// then for rows.
    ///
    /// # Errors
    /// Only where the check itself cannot go on.
    pub fn check(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Checked, StoreError> {
        let mut checked = Checked {
            store: Some((self.uuid(), self.path.clone())),
            ..Checked::default()
        };
        for instance in self.first.all() {
            self.check_instance(&instance, progress, &mut checked)?;
        }
        Ok(checked)
    }

    fn check_instance(
        &self,
        instance: &Instance,
        progress: &mut dyn FnMut(u64, u64),
        checked: &mut Checked,
    ) -> Result<(), StoreError> {
        let engine = &instance.engine;
        let is_first = instance.is_first();
        let named = |detail: String| match is_first {
            true => detail,
            false => format!("instance {}: {detail}", instance.name()),
        };
        let mut total_bytes = 0;
        let violations = engine.check(&mut |done, total| {
            total_bytes = total;
            progress(done, total);
        });
        let violations = violations?;
        let lost: Vec<LostKeys> = violations.iter().filter_map(|v| v.lost.clone()).collect();
        checked.findings.extend(
            violations
                .into_iter()
                .map(|violation| Finding::new(violation.rule, named(violation.detail), false)),
        );
        if !instance.has_file_system() {
            return Ok(());
        }
        let files = match self.large_files(instance, false, true) {
            Ok(files) => files,
            Err(StoreError::LargeFiles { path, reason }) => {
                let detail = named(format!("{}: {reason}", path.display()));
                checked
                    .findings
                    .push(Finding::new("large-files", detail, false));
                None
            }
            // The check of the rows says what is wrong.
            Err(_) => None,
        };
        let mut rows = |_| progress(total_bytes, total_bytes);
        let checked_rows = fsck::check_with_files(engine, &lost, files.as_deref(), &mut rows);
        let issues = match checked_rows {
            Ok(issues) => issues,
            // A damaged block was found above already, with its place.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let detail = named(format!("cannot be checked: {error}"));
                checked
                    .findings
                    .push(Finding::new("file-system", detail, false));
                return Ok(());
            }
            Err(error) => return Err(self.explain(error)),
        };
        let of_issue = |issue: &fsck::Issue| Finding {
            rule: "file-system".to_owned(),
            detail: named(issue.to_string()),
            inodes: issue.owners().to_vec(),
            is_repairable: issue.is_repairable(),
        };
        checked.findings.extend(issues.iter().map(of_issue));
        checked.issues.push((instance.name().to_owned(), issues));
        Ok(())
    }

    fn uuid(&self) -> Uuid {
        self.first.uuid()
    }

    /// Repairs what can be repaired of what [`Self::check`] found. Check again afterwards.
    ///
    /// # Errors
    /// [`StoreError::Foreign`] for a check of another store; see [`StoreError`].
    pub fn repair(&self, checked: &Checked) -> Result<u64, StoreError> {
        // A copy of a store has its uuid.
        let is_other = |(uuid, path): &&(Uuid, PathBuf)| *uuid != self.uuid() || *path != self.path;
        if let Some((_, other)) = checked.store.as_ref().filter(is_other) {
            return Err(StoreError::Foreign {
                handle: "the result of a check".to_owned(),
                owner: other.display().to_string(),
                asked: self.path.display().to_string(),
            });
        }
        let again = match self.finish_rollbacks(checked)? {
            true => Some(self.check(&mut |_, _| ())?),
            false => None,
        };
        let checked = again.as_ref().unwrap_or(checked);
        let mut count = 0;
        for (name, issues) in &checked.issues {
            let instance = self.first.find(Some(name))?;
            let files = self.large_files(&instance, false, false).ok().flatten();
            count += fsck::repair_with_files(&instance.engine, files.as_deref(), issues)?;
            instance.engine.sync()?;
        }
        Ok(count)
    }

    /// Finishes rollbacks that a check found interrupted. Reports whether there were any.
    fn finish_rollbacks(&self, checked: &Checked) -> Result<bool, StoreError> {
        let mut has_any = false;
        for (name, issues) in &checked.issues {
            let instance = self.first.find(Some(name))?;
            has_any |= fsck::finish_rollbacks(&instance.engine, issues)?;
        }
        Ok(has_any)
    }

    /// As [`Database::defrag`](crate::Database::defrag).
    ///
    /// # Errors
    /// See [`StoreError`]. What was moved stays moved.
    pub fn defrag(&self, watch: &mut Watch<'_>) -> Result<Defragged, StoreError> {
        self.first.defrag(watch)
    }

    /// As [`Database::trim`](crate::Database::trim).
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn trim(&self, watch: &mut Watch<'_>) -> Result<u64, StoreError> {
        self.trim_range(&TrimRange::ALL, watch)
    }

    /// As [`Self::trim`], of a part of the store.
    pub(crate) fn trim_range(
        &self,
        range: &TrimRange,
        watch: &mut Watch<'_>,
    ) -> Result<u64, StoreError> {
        self.first.trim(range, watch)
    }

    /// As [`Database::grow`](crate::Database::grow).
    ///
    /// # Errors
    /// [`StoreError::Size`]; see [`StoreError`].
    pub fn grow(&self, bytes: Option<u64>) -> Result<Resized, StoreError> {
        self.first.grow(&self.path, bytes)
    }

    /// As [`Database::shrink`](crate::Database::shrink).
    ///
    /// # Errors
    /// [`StoreError::Size`]; see [`StoreError`].
    pub fn shrink(&self, bytes: u64, watch: &mut Watch<'_>) -> Result<Resized, StoreError> {
        self.first.shrink(&self.path, bytes, watch)
    }

    /// Ends this server of keys before the store is closed. A mount that begins later tells of its
    /// socket, and leads to it by `.stitchfs/kv.sock`.
    pub fn attach_keys(&self, server: KeyServer) {
        self.keys.set(server);
    }

    /// What holds the servers of keys back while a transaction is committed: to be given to them.
    #[must_use]
    pub const fn round_gates(&self) -> &Arc<RoundGates> {
        &self.gates
    }

    /// Returns whether the mount of the store is read-only at the moment; writable without one.
    #[must_use]
    pub const fn mount_mode(&self) -> &Arc<MountMode> {
        &self.mode
    }

    /// Memory that the engine leaves for rows of keys, in bytes.
    #[must_use]
    pub const fn key_rows_bytes(&self) -> u64 {
        self.options.key_rows_bytes
    }

    /// What serves the keys of transactions.
    pub(crate) fn transaction_sockets(&self) -> Option<Arc<dyn TransactionSockets>> {
        self.keys.transactions()
    }

    /// The socket on which keys are served.
    pub(crate) fn keys_socket(&self) -> Option<PathBuf> {
        self.keys.socket()
    }

    /// Writes everything out, of all instances, and lets go of the device when the last owner of
    /// the engine does.
    ///
    /// # Errors
    /// See [`StoreError`]; what was acknowledged may not be durable then.
    pub fn close(&self) -> Result<(), StoreError> {
        self.keys.stop();
        Ok(self.first.engine.close()?)
    }
}

/// Makes an empty file system in an engine.
pub(crate) fn format_file_system(
    engine: &Arc<dyn Engine>,
    options: &MakeOptions,
) -> Result<(), StoreError> {
    let fs_options = FsOptions::default();
    let root = options.root;
    FileSystem::format(engine, &fs_options, (root.uid, root.gid))?;
    stitch_fs::set_compression(engine, options.compress)?;
    if root.mode == RootOwner::default().mode {
        return Ok(());
    }
    let set = SetAttr {
        perm: Some(root.mode),
        ..SetAttr::default()
    };
    let fs = FileSystem::open(Arc::clone(engine), fs_options)?;
    fs.set_attr(&Caller::ROOT, stitch_base::Ino::ROOT, &set)?;
    Ok(fs.close()?)
}

/// The part of a memory budget that the engine may take.
const fn engine_bytes(options: &StoreOptions) -> u64 {
    let memory_bytes = options.memory_bytes;
    let left = memory_bytes - inode_bytes(memory_bytes) - name_bytes(memory_bytes);
    left.saturating_sub(options.key_rows_bytes)
}

/// The part of a memory budget that inodes in use may take.
const fn inode_bytes(memory_bytes: u64) -> u64 {
    memory_bytes / 8
}

/// The part of a memory budget that the names of directories known whole may take.
const fn name_bytes(memory_bytes: u64) -> u64 {
    memory_bytes / 32
}

/// Inodes in use that fit their part of a memory budget.
fn inodes_max(memory_bytes: u64) -> usize {
    let count = inode_bytes(memory_bytes) / stitch_fs::INODE_BYTES as u64;
    usize::try_from(count).unwrap_or(usize::MAX)
}
