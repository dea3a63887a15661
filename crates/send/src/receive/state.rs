//! What a directory holds: a snapshot, a part of a stream, or nothing.

use super::RECEIVED_XATTR;
use crate::SendError;
use crate::beneath::Root;
use crate::tree::STAGING;
use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use std::io::{Read as _, Write as _};
use std::path::Path;
use stitch_format::send_stream::{SendHead, SendId, SendPosition, SendToken};

const STATE: &str = ".stitchfs-receive/state";
const NEW_STATE: &str = ".stitchfs-receive/state.new";
const STATE_BYTES_MAX: u64 = 4096;

/// A directory that no other process receives into meanwhile.
pub(super) struct LockedRoot(Root);

impl LockedRoot {
    fn open(dir: &Path) -> Result<Self, SendError> {
        let root = Root::open(dir)?;
        match rustix::fs::flock(root.dir(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self(root)),
            Err(Errno::WOULDBLOCK) => Err(SendError::refused(format!(
                "{}: another stream is being received there",
                dir.display()
            ))),
            Err(errno) => Err(root.error("lock", b"", errno)),
        }
    }
}

impl Drop for LockedRoot {
    fn drop(&mut self) {
        // A child that was forked meanwhile may share the descriptor, so closing is not enough.
        let _ = rustix::fs::flock(self.0.dir(), FlockOperation::Unlock);
    }
}

impl std::ops::Deref for LockedRoot {
    type Target = Root;

    fn deref(&self) -> &Root {
        &self.0
    }
}

/// A directory that is ready for a stream.
pub(super) struct State {
    pub(super) root: LockedRoot,
    pub(super) position: SendPosition,
    /// A part was applied before, perhaps more than its state says.
    pub(super) is_rest: bool,
}

impl State {
    /// Checks that the stream is for the directory, and marks that it holds a part of it.
    pub(super) fn begin(dir: &Path, head: &SendHead, name: &[u8]) -> Result<Self, SendError> {
        create(dir, head)?;
        let root = LockedRoot::open(dir)?;
        let start = head.start;
        let found = read(&root)?;
        match &found {
            Some(found) => check_rest(&root, found, head)?,
            None if start != SendPosition::default() => {
                return Err(SendError::refused(format!(
                    "{}: the stream is the rest of one of which nothing is there; \
                     send the whole one",
                    dir.display()
                )));
            }
            None => begin_new(&root, head, name)?,
        }
        let (position, is_rest) = (start, found.is_some());
        Ok(Self {
            root,
            position,
            is_rest,
        })
    }
}

fn create(dir: &Path, head: &SendHead) -> Result<(), SendError> {
    let is_new = head.base.is_none() && head.start == SendPosition::default();
    if !is_new {
        return Ok(());
    }
    match rustix::fs::mkdir(dir, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(SendError::io("create", dir.to_owned(), errno)),
    }
}

fn check_rest(root: &Root, found: &SendToken, head: &SendHead) -> Result<(), SendError> {
    if *found == token(head, head.start) {
        return Ok(());
    }
    Err(SendError::refused(format!(
        "{}: holds a part of a stream; go on with `stitchfs send --resume {}`, or remove it",
        root.shown(b"").display(),
        found.encode()
    )))
}

fn begin_new(root: &Root, head: &SendHead, name: &[u8]) -> Result<(), SendError> {
    let shown = root.shown(b"");
    let shown = shown.display();
    match head.base {
        None => check_empty(root)?,
        Some(base) => match identity(root)? {
            Some(held) if held == base.to_string() => {}
            Some(held) if held == head.snapshot.to_string() => {
                return Err(SendError::refused(format!(
                    "{shown}: holds the snapshot {} already",
                    name.escape_ascii()
                )));
            }
            Some(held) => {
                return Err(SendError::refused(format!(
                    "{shown}: holds snapshot {held}, and the stream changes {base}; \
                     send with -i and the one that it holds, or completely to another directory"
                )));
            }
            None => {
                return Err(SendError::refused(format!(
                    "{shown}: holds no snapshot that was received, and the stream changes {base}; \
                     receive that one first"
                )));
            }
        },
    }
    let made = match rustix::fs::mkdirat(root.dir(), STAGING, Mode::RWXU) {
        // The mode comes back with the last record.
        Err(Errno::ACCESS) => {
            open_mode(root).and_then(|()| rustix::fs::mkdirat(root.dir(), STAGING, Mode::RWXU))
        }
        other => other,
    };
    match made {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(root.error("create", STAGING.as_bytes(), errno)),
    }
    write(root, &token(head, head.start))
}

