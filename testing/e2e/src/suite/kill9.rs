//! `kill -9` of the daemon at random moments: everything acknowledged survives.

pub(super) mod beside;
mod device;
pub(crate) mod notice;
mod starting;
pub(super) mod views;

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use stitch_base::random::Rng;
use stitch_base::thread;

use super::kernel_source;
use crate::harness::context::Context;
use crate::harness::guardian;
use crate::harness::mount::{Mount, Spec};
use crate::harness::process::shell;
use crate::harness::report::Case;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "untar",
        run: killed_during_an_untar,
    },
    Case {
        name: "commits",
        run: killed_during_commits,
    },
    Case {
        name: "device",
        run: device::killed_on_a_device,
    },
    Case {
        name: "beside",
        run: beside::killed_with_large_files,
    },
    Case {
        name: "lent",
        run: beside::killed_with_lent_files,
    },
    Case {
        name: "notice",
        run: notice::killed_in_a_notice,
    },
    Case {
        name: "starting",
        run: starting::killed_while_it_starts,
    },
    Case {
        name: "views",
        run: views::killed_around_views,
    },
];

const KILLS: u64 = 10;
/// How long a writer may take to notice that its daemon died.
const PATIENCE: Duration = Duration::from_secs(10);

/// Files that `tar` was done with before the kill are whole afterwards.
fn killed_during_an_untar(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let tar = kernel_source::tar(context)?;
    let reference = context.dir("kill-reference")?;
    shell(&reference, &format!("tar -xf {}", tar.display()))?;
    let mut rng = Rng::new(context.seed.unwrap_or(1));
    let mut mount = Mount::create(context, &Spec::new("kill-untar", "4G"))?;
    for kill in 0..KILLS {
        let dir = mount.dir().join(format!("round{kill}"));
        fs::create_dir(&dir)?;
        let delay = Duration::from_millis(50 + rng.below(1500));
        let list = context.work.join(format!("list{kill}"));
        let mut untar = Command::new("stdbuf")
            .args(["-oL", "tar", "-xvf"])
            .arg(&tar)
            .arg("-C")
            .arg(&dir)
            .stdout(File::create(&list)?)
            .stderr(Stdio::null())
            .spawn()?;
        guardian::watch_process(untar.id())?;
        context.sleep(delay);
        let listed = fs::read_to_string(&list)?;
        mount.kill()?;
        let _ = untar.kill();
        untar.wait()?;
        mount
            .mount_again()
            .with_context(|| format!("kill {kill}"))?;
        // `tar -v` names a member, then writes it: all but the last are complete.
        let listed: Vec<&str> = listed.lines().collect();
        let done = listed.len().saturating_sub(1);
        compare(&reference, &dir, &listed[..done])
            .with_context(|| format!("kill {kill} after {delay:?}, {done} files"))?;
        println!("      kill {kill} after {delay:?}: {done} files are there");
        mount.unmount()?;
        mount
            .fsck()
            .with_context(|| format!("fsck after kill {kill}"))?;
        mount.mount_again()?;
    }
    mount.unmount()
}

/// Every listed file has its whole content.
fn compare(reference: &Path, dir: &Path, names: &[&str]) -> Result<()> {
    for name in names {
        let (expected, found) = (reference.join(name), dir.join(name));
        let kind = fs::symlink_metadata(&expected)?.file_type();
        let meta = fs::symlink_metadata(&found).with_context(|| format!("{name} is lost"))?;
        if kind.is_symlink() && is_placeholder(&expected, &meta)? {
            continue;
        }
        ensure!(meta.file_type() == kind, "{name} is of another type");
        if kind.is_file() {
            ensure!(
                fs::read(&expected)? == fs::read(&found)?,
                "{name} has other bytes"
            );
        } else if kind.is_symlink() {
            ensure!(
                fs::read_link(&expected)? == fs::read_link(&found)?,
                "{name} leads elsewhere"
            );
        }
    }
    Ok(())
}

/// Reports whether a file is a placeholder: GNU tar makes links out of their directory last, and an
/// empty file instead of each until then.
fn is_placeholder(expected: &Path, found: &fs::Metadata) -> Result<bool> {
    let target = fs::read_link(expected)?;
    let leads_out = target.is_absolute() || target.components().any(|c| c == Component::ParentDir);
    Ok(leads_out && found.is_file() && found.len() == 0)
}

