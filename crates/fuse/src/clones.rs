//! Asking a daemon for a clone of a directory: announced by ioctl(2), done by mkdir(2).
//!
//! ```text
//!   in:  number of the target's directory (st_ino, u64), name of the target, a zero byte
//! ```
//!
//! The directory that is open is the source. The next mkdir(2) of the same thread, if it is of that
//! name in that directory, makes a clone of the source instead of an empty directory. So the kernel
//! does what it does for any mkdir: it checks the rights on the target's directory, and learns the
//! new name.

use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno as OsError;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
use stitch_base::Ino;

use crate::wire::codec::Reader;

/// Bytes that go in.
const ROOM: usize = 512;

/// The command.
pub(crate) const ANNOUNCE: Opcode = opcode::write::<[u8; ROOM]>(b'S', 3);

/// Where the clone is to be: a directory, and a name in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) parent: Ino,
    pub(crate) name: Vec<u8>,
}

impl Target {
    /// Returns what `input` says; `None` if that makes no sense.
    pub(crate) fn parse(input: &[u8]) -> Option<Self> {
        let mut input = Reader::new(input);
        let parent = Ino(input.u64().ok()?);
        let name = input.name().ok()?.to_vec();
        (!name.is_empty() && !name.contains(&b'/')).then_some(Self { parent, name })
    }
}

/// Announces a clone of a directory in a mount of ours. `parent` is `st_ino` of the directory that
/// gets it; the next mkdir(2) of this thread makes it.
///
/// # Errors
/// `EPERM` if the caller is not root, the user of the daemon or the owner of the directory;
/// `EOPNOTSUPP` if the store cannot hold clones; `EOVERFLOW` if its inode numbers are too large;
/// `ENAMETOOLONG`, `EINVAL` for what is no name; `ENOTTY` of a daemon that is older than this, or
/// if it is no such directory.
pub fn announce(source: impl AsFd, parent: u64, name: &[u8]) -> io::Result<()> {
    exchange(source, request(parent, name)?)
}

fn request(parent: u64, name: &[u8]) -> io::Result<[u8; ROOM]> {
    if name.contains(&0) {
        return Err(OsError::INVAL.into());
    }
    let asked = [&to_bytes(parent)[..], name, &[0]].concat();
    let mut room = [0; ROOM];
    let front = room.get_mut(..asked.len()).ok_or(OsError::NAMETOOLONG)?;
    debug_assert!(asked.len() > 8, "a number and a name");
    front.copy_from_slice(&asked);
    Ok(room)
}

/// Bytes of a number in a request.
#[expect(clippy::host_endian_bytes, reason = "the daemon is on this machine")]
pub(crate) const fn to_bytes(number: u64) -> [u8; 8] {
    number.to_ne_bytes()
}

#[expect(unsafe_code, reason = "the ioctl has no wrapper")]
fn exchange(dir: impl AsFd, room: [u8; ROOM]) -> io::Result<()> {
    // SAFETY: the command says that the kernel reads as many bytes as `room` has. A directory is no
    // device that takes the number for something else.
    unsafe { ioctl(dir, Setter::<ANNOUNCE, [u8; ROOM]>::new(room)) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_has_its_number_for_ever() {
        assert_eq!(ANNOUNCE, 0x4200_5303);
    }

    #[test]
    fn a_request_comes_back() {
        let room = request(7, b"a\xff").unwrap();
        let target = Target {
            parent: Ino(7),
            name: b"a\xff".to_vec(),
        };
        assert_eq!(Target::parse(&room), Some(target));
        assert_eq!(Target::parse(&request(7, b"").unwrap()), None);
        assert_eq!(Target::parse(&request(7, b"a/b").unwrap()), None);
        assert_eq!(Target::parse(&room[..8]), None);
        assert!(request(7, b"a\0b").is_err());
        assert!(request(7, &[b'a'; ROOM]).is_err());
    }
}
