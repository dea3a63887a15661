//! Asking a daemon what is different below a directory at two moments, by ioctl(2).
//!
//! The request is for the directory on the second side, which is open: as it is, or in a snapshot.
//! The other one is named by its inode number in the mount, which says which clone or snapshot it
//! is in.
//!
//! ```text
//!   in:   words, each with a zero byte behind
//!   out:  length in bytes (u32), words
//!
//!   list OLD             NUMBER COUNT (SIGN PATH FROM)...   begins a list for people
//!   paths OLD            NUMBER COUNT (SIGN PATH FROM)...   begins a list for a copy, of one view
//!   copy OLD             NUMBER COUNT (SIGN PATH FROM)...   the same, also of two views
//!   more NUMBER FROM     NUMBER COUNT (SIGN PATH FROM)...   goes on from the one with this index
//!   parts FROM           BITS HOME COUNT BASE...            which numbers inodes of clones have
//!   pairs OLD FROM       COUNT (BASE BASE)...               which clones belong together
//!   twins OLD FROM       SINCE COUNT (BASE BASE INO)...     the same, with the views of both sides
//!   show 0               -                                  the caller has opened the directory
//! ```
//!
//! An ordinary user compares a clone with its source, or two clones, after `show` for the first
//! side: the way to it may be closed to the user, and its number alone opens nothing.
//!
//! Paths begin at the directory. That of the directory itself is empty. In a list for a copy `-` is
//! a path at the earlier moment, and `+` one at the later. Both sides of a pair are those of the
//! request: first the one that is named, then the one that is open. INO is the first number that
//! inodes of their own have in both. SINCE was the time in nanoseconds from which on one side may
//! have changed what the other has not. It is the earliest time that can be written: the common
//! moment may be before that of either side, and what changed within a tick of it has the same
//! times on both.
//!
//! A copy of two views needs the twins: without them an inode of one view is taken for one of the
//! other that was made apart, and has its number. So `paths`, which older programs send, is
//! refused.

use std::io;
use std::os::fd::AsFd;

use rustix::ioctl::{Opcode, opcode};

use stitch_fs::TouchedPaths;

use crate::report::{self, ROOM};
use crate::transactions::{ListedChange, number_of, parse_change, words};
use crate::wire::codec::Reader;

/// The command.
pub(crate) const ASK: Opcode = opcode::read_write::<[u8; ROOM]>(b'S', 5);

const LIST: &str = "list";
const PATHS: &str = "paths";
const MORE: &str = "more";
const PARTS: &str = "parts";
const COPY: &str = "copy";
const PAIRS: &str = "pairs";
const TWINS: &str = "twins";
const SHOW: &str = "show";

/// What a daemon is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DifferenceRequest {
    /// The first changes since the directory with this number.
    List(u64),
    /// The first paths that a copy of the directory with this number needs, which is in the same
    /// view.
    Paths(u64),
    /// The same, whichever view it is in.
    Copy(u64),
    /// Those of the list of this number, from an index on.
    More(u64, usize),
    /// How the inodes of clones are numbered in the directory's snapshot, from a part on.
    Parts(usize),
    /// Which clones are compared with each other if the other side is the directory with this
    /// number, from a pair on.
    Pairs(u64, usize),
    /// The same, with the views of both sides, and which inodes they have in common.
    Twins(u64, usize),
    /// Nothing: the directory may be the first side of the caller's next comparison.
    Show,
}

impl DifferenceRequest {
    /// Returns what `input` asks for; `None` if that makes no sense.
    pub(crate) fn parse(input: &[u8]) -> Option<Self> {
        let mut input = Reader::new(input);
        let mut word = || std::str::from_utf8(input.name().ok()?).ok();
        match (word()?, word()?) {
            (LIST, old) => Some(Self::List(old.parse().ok()?)),
            (SHOW, _) => Some(Self::Show),
            (PARTS, from) => Some(Self::Parts(from.parse().ok()?)),
            (PATHS, old) => Some(Self::Paths(old.parse().ok()?)),
            (COPY, old) => Some(Self::Copy(old.parse().ok()?)),
            (TWINS, old) => Some(Self::Twins(old.parse().ok()?, word()?.parse().ok()?)),
            (PAIRS, old) => Some(Self::Pairs(old.parse().ok()?, word()?.parse().ok()?)),
            (MORE, number) => Some(Self::More(number.parse().ok()?, word()?.parse().ok()?)),
            _ => None,
        }
    }
}

/// Returns what is different below `dir` in comparison with the directory whose number in the mount
/// is `old`, in the order of paths: the same directory in an earlier snapshot or moment, or in a
/// clone or its source.
///
/// # Errors
/// All mean that a walk through both directories tells. `EOPNOTSUPP` where that is better: for a
/// directory with few names, or for two clones that have no source in common; `EPERM` if something
/// different is in a directory that is not the caller's, or the caller is an ordinary
/// user, the directories are in two clones and the other one was not told by [`show`]; `EINVAL` if
/// the directories are not the same one, or `old` is the later one; `ESTALE` if the snapshot was
/// deleted, or the daemon has forgotten the list; `ENOTTY` of a daemon that is older than this.
///
/// # Cost
/// See [`stitch_fs::FileSystem::differences`].
pub fn list(dir: impl AsFd, old: u64) -> io::Result<Vec<ListedChange>> {
    all_of(dir, LIST, old)
}

