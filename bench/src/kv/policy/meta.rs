//! Rows of names and inodes: files in random directories, two rows changed for each, then a mix of
//! what programs do with them.
//!
//! | phase | what |
//! |---|---|
//! | `make` | a row for each file, an upsert on the row of its directory |
//! | `mix` | what programs do with files, see below |
//! | `stat` | look-ups, cold |
//! | `scan` | all rows, cold |
//! | `rest` | background work that was put off |
//!
//! The mix: 40 % stat, 20 % changes of attributes, 15 % look-ups of missing names (`get`), 10 %
//! renames, 5 % removals, 10 % lists of a directory.

use super::{Policy, Put, by_operation};
use crate::context::{Bench, Context, Work};
use crate::kv::walk::walk;
use crate::measure::{Op, Recorder};
use crate::side::{Fold, Write};
use crate::values::mix;
use anyhow::{Result, ensure};
use stitch_base::Ino;
use stitch_base::random::Rng;
use stitch_format::fs_inode::{AttrDelta, FileKind, INODE_HEAD_BYTES, InodeHead, MetaRow};
use stitch_format::fs_key::{self, FsKey};
use stitch_format::fs_sys::UPSERT_ATTR;
use stitch_kv::{Compression, TreeOptions};

const NAME_BYTES: u64 = 12;
const ROW_BYTES: u64 = 16 + NAME_BYTES + INODE_HEAD_BYTES as u64;
/// Files in a directory, on average.
const DIR_FILES: u64 = 64;
/// Upserts on the row of a directory before it is put whole, as `fs` has it.
const DIR_CHAIN_MAX: u8 = 8;
/// Names that one file has before it gets its first one again.
const NAMES: u8 = 200;
/// Instead of the number of its name: the file was removed.
const GONE: u8 = u8::MAX;
/// Seed of the order of names.
const SEED: u64 = 0x5717;
/// Number of the first directory.
const FIRST_INO: u64 = 16;

pub(super) fn run(context: &mut Context<'_>, policy: Policy) -> Result<()> {
    let wanted = (context.scale().small_bytes / ROW_BYTES).max(16);
    super::open(
        context,
        policy,
        tree_options(),
        (wanted * ROW_BYTES, ROW_BYTES),
    )?;
    let mut rows = MetaRows::new(wanted, context.seed());
    let mut put = Put::default();
    let name = |phase: &str| format!("{phase} {}", policy.name);
    context.set_live_bytes(rows.count() * ROW_BYTES);
    context.phase(&name("make"), Work::Load, wanted, |bench, record| {
        rows.make_all(bench, record, wanted)
    })?;
    context.last().live_bytes = rows.count() * ROW_BYTES;
    put.note(context);
    let ops = rows.names.len() as u64;
    context.phase(&name("mix"), Work::Load, ops, |bench, record| {
        for _ in 0..ops {
            if record.is_over() {
                break;
            }
            rows.step(bench, record)?;
        }
        Ok(())
    })?;
    context.last().live_bytes = rows.count() * ROW_BYTES;
    context.set_live_bytes(rows.count() * ROW_BYTES);
    put.note(context);
    by_operation(context);
    context.reopen_cold()?;
    let gets = context.scale().gets;
    context.phase(&name("stat"), Work::Read, gets, |bench, record| {
        for _ in 0..gets {
            if record.is_over() {
                break;
            }
            let file = rows.any();
            rows.stat(bench, record, file)?;
        }
        Ok(())
    })?;
    context.reopen_cold()?;
    let count = rows.count();
    context.phase(&name("scan"), Work::Read, count, |bench, record| {
        scan_all(bench, record, count)
    })?;
    put.rest(context, policy)
}

/// As `fs` makes the tree of names and inodes.
fn tree_options() -> TreeOptions {
    TreeOptions {
        block_bytes: 16 << 10,
        compression: Compression::Lz4,
        value_block_bytes: 0,
        ..TreeOptions::default()
    }
}

