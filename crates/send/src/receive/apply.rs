//! Applying one record. Each can be applied again after a crash.

mod attributes;

use super::state::{self, State};
use super::{Left, ReceiveOptions};
use crate::SendError;
use crate::beneath::{FileStat, OpenFile, OpenFor, Root};
use crate::tree::STAGING;
use attributes::OwnAttrs;
use rustix::fs::FileType;
use rustix::io::Errno;
use stitch_format::send_stream::{SendHead, SendRecord};

/// The directory that a stream is applied to.
pub(super) struct Target {
    root: Root,
    options: ReceiveOptions,
    /// A part was applied before, perhaps more than the state says.
    is_rest: bool,
    is_incremental: bool,
    is_privileged: bool,
    /// Files that were written since the last sync, if that of the directory does not reach
    /// contents.
    unsynced: Option<Vec<Vec<u8>>>,
    /// The file that was written last.
    open: Option<(Vec<u8>, Box<dyn OpenFile>)>,
    /// Mode and times of the directory itself, which are set last.
    own: Option<OwnAttrs>,
    /// Set-id bits that the object does not get whose owner came last.
    dropped: u32,
    left: Left,
}

impl Target {
    pub(super) fn new(state: State, head: &SendHead, options: ReceiveOptions) -> Self {
        let root = state.root;
        let unsynced = (!root.syncs_contents()).then(Vec::new);
        let is_privileged = root.is_privileged();
        Self {
            root,
            options,
            is_rest: state.is_rest,
            is_incremental: head.base.is_some(),
            is_privileged,
            unsynced,
            open: None,
            own: None,
            dropped: 0,
            left: Left::default(),
        }
    }

    pub(super) fn root(&self) -> &Root {
        &self.root
    }

    pub(super) const fn checkpoint_bytes(&self) -> u64 {
        self.options.checkpoint_bytes
    }

    pub(super) fn into_left(self) -> Left {
        self.left
    }

    /// Makes all that was applied durable.
    pub(super) fn sync(&mut self) -> Result<(), SendError> {
        self.open = None;
        self.root
            .sync()
            .map_err(|errno| self.root.error("sync", b"", errno))?;
        for path in self
            .unsynced
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
        {
            match self.root.open_file(&path).and_then(|file| file.sync()) {
                // A file that its owner cannot read: the sync of the directory has to do.
                Err(Errno::ACCESS | Errno::NOENT) => Ok(()),
                other => other,
            }
            .map_err(|errno| self.root.error("sync", &path, errno))?;
        }
        Ok(())
    }

    /// Ends a stream that was applied as a whole.
    pub(super) fn finish(&mut self, head: &SendHead) -> Result<(), SendError> {
        self.sync()?;
        // A crash after the state was removed leaves another time than was sent, not another mode.
        let own = self.own.take();
        let set_own = |root: &Root, own: OwnAttrs| {
            let fail = |errno| root.error("set the mode of", b"", errno);
            own.set(root).map_err(fail)
        };
        if let Some(own) = own.filter(|own| self.is_privileged || own.lets_owner_write()) {
            set_own(&self.root, own)?;
        }
        self.left.identity = !state::set_identity(&self.root, head.snapshot)?;
        state::clear(&self.root)?;
        if let Some(own) = own {
            set_own(&self.root, own)?;
        }
        self.sync()
    }

