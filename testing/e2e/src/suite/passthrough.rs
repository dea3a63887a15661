//! Large files with `passthrough`: their contents need no request. Whatever is done to a file that
//! others have open or mapped, all of them see what a plain directory shows.

mod modes;
mod random;

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};

use anyhow::{Context as _, Result, ensure};
use rustix::fs::OFlags;

use crate::harness::context::Context;
use crate::harness::map::Map;
use crate::harness::mount::{Mount, Spec};
use crate::harness::report::{Case, Skip};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "reads",
        run: reads_do_not_reach_the_daemon,
    },
    Case {
        name: "modes",
        run: modes::open_files_show_what_a_plain_directory_shows,
    },
    Case {
        name: "mapped-times",
        run: changes_through_a_mapping_move_the_times,
    },
    Case {
        name: "random",
        run: random::open_files_do_what_their_twins_do,
    },
    Case {
        name: "synchronous",
        run: synchronous_writes_of_a_lent_file_sync_the_device,
    },
    Case {
        name: "kill9",
        run: what_was_synced_is_there_after_a_kill,
    },
];

/// Files above this are plain files.
const FROM: &str = "large_files=external:64K";
const LEN: usize = 4 << 20;

/// How it is mounted.
pub(super) fn spec(name: &str) -> Spec {
    Spec::new(name, "512M").option(FROM).option("passthrough")
}

/// Mounts with it. Skips the case if the kernel lacks it.
fn mount<'a>(context: &'a Context, name: &str) -> Result<Mount<'a>> {
    mount_with(context, &spec(name))
}

/// The same with this specification.
pub(super) fn mount_with<'a>(context: &'a Context, spec: &Spec) -> Result<Mount<'a>> {
    context.needs_stitch()?;
    match Mount::create(context, spec) {
        Err(error) if format!("{error:#}").contains("CONFIG_FUSE_PASSTHROUGH") => {
            Err(Skip("this kernel has no passthrough".to_owned()).into())
        }
        other => other,
    }
}

fn pattern(len: usize) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at / 7 + at / 4096) % 251).expect("below 256");
    (0..len).map(byte).collect()
}

/// Read cold, mapped, and copied, a large file costs no READ; a small one does.
fn reads_do_not_reach_the_daemon(context: &Context) -> Result<()> {
    let mut mount = mount(context, "pt-reads")?;
    let (large, small) = (mount.dir().join("large"), mount.dir().join("small"));
    let expected = pattern(LEN);
    fs::write(&large, &expected)?;
    fs::write(&small, &expected[..5000])?;
    mount.remount()?;
    let before = mount.stats()?;
    let mut file = File::open(&large)?;
    let mut found = Vec::new();
    file.read_to_end(&mut found)?;
    ensure!(found == expected, "other bytes");
    let map = Map::new(&file, LEN, false)?;
    drop(file);
    ensure!(map.read(0, LEN)? == expected, "other bytes are mapped");
    ensure!(fs::read(&large)? == expected, "other bytes, read again");
    let after = mount.stats()?;
    let reads = after.since(&before, "fuse.requests.read")?;
    let opens = after.since(&before, "fuse.requests.open")?;
    println!("      {reads} reads and {opens} opens for 3 times {LEN} bytes");
    ensure!(reads == 0, "{reads} reads reached the daemon");
    ensure!(opens == 2, "{opens} opens");
    drop(map);
    ensure!(
        fs::read(&small)? == expected[..5000],
        "other bytes of the small one"
    );
    let reads = mount.stats()?.since(&after, "fuse.requests.read")?;
    ensure!(reads == 1, "{reads} reads of a small file");
    // A writer sends requests, and so do readers while it has the file open.
    let writer = OpenOptions::new().read(true).write(true).open(&large)?;
    writer.write_all_at(b"new", 100)?;
    let after = mount.stats()?;
    ensure!(fs::read(&large)?[100..103] == *b"new", "what was written");
    let reads = mount.stats()?.since(&after, "fuse.requests.read")?;
    ensure!(reads > 0, "it is open for writing, and was read beside us");
    drop(writer);
    mount.unmount()?;
    mount.fsck()
}

