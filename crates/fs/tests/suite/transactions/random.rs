//! Random histories of two transactions and mainline, beside a file system that gets the same
//! operations one after the other: those of a transaction when it is committed.

use super::*;
use std::collections::BTreeMap;
use stitch_fs::{DirName, FileKind, XattrMode};

/// Numbers of what the operations are about, whatever its inode number is on a side.
type Id = usize;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const STEPS: u64 = 40;
/// Of mainline, before the first transaction: what several of these find there.
const FIRST_STEPS: u64 = 24;
/// Of a file whose contents are shared by a copy.
const LONG: usize = 100_000;

#[derive(Clone, Debug)]
enum Op {
    Make {
        at: Name,
        is_dir: bool,
        id: Id,
    },
    Write {
        id: Id,
        byte: u8,
        len: usize,
    },
    /// A new file with the contents of another one, which it may share.
    Copy {
        from: Id,
        at: Name,
        id: Id,
        /// What was copied: at a commit, the twin's source may have other contents.
        bytes: Vec<u8>,
    },
    Chmod {
        id: Id,
        perm: u32,
    },
    Xattr {
        id: Id,
        value: u8,
    },
    Unlink {
        at: Name,
    },
    RemoveDir {
        at: Name,
    },
    Rename {
        from: Name,
        to: Name,
        is_exchange: bool,
    },
    Link {
        id: Id,
        at: Name,
    },
}

#[derive(Clone, Copy, Debug)]
struct Name {
    dir: Id,
    name: &'static str,
}

/// A small generator of numbers (xorshift64).
pub(super) struct Rng(u64, u8);

impl Rng {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed * 0x9e37_79b9 + 1, 0)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    /// Another one each time: what is written is never what was there.
    pub(super) const fn byte(&mut self) -> u8 {
        self.1 = self.1.wrapping_add(1);
        self.1
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let index = self.below(from.len() as u64);
        from[usize::try_from(index).expect("an index")]
    }
}

/// What an operation is about, on one side.
type Inos = BTreeMap<Id, Ino>;

fn op(rng: &mut Rng, inos: &Inos, next: &mut Id) -> Op {
    let ids: Vec<Id> = inos.keys().copied().collect();
    let id = rng.pick(&ids);
    let name = |rng: &mut Rng| Name {
        dir: rng.pick(&ids),
        name: rng.pick(&NAMES),
    };
    match rng.below(19) {
        0..6 => {
            *next += 1;
            Op::Make {
                at: name(rng),
                is_dir: rng.below(2) == 0,
                id: *next,
            }
        }
        6..8 => Op::Write {
            id,
            byte: rng.byte(),
            len: rng.pick(&[5, 10_000, LONG]),
        },
        8 => Op::Chmod {
            id,
            perm: 0o100 + u32::from(rng.byte()),
        },
        9 => Op::Xattr { id, value: 7 },
        10 => Op::Unlink { at: name(rng) },
        11 => Op::RemoveDir { at: name(rng) },
        12..15 => Op::Rename {
            from: name(rng),
            to: name(rng),
            is_exchange: rng.below(4) == 0,
        },
        15 => Op::Link { id, at: name(rng) },
        _ => {
            *next += 1;
            Op::Copy {
                from: id,
                at: name(rng),
                id: *next,
                bytes: Vec::new(),
            }
        }
    }
}

/// Copies a file to a new name. Returns what was copied.
fn copy(fs: &FileSystem, from: Ino, at: DirName<'_>) -> FsResult<(Ino, Vec<u8>)> {
    let source = fs.get_attr(from)?;
    if source.kind != FileKind::Regular {
        return Err(FsError::Invalid("no regular file"));
    }
    let made = fs.create(&SUPER, at, &new(0o644))?.ino;
    let copied = fs.copy_range((from, 0), (made, 0), u64::MAX)?;
    assert_eq!(copied, source.size);
    let mut bytes = Vec::new();
    fs.read(from, 0, LONG + 1, &mut bytes)?;
    Ok((made, bytes))
}

