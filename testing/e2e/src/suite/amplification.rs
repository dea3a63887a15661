//! The cost of operations at the device and in the engine, from the daemon's counters.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;

use anyhow::{Result, ensure};
use stitch_base::random::Rng;

use super::kernel_source;
use crate::harness::context::Context;
use crate::harness::mount::{Mount, Spec};
use crate::harness::process::shell;
use crate::harness::report::Case;
use crate::harness::stats::Stats;
use crate::harness::tree::expect_content;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "untar",
        run: an_untar_writes_little_more_than_its_bytes,
    },
    Case {
        name: "sequential",
        run: a_sequential_write_is_written_about_twice,
    },
    Case {
        name: "overwrite-random",
        run: random_overwrites_are_written_about_twice,
    },
    Case {
        name: "unlink-large",
        run: removing_a_large_file_is_a_few_writes,
    },
    Case {
        name: "overwrite-cold",
        run: a_small_overwrite_reads_no_data,
    },
];

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// Engine writes that removing a file of any size may take.
const FEW_WRITES: u64 = 8;

/// Device bytes over file bytes for the kernel's source: under 2.5.
fn an_untar_writes_little_more_than_its_bytes(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let tar = kernel_source::tar(context)?;
    let mount = Mount::create(context, &Spec::new("amp-untar", "4G"))?;
    let before = mount.stats()?;
    shell(mount.dir(), &format!("tar -xf {}", tar.display()))?;
    mount.sync()?;
    let written = written_since(&mount, &before)?;
    let user = shell(mount.dir(), "du -s --apparent-size -B1 . | cut -f1")?
        .trim()
        .parse()?;
    expect_ratio(written, user, 2.5)
}

/// Device bytes over file bytes for 1 GiB written in order: under 2.2, log included.
fn a_sequential_write_is_written_about_twice(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mount = Mount::create(context, &Spec::new("amp-seq", "4G"))?;
    let before = mount.stats()?;
    write_random(&mount.dir().join("file"), 1024 * MIB)?;
    mount.sync()?;
    let written = written_since(&mount, &before)?;
    expect_ratio(written, 1024 * MIB, 2.2)
}

/// Device bytes over file bytes for pages overwritten one by one, in random order: at most 2.1, log
/// included.
fn random_overwrites_are_written_about_twice(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mount = Mount::create(context, &Spec::new("amp-random", "2G"))?;
    let path = mount.dir().join("file");
    let bytes = 128 * MIB;
    write_random(&path, bytes)?;
    mount.sync()?;
    let before = mount.stats()?;
    let mut rng = Rng::new(SEED);
    let mut pages: Vec<u64> = (0..bytes / PAGE).collect();
    for last in (1..pages.len()).rev() {
        let other = rng.below(last as u64 + 1);
        pages.swap(last, usize::try_from(other)?);
    }
    let file = File::options().write(true).open(&path)?;
    let mut page = vec![0; usize::try_from(PAGE)?];
    for at in pages {
        rng.fill(&mut page);
        file.write_all_at(&page, at * PAGE)?;
    }
    drop(file);
    mount.sync()?;
    let written = written_since(&mount, &before)?;
    expect_ratio(written, bytes, 2.1)
}

/// Bytes written, without what makes appends to the log whole pages: until a sync that stays in the
/// page cache, where the next append goes over it.
fn written_since(mount: &Mount, before: &Stats) -> Result<u64> {
    let now = mount.stats()?;
    let padding = now.since(before, "log.padding_bytes")?;
    Ok(now
        .since(before, "device.write_bytes")?
        .saturating_sub(padding))
}

/// Unlinking 4 GiB and truncating to nothing put a constant number of messages into the engine.
fn removing_a_large_file_is_a_few_writes(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mount = Mount::create(context, &Spec::new("amp-unlink", "8G"))?;
    for how in ["unlink", "truncate"] {
        let path = mount.dir().join(how);
        let file = File::create(&path)?;
        // A chunk here and there: what counts is the range of keys.
        for at in (0..4096).step_by(2) {
            file.write_all_at(&[1; 4096], at * MIB)?;
        }
        file.sync_all()?;
        let before = mount.stats()?;
        match how {
            "unlink" => {
                drop(file);
                fs::remove_file(&path)?;
            }
            _ => file.set_len(0)?,
        }
        // Work after the last close of the file may follow a moment later.
        context.sleep(std::time::Duration::from_millis(300));
        let messages = mount.stats()?.since(&before, "kv.put_messages")?;
        println!("      {how}: {messages} messages");
        ensure!(
            (1..=FEW_WRITES).contains(&messages),
            "{how} took {messages} engine writes"
        );
    }
    Ok(())
}

/// Overwriting 100 bytes inside a cold file of 1 GiB reads no data block.
fn a_small_overwrite_reads_no_data(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("amp-cold", "4G"))?;
    let path = mount.dir().join("file");
    write_random(&path, 1024 * MIB)?;
    mount.remount()?;
    let file = File::options().write(true).open(&path)?;
    let before = mount.stats()?;
    for index in 0..20 {
        file.write_all_at(&[0xab; 100], index * 50 * MIB + 12_345)?;
    }
    let blocks = mount.stats()?.since(&before, "vt.data_blocks_read")?;
    ensure!(blocks == 0, "20 overwrites read {blocks} data blocks");
    drop(file);

    // The bytes are there, among the old ones.
    let mut expected = vec![0; 4096];
    let mut rng = Rng::new(SEED);
    rng.fill(&mut expected);
    let start = fs::File::open(&path)?;
    let mut found = vec![0; 4096];
    start.read_exact_at(&mut found, 0)?;
    ensure!(found == expected, "the first 4 KiB changed");
    let mut found = [0; 100];
    start.read_exact_at(&mut found, 50 * MIB + 12_345)?;
    ensure!(found == [0xab; 100], "an overwrite is missing");
    drop(start);
    fs::write(mount.dir().join("small"), b"small")?;
    mount.remount()?;
    expect_content(&mount.dir().join("small"), b"small")
}

const SEED: u64 = 99;

/// Writes bytes that do not compress.
pub(super) fn write_random(path: &std::path::Path, len: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let mut rng = Rng::new(SEED);
    let mut buffer = vec![0; 1 << 20];
    for _ in 0..len / MIB {
        rng.fill(&mut buffer);
        file.write_all(&buffer)?;
    }
    Ok(())
}

fn expect_ratio(written: u64, user: u64, limit: f64) -> Result<()> {
    let ratio = written as f64 / user as f64;
    println!(
        "      {} MiB written for {} MiB: {ratio:.2}",
        written / MIB,
        user / MIB
    );
    ensure!(
        ratio >= 0.9,
        "{ratio:.2} is too little: the counter is wrong"
    );
    ensure!(
        ratio < limit,
        "{ratio:.2} bytes written for each byte, limit {limit}"
    );
    Ok(())
}
