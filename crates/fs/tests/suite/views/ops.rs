//! Operations on one view: drawn from a seed, done on a file system and on a plain copy.

use super::plain::Plain;
use crate::common::*;
use crate::twin::{Id, Twin};
use stitch_base::Ino;
use stitch_base::random::Rng;
use stitch_fs::{
    ClearSetId, FileKind, FileSystem, FsError, FsResult, RenameMode, SetAttr, WriteOptions,
    XattrMode,
};

pub(super) const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const XATTRS: [&str; 2] = ["user.x", "user.y"];
const LENGTHS: [usize; 5] = [1, 300, 4096, 9000, 40_000];
const OFFSETS: [usize; 4] = [0, 0, 4096, 20_001];
const TARGET: &[u8] = b"target";

/// A name in a directory.
pub(super) type Place = (Id, &'static str);

#[derive(Clone, Debug)]
pub(super) enum Op {
    Make {
        at: Place,
        kind: FileKind,
    },
    Write {
        id: Id,
        offset: usize,
        len: usize,
        byte: u8,
    },
    Truncate {
        id: Id,
        size: usize,
    },
    SetPerm {
        id: Id,
        perm: u16,
    },
    SetXattr {
        id: Id,
        name: &'static str,
        byte: u8,
        len: usize,
    },
    RemoveXattr {
        id: Id,
        name: &'static str,
    },
    Unlink {
        at: Place,
    },
    RemoveDir {
        at: Place,
    },
    Rename {
        from: Place,
        to: Place,
        mode: RenameMode,
    },
    Link {
        id: Id,
        at: Place,
    },
}

impl Op {
    /// Reports whether it renames a node to itself, which changes nothing.
    pub(super) fn renames_to_itself(&self, twin: &Twin) -> bool {
        let Self::Rename { from, to, .. } = self else {
            return false;
        };
        let (source, target) = (twin.lookup(from.0, from.1), twin.lookup(to.0, to.1));
        source.is_ok() && source.ok() == target.ok()
    }
}

pub(super) fn pick<T: Copy>(of: &[T], rng: &mut Rng) -> T {
    of[usize::try_from(rng.below(of.len() as u64)).expect("an index")]
}

/// Draws an operation below the directory of a view. `unique` is another number each time: what is
/// written is never what was there.
pub(super) fn draw(plain: &Plain, grafts: &[Id], unique: u16, rng: &mut Rng) -> Op {
    let mut ids: Vec<Id> = plain.paths().into_keys().collect();
    ids.retain(|id| !grafts.contains(id));
    let dirs: Vec<Id> = ids.iter().copied().filter(|id| plain.is_dir(*id)).collect();
    let place = |rng: &mut Rng| (pick(&dirs, rng), pick(&NAMES, rng));
    let id = pick(&ids, rng);
    let byte = unique.to_le_bytes()[0];
    match rng.below(20) {
        0..6 => Op::Make {
            at: place(rng),
            kind: pick(&KINDS, rng),
        },
        6..10 => Op::Write {
            id,
            offset: pick(&OFFSETS, rng),
            len: pick(&LENGTHS, rng),
            byte,
        },
        10 => Op::Truncate {
            id,
            size: pick(&LENGTHS, rng),
        },
        // Others may pass through every directory.
        11 => Op::SetPerm {
            id,
            perm: 0o001 | ((unique << 1) & 0o776),
        },
        12 => Op::SetXattr {
            id,
            name: pick(&XATTRS, rng),
            byte,
            len: pick(&[3, 3000], rng),
        },
        13 => Op::RemoveXattr {
            id,
            name: pick(&XATTRS, rng),
        },
        14 => Op::Unlink { at: place(rng) },
        15 => Op::RemoveDir { at: place(rng) },
        16..19 => Op::Rename {
            from: place(rng),
            to: place(rng),
            mode: pick(&MODES, rng),
        },
        _ => Op::Link { id, at: place(rng) },
    }
}

const KINDS: [FileKind; 6] = [
    FileKind::Regular,
    FileKind::Regular,
    FileKind::Regular,
    FileKind::Directory,
    FileKind::Directory,
    FileKind::Symlink,
];
const MODES: [RenameMode; 4] = [
    RenameMode::Replace,
    RenameMode::Replace,
    RenameMode::NoReplace,
    RenameMode::Exchange,
];

fn bytes(byte: u8, len: usize) -> Vec<u8> {
    let mut out = vec![byte; len];
    out[len / 2..].fill(byte.wrapping_add(1));
    out
}

fn sized(size: usize) -> SetAttr {
    SetAttr {
        size: Some(size as u64),
        ..SetAttr::default()
    }
}

fn of_perm(perm: u16) -> SetAttr {
    SetAttr {
        perm: Some(u32::from(perm)),
        ..SetAttr::default()
    }
}

/// Does an operation on a plain copy. A node that is made gets the number that is next.
pub(super) fn apply(twin: &mut Twin, op: &Op) -> FsResult<()> {
    match *op {
        Op::Make { at, kind } => {
            let (perm, target) = match kind {
                FileKind::Directory => (0o755, &b""[..]),
                FileKind::Symlink => (0o777, TARGET),
                _ => (0o644, &b""[..]),
            };
            twin.make(at.0, at.1, kind, perm, target).map(drop)
        }
        Op::Write {
            id,
            offset,
            len,
            byte,
        } => twin.write(id, offset, &bytes(byte, len), ClearSetId::None),
        Op::Truncate { id, size } => twin.set_attr(id, &sized(size)),
        Op::SetPerm { id, perm } => twin.set_attr(id, &of_perm(perm)),
        Op::SetXattr {
            id,
            name,
            byte,
            len,
        } => twin.set_xattr(id, name, &bytes(byte, len)),
        Op::RemoveXattr { id, name } => twin.remove_xattr(id, name),
        Op::Unlink { at } => twin.unlink(at.0, at.1),
        Op::RemoveDir { at } => twin.remove_dir(at.0, at.1),
        Op::Rename { from, to, mode } => twin.rename(from, to, mode),
        Op::Link { id, at } => twin.link(id, at.0, at.1),
    }
}

/// A file system whose nodes are found by the paths of its plain copy.
pub(super) struct Walker<'a> {
    pub(super) fs: &'a FileSystem,
    /// The directory that the paths begin at.
    pub(super) root: Ino,
    pub(super) plain: &'a Plain,
}