/// Runs an operation, and notes what it copies. The twin writes instead of copying.
fn run(fs: &FileSystem, inos: &mut Inos, op: &mut Op) -> FsResult<()> {
    let of = |id: &Id| inos.get(id).copied().ok_or(FsError::NotFound);
    let Op::Copy {
        from,
        at: to,
        id,
        bytes,
    } = op
    else {
        return run_plain(fs, inos, op);
    };
    let (made, copied) = copy(fs, of(from)?, at(of(&to.dir)?, to.name))?;
    inos.insert(*id, made);
    *bytes = copied;
    Ok(())
}

/// Runs an operation without sharing contents.
fn run_plain(fs: &FileSystem, inos: &mut Inos, op: &Op) -> FsResult<()> {
    let of = |id: &Id| inos.get(id).copied().ok_or(FsError::NotFound);
    let place = |name: &Name| Ok::<_, FsError>(at(of(&name.dir)?, name.name));
    match op {
        Op::Make { at, is_dir, id } => {
            let at = place(at)?;
            let made = match is_dir {
                true => fs.make_dir(&SUPER, at, &new(0o755))?,
                false => fs.create(&SUPER, at, &new(0o644))?,
            };
            inos.insert(*id, made.ino);
        }
        Op::Write { id, byte, len } => {
            fs.write(of(id)?, 0, &vec![*byte; *len], WriteOptions::default())?;
        }
        Op::Copy {
            from,
            at,
            id,
            bytes,
        } => {
            of(from)?;
            let made = fs.create(&SUPER, place(at)?, &new(0o644))?.ino;
            fs.write(made, 0, bytes, WriteOptions::default())?;
            inos.insert(*id, made);
        }
        Op::Chmod { id, perm } => {
            let set = SetAttr {
                perm: Some(*perm),
                ..SetAttr::default()
            };
            fs.set_attr(&SUPER, of(id)?, &set)?;
        }
        Op::Xattr { id, value } => {
            fs.set_xattr(&SUPER, of(id)?, b"user.x", &[*value], XattrMode::Set, false)?;
        }
        Op::Unlink { at } => fs.unlink(&SUPER, place(at)?)?,
        Op::RemoveDir { at } => fs.remove_dir(&SUPER, place(at)?)?,
        Op::Rename {
            from,
            to,
            is_exchange,
        } => {
            let mode = match is_exchange {
                true => RenameMode::Exchange,
                false => RenameMode::Replace,
            };
            fs.rename(&SUPER, place(from)?, place(to)?, mode)?;
        }
        Op::Link { id, at } => {
            fs.link(&SUPER, of(id)?, place(at)?)?;
        }
    }
    Ok(())
}

/// Reports whether an operation gives a name to the inode that has it: by rename(2) that does
/// nothing, so nothing of it is committed, and mainline may remove the name meanwhile.
fn renames_to_itself(fs: &FileSystem, inos: &Inos, op: &Op) -> bool {
    let Op::Rename { from, to, .. } = op else {
        return false;
    };
    let found = [from, to].map(|name| {
        let dir = inos.get(&name.dir)?;
        let found = fs.lookup(at(*dir, name.name)).ok()?.ino;
        fs.forget(found, 1);
        Some(found)
    });
    found[0].is_some() && found[0] == found[1]
}

/// What a path shows: type, mode, links, size and contents without repeated bytes, attribute.
pub(super) type Shown = (FileKind, u16, u32, (usize, Vec<u8>), Vec<u8>);

/// Looks everything up, so that it is known from then on. Returns it by path, with its number.
fn walk(fs: &FileSystem) -> BTreeMap<String, (Ino, Shown)> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![(String::new(), fs.get_attr(ROOT).expect("known"))];
    while let Some((path, attr)) = waiting.pop() {
        let mut data = Vec::new();
        match attr.kind {
            FileKind::Directory => {
                for name in names_in(fs, attr.ino) {
                    let below = fs.lookup(at(attr.ino, &name)).expect("it is listed");
                    waiting.push((format!("{path}/{name}"), below));
                }
            }
            FileKind::Symlink => {
                let target = fs.read_link(attr.ino).expect("it is known");
                data.extend_from_slice(&target);
            }
            _ => {
                fs.read(attr.ino, 0, LONG + 1, &mut data)
                    .expect("it is known");
            }
        }
        let xattr = fs.get_xattr(&SUPER, attr.ino, b"user.x");
        let xattr = xattr.map(|value| value.to_vec()).unwrap_or_default();
        let len = data.len();
        data.dedup();
        let data = (len, data);
        let shown = (attr.kind, attr.perm, attr.nlink, data, xattr);
        found.insert(path, (attr.ino, shown));
    }
    found
}