/// Gives the owner of a directory all rights to it.
fn open_mode(root: &Root) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(root.stat(b"")?.st_mode) | Mode::RWXU;
    rustix::fs::fchmod(root.dir(), mode)
}

/// A directory that is left over without a state is as good as none.
fn check_empty(root: &Root) -> Result<(), SendError> {
    let fail = |errno| root.error("read", b"", errno);
    for entry in Dir::read_from(root.dir()).map_err(fail)? {
        let name = entry.map_err(fail)?;
        let name = name.file_name().to_bytes();
        if !matches!(name, b"." | b".." | b"lost+found") && name != STAGING.as_bytes() {
            return Err(SendError::refused(format!(
                "{}: is not empty; a complete stream needs an empty or new directory",
                root.shown(b"").display()
            )));
        }
    }
    Ok(())
}

/// The identity of the snapshot that a directory holds.
fn identity(root: &Root) -> Result<Option<String>, SendError> {
    let path = root.parent(b"").map(|parent| (parent.short_path(), parent));
    let (path, _open) = path.map_err(|errno| root.error("open", b"", errno))?;
    match crate::xattrs::value(&path, RECEIVED_XATTR.as_bytes()) {
        Ok(value) => Ok(Some(String::from_utf8_lossy(&value).into_owned())),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
        Err(errno) => Err(root.error("read the identity of", b"", errno)),
    }
}

/// Has a directory remember what it holds. Returns whether it can.
pub(super) fn set_identity(root: &Root, id: SendId) -> Result<bool, SendError> {
    let fail = |errno| root.error("set the identity of", b"", errno);
    let parent = root.parent(b"").map_err(fail)?;
    let value = id.to_string();
    let path = parent.short_path();
    match rustix::fs::lsetxattr(&path, RECEIVED_XATTR, value.as_bytes(), XattrFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::NOTSUP | Errno::PERM) => Ok(false),
        Err(errno) => Err(fail(errno)),
    }
}

pub(super) const fn token(head: &SendHead, position: SendPosition) -> SendToken {
    SendToken {
        snapshot: head.snapshot,
        base: head.base,
        is_partial: head.is_partial,
        position,
    }
}

/// The state of a directory, if a stream was received in part.
pub(super) fn read(root: &Root) -> Result<Option<SendToken>, SendError> {
    let file = match root.open_file(STATE.as_bytes()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(root.error("open", STATE.as_bytes(), errno)),
    };
    let path = root.shown(STATE.as_bytes());
    let mut text = String::new();
    let op = "read";
    let read = file.take(STATE_BYTES_MAX).read_to_string(&mut text);
    read.map_err(|source| SendError::Io {
        op,
        path: path.clone(),
        source,
    })?;
    let token = SendToken::decode(&text).map_err(|error| {
        let path = path.display();
        SendError::refused(format!(
            "{path}: {error}; remove the directory and begin again"
        ))
    })?;
    Ok(Some(token))
}

/// Replaces the state, durably.
pub(super) fn write(root: &Root, token: &SendToken) -> Result<(), SendError> {
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fail = |errno| root.error("write", NEW_STATE.as_bytes(), errno);
    let mode = Mode::RUSR | Mode::WUSR;
    let file = rustix::fs::openat(root.dir(), NEW_STATE, flags, mode).map_err(fail)?;
    let mut file = std::fs::File::from(file);
    let written = file
        .write_all(format!("{}\n", token.encode()).as_bytes())
        .and_then(|()| file.sync_all());
    written.map_err(|source| SendError::Io {
        op: "write",
        path: root.shown(NEW_STATE.as_bytes()),
        source,
    })?;
    rustix::fs::renameat(root.dir(), NEW_STATE, root.dir(), STATE).map_err(fail)?;
    let staging = root.open_dir(STAGING.as_bytes()).map_err(fail)?;
    rustix::fs::fsync(&staging).map_err(fail)
}

/// Removes the state: the directory holds all of the stream.
pub(super) fn clear(root: &Root) -> Result<(), SendError> {
    let fail = |errno| root.error("remove", STAGING.as_bytes(), errno);
    for name in [NEW_STATE, STATE] {
        match rustix::fs::unlinkat(root.dir(), name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(fail(errno)),
        }
    }
    match rustix::fs::unlinkat(root.dir(), STAGING, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => Err(SendError::refused(
            "the stream moved something aside and did not bring it back",
        )),
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(fail(errno)),
    }
}
