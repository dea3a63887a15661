//! Asking a daemon to create or delete a snapshot, by ioctl(2).
//!
//! An ioctl needs no more than a directory that the caller can open for reading, in any mount:
//!
//! ```text
//!   in:  "create" or "delete", a zero byte, the name of the snapshot, a zero byte, and whatever
//! ```
//!
//! `create` is for the directory that is open. `delete` is for any directory of the mount.

use std::ffi::CString;
use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno as OsError;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

use crate::wire::codec::Reader;

/// Bytes that go in.
const ROOM: usize = 512;

/// The command.
pub(crate) const CHANGE: Opcode = opcode::write::<[u8; ROOM]>(b'S', 2);

const CREATE: &str = "create";
const DELETE: &str = "delete";

/// What a daemon is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    /// Create a snapshot of this name, of the directory that is asked.
    Create(&'a str),
    /// Delete the snapshot of this name.
    Delete(&'a str),
}

impl<'a> Change<'a> {
    /// Returns what `input` asks for; `None` if that makes no sense.
    pub(crate) fn parse(input: &'a [u8]) -> Option<Self> {
        let mut input = Reader::new(input);
        let verb = input.name().ok()?;
        let name = std::str::from_utf8(input.name().ok()?).ok()?;
        match verb {
            verb if verb == CREATE.as_bytes() => Some(Self::Create(name)),
            verb if verb == DELETE.as_bytes() => Some(Self::Delete(name)),
            _ => None,
        }
    }
}

/// Creates a snapshot of a directory in a mount of ours.
///
/// # Errors
/// `EEXIST` if the name is taken; `EPERM` if the caller is not root, the user of the daemon or the
/// owner of the directory; `EOPNOTSUPP` if the store keeps no snapshots; `EOVERFLOW` if its inode
/// numbers are too large; `ENAMETOOLONG`, `EINVAL` for what is no name; `EROFS`, `ENOSPC`; `ENOTTY`
/// of a daemon that is older than this, or if it is no such directory.
///
/// # Durability
/// The snapshot, and all that was written to the daemon before, are on the medium when
/// this returns. What the kernel has not written back is not in it: see syncfs(2).
pub fn create(dir: impl AsFd, name: &str) -> io::Result<()> {
    exchange(dir, CREATE, name)
}

/// Deletes a snapshot; `dir` is any directory of its mount.
///
/// # Errors
/// `ENOENT` if there is none; `EPERM` and `ENOTTY` as of [`create`]; `EROFS`.
///
/// # Durability
/// It is gone for good when this returns.
pub fn delete(dir: impl AsFd, name: &str) -> io::Result<()> {
    exchange(dir, DELETE, name)
}

fn request(verb: &str, name: &str) -> io::Result<[u8; ROOM]> {
    let (verb, name) = (CString::new(verb)?, CString::new(name)?);
    let asked = [verb.as_bytes_with_nul(), name.as_bytes_with_nul()].concat();
    let mut room = [0; ROOM];
    let front = room.get_mut(..asked.len()).ok_or(OsError::NAMETOOLONG)?;
    debug_assert_eq!(
        asked.iter().filter(|byte| **byte == 0).count(),
        2,
        "two names"
    );
    front.copy_from_slice(&asked);
    Ok(room)
}

#[expect(unsafe_code, reason = "the ioctl has no wrapper")]
fn exchange(dir: impl AsFd, verb: &str, name: &str) -> io::Result<()> {
    let room = request(verb, name)?;
    // SAFETY: the command says that the kernel reads as many bytes as `room` has. A directory is no
    // device that takes the number for something else.
    unsafe { ioctl(dir, Setter::<CHANGE, [u8; ROOM]>::new(room)) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_has_its_number_for_ever() {
        assert_eq!(CHANGE, 0x4200_5302);
    }

    #[test]
    fn requests_come_back_and_nonsense_is_none() {
        let room = request(CREATE, "a b").unwrap();
        assert_eq!(Change::parse(&room), Some(Change::Create("a b")));
        let room = request(DELETE, "\u{e9}").unwrap();
        assert_eq!(Change::parse(&room), Some(Change::Delete("\u{e9}")));
        for nonsense in [
            &b""[..],
            b"create",
            b"create\0x",
            b"make\0x\0",
            b"create\0\xff\0",
        ] {
            assert_eq!(Change::parse(nonsense), None, "{nonsense:?}");
        }
        assert!(request(CREATE, "a\0").is_err());
        assert!(request(CREATE, &"x".repeat(ROOM)).is_err());
        let root = std::fs::File::open("/").unwrap();
        let elsewhere = create(&root, "x").unwrap_err();
        assert_eq!(OsError::from_io_error(&elsewhere), Some(OsError::NOTTY));
    }
}