pub(super) fn shown(fs: &FileSystem) -> BTreeMap<String, Shown> {
    let all = walk(fs).into_iter();
    all.map(|(path, (_, shown))| (path, shown)).collect()
}

struct History {
    rng: Rng,
    setup: Setup,
    /// The transaction in which all of it happens, instead of mainline.
    outer: Option<Arc<TransactionView>>,
    inos: Inos,
    twin: Setup,
    twin_inos: Inos,
    next: Id,
    commits: usize,
    conflicts: usize,
}

struct Work {
    view: Arc<TransactionView>,
    inos: Inos,
    ops: Vec<Op>,
}

impl History {
    fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            setup: setup(),
            outer: None,
            inos: Inos::from([(0, ROOT)]),
            twin: setup(),
            twin_inos: Inos::from([(0, ROOT)]),
            next: 0,
            commits: 0,
            conflicts: 0,
        }
    }

    fn in_transaction(seed: u64) -> Self {
        let mut history = Self::new(seed);
        history.outer = Some(begin(&history.setup, "outer"));
        history
    }

    /// Mainline, or what is instead of it.
    fn fs(&self) -> &FileSystem {
        self.outer
            .as_ref()
            .map_or(&self.setup.fs, |outer| outer.fs())
    }

    fn begin(&self, name: &str) -> Work {
        let view = match &self.outer {
            Some(outer) => nested::begin_in(&self.setup, outer, name),
            None => begin(&self.setup, name),
        };
        let known: Vec<Ino> = walk(view.fs()).into_values().map(|(ino, _)| ino).collect();
        let mut inos = self.inos.clone();
        inos.retain(|_, ino| known.contains(ino));
        let ops = Vec::new();
        Work { view, inos, ops }
    }

    fn step_mainline(&mut self) {
        let mut op = op(&mut self.rng, &self.inos, &mut self.next);
        let mut inos = std::mem::take(&mut self.inos);
        let done = run(self.fs(), &mut inos, &mut op);
        self.inos = inos;
        if matches!(op, Op::Copy { .. }) && done.is_err() {
            return;
        }
        let twin = run_plain(&self.twin.fs, &mut self.twin_inos, &op);
        assert_eq!(done.is_ok(), twin.is_ok(), "{op:?}: {done:?} {twin:?}");
    }

    fn step(&mut self, work: &mut Work) {
        let mut op = op(&mut self.rng, &work.inos, &mut self.next);
        let renames_to_itself = renames_to_itself(work.view.fs(), &work.inos, &op);
        if run(work.view.fs(), &mut work.inos, &mut op).is_ok() && !renames_to_itself {
            work.ops.push(op);
        }
    }

    fn end(&mut self, work: &Work) {
        let before = shown(work.view.fs());
        match self.setup.fs.transactions().commit(&work.view) {
            Ok(_) => {
                self.commits += usize::from(!work.ops.is_empty());
                for op in &work.ops {
                    let done = run_plain(&self.twin.fs, &mut self.twin_inos, op);
                    done.unwrap_or_else(|error| panic!("{op:?}: {error}"));
                }
            }
            Err(FsError::Conflict(conflicts)) => {
                self.conflicts += 1;
                assert!(!conflicts.is_empty());
                assert_eq!(shown(work.view.fs()), before);
                let number = work.view.info().number;
                let aborted = self.setup.fs.transactions().abort_number(number);
                aborted.expect("it is open");
            }
            Err(error) => panic!("{error}"),
        }
        self.compare();
        let found = walk(self.fs()).into_values();
        let found: Vec<Ino> = found.map(|(ino, _)| ino).collect();
        let made = work.inos.iter().filter(|(_, ino)| found.contains(ino));
        self.inos.extend(made);
    }

    /// Mainline's memory says what its rows say, and what the twin's memory says.
    fn compare(&self) {
        self.setup.check();
        assert_eq!(shown(self.fs()), shown(&self.twin.fs));
        for (id, ino) in &self.inos {
            let one = self.fs().get_attr(*ino).expect("it is known");
            let two = self.twin.attr(self.twin_inos[id]);
            let plain = |attr: &Attr| (attr.kind, attr.perm, attr.nlink, attr.size);
            assert_eq!(plain(&one), plain(&two), "{id}");
        }
    }

    fn round(&mut self) {
        let (mut one, mut two) = (self.begin("one"), self.begin("two"));
        for _ in 0..STEPS {
            match self.rng.below(6) {
                0 => self.step_mainline(),
                1..4 => self.step(&mut one),
                _ => self.step(&mut two),
            }
        }
        self.end(&one);
        self.step_mainline();
        self.end(&two);
    }

    fn rounds(&mut self) {
        for _ in 0..FIRST_STEPS {
            self.step_mainline();
        }
        for _ in 0..4 {
            self.round();
        }
    }

    /// Commits the transaction in which all of it has happened.
    fn end_outer(&mut self) {
        let outer = self.outer.take().expect("there is one");
        // Mainline knows what was done, as its own caches would.
        let committed = self.setup.fs.transactions().commit(&outer);
        committed.expect("there are no conflicts");
        self.setup.check();
        assert_eq!(shown(&self.setup.fs), shown(&self.twin.fs));
    }

    /// Forgets everything, so that what has no name is reclaimed. Returns numbers of rows.
    fn forget_all(setup: &Setup) -> [usize; 2] {
        for ino in setup.fs.known_numbers() {
            setup.fs.forget(ino, u64::MAX);
        }
        setup.fs.reclaim().expect("there is room");
        setup.check();
        ["meta", "xattr"].map(|tree| setup.rows(tree))
    }

    /// Removes everything. Returns the number of rows of contents that are left.
    fn remove_all(setup: &Setup) -> usize {
        for name in names_in(&setup.fs, ROOT) {
            let at = at(ROOT, &name);
            let removed = match setup.fs.lookup(at).expect("it is listed").kind {
                FileKind::Directory => setup.fs.remove_tree(&SUPER, at, None).map(drop),
                _ => setup.fs.unlink(&SUPER, at),
            };
            removed.expect("there is room");
        }
        while setup.fs.detached_dirs() > 0 {
            setup.fs.empty_detached(1000).expect("there is room");
        }
        Self::forget_all(setup);
        setup.rows("data")
    }
}

