//! What a directory holds: a snapshot, a part of a stream, or nothing.

use super::RECEIVED_XATTR;
use crate::SendError;
use crate::beneath::{OpenFor, Root, read_full};
use crate::tree::STAGING;
use rustix::io::Errno;
use stitch_format::send_stream::{SendHead, SendId, SendPosition, SendToken};

const STATE: &str = ".stitchfs-receive/state";
const NEW_STATE: &str = ".stitchfs-receive/state.new";
/// Bits of a mode that are the rights of the owner.
pub(super) const OWNER_ALL: u32 = 0o700;
const STATE_BYTES_MAX: usize = 4096;

/// A directory that is ready for a stream.
pub(super) struct State {
    pub(super) root: Root,
    pub(super) position: SendPosition,
    /// A part was applied before, perhaps more than its state says.
    pub(super) is_rest: bool,
}

impl State {
    /// Checks that the stream is for the directory, and marks that it holds a part of it.
    pub(super) fn begin(root: Root, head: &SendHead, name: &[u8]) -> Result<Self, SendError> {
        let start = head.start;
        let found = read(&root)?;
        match &found {
            Some(found) => check_rest(&root, found, head)?,
            None if start != SendPosition::default() => {
                return Err(SendError::refused(format!(
                    "{}: the stream is the rest of one of which nothing is there; \
                     send the whole one",
                    root.shown(b"").display()
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
    let made = match root.make_dir(STAGING.as_bytes()) {
        // The mode comes back with the last record.
        Err(Errno::ACCESS) => open_mode(root).and_then(|()| root.make_dir(STAGING.as_bytes())),
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
    root.set_mode(b"", root.stat(b"")?.node.mode | OWNER_ALL)
}

/// A directory that is left over without a state is as good as none.
fn check_empty(root: &Root) -> Result<(), SendError> {
    let fail = |errno| root.error("read", b"", errno);
    for (name, _) in root.entries(b"").map_err(fail)? {
        if name != b"lost+found" && name != STAGING.as_bytes() {
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
    match root.xattr(b"", RECEIVED_XATTR.as_bytes()) {
        Ok(value) => Ok(Some(String::from_utf8_lossy(&value).into_owned())),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
        Err(errno) => Err(root.error("read the identity of", b"", errno)),
    }
}

/// Has a directory remember what it holds. Returns whether it can.
pub(super) fn set_identity(root: &Root, id: SendId) -> Result<bool, SendError> {
    let value = id.to_string();
    match root.set_xattr(b"", RECEIVED_XATTR.as_bytes(), value.as_bytes()) {
        Ok(()) => Ok(true),
        Err(Errno::NOTSUP | Errno::PERM) => Ok(false),
        Err(errno) => Err(root.error("set the identity of", b"", errno)),
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
    let mut bytes = [0; STATE_BYTES_MAX];
    let len = read_full(&*file, &mut bytes, 0);
    let len = len.map_err(|errno| root.error("read", STATE.as_bytes(), errno))?;
    let text = String::from_utf8_lossy(&bytes[..len]);
    let token = SendToken::decode(&text).map_err(|error| {
        let path = root.shown(STATE.as_bytes());
        let path = path.display();
        SendError::refused(format!(
            "{path}: {error}; remove the directory and begin again"
        ))
    })?;
    Ok(Some(token))
}

/// Replaces the state, durably.
pub(super) fn write(root: &Root, token: &SendToken) -> Result<(), SendError> {
    let new = NEW_STATE.as_bytes();
    let text = format!("{}\n", token.encode());
    let write = || {
        // One that a crash has left.
        absent(root.remove(new))?;
        root.make_file(new)?;
        let file = root.open(new, OpenFor::Writing)?;
        file.write_at(text.as_bytes(), 0)?;
        file.sync()?;
        drop(file);
        root.replace(new, STATE.as_bytes())?;
        root.sync_dir(STAGING.as_bytes())
    };
    write().map_err(|errno| root.error("write", new, errno))
}

/// Removes the state: the directory holds all of the stream.
pub(super) fn clear(root: &Root) -> Result<(), SendError> {
    let fail = |errno| root.error("remove", STAGING.as_bytes(), errno);
    for name in [NEW_STATE, STATE] {
        absent(root.remove(name.as_bytes())).map_err(fail)?;
    }
    match root.remove_dir(STAGING.as_bytes()) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => Err(SendError::refused(
            "the stream moved something aside and did not bring it back",
        )),
        other => absent(other).map_err(fail),
    }
}

/// A name that is not there is as good as one that was removed.
fn absent(removed: Result<(), Errno>) -> Result<(), Errno> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}
