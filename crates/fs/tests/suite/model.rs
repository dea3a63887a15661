//! Random operations on the file system and on its twin: the same results, errors and trees.

use crate::common::*;
use crate::twin::{self, Id, Twin};
use std::collections::BTreeMap;
use stitch_base::Ino;
use stitch_base::clock::{Clock as _, Timestamp};
use stitch_base::random::Rng;
use stitch_fs::{
    ClearSetId, FallocateMode, FileKind, FsError, FsResult, RenameMode, SeekFor, SetAttr, SetTime,
    Taken, WriteOptions, XattrMode,
};

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const SIZES: [usize; 12] = [
    0, 1, 100, 2000, 4095, 4096, 4097, 8192, 10_000, 12_288, 40_000, 65_000,
];

/// The file system, its twin, and the inodes that the test holds in both.
struct Pair {
    setup: Setup,
    twin: Twin,
    rng: Rng,
    /// Lookups counted of each inode.
    held: BTreeMap<Id, (Ino, u64)>,
    /// Numbers of all inodes that were ever held.
    numbers: BTreeMap<Id, Ino>,
    /// Inodes are also opened by their numbers.
    opens_numbers: bool,
    log: Vec<String>,
    /// The last operation found the store full.
    was_full: std::cell::Cell<bool>,
    refusals: u32,
}

impl Pair {
    fn new(seed: u64, setup: Setup) -> Self {
        let twin = Twin::new(setup.clock.now().0);
        Self {
            setup,
            twin,
            rng: Rng::new(seed),
            held: BTreeMap::from([(twin::ROOT, (ROOT, 1))]),
            numbers: BTreeMap::from([(twin::ROOT, ROOT)]),
            opens_numbers: false,
            log: Vec::new(),
            was_full: std::cell::Cell::new(false),
            refusals: 0,
        }
    }

    fn any(&mut self) -> (Id, Ino) {
        let index = self.rng.below(self.held.len() as u64);
        let index = usize::try_from(index).expect("small");
        let (id, (ino, _)) = self.held.iter().nth(index).expect("the root is held");
        (*id, *ino)
    }

