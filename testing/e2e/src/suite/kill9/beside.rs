//! Large files beside the store: random operations on files around the threshold, killed again and
//! again.
//!
//! The daemon dies and the host keeps running, so everything acknowledged is there, synced or not.
//! An operation in flight may be there in part: `BesideOp::is_outcome` tells which parts.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use rustix::fs::{FallocateFlags, fallocate};
use stitch_base::random::Rng;
use stitch_base::sync::Mutex;
use stitch_base::thread;

use super::PATIENCE;
use crate::harness::context::Context;
use crate::harness::mount::{Mount, Spec};
use crate::suite::passthrough;

/// Files that become larger are plain files.
const FROM: &str = "large_files=external:64K";
/// Unneeded plain files are removed soon.
const OFTEN: &str = "commit=1";
const FROM_BYTES: usize = 64 << 10;
/// Few, so that each is written, cut and replaced again and again.
const FILES: u64 = 12;
const LEN_MAX: u64 = 256 << 10;
const KILLS: u64 = 8;
/// Readers that have files open, with `passthrough`.
const READERS: usize = 4;

/// The daemon reads and writes them.
pub(super) fn killed_with_large_files(context: &Context) -> Result<()> {
    large_files_are_kept(context, Spec::new("kill-beside", "512M"))
}

/// The same on such a store.
pub(in crate::suite) fn large_files_are_kept(context: &Context, spec: Spec) -> Result<()> {
    context.needs_stitch()?;
    let mount = Mount::create(context, &spec.option(FROM).option(OFTEN))?;
    kill_often(context, mount, 0)
}

/// The kernel reads them, while others have them open.
pub(super) fn killed_with_lent_files(context: &Context) -> Result<()> {
    let spec = passthrough::spec("kill-lent").option(OFTEN);
    let mount = passthrough::mount_with(context, &spec)?;
    kill_often(context, mount, READERS)
}

type Files = BTreeMap<u64, Vec<u8>>;

/// The operations that a writer has done, and the one in flight.
#[derive(Default)]
struct Known {
    files: Files,
    under_way: Option<BesideOp>,
    done: u64,
}

fn kill_often(context: &Context, mut mount: Mount<'_>, readers: usize) -> Result<()> {
    let mut rng = Rng::new(context.seed.unwrap_or(1));
    let known = Arc::new(Mutex::new(Known::default()));
    for kill in 0..KILLS {
        let writer = {
            let (dir, known) = (mount.dir().to_owned(), Arc::clone(&known));
            let rng = Rng::new(rng.next_u64());
            thread::spawn("writer", move || work(&dir, &known, rng, readers))?
        };
        context.sleep(Duration::from_millis(20 + rng.below(700)));
        mount.kill()?;
        context.wait_until(PATIENCE, || Ok(writer.is_finished()))?;
        let end = writer.join().map_err(|_| anyhow!("the writer panicked"))?;
        let error = end.err().context("the writer has noticed nothing")?;
        ensure!(is_of_a_kill(&error), "before kill {kill}: {error:#}");
        mount
            .mount_again()
            .with_context(|| format!("kill {kill}"))?;
        let mut known = known.lock();
        let done = known.done;
        let under_way = known.under_way.take();
        compare(mount.dir(), &mut known.files, under_way.as_ref())
            .with_context(|| format!("kill {kill} in {under_way:?} after {done} operations"))?;
        mount.expect_no_stray_files()?;
        let large = known.files.values().filter(|f| f.len() > FROM_BYTES);
        let (large, plain) = (large.count() as u64, mount.plain_files()?);
        ensure!(plain >= large, "{plain} plain files, {large} large ones");
        println!("      kill {kill}: {done} operations, {plain} plain files");
        mount.unmount()?;
        mount
            .fsck()
            .with_context(|| format!("fsck after kill {kill}"))?;
        mount.mount_again()?;
    }
    ensure!(known.lock().done > KILLS, "hardly anything was done");
    mount.unmount()
}

/// Reports whether an error is one of a caller whose daemon died.
fn is_of_a_kill(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<std::io::Error>();
    let code = error.and_then(std::io::Error::raw_os_error);
    // ENOTCONN, ECONNABORTED, EIO; with rings also ECANCELED.
    matches!(code, Some(107 | 103 | 5 | 125))
}

