//! Random operations over few names, so that they meet.

use rustix::fs::{AtFlags, FallocateFlags, FileType, OFlags, RenameFlags, XattrFlags};
use stitch_base::random::Rng;

use super::op::{NewTime, Op, Step};
use crate::harness::user::{NOBODY, OTHER};

/// Open files that each side has.
pub(super) const SLOTS: usize = 8;

const DIRS: [&str; 6] = ["", "d0/", "d1/", "d0/e0/", "d1/e1/", "d0/e0/f/"];
/// Paths of the folders, parents first.
const DIR_PATHS: [&str; 5] = ["d0", "d1", "d0/e0", "d1/e1", "d0/e0/f"];
/// Steps after which folders that were lost are made again.
const REPAIR_EVERY: u64 = 40;
const FILES: [&str; 8] = ["a", "b", "c", "x", "y", "s0", "s1", "Name with spaces"];
/// Names that are mostly those of folders.
const FOLDERS: [&str; 5] = ["d0", "d1", "e0", "e1", "f"];
const XATTRS: [&str; 8] = [
    "user.a",
    "user.b",
    "user.long-name-of-an-attribute",
    "trusted.t",
    "security.test",
    "user.",
    "unknown.x",
    "system.posix_acl_access",
];
const MODES: [u32; 12] = [
    0o644, 0o600, 0o666, 0o777, 0o755, 0o700, 0o000, 0o4755, 0o2755, 0o1777, 0o6777, 0o2770,
];

/// A source of steps; the same seed gives the same steps.
pub(super) struct Generator {
    rng: Rng,
    count: u64,
    /// Steps to give before any other, last first.
    planned: Vec<Op>,
}

