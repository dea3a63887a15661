//! Metadata operations one by one, by one and by two threads.
//!
//! Each thread has directories of its own, of 1,000 names each. A name that is asked for is known
//! to the kernel, unless the phase says otherwise.

use super::stage::{Ends, Stage};
use super::target::Target;
use super::{Caches, FsWorkload};
use crate::measure::{Op, Recorder, by_threads};
use anyhow::{Result, ensure};

/// Names in a directory.
const DIR_NAMES: u64 = 1000;
const PERM: u32 = 0o600;
const MTIME_S: i64 = 1_000_000_000;

pub(super) fn workloads() -> Vec<FsWorkload> {
    const STEPS: &[Caches] = &[Caches::Warm, Caches::Cold];
    vec![
        FsWorkload::new(
            "meta-1",
            "metadata operations, one thread",
            STEPS,
            |s, n| run(s, n, 1),
        ),
        FsWorkload::new(
            "meta-2",
            "metadata operations, two threads",
            STEPS,
            |s, n| run(s, n, 2),
        ),
    ]
}

/// What the phases of a step need.
struct Meta<'a, 'b> {
    stage: &'a mut Stage<'b>,
    threads: u64,
    /// Files of each thread.
    each: u64,
}

/// What is done with each name that is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum List {
    /// Nothing.
    Names,
    /// Its attributes are asked for.
    Stat,
    /// The file is opened, read and closed. It is empty.
    Read,
}

/// One operation: a side, a thread and a number.
type Step<'a> = dyn Fn(&dyn Target, u64, u64) -> Result<()> + Sync + 'a;

fn run(stage: &mut Stage<'_>, step: u32, threads: u64) -> Result<()> {
    stage.without_cap();
    let each = (stage.fs_scale().files / 5).clamp(100, 50_000);
    let mut meta = Meta {
        stage,
        threads,
        each,
    };
    if step == 0 {
        meta.make_and_change()
    } else {
        meta.list_and_remove()
    }
}

fn dir(thread: u64, number: u64) -> String {
    format!("t{thread}-{}", number / DIR_NAMES)
}

fn file(thread: u64, number: u64) -> String {
    format!("{}/file-{number}", dir(thread, number))
}

fn renamed(thread: u64, number: u64) -> String {
    format!("{}/renamed-{number}", dir(thread, number))
}

fn subdir(thread: u64, number: u64) -> String {
    format!("{}/dir-{number}", dir(thread, number))
}

impl Meta<'_, '_> {
    fn make_and_change(&mut self) -> Result<()> {
        for thread in 0..self.threads {
            for number in (0..self.each).step_by(DIR_NAMES as usize) {
                self.stage.target().make_dir(&dir(thread, number))?;
            }
        }
        self.phase("create", Op::Make, &|target, thread, number| {
            target.create(&file(thread, number))
        })?;
        self.phase("lookup-missing", Op::Stat, &|target, thread, number| {
            let found = target.stat(&renamed(thread, number))?;
            ensure!(found.is_none(), "what was not made is there");
            Ok(())
        })?;
        self.phase("stat", Op::Stat, &|target, thread, number| {
            let found = target.stat(&file(thread, number))?;
            ensure!(found.is_some_and(|stat| stat.size == 0), "a file is gone");
            Ok(())
        })?;
        self.phase("chmod", Op::SetAttr, &|target, thread, number| {
            target.set_perm(&file(thread, number), PERM)
        })?;
        self.phase("utime", Op::SetAttr, &|target, thread, number| {
            target.set_times(&file(thread, number), MTIME_S)
        })?;
        self.phase("rename", Op::Rename, &|target, thread, number| {
            target.rename(&file(thread, number), &renamed(thread, number))
        })
    }

    fn list_and_remove(&mut self) -> Result<()> {
        self.list("readdir-stat-cold", List::Stat)?;
        self.list("readdir-stat", List::Stat)?;
        self.list("readdir", List::Names)?;
        self.list("readdir-read", List::Read)?;
        self.phase("unlink", Op::Remove, &|target, thread, number| {
            target.unlink(&renamed(thread, number))
        })?;
        self.phase("mkdir", Op::Make, &|target, thread, number| {
            target.make_dir(&subdir(thread, number))
        })?;
        self.phase("stat-dir", Op::Stat, &|target, thread, number| {
            let found = target.stat(&subdir(thread, number))?;
            ensure!(found.is_some(), "a directory is gone");
            Ok(())
        })?;
        self.phase("readdir-empty", Op::List, &|target, thread, number| {
            let mut found = 0;
            target.list(&subdir(thread, number), false, &mut |_, _| found += 1)?;
            ensure!(found == 0, "an empty directory has {found} names");
            Ok(())
        })?;
        self.phase("rmdir", Op::Remove, &|target, thread, number| {
            target.remove_dir(&subdir(thread, number))
        })
    }

    /// The operation on each file of each thread.
    fn phase(&mut self, name: &str, op: Op, step: &Step<'_>) -> Result<()> {
        let (target, threads, each) = (self.stage.target(), self.threads, self.each);
        self.stage
            .phase(name, threads * each, Ends::Returned, |record| {
                by_threads(record, threads, |thread, record| {
                    for number in 0..each {
                        record.time(op, (1, 0), || step(&*target, thread, number))?;
                    }
                    Ok(())
                })
            })
    }

    /// Lists every directory; an operation is an entry.
    fn list(&mut self, name: &str, how: List) -> Result<()> {
        let (target, threads, each) = (self.stage.target(), self.threads, self.each);
        self.stage
            .phase(name, threads * each, Ends::Returned, |record| {
                by_threads(record, threads, |thread, record| {
                    for number in (0..each).step_by(DIR_NAMES as usize) {
                        let names = DIR_NAMES.min(each - number);
                        let path = dir(thread, number);
                        list_one(record, &*target, (&path, names), how)?;
                    }
                    Ok(())
                })
            })
    }
}

fn list_one(
    record: &mut Recorder<'_>,
    target: &dyn Target,
    (path, names): (&str, u64),
    how: List,
) -> Result<()> {
    let (mut found, mut changed) = (Vec::new(), 0);
    let mut bytes = Vec::new();
    record.time(Op::List, (names, 0), || {
        target.list(path, how == List::Stat, &mut |name, stat| {
            if name.starts_with(b"renamed-") {
                found.push(String::from_utf8_lossy(name).into_owned());
            }
            let is_changed = stat.is_some_and(|s| s.perm == PERM && s.mtime_s == MTIME_S);
            changed += u64::from(is_changed);
        })?;
        for name in found.iter().filter(|_| how == List::Read) {
            target.read(&format!("{path}/{name}"), &mut bytes)?;
            ensure!(bytes.is_empty(), "{path}/{name} is not empty");
        }
        Ok(())
    })?;
    let count = found.len() as u64;
    ensure!(count == names, "{path}: {count} names of {names}");
    let is_whole = how != List::Stat || changed == names;
    ensure!(is_whole, "{path}: attributes were lost");
    Ok(())
}
