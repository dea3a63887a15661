//! The disk below the large files beside a store fails: synced bytes stay, errors are reported, and
//! everything in the store continues.

use std::fs::{self, File, OpenOptions};
use std::io::{Error, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use stitch_base::random::Rng;

use super::passthrough;
use crate::harness::context::Context;
use crate::harness::host::Host;
use crate::harness::mount::{Mount, Spec};
use crate::harness::report::Case;
use crate::harness::tree::expect_content;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "unmounted",
        run: syncs_fail_and_it_is_unmounted,
    },
    Case {
        name: "killed",
        run: syncs_fail_and_the_daemon_is_killed,
    },
    Case {
        name: "lent",
        run: syncs_of_lent_files_fail,
    },
];

/// Files that become larger are plain files.
const FROM: &str = "large_files=external:64K";
const LARGE: usize = 4 << 20;
const SMALL: usize = 20 << 10;
/// How long the host's disk is, and what is left of it.
const HOST_BYTES: u64 = 96 << 20;
const LEFT_BYTES: u64 = 48 << 20;
const EIO: i32 = 5;

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Unmounted,
    Killed,
}

fn syncs_fail_and_it_is_unmounted(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let spec = Spec::new("faults-unmounted", "128M").option(FROM);
    with_a_failing_disk(context, &spec, End::Unmounted)
}

fn syncs_fail_and_the_daemon_is_killed(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let spec = Spec::new("faults-killed", "128M").option(FROM);
    with_a_failing_disk(context, &spec, End::Killed)
}

/// The kernel reads the files meanwhile.
fn syncs_of_lent_files_fail(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    with_a_failing_disk(context, &passthrough::spec("faults-lent"), End::Killed)
}

fn path(mount: &Mount<'_>, name: &str) -> PathBuf {
    mount.dir().join(name)
}

fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// Writes and syncs a new file.
fn put(path: PathBuf, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn expect_eio(error: &Error, what: &str) -> Result<()> {
    let code = error.raw_os_error();
    ensure!(code == Some(EIO), "{what}: not EIO but {error:?}");
    Ok(())
}

fn with_a_failing_disk(context: &Context, spec: &Spec, end: End) -> Result<()> {
    let folder = Mount::folder(context, &spec.name);
    let mut host = Host::create(context, &folder, HOST_BYTES)?;
    let mut mount = passthrough::mount_with(context, spec)?;
    put(path(&mount, "kept"), &content(1000, LARGE))?;
    put(path(&mount, "small"), &content(1001, SMALL))?;
    mount.remount()?;
    let kept = File::open(path(&mount, "kept"))?;
    host.fail_behind(LEFT_BYTES)?;
    let mut count = 0;
    let error = loop {
        if let Err(error) = put(
            path(&mount, &format!("file{count}")),
            &content(count, LARGE),
        ) {
            break error;
        }
        count += 1;
        ensure!(count < HOST_BYTES / LARGE as u64, "no sync has failed");
    };
    expect_eio(&error, "the first sync that fails")?;
    println!("      {count} files were synced");
    ensure!(count > 0, "none was");
    goes_on(&mount, count)?;
    let mut found = vec![0; LARGE];
    kept.read_exact_at(&mut found, 0)?;
    ensure!(found == content(1000, LARGE), "other bytes for a reader");
    drop(kept);

    match end {
        End::Unmounted => {
            // The unsynced file is not needed.
            fs::remove_file(path(&mount, &format!("file{count}")))?;
            mount.unmount()?;
        }
        End::Killed => {
            mount.kill()?;
            // Files that were lent when the daemon died stay in use as long as the dead mount
            // exists.
            mount.detach()?;
        }
    }
    host.mend(context, HOST_BYTES)?;
    mount.mount_again()?;
    for index in 0..count {
        let name = format!("file{index}");
        expect_content(&path(&mount, &name), &content(index, LARGE))?;
    }
    expect_content(&path(&mount, "kept"), &content(1000, LARGE))?;
    expect_content(&path(&mount, "small"), &content(1003, SMALL))?;
    mount.expect_no_stray_files()?;
    // A file that could not be synced is rewritten.
    let anew = path(&mount, &format!("file{count}"));
    put(anew.clone(), &content(7, LARGE)).context("after the disk was mended")?;
    mount.remount()?;
    expect_content(&anew, &content(7, LARGE))?;
    mount.unmount()?;
    mount.fsck()
}

/// Checks that a file that could not be synced refuses writes with an error each time, and that
/// others are unchanged.
fn goes_on(mount: &Mount<'_>, failed: u64) -> Result<()> {
    let name = path(mount, &format!("file{failed}"));
    let file = OpenOptions::new().write(true).open(&name)?;
    let written = file.write_all_at(b"more", 0);
    expect_eio(&written.err().context("it takes more")?, "a write")?;
    let synced = file.sync_all();
    expect_eio(&synced.err().context("it is durable")?, "a sync")?;
    expect_content(&path(mount, "kept"), &content(1000, LARGE))?;
    put(path(mount, "small"), &content(1003, SMALL)).context("a small file")?;
    expect_content(&path(mount, "small"), &content(1003, SMALL))
}