impl Generator {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            count: 0,
            planned: Vec::new(),
        }
    }

    pub(super) fn step(&mut self) -> Step {
        if self.count.is_multiple_of(REPAIR_EVERY) {
            self.plan_repair();
        }
        self.count += 1;
        if let Some(op) = self.planned.pop() {
            return Step { user: None, op };
        }
        let user = match self.rng.below(10) {
            0 | 1 => Some(NOBODY),
            2 => Some(OTHER),
            _ => None,
        };
        Step {
            user,
            op: self.op(),
        }
    }

    /// Random renames and removals leave little to work on: folders come back, files are opened.
    fn plan_repair(&mut self) {
        for slot in 0..3 {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NONBLOCK;
            let path = format!("{}{}", self.pick(&DIRS), self.pick(&FILES));
            self.planned.push(Op::Open {
                slot,
                path,
                flags: flags.bits(),
                mode: 0o666,
            });
        }
        for path in DIR_PATHS.into_iter().rev() {
            self.planned.push(Op::Mkdir {
                path: path.to_owned(),
                mode: 0o777,
            });
            self.planned.push(Op::Unlink {
                path: path.to_owned(),
            });
        }
    }

    fn op(&mut self) -> Op {
        match self.rng.below(100) {
            0..=17 => self.open(),
            18..=37 => self.data(),
            38..=61 => self.name(),
            62..=77 => self.attributes(),
            78..=87 => self.xattr(),
            _ => self.look(),
        }
    }

    fn open(&mut self) -> Op {
        let slot = self.slot();
        if self.rng.one_in(8) {
            return Op::Close { slot };
        }
        let mut flags = OFlags::NONBLOCK;
        flags |= *self.pick(&[OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR, OFlags::RDWR]);
        if !self.rng.one_in(4) {
            flags |= OFlags::CREATE;
        }
        for (flag, odds) in [
            (OFlags::EXCL, 10),
            (OFlags::TRUNC, 8),
            (OFlags::APPEND, 6),
            (OFlags::NOFOLLOW, 8),
            (OFlags::DIRECTORY, 30),
        ] {
            if self.rng.one_in(odds) {
                flags |= flag;
            }
        }
        if self.rng.one_in(12) {
            flags -= OFlags::CREATE | OFlags::DIRECTORY;
            flags |= OFlags::TMPFILE;
            let path = format!("{}.", self.pick(&DIRS));
            return Op::Open {
                slot,
                path,
                flags: flags.bits(),
                mode: self.mode(),
            };
        }
        Op::Open {
            slot,
            path: self.path(),
            flags: flags.bits(),
            mode: self.mode(),
        }
    }

    fn data(&mut self) -> Op {
        let slot = self.slot();
        let at = self.offset();
        let len = self.length();
        match self.rng.below(18) {
            0..=6 => Op::Write {
                slot,
                at,
                len,
                fill: self.rng.next_u64(),
            },
            7..=9 => Op::Read { slot, at, len },
            10 => Op::TruncateOpen { slot, len: at },
            11 | 12 => self.allocate(slot, at, len as u64),
            13 => Op::SeekData { slot, at },
            14 => Op::SeekHole { slot, at },
            15 | 16 => Op::CopyRange {
                from: self.slot(),
                from_at: self.offset(),
                to: slot,
                to_at: at,
                len,
            },
            _ => Op::Sync {
                slot,
                data_only: self.rng.one_in(2),
            },
        }
    }

    fn allocate(&mut self, slot: usize, at: u64, len: u64) -> Op {
        let keep = FallocateFlags::KEEP_SIZE;
        let mode = *self.pick(&[
            FallocateFlags::empty(),
            keep,
            FallocateFlags::PUNCH_HOLE | keep,
            FallocateFlags::PUNCH_HOLE | keep,
            FallocateFlags::PUNCH_HOLE,
            FallocateFlags::ZERO_RANGE,
            FallocateFlags::ZERO_RANGE | keep,
        ]);
        // ext4 takes real space for what it allocates.
        Op::Allocate {
            slot,
            mode: mode.bits(),
            at: at % (1 << 24),
            len,
        }
    }

    fn name(&mut self) -> Op {
        let path = self.path();
        match self.rng.below(24) {
            0..=4 => Op::Mkdir {
                path,
                mode: self.mode(),
            },
            5 | 6 => {
                let kind = *self.pick(&[
                    FileType::Fifo,
                    FileType::Socket,
                    FileType::CharacterDevice,
                    FileType::BlockDevice,
                    FileType::RegularFile,
                ]);
                let minor = *self.pick(&[0, 3, 5, 259, 70000]);
                Op::Mknod {
                    path,
                    kind: kind.as_raw_mode(),
                    mode: self.mode(),
                    minor,
                }
            }
            7 | 8 => Op::Symlink {
                target: self.target(),
                path,
            },
            9 | 10 => Op::Link {
                from: self.path(),
                to: path,
                follow: self.rng.one_in(3),
            },
            11 => Op::LinkOpen {
                slot: self.slot(),
                to: path,
            },
            12..=14 => Op::Unlink { path },
            15 | 16 => Op::Rmdir {
                path: self.folder(),
            },
            _ => {
                let none = RenameFlags::empty();
                let flags = *self.pick(&[
                    none,
                    none,
                    none,
                    RenameFlags::NOREPLACE,
                    RenameFlags::EXCHANGE,
                    RenameFlags::EXCHANGE,
                    RenameFlags::WHITEOUT,
                    RenameFlags::EXCHANGE | RenameFlags::NOREPLACE,
                ]);
                Op::Rename {
                    from: self.path(),
                    to: path,
                    flags: flags.bits(),
                }
            }
        }
    }

    fn attributes(&mut self) -> Op {
        let path = self.path();
        match self.rng.below(12) {
            0..=2 => Op::Chmod {
                path,
                mode: self.mode(),
            },
            3 => Op::ChmodOpen {
                slot: self.slot(),
                mode: self.mode(),
            },
            4..=6 => self.chown(path),
            7..=9 => Op::Utimens {
                path,
                atime: self.time(),
                mtime: self.time(),
                follow: self.rng.one_in(2),
            },
            _ => Op::Truncate {
                path,
                len: self.offset(),
            },
        }
    }

    /// A change of owner, of group, or of both. One that names neither looks to a FUSE file system
    /// like the kernel's question before a write, so what ext4 does then cannot be done.
    fn chown(&mut self, path: String) -> Op {
        let (uid, mut gid) = (self.id(), self.id());
        if uid.is_none() && gid.is_none() {
            gid = Some(NOBODY.gid);
        }
        let follow = self.rng.one_in(2);
        Op::Chown {
            path,
            uid,
            gid,
            follow,
        }
    }

    fn xattr(&mut self) -> Op {
        let path = self.path();
        let name = (*self.pick(&XATTRS)).to_owned();
        match self.rng.below(12) {
            0..=3 => {
                let len = self.rng.below(120) as usize;
                let mut value = vec![0; len];
                self.rng.fill(&mut value);
                let flags = *self.pick(&[
                    XattrFlags::empty(),
                    XattrFlags::empty(),
                    XattrFlags::CREATE,
                    XattrFlags::REPLACE,
                ]);
                Op::SetXattr {
                    path,
                    name,
                    value,
                    flags: flags.bits(),
                }
            }
            4 | 5 => {
                let name = *self.pick(&["system.posix_acl_access", "system.posix_acl_default"]);
                Op::SetXattr {
                    path,
                    name: name.to_owned(),
                    value: self.acl(),
                    flags: 0,
                }
            }
            6 | 7 => Op::GetXattr { path, name },
            8 => {
                let name = *self.pick(&["system.posix_acl_access", "system.posix_acl_default"]);
                Op::RemoveXattr {
                    path,
                    name: name.to_owned(),
                }
            }
            9 => Op::RemoveXattr { path, name },
            _ => Op::ListXattr { path },
        }
    }

    /// An access control list: user, named user, group, named group, mask, others.
    fn acl(&mut self) -> Vec<u8> {
        let no_id = u32::MAX;
        let mut entries = vec![(0x01_u16, no_id)];
        let (named_user, named_group) = (self.rng.one_in(2), self.rng.one_in(2));
        if named_user {
            entries.push((0x02, NOBODY.uid));
        }
        entries.push((0x04, no_id));
        if named_group {
            entries.push((0x08, OTHER.gid));
        }
        // A mask must be there with named entries, unless the list is to be refused.
        if named_user || named_group || self.rng.one_in(4) {
            entries.push((0x10, no_id));
        }
        if !self.rng.one_in(10) {
            entries.push((0x20, no_id));
        }
        let mut bytes = 2_u32.to_le_bytes().to_vec();
        for (tag, id) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(((self.rng.below(8)) as u16).to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    fn look(&mut self) -> Op {
        let path = self.path();
        match self.rng.below(10) {
            0..=2 => Op::ReadDir {
                path: format!("{}.", self.pick(&DIRS)),
            },
            3 => Op::ReadLink { path },
            4 | 5 => Op::Access {
                path,
                mode: self.rng.below(8) as u32,
            },
            6 | 7 => Op::Stat {
                path,
                follow: self.rng.one_in(2),
            },
            8 => Op::StatOpen { slot: self.slot() },
            _ => Op::StatFs { path },
        }
    }

    fn pick<'t, T>(&mut self, table: &'t [T]) -> &'t T {
        &table[self.rng.below(table.len() as u64) as usize]
    }

    fn slot(&mut self) -> usize {
        self.rng.below(SLOTS as u64) as usize
    }

    fn path(&mut self) -> String {
        let dir = if self.rng.one_in(3) {
            ""
        } else {
            self.pick(&DIRS)
        };
        match self.rng.below(90) {
            0 => format!("{dir}{}", "n".repeat(255)),
            1 => format!("{dir}{}", "n".repeat(256)),
            2 => format!("{dir}{}/", self.name_of(6)),
            3 => format!("{dir}{}/.", self.name_of(2)),
            4 => format!("{dir}{}/..", self.name_of(2)),
            5 => format!("s0/{}", self.pick(&FILES)),
            _ => format!("{dir}{}", self.name_of(6)),
        }
    }

    fn folder(&mut self) -> String {
        if self.rng.one_in(6) {
            return self.path();
        }
        format!("{}{}", self.pick(&DIRS), self.pick(&FOLDERS))
    }

    /// A name, once in `odds` times one of a folder.
    fn name_of(&mut self, odds: u64) -> &'static str {
        let table: &[&'static str] = if self.rng.one_in(odds) {
            &FOLDERS
        } else {
            &FILES
        };
        self.pick::<&str>(table)
    }

    fn target(&mut self) -> String {
        match self.rng.below(8) {
            0 => "t".repeat(4095),
            1 => format!("../{}", self.name_of(4)),
            2 => ".".to_owned(),
            3 => "s1".to_owned(),
            _ => format!("{}{}", self.pick(&DIRS), self.name_of(4)),
        }
    }

    fn mode(&mut self) -> u32 {
        *self.pick(&MODES)
    }

    fn id(&mut self) -> Option<u32> {
        *self.pick(&[
            None,
            Some(0),
            Some(NOBODY.uid),
            Some(OTHER.uid),
            Some(OTHER.gid),
        ])
    }

    fn time(&mut self) -> NewTime {
        match self.rng.below(6) {
            0 => NewTime::Now,
            1 => NewTime::Omit,
            2 => NewTime::At(-(self.rng.below(1 << 30) as i64), self.nanos()),
            _ => NewTime::At(self.rng.below(1_500_000_000) as i64, self.nanos()),
        }
    }

    fn nanos(&mut self) -> i64 {
        self.rng.below(1_000_000_000) as i64
    }

    /// Around the sizes where something changes: inline data, chunks, large and huge offsets.
    fn offset(&mut self) -> u64 {
        let near = |rng: &mut Rng, edge: u64| (edge + rng.below(9)).saturating_sub(4);
        match self.rng.below(20) {
            0..=2 => 0,
            3..=5 => self.rng.below(300),
            6..=8 => near(&mut self.rng, 4096),
            9 | 10 => near(&mut self.rng, 8192),
            11 | 12 => near(&mut self.rng, 65536),
            13 => near(&mut self.rng, 131_072),
            14..=17 => self.rng.below(300_000),
            18 => near(&mut self.rng, 1 << 20),
            _ => near(&mut self.rng, 1 << 40),
        }
    }

    fn length(&mut self) -> usize {
        match self.rng.below(10) {
            0 => 0,
            1..=3 => self.rng.below(200) as usize,
            4..=6 => self.rng.below(5000) as usize,
            7 => 4096,
            8 => 65536,
            _ => self.rng.below(200_000) as usize,
        }
    }
}

/// The flag that makes calls act on a symlink itself.
pub(super) fn at_flags(follow: bool) -> AtFlags {
    if follow {
        AtFlags::empty()
    } else {
        AtFlags::SYMLINK_NOFOLLOW
    }
}
