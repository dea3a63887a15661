//! Policies of compaction on rows as the file system writes them: what each costs writes, reads and
//! space, for metadata ([`meta`]) and for contents ([`data`]).
//!
//! | policy | tables of level 0 that wait | each level is larger by |
//! |---|---|---|
//! | `leveled` | 4 | 8 |
//! | `lazy`, the default | 16 | 8 |
//! | `tiered` | 64 | 8 |
//! | `narrow` | 16 | 4 |
//! | `wide` | 16 | 16 |
//!
//! The last phase, `rest`, is the background work that a policy has put off until then. Its `write
//! x` is per byte that was put before. `put_x` of a phase is bytes to storage per byte that was put
//! in it.

mod data;
mod meta;

use super::Workload;
use crate::context::{Context, Work};
use crate::measure::Op;
use crate::side::Ours;
use anyhow::Result;
use stitch_kv::TreeOptions;

/// Largest memtable of our engine: less where the memory is less.
const MEMTABLE_BYTES_MAX: u64 = 32 << 20;
/// Level 0 is kept to what free space of so many times its size can compact at once.
const LEVEL0_ROOM: u64 = 4;
/// More free space than this for each byte of rows is never asked for: there are not so many
/// tables.
const ROOM_MAX: u64 = 8;

#[derive(Clone, Copy, Debug)]
struct Policy {
    name: &'static str,
    level0_tables_max: usize,
    fanout: u64,
}

const fn policy(name: &'static str, level0_tables_max: usize, fanout: u64) -> Policy {
    Policy {
        name,
        level0_tables_max,
        fanout,
    }
}

const POLICIES: [Policy; 5] = [
    policy("leveled", 4, 8),
    policy("lazy", 16, 8),
    policy("tiered", 64, 8),
    policy("narrow", 16, 4),
    policy("wide", 16, 16),
];

pub(super) fn workloads() -> [Workload; 2] {
    let all = Workload {
        is_ours_only: true,
        steps: |_| POLICIES.len() as u32,
        ..Workload::new("", "", |_, _| Ok(()))
    };
    [
        Workload {
            name: "policy-meta",
            about: "compaction policies on names and inodes",
            run: |context, step| meta::run(context, POLICIES[step as usize]),
            ..all
        },
        Workload {
            name: "policy-data",
            about: "compaction policies on contents of files",
            run: |context, step| data::run(context, POLICIES[step as usize]),
            ..all
        },
    ]
}

/// Opens the store with a policy, for so many bytes of rows, which `row_bytes` is the size of.
fn open(
    context: &mut Context<'_>,
    policy: Policy,
    tree: TreeOptions,
    (bytes, row_bytes): (u64, u64),
) -> Result<()> {
    let memtable = context.scale().write_buffer_bytes().min(MEMTABLE_BYTES_MAX);
    let tables_max = POLICIES.iter().map(|p| p.level0_tables_max as u64).max();
    let level0 = LEVEL0_ROOM * memtable * tables_max.unwrap_or(0);
    let room = 2 * bytes + level0.min(ROOM_MAX * bytes);
    let mut options = context.options(bytes, row_bytes);
    options.volume_bytes = options.volume_bytes.max(room);
    options.ours = Ours {
        tree,
        level0_tables_max: Some(policy.level0_tables_max),
        fanout: Some(policy.fanout),
    };
    context.open_with(options)
}

/// Bytes that phases put, as the engine counts them.
#[derive(Debug, Default)]
struct Put {
    bytes: u64,
}

impl Put {
    /// Adds the bytes of the last phase, and their cost to the phase.
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    fn note(&mut self, context: &mut Context<'_>) {
        let phase = context.last();
        let bytes = phase.counters.get("kv.put_bytes").copied().unwrap_or(0);
        self.bytes += bytes;
        if bytes > 0 {
            let ratio = phase.device_write_bytes as f64 / bytes as f64;
            phase.values.insert("put_x".to_owned(), ratio);
        }
    }

    /// A phase that does what was put off.
    fn rest(&self, context: &mut Context<'_>, policy: Policy) -> Result<()> {
        let name = format!("rest {}", policy.name);
        context.phase(&name, Work::Load, 1, |bench, record| {
            record.time(Op::Write, (1, self.bytes), || bench.side.settle())
        })
    }
}

/// Adds to the last phase the latencies of each kind of operation: mean and p99.9.
fn by_operation(context: &mut Context<'_>) {
    let phase = context.last();
    for (name, latency) in &phase.latencies {
        let values = &mut phase.values;
        values.insert(format!("{name}_us"), latency.mean_us);
        values.insert(format!("{name}_p999_us"), latency.p999_us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_default_is_among_the_policies() {
        let default = stitch_vt::VtOptions::default();
        let lazy = POLICIES
            .iter()
            .find(|policy| policy.name == "lazy")
            .unwrap();
        assert_eq!(lazy.level0_tables_max, default.level0_tables_max);
        assert_eq!(lazy.fanout, default.fanout);
        let all: BTreeSet<_> = POLICIES
            .iter()
            .map(|p| (p.level0_tables_max, p.fanout))
            .collect();
        assert_eq!(all.len(), POLICIES.len());
    }
}
