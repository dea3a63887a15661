//! Operations on a file system: made from seeds, done on any [`FileSystem`].

use super::atomic::{self, StagedWrites};
use super::past::Pages;
use super::tree::{Tree, join, with_name, with_path};
use std::collections::BTreeSet;
use stitch_base::clock::Timestamp;
use stitch_base::random::Rng;
use stitch_fs::{
    Caller, ClearSetId, FallocateMode, FileKind, FileSystem, FsResult, NewNode, RenameMode,
    SetAttr, SetTime, WriteOptions, XattrMode,
};

/// An operation and its time.
#[derive(Clone, Debug)]
pub struct FsOp {
    /// Seconds on the clock.
    pub at: u64,
    /// What is done.
    pub what: What,
}

/// What is done. Paths are from the root, without a slash before them.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the names are those of the operations")]
pub enum What {
    Create {
        path: String,
        perm: u32,
    },
    MakeDir {
        path: String,
    },
    MakeNode {
        path: String,
        kind: FileKind,
    },
    Symlink {
        path: String,
        len: usize,
    },
    Link {
        source: String,
        target: String,
    },
    Unlink {
        path: String,
        is_open: bool,
    },
    RemoveDir {
        path: String,
    },
    RemoveTree {
        path: String,
    },
    Rename {
        source: String,
        target: String,
        mode: RenameMode,
    },
    Write {
        path: String,
        offset: u64,
        len: usize,
        seed: u64,
        append: bool,
    },
    Truncate {
        path: String,
        size: u64,
    },
    SetMode {
        path: String,
        perm: u32,
    },
    SetOwner {
        path: String,
        uid: u32,
        gid: u32,
    },
    SetTimes {
        path: String,
        seconds: i64,
    },
    SetXattr {
        path: String,
        name: String,
        len: usize,
        seed: u64,
    },
    RemoveXattr {
        path: String,
        name: String,
    },
    Fallocate {
        path: String,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    },
    Copy {
        source: String,
        target: String,
        offset: u64,
        len: u64,
    },
    /// As a file handle is opened.
    OpenNumber {
        path: String,
    },
    SyncFile {
        path: String,
    },
    /// Changes of a file that are committed together, or given up.
    AtomicWrite(StagedWrites),
    Sync,
    Reclaim,
    Step,
    /// Of an operation that failed a part of the contents was done: these are found. Only a model
    /// does it.
    Found {
        path: String,
        pages: Pages,
    },
}

const PAGE: u64 = 4096;
const NAMES: [&str; 7] = ["a", "b", "c", "d", "e", "f", LONG];
const LONG: &str = "a name that is rather longer than others, as names of music and of papers are, \
    so that keys of very different lengths meet in one directory, and blocks hold few of them";
/// Share of writes that are long, and their longest, of copies too: one step of the smallest store
/// here.
const LONG_WRITES_ONE_IN: u64 = 16;
const LONG_WRITE_BYTES_MAX: u64 = 100_000;
/// Entries of removed trees that one `Reclaim` removes, about: so that crashes find some left.
const EMPTIED: u64 = 2;
const XATTRS: [&str; 3] = ["user.one", "user.two", "trusted.three"];

pub(super) fn small(rng: &mut Rng, bound: u64) -> usize {
    usize::try_from(rng.below(bound)).expect("a small number")
}

/// A number below one of these.
fn one_of(bounds: &[u64], rng: &mut Rng) -> usize {
    let bound = bounds[small(rng, bounds.len() as u64)];
    small(rng, bound)
}

pub(super) fn pick<'a>(items: &[&'a String], rng: &mut Rng) -> &'a String {
    items[small(rng, items.len() as u64)]
}