/// A directory.
#[derive(Clone, Copy, Debug, Default)]
struct Dir {
    /// Names in it.
    count: u64,
    /// Upserts since its row was put whole.
    chain: u8,
}

/// What there is.
struct MetaRows {
    seed: u64,
    rng: Rng,
    dirs: Vec<Dir>,
    /// Of each file, the number of its name. The name says in which directory it is.
    names: Vec<u8>,
    /// Files that were removed.
    gone: u64,
    now: i64,
}

impl MetaRows {
    fn new(files: u64, seed: u64) -> Self {
        let dirs = usize::try_from(files.div_ceil(DIR_FILES)).expect("fits in memory");
        Self {
            seed,
            rng: Rng::new(seed),
            dirs: vec![Dir::default(); dirs],
            names: Vec::new(),
            gone: 0,
            now: 1_700_000_000_000_000_000,
        }
    }

    /// Rows that can be read.
    fn count(&self) -> u64 {
        self.dirs.len() as u64 + self.names.len() as u64 - self.gone
    }

    /// A file that is there.
    fn any(&mut self) -> u64 {
        loop {
            let file = self.rng.below(self.names.len() as u64);
            if self.name_of(file) != GONE {
                return file;
            }
        }
    }

    fn name_of(&self, file: u64) -> u8 {
        self.names[index(file)]
    }

    /// The directory in which a file is under a name.
    fn dir_of(&self, file: u64, name: u8) -> u64 {
        mix(self.seed ^ (file << 8) ^ u64::from(name)) % self.dirs.len() as u64
    }

    fn key(&self, file: u64, name: u8) -> FsKey {
        let parent = dir_ino(self.dir_of(file, name));
        fs_key::dentry(SEED, parent, format!("f{file:08x}.{name:02x}").as_bytes())
    }

    fn file_ino(&self, file: u64) -> Ino {
        Ino(FIRST_INO + self.dirs.len() as u64 + file)
    }

    fn tick(&mut self) -> i64 {
        self.now += 1_000_000 + i64::from(self.rng.one_in(2));
        self.now
    }

    fn file_row(&self, file: u64) -> [u8; INODE_HEAD_BYTES] {
        row(self.file_ino(file), FileKind::Regular, self.now)
    }

    /// Makes directories and, until the time is over, files.
    fn make_all(&mut self, bench: &Bench<'_>, record: &mut Recorder<'_>, files: u64) -> Result<()> {
        for dir in 0..self.dirs.len() as u64 {
            let put = row(dir_ino(dir), FileKind::Directory, self.tick());
            record.time(Op::Make, (1, ROW_BYTES), || {
                bench.side.write(&[Write::Put(&dir_key(dir), &put)], false)
            })?;
        }
        while (self.names.len() as u64) < files {
            if record.is_over() && !self.names.is_empty() {
                break;
            }
            let file = self.names.len() as u64;
            let key = self.key(file, 0);
            record.time(Op::Make, (1, ROW_BYTES), || {
                self.tick();
                let put = self.file_row(file);
                self.change(bench, &[Write::Put(&key, &put)], &[self.dir_of(file, 0)])
            })?;
            self.names.push(0);
            let dir = self.dir_of(file, 0);
            self.dirs[index(dir)].count += 1;
        }
        Ok(())
    }

