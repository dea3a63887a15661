//! Operations of every kind, done in the mount and in a folder beside it, which must come out the
//! same.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, anyhow};
use rustix::fs::{CWD, RenameFlags, XattrFlags};
use stitch_base::random::Rng;
use stitch_base::thread::{self, JoinHandle};

use crate::harness::tree::{Rules, expect_equal, scan};

const NAMES: u64 = 40;
const THREADS: u64 = 2;

/// The threads that do them.
pub(super) struct Churn {
    stop: Arc<AtomicBool>,
    threads: Vec<(JoinHandle<Result<u64>>, [PathBuf; 2])>,
}

impl Churn {
    /// Starts in folders of its own below both.
    pub(super) fn start(mount: &Path, mirror: &Path, seed: u64) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for number in 0..THREADS {
            let roots = [mount, mirror].map(|top| top.join(format!("churn{number}")));
            for root in &roots {
                fs::create_dir(root)?;
                fs::create_dir(root.join("sub"))?;
            }
            let (both, stop) = (roots.clone(), Arc::clone(&stop));
            let mut rng = Rng::new(seed * 100 + number);
            let body = move || {
                let mut count = 0;
                while !stop.load(Ordering::SeqCst) {
                    one(&both, &mut rng, count).with_context(|| format!("operation {count}"))?;
                    count += 1;
                }
                Ok(count)
            };
            threads.push((thread::spawn("churn", body)?, roots));
        }
        Ok(Self { stop, threads })
    }

    /// Ends them, and compares what came of it. Tells how many operations there were.
    pub(super) fn end(self) -> Result<u64> {
        self.stop.store(true, Ordering::SeqCst);
        let mut count = 0;
        for (thread, [mount, mirror]) in self.threads {
            count += thread.join().map_err(|_| anyhow!("a thread panicked"))??;
            // When each thing was done differs.
            let rules = Rules {
                now_from: Some(0),
                dir_links: true,
                ..Rules::copy()
            };
            let (mirror, mount) = (scan(&mirror, rules)?, scan(&mount, rules)?);
            expect_equal(&mirror, &mount).context("what was done beside")?;
        }
        Ok(count)
    }
}

/// One operation in both; it must succeed, or fail in the same way.
fn one(roots: &[PathBuf; 2], rng: &mut Rng, count: u64) -> Result<()> {
    let (kind, a, b) = (rng.below(15), name(rng), name(rng));
    let mut bytes = vec![0; usize::try_from(1 + rng.below(9000))?];
    rng.fill(&mut bytes);
    let done = roots.each_ref().map(|root| {
        let (a, b) = (root.join(&a), root.join(&b));
        act(kind, &a, &b, &bytes).map_err(|error| error.raw_os_error())
    });
    anyhow::ensure!(
        done[0] == done[1],
        "{count}: kind {kind} of {a} and {b}: {:?} instead of {:?}",
        done[0],
        done[1]
    );
    Ok(())
}

fn name(rng: &mut Rng) -> String {
    let folder = if rng.below(2) == 0 { "" } else { "sub/" };
    format!("{folder}n{}", rng.below(NAMES))
}

fn act(kind: u64, a: &Path, b: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let rename = |flags| Ok(rustix::fs::renameat_with(CWD, a, CWD, b, flags)?);
    match kind {
        0 | 1 => fs::write(a, bytes),
        2 | 3 => File::options().append(true).open(a)?.write_all(bytes),
        4 => File::options()
            .write(true)
            .open(a)?
            .write_all_at(bytes, 3000),
        5 => File::create_new(a)?.sync_all(),
        6 => fs::rename(a, b),
        7 => rename(RenameFlags::EXCHANGE),
        8 => rename(RenameFlags::NOREPLACE),
        9 => fs::remove_file(a),
        10 => fs::hard_link(a, b),
        11 => std::os::unix::fs::symlink("target", a),
        12 => {
            fs::create_dir(a)?;
            fs::create_dir(a.join("inner"))?;
            fs::rename(a.join("inner"), a.join("moved"))?;
            fs::remove_dir(a.join("moved"))?;
            fs::remove_dir(a)
        }
        13 => Ok(rustix::fs::setxattr(
            a,
            "user.churn",
            &bytes[..1],
            XattrFlags::CREATE,
        )?),
        _ => Ok(rustix::fs::removexattr(a, "user.churn")?),
    }
}
