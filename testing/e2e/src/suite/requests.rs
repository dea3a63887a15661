//! The number of requests for common operations: no more than necessary.
//!
//! The expected counts are those of `docs/adr/0010-fuse-requests-avoided.md`, with the reason for
//! each remaining request. FORGET and RELEASE are not counted: no caller waits for them.

mod syncs;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::harness::context::Context;
use crate::harness::mount::{Mount, Spec};
use crate::harness::process::{command, run};
use crate::harness::report::Case;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "create-write-close",
        run: create_write_close,
    },
    Case {
        name: "for-root-alone",
        run: for_root_alone,
    },
    Case {
        name: "without-xattrs",
        run: without_extended_attributes,
    },
    Case {
        name: "stat-known",
        run: stat_of_a_known_file_asks_nothing,
    },
    Case {
        name: "read-cached",
        run: reading_a_cached_file_asks_nothing,
    },
    Case {
        name: "read-in-order",
        run: reading_in_order,
    },
    Case {
        name: "list-1000",
        run: listing_a_folder,
    },
    Case {
        name: "unlink",
        run: unlink,
    },
    Case {
        name: "syncs",
        run: syncs::each_way_syncs_the_device,
    },
    Case {
        name: "syncs-views",
        run: syncs::each_way_syncs_the_device_in_a_view,
    },
];

/// Rounds of each operation; the counts are per round.
const ROUNDS: u64 = 100;
/// Requests that no caller waits for.
const UNAWAITED: [&str; 4] = ["forget", "batch_forget", "release", "releasedir"];

/// Creates a file, writes 200 bytes, closes: a lookup, the creation, the parent's attributes for
/// the permission check, whether the file has capabilities to lose, and the write.
fn create_write_close(context: &Context) -> Result<()> {
    let mount = new_mount(context, "rq-create")?;
    let counted = count(context, &mount, |dir, round| {
        let mut file = File::create_new(dir.join(format!("new{round}")))?;
        file.write_all(&[7; 200])?;
        Ok(())
    })?;
    expect(
        &counted,
        &[
            ("lookup", 1),
            ("mknod", 1),
            ("getattr", 1),
            ("getxattr", 1),
            ("write", 1),
        ],
    )
}

/// The same and a removal in a mount that only root can enter: there are no requests for the
/// folder.
fn for_root_alone(context: &Context) -> Result<()> {
    let mut spec = Spec::new("rq-alone", "128M");
    spec.options.push("noallow_other".to_owned());
    let mount = Mount::create(context, &spec)?;
    let counted = count(context, &mount, |dir, round| {
        let path = dir.join(format!("new{round}"));
        let mut file = File::create_new(&path)?;
        file.write_all(&[7; 200])?;
        drop(file);
        fs::remove_file(path)?;
        Ok(())
    })?;
    expect(
        &counted,
        &[
            ("lookup", 1),
            ("mknod", 1),
            ("getxattr", 1),
            ("write", 1),
            ("unlink", 1),
        ],
    )
}

/// The same with a change of owner, without extended attributes: there are no requests for
/// capabilities.
fn without_extended_attributes(context: &Context) -> Result<()> {
    let spec = Spec::new("rq-noxattr", "128M").option("noallow_other");
    let mount = Mount::create(context, &spec.option("noxattr"))?;
    let counted = count(context, &mount, |dir, round| {
        let path = dir.join(format!("new{round}"));
        let mut file = File::create_new(&path)?;
        file.write_all(&[7; 200])?;
        chown(&path, Some(7), Some(7))?;
        drop(file);
        fs::remove_file(path)?;
        Ok(())
    })?;
    expect(
        &counted,
        &[
            ("lookup", 1),
            ("mknod", 1),
            ("write", 1),
            ("setattr", 1),
            ("unlink", 1),
        ],
    )
}

/// The kernel keeps names and attributes for ever.
fn stat_of_a_known_file_asks_nothing(context: &Context) -> Result<()> {
    let mount = new_mount(context, "rq-stat")?;
    let path = mount.dir().join("known");
    fs::write(&path, b"x")?;
    fs::metadata(&path)?;
    let counted = count(context, &mount, |_, _| {
        ensure!(fs::metadata(&path)?.size() == 1);
        Ok(())
    })?;
    expect(&counted, &[])
}

/// The kernel opens without asking and has the pages.
fn reading_a_cached_file_asks_nothing(context: &Context) -> Result<()> {
    let mount = new_mount(context, "rq-read")?;
    let path = mount.dir().join("small");
    fs::write(&path, [5; 4096])?;
    ensure!(fs::read(&path)?.len() == 4096);
    let counted = count(context, &mount, |_, _| {
        let mut bytes = [0; 4096];
        File::open(&path)?.read_exact(&mut bytes)?;
        ensure!(bytes == [5; 4096]);
        Ok(())
    })?;
    expect(&counted, &[])
}