    /// Mostly a directory.
    fn dir(&mut self) -> (Id, Ino) {
        for _ in 0..6 {
            let (id, ino) = self.any();
            if self.twin.nodes[&id].kind == FileKind::Directory {
                return (id, ino);
            }
        }
        self.any()
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.rng.below(of.len() as u64)).expect("small")]
    }

    fn name(&mut self) -> &'static str {
        self.pick(&NAMES)
    }

    fn hold(&mut self, id: Id, ino: Ino) {
        let entry = self.held.entry(id).or_insert((ino, 0));
        assert_eq!(
            entry.0, ino,
            "a number is that of one inode: {:?}",
            self.log
        );
        entry.1 += 1;
        self.numbers.insert(id, ino);
    }

    /// Compares two results; the inode that both gave is held.
    fn same_inode(&mut self, fs: FsResult<stitch_fs::Attr>, twin: FsResult<Id>) {
        match (fs, twin) {
            (Ok(attr), Ok(id)) => self.hold(id, attr.ino),
            (fs, twin) => self.same(fs.map(|_| ()), twin.map(|_| ())),
        }
    }

    fn same<T: PartialEq + std::fmt::Debug>(&self, fs: FsResult<T>, twin: FsResult<T>) {
        let is_same = match (&fs, &twin) {
            (Err(FsError::NoSpace), _) => {
                self.was_full.set(true);
                true
            }
            (Ok(a), Ok(b)) => a == b,
            (Err(a), Err(b)) => std::mem::discriminant(a) == std::mem::discriminant(b),
            _ => false,
        };
        assert!(
            is_same,
            "{fs:?} but expected {twin:?} after {:#?}",
            self.log
        );
    }

    const fn is_external(&self) -> bool {
        self.setup.files.is_some()
    }

    fn note(&mut self, what: String) {
        self.log.push(what);
    }

    fn step(&mut self) {
        self.setup.tick();
        self.twin.now = self.setup.clock.now().0;
        let before = self.twin.clone();
        self.any_operation();
        if self.was_full.take() {
            self.twin = before;
            self.refusals += 1;
        }
    }

    fn any_operation(&mut self) {
        if self.opens_numbers && self.rng.one_in(8) {
            return self.open_number();
        }
        match self.rng.below(100) {
            0..14 => self.make(),
            14..20 => self.remove(),
            20..30 => self.rename(),
            30..36 => self.link(),
            36..62 => self.change_contents(),
            62..72 => self.look_at_contents(),
            72..80 => self.change_attributes(),
            80..86 => self.change_xattrs(),
            86..93 => self.look_up(),
            93..97 => self.forget(),
            97 => self.check_all(),
            98 => self.copy(),
            _ if self.rng.one_in(4) => self.reopen(),
            _ => {}
        }
    }

    fn make(&mut self) {
        let (id, dir) = self.dir();
        let name = self.name();
        let fs = &self.setup.fs;
        let place = at(dir, name);
        match self.rng.below(8) {
            0..4 => {
                let made = fs.create(&SUPER, place, &new(0o6775));
                let twin = self.twin.make(id, name, FileKind::Regular, 0o6775, &[]);
                self.note(format!("create {id}/{name}"));
                self.same_inode(made, twin);
            }
            4..6 => {
                let made = fs.make_dir(&SUPER, place, &new(0o755));
                let twin = self.twin.make(id, name, FileKind::Directory, 0o755, &[]);
                self.note(format!("mkdir {id}/{name}"));
                self.same_inode(made, twin);
            }
            6 => {
                let made = fs.make_symlink(&SUPER, place, b"target");
                let twin = self
                    .twin
                    .make(id, name, FileKind::Symlink, 0o777, b"target");
                self.note(format!("symlink {id}/{name}"));
                self.same_inode(made, twin);
            }
            _ => {
                let made = fs.make_temp_file(&SUPER, dir, &new(0o600));
                let twin = self.twin.make_temp(id, 0o600);
                self.note(format!("tmpfile {id}"));
                self.same_inode(made, twin);
            }
        }
    }

    fn remove(&mut self) {
        let (id, dir) = self.dir();
        let name = self.name();
        if self.rng.one_in(3) {
            self.note(format!("rmdir {id}/{name}"));
            let fs = self.setup.fs.remove_dir(&SUPER, at(dir, name));
            let twin = self.twin.remove_dir(id, name);
            self.same(fs, twin);
        } else {
            self.note(format!("unlink {id}/{name}"));
            let fs = self.setup.fs.unlink(&SUPER, at(dir, name));
            let twin = self.twin.unlink(id, name);
            self.same(fs, twin);
        }
    }

    fn rename(&mut self) {
        let ((id1, dir1), (id2, dir2)) = (self.dir(), self.dir());
        let (name1, name2) = (self.name(), self.name());
        let mode = self.pick(&[
            RenameMode::Replace,
            RenameMode::Replace,
            RenameMode::NoReplace,
            RenameMode::Exchange,
            RenameMode::Whiteout,
        ]);
        self.note(format!("rename {id1}/{name1} {id2}/{name2} {mode:?}"));
        let fs = self
            .setup
            .fs
            .rename(&SUPER, at(dir1, name1), at(dir2, name2), mode);
        let twin = self.twin.rename((id1, name1), (id2, name2), mode);
        self.same(fs, twin);
    }

    fn link(&mut self) {
        let ((id, ino), (to, dir)) = (self.any(), self.dir());
        let name = self.name();
        self.note(format!("link {id} {to}/{name}"));
        let fs = self.setup.fs.link(&SUPER, ino, at(dir, name));
        let twin = self.twin.link(id, to, name).map(|()| id);
        self.same_inode(fs, twin);
    }

    fn range(&mut self) -> (usize, usize) {
        let (offset, len) = (self.pick(&SIZES), self.pick(&SIZES));
        let nudge = usize::try_from(self.rng.below(3)).expect("small");
        (offset + nudge, len / 2 + nudge)
    }

    fn any_clear_setid(&mut self) -> ClearSetId {
        match self.rng.below(8) {
            0 => ClearSetId::Executable,
            1 => ClearSetId::All,
            _ => ClearSetId::None,
        }
    }

    fn change_contents(&mut self) {
        let (id, ino) = self.any();
        let (offset, len) = self.range();
        let (offset64, len64) = (offset as u64, len as u64);
        match self.rng.below(10) {
            0..6 => {
                let mut bytes = vec![0; len];
                self.rng.fill(&mut bytes);
                let options = WriteOptions {
                    append: self.rng.one_in(5),
                    clear_setid: self.any_clear_setid(),
                };
                self.note(format!("write {id} {offset} {len} {options:?}"));
                let fs = self.setup.fs.write(ino, offset64, &bytes, options);
                let end = self.twin.nodes[&id].data.len();
                let offset = if options.append { end } else { offset };
                let twin = self.twin.write(id, offset, &bytes, options.clear_setid);
                self.same(fs.map(|_| ()), twin);
            }
            6..8 => {
                self.note(format!("truncate {id} {offset}"));
                let set = SetAttr {
                    size: Some(offset64),
                    clear_setid: self.any_clear_setid(),
                    ..SetAttr::default()
                };
                let fs = self.setup.fs.set_attr(&SUPER, ino, &set);
                let twin = self.twin.set_attr(id, &set);
                self.same(fs.map(|_| ()), twin);
            }
            _ => {
                let keep_size = self.rng.one_in(2);
                let mode = self.pick(&[
                    FallocateMode::PunchHole,
                    FallocateMode::ZeroRange { keep_size },
                    FallocateMode::Allocate { keep_size },
                ]);
                self.note(format!("fallocate {id} {mode:?} {offset} {len}"));
                let fs = self.setup.fs.fallocate(ino, mode, offset64, len64);
                let twin = self.twin.fallocate(id, mode, offset, len);
                let has_blocks = mode != FallocateMode::PunchHole && !self.is_external();
                if let (Ok(attr), Ok(()), true) = (&fs, &twin, has_blocks) {
                    let blocks = 8 * self.twin.nodes[&id].blocks.len() as u64;
                    assert_eq!(attr.blocks, blocks, "{id} {:#?}", self.log);
                }
                self.same(fs.map(|_| ()), twin);
            }
        }
    }

    fn look_at_contents(&mut self) {
        let (id, ino) = self.any();
        let (offset, len) = self.range();
        if self.rng.one_in(4) {
            self.seek(id, ino, offset);
            return;
        }
        self.note(format!("read {id} {offset} {len}"));
        let mut out = Vec::new();
        let fs = self.setup.fs.read(ino, offset as u64, len, &mut out);
        let twin = self.twin.read(id, offset, len);
        self.same(fs.map(|_| out), twin);
    }

    /// What is said to be a hole is zeros, and data is found if there is any.
    fn seek(&mut self, id: Id, ino: Ino, offset: usize) {
        let node = &self.twin.nodes[&id];
        if node.kind != FileKind::Regular {
            return;
        }
        let size = node.data.len();
        let data = self.setup.fs.seek(ino, offset as u64, SeekFor::Data);
        let hole = self.setup.fs.seek(ino, offset as u64, SeekFor::Hole);
        if offset >= size {
            assert!(data.is_err() && hole.is_err(), "{:#?}", self.log);
            return;
        }
        let data = data.map_or(size, |at| usize::try_from(at).expect("small"));
        assert!(data >= offset && data <= size, "{:#?}", self.log);
        assert!(
            node.data[offset..data].iter().all(|&byte| byte == 0),
            "{:#?}",
            self.log
        );
        let hole = usize::try_from(hole.expect("the end is a hole")).expect("small");
        let end = size.min((hole / 4096 + 1) * 4096);
        assert!(hole >= offset && hole <= size, "{:#?}", self.log);
        assert!(
            node.data[hole..end].iter().all(|&byte| byte == 0),
            "{:#?}",
            self.log
        );
    }

    fn copy(&mut self) {
        let ((from, from_ino), (to, to_ino)) = (self.any(), self.any());
        let ((start, len), (offset, _)) = (self.range(), self.range());
        if from == to {
            return;
        }
        self.note(format!("copy {from} {start} to {to} {offset} {len}"));
        let fs = self.setup.fs.copy_range(
            (from_ino, start as u64),
            (to_ino, offset as u64),
            len as u64,
        );
        let twin = self.twin.read(from, start, len).and_then(|bytes| {
            self.twin.write(to, offset, &bytes, ClearSetId::None)?;
            Ok(bytes.len() as u64)
        });
        self.same(fs, twin);
    }

    fn change_attributes(&mut self) {
        let (id, ino) = self.any();
        let set = match self.rng.below(4) {
            0 => SetAttr {
                perm: Some(u32::try_from(self.rng.below(0o10000)).expect("small")),
                ..SetAttr::default()
            },
            1 => SetAttr {
                uid: Some(u32::try_from(self.rng.below(9)).expect("small")),
                gid: self.rng.one_in(2).then_some(5),
                ..SetAttr::default()
            },
            2 => SetAttr {
                mtime: Some(SetTime::At(Timestamp(-5_000_000_001))),
                ..SetAttr::default()
            },
            _ => SetAttr {
                perm: Some(0o755),
                size: Some(self.rng.below(9000)),
                mtime: Some(SetTime::Now),
                ..SetAttr::default()
            },
        };
        self.note(format!("setattr {id} {set:?}"));
        let fs = self.setup.fs.set_attr(&SUPER, ino, &set);
        let twin = self.twin.set_attr(id, &set);
        self.same(fs.map(|_| ()), twin);
    }

    fn change_xattrs(&mut self) {
        let (id, ino) = self.any();
        let name = format!("user.{}", self.name());
        let fs = &self.setup.fs;
        if self.rng.one_in(2) {
            let value = vec![3; usize::try_from(self.rng.below(6000)).expect("small")];
            let set = fs.set_xattr(&SUPER, ino, name.as_bytes(), &value, XattrMode::Set, false);
            let twin = self.twin.set_xattr(id, &name, &value);
            self.note(format!("setxattr {id} {name}"));
            self.same(set, twin);
        } else {
            let removed = fs.remove_xattr(&SUPER, ino, name.as_bytes());
            let twin = self.twin.remove_xattr(id, &name);
            self.note(format!("removexattr {id} {name}"));
            self.same(removed, twin);
        }
    }

    fn look_up(&mut self) {
        let (id, dir) = self.dir();
        let name = self.name();
        self.note(format!("lookup {id}/{name}"));
        let fs = self.setup.fs.lookup(at(dir, name));
        let twin = self.twin.lookup(id, name);
        self.same_inode(fs, twin);
    }

    /// As a file handle is opened: of any inode that there ever was.
    fn open_number(&mut self) {
        let index = self.rng.below(self.numbers.len() as u64);
        let index = usize::try_from(index).expect("small");
        let (&id, &ino) = self.numbers.iter().nth(index).expect("the root is there");
        self.note(format!("open number {id}"));
        let fs = self.setup.fs.look_up_number(ino);
        let has_name = self.twin.nodes[&id].nlink > 0;
        let twin = has_name.then_some(id).ok_or(FsError::Stale(ino));
        self.same_inode(fs, twin);
    }

    fn forget(&mut self) {
        let (id, ino) = self.any();
        if id == twin::ROOT {
            return;
        }
        self.note(format!("forget {id}"));
        let (_, count) = self.held.remove(&id).expect("picked from there");
        self.setup.fs.forget(ino, count);
        if self.rng.one_in(2) {
            self.setup.fs.reclaim().expect("reclaims");
        }
    }

    fn reopen(&mut self) {
        self.note("reopen".to_owned());
        if self.rng.one_in(2) {
            self.setup.fs.close().expect("closes");
        }
        let now = self.setup.clock.now();
        let old = std::mem::replace(&mut self.setup, setup());
        self.setup = old.reopened();
        let ahead = now.0 - self.setup.clock.now().0;
        self.setup
            .clock
            .advance(std::time::Duration::from_nanos(ahead.unsigned_abs()));
        self.held.retain(|id, _| *id == twin::ROOT);
        self.check_all();
    }

    /// Compares all attributes, contents and names below a directory.
    fn compare(&self, id: Id, ino: Ino) {
        let node = &self.twin.nodes[&id];
        let attr = self.setup.attr(ino);
        let log = &self.log;
        assert_eq!(
            (attr.kind, attr.perm),
            (node.kind, node.perm),
            "{id} {log:#?}"
        );
        assert_eq!((attr.uid, attr.gid), (node.uid, node.gid), "{id} {log:#?}");
        assert_eq!(attr.nlink, node.nlink, "{id} {log:#?}");
        assert_eq!(
            (attr.mtime.0, attr.ctime.0),
            (node.mtime, node.ctime),
            "{id} {log:#?}"
        );
        assert_eq!(attr.size, node.data.len() as u64, "{id} {log:#?}");
        let size_blocks = node.data.len().div_ceil(4096).max(1);
        let beyond = node.blocks.range(size_blocks..).count();
        let most = (size_blocks + beyond) as u64 * 8;
        assert!(
            attr.blocks <= most,
            "{id} {attr:?} {:?} {log:#?}",
            node.blocks
        );
        if node.kind == FileKind::Regular && !self.is_external() {
            let least = node.blocks.len() as u64 * 8;
            assert!(
                attr.blocks >= least,
                "{id} {attr:?} {:?} {log:#?}",
                node.blocks
            );
        }
        match node.kind {
            FileKind::Regular => {
                assert!(self.setup.contents(ino) == node.data, "{id} {log:#?}");
            }
            FileKind::Symlink => {
                assert_eq!(self.setup.fs.read_link(ino).expect("a link"), node.data);
            }
            FileKind::Directory => self.compare_names(id, ino),
            _ => {}
        }
        self.compare_xattrs(id, ino);
    }

    fn compare_xattrs(&self, id: Id, ino: Ino) {
        let list = self.setup.fs.list_xattr(&SUPER, ino).expect("lists");
        let names: Vec<&[u8]> = list
            .split(|&byte| byte == 0)
            .filter(|n| !n.is_empty())
            .collect();
        let xattrs = &self.twin.nodes[&id].xattrs;
        assert_eq!(names.len(), xattrs.len(), "{:#?}", self.log);
        for (name, value) in xattrs {
            let found = self.setup.fs.get_xattr(&SUPER, ino, name.as_bytes());
            assert_eq!(found.expect("it is there"), value);
        }
    }

    fn compare_names(&self, id: Id, ino: Ino) {
        let fs = &self.setup.fs;
        // Before they are known.
        let mut attrs = BTreeMap::new();
        fs.read_dir_stat(ino, 0, &mut |entry| {
            attrs.extend(entry.attr.map(|attr| (entry.name.to_vec(), attr)));
            Taken::More
        })
        .expect("walks");
        let mut found = BTreeMap::new();
        fs.read_dir_plus(ino, 0, &mut |entry| {
            if entry.attr.is_some() {
                assert_eq!(entry.attr.as_ref(), attrs.get(entry.name));
                let name = String::from_utf8(entry.name.to_vec()).expect("small");
                assert!(found.insert(name, entry.ino).is_none(), "once");
            }
            Taken::More
        })
        .expect("walks");
        assert_eq!(attrs.len(), found.len());
        let entries = &self.twin.nodes[&id].entries;
        assert!(found.keys().eq(entries.keys()), "{id} {:#?}", self.log);
        for (name, child) in entries {
            self.compare(*child, found[name]);
            self.setup.fs.forget(found[name], 1);
        }
    }

    fn check_all(&mut self) {
        self.compare(twin::ROOT, ROOT);
        for (id, (ino, _)) in &self.held {
            if self.twin.nodes[id].nlink == 0 {
                self.compare(*id, *ino);
            }
        }
        if self.setup.files.is_some() {
            // Plain files without rows go when that is durable.
            self.setup.fs.sync().expect("syncs");
        }
        assert_eq!(self.setup.issues(), [], "{:#?}", self.log);
    }
}

