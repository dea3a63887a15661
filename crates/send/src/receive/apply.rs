//! Applying one record. Each can be applied again after a crash.

mod attributes;

use super::state::{self, LockedRoot, State};
use super::{Left, ReceiveOptions};
use crate::SendError;
use crate::beneath::{Parent, Root};
use crate::tree::STAGING;
use attributes::OwnAttrs;
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Mode, OFlags, RenameFlags, Stat, renameat_with,
};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use stitch_format::send_stream::{SendHead, SendRecord};

/// `f_type` of FUSE.
const FUSE_MAGIC: u64 = 0x6573_5546;

/// The directory that a stream is applied to.
pub(super) struct Target {
    root: LockedRoot,
    options: ReceiveOptions,
    /// A part was applied before, perhaps more than the state says.
    is_rest: bool,
    is_incremental: bool,
    is_root: bool,
    /// Files that were written since the last sync, if syncfs(2) does not reach the file system.
    unsynced: Option<Vec<Vec<u8>>>,
    /// The file that was written last.
    open: Option<(Vec<u8>, File)>,
    /// Mode and times of the directory itself, which are set last.
    own: Option<OwnAttrs>,
    /// Set-id bits that the object does not get whose owner came last.
    dropped: Mode,
    left: Left,
}

impl Target {
    pub(super) fn new(state: State, head: &SendHead, options: ReceiveOptions) -> Self {
        let is_fuse = rustix::fs::fstatfs(state.root.dir())
            .is_ok_and(|found| u64::try_from(found.f_type) == Ok(FUSE_MAGIC));
        let unsynced = is_fuse.then(Vec::new);
        Self {
            root: state.root,
            options,
            is_rest: state.is_rest,
            is_incremental: head.base.is_some(),
            is_root: rustix::process::geteuid().is_root(),
            unsynced,
            open: None,
            own: None,
            dropped: Mode::empty(),
            left: Left::default(),
        }
    }

    pub(super) fn root(&self) -> &Root {
        &self.root
    }

    pub(super) fn into_left(self) -> Left {
        self.left
    }

    /// Makes all that was applied durable.
    pub(super) fn sync(&mut self) -> Result<(), SendError> {
        self.open = None;
        // syncfs(2) has the kernel write back its pages; FUSE file systems do not hear of it.
        let synced = rustix::fs::syncfs(self.root.dir());
        let synced = synced.and_then(|()| rustix::fs::fsync(self.root.dir()));
        synced.map_err(|errno| self.root.error("sync", b"", errno))?;
        for path in self
            .unsynced
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
        {
            match self.root.open_file(&path) {
                Ok(file) => rustix::fs::fsync(&file),
                // A file that its owner cannot read: the sync of the directory has to do.
                Err(Errno::ACCESS | Errno::NOENT) => Ok(()),
                Err(errno) => Err(errno),
            }
            .map_err(|errno| self.root.error("sync", &path, errno))?;
        }
        Ok(())
    }

    /// Ends a stream that was applied as a whole.
    pub(super) fn finish(&mut self, head: &SendHead) -> Result<(), SendError> {
        self.sync()?;
        self.left.identity = !state::set_identity(&self.root, head.snapshot)?;
        state::clear(&self.root)?;
        if let Some(own) = self.own.take() {
            own.set(&self.root)
                .map_err(|errno| self.root.error("set the mode of", b"", errno))?;
        }
        self.sync()
    }

    pub(super) fn apply(&mut self, record: &SendRecord<'_>) -> Result<(), SendError> {
        let (op, path, done) = match *record {
            SendRecord::Detach { path, object } => ("move", path, self.detach(path, object)),
            SendRecord::Remove { path } => ("remove", path, self.remove(path, AtFlags::empty())),
            SendRecord::RemoveDir { path } => {
                ("remove", path, self.remove(path, AtFlags::REMOVEDIR))
            }
            SendRecord::Place { path, object } => ("move back", path, self.place(path, object)),
            SendRecord::MakeDir { path } => ("create", path, self.make_dir(path)),
            SendRecord::MakeFile { path } => ("create", path, self.make_file(path)),
            SendRecord::MakeSymlink { path, target } => {
                ("create", path, self.make_symlink(path, target))
            }
            SendRecord::MakeNode { path, mode, device } => {
                return self.make_node(path, mode, device);
            }
            SendRecord::Link { path, existing } => ("link", path, self.link(path, existing)),
            SendRecord::Write { path, offset, data } => {
                ("write", path, self.write(path, offset, data))
            }
            SendRecord::Hole {
                path,
                offset,
                len_bytes,
            } => (
                "punch a hole into",
                path,
                self.hole(path, offset, len_bytes),
            ),
            SendRecord::Size { path, size } => ("truncate", path, self.size(path, size)),
            _ => return self.apply_attribute(record),
        };
        done.map_err(|errno| self.unfit(op, path, errno))
    }