/// How far a writer got, noted outside of the mount.
#[derive(Default)]
struct Progress {
    /// Records whose write returned.
    written: AtomicU64,
    /// Records whose fsync returned.
    synced: AtomicU64,
    stop: AtomicBool,
}

const RECORD_BYTES: usize = 100;

/// Appended records, synced or not, and names created, are there once acknowledged.
fn killed_during_commits(context: &Context) -> Result<()> {
    commits_are_kept(context, &Spec::new("kill-commit", "1G"))
}

/// The same on such a store.
pub(super) fn commits_are_kept(context: &Context, spec: &Spec) -> Result<()> {
    context.needs_stitch()?;
    let mut rng = Rng::new(context.seed.unwrap_or(1));
    let mut mount = Mount::create(context, spec)?;
    for kill in 0..KILLS {
        let dir = mount.dir().join(format!("round{kill}"));
        fs::create_dir(&dir)?;
        let progress = Arc::new(Progress::default());
        let writer = {
            let (dir, progress) = (dir.clone(), Arc::clone(&progress));
            thread::spawn("writer", move || commit_loop(&dir, &progress))?
        };
        let delay = Duration::from_millis(20 + rng.below(1200));
        context.sleep(delay);
        mount.kill()?;
        // Between two operations it has noticed nothing yet.
        context.wait_until(PATIENCE, || Ok(writer.is_finished()))?;
        progress.stop.store(true, Ordering::SeqCst);
        let end = writer.join().map_err(|_| anyhow!("the writer panicked"))?;
        ensure!(
            end.is_err(),
            "the writer did not notice that its daemon died"
        );
        let written = progress.written.load(Ordering::SeqCst);
        let synced = progress.synced.load(Ordering::SeqCst);

        mount
            .mount_again()
            .with_context(|| format!("kill {kill}"))?;
        check_records(&dir, written).with_context(|| {
            format!("kill {kill} after {delay:?}, {written} written, {synced} synced")
        })?;
        println!(
            "      kill {kill} after {delay:?}: {written} written, {synced} synced, all there"
        );
        mount.unmount()?;
        mount
            .fsck()
            .with_context(|| format!("fsck after kill {kill}"))?;
        mount.mount_again()?;
    }
    mount.unmount()
}

/// Appends records, syncs every third, and makes, renames and removes a name for each.
fn commit_loop(dir: &Path, progress: &Progress) -> Result<()> {
    let journal = File::create(dir.join("journal"))?;
    for index in 0.. {
        if progress.stop.load(Ordering::SeqCst) {
            break;
        }
        journal.write_all_at(&record(index), index * RECORD_BYTES as u64)?;
        let temporary = dir.join("temporary");
        let mut file = File::create(&temporary)?;
        file.write_all(&record(index))?;
        drop(file);
        fs::rename(&temporary, name(dir, index))?;
        if index >= 10 {
            fs::remove_file(name(dir, index - 10))?;
        }
        progress.written.store(index + 1, Ordering::SeqCst);
        if index % 3 == 0 {
            journal.sync_data()?;
            progress.synced.store(index + 1, Ordering::SeqCst);
        }
    }
    Ok(())
}

fn name(dir: &Path, index: u64) -> PathBuf {
    dir.join(format!("record{index}"))
}

fn record(index: u64) -> Vec<u8> {
    let mut bytes = vec![0; RECORD_BYTES];
    Rng::new(index).fill(&mut bytes);
    bytes
}

fn check_records(dir: &Path, written: u64) -> Result<()> {
    let mut bytes = Vec::new();
    File::open(dir.join("journal"))?.read_to_end(&mut bytes)?;
    let wanted = usize::try_from(written)? * RECORD_BYTES;
    ensure!(bytes.len() >= wanted, "{} bytes of {wanted}", bytes.len());
    for index in 0..written {
        let at = usize::try_from(index)? * RECORD_BYTES;
        ensure!(
            bytes[at..at + RECORD_BYTES] == record(index),
            "record {index} is wrong"
        );
    }
    // Record `written` may have been in flight, in any part.
    for index in 0..written {
        let exists = name(dir, index).exists();
        let undecided = index + 10 == written;
        let expected = index + 10 >= written;
        ensure!(
            exists == expected || undecided,
            "name of record {index}: there is {exists}"
        );
        if exists {
            ensure!(
                fs::read(name(dir, index))? == record(index),
                "file of record {index}"
            );
        }
    }
    Ok(())
}