/// Random operations until one fails.
fn work(dir: &Path, known: &Mutex<Known>, mut rng: Rng, readers: usize) -> Result<()> {
    let mut open: Vec<(u64, File)> = Vec::new();
    loop {
        let op = BesideOp::random(&mut rng, &known.lock().files);
        known.lock().under_way = Some(op.clone());
        op.run(dir)?;
        let mut known = known.lock();
        op.apply(&mut known.files);
        known.under_way = None;
        known.done += 1;
        open.retain(|(name, _)| !op.replaces(*name));
        if readers > 0 {
            see(dir, &known.files, &mut open, &mut rng)?;
            open.truncate(readers);
        }
    }
}

/// Reads the open files and compares their contents. Opens one more file first.
fn see(dir: &Path, files: &Files, open: &mut Vec<(u64, File)>, rng: &mut Rng) -> Result<()> {
    for (name, file) in open.iter() {
        let expected = &files[name];
        let mut found = vec![0; expected.len()];
        file.read_exact_at(&mut found, 0)?;
        ensure!(
            found == *expected,
            "file {name} has other bytes for a reader"
        );
    }
    let name = rng.below(FILES);
    if rng.one_in(4) && files.contains_key(&name) {
        open.insert(0, (name, File::open(path(dir, name))?));
    }
    Ok(())
}

fn path(dir: &Path, name: u64) -> PathBuf {
    dir.join(format!("file{name}"))
}