/// A file read cold and in order, a little at a time: the kernel asks for megabytes, ahead of the
/// reader.
fn reading_in_order(context: &Context) -> Result<()> {
    const MIB: usize = 1 << 20;
    const COUNT: usize = 32;
    let mut mount = new_mount(context, "rq-order")?;
    let path = mount.dir().join("large");
    fs::write(&path, vec![5; COUNT * MIB])?;
    mount.remount()?;
    let before = mount.stats()?;
    let mut file = File::open(&path)?;
    let mut piece = vec![0; 64 << 10];
    for _ in 0..COUNT * MIB / piece.len() {
        file.read_exact(&mut piece)?;
        ensure!(piece.iter().all(|&byte| byte == 5), "other bytes");
    }
    let reads = mount.stats()?.since(&before, "fuse.requests.read")?;
    println!("      {reads} reads for {COUNT} MiB");
    // The first ones are shorter. Without root the kernel's 128 KiB hold.
    ensure!(reads <= COUNT as u64 + 8, "{reads} requests");
    Ok(())
}

/// `ls -l` of 1,000 files after a remount: a few READDIRPLUS, which bring the attributes along.
fn listing_a_folder(context: &Context) -> Result<()> {
    let mut mount = new_mount(context, "rq-list")?;
    let dir = mount.dir().join("many");
    fs::create_dir(&dir)?;
    for index in 0..1000 {
        fs::write(dir.join(format!("file{index}")), b"")?;
    }
    mount.remount()?;
    fs::metadata(&dir)?;
    let before = mount.stats()?;
    list(&dir)?;
    let counted = awaited(&mount.stats()?.changes(&before, "fuse.requests."));
    println!("      cold: {counted:?}");
    let readdirs: u64 = ["readdir", "readdirplus"]
        .map(|name| counted.get(name).copied().unwrap_or(0))
        .iter()
        .sum();
    let others: u64 = counted.values().sum::<u64>() - readdirs;
    ensure!(
        (1..=16).contains(&readdirs),
        "{readdirs} listings of 1000 names"
    );
    // The kernel may ask about a few names when its first answer was a plain listing.
    ensure!(others <= 4, "asked for single files: {counted:?}");

    let before = mount.stats()?;
    list(&dir)?;
    let counted = awaited(&mount.stats()?.changes(&before, "fuse.requests."));
    println!("      warm: {counted:?}");
    // The folder's attributes, and one each for `find` and for asking the counters.
    ensure!(
        counted.values().sum::<u64>() <= 3,
        "listing it again: {counted:?}"
    );
    Ok(())
}

fn list(dir: &Path) -> Result<()> {
    // `ls -l` asks for the access control list of each file besides, which the kernel cannot know.
    let listing = run(&mut command(
        "find",
        &[&dir.display().to_string(), "-type", "f", "-size", "0"],
    ))?;
    let count = listing.lines().count();
    ensure!(count == 1000, "{count} names");
    Ok(())
}

/// The removal, and the parent's attributes for the permission check.
fn unlink(context: &Context) -> Result<()> {
    let mount = new_mount(context, "rq-unlink")?;
    for round in 0..=ROUNDS {
        fs::write(mount.dir().join(format!("old{round}")), b"x")?;
    }
    let counted = count(context, &mount, |dir, round| {
        Ok(fs::remove_file(dir.join(format!("old{round}")))?)
    })?;
    expect(&counted, &[("unlink", 1), ("getattr", 1)])
}

fn new_mount<'a>(context: &'a Context, name: &str) -> Result<Mount<'a>> {
    context.needs_stitch()?;
    Mount::create(context, &Spec::new(name, "256M"))
}

/// Awaited requests by name during [`ROUNDS`] rounds, after one that warms up.
fn count(
    context: &Context,
    mount: &Mount<'_>,
    mut body: impl FnMut(&Path, u64) -> Result<()>,
) -> Result<BTreeMap<String, u64>> {
    body(mount.dir(), ROUNDS)?;
    context.sleep(Duration::from_millis(100));
    let before = mount.stats()?;
    for round in 0..ROUNDS {
        body(mount.dir(), round).with_context(|| format!("round {round}"))?;
    }
    let counted = awaited(&mount.stats()?.changes(&before, "fuse.requests."));
    println!("      {ROUNDS} rounds: {counted:?}");
    Ok(counted)
}

fn awaited(counted: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let awaited = counted
        .iter()
        .filter(|(name, _)| !UNAWAITED.contains(&name.as_str()));
    awaited
        .map(|(name, count)| (name.clone(), *count))
        .collect()
}

/// Fails if any request came more often than expected for each round. Asking for the counters may
/// itself cost a few.
fn expect(counted: &BTreeMap<String, u64>, expected: &[(&str, u64)]) -> Result<()> {
    for (name, &count) in counted {
        let per_round = expected
            .iter()
            .find(|(known, _)| known == name)
            .map_or(0, |row| row.1);
        ensure!(
            count <= per_round * ROUNDS + 5,
            "`{name}` came {count} times in {ROUNDS} rounds instead of {}: {counted:?}",
            per_round * ROUNDS
        );
    }
    Ok(())
}
