//! A store with the RocksDB engine: what other suites ask of a volume, and what is its own.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::{fsx, kill9, passthrough, pjdfstest, restart};
use crate::harness::context::Context;
use crate::harness::mount::{Mount, Spec, stitchfs};
use crate::harness::process::shell;
use crate::harness::report::Case;
use crate::harness::tree::{Rules, expect_equal, scan};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "remount",
        run: everything_is_there_after_a_remount,
    },
    Case {
        name: "synced",
        run: what_was_synced_is_there_after_a_kill,
    },
    Case {
        name: "commits",
        run: |context| kill9::commits_are_kept(context, &spec("rocks-commits")),
    },
    Case {
        name: "large-files",
        run: |context| kill9::beside::large_files_are_kept(context, spec("rocks-large")),
    },
    Case {
        name: "killed",
        run: |context| {
            let spec = restart::held(context, "rocks-killed")?.on_rocksdb();
            restart::programs_do_not_notice_kills(context, &spec)
        },
    },
    Case {
        name: "upgrade",
        run: |context| {
            let spec = restart::held(context, "rocks-upgraded")?.on_rocksdb();
            restart::programs_do_not_notice_upgrades(context, spec)
        },
    },
    Case {
        name: "passthrough",
        run: the_kernel_reads_large_files,
    },
    Case {
        name: "host-space",
        run: free_space_is_the_hosts,
    },
    Case {
        name: "pjdfstest",
        run: |context| pjdfstest::all_pass(context, &spec("rocks-pjd")),
    },
    Case {
        name: "fsx",
        run: |context| {
            context.needs_stitch()?;
            fsx::random_data(context, &spec("rocks-fsx"), OPS)
        },
    },
    Case {
        name: "fsx-inside",
        run: |context| {
            context.needs_stitch()?;
            let spec = spec("rocks-fsx-inside").option("large_files=inside");
            fsx::random_data(context, &spec, OPS)
        },
    },
];

/// Operations of one seed of `fsx`: cutting a plain file costs the host's syncs.
const OPS: u64 = 5_000;
const FILES: usize = 300;
/// How long plain files of removed files may stay.
const PATIENCE: Duration = Duration::from_secs(30);

fn spec(name: &str) -> Spec {
    Spec::new(name, "").on_rocksdb()
}

/// Makes files of all sizes around what a row holds, folders and links.
fn fill(dir: &Path) -> Result<()> {
    for index in 0..FILES {
        let folder = dir.join(format!("d{}", index / 50));
        fs::create_dir_all(&folder)?;
        let path = folder.join(format!("f{index}"));
        fs::write(&path, vec![u8::try_from(index % 251)?; index * index / 3])?;
        if index % 7 == 0 {
            fs::hard_link(&path, folder.join(format!("l{index}")))?;
        }
        if index % 11 == 0 {
            std::os::unix::fs::symlink(format!("f{index}"), folder.join(format!("s{index}")))?;
        }
    }
    Ok(())
}

fn everything_is_there_after_a_remount(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &spec("rocks-remount"))?;
    let reference = context.dir("rocks-reference")?;
    fill(&reference)?;
    let copy = format!("cp -a {}/. .", reference.display());
    shell(mount.dir(), &copy)?;
    let expected = scan(&reference, Rules::copy())?;
    for _ in 0..3 {
        expect_equal(&expected, &scan(mount.dir(), Rules::copy())?)?;
        mount.expect_no_stray_files()?;
        mount.unmount()?;
        mount.fsck()?;
        mount.mount_again()?;
    }
    let plain = mount.plain_files()?;
    let expected = (0..FILES).filter(|index| index * index / 3 > 4096).count() as u64;
    ensure!(plain == expected, "{plain} plain files of {expected}");
    let mode = mount.store().metadata()?.mode() & 0o7777;
    ensure!(mode == 0o700, "{mode:o}");
    shell(mount.dir(), "rm -rf d*")?;
    // The kernel forgets removed files some time later; the next sync removes their plain files.
    let is_gone = context.wait_until(PATIENCE, || {
        mount.sync()?;
        Ok(mount.plain_files()? == 0)
    })?;
    ensure!(is_gone, "plain files of removed files are left");
    mount.unmount()?;
    mount.fsck()?;
    fs::remove_dir_all(reference)?;
    Ok(())
}

fn what_was_synced_is_there_after_a_kill(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &spec("rocks-synced"))?;
    for round in 0..5_u8 {
        for (name, len) in [("small", 60), ("inline", 4096), ("large", 1 << 20)] {
            let file = File::create(mount.dir().join(format!("{name}{round}")))?;
            file.write_all_at(&vec![round; len], 0)?;
            file.sync_all()?;
        }
        mount.kill()?;
        mount.mount_again()?;
        for earlier in 0..=round {
            for (name, len) in [("small", 60), ("inline", 4096), ("large", 1 << 20)] {
                let found = fs::read(mount.dir().join(format!("{name}{earlier}")))?;
                ensure!(
                    found == vec![earlier; len],
                    "{name}{earlier} after kill {round}"
                );
            }
        }
    }
    mount.unmount()?;
    mount.fsck()
}

fn the_kernel_reads_large_files(context: &Context) -> Result<()> {
    let spec = spec("rocks-passthrough").option("passthrough");
    let mut mount = passthrough::mount_with(context, &spec)?;
    let path = mount.dir().join("large");
    fs::write(&path, vec![7; 1 << 20])?;
    mount.remount()?;
    let before = mount.stats()?.get("fuse.requests.read")?;
    ensure!(fs::read(&path)? == vec![7; 1 << 20], "other bytes");
    let asked = mount.stats()?.get("fuse.requests.read")? - before;
    ensure!(asked == 0, "{asked} reads reached the daemon");
    mount.unmount()?;
    mount.fsck()
}

fn free_space_is_the_hosts(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &spec("rocks-space"))?;
    fs::write(mount.dir().join("large"), vec![7; 4 << 20])?;
    let host = rustix::fs::statvfs(mount.store())?;
    let found = rustix::fs::statvfs(mount.dir())?;
    let total = |stat: &rustix::fs::StatVfs| stat.f_blocks * stat.f_frsize / 4096;
    ensure!(
        total(&host) == total(&found),
        "{} of {}",
        total(&found),
        total(&host)
    );
    let free = mount.free_bytes()?;
    ensure!(
        free <= host.f_bfree * host.f_frsize,
        "more is free than the host has"
    );
    let at = mount.dir().display().to_string();
    for task in ["defrag", "trim"] {
        let (code, said) = stitchfs(context, &[task, &at])?;
        let is_named = said.contains("the RocksDB engine has no");
        ensure!(code == 1 && is_named, "{task}: {code}: {said}");
    }
    mount.unmount()?;
    mount.fsck().context("after what was refused")
}