impl Walker<'_> {
    /// Looks a node up and does something with its number. It is forgotten afterwards.
    pub(super) fn with<T>(&self, id: Id, body: impl FnOnce(Ino) -> FsResult<T>) -> FsResult<T> {
        let path = self.plain.paths().remove(&id).ok_or(FsError::NotFound)?;
        let (mut ino, mut looked_up) = (self.root, Vec::new());
        for name in &path {
            match self.fs.lookup(at(ino, name)) {
                Ok(attr) => ino = attr.ino,
                Err(error) => panic!("{path:?} is lost at {name:?}: {error}"),
            }
            looked_up.push(ino);
        }
        let done = body(ino);
        for ino in looked_up {
            self.fs.forget(ino, 1);
        }
        done
    }

    /// Does an operation on the file system.
    pub(super) fn run(&self, op: &Op) -> FsResult<()> {
        let fs = self.fs;
        match *op {
            Op::Make { at: place, kind } => self.with(place.0, |dir| {
                let place = at(dir, place.1);
                let made = match kind {
                    FileKind::Directory => fs.make_dir(&SUPER, place, &new(0o755)),
                    FileKind::Symlink => fs.make_symlink(&SUPER, place, TARGET),
                    _ => fs.create(&SUPER, place, &new(0o644)),
                };
                made.map(|attr| fs.forget(attr.ino, 1))
            }),
            Op::Unlink { at: place } => {
                self.with(place.0, |dir| fs.unlink(&SUPER, at(dir, place.1)))
            }
            Op::RemoveDir { at: place } => {
                self.with(place.0, |dir| fs.remove_dir(&SUPER, at(dir, place.1)))
            }
            Op::Rename { from, to, mode } => self.with(from.0, |source| {
                self.with(to.0, |target| {
                    fs.rename(&SUPER, at(source, from.1), at(target, to.1), mode)
                })
            }),
            Op::Link { id, at: place } => self.with(id, |ino| {
                self.with(place.0, |dir| {
                    let linked = fs.link(&SUPER, ino, at(dir, place.1));
                    linked.map(|attr| fs.forget(attr.ino, 1))
                })
            }),
            Op::Write { id, .. }
            | Op::Truncate { id, .. }
            | Op::SetPerm { id, .. }
            | Op::SetXattr { id, .. }
            | Op::RemoveXattr { id, .. } => self.with(id, |ino| self.change(ino, op)),
        }
    }

    fn change(&self, ino: Ino, op: &Op) -> FsResult<()> {
        let fs = self.fs;
        match *op {
            Op::Write {
                offset, len, byte, ..
            } => {
                let (bytes, options) = (bytes(byte, len), WriteOptions::default());
                fs.write(ino, offset as u64, &bytes, options).map(drop)
            }
            Op::Truncate { size, .. } => fs.set_attr(&SUPER, ino, &sized(size)).map(drop),
            Op::SetPerm { perm, .. } => fs.set_attr(&SUPER, ino, &of_perm(perm)).map(drop),
            Op::SetXattr {
                name, byte, len, ..
            } => {
                let (name, value) = (name.as_bytes(), bytes(byte, len));
                fs.set_xattr(&SUPER, ino, name, &value, XattrMode::Set, false)
            }
            Op::RemoveXattr { name, .. } => fs.remove_xattr(&SUPER, ino, name.as_bytes()),
            ref other => unreachable!("{other:?} is done by run"),
        }
    }
}
