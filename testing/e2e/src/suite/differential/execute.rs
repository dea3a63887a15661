//! Runs operations on one of the two trees and describes what came of them, comparably.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use rustix::fs::{
    Access, AtFlags, CWD, Dir, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom,
    Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, XattrFlags, makedev,
};
use rustix::io::Errno;
use stitch_base::random::Rng;
use xxhash_rust::xxh3::xxh3_64;

use super::generate::{SLOTS, at_flags};
use super::op::{NewTime, Op, Step};
use super::paths_of;
use crate::harness::tree::{hex, meaning_of};
use crate::harness::user::acting_as;

type Outcome = rustix::io::Result<String>;

/// One of the two trees, and its open files.
pub(super) struct Side {
    root: PathBuf,
    now_from: i64,
    slots: [Option<OwnedFd>; SLOTS],
}

impl Side {
    /// The tree at `root`; times from `now_from` on, in seconds, are described as "now".
    pub(super) fn new(root: PathBuf, now_from: i64) -> Self {
        Self {
            root,
            now_from,
            slots: Default::default(),
        }
    }

    /// Closes all files.
    pub(super) fn close(self) {}

    /// Runs a step and describes its result and what the named files look like then.
    ///
    /// # Errors
    ///
    /// When the tree contradicts itself, whatever the other one says.
    pub(super) fn run(&mut self, step: &Step) -> Result<String> {
        let outcome = acting_as(step.user, || self.execute(&step.op))?;
        if let Op::SeekData { slot, at } | Op::SeekHole { slot, at } = step.op {
            self.check_holes(slot, at)?;
        }
        let mut text = match outcome {
            Ok(text) => format!("ok {text}"),
            Err(errno) => name(errno),
        };
        for path in paths_of(&step.op) {
            let stat = rustix::fs::lstat(self.root.join(path));
            text += &format!(" | {path}: {}", stat.map_or_else(name, |s| self.stat(&s)));
        }
        Ok(text)
    }

    fn fd(&self, slot: usize) -> rustix::io::Result<&OwnedFd> {
        self.slots[slot].as_ref().ok_or(Errno::BADF)
    }