/// Writes one to four pages to a file that is no longer than a few times as much, if there is one.
pub(super) fn write_some(tree: &Tree, at: u64, rng: &mut Rng) -> Option<FsOp> {
    let files = tree.iter();
    let files = files.filter(|(_, node)| node.attr.kind == FileKind::Regular);
    let files: Vec<&String> = files.map(|(path, _)| path).collect();
    if files.is_empty() {
        return None;
    }
    let what = What::Write {
        path: pick(&files, rng).clone(),
        offset: rng.below(8) * 4096,
        len: 4096 + small(rng, 3 * 4096),
        seed: rng.next_u64(),
        append: false,
    };
    Some(FsOp { at, what })
}

/// A next operation; now and then one that must be refused.
pub(super) fn generate(tree: &Tree, at: u64, rng: &mut Rng) -> FsOp {
    let of = |kind: FileKind| -> Vec<&String> {
        tree.iter()
            .filter(|(_, node)| node.attr.kind == kind)
            .map(|(path, _)| path)
            .collect()
    };
    let dirs = of(FileKind::Directory);
    let files = of(FileKind::Regular);
    let all: Vec<&String> = tree.keys().filter(|path| !path.is_empty()).collect();
    let new = join(pick(&dirs, rng), NAMES[small(rng, NAMES.len() as u64)]);
    let what = if all.is_empty() || rng.one_in(4) {
        make(new, rng)
    } else if !files.is_empty() && rng.one_in(3) {
        change_content(pick(&files, rng).clone(), pick(&files, rng).clone(), rng)
    } else {
        change_names(pick(&all, rng).clone(), pick(&all, rng).clone(), new, rng)
    };
    FsOp { at, what }
}

fn make(path: String, rng: &mut Rng) -> What {
    match rng.below(8) {
        0 | 1 => What::MakeDir { path },
        2 => What::Symlink {
            path,
            len: 1 + one_of(&[60, 60, 60, 4095], rng),
        },
        3 => {
            let kinds = [FileKind::Fifo, FileKind::Socket, FileKind::CharDevice];
            What::MakeNode {
                path,
                kind: kinds[small(rng, 3)],
            }
        }
        _ => What::Create {
            path,
            perm: 0o600 + u32::try_from(small(rng, 64)).expect("small"),
        },
    }
}

fn change_content(path: String, other: String, rng: &mut Rng) -> What {
    let bound = [200, 5_000, 40_000, 300_000][small(rng, 4)];
    let (offset, len) = (
        rng.below(bound),
        1 + one_of(&[100, 4096, 30_000], rng) as u64,
    );
    match rng.below(12) {
        0 => What::Truncate {
            path,
            size: if rng.one_in(3) { 0 } else { rng.below(bound) },
        },
        1 if rng.one_in(4) => What::Truncate {
            path,
            size: 1 << (20 + rng.below(40)),
        },
        2 => {
            let modes = [
                FallocateMode::PunchHole,
                FallocateMode::ZeroRange {
                    keep_size: rng.one_in(2),
                },
                FallocateMode::Allocate {
                    keep_size: rng.one_in(2),
                },
            ];
            What::Fallocate {
                path,
                mode: modes[small(rng, 3)],
                offset,
                len,
            }
        }
        // Contents are shared if the target is empty and the source is long. Else it is written.
        3 if rng.one_in(2) => What::Copy {
            source: other,
            target: path,
            offset: 0,
            len: LONG_WRITE_BYTES_MAX,
        },
        3 => What::Copy {
            source: other,
            target: path,
            offset,
            len,
        },
        4 | 5 => What::SyncFile { path },
        _ => {
            // Long ones go to their zone at once, in several extents.
            let len = if rng.one_in(LONG_WRITES_ONE_IN) {
                rng.below(LONG_WRITE_BYTES_MAX)
            } else {
                len
            };
            let len = usize::try_from(len).expect("small");
            What::Write {
                path,
                offset,
                len,
                seed: rng.next_u64(),
                append: rng.one_in(4),
            }
        }
    }
}

