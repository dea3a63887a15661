//! Workloads of file systems, in the order in which they run.
//!
//! The parent ([`drive`]) gives a side an empty disk and mounts it ([`ground`]); each step of a
//! workload runs in a process of its own ([`stage`]) and asks for file operations ([`target`]),
//! which are system calls in the mount.

mod aging;
mod append_sync;
pub(crate) mod command;
mod delete_sizes;
pub(crate) mod drive;
mod git;
mod ground;
mod juicefs;
mod large;
mod maildir;
mod meta;
mod micro;
mod null;
mod order;
mod overwritten;
mod passthrough;
mod rsync;
pub(crate) mod serve;
mod server;
pub(crate) mod side;
mod small;
mod source_tree;
mod sqlite;
pub(crate) mod stage;
mod target;
pub(crate) mod tool;
mod tree_random;
mod txn;
mod views;

use crate::child::Outcome;
use crate::names;
use crate::process;
use anyhow::{Context as _, Result};
use side::FsSide;
use stage::{Stage, StageSpec};

/// A workload.
pub(crate) struct FsWorkload {
    /// Its name on the command line and in reports.
    pub(crate) name: &'static str,
    /// What it is, in a few words.
    pub(crate) about: &'static str,
    /// Whether each of its steps begins with nothing in the caches.
    pub(crate) steps: &'static [Caches],
    /// Why a side cannot do it; `None` if it can.
    pub(crate) why_not: fn(&FsSide) -> Option<String>,
    /// Whether it runs where none is named; otherwise only where its whole name is given.
    pub(crate) is_default: bool,
    /// Files it makes at most, for each of `--files`; the disk has room for them.
    pub(crate) files_factor: u64,
    /// Does a step.
    pub(crate) run: fn(&mut Stage<'_>, u32) -> Result<()>,
}

/// What a step finds in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caches {
    /// What the step before left there.
    Warm,
    /// Nothing: the file system was unmounted and mounted again.
    Cold,
}

impl FsWorkload {
    /// A workload that every side can do.
    const fn new(
        name: &'static str,
        about: &'static str,
        steps: &'static [Caches],
        run: fn(&mut Stage<'_>, u32) -> Result<()>,
    ) -> Self {
        Self {
            name,
            about,
            steps,
            why_not: |_| None,
            is_default: true,
            files_factor: 1,
            run,
        }
    }
}

/// All of them.
pub(crate) fn all() -> Vec<FsWorkload> {
    let mut all = Vec::new();
    all.extend(meta::workloads());
    all.extend(small::workloads());
    all.push(append_sync::workload());
    all.push(large::workload());
    all.push(micro::workload());
    all.extend(overwritten::workloads());
    all.extend(delete_sizes::workloads());
    all.push(sqlite::workload());
    all.push(source_tree::workload());
    all.extend(server::workloads());
    all.push(tree_random::workload());
    all.push(maildir::workload());
    all.push(rsync::workload());
    all.push(git::workload());
    all.push(aging::workload());
    all.push(views::workload());
    all.push(views::kept::workload());
    all.push(txn::workload());
    all
}

/// The workloads that a list of names means (see [`names::choose`]); of those that take long, only
/// those that are named in full.
fn choose(names: &[String]) -> Result<Vec<FsWorkload>> {
    let mut all = all();
    all.retain(|one| one.is_default || names.iter().any(|name| name == one.name));
    names::choose(all, |workload| workload.name, names)
}

/// Does a step, in the process that was started for it.
pub(crate) fn run_step(spec: &StageSpec, progress: &stage::StageProgress<'_>) -> Result<Outcome> {
    let workloads = all();
    let workload = workloads.iter().find(|w| w.name == spec.workload);
    let workload = workload.with_context(|| format!("no workload `{}`", spec.workload))?;
    let mut stage = Stage::open(spec, progress)?;
    (workload.run)(&mut stage, spec.step)?;
    let (phases, carry) = stage.finish()?;
    Ok(Outcome {
        phases,
        peak_rss_bytes: process::peak_rss_bytes(),
        carry,
        is_cut: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_mean_their_variants() {
        let names: BTreeSet<&str> = all().iter().map(|workload| workload.name).collect();
        assert_eq!(names.len(), all().len());
        let chosen = |name: &str| choose(&[name.to_owned()]).map(|chosen| chosen.len());
        assert_eq!(chosen("meta").unwrap(), 2);
        assert_eq!(chosen("meta-1").unwrap(), 1);
        assert!(chosen("met").is_err());
        assert_eq!(chosen("small-files").unwrap(), 3);
    }

    #[test]
    fn what_takes_long_is_run_only_by_its_whole_name() {
        let chosen = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let chosen = choose(&names).unwrap();
            chosen.iter().map(|one| one.name).collect::<Vec<&str>>()
        };
        let sustained = "small-files-sustained";
        let defaults = chosen(&[]);
        assert_eq!(defaults.len() + 3, all().len());
        assert!(!defaults.contains(&sustained) && !defaults.contains(&"aging"));
        assert!(!chosen(&["small-files"]).contains(&sustained));
        assert_eq!(chosen(&[sustained]), [sustained]);
        assert_eq!(chosen(&["small-files", sustained]).len(), 4);
    }
}
