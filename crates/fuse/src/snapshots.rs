//! Asking a daemon to create, delete, hold or release a snapshot, by ioctl(2).
//!
//! An ioctl needs no more than a directory that the caller can open for reading, in any mount:
//!
//! ```text
//!   in:  "create" or "delete", a zero byte, the name of the snapshot, a zero byte, and whatever
//!        "hold" or "release", the same, a tag, a zero byte, and whatever
//!        "roll back", the same, the name of a snapshot that is created before, "keep clones" or
//!        "destroy clones" for clones that were made later, each with a zero byte
//!        "rolled back", the name of that snapshot, and a zero byte: how far that is
//!        "policy", a prefix of names, a zero byte, seconds and what is kept, and a zero byte, like
//!        `900 hourly=24,daily=7`
//!        "no policy", `-`, and a zero byte
//!        "go back", the name of a moment, a zero byte, and as "roll back"
//!        "changed", the names of two moments, each with a zero byte; `now` is the present
//! ```
//!
//! `create`, `roll back`, `policy`, `no policy`, `go back` and `changed` are for the directory that
//! is open. The others are for any directory of the mount. A rollback runs in a thread of the
//! daemon: the request only begins it. Daemons before `roll back` and `go back` destroyed later
//! clones unasked, by other verbs: these here they refuse.

use std::ffi::CString;
use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno as OsError;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

use stitch_fs::{Keep, LaterClones, PolicyRule};

use crate::wire::codec::Reader;

/// Bytes that go in.
const ROOM: usize = 512;

/// The command.
pub(crate) const CHANGE: Opcode = opcode::write::<[u8; ROOM]>(b'S', 2);

const CREATE: &str = "create";
const DELETE: &str = "delete";
const HOLD: &str = "hold";
const RELEASE: &str = "release";
const ROLL_BACK: &str = "roll back";
const ROLLED_BACK: &str = "rolled back";
const POLICY: &str = "policy";
const NO_POLICY: &str = "no policy";
const GO_BACK: &str = "go back";
const CHANGED: &str = "changed";
const KEEP_CLONES: &str = "keep clones";
const DESTROY_CLONES: &str = "destroy clones";
/// In place of a name: a word is not empty.
const NO_NAME: &str = "-";
/// In place of a moment: the present.
const NOW: &str = "now";

/// How a directory is rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RollbackTerms<'a> {
    /// Name of the snapshot that is created before. It is deleted if the rollback is refused.
    pub before: &'a str,
    /// What becomes of clones that were made later than what it goes back to.
    pub later_clones: LaterClones,
}

impl<'a> RollbackTerms<'a> {
    /// Returns the terms that the next words of a request give.
    fn parse(mut word: impl FnMut() -> Option<&'a str>) -> Option<Self> {
        Some(Self {
            before: word()?,
            later_clones: match word()? {
                KEEP_CLONES => LaterClones::Keep,
                DESTROY_CLONES => LaterClones::Destroy,
                _ => return None,
            },
        })
    }

    /// Returns the words of a request with these terms.
    const fn request(self, verb: &'a str, name: &'a str) -> [&'a str; 4] {
        let clones = match self.later_clones {
            LaterClones::Keep => KEEP_CLONES,
            LaterClones::Destroy => DESTROY_CLONES,
        };
        [verb, name, self.before, clones]
    }
}