    fn execute(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Open {
                slot,
                path,
                flags,
                mode,
            } => {
                self.slots[*slot] = None;
                let flags = OFlags::from_bits_retain(*flags) | OFlags::CLOEXEC;
                let mode = Mode::from_raw_mode(*mode);
                self.slots[*slot] = Some(rustix::fs::open(self.root.join(path), flags, mode)?);
                done(())
            }
            Op::Close { slot } => {
                self.slots[*slot] = None;
                done(())
            }
            Op::Mkdir { .. }
            | Op::Mknod { .. }
            | Op::Symlink { .. }
            | Op::Link { .. }
            | Op::LinkOpen { .. }
            | Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Rename { .. } => self.change_name(op),
            Op::Chmod { .. }
            | Op::ChmodOpen { .. }
            | Op::Chown { .. }
            | Op::Utimens { .. }
            | Op::Truncate { .. } => self.change_attributes(op),
            Op::SetXattr { .. }
            | Op::GetXattr { .. }
            | Op::ListXattr { .. }
            | Op::RemoveXattr { .. } => self.xattr(op),
            Op::ReadDir { .. }
            | Op::ReadLink { .. }
            | Op::Access { .. }
            | Op::Stat { .. }
            | Op::StatOpen { .. }
            | Op::StatFs { .. } => self.look(op),
            _ => self.data(op),
        }
    }

    fn change_name(&self, op: &Op) -> Outcome {
        let at = |path: &String| self.root.join(path);
        match op {
            Op::Mkdir { path, mode } => {
                done(rustix::fs::mkdir(at(path), Mode::from_raw_mode(*mode))?)
            }
            Op::Mknod {
                path,
                kind,
                mode,
                minor,
            } => {
                let kind = FileType::from_raw_mode(*kind);
                let device = makedev(1, *minor);
                let mode = Mode::from_raw_mode(*mode);
                done(rustix::fs::mknodat(CWD, at(path), kind, mode, device)?)
            }
            Op::Symlink { target, path } => done(rustix::fs::symlink(target.as_str(), at(path))?),
            Op::Link { from, to, follow } => {
                let flags = if *follow {
                    AtFlags::SYMLINK_FOLLOW
                } else {
                    AtFlags::empty()
                };
                done(rustix::fs::linkat(CWD, at(from), CWD, at(to), flags)?)
            }
            Op::LinkOpen { slot, to } => {
                use std::os::fd::AsRawFd as _;
                let from = format!("/proc/self/fd/{}", self.fd(*slot)?.as_raw_fd());
                done(rustix::fs::linkat(
                    CWD,
                    from,
                    CWD,
                    at(to),
                    AtFlags::SYMLINK_FOLLOW,
                )?)
            }
            Op::Unlink { path } => done(rustix::fs::unlink(at(path))?),
            Op::Rmdir { path } => done(rustix::fs::rmdir(at(path))?),
            Op::Rename { from, to, flags } => {
                let flags = RenameFlags::from_bits_retain(*flags);
                done(rustix::fs::renameat_with(
                    CWD,
                    at(from),
                    CWD,
                    at(to),
                    flags,
                )?)
            }
            other => unreachable!("{other:?} changes no name"),
        }
    }

    fn change_attributes(&self, op: &Op) -> Outcome {
        let at = |path: &String| self.root.join(path);
        match op {
            Op::Chmod { path, mode } => {
                done(rustix::fs::chmod(at(path), Mode::from_raw_mode(*mode))?)
            }
            Op::ChmodOpen { slot, mode } => done(rustix::fs::fchmod(
                self.fd(*slot)?,
                Mode::from_raw_mode(*mode),
            )?),
            Op::Chown {
                path,
                uid,
                gid,
                follow,
            } => {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                done(rustix::fs::chownat(
                    CWD,
                    at(path),
                    uid,
                    gid,
                    at_flags(*follow),
                )?)
            }
            Op::Utimens {
                path,
                atime,
                mtime,
                follow,
            } => {
                let times = Timestamps {
                    last_access: timespec(*atime),
                    last_modification: timespec(*mtime),
                };
                done(rustix::fs::utimensat(
                    CWD,
                    at(path),
                    &times,
                    at_flags(*follow),
                )?)
            }
            Op::Truncate { path, len } => {
                // There is no truncate by path in rustix; opening for it asks the same permission.
                let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = rustix::fs::open(at(path), flags, Mode::empty())?;
                done(rustix::fs::ftruncate(file, *len)?)
            }
            other => unreachable!("{other:?} changes no attribute"),
        }
    }

    fn data(&self, op: &Op) -> Outcome {
        match op {
            Op::TruncateOpen { slot, len } => done(rustix::fs::ftruncate(self.fd(*slot)?, *len)?),
            Op::Write {
                slot,
                at,
                len,
                fill,
            } => {
                let mut bytes = vec![0; *len];
                Rng::new(*fill).fill(&mut bytes);
                done(rustix::io::pwrite(self.fd(*slot)?, &bytes, *at)?)
            }
            Op::Read { slot, at, len } => {
                let mut bytes = vec![0; *len];
                let length = rustix::io::pread(self.fd(*slot)?, &mut bytes[..], *at)?;
                done((length, xxh3_64(&bytes[..length])))
            }
            Op::Allocate {
                slot,
                mode,
                at,
                len,
            } => {
                let mode = FallocateFlags::from_bits_retain(*mode);
                done(rustix::fs::fallocate(self.fd(*slot)?, mode, *at, *len)?)
            }
            // The meaning of a position in a folder or device differs between file systems.
            Op::SeekData { slot, .. } | Op::SeekHole { slot, .. } if !self.is_regular(*slot)? => {
                done("no file")
            }
            // Where data and holes are is the file system's choice; that there are none is not.
            Op::SeekData { slot, at } => {
                match rustix::fs::seek(self.fd(*slot)?, SeekFrom::Data(*at)) {
                    Err(Errno::NXIO) if !self.beyond_end(*slot, *at)? => done("anywhere"),
                    other => done(other.map(|_| "anywhere")?),
                }
            }
            Op::SeekHole { slot, at } => {
                done(rustix::fs::seek(self.fd(*slot)?, SeekFrom::Hole(*at)).map(|_| "anywhere")?)
            }
            Op::CopyRange {
                from,
                from_at,
                to,
                to_at,
                len,
            } => {
                let (mut from_at, mut to_at) = (*from_at, *to_at);
                let (from, to) = (self.fd(*from)?, self.fd(*to)?);
                let copied = rustix::fs::copy_file_range(
                    from,
                    Some(&mut from_at),
                    to,
                    Some(&mut to_at),
                    *len,
                )?;
                done((copied, from_at, to_at))
            }
            Op::Sync {
                slot,
                data_only: true,
            } => done(rustix::fs::fdatasync(self.fd(*slot)?)?),
            Op::Sync { slot, .. } => done(rustix::fs::fsync(self.fd(*slot)?)?),
            other => unreachable!("{other:?} moves no data"),
        }
    }

    fn is_regular(&self, slot: usize) -> rustix::io::Result<bool> {
        let stat = rustix::fs::fstat(self.fd(slot)?)?;
        Ok(FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
    }

    fn beyond_end(&self, slot: usize, at: u64) -> rustix::io::Result<bool> {
        Ok(at >= rustix::fs::fstat(self.fd(slot)?)?.st_size.unsigned_abs())
    }

    /// What is said to be a hole reads as zeros; after a hole comes data or the end.
    fn check_holes(&self, slot: usize, at: u64) -> Result<()> {
        let Ok(fd) = self.fd(slot) else { return Ok(()) };
        let stat = rustix::fs::fstat(fd)?;
        let size = stat.st_size.unsigned_abs();
        let write_only = rustix::fs::fcntl_getfl(fd)?.contains(OFlags::WRONLY);
        if !self.is_regular(slot)? || at >= size || write_only {
            return Ok(());
        }
        let hole = rustix::fs::seek(fd, SeekFrom::Hole(at))?;
        ensure!(
            at <= hole && hole <= size,
            "hole at {hole}, asked from {at}, size {size}"
        );
        let data = match rustix::fs::seek(fd, SeekFrom::Data(hole)) {
            Ok(data) => data,
            Err(Errno::NXIO) => size,
            Err(error) => return Err(error.into()),
        };
        ensure!(
            hole <= data && data <= size,
            "data at {data}, asked from {hole}, size {size}"
        );
        let length = usize::try_from((data - hole).min(1 << 20))?;
        let mut bytes = vec![0; length];
        let length = rustix::io::pread(fd, &mut bytes[..], hole)?;
        ensure!(
            bytes[..length].iter().all(|&byte| byte == 0),
            "bytes in the hole at {hole}"
        );
        Ok(())
    }

    fn xattr(&self, op: &Op) -> Outcome {
        let at = |path: &String| self.root.join(path);
        let mut buffer = vec![0_u8; 65536];
        match op {
            Op::SetXattr {
                path,
                name,
                value,
                flags,
            } => {
                let flags = XattrFlags::from_bits_retain(*flags);
                done(rustix::fs::lsetxattr(
                    at(path),
                    name.as_str(),
                    value,
                    flags,
                )?)
            }
            Op::GetXattr { path, name } => {
                let length = rustix::fs::lgetxattr(at(path), name.as_str(), &mut buffer)?;
                Ok(hex(&buffer[..length]))
            }
            Op::ListXattr { path } => {
                let length = rustix::fs::llistxattr(at(path), &mut buffer)?;
                let names: BTreeSet<String> = buffer[..length]
                    .split(|&byte| byte == 0)
                    .map(|name| String::from_utf8_lossy(name).into_owned())
                    .collect();
                done(names)
            }
            Op::RemoveXattr { path, name } => {
                done(rustix::fs::lremovexattr(at(path), name.as_str())?)
            }
            other => unreachable!("{other:?} is about no attribute"),
        }
    }

    fn look(&self, op: &Op) -> Outcome {
        let at = |path: &String| self.root.join(path);
        match op {
            Op::ReadDir { path } => self.read_dir(path),
            Op::ReadLink { path } => done(rustix::fs::readlink(at(path), Vec::new())?),
            Op::Access { path, mode } => {
                let mode = Access::from_bits_retain(*mode);
                done(rustix::fs::accessat(CWD, at(path), mode, AtFlags::EACCESS)?)
            }
            Op::Stat { path, follow } => {
                let stat = rustix::fs::statat(CWD, at(path), at_flags(*follow))?;
                Ok(self.stat(&stat))
            }
            Op::StatOpen { slot } => Ok(self.stat(&rustix::fs::fstat(self.fd(*slot)?)?)),
            Op::StatFs { path } => {
                let stat = rustix::fs::statvfs(at(path))?;
                let sane = stat.f_bavail <= stat.f_bfree
                    && stat.f_bfree <= stat.f_blocks
                    && stat.f_namemax == 255;
                done(sane)
            }
            other => unreachable!("{other:?} changes something"),
        }
    }

    /// Names and types, sorted; types that a listing leaves open are left out.
    fn read_dir(&self, path: &str) -> Outcome {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(self.root.join(path), flags, Mode::empty())?;
        let mut names = Vec::new();
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            names.push(format!("{:?} {:?}", entry.file_name(), entry.file_type()));
        }
        names.sort();
        done(names)
    }

    fn stat(&self, stat: &Stat) -> String {
        let kind = FileType::from_raw_mode(stat.st_mode);
        let size = if kind == FileType::Directory {
            0
        } else {
            stat.st_size
        };
        let time = |seconds: i64, nanos| {
            if seconds >= self.now_from {
                "now".to_owned()
            } else {
                format!("{seconds}.{nanos:09}")
            }
        };
        format!(
            "{:o} {}:{} links {} size {size} device {:x} atime {} mtime {} ctime {}",
            meaning_of(stat.st_mode),
            stat.st_uid,
            stat.st_gid,
            stat.st_nlink,
            stat.st_rdev,
            time(stat.st_atime, stat.st_atime_nsec),
            time(stat.st_mtime, stat.st_mtime_nsec),
            time(stat.st_ctime, stat.st_ctime_nsec),
        )
    }
}

fn name(errno: Errno) -> String {
    format!("{} ({errno})", errno.raw_os_error())
}

fn done(value: impl std::fmt::Debug) -> Outcome {
    Ok(format!("{value:?}"))
}

fn timespec(time: NewTime) -> Timespec {
    match time {
        NewTime::Now => Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        },
        NewTime::Omit => Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        NewTime::At(tv_sec, tv_nsec) => Timespec { tv_sec, tv_nsec },
    }
}
