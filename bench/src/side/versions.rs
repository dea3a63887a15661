//! Stores with long version logs: many tables that are nowhere but in the version.

use super::OpenOptions;
use super::stitch::{self, TREE};
use anyhow::{Context as _, Result, bail};
use std::sync::Arc;
use stitch_base::{Lsn, Seqno, TableId, TreeId};
use stitch_format::vt_manifest::{Run, TableMeta, TreeRecord, VersionEdit};
use stitch_volume::{OpenOptions as VolumeOptions, Volume, VolumeError};

/// Runs that a table owns.
const RUNS: u64 = 16;
/// Length of a run, and of what lies between two.
const RUN_BYTES: u64 = 512;
const TABLE_BYTES: u64 = 2 * RUNS * RUN_BYTES;
/// No table takes fewer bytes in a version.
const META_BYTES_MIN: u64 = 200;
/// Tables that come with one change.
const DELTA_TABLES: u64 = 64;
/// The deepest level: nothing is due there.
const LEVEL: u8 = 7;
const SEQNO: Seqno = Seqno(1_000_000);

/// What was made.
pub(crate) struct Versions {
    /// Tables in the version.
    pub(crate) tables: u64,
    /// Bytes of the base and the changes that make it.
    pub(crate) version_bytes: u64,
}

fn table(number: u64, zones_at: u64) -> TableMeta {
    let at = zones_at + number * TABLE_BYTES;
    let run = |run: u64| Run {
        addr: at + 2 * run * RUN_BYTES,
        len_bytes: RUN_BYTES,
    };
    let key = |number: u64| [&number.to_be_bytes()[..], &[0x5a; 16]].concat();
    TableMeta {
        id: TableId(number + 1),
        tree: TreeId(1),
        smallest: key(2 * number),
        largest: key(2 * number + 1),
        largest_excluded: false,
        entry_count: 100,
        delete_count: 0,
        range_delete_count: 0,
        data_bytes: (RUNS - 1) * RUN_BYTES,
        value_bytes: 0,
        min_seqno: Seqno(1),
        max_seqno: SEQNO,
        shift: 0,
        root_addr: at,
        root_bytes: 512,
        runs: (0..RUNS).map(run).collect(),
    }
}

fn edit(tables: std::ops::Range<u64>, zones_at: u64) -> VersionEdit {
    let is_first = tables.start == 0;
    let tree = TreeRecord {
        id: TreeId(1),
        name: TREE.to_owned(),
        block_bytes: 4096,
        stitch_bytes: 64 << 10,
        compression: 0,
        value_block_bytes: 0,
        branch: None,
        branch_ranges: None,
    };
    VersionEdit {
        last_seqno: SEQNO,
        next_table: TableId(tables.end + 1),
        next_tree: TreeId(2),
        new_trees: if is_first { vec![tree] } else { Vec::new() },
        added: tables
            .map(|n| (LEVEL, Arc::new(table(n, zones_at))))
            .collect(),
        ..VersionEdit::default()
    }
}

/// Makes a store whose version log of `log_bytes` is full: a base as long as can be, and changes
/// behind it.
pub(crate) fn make_versions(options: &OpenOptions, log_bytes: u64) -> Result<Versions> {
    // A base takes a fifth of the log at most, and changes no more than twice as much.
    let tables_max = log_bytes * 3 / 5 / META_BYTES_MIN;
    let options = OpenOptions {
        volume_bytes: tables_max * TABLE_BYTES + 4 * log_bytes + (64 << 20),
        is_fresh: true,
        ..options.clone()
    };
    let device = stitch::open_device(&options, Some(log_bytes))?;
    let opened = Volume::open(device, &VolumeOptions::default())?;
    let volume = opened.volume;
    let zones_at = volume.superblock().areas.zones_at;
    let sample = edit(0..1000, zones_at).encode().len() as u64;
    assert!(sample > 1000 * META_BYTES_MIN, "a table takes that much");
    let mut tables = volume.base_bytes_max() * 1000 / sample * 9 / 10;
    let base = edit(0..tables, zones_at).encode();
    volume
        .commit_base(&base, Lsn(0))
        .context("the base does not fit")?;
    loop {
        let change = edit(tables..tables + DELTA_TABLES, zones_at);
        let is_full = volume.version_log_wants_base() || tables + DELTA_TABLES > tables_max;
        if is_full {
            break;
        }
        match volume.commit_delta(&change.encode(), Lsn(0)) {
            Ok(()) => tables += DELTA_TABLES,
            Err(VolumeError::VersionLogFull { .. }) => break,
            Err(error) => bail!(error),
        }
    }
    let version_bytes = volume.version_log_live_bytes();
    volume.close()?;
    Ok(Versions {
        tables,
        version_bytes,
    })
}
