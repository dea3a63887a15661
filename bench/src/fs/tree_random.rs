//! Empty files in a realistic tree, in random order (`TableFS` paper, section 4.4): made, looked at
//! and changed, renamed, listed, removed.
//!
//! The tree: directories hold ten directories each until there are enough of them; files are spread
//! over them unevenly, a few directories with many, most with few.

use super::stage::{Ends, Stage};
use super::{Caches, FsWorkload};
use crate::measure::Op;
use crate::values::mix;
use anyhow::{Result, ensure};
use stitch_base::random::Rng;

/// Files for each directory, on average.
const FILES_PER_DIR: u64 = 20;
/// Directories in a directory.
const DIRS_PER_DIR: u64 = 10;
const PERM: u32 = 0o640;

pub(super) fn workload() -> FsWorkload {
    FsWorkload::new(
        "tree-random",
        "empty files in a tree in random order: create until sync; stat, chmod, utime mix, rename, \
         readdir+stat, readdir+read, delete, each cold",
        &[
            Caches::Warm,
            Caches::Cold,
            Caches::Cold,
            Caches::Cold,
            Caches::Cold,
            Caches::Cold,
        ],
        run,
    )
}

/// A tree that a seed and a number of files say everything about.
struct Tree {
    files: u64,
    dirs: Vec<String>,
    /// The directory of each file.
    homes: Vec<u32>,
}

impl Tree {
    fn new(files: u64, seed: u64) -> Self {
        let dir_count = (files / FILES_PER_DIR).max(4);
        let mut dirs: Vec<String> = Vec::new();
        for number in 0..dir_count {
            let name = format!("dir{number}");
            let path = match number.checked_sub(DIRS_PER_DIR) {
                None => name,
                Some(rest) => format!("{}/{name}", dirs[index(rest / DIRS_PER_DIR)]),
            };
            dirs.push(path);
        }
        let mut rng = Rng::new(seed);
        // The smaller of two draws: the first directories have most files.
        let mut home = || rng.below(dir_count).min(rng.below(dir_count));
        let homes = (0..files)
            .map(|_| u32::try_from(home()).expect("directories are few"))
            .collect();
        Self { files, dirs, homes }
    }

    fn path(&self, file: u64) -> String {
        format!("{}/file{file}", self.dirs[self.homes[index(file)] as usize])
    }

    /// Its name after the renames.
    fn renamed(&self, file: u64) -> String {
        format!(
            "{}/moved{file}",
            self.dirs[self.homes[index(file)] as usize]
        )
    }

    /// All files, each once, in an order of its own for each phase.
    fn shuffled(&self, seed: u64) -> Vec<u64> {
        let mut order: Vec<u64> = (0..self.files).collect();
        let mut rng = Rng::new(seed);
        for last in (1..order.len()).rev() {
            order.swap(last, index(rng.below(last as u64 + 1)));
        }
        order
    }
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("files are in memory")
}

fn run(stage: &mut Stage<'_>, step: u32) -> Result<()> {
    stage.without_cap();
    let files = stage.fs_scale().files;
    let tree = Tree::new(files, stage.seed());
    match step {
        0 => create(stage, &tree),
        1 => change(stage, &tree),
        2 => rename(stage, &tree),
        3 => list(stage, &tree),
        4 => read(stage, &tree),
        _ => delete(stage, &tree),
    }
}

fn create(stage: &mut Stage<'_>, tree: &Tree) -> Result<()> {
    let (target, order) = (stage.target(), tree.shuffled(stage.seed() + 1));
    stage.phase("mkdir", tree.dirs.len() as u64, Ends::Returned, |record| {
        for dir in &tree.dirs {
            record.time(Op::Make, (1, 0), || target.make_dir(dir))?;
        }
        Ok(())
    })?;
    stage.phase("create", tree.files, Ends::Synced, |record| {
        for file in order {
            let path = tree.path(file);
            record.time(Op::Make, (1, 0), || target.create(&path))?;
        }
        Ok(())
    })
}