fn run(seed: u64, steps: u32, setup: Setup) -> u32 {
    run_pair(seed, steps, Pair::new(seed, setup))
}

fn run_with_numbers(seed: u64, steps: u32, setup: Setup) -> u32 {
    let mut pair = Pair::new(seed, setup);
    pair.opens_numbers = true;
    run_pair(seed, steps, pair)
}

fn run_pair(seed: u64, steps: u32, mut pair: Pair) -> u32 {
    pair.note(format!("seed {seed}"));
    for _ in 0..steps {
        pair.step();
    }
    pair.reopen();
    pair.refusals
}

#[test]
fn random_operations_do_what_their_twin_does() {
    for seed in 0..400 {
        assert_eq!(run(seed, 200, setup()), 0);
    }
}

#[test]
fn where_directories_are_given_up_it_is_the_same() {
    for seed in 4000..4200 {
        // Room for two directories or three.
        let setup = setup_with(|options| options.names_bytes = 500);
        assert_eq!(run(seed, 200, setup), 0);
    }
}

#[test]
fn inodes_are_found_by_number_as_their_twins_are() {
    for seed in 5000..5400 {
        assert_eq!(run_with_numbers(seed, 200, setup()), 0);
    }
    for seed in 5400..5500 {
        assert_eq!(run_with_numbers(seed, 300, setup_external()), 0);
    }
}

#[test]
fn on_a_full_store_back_rows_stay_right() {
    let mut refusals = 0;
    for seed in 6000..6060 {
        let engine = stitch_kv::ModelEngine::with_space(registry(), 96 << 10);
        refusals += run_with_numbers(seed, 300, setup_on(std::sync::Arc::new(engine), |_| {}));
    }
    assert!(refusals > 50, "the store was hardly ever full: {refusals}");
}

#[test]
fn long_runs_do_what_their_twin_does() {
    for seed in 1000..1004 {
        assert_eq!(run(seed, 4000, setup()), 0);
    }
}

#[test]
fn external_files_do_what_their_twin_does() {
    for seed in 3000..3200 {
        assert_eq!(run(seed, 300, setup_external()), 0);
    }
}

#[test]
fn operations_on_a_full_store_happen_whole_or_not_at_all() {
    let mut refusals = 0;
    for seed in 2000..2100 {
        let engine = stitch_kv::ModelEngine::with_space(registry(), 96 << 10);
        refusals += run(seed, 300, setup_on(std::sync::Arc::new(engine), |_| {}));
    }
    assert!(refusals > 100, "the store was hardly ever full: {refusals}");
}