    pub(super) fn apply(&mut self, record: &SendRecord<'_>) -> Result<(), SendError> {
        let (op, path, done) = match *record {
            SendRecord::Detach { path, object } => ("move", path, self.detach(path, object)),
            SendRecord::Remove { path } => ("remove", path, self.remove(path)),
            SendRecord::RemoveDir { path } => ("remove", path, self.remove_dir(path)),
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
            Err(Errno::ACCESS) if !self.is_privileged => {}
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
        let stat = self.root.stat(path)?;
        if stat.kind() == FileType::Symlink {
            return Ok(());
        }
        self.root.set_mode(path, stat.node.mode | state::OWNER_ALL)
    }

    fn detach(&self, path: &[u8], object: u64) -> Result<(), Errno> {
        let aside = aside(object);
        match self.root.stat(&aside) {
            Ok(_) if self.is_rest => Ok(()),
            Ok(_) => Err(Errno::EXIST),
            Err(Errno::NOENT) => self.rename(path, &aside),
            Err(errno) => Err(errno),
        }
    }

    fn place(&self, path: &[u8], object: u64) -> Result<(), Errno> {
        match self.rename(&aside(object), path) {
            // An earlier try has moved it, if it is there.
            Err(Errno::NOENT) if self.is_rest => self.root.stat(path).map(drop),
            other => other,
        }
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), Errno> {
        debug_assert_ne!(from, to, "a move has two places");
        self.permitted(&[from, to], || self.root.rename(from, to))
    }

    fn remove(&self, path: &[u8]) -> Result<(), Errno> {
        self.removed(self.permitted(&[path], || self.root.remove(path)))
    }

    fn remove_dir(&self, path: &[u8]) -> Result<(), Errno> {
        self.removed(self.permitted(&[path], || self.root.remove_dir(path)))
    }

    /// Passes over what an earlier try has removed.
    fn removed(&self, done: Result<(), Errno>) -> Result<(), Errno> {
        match done {
            Err(Errno::NOENT) if self.is_rest || self.options.skip_devices => Ok(()),
            other => other,
        }
    }

    /// Creates an object by a call; one of the kind that is there already is from an earlier try.
    fn make(
        &self,
        path: &[u8],
        kind: FileType,
        call: impl Fn(&Root) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        match self.permitted(&[path], || call(&self.root)) {
            Err(Errno::EXIST) if self.is_rest && self.root.stat(path)?.kind() == kind => {}
            other => other?,
        }
        if self.is_incremental && kind != FileType::Symlink {
            attributes::drop_inherited(&self.root, path, kind)?;
        }
        Ok(())
    }

    fn make_dir(&self, path: &[u8]) -> Result<(), Errno> {
        self.make(path, FileType::Directory, |root| root.make_dir(path))
    }

    fn make_file(&self, path: &[u8]) -> Result<(), Errno> {
        self.make(path, FileType::RegularFile, |root| root.make_file(path))
    }

    fn make_symlink(&self, path: &[u8], target: &[u8]) -> Result<(), Errno> {
        self.make(path, FileType::Symlink, |root| {
            root.make_symlink(path, target)
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
        let made = self.make(path, kind, |root| root.make_node(path, kind, device));
        match made {
            Err(Errno::PERM) if is_device => Err(SendError::refused(format!(
                "{}: only root creates device nodes; receive as root, or with --skip-devices",
                self.root.shown(path).display()
            ))),
            other => other.map_err(|errno| self.unfit("create", path, errno)),
        }
    }

    fn link(&self, path: &[u8], existing: &[u8]) -> Result<(), Errno> {
        let linked = self.permitted(&[path], || self.root.link(existing, path));
        match linked {
            Err(Errno::NOENT) if self.options.skip_devices => Ok(()),
            Err(Errno::EXIST) if self.is_rest => {
                let (found, wanted) = (self.root.stat(path)?, self.root.stat(existing)?);
                let of = |stat: &FileStat| (stat.file_system, stat.ino);
                let is_same = of(&found) == of(&wanted);
                if is_same { Ok(()) } else { Err(Errno::EXIST) }
            }
            other => other,
        }
    }

    /// Opens a file for writing, unless it is open already.
    fn file(&mut self, path: &[u8]) -> Result<&dyn OpenFile, Errno> {
        let open = match self.open.take() {
            Some((opened, file)) if opened == path => file,
            _ => {
                let open = || self.root.open(path, OpenFor::Writing);
                let file = self.permitted(&[path], open)?;
                if let Some(unsynced) = &mut self.unsynced {
                    unsynced.push(path.to_vec());
                }
                file
            }
        };
        let (_, file) = self.open.insert((path.to_vec(), open));
        Ok(&**file)
    }

    fn write(&mut self, path: &[u8], offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.file(path)?.write_at(data, offset)
    }

    fn hole(&mut self, path: &[u8], offset: u64, len_bytes: u64) -> Result<(), Errno> {
        match self.file(path)?.punch(offset, len_bytes) {
            Err(Errno::NOTSUP) => self.zeros(path, offset, len_bytes),
            other => other,
        }
    }

    /// Writes zeros, on a file system without holes. None beyond the end.
    fn zeros(&mut self, path: &[u8], mut at: u64, len_bytes: u64) -> Result<(), Errno> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let size = self.file(path)?.size()?;
        let end = at.saturating_add(len_bytes).min(size);
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
        self.file(path)?.set_size(size)
    }
}

/// Where an object is while it is moved aside.
fn aside(object: u64) -> Vec<u8> {
    format!("{STAGING}/{object:x}").into_bytes()
}
