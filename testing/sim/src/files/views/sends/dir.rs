//! A directory of a simulated file system, as streams are sent from it and received in it.

use crate::files::tree;
use crate::files::{LiveFs, views::state};
use rustix::fs::FileType;
use rustix::io::Errno;
use std::fs::File;
use stitch_base::Ino;
use stitch_base::clock::Timestamp;
use stitch_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stitch_base::sync::{Arc, Mutex};
use stitch_fs::{
    Attr, Caller, ClearSetId, DirName, FallocateMode, FileKind, FileSystem, FsError, FsResult,
    NewNode, RenameMode, SeekFor, SetAttr, SetTime, SnapshotView, WriteOptions, XattrMode,
};
use stitch_send::{Beneath, FileStat, Node, OpenFile, OpenFor, Root, Xattrs};

/// What a user can name: mainline, or a snapshot.
#[derive(Clone)]
enum Files {
    Live(Arc<LiveFs>),
    Past(Arc<SnapshotView>),
}

impl Files {
    fn fs(&self) -> &FileSystem {
        match self {
            Self::Live(live) => &live.fs,
            Self::Past(view) => view.fs(),
        }
    }
}

/// A directory. What is written to a file comes to the file system when the file is closed, synced
/// or changed otherwise, as the kernel's write-back brings it.
#[derive(Clone)]
pub(super) struct SimDir {
    files: Files,
    /// The path of the directory.
    place: String,
    /// Calls after which all others fail.
    calls_left: Arc<AtomicU64>,
    /// A file was closed whose contents could not be written: the next sync tells it.
    has_lost: Arc<AtomicBool>,
}

impl std::fmt::Debug for SimDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimDir({:?})", self.place)
    }
}

impl SimDir {
    /// A directory of mainline.
    pub(super) fn live(live: &Arc<LiveFs>, place: &str) -> Self {
        Self {
            files: Files::Live(Arc::clone(live)),
            place: place.to_owned(),
            calls_left: Arc::new(AtomicU64::new(u64::MAX)),
            has_lost: Arc::default(),
        }
    }

    /// The directory of a snapshot.
    pub(super) fn past(live: &LiveFs, name: &str) -> FsResult<Self> {
        let view = live.fs.snapshots().open(name)?;
        let place = state::path_of(view.fs(), view.info().root)?;
        Ok(Self {
            files: Files::Past(Arc::new(view)),
            place,
            calls_left: Arc::new(AtomicU64::new(u64::MAX)),
            has_lost: Arc::default(),
        })
    }

    /// The same, for a receiver that is killed after so many calls.
    pub(super) fn with_calls(self, count: u64) -> Self {
        self.calls_left.store(count, Ordering::SeqCst);
        self
    }

    /// Counts a call; an error if there are none left.
    fn call(&self) -> Result<&FileSystem, Errno> {
        let less = |left: u64| left.checked_sub(1);
        let left = self
            .calls_left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        left.map(|_| self.files.fs()).map_err(|_| Errno::IO)
    }

    pub(super) fn into_root(self) -> Root {
        let place = self.place.clone().into();
        Root::new(Box::new(self), place)
    }

    /// Reads all below it. Paths are from the directory on.
    pub(super) fn read(&self) -> FsResult<tree::Tree> {
        let below = tree::read_below(self.files.fs(), &self.place)?;
        let cut = |path: &str| path[self.place.len()..].trim_start_matches('/').to_owned();
        let nodes = below.into_iter().map(|(path, mut node)| {
            node.first = cut(&node.first);
            (cut(&path), node)
        });
        Ok(nodes.collect())
    }

    fn path(&self, path: &[u8]) -> String {
        let path = str::from_utf8(path).expect("names here are UTF-8");
        match path {
            "" => self.place.clone(),
            path => tree::join(&self.place, path),
        }
    }

    fn at<T>(
        &self,
        path: &[u8],
        body: impl FnOnce(&FileSystem, Ino) -> FsResult<T>,
    ) -> Result<T, Errno> {
        let fs = self.call()?;
        tree::with_path(fs, &self.path(path), |ino| body(fs, ino)).map_err(errno)
    }

