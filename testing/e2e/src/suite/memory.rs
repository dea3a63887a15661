//! Memory of the daemon stays within its budget, however many files the kernel knows.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::harness::context::Context;
use crate::harness::guardian;
use crate::harness::mount::{Mount, Spec};
use crate::harness::process::peak_resident_bytes;
use crate::harness::report::{Case, Skip};

pub(super) const CASES: &[Case] = &[Case {
    name: "many-known",
    run: many_known_files_take_little_memory,
}];

const DIRS: u32 = 200;
const FILES: u32 = 1000;
const MEMORY: &str = "64M";
/// An eighth of the budget, at 256 bytes each.
const KNOWN_MAX: u64 = (64 << 20) / 8 / 256;
/// The budget, the program itself and what compactions work on; without the bound the inodes alone
/// took 46 MiB.
const RESIDENT_MAX: u64 = 96 << 20;

fn path(top: &Path, dir: u32, file: u32) -> PathBuf {
    top.join(format!("dir-{dir}")).join(format!("file-{file}"))
}

/// 200,000 files are made, looked up one by one, listed, and looked up again. Meanwhile one file is
/// open, one is open without a name, one has two names, and a process works in one directory.
fn many_known_files_take_little_memory(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    if !kernel_can_prune()? {
        return Err(Skip("this kernel cannot be asked to forget (before 6.18)".to_owned()).into());
    }
    let mut mount = Mount::create(context, &Spec::new("known", "1G").memory(MEMORY))?;
    let top = mount.dir().to_owned();
    for dir in 0..DIRS {
        fs::create_dir(top.join(format!("dir-{dir}")))?;
        for file in 0..FILES {
            File::create(path(&top, dir, file))?;
        }
    }
    expect_bounded(context, &mount, "making")?;
    mount.remount()?;

    let used = Used::new(&top)?;
    let first_inode = fs::metadata(path(&top, 7, 7))?.ino();
    for dir in 0..DIRS {
        for file in 0..FILES {
            fs::metadata(path(&top, dir, file))?;
        }
    }
    expect_bounded(context, &mount, "looking up")?;
    for dir in 0..DIRS {
        let listed = fs::read_dir(top.join(format!("dir-{dir}")))?;
        let mut count = 0;
        for entry in listed {
            ensure!(entry?.metadata()?.is_file(), "a file became something else");
            count += 1;
        }
        ensure!(count == FILES, "{count} names in dir-{dir}");
    }
    expect_bounded(context, &mount, "listing")?;
    ensure!(fs::metadata(path(&top, 7, 7))?.ino() == first_inode);
    used.check(&top)?;
    mount.unmount()?;
    mount.fsck()
}

/// Files and a directory in use all the time.
struct Used {
    open: File,
    unlinked: File,
    shell: std::process::Child,
}

impl Used {
    fn new(top: &Path) -> Result<Self> {
        let mut options = File::options();
        options.create_new(true).read(true).write(true);
        let open = options.open(top.join("open"))?;
        let unlinked = options.open(top.join("unlinked"))?;
        unlinked.write_all_at(&[9; 10_000], 0)?;
        fs::remove_file(top.join("unlinked"))?;
        fs::write(top.join("linked"), b"two names")?;
        fs::hard_link(top.join("linked"), top.join("other"))?;
        let cwd = top.join("cwd");
        fs::create_dir(&cwd)?;
        fs::write(cwd.join("here"), b"found")?;
        let shell = Command::new("sh")
            .args(["-c", "read go; pwd; cat here ../linked"])
            .current_dir(&cwd)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        guardian::watch_process(shell.id())?;
        Ok(Self {
            open,
            unlinked,
            shell,
        })
    }

    fn check(self, top: &Path) -> Result<()> {
        let mut shell = self.shell;
        drop(shell.stdin.take());
        let said = String::from_utf8(shell.wait_with_output()?.stdout)?;
        let expected = format!("{}\nfoundtwo names", top.join("cwd").display());
        ensure!(said == expected, "the working directory: {said:?}");
        self.open.write_all_at(b"still open", 0)?;
        ensure!(fs::read(top.join("open"))? == b"still open");
        let mut bytes = [0; 10];
        self.unlinked.read_exact_at(&mut bytes, 9_990)?;
        ensure!(bytes == [9; 10] && self.unlinked.metadata()?.nlink() == 0);
        ensure!(fs::metadata(top.join("linked"))?.nlink() == 2);
        ensure!(fs::read(top.join("other"))? == b"two names");
        Ok(())
    }
}

fn expect_bounded(context: &Context, mount: &Mount<'_>, what: &str) -> Result<()> {
    let mut known = 0;
    let bounded = context.wait_until(Duration::from_secs(5), || {
        known = mount.stats()?.get("fs.known_inodes")?;
        Ok(known <= KNOWN_MAX)
    })?;
    let peak = peak_resident_bytes(mount.daemon_id()?)?;
    println!("      {what}: {known} known, {} MiB", peak >> 20);
    ensure!(bounded, "{what}: {known} inodes known, not {KNOWN_MAX}");
    ensure!(
        peak < RESIDENT_MAX,
        "{what}: {} MiB resident with --memory {MEMORY}",
        peak >> 20
    );
    Ok(())
}

/// Linux 6.18 or later.
fn kernel_can_prune() -> Result<bool> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = release.trim().split(['.', '-']).map(str::parse::<u32>);
    let mut number = || {
        numbers
            .next()
            .context("a short release")?
            .context("a number")
    };
    Ok((number()?, number()?) >= (6, 18))
}
