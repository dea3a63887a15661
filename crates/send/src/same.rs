//! Whether an object is the same in two trees, by all that is sent of it but the time of access.

use crate::SendError;
use crate::beneath::OpenFile;
use crate::extents::{Piece, pieces};
use crate::tree::{Node, Tree};
use crate::xattrs;
use rustix::fs::FileType;
use rustix::io::Errno;
use std::io;

const BUFFER_BYTES: usize = 64 << 10;

/// An object of a tree, and one path of it there.
pub(crate) type At<'a> = (&'a Tree, &'a Node, &'a [u8]);

/// Compares attributes, then contents up to the first difference.
///
/// # Errors
/// Those of a read.
pub(crate) fn is_same(old: At<'_>, new: At<'_>) -> Result<bool, SendError> {
    let (before, after) = (old.1, new.1);
    debug_assert_eq!(before.kind(), after.kind(), "one object");
    let of = |node: &Node| (node.mode, node.user, node.group, node.device, node.modified);
    let is_file = before.kind() == FileType::RegularFile;
    if of(before) != of(after) || (is_file && before.size != after.size) {
        return Ok(false);
    }
    if read_xattrs(old)? != read_xattrs(new)? {
        return Ok(false);
    }
    if !is_file {
        return Ok(true);
    }
    let (old_file, new_file) = (open(old)?, open(new)?);
    let same = has_same_contents((&*old_file, before.size), (&*new_file, after.size));
    same.map_err(|source| {
        let (op, path) = ("read", new.0.root.shown(new.2));
        SendError::Io { op, path, source }
    })
}

fn read_xattrs((tree, _, path): At<'_>) -> Result<xattrs::Xattrs, SendError> {
    let fail = |errno| tree.root.error("read the attributes", path, errno);
    xattrs::read(&tree.root, path).map_err(fail)
}

fn open((tree, _, path): At<'_>) -> Result<Box<dyn OpenFile>, SendError> {
    let fail = |errno| tree.root.error("open", path, errno);
    tree.root.open_file(path).map_err(fail)
}

/// Why a comparison ends early.
enum Ended {
    Read(io::Error),
    Differs,
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Self::Read(error)
    }
}

impl From<Errno> for Ended {
    fn from(errno: Errno) -> Self {
        Self::Read(errno.into())
    }
}

fn has_same_contents(old: (&dyn OpenFile, u64), new: (&dyn OpenFile, u64)) -> io::Result<bool> {
    let compared = pieces(Some(old), new, 0, &mut |piece| match piece {
        Piece::Data(..) => Err(Ended::Differs),
        // Where the new one has a hole the old one has data, which may be zeros.
        Piece::Hole(range) => has_zeros(old.0, range.start, range.end),
    });
    match compared {
        Ok(()) => Ok(true),
        Err(Ended::Differs) => Ok(false),
        Err(Ended::Read(error)) => Err(error),
    }
}

fn has_zeros(file: &dyn OpenFile, mut at: u64, end: u64) -> Result<(), Ended> {
    debug_assert!(at <= end, "the range ends behind its start");
    let mut buffer = vec![0; BUFFER_BYTES];
    while at < end {
        let len = (end - at).min(BUFFER_BYTES as u64);
        let len = usize::try_from(len).expect("a buffer is small");
        let read = file.read_at(&mut buffer[..len], at)?;
        if buffer[..read].iter().any(|byte| *byte != 0) {
            return Err(Ended::Differs);
        }
        if read == 0 {
            break;
        }
        at += read as u64;
        debug_assert!(at <= end, "no more was asked for");
    }
    Ok(())
}