    /// Applies changes of names, and what that changes of the directories' rows.
    fn change(&mut self, bench: &Bench<'_>, writes: &[Write<'_>], dirs: &[u64]) -> Result<()> {
        let keys: Vec<FsKey> = dirs.iter().map(|dir| dir_key(*dir)).collect();
        let inos = || dirs.iter().map(|dir| dir_ino(*dir));
        let rows = inos().map(|ino| row(ino, FileKind::Directory, self.now));
        let rows: Vec<[u8; INODE_HEAD_BYTES]> = rows.collect();
        let deltas: Vec<Vec<u8>> = inos().map(|ino| touched(ino, self.now)).collect();
        let (mut puts, mut folds) = (writes.to_vec(), Vec::new());
        for (n, dir) in dirs.iter().enumerate() {
            let dir = &mut self.dirs[index(*dir)];
            if dir.chain >= DIR_CHAIN_MAX {
                dir.chain = 0;
                puts.push(Write::Put(&keys[n], &rows[n]));
            } else {
                dir.chain += 1;
                folds.push(Fold {
                    key: &keys[n],
                    function: UPSERT_ATTR,
                    delta: &deltas[n],
                });
            }
        }
        bench.side.write_and_fold(&puts, &folds)
    }

    /// One operation of the mix.
    fn step(&mut self, bench: &Bench<'_>, record: &mut Recorder<'_>) -> Result<()> {
        let file = self.any();
        self.tick();
        match self.rng.below(100) {
            0..40 => self.stat(bench, record, file),
            40..60 => self.set_attr(bench, record, file),
            60..75 => self.miss(bench, record, file),
            75..85 => self.rename(bench, record, file),
            85..90 => self.remove(bench, record, file),
            _ => self.list(bench, record),
        }
    }

    fn stat(&self, bench: &Bench<'_>, record: &mut Recorder<'_>, file: u64) -> Result<()> {
        let key = self.key(file, self.name_of(file));
        record.time(Op::Stat, (1, ROW_BYTES), || self.find(bench, &key, file))
    }

    /// Reads the row of a file, which must be there.
    fn find(&self, bench: &Bench<'_>, key: &[u8], file: u64) -> Result<()> {
        let mut is_right = false;
        let found = bench.side.get(key, &mut |value| {
            is_right = ino_of(value) == Some(self.file_ino(file));
        })?;
        ensure!(found && is_right, "the row of file {file} is lost or wrong");
        Ok(())
    }

    /// Reads a row and changes its mode by an upsert.
    fn set_attr(&self, bench: &Bench<'_>, record: &mut Recorder<'_>, file: u64) -> Result<()> {
        let key = self.key(file, self.name_of(file));
        let mut delta = Vec::new();
        AttrDelta {
            ino: self.file_ino(file),
            ctime: Some(self.now),
            mode: Some(FileKind::Regular.mode_bits() | 0o600),
            ..AttrDelta::default()
        }
        .encode(&mut delta);
        let fold = Fold {
            key: &key,
            function: UPSERT_ATTR,
            delta: &delta,
        };
        record.time(Op::SetAttr, (1, ROW_BYTES), || {
            self.find(bench, &key, file)?;
            bench.side.write_and_fold(&[], &[fold])
        })
    }

    /// Looks for a name that nothing has.
    fn miss(&self, bench: &Bench<'_>, record: &mut Recorder<'_>, file: u64) -> Result<()> {
        let key = self.key(file, after(self.name_of(file)));
        record.time(Op::Get, (1, ROW_BYTES), || not_found(bench, &key))
    }

    /// Gives a file its next name, mostly in another directory.
    fn rename(&mut self, bench: &Bench<'_>, record: &mut Recorder<'_>, file: u64) -> Result<()> {
        let (from, to) = (self.name_of(file), after(self.name_of(file)));
        let (old, new) = (self.key(file, from), self.key(file, to));
        let (left, entered) = (self.dir_of(file, from), self.dir_of(file, to));
        record.time(Op::Rename, (1, ROW_BYTES), || {
            self.find(bench, &old, file)?;
            not_found(bench, &new)?;
            let put = self.file_row(file);
            let writes = [Write::Put(&new, &put), Write::Delete(&old)];
            let dirs = [left, entered];
            let dirs = if left == entered { &dirs[..1] } else { &dirs };
            self.change(bench, &writes, dirs)
        })?;
        self.names[index(file)] = to;
        self.dirs[index(left)].count -= 1;
        self.dirs[index(entered)].count += 1;
        Ok(())
    }

    /// Removes a file, unless it is the last.
    fn remove(&mut self, bench: &Bench<'_>, record: &mut Recorder<'_>, file: u64) -> Result<()> {
        if self.gone + 1 >= self.names.len() as u64 {
            return Ok(());
        }
        let key = self.key(file, self.name_of(file));
        let dir = self.dir_of(file, self.name_of(file));
        record.time(Op::Remove, (1, ROW_BYTES), || {
            self.find(bench, &key, file)?;
            self.change(bench, &[Write::Delete(&key)], &[dir])
        })?;
        self.names[index(file)] = GONE;
        self.dirs[index(dir)].count -= 1;
        self.gone += 1;
        Ok(())
    }

    /// Lists a directory.
    fn list(&mut self, bench: &Bench<'_>, record: &mut Recorder<'_>) -> Result<()> {
        let dir = self.rng.below(self.dirs.len() as u64);
        let (start, end) = (
            fs_key::dentry_start(dir_ino(dir), 0),
            fs_key::after(dir_ino(dir)),
        );
        let wanted = self.dirs[index(dir)].count;
        let mut seen = 0;
        record.time(Op::List, (1, wanted * ROW_BYTES), || {
            bench.side.scan(&start, &mut |key, value| {
                let is_inside = key < &end[..];
                seen += u64::from(is_inside && ino_of(value).is_some());
                is_inside
            })
        })?;
        ensure!(
            seen == wanted,
            "directory {dir} shows {seen} names of {wanted}"
        );
        Ok(())
    }
}

