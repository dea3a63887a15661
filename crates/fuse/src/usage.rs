//! Asking a daemon what a directory needs of the space, by ioctl(2).
//!
//! The request is for the directory that is open. Its owner may ask, too: the task of the daemon
//! that does the same ([`crate::RootReport`]) is for root and the user who mounted alone.
//!
//! ```text
//!   in:   "usage", a zero byte, "directory", a zero byte, and whatever
//!   out:  length in bytes (u32), JSON
//! ```

use std::io;
use std::os::fd::AsFd;

use rustix::ioctl::{Opcode, opcode};

use crate::report::{self, ROOM};
use crate::wire::codec::Reader;

/// The command.
pub(crate) const ASK: Opcode = opcode::read_write::<[u8; ROOM]>(b'S', 7);

const WORDS: [&str; 2] = ["usage", "directory"];

/// Reports whether `input` asks for a directory.
pub(crate) fn is_request(input: &[u8]) -> bool {
    let mut input = Reader::new(input);
    let mut word = || input.name().ok();
    WORDS.iter().all(|asked| word() == Some(asked.as_bytes()))
}

/// Returns what a directory needs of the space, as JSON. A signal ends it.
///
/// # Errors
/// `EPERM` if the caller is not root, the user of the daemon or the owner of the directory; `EBUSY`
/// while another such request runs; `EINTR`; `EOPNOTSUPP` in a transaction, and of a store that
/// does not tell; `ENOTTY` of a daemon that is older than this, or if it is no such directory.
///
/// # Cost
/// That of `find` below the directory.
pub fn of_directory(dir: impl AsFd) -> io::Result<Vec<u8>> {
    report::ask::<ASK>(dir, &WORDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_has_its_number_for_ever() {
        assert_eq!(ASK, 0xfffc_5307);
    }

    #[test]
    fn a_request_is_known_by_its_words() {
        assert!(is_request(&report::request(&WORDS).unwrap()));
        for nonsense in [&b""[..], b"usage\0", b"usage\0file\0", b"use\0directory\0"] {
            assert!(!is_request(nonsense), "{nonsense:?}");
        }
        let root = std::fs::File::open("/").unwrap();
        let elsewhere = of_directory(&root).unwrap_err();
        assert_eq!(elsewhere.raw_os_error(), Some(libc::ENOTTY));
    }
}