/// Tells the daemon that `dir` is open, so that the next [`list`] of this user may compare it with
/// a directory of another clone, or of what it is a clone of. [`pairs`] does so itself.
///
/// # Errors
/// `EINVAL` or `ENOTTY` of a daemon that is older than this.
pub fn show(dir: impl AsFd) -> io::Result<()> {
    report::ask::<ASK>(&dir, &[SHOW, "0"]).map(drop)
}

/// Returns the paths below `dir` that a copy of the directory whose number in the mount is `old`
/// needs to become one of `dir`: those that lead to something else, and the directories above them.
///
/// # Errors
/// Those of [`list`], and `EINVAL` of a daemon that is older than this.
///
/// # Cost
/// See [`stitch_fs::FileSystem::touched_paths`].
pub fn paths(dir: impl AsFd, old: u64) -> io::Result<TouchedPaths> {
    by_side(all_of(dir, PATHS, old)?)
}

/// Returns what [`paths`] does, also if `before`, whose number in the mount is `old`, is in another
/// view than `dir`. Inodes of both are the same as [`twins`] tells.
///
/// # Errors
/// Those of [`paths`].
pub fn copy_paths(before: impl AsFd, dir: impl AsFd, old: u64) -> io::Result<TouchedPaths> {
    show(&before)?;
    by_side(all_of(dir, COPY, old)?)
}

fn by_side(changes: Vec<ListedChange>) -> io::Result<TouchedPaths> {
    let mut paths = TouchedPaths::default();
    for change in changes {
        let side = match &*change.sign {
            "-" => &mut paths.old,
            "+" => &mut paths.new,
            _ => return Err(nonsense()),
        };
        side.insert(change.path);
    }
    Ok(paths)
}

/// How inodes are numbered where a directory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotParts {
    /// The low bits of a number in a snapshot that are the inode's, in its file system.
    pub ino_bits: u32,
    /// What the numbers of the directory's file system have beside the inode's where it is shown as
    /// it is.
    pub home: u64,
    /// The same of each clone of the snapshot. The bits above `ino_bits` count them from 1.
    pub clones: Vec<u64>,
}

/// Returns how inodes are numbered in the clone or snapshot that `dir` is in.
///
/// # Errors
/// `EINVAL` or `ENOTTY` of a daemon that is older than this; `EOPNOTSUPP` in a transaction.
pub fn parts(dir: impl AsFd) -> io::Result<SnapshotParts> {
    let mut clones = Vec::new();
    loop {
        let reply = report::ask::<ASK>(&dir, &[PARTS, &clones.len().to_string()])?;
        let listed = words(&reply);
        let [bits, home, count, bases @ ..] = &listed[..] else {
            return Err(nonsense());
        };
        let ino_bits: u32 = number_of(bits).ok_or_else(nonsense)?;
        let home: u64 = number_of(home).ok_or_else(nonsense)?;
        let count: usize = number_of(count).ok_or_else(nonsense)?;
        let before = clones.len();
        for base in bases {
            clones.push(number_of(base).ok_or_else(nonsense)?);
        }
        if clones.len() >= count {
            return Ok(SnapshotParts {
                ino_bits,
                home,
                clones,
            });
        }
        if clones.len() == before {
            return Err(nonsense());
        }
    }
}

/// Returns the clones in two views that [`list`] compares with each other: what the numbers of each
/// have beside the inode's, where `before` is and where `dir` is. Both are open, and `old` is the
/// number of `before` in the mount.
///
/// # Errors
/// `EOPNOTSUPP` for two clones that have no source in common; `EINVAL` or `ENOTTY` of a daemon that
/// is older than this.
pub fn pairs(before: impl AsFd, dir: impl AsFd, old: u64) -> io::Result<Vec<(u64, u64)>> {
    let mut pairs = Vec::new();
    loop {
        show(&before)?;
        let from = pairs.len();
        let reply = report::ask::<ASK>(&dir, &[PAIRS, &old.to_string(), &from.to_string()])?;
        let listed = words(&reply);
        let [count, bases @ ..] = &listed[..] else {
            return Err(nonsense());
        };
        let count: usize = number_of(count).ok_or_else(nonsense)?;
        for pair in bases.chunks(2) {
            let [old, new] = pair else {
                return Err(nonsense());
            };
            let pair = number_of(old).zip(number_of(new));
            pairs.push(pair.ok_or_else(nonsense)?);
        }
        if pairs.len() >= count {
            return Ok(pairs);
        }
        if pairs.len() == from {
            return Err(nonsense());
        }
    }
}