fn change_names(path: String, other: String, new: String, rng: &mut Rng) -> What {
    let name = XATTRS[small(rng, 3)].to_owned();
    match rng.below(16) {
        0 | 1 => What::Unlink {
            path,
            is_open: rng.one_in(3),
        },
        2 if rng.one_in(3) => What::RemoveTree { path },
        2 => What::RemoveDir { path },
        3 | 4 => {
            let modes = [
                RenameMode::Replace,
                RenameMode::NoReplace,
                RenameMode::Whiteout,
            ];
            What::Rename {
                source: path,
                target: new,
                mode: modes[small(rng, 3)],
            }
        }
        5 => What::Rename {
            source: path,
            target: other,
            mode: RenameMode::Exchange,
        },
        6 => What::Rename {
            source: path,
            target: other,
            mode: RenameMode::Replace,
        },
        7 => What::Link {
            source: path,
            target: new,
        },
        8 => What::SetMode {
            path,
            perm: u32::try_from(rng.below(0o10000)).expect("small"),
        },
        9 => What::SetOwner {
            path,
            uid: 1000,
            gid: u32::try_from(rng.below(9)).expect("small"),
        },
        10 => What::SetTimes {
            path,
            seconds: i64::try_from(rng.below(1 << 40)).expect("small"),
        },
        11 | 12 => {
            let len = one_of(&[40, 40, 40, 3000], rng);
            What::SetXattr {
                path,
                name,
                len,
                seed: rng.next_u64(),
            }
        }
        13 => What::RemoveXattr { path, name },
        14 if rng.one_in(2) => What::Reclaim,
        14 if rng.one_in(2) => What::OpenNumber { path },
        14 => What::Step,
        _ => What::Sync,
    }
}

pub(super) fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut out = vec![0; len];
    // A third is random, the rest repeats.
    let byte = seed.to_le_bytes()[0] | 1;
    out.fill(byte);
    Rng::new(seed).fill(&mut out[..len.div_ceil(3)]);
    out
}

/// Does one operation. `held` takes the inodes that stay open.
pub(super) fn run(fs: &FileSystem, op: &FsOp, held: &mut Vec<stitch_base::Ino>) -> FsResult<()> {
    let root = &Caller::ROOT;
    match &op.what {
        What::Create { path, perm } => with_name(fs, path, |at| {
            let new = NewNode {
                perm: *perm,
                umask: 0,
            };
            fs.create(root, at, &new).map(|attr| fs.forget(attr.ino, 1))
        }),
        What::MakeDir { path } => with_name(fs, path, |at| {
            let new = NewNode {
                perm: 0o755,
                umask: 0o22,
            };
            fs.make_dir(root, at, &new)
                .map(|attr| fs.forget(attr.ino, 1))
        }),
        What::MakeNode { path, kind } => with_name(fs, path, |at| {
            let new = NewNode {
                perm: 0o644,
                umask: 0,
            };
            let rdev = if *kind == FileKind::CharDevice {
                0x0105
            } else {
                0
            };
            fs.make_node(root, at, *kind, rdev, &new)
                .map(|attr| fs.forget(attr.ino, 1))
        }),
        What::Symlink { path, len } => with_name(fs, path, |at| {
            let target = vec![b't'; *len];
            fs.make_symlink(root, at, &target)
                .map(|attr| fs.forget(attr.ino, 1))
        }),
        What::Link { source, target } => with_path(fs, source, |ino| {
            with_name(fs, target, |at| {
                fs.link(root, ino, at).map(|attr| fs.forget(attr.ino, 1))
            })
        }),
        What::Unlink { path, is_open } => with_path(fs, path, |ino| {
            with_name(fs, path, |at| fs.unlink(root, at))?;
            if *is_open {
                fs.open_handle(ino)?;
                held.push(ino);
            }
            Ok(())
        }),
        What::RemoveDir { path } => with_name(fs, path, |at| fs.remove_dir(root, at)),
        What::RemoveTree { path } => with_name(fs, path, |at| fs.remove_tree(root, at, None)),
        What::Rename {
            source,
            target,
            mode,
        } => with_name(fs, source, |from| {
            with_name(fs, target, |to| fs.rename(root, from, to, *mode))
        }),
        What::Sync => fs.sync(),
        What::SyncFile { path } => with_path(fs, path, |ino| fs.sync_inode(ino)),
        What::AtomicWrite(writes) => atomic::run(fs, writes),
        What::Reclaim => {
            fs.reclaim()?;
            fs.empty_detached(EMPTIED).map(drop)
        }
        What::Step => Ok(()),
        what => change(fs, what),
    }
}

