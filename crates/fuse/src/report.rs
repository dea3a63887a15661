//! Reads a report of a daemon by ioctl(2).
//!
//! A report is an attribute of the root directory ([`crate::RootReport`]), but the kernel reads
//! none in a mount without extended attributes. So the same report is available by an ioctl on that
//! directory:
//!
//! ```text
//!   in:   the report's name, a zero byte, and whatever
//!   out:  length in bytes (u32), the report
//! ```
//!
//! A command encodes the length of its data in 14 bits, so both are at most 16 KiB.

use std::ffi::CString;
use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno as OsError;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

use crate::wire::codec::{Fields, Reader, Sink};

/// Most bytes in and out, with the length field.
pub(crate) const ROOM: usize = 16_380;

/// The command.
pub(crate) const READ: Opcode = opcode::read_write::<[u8; ROOM]>(b'S', 1);

/// Returns the name of the requested report.
pub(crate) fn name_in(input: &[u8]) -> Option<&[u8]> {
    Reader::new(input).name().ok()
}

/// Writes a report with its length. Returns false if it is too long.
pub(crate) fn frame(report: &[u8], out: &mut Sink<'_>) -> bool {
    let Ok(len_bytes) = u32::try_from(report.len()) else {
        return false;
    };
    out.put(&Fields::<4>::default().u32(len_bytes).done()) && out.put(report)
}

/// Returns the report in a reply.
pub(crate) fn unframed(answer: &[u8]) -> Option<&[u8]> {
    let mut answer = Reader::new(answer);
    let len_bytes = usize::try_from(answer.u32().ok()?).ok()?;
    answer.bytes(len_bytes).ok()
}

/// Reads a report of a StitchFS mount; `root` is the mount's root directory.
///
/// # Errors
/// `ENOTTY` if the daemon is older than this ioctl, or `root` is not the root of a mount;
/// `EOPNOTSUPP` if there is no such report; `EACCES` if the caller may not read it; `E2BIG` if it
/// is too long for an ioctl; `EINVAL` for a name with a zero byte.
pub fn read(root: impl AsFd, name: &str) -> io::Result<Vec<u8>> {
    let name = CString::new(name)?;
    let mut room = [0; ROOM];
    let asked = name.as_bytes_with_nul();
    let front = room.get_mut(..asked.len()).ok_or(OsError::TOOBIG)?;
    front.copy_from_slice(asked);
    exchange::<READ>(root, &mut room)?;
    let report = unframed(&room).ok_or(io::ErrorKind::InvalidData)?;
    Ok(report.to_vec())
}

/// Returns a request of words, each with a zero byte behind it.
///
/// # Errors
/// `ENAMETOOLONG` if they do not fit; `EINVAL` for a word with a zero byte.
pub(crate) fn request(words: &[impl AsRef<[u8]>]) -> io::Result<[u8; ROOM]> {
    let mut asked = Vec::new();
    for word in words {
        asked.extend_from_slice(CString::new(word.as_ref())?.as_bytes_with_nul());
    }
    let mut room = [0; ROOM];
    let front = room.get_mut(..asked.len()).ok_or(OsError::NAMETOOLONG)?;
    debug_assert!(words.len() > 1, "a verb and what it is about");
    front.copy_from_slice(&asked);
    Ok(room)
}

/// Sends a request of words by the command `ASK`. Returns the answer without its length.
pub(crate) fn ask<const ASK: Opcode>(
    dir: impl AsFd,
    words: &[impl AsRef<[u8]>],
) -> io::Result<Vec<u8>> {
    let mut room = request(words)?;
    exchange::<ASK>(dir, &mut room)?;
    let reply = unframed(&room).ok_or(io::ErrorKind::InvalidData)?;
    Ok(reply.to_vec())
}

#[expect(unsafe_code, reason = "the ioctl has no wrapper")]
fn exchange<const COMMAND: Opcode>(dir: impl AsFd, room: &mut [u8; ROOM]) -> io::Result<()> {
    // SAFETY: the command makes the kernel read and write exactly the length of `room`, for which
    // any bytes are valid. A directory is no device that could interpret the number differently.
    unsafe { ioctl(dir, Updater::<COMMAND, [u8; ROOM]>::new(room)) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(report: &[u8], limit: usize) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        frame(report, &mut Sink::new(&mut out, limit)).then_some(out)
    }

    #[test]
    fn the_command_has_its_number_for_ever() {
        assert_eq!(READ, 0xfffc_5301);
    }

    #[test]
    fn a_report_goes_there_and_back_if_it_fits() {
        for report in [&b""[..], b"{}", &[7; ROOM - 4]] {
            let mut room = framed(report, ROOM).unwrap();
            room.resize(ROOM, 0);
            assert_eq!(unframed(&room), Some(report));
        }
        assert_eq!(framed(&[7; ROOM - 3], ROOM), None);
        assert_eq!(unframed(&[0xff; ROOM]), None, "longer than what came");
    }

    #[test]
    fn a_name_ends_with_a_zero() {
        assert_eq!(name_in(b"a.b\0\0\0"), Some(&b"a.b"[..]));
        for malformed in [&b""[..], b"\0\0", b"a.b"] {
            assert_eq!(name_in(malformed), None);
        }
        let root = std::fs::File::open("/").unwrap();
        assert_eq!(
            read(&root, "a\0b").unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        let elsewhere = read(&root, "a.b").unwrap_err();
        assert_eq!(OsError::from_io_error(&elsewhere), Some(OsError::NOTTY));
        let long = read(&root, &"a".repeat(ROOM)).unwrap_err();
        assert_eq!(OsError::from_io_error(&long), Some(OsError::TOOBIG));
    }
}
