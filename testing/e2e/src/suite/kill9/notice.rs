//! `kill -9` while the kernel writes mapped pages back for a search for holes: nothing hangs.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{SeekFrom, seek};
use stitch_base::random::Rng;

use super::PATIENCE;
use crate::harness::context::Context;
use crate::harness::guardian;
use crate::harness::map::Map;
use crate::harness::mount::{Mount, Spec};

/// The argument that makes this program the one that maps and searches.
pub(crate) const PROGRAM: &str = "map-and-search";
const PAGE: u64 = 4096;
const PAGES: u64 = 512;
const KILLS: u64 = 10;
/// Programs at a time.
const PROGRAMS: usize = 3;

/// Writes a page through a mapping and searches for it, for ever. A process of its own: it gets a
/// SIGBUS when its daemon is gone.
pub(crate) fn map_and_search(path: &Path) -> Result<()> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    let file = options.open(path)?;
    let len = PAGE * PAGES;
    loop {
        file.set_len(0)?;
        file.set_len(len)?;
        let map = Map::new(&file, usize::try_from(len)?, true)?;
        for page in 0..PAGES {
            map.write(usize::try_from(page * PAGE)?, b"data")?;
            seek(&file, SeekFrom::Data(page * PAGE))?;
        }
    }
}

/// The daemon and the programs end, each time.
pub(super) fn killed_in_a_notice(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut rng = Rng::new(context.seed.unwrap_or(1));
    let mut mount = Mount::create(context, &Spec::new("kill-notice", "256M"))?;
    for kill in 0..KILLS {
        let mut programs = Vec::new();
        for index in 0..PROGRAMS {
            programs.push(start(&mount.dir().join(format!("file{index}")))?);
        }
        context.sleep(Duration::from_millis(50 + rng.below(200)));
        mount
            .kill_within(PATIENCE)
            .with_context(|| format!("kill {kill}: the daemon"))?;
        for program in &mut programs {
            let ended = context.wait_until(PATIENCE, || Ok(program.try_wait()?.is_some()))?;
            ensure!(ended, "kill {kill}: a program hangs");
        }
        mount.mount_again()?;
    }
    mount.unmount()?;
    mount.fsck()
}

fn start(path: &Path) -> Result<Child> {
    let program = Command::new(std::env::current_exe()?)
        .arg(PROGRAM)
        .arg(path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    guardian::watch_process(program.id())?;
    Ok(program)
}