    /// Returns an error, with a remedy where the directory is not what it was when it was received.
    fn unfit(&self, op: &'static str, path: &[u8], errno: Errno) -> SendError {
        let error = self.root.error(op, path, errno);
        if self.is_incremental && matches!(errno, Errno::NOENT | Errno::EXIST | Errno::NOTEMPTY) {
            return SendError::refused(format!(
                "{error}; the directory was changed since it was received: undo that and go on, \
                 or receive a complete stream into another one"
            ));
        }
        error
    }

    /// Runs a call; if modes are in the way of their owner, opens them and runs it again. The modes
    /// come back with the attributes at the end of the stream.
    fn permitted<T>(
        &self,
        paths: &[&[u8]],
        mut call: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match call() {
            Err(Errno::ACCESS) if !self.is_root => {}
            other => return other,
        }
        for path in paths {
            let above = path
                .iter()
                .rposition(|byte| *byte == b'/')
                .map_or(0, |at| at);
            for path in [&path[..above], path] {
                let _ = self.open_mode(path);
            }
        }
        call()
    }

    fn open_mode(&self, path: &[u8]) -> Result<(), Errno> {
        let parent = self.root.parent(path)?;
        let stat = parent.stat()?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
            return Ok(());
        }
        let mode = Mode::from_raw_mode(stat.st_mode) | Mode::RWXU;
        rustix::fs::chmodat(&parent.dir, parent.name, mode, AtFlags::empty())
    }

    fn detach(&self, path: &[u8], object: u64) -> Result<(), Errno> {
        let aside = aside(object);
        if self.root.stat(&aside).is_ok() {
            return if self.is_rest {
                Ok(())
            } else {
                Err(Errno::EXIST)
            };
        }
        self.rename(path, &aside)
    }

    fn place(&self, path: &[u8], object: u64) -> Result<(), Errno> {
        match self.rename(&aside(object), path) {
            Err(Errno::NOENT) if self.is_rest && self.root.stat(path).is_ok() => Ok(()),
            other => other,
        }
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), Errno> {
        debug_assert_ne!(from, to, "a move has two places");
        self.permitted(&[from, to], || {
            let (from, to) = (self.root.parent(from)?, self.root.parent(to)?);
            match renameat_with(
                &from.dir,
                from.name,
                &to.dir,
                to.name,
                RenameFlags::NOREPLACE,
            ) {
                // A file system that does not know the flag.
                Err(Errno::INVAL) if to.stat().is_err() => {
                    rustix::fs::renameat(&from.dir, from.name, &to.dir, to.name)
                }
                other => other,
            }
        })
    }

    fn remove(&self, path: &[u8], flags: AtFlags) -> Result<(), Errno> {
        let removed = self.permitted(&[path], || {
            let parent = self.root.parent(path)?;
            rustix::fs::unlinkat(&parent.dir, parent.name, flags)
        });
        match removed {
            Err(Errno::NOENT) if self.is_rest || self.options.skip_devices => Ok(()),
            other => other,
        }
    }

    /// Creates an object by a call; one of the kind that is there already is from an earlier try.
    fn make(
        &self,
        path: &[u8],
        kind: FileType,
        mut call: impl FnMut(&Parent<'_>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let made = self.permitted(&[path], || call(&self.root.parent(path)?));
        let parent = self.root.parent(path)?;
        match made {
            Err(Errno::EXIST) if self.is_rest && is_kind(&parent.stat()?, kind) => {}
            other => other?,
        }
        if self.is_incremental && kind != FileType::Symlink {
            attributes::drop_inherited(&parent, kind)?;
        }
        Ok(())
    }

    fn make_dir(&self, path: &[u8]) -> Result<(), Errno> {
        self.make(path, FileType::Directory, |parent| {
            rustix::fs::mkdirat(&parent.dir, parent.name, Mode::RWXU)
        })
    }

    fn make_file(&self, path: &[u8]) -> Result<(), Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        self.make(path, FileType::RegularFile, |parent| {
            let mode = Mode::RUSR | Mode::WUSR;
            rustix::fs::openat(&parent.dir, parent.name, flags, mode).map(drop)
        })
    }

    fn make_symlink(&self, path: &[u8], target: &[u8]) -> Result<(), Errno> {
        self.make(path, FileType::Symlink, |parent| {
            rustix::fs::symlinkat(target, &parent.dir, parent.name)
        })
    }

    fn make_node(&mut self, path: &[u8], mode: u32, device: u64) -> Result<(), SendError> {
        let kind = FileType::from_raw_mode(mode);
        let is_device = matches!(kind, FileType::CharacterDevice | FileType::BlockDevice);
        if is_device && self.options.skip_devices {
            self.left.devices += 1;
            return Ok(());
        }
        if !is_device && !matches!(kind, FileType::Fifo | FileType::Socket) {
            return Err(SendError::refused(
                "the stream has a node of an unknown kind",
            ));
        }
        let made = self.make(path, kind, |parent| {
            let mode = Mode::RUSR | Mode::WUSR;
            rustix::fs::mknodat(&parent.dir, parent.name, kind, mode, device)
        });
        match made {
            Err(Errno::PERM) if is_device => Err(SendError::refused(format!(
                "{}: only root creates device nodes; receive as root, or with --skip-devices",
                self.root.shown(path).display()
            ))),
            other => other.map_err(|errno| self.unfit("create", path, errno)),
        }
    }

    fn link(&self, path: &[u8], existing: &[u8]) -> Result<(), Errno> {
        let linked = self.permitted(&[path], || {
            let (from, to) = (self.root.parent(existing)?, self.root.parent(path)?);
            rustix::fs::linkat(&from.dir, from.name, &to.dir, to.name, AtFlags::empty())
        });
        match linked {
            Err(Errno::NOENT) if self.options.skip_devices => Ok(()),
            Err(Errno::EXIST) if self.is_rest => {
                let (found, wanted) = (self.root.stat(path)?, self.root.stat(existing)?);
                let is_same = (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino);
                if is_same { Ok(()) } else { Err(Errno::EXIST) }
            }
            other => other,
        }
    }

    /// Opens a file for writing, unless it is open already.
    fn file(&mut self, path: &[u8]) -> Result<&File, Errno> {
        let open = match self.open.take() {
            Some((opened, file)) if opened == path => file,
            _ => {
                let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let open = || self.root.open_at(path, flags | OFlags::NONBLOCK);
                let file = self.permitted(&[path], open)?;
                if !is_kind(&rustix::fs::fstat(&file)?, FileType::RegularFile) {
                    return Err(Errno::INVAL);
                }
                if let Some(unsynced) = &mut self.unsynced {
                    unsynced.push(path.to_vec());
                }
                file.into()
            }
        };
        let (_, file) = self.open.insert((path.to_vec(), open));
        Ok(file)
    }

    fn write(&mut self, path: &[u8], offset: u64, data: &[u8]) -> Result<(), Errno> {
        let written = self.file(path)?.write_all_at(data, offset);
        written.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }

    fn hole(&mut self, path: &[u8], offset: u64, len_bytes: u64) -> Result<(), Errno> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(self.file(path)?, flags, offset, len_bytes) {
            Err(Errno::NOTSUP) => self.zeros(path, offset, len_bytes),
            other => other,
        }
    }

    /// Writes zeros, on a file system without holes. None beyond the end.
    fn zeros(&mut self, path: &[u8], mut at: u64, len_bytes: u64) -> Result<(), Errno> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let size = rustix::fs::fstat(self.file(path)?)?.st_size;
        let end = at.saturating_add(len_bytes).min(size.unsigned_abs());
        while at < end {
            let len = usize::try_from(end - at)
                .unwrap_or(usize::MAX)
                .min(ZEROS.len());
            self.write(path, at, &ZEROS[..len])?;
            at += len as u64;
        }
        Ok(())
    }

    fn size(&mut self, path: &[u8], size: u64) -> Result<(), Errno> {
        rustix::fs::ftruncate(self.file(path)?, size)
    }
}

/// Where an object is while it is moved aside.
fn aside(object: u64) -> Vec<u8> {
    format!("{STAGING}/{object:x}").into_bytes()
}

fn is_kind(stat: &Stat, kind: FileType) -> bool {
    FileType::from_raw_mode(stat.st_mode) == kind
}