/// Walks everything.
fn scan_all(bench: &Bench<'_>, record: &mut Recorder<'_>, count: u64) -> Result<()> {
    walk(
        record,
        (count, ROW_BYTES),
        |rows| bench.side.scan(&[], rows),
        |_, value| ino_of(value).is_some(),
    )
}

fn not_found(bench: &Bench<'_>, key: &[u8]) -> Result<()> {
    let found = bench.side.get(key, &mut |_| ())?;
    ensure!(!found, "a name is there that nothing has");
    Ok(())
}

/// The name after this one.
const fn after(name: u8) -> u8 {
    (name + 1) % NAMES
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("fits in memory")
}

fn dir_ino(dir: u64) -> Ino {
    Ino(FIRST_INO + dir)
}

fn dir_key(dir: u64) -> FsKey {
    fs_key::dentry(SEED, Ino::ROOT, format!("d{dir:08x}.00").as_bytes())
}

fn ino_of(value: &[u8]) -> Option<Ino> {
    MetaRow::decode(value).ok().map(|row| row.ino())
}

/// The row of an inode, as long as a file's without contents.
fn row(ino: Ino, kind: FileKind, now: i64) -> [u8; INODE_HEAD_BYTES] {
    let head = InodeHead {
        perm: 0o644,
        uid: 1000,
        gid: 1000,
        size: mix(ino.0) % (1 << 16),
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        ..InodeHead::new(ino, kind)
    };
    head.encode()
}

/// The delta on a directory in which names have changed.
fn touched(ino: Ino, now: i64) -> Vec<u8> {
    let delta = AttrDelta {
        ino,
        mtime: Some(now),
        ctime: Some(now),
        ..AttrDelta::default()
    };
    let mut out = Vec::new();
    delta.encode(&mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_of_a_file_differ_and_end() {
        let rows = MetaRows::new(1000, 1);
        let mut keys = BTreeSet::new();
        let mut name = 0;
        for _ in 0..NAMES {
            assert_ne!(name, GONE);
            keys.insert(rows.key(7, name).to_vec());
            name = after(name);
        }
        assert_eq!((keys.len(), name), (usize::from(NAMES), 0));
        assert!(
            keys.iter()
                .all(|key| key.len() as u64 + INODE_HEAD_BYTES as u64 == ROW_BYTES)
        );
    }

    #[test]
    fn removed_files_are_not_chosen() {
        let mut rows = MetaRows::new(100, 1);
        rows.names = vec![GONE; 100];
        rows.names[41] = 3;
        assert_eq!(rows.any(), 41);
        rows.gone = 99;
        assert_eq!(rows.count(), 2 + 1);
    }
}