/// A view on one side, and its counterpart on the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Twin {
    /// What its numbers have beside the inode's.
    pub old: u64,
    /// The same of its counterpart.
    pub new: u64,
    /// The first number that inodes of their own have in both.
    pub first_own: u64,
}

/// Returns the views that two directories have in common: their own, then clones that lie in both.
/// Both are open, and `old` is the number of `before` in the mount.
///
/// # Errors
/// Those of [`pairs`].
pub fn twins(before: impl AsFd, dir: impl AsFd, old: u64) -> io::Result<Vec<Twin>> {
    let mut twins = Vec::new();
    loop {
        show(&before)?;
        let from = twins.len();
        let reply = report::ask::<ASK>(&dir, &[TWINS, &old.to_string(), &from.to_string()])?;
        let count = add_twins(&mut twins, &words(&reply)).ok_or_else(nonsense)?;
        if twins.len() >= count {
            return Ok(twins);
        }
        if twins.len() == from {
            return Err(nonsense());
        }
    }
}

/// Adds the twins of a reply. Returns how many there are in all; `None` if it makes no sense.
fn add_twins(twins: &mut Vec<Twin>, listed: &[&[u8]]) -> Option<usize> {
    // An older program took inodes with older times for the same ones on both sides.
    let [_since, count, views @ ..] = listed else {
        return None;
    };
    for twin in views.chunks(3) {
        let [old, new, first_own] = twin else {
            return None;
        };
        twins.push(Twin {
            old: number_of(old)?,
            new: number_of(new)?,
            first_own: number_of(first_own)?,
        });
    }
    number_of(count)
}

fn all_of(dir: impl AsFd, what: &str, old: u64) -> io::Result<Vec<ListedChange>> {
    let mut reply = report::ask::<ASK>(&dir, &[what, &old.to_string()])?;
    let mut all = Vec::new();
    loop {
        let listed = words(&reply);
        let [number, count, changes @ ..] = &listed[..] else {
            return Err(nonsense());
        };
        let number: u64 = number_of(number).ok_or_else(nonsense)?;
        let count: usize = number_of(count).ok_or_else(nonsense)?;
        let before = all.len();
        for entry in changes.chunks(3) {
            all.push(parse_change(entry).ok_or_else(nonsense)?);
        }
        if all.len() >= count {
            return Ok(all);
        }
        if all.len() == before {
            return Err(nonsense());
        }
        let from = all.len().to_string();
        reply = report::ask::<ASK>(&dir, &[MORE, &number.to_string(), &from])?;
    }
}

fn nonsense() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::request;

    #[test]
    fn the_command_has_its_number_for_ever() {
        assert_eq!(ASK, 0xfffc_5305);
    }

    #[test]
    fn requests_come_back_and_nonsense_is_none() {
        let parsed = |words: &[&str]| DifferenceRequest::parse(&request(words).unwrap());
        let old = u64::MAX.to_string();
        assert_eq!(
            parsed(&[LIST, &old]),
            Some(DifferenceRequest::List(u64::MAX))
        );
        assert_eq!(parsed(&[SHOW, "0"]), Some(DifferenceRequest::Show));
        assert_eq!(parsed(&[PATHS, "7"]), Some(DifferenceRequest::Paths(7)));
        assert_eq!(parsed(&[PARTS, "9"]), Some(DifferenceRequest::Parts(9)));
        let pairs = Some(DifferenceRequest::Pairs(7, 9));
        assert_eq!(parsed(&[PAIRS, "7", "9"]), pairs);
        assert_eq!(parsed(&[COPY, "7"]), Some(DifferenceRequest::Copy(7)));
        let twins = Some(DifferenceRequest::Twins(7, 9));
        assert_eq!(parsed(&[TWINS, "7", "9"]), twins);
        assert_eq!(
            parsed(&[MORE, "7", "9"]),
            Some(DifferenceRequest::More(7, 9))
        );
        for words in [
            &[LIST, "x"][..],
            &[MORE, "7"],
            &[PAIRS, "7"],
            &["", "7"],
            &[LIST, "-1"],
        ] {
            assert_eq!(parsed(words), None, "{words:?}");
        }
        assert_eq!(DifferenceRequest::parse(b""), None);
    }

    #[test]
    fn twins_come_in_several_answers() {
        let mut twins = Vec::new();
        let reply: [&[u8]; 5] = [b"-5", b"2", b"0", b"16", b"40"];
        assert_eq!(add_twins(&mut twins, &reply), Some(2));
        let reply: [&[u8]; 5] = [b"-5", b"2", b"32", b"48", b"30"];
        assert_eq!(add_twins(&mut twins, &reply), Some(2));
        let numbers = twins
            .iter()
            .map(|twin| (twin.old, twin.new, twin.first_own));
        assert_eq!(numbers.collect::<Vec<_>>(), [(0, 16, 40), (32, 48, 30)]);
        assert_eq!(add_twins(&mut twins, &reply[..4]), None);
        assert_eq!(add_twins(&mut twins, &reply[..1]), None);
    }
}