/// What a daemon is asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    /// Create a snapshot of this name, of the directory that is asked.
    Create(&'a str),
    /// Delete the snapshot of this name.
    Delete(&'a str),
    /// Hold the snapshot of this name under a tag.
    Hold(&'a str, &'a str),
    /// Release the snapshot of this name that is held under a tag.
    Release(&'a str, &'a str),
    /// Begin to roll the directory back to the snapshot of this name, after another one is created.
    RollBack(&'a str, RollbackTerms<'a>),
    /// Tell what came of the rollback that created the snapshot of this name.
    RolledBack(&'a str),
    /// Set the policy of the directory.
    SetPolicy(PolicyRule),
    /// Delete the policy of the directory.
    DeletePolicy,
    /// As [`Self::RollBack`], to a moment of the history.
    Undo(&'a str, RollbackTerms<'a>),
    /// Tell whether the directory changed from one moment to another; to the present for `None`.
    HasChanged(&'a str, Option<&'a str>),
}

impl<'a> Change<'a> {
    /// Reports whether a mount that is read-only at the moment refuses it.
    pub(crate) const fn is_refused_read_only(&self) -> bool {
        match self {
            Self::RolledBack(_) | Self::HasChanged(..) => false,
            Self::Create(_)
            | Self::Delete(_)
            | Self::Hold(..)
            | Self::Release(..)
            | Self::RollBack(..)
            | Self::SetPolicy(_)
            | Self::DeletePolicy
            | Self::Undo(..) => true,
        }
    }

    /// Returns what `input` asks for; `None` if that makes no sense.
    pub(crate) fn parse(input: &'a [u8]) -> Option<Self> {
        let mut input = Reader::new(input);
        let mut word = || std::str::from_utf8(input.name().ok()?).ok();
        let (verb, name) = (word()?, word()?);
        match verb {
            CREATE => Some(Self::Create(name)),
            DELETE => Some(Self::Delete(name)),
            HOLD => Some(Self::Hold(name, word()?)),
            RELEASE => Some(Self::Release(name, word()?)),
            ROLL_BACK => Some(Self::RollBack(name, RollbackTerms::parse(word)?)),
            ROLLED_BACK => Some(Self::RolledBack(name)),
            POLICY => {
                let (every_s, keep) = word()?.split_once(' ')?;
                Some(Self::SetPolicy(PolicyRule {
                    every_s: every_s.parse().ok()?,
                    keep: parse_keep(keep)?,
                    prefix: name.to_owned(),
                }))
            }
            NO_POLICY => Some(Self::DeletePolicy),
            GO_BACK => Some(Self::Undo(name, RollbackTerms::parse(word)?)),
            CHANGED => {
                let to = word()?;
                Some(Self::HasChanged(name, Some(to).filter(|to| *to != NOW)))
            }
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
    exchange(dir, &[CREATE, name])
}

/// Deletes a snapshot; `dir` is any directory of its mount.
///
/// # Errors
/// `ENOENT` if there is none; `EBUSY` if it is held; `EPERM` and `ENOTTY` as of [`create`];
/// `EROFS`.
///
/// # Durability
/// It is gone for good when this returns.
pub fn delete(dir: impl AsFd, name: &str) -> io::Result<()> {
    exchange(dir, &[DELETE, name])
}

/// Holds a snapshot under a tag, so that it cannot be deleted; `dir` is any directory of its mount.
///
/// # Errors
/// `ENOENT` if there is none; `EEXIST` if it is held under this tag already; `EINVAL` for what is
/// no tag, and of a daemon that is older than this; `E2BIG` where no tag more fits; `EPERM` and
/// `ENOTTY` as of [`create`]; `EROFS`.
///
/// # Durability
/// On the medium when this returns.
pub fn hold(dir: impl AsFd, name: &str, tag: &str) -> io::Result<()> {
    exchange(dir, &[HOLD, name, tag])
}

/// Releases a snapshot that is held under a tag.
///
/// # Errors
/// `ENODATA` if it is not held under this tag; others as of [`hold`].
///
/// # Durability
/// On the medium when this returns.
pub fn release(dir: impl AsFd, name: &str, tag: &str) -> io::Result<()> {
    exchange(dir, &[RELEASE, name, tag])
}

/// Begins to roll a directory back to a snapshot of it. Before that the snapshot `terms.before` is
/// created, of the directory as it is.
///
/// # Errors
/// `ENOENT` if there is no such snapshot; `EINVAL` if it is of another directory, and of a daemon
/// that is older than this; `EEXIST` if a snapshot is named `terms.before` already; `EBUSY` while
/// another rollback runs; others as of [`create`].
pub fn roll_back(dir: impl AsFd, name: &str, terms: RollbackTerms<'_>) -> io::Result<()> {
    exchange(dir, &terms.request(ROLL_BACK, name))
}

/// Tells what came of the rollback that created the snapshot `before`.
///
/// # Errors
/// `EAGAIN` while it runs; `ENOENT` if the daemon knows of no such rollback; `EPERM` where an
/// immutable or append-only file is in the directory, or a file of another owner would change;
/// `ENOTEMPTY` where clones would be destroyed that the terms keep; `ENOSPC`, `EIO`: the reason why
/// it failed. Of one that was refused, the snapshot `before` is deleted. It stays where a part may
/// be done: after `ENOSPC` and `EIO`.
///
/// # Durability
/// It is on the medium, and the kernel has dropped what it had cached, when this succeeds.
pub fn rolled_back(dir: impl AsFd, before: &str) -> io::Result<()> {
    exchange(dir, &[ROLLED_BACK, before])
}

/// Sets the policy of a directory, instead of the one that it has: a snapshot every `every_s`
/// seconds, named `prefix`, `-` and the time. `keep` says which are kept: see [`parse_keep`].
///
/// # Errors
/// `EINVAL` for what is no interval, no prefix, or not understood; others as of [`create`].
///
/// # Durability
/// On the medium when this returns.
pub fn set_policy(dir: impl AsFd, prefix: &str, every_s: u64, keep: &str) -> io::Result<()> {
    exchange(dir, &[POLICY, prefix, &format!("{every_s} {keep}")])
}

/// Deletes the policy of a directory; its snapshots stay.
///
/// # Errors
/// `ENOENT` if it has none; others as of [`create`].
///
/// # Durability
/// On the medium when this returns.
pub fn delete_policy(dir: impl AsFd) -> io::Result<()> {
    exchange(dir, &[NO_POLICY, NO_NAME])
}

/// Begins to make a directory what it was at a moment of the history; see [`roll_back`].
///
/// # Errors
/// `ENOENT` if the moment was dropped; `ESTALE` if the directory had another path then, which
/// [`rolled_back`] tells; others as of [`roll_back`].
pub fn undo(dir: impl AsFd, moment: &str, terms: RollbackTerms<'_>) -> io::Result<()> {
    exchange(dir, &terms.request(GO_BACK, moment))
}

/// Reports whether a directory, or anything below it, is different at two moments of the history;
/// the second is the present for `None`.
///
/// # Errors
/// `ENOENT` if a moment was dropped; `EINVAL` if the second one is before the first; others as of
/// [`create`].
///
/// # Cost
/// As much as a walk through the directory at both, up to the first difference; none if nothing
/// was written between them.
pub fn has_changed(dir: impl AsFd, from: &str, to: Option<&str>) -> io::Result<bool> {
    match exchange(dir, &[CHANGED, from, to.unwrap_or(NOW)]) {
        Ok(()) => Ok(true),
        Err(error) if OsError::from_io_error(&error) == Some(OsError::NODATA) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns which snapshots a text keeps, like `last=3,hourly=24,daily=7,weekly=4,monthly=12` or
/// `yearly=5`; `None` for what is no such text.
#[must_use]
pub fn parse_keep(text: &str) -> Option<Keep> {
    let mut keep = Keep::default();
    for rule in text.split(',') {
        let (name, count) = rule.split_once('=')?;
        let field = match name {
            "last" => &mut keep.last,
            "hourly" => &mut keep.hourly,
            "daily" => &mut keep.daily,
            "weekly" => &mut keep.weekly,
            "monthly" => &mut keep.monthly,
            "yearly" => &mut keep.yearly,
            _ => return None,
        };
        *field = count.parse().ok()?;
    }
    Some(keep)
}

fn request(words: &[&str]) -> io::Result<[u8; ROOM]> {
    let mut asked = Vec::with_capacity(ROOM);
    for word in words {
        asked.extend_from_slice(CString::new(*word)?.as_bytes_with_nul());
    }
    let mut room = [0; ROOM];
    let front = room.get_mut(..asked.len()).ok_or(OsError::NAMETOOLONG)?;
    debug_assert_eq!(
        asked.iter().filter(|byte| **byte == 0).count(),
        words.len(),
        "each word ends with a zero byte"
    );
    front.copy_from_slice(&asked);
    Ok(room)
}

#[expect(unsafe_code, reason = "the ioctl has no wrapper")]
fn exchange(dir: impl AsFd, words: &[&str]) -> io::Result<()> {
    let room = request(words)?;
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
    fn rollbacks_say_what_becomes_of_later_clones() {
        for later_clones in [LaterClones::Keep, LaterClones::Destroy] {
            let terms = RollbackTerms {
                before: "b",
                later_clones,
            };
            let room = request(&terms.request(ROLL_BACK, "a")).unwrap();
            assert_eq!(Change::parse(&room), Some(Change::RollBack("a", terms)));
            let room = request(&terms.request(GO_BACK, "a")).unwrap();
            assert_eq!(Change::parse(&room), Some(Change::Undo("a", terms)));
        }
        let of_older_programs = [&b"rollback\0a\0b\0"[..], b"undo\0a\0b\0"];
        let unsaid = [&b"roll back\0a\0b\0"[..], b"go back\0a\0b\0clones\0"];
        for nonsense in of_older_programs.into_iter().chain(unsaid) {
            assert_eq!(Change::parse(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn requests_come_back_and_nonsense_is_none() {
        let room = request(&[CREATE, "a b"]).unwrap();
        assert_eq!(Change::parse(&room), Some(Change::Create("a b")));
        let room = request(&[DELETE, "\u{e9}"]).unwrap();
        assert_eq!(Change::parse(&room), Some(Change::Delete("\u{e9}")));
        let room = request(&[HOLD, "a", "t"]).unwrap();
        assert_eq!(Change::parse(&room), Some(Change::Hold("a", "t")));
        let room = request(&[RELEASE, "a", "t"]).unwrap();
        assert_eq!(Change::parse(&room), Some(Change::Release("a", "t")));
        let room = request(&[ROLLED_BACK, "b"]).unwrap();
        assert_eq!(Change::parse(&room), Some(Change::RolledBack("b")));
        let room = request(&[POLICY, "auto", "900 hourly=24,last=2"]).unwrap();
        let keep = Keep {
            hourly: 24,
            last: 2,
            ..Keep::default()
        };
        let rule = PolicyRule {
            every_s: 900,
            keep,
            prefix: "auto".to_owned(),
        };
        assert_eq!(Change::parse(&room), Some(Change::SetPolicy(rule)));
        let room = request(&[NO_POLICY, NO_NAME]).unwrap();
        assert_eq!(Change::parse(&room), Some(Change::DeletePolicy));
        let room = request(&[CHANGED, "a", NOW]).unwrap();
        assert_eq!(Change::parse(&room), Some(Change::HasChanged("a", None)));
        let room = request(&[CHANGED, "a", "b"]).unwrap();
        assert_eq!(
            Change::parse(&room),
            Some(Change::HasChanged("a", Some("b")))
        );
        for keep in [
            "",
            "hourly",
            "hourly=x",
            "hour=1",
            "hourly=1,",
            "daily=99999",
        ] {
            assert_eq!(parse_keep(keep), None, "{keep}");
        }
        for nonsense in [
            &b""[..],
            b"create",
            b"create\0x",
            b"make\0x\0",
            b"create\0\xff\0",
            b"hold\0x\0t",
        ] {
            assert_eq!(Change::parse(nonsense), None, "{nonsense:?}");
        }
        assert!(request(&[CREATE, "a\0"]).is_err());
        assert!(request(&[CREATE, &"x".repeat(ROOM)]).is_err());
        let root = std::fs::File::open("/").unwrap();
        let elsewhere = create(&root, "x").unwrap_err();
        assert_eq!(OsError::from_io_error(&elsewhere), Some(OsError::NOTTY));
    }
}