    fn named<T>(
        &self,
        path: &[u8],
        body: impl FnOnce(&FileSystem, DirName<'_>) -> FsResult<T>,
    ) -> Result<T, Errno> {
        let fs = self.call()?;
        tree::with_name(fs, &self.path(path), |at| body(fs, at)).map_err(errno)
    }

    fn set(&self, path: &[u8], set: &SetAttr) -> Result<(), Errno> {
        self.at(path, |fs, ino| fs.set_attr(&Caller::ROOT, ino, set))
            .map(drop)
    }

    fn rename_by(&self, from: &[u8], to: &[u8], mode: RenameMode) -> Result<(), Errno> {
        let fs = self.call()?;
        let done = tree::with_name(fs, &self.path(from), |from| {
            tree::with_name(fs, &self.path(to), |to| {
                fs.rename(&Caller::ROOT, from, to, mode)
            })
        });
        done.map_err(errno)
    }
}

/// The number that a mount gives for an error.
///
/// # Panics
/// If it says that the store is damaged.
fn errno(error: FsError) -> Errno {
    match error {
        FsError::NotFound => Errno::NOENT,
        FsError::Exists => Errno::EXIST,
        FsError::NotDir => Errno::NOTDIR,
        FsError::IsDir => Errno::ISDIR,
        FsError::NotEmpty => Errno::NOTEMPTY,
        FsError::NoData => Errno::NODATA,
        FsError::NoSeekTarget => Errno::NXIO,
        FsError::NoSpace => Errno::NOSPC,
        FsError::Perm => Errno::PERM,
        FsError::Invalid(_) => Errno::INVAL,
        FsError::Unsupported => Errno::NOTSUP,
        other => panic!("a call of the sender or the receiver fails: {other}"),
    }
}

fn type_of(kind: FileKind) -> FileType {
    match kind {
        FileKind::Fifo => FileType::Fifo,
        FileKind::CharDevice => FileType::CharacterDevice,
        FileKind::Directory => FileType::Directory,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Regular => FileType::RegularFile,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Socket => FileType::Socket,
    }
}

fn kind_of(kind: FileType) -> FileKind {
    match kind {
        FileType::Fifo => FileKind::Fifo,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        _ => FileKind::Socket,
    }
}

fn stat_of(attr: &Attr) -> FileStat {
    let node = Node {
        mode: type_of(attr.kind).as_raw_mode() | u32::from(attr.perm),
        user: attr.uid,
        group: attr.gid,
        size: attr.size,
        device: u64::from(attr.rdev),
        accessed: attr.atime.0,
        modified: attr.mtime.0,
        changed: attr.ctime.0,
    };
    FileStat {
        file_system: 1,
        ino: attr.ino.0,
        node,
    }
}

const OWN: NewNode = NewNode {
    perm: 0o600,
    umask: 0,
};

impl Beneath for SimDir {
    fn stat(&self, path: &[u8]) -> Result<FileStat, Errno> {
        self.at(path, |fs, ino| fs.get_attr(ino).map(|attr| stat_of(&attr)))
    }

    fn entries(&self, dir: &[u8]) -> Result<Vec<(Vec<u8>, FileStat)>, Errno> {
        let names = self.at(dir, tree::list)?;
        let entries = names.into_iter().map(|name| {
            let path = [dir, name.as_bytes()].join(&b'/');
            let path = path.strip_prefix(b"/").unwrap_or(&path);
            Ok((name.into_bytes(), self.stat(path)?))
        });
        entries.collect()
    }

    fn is_readable(&self, _path: &[u8], _node: &Node) -> bool {
        true
    }

    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>, Errno> {
        self.at(path, |fs, ino| {
            fs.read_link(ino).map(|target| target.to_vec())
        })
    }

    fn xattrs(&self, path: &[u8], is_wanted: fn(&[u8]) -> bool) -> Result<Xattrs, Errno> {
        let all = self.at(path, tree::xattrs)?;
        Ok(all
            .into_iter()
            .filter(|(name, _)| is_wanted(name))
            .collect())
    }

    fn xattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.at(path, |fs, ino| {
            fs.get_xattr(&Caller::ROOT, ino, name)
                .map(|value| value.to_vec())
        })
    }

    fn open(&self, path: &[u8], _mode: OpenFor) -> Result<Box<dyn OpenFile>, Errno> {
        match self.stat(path)?.node.kind() {
            FileType::RegularFile => Ok(Box::new(SimFile {
                dir: self.clone(),
                path: path.to_vec(),
                unwritten: Mutex::default(),
            })),
            _ => Err(Errno::INVAL),
        }
    }

    fn make_dir(&self, path: &[u8]) -> Result<(), Errno> {
        let new = NewNode { perm: 0o700, ..OWN };
        self.named(path, |fs, at| {
            fs.make_dir(&Caller::ROOT, at, &new)
                .map(|attr| fs.forget(attr.ino, 1))
        })
    }

    fn make_file(&self, path: &[u8]) -> Result<(), Errno> {
        self.named(path, |fs, at| {
            fs.create(&Caller::ROOT, at, &OWN)
                .map(|attr| fs.forget(attr.ino, 1))
        })
    }

    fn make_symlink(&self, path: &[u8], target: &[u8]) -> Result<(), Errno> {
        self.named(path, |fs, at| {
            fs.make_symlink(&Caller::ROOT, at, target)
                .map(|attr| fs.forget(attr.ino, 1))
        })
    }

    fn make_node(&self, path: &[u8], kind: FileType, device: u64) -> Result<(), Errno> {
        let device = u32::try_from(device).map_err(|_| Errno::INVAL)?;
        self.named(path, |fs, at| {
            fs.make_node(&Caller::ROOT, at, kind_of(kind), device, &OWN)
                .map(|attr| fs.forget(attr.ino, 1))
        })
    }

    fn link(&self, existing: &[u8], path: &[u8]) -> Result<(), Errno> {
        let target = self.path(path);
        self.at(existing, |fs, ino| {
            tree::with_name(fs, &target, |at| {
                fs.link(&Caller::ROOT, ino, at)
                    .map(|attr| fs.forget(attr.ino, 1))
            })
        })
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), Errno> {
        self.rename_by(from, to, RenameMode::NoReplace)
    }