/// A write to a mapped page sends no request, but the times that a caller reads reflect it.
fn changes_through_a_mapping_move_the_times(context: &Context) -> Result<()> {
    let mut mount = mount(context, "pt-mapped")?;
    let path = mount.dir().join("large");
    fs::write(&path, pattern(LEN))?;
    // RELEASE is sent after close(2) returns, and the file counts as open for writing until then.
    mount.remount()?;
    let reader = File::open(&path)?;
    let writer = OpenOptions::new().read(true).write(true).open(&path)?;
    let map = Map::new(&writer, LEN, true)?;
    drop(writer);
    for round in 0..3_u8 {
        let before = fs::metadata(&path)?;
        // Longer than the host's clock ticks.
        context.sleep(std::time::Duration::from_millis(30));
        let at = usize::from(round) * 4096;
        map.write(at, &[round; 10])?;
        let after = fs::metadata(&path)?;
        let time = |m: &fs::Metadata| (m.mtime(), m.mtime_nsec());
        ensure!(
            time(&after) > time(&before),
            "round {round}: the time stays"
        );
        ensure!(after.ctime() >= after.mtime(), "round {round}");
        let mut found = [0; 10];
        reader.read_exact_at(&mut found, at as u64)?;
        ensure!(found == [round; 10], "round {round}: {found:?}");
        // So that the page is written for the first time again.
        map.sync()?;
    }
    drop(map);
    drop(reader);
    mount.remount()?;
    ensure!(fs::read(&path)?[8192..8202] == [2; 10], "it was kept");
    mount.unmount()?;
    mount.fsck()
}

/// The kernel sends no FSYNC after such writes, which go past its cache.
fn synchronous_writes_of_a_lent_file_sync_the_device(context: &Context) -> Result<()> {
    // Nothing is synced by the clock.
    let mut mount = mount_with(context, &spec("pt-sync").option("commit=3600"))?;
    let path = mount.dir().join("large");
    fs::write(&path, pattern(LEN))?;
    mount.remount()?;
    let reader = File::open(&path)?;
    let flags = i32::try_from(OFlags::DSYNC.bits())?;
    let mut options = OpenOptions::new();
    let writer = options.write(true).custom_flags(flags).open(&path)?;
    for round in 0..3 {
        fs::create_dir(mount.dir().join(format!("before{round}")))?;
        let before = mount.stats()?;
        writer.write_all_at(b"durable", round)?;
        let syncs = mount.stats()?.since(&before, "device.syncs")?;
        ensure!(syncs > 0, "round {round}: nothing was synced");
    }
    drop((reader, writer));
    mount.unmount()?;
    mount.fsck()
}

/// A daemon that dies with lent files leaves a valid state.
fn what_was_synced_is_there_after_a_kill(context: &Context) -> Result<()> {
    let mut mount = mount(context, "pt-kill")?;
    let path = mount.dir().join("large");
    let expected = pattern(LEN);
    fs::write(&path, &expected)?;
    mount.remount()?;
    let reader = File::open(&path)?;
    let mut writer = OpenOptions::new().append(true).open(&path)?;
    writer.write_all(b"more")?;
    writer.set_len(LEN as u64 + 2)?;
    let other = OpenOptions::new().read(true).write(true).open(&path)?;
    let map = Map::new(&other, LEN, true)?;
    map.write(0, b"mapped")?;
    other.sync_all()?;
    mount.kill()?;
    // Open files stay readable without a daemon.
    let mut found = [0; 6];
    reader.read_exact_at(&mut found, 0)?;
    ensure!(found == *b"mapped", "{found:?}");
    drop((reader, writer, other, map));
    mount.mount_again()?;
    let found = fs::read(&path).context("after the kill")?;
    ensure!(found.len() == LEN + 2, "{} bytes", found.len());
    ensure!(
        found[..6] == *b"mapped" && found[6..LEN] == expected[6..],
        "other bytes"
    );
    ensure!(found[LEN..] == *b"mo", "what was appended");
    mount.unmount()?;
    mount.fsck()
}