/// Compares a store with its twin after each of several histories. Returns the numbers of commits,
/// of conflicts, and of histories after which files share contents.
fn compare_with_twins(
    seeds: std::ops::Range<u64>,
    history_of: impl Fn(u64) -> History,
) -> (usize, usize, usize) {
    let (mut commits, mut conflicts, mut sharing) = (0, 0, 0);
    for seed in seeds {
        let history = history_of(seed);
        assert_eq!(
            History::forget_all(&history.setup),
            History::forget_all(&history.twin),
            "seed {seed}: rows are left"
        );
        commits += history.commits;
        conflicts += history.conflicts;
        let expected = shown(&history.twin.fs);
        let setup = history.setup.reopened();
        assert_eq!(shown(&setup.fs), expected, "seed {seed}");
        // The twin has all chunks of each file.
        sharing += usize::from(setup.rows("data") < history.twin.rows("data"));
        let left = History::remove_all(&setup);
        assert_eq!(left, 0, "seed {seed}: contents are left");
    }
    (commits, conflicts, sharing)
}

#[test]
fn committed_transactions_are_as_if_done_at_their_commit() {
    let (commits, conflicts, sharing) = compare_with_twins(1..40, |seed| {
        let mut history = History::new(seed);
        history.rounds();
        history
    });
    assert!(commits > 20, "{commits} commits");
    assert!(conflicts > 20, "{conflicts} conflicts");
    assert!(sharing > 0, "no history shares contents");
}

#[test]
fn committed_inner_transactions_are_as_if_done_in_the_outer_one() {
    let (commits, conflicts, _) = compare_with_twins(1..20, |seed| {
        let mut history = History::in_transaction(seed);
        history.rounds();
        history.end_outer();
        history
    });
    assert!(commits > 10, "{commits} commits");
    assert!(conflicts > 10, "{conflicts} conflicts");
}