/// Compares the files with the expected ones, and accepts the outcome of the operation in flight.
fn compare(dir: &Path, files: &mut Files, under_way: Option<&BesideOp>) -> Result<()> {
    let mut found = Files::new();
    for name in 0..FILES {
        match fs::read(path(dir, name)) {
            Ok(bytes) => drop(found.insert(name, bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("file {name}")),
        }
    }
    for name in 0..FILES {
        let is_touched = under_way.is_some_and(|op| op.touches(name));
        ensure!(
            is_touched || found.get(&name) == files.get(&name),
            "file {name} is {}",
            difference(files.get(&name), found.get(&name))
        );
    }
    if let Some(op) = under_way {
        let mut after = files.clone();
        op.apply(&mut after);
        op.is_outcome(files, &after, &found)?;
    }
    *files = found;
    Ok(())
}

fn difference(expected: Option<&Vec<u8>>, found: Option<&Vec<u8>>) -> String {
    let (Some(expected), Some(found)) = (expected, found) else {
        let there = |file: Option<&Vec<u8>>| if file.is_some() { "there" } else { "missing" };
        return format!("{}, not {}", there(found), there(expected));
    };
    let at = expected.iter().zip(found).position(|(a, b)| a != b);
    let (long, wanted) = (found.len(), expected.len());
    format!("{long} bytes long, not {wanted}; the first other byte is {at:?}")
}

/// One system call, or a few.
#[derive(Clone, Debug)]
enum BesideOp {
    /// With the seed of its bytes.
    Write {
        name: u64,
        at: usize,
        len: usize,
        seed: u64,
    },
    SetLen {
        name: u64,
        len: usize,
    },
    Punch {
        name: u64,
        at: usize,
        len: usize,
    },
    Remove {
        name: u64,
    },
    Rename {
        name: u64,
        to: u64,
    },
    Sync {
        name: u64,
    },
}

impl BesideOp {
    fn random(rng: &mut Rng, files: &Files) -> Self {
        let name = rng.below(FILES);
        let mut number = |below: u64| usize::try_from(rng.below(below)).expect("small");
        let Some(size) = files.get(&name).map(Vec::len) else {
            let (len, seed) = (1 + number(LEN_MAX / 2), number(1 << 30) as u64);
            return Self::Write {
                name,
                at: 0,
                len,
                seed,
            };
        };
        match number(16) {
            0..6 => {
                let at = number(size as u64 + 8192);
                let len = 1 + number(LEN_MAX / 4);
                let seed = number(1 << 30) as u64;
                match at + len > usize::try_from(LEN_MAX).expect("small") {
                    true => Self::SetLen { name, len: 0 },
                    false => Self::Write {
                        name,
                        at,
                        len,
                        seed,
                    },
                }
            }
            6..10 => Self::SetLen {
                name,
                len: number(LEN_MAX),
            },
            10 | 11 => Self::Punch {
                name,
                at: number(size as u64 + 1),
                len: 1 + number(LEN_MAX / 4),
            },
            12 => Self::Remove { name },
            13 => Self::Rename {
                name,
                to: (name + 1 + number(FILES - 1) as u64) % FILES,
            },
            _ => Self::Sync { name },
        }
    }

    fn bytes(len: usize, seed: u64) -> Vec<u8> {
        let mut bytes = vec![0; len];
        Rng::new(seed).fill(&mut bytes);
        bytes
    }

    fn run(&self, dir: &Path) -> Result<()> {
        let open = |name: u64| OpenOptions::new().write(true).open(path(dir, name));
        match *self {
            Self::Write {
                name,
                at,
                len,
                seed,
            } => {
                let mut options = OpenOptions::new();
                options.write(true).create(true).truncate(false);
                let file = options.open(path(dir, name))?;
                file.write_all_at(&Self::bytes(len, seed), at as u64)?;
            }
            Self::SetLen { name, len } => open(name)?.set_len(len as u64)?,
            Self::Punch { name, at, len } => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let punched = fallocate(open(name)?, flags, at as u64, len as u64);
                punched.map_err(std::io::Error::from)?;
            }
            Self::Remove { name } => fs::remove_file(path(dir, name))?,
            Self::Rename { name, to } => fs::rename(path(dir, name), path(dir, to))?,
            Self::Sync { name } => open(name)?.sync_all()?,
        }
        Ok(())
    }

    /// Applies the operation to the expected files.
    fn apply(&self, files: &mut Files) {
        match *self {
            Self::Write {
                name,
                at,
                len,
                seed,
            } => {
                let file = files.entry(name).or_default();
                file.resize(file.len().max(at + len), 0);
                file[at..at + len].copy_from_slice(&Self::bytes(len, seed));
            }
            Self::SetLen { name, len } => files.entry(name).or_default().resize(len, 0),
            Self::Punch { name, at, len } => {
                let file = files.entry(name).or_default();
                let end = file.len().min(at + len);
                file[at.min(end)..end].fill(0);
            }
            Self::Remove { name } => drop(files.remove(&name)),
            Self::Rename { name, to } => {
                let file = files.remove(&name).unwrap_or_default();
                files.insert(to, file);
            }
            Self::Sync { .. } => {}
        }
    }

    fn touches(&self, file: u64) -> bool {
        match *self {
            Self::Write { name, .. }
            | Self::SetLen { name, .. }
            | Self::Punch { name, .. }
            | Self::Remove { name } => name == file,
            Self::Rename { name, to } => name == file || to == file,
            Self::Sync { .. } => false,
        }
    }

    /// Reports whether a name belongs to another file afterwards, or to none.
    fn replaces(&self, file: u64) -> bool {
        matches!(self, Self::Remove { .. } | Self::Rename { .. }) && self.touches(file)
    }

    /// Checks that the operation may have left `found`, instead of `before` or `after`: any part of
    /// written or punched bytes; all or nothing of a new size, a name or a removal.
    fn is_outcome(&self, before: &Files, after: &Files, found: &Files) -> Result<()> {
        let is = |state: &Files| (0..FILES).all(|name| state.get(&name) == found.get(&name));
        if is(before) || is(after) {
            return Ok(());
        }
        let (Self::Write { name, .. } | Self::Punch { name, .. }) = *self else {
            return Err(anyhow!("neither what was before nor what is after"));
        };
        let empty = Vec::new();
        let old = before.get(&name).unwrap_or(&empty);
        let (new, there) = (&after[&name], found.get(&name));
        let there = there.with_context(|| format!("file {name} is lost"))?;
        // The kernel asks for the first page alone where it has not what is before.
        ensure!(
            (old.len()..=new.len()).contains(&there.len()),
            "{} bytes, not {} to {}",
            there.len(),
            old.len(),
            new.len()
        );
        let is_either = |at: usize| {
            let byte = there[at];
            byte == new[at] || byte == old.get(at).copied().unwrap_or(0)
        };
        let wrong = (0..there.len()).find(|&at| !is_either(at));
        ensure!(
            wrong.is_none(),
            "file {name}: the byte at {wrong:?} is neither the new nor the old one"
        );
        Ok(())
    }
}