/// Half looks, a quarter each changes of mode and of times.
fn change(stage: &mut Stage<'_>, tree: &Tree) -> Result<()> {
    let (target, order) = (stage.target(), tree.shuffled(stage.seed() + 2));
    stage.phase("mix-cold", tree.files, Ends::Synced, |record| {
        for file in order {
            let path = tree.path(file);
            match mix(file) % 4 {
                0 => record.time(Op::SetAttr, (1, 0), || target.set_perm(&path, PERM))?,
                1 => record.time(Op::SetAttr, (1, 0), || target.set_times(&path, 1))?,
                _ => {
                    let stat = record.time(Op::Stat, (1, 0), || target.stat(&path))?;
                    ensure!(stat.is_some(), "{path} is gone");
                }
            }
        }
        Ok(())
    })
}

fn rename(stage: &mut Stage<'_>, tree: &Tree) -> Result<()> {
    let (target, order) = (stage.target(), tree.shuffled(stage.seed() + 3));
    stage.phase("rename-cold", tree.files, Ends::Synced, |record| {
        for file in order {
            let (source, aim) = (tree.path(file), tree.renamed(file));
            record.time(Op::Rename, (1, 0), || target.rename(&source, &aim))?;
        }
        Ok(())
    })
}

fn list(stage: &mut Stage<'_>, tree: &Tree) -> Result<()> {
    let target = stage.target();
    let changed = (0..tree.files).filter(|file| mix(*file).is_multiple_of(4));
    let expected = (tree.files, changed.count() as u64);
    let found = stage.phase("readdir-stat-cold", tree.files, Ends::Returned, |record| {
        let (mut names, mut perms) = (0, 0);
        for dir in &tree.dirs {
            let before = names;
            let mut see = |name: &[u8], stat: Option<super::target::Stat>| {
                names += u64::from(name.starts_with(b"moved"));
                perms += u64::from(stat.is_some_and(|s| s.perm == PERM));
            };
            record.time(Op::List, (0, 0), || target.list(dir, true, &mut see))?;
            record.tally(names - before, 0);
        }
        Ok((names, perms))
    })?;
    ensure!(found == expected, "found {found:?} of {expected:?}");
    Ok(())
}

/// Each file of each directory is opened, read and closed. It is empty.
fn read(stage: &mut Stage<'_>, tree: &Tree) -> Result<()> {
    let target = stage.target();
    let found = stage.phase("readdir-read-cold", tree.files, Ends::Returned, |record| {
        let (mut found, mut bytes) = (0, Vec::new());
        for dir in &tree.dirs {
            let mut names = Vec::new();
            record.time(Op::List, (0, 0), || {
                target.list(dir, false, &mut |name, _| {
                    names.push(String::from_utf8_lossy(name).into_owned());
                })
            })?;
            for name in names.iter().filter(|name| name.starts_with("moved")) {
                let path = format!("{dir}/{name}");
                record.time(Op::Read, (1, 0), || target.read(&path, &mut bytes))?;
                ensure!(bytes.is_empty(), "{path} is not empty");
                found += 1;
            }
        }
        Ok(found)
    })?;
    let expected = tree.files;
    ensure!(found == expected, "read {found} of {expected}");
    Ok(())
}

fn delete(stage: &mut Stage<'_>, tree: &Tree) -> Result<()> {
    let (target, order) = (stage.target(), tree.shuffled(stage.seed() + 4));
    stage.phase("unlink-cold", tree.files, Ends::Synced, |record| {
        for file in order {
            let path = tree.renamed(file);
            record.time(Op::Remove, (1, 0), || target.unlink(&path))?;
        }
        Ok(())
    })?;
    for dir in tree.dirs.iter().rev() {
        target.remove_dir(dir)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_the_same_each_time_and_every_file_comes_once() {
        let (tree, again) = (Tree::new(500, 7), Tree::new(500, 7));
        assert_eq!(tree.path(499), again.path(499));
        let mut order = tree.shuffled(3);
        assert_ne!(order, tree.shuffled(4));
        order.sort_unstable();
        assert_eq!(order, (0..500).collect::<Vec<u64>>());
        assert!(tree.dirs.iter().any(|dir| dir.contains('/')));
    }
}