    fn replace(&self, from: &[u8], to: &[u8]) -> Result<(), Errno> {
        self.rename_by(from, to, RenameMode::Replace)
    }

    fn remove(&self, path: &[u8]) -> Result<(), Errno> {
        self.named(path, |fs, at| fs.unlink(&Caller::ROOT, at))
    }

    fn remove_dir(&self, path: &[u8]) -> Result<(), Errno> {
        self.named(path, |fs, at| fs.remove_dir(&Caller::ROOT, at))
    }

    fn set_mode(&self, path: &[u8], mode: u32) -> Result<(), Errno> {
        let perm = Some(mode & 0o7777);
        let none = SetAttr::default();
        self.set(path, &SetAttr { perm, ..none })
    }

    fn set_owner(&self, path: &[u8], user: u32, group: u32) -> Result<(), Errno> {
        let (uid, gid) = (Some(user), Some(group));
        let none = SetAttr::default();
        self.set(path, &SetAttr { uid, gid, ..none })
    }

    fn set_times(&self, path: &[u8], accessed: i64, modified: i64) -> Result<(), Errno> {
        let time = |ns| Some(SetTime::At(Timestamp(ns)));
        let (atime, mtime) = (time(accessed), time(modified));
        let none = SetAttr::default();
        self.set(
            path,
            &SetAttr {
                atime,
                mtime,
                ..none
            },
        )
    }

    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8]) -> Result<(), Errno> {
        self.at(path, |fs, ino| {
            fs.set_xattr(&Caller::ROOT, ino, name, value, XattrMode::Set, false)
        })
    }

    fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Result<(), Errno> {
        self.at(path, |fs, ino| fs.remove_xattr(&Caller::ROOT, ino, name))
    }

    fn sync(&self) -> Result<(), Errno> {
        self.sync_dir(b"")
    }

    fn sync_dir(&self, path: &[u8]) -> Result<(), Errno> {
        self.at(path, |fs, ino| fs.sync_inode(ino))
    }

    fn syncs_contents(&self) -> bool {
        false
    }

    fn is_privileged(&self) -> bool {
        true
    }
}

/// An open file, and what was written to it that the file system does not have yet.
struct SimFile {
    dir: SimDir,
    path: Vec<u8>,
    unwritten: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl SimFile {
    fn write_back(&self) -> Result<(), Errno> {
        let unwritten = std::mem::take(&mut *self.unwritten.lock());
        if unwritten.is_empty() {
            return Ok(());
        }
        let options = WriteOptions {
            append: false,
            clear_setid: ClearSetId::None,
        };
        self.dir.at(&self.path, |fs, ino| {
            for (offset, data) in &unwritten {
                fs.write(ino, *offset, data, options)?;
            }
            Ok(())
        })
    }

    fn change(&self, body: impl FnOnce(&FileSystem, Ino) -> FsResult<Attr>) -> Result<(), Errno> {
        self.write_back()?;
        self.dir.at(&self.path, body).map(drop)
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        if self.write_back().is_err() {
            self.dir.has_lost.store(true, Ordering::SeqCst);
        }
    }
}

impl OpenFile for SimFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let mut bytes = Vec::new();
        let len = buffer.len();
        let read = |fs: &FileSystem, ino| fs.read(ino, offset, len, &mut bytes);
        let count = self.dir.at(&self.path, read)?;
        buffer[..count].copy_from_slice(&bytes);
        Ok(count)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<(), Errno> {
        self.unwritten.lock().push((offset, data.to_vec()));
        Ok(())
    }

    fn size(&self) -> Result<u64, Errno> {
        self.write_back()?;
        Ok(self.dir.stat(&self.path)?.node.size)
    }

    fn set_size(&self, size: u64) -> Result<(), Errno> {
        let size = Some(size);
        let set = SetAttr {
            size,
            ..SetAttr::default()
        };
        self.change(|fs, ino| fs.set_attr(&Caller::ROOT, ino, &set))
    }

    fn punch(&self, offset: u64, len_bytes: u64) -> Result<(), Errno> {
        self.change(|fs, ino| fs.fallocate(ino, FallocateMode::PunchHole, offset, len_bytes))
    }

    fn next_data(&self, offset: u64) -> Result<u64, Errno> {
        self.dir
            .at(&self.path, |fs, ino| fs.seek(ino, offset, SeekFor::Data))
    }

    fn next_hole(&self, offset: u64) -> Result<u64, Errno> {
        self.dir
            .at(&self.path, |fs, ino| fs.seek(ino, offset, SeekFor::Hole))
    }

    fn sync(&self) -> Result<(), Errno> {
        self.write_back()?;
        if self.dir.has_lost.load(Ordering::SeqCst) {
            return Err(Errno::NOSPC);
        }
        self.dir.at(&self.path, |fs, ino| fs.sync_inode(ino))
    }

    fn as_file(&mut self) -> Option<&mut File> {
        None
    }
}