/// Gives a file of a model other contents, of the same size. The caller has set the clock to the
/// file's time of change, which stays.
pub(super) fn take_found(fs: &FileSystem, path: &str, old: &Pages, new: &Pages) -> FsResult<()> {
    with_path(fs, path, |ino| {
        let attr = fs.get_attr(ino)?;
        let offsets: BTreeSet<u64> = old.keys().chain(new.keys()).copied().collect();
        for at in offsets {
            let len = usize::try_from(PAGE.min(attr.size - at)).expect("a page");
            let mut bytes = new.get(&at).map_or_else(Vec::new, |page| page.to_vec());
            bytes.resize(len, 0);
            fs.write(ino, at, &bytes, WriteOptions::default())?;
        }
        let mtime = Some(SetTime::At(attr.mtime));
        let set = SetAttr {
            mtime,
            ..SetAttr::default()
        };
        fs.set_attr(&Caller::ROOT, ino, &set).map(drop)
    })
}

/// What a change of attributes sets, and of which path; `None` for any other operation.
fn attributes(what: &What) -> Option<(&str, SetAttr)> {
    let none = SetAttr::default();
    Some(match what {
        What::Truncate { path, size } => {
            let size = Some(*size);
            (path, SetAttr { size, ..none })
        }
        What::SetMode { path, perm } => {
            let perm = Some(*perm);
            (path, SetAttr { perm, ..none })
        }
        What::SetOwner { path, uid, gid } => {
            let (uid, gid) = (Some(*uid), Some(*gid));
            (path, SetAttr { uid, gid, ..none })
        }
        What::SetTimes { path, seconds } => {
            let time = Some(SetTime::At(Timestamp::from_parts(*seconds, 7)));
            let set = SetAttr {
                atime: time,
                mtime: time,
                ..none
            };
            (path, set)
        }
        _ => return None,
    })
}

fn change(fs: &FileSystem, what: &What) -> FsResult<()> {
    let root = &Caller::ROOT;
    if let Some((path, set)) = attributes(what) {
        return with_path(fs, path, |ino| fs.set_attr(root, ino, &set).map(|_| ()));
    }
    match what {
        What::Write {
            path,
            offset,
            len,
            seed,
            append,
        } => with_path(fs, path, |ino| {
            let options = WriteOptions {
                append: *append,
                clear_setid: ClearSetId::None,
            };
            fs.write(ino, *offset, &bytes(*len, *seed), options)
                .map(|_| ())
        }),
        What::SetXattr {
            path,
            name,
            len,
            seed,
        } => with_path(fs, path, |ino| {
            let value = bytes(*len, *seed);
            fs.set_xattr(root, ino, name.as_bytes(), &value, XattrMode::Set, false)
        }),
        What::RemoveXattr { path, name } => {
            with_path(fs, path, |ino| fs.remove_xattr(root, ino, name.as_bytes()))
        }
        What::Fallocate {
            path,
            mode,
            offset,
            len,
        } => with_path(fs, path, |ino| {
            fs.fallocate(ino, *mode, *offset, *len).map(|_| ())
        }),
        What::Copy {
            source,
            target,
            offset,
            len,
        } => with_path(fs, source, |from| {
            with_path(fs, target, |to| {
                fs.copy_range((from, 0), (to, *offset), *len).map(|_| ())
            })
        }),
        What::OpenNumber { path } => {
            let number = with_path(fs, path, Ok)?;
            fs.look_up_number(number).map(|attr| fs.forget(attr.ino, 1))
        }
        other => unreachable!("{other:?} is done by run"),
    }
}
