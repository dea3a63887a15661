//! Workloads of the key-value engine, in the order in which they run.

mod append;
mod branch_reads;
mod defrag;
mod fill;
mod fill_sync;
mod full;
mod many_gets;
mod policy;
mod random;
mod readers;
mod recovery;
mod resp;
mod sequential;
mod snapshot;
mod sweep;
mod sync_sizes;
mod tombstones;
mod transactions;
mod tuples;
mod versions;
mod walk;
mod ycsb;

use crate::context::Context;
use crate::names;
use crate::report::Scale;
use anyhow::Result;

/// A workload.
pub(crate) struct Workload {
    /// Its name on the command line and in reports.
    pub(crate) name: &'static str,
    /// What it is, in a few words.
    pub(crate) about: &'static str,
    /// It asks for what only our side has.
    pub(crate) is_ours_only: bool,
    /// It only puts, and syncs each put, so that a bare append can do it.
    pub(crate) is_append: bool,
    /// It runs transactions.
    pub(crate) is_of_transactions: bool,
    /// It is for servers that clients connect to.
    pub(crate) is_of_servers: bool,
    /// Number of steps; each runs in a process of its own.
    pub(crate) steps: fn(&Scale) -> u32,
    /// Whether a step begins with an empty folder.
    pub(crate) is_fresh: fn(u32) -> bool,
    /// Whether a step ends as if killed.
    pub(crate) is_killed: fn(u32) -> bool,
    /// Does a step.
    pub(crate) run: fn(&mut Context<'_>, u32) -> Result<()>,
}

impl Workload {
    /// A workload of one step on every side.
    const fn new(
        name: &'static str,
        about: &'static str,
        run: fn(&mut Context<'_>, u32) -> Result<()>,
    ) -> Self {
        Self {
            name,
            about,
            is_ours_only: false,
            is_append: false,
            is_of_transactions: false,
            is_of_servers: false,
            steps: |_| 1,
            is_fresh: |_| true,
            is_killed: |_| false,
            run,
        }
    }
}

/// All of them.
pub(crate) fn all() -> Vec<Workload> {
    let mut all = Vec::new();
    all.extend(sequential::workloads());
    all.extend(random::workloads());
    all.extend(append::workloads());
    all.extend(fill::workloads());
    all.push(fill_sync::workload());
    all.push(sync_sizes::workload());
    all.push(tombstones::workload());
    all.push(snapshot::workload());
    all.extend(transactions::workloads());
    all.push(branch_reads::workload());
    all.push(resp::workload());
    all.push(recovery::workload());
    all.push(versions::workload());
    all.push(full::workload());
    all.push(ycsb::workload());
    all.push(readers::workload());
    all.push(many_gets::workload());
    all.push(sweep::workload());
    all.extend(policy::workloads());
    all.push(defrag::workload());
    all
}

/// The workloads that a list of names means; see [`names::choose`].
pub(crate) fn choose(names: &[String]) -> Result<Vec<Workload>> {
    names::choose(all(), |workload| workload.name, names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<&str> = all().iter().map(|workload| workload.name).collect();
        assert_eq!(names.len(), all().len());
    }

    #[test]
    fn a_name_means_its_variants_too() {
        let chosen = |name: &str| choose(&[name.to_owned()]).map(|chosen| chosen.len());
        assert_eq!(chosen("random").unwrap(), 2);
        assert_eq!(chosen("random-64").unwrap(), 1);
        assert_eq!(choose(&[]).unwrap().len(), all().len());
        assert!(chosen("rand").is_err());
    }
}
