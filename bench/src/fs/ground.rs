//! Where a side stands: an empty disk, a file system made on it, and a mount.
//!
//! Whatever was set up is taken down as this goes, also after a failure; what a run leaves that was
//! killed, the next one takes down (`disk::take_down`).

use super::serve::{Daemon, Serve, What};
use super::side::{Kind, Side, Users};
use crate::disk::{Disk, Mount};
use anyhow::{Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};
use stitch_fuse::{MountOptions, mount};
use stitchfs::MakeOptions;

/// A side, mounted.
pub(crate) struct Ground<'a> {
    side: Side,
    disk: &'a Disk,
    at: PathBuf,
    memory_bytes: u64,
    cgroup: Option<PathBuf>,
    held: Option<Held>,
}

/// What is to be taken down.
#[expect(dead_code, reason = "held until it is dropped")]
enum Held {
    Mount(Mount),
    Daemon(Daemon),
}

impl<'a> Ground<'a> {
    /// Makes an empty file system and mounts it in `folder`.
    pub(crate) fn new(
        side: Side,
        disk: &'a Disk,
        folder: &Path,
        (memory_bytes, cgroup): (u64, Option<PathBuf>),
    ) -> Result<Self> {
        let at = folder.join("mnt");
        fs::create_dir_all(&at)?;
        let mut ground = Self {
            side,
            disk,
            at,
            memory_bytes,
            cgroup,
            held: None,
        };
        if matches!(side.kind, Kind::Store(..) | Kind::Library) {
            let options = MakeOptions {
                force: true,
                ..MakeOptions::default()
            };
            stitchfs::make(disk.device(), &options, &mut |_, _| ())?;
        }
        ground.held = match side.kind {
            Kind::Kernel(make) => Some(Held::Mount(disk.mount_as(make, &ground.at)?)),
            Kind::Store(..) | Kind::Null(_) => Some(Held::Daemon(ground.serve()?)),
            Kind::Library => None,
        };
        Ok(ground)
    }

    /// Where it is mounted, or its device.
    pub(crate) fn path(&self) -> &Path {
        match self.side.kind {
            Kind::Library => self.disk.device(),
            _ => &self.at,
        }
    }

    /// Where the kernel counts what its disk did, if it has one.
    pub(crate) fn counters(&self) -> Option<PathBuf> {
        match self.side.kind {
            Kind::Null(_) => None,
            _ => Some(self.disk.counters()),
        }
    }

    /// Leaves nothing of it in memory.
    pub(crate) fn cool(&mut self) -> Result<()> {
        if let Kind::Null(_) = self.side.kind {
            // It would lose its files; so only the kernel forgets what it knows of them.
            return mount::remount(&self.at, &MountOptions::shared("null"))
                .context("cannot empty the kernel's caches");
        }
        drop(self.held.take());
        self.held = match self.side.kind {
            Kind::Kernel(_) => Some(Held::Mount(Mount::new(self.disk.device(), &self.at)?)),
            Kind::Store(..) | Kind::Null(_) => Some(Held::Daemon(self.serve()?)),
            // Each step opens it anew.
            Kind::Library => None,
        };
        Ok(())
    }

    fn serve(&self) -> Result<Daemon> {
        let what = match self.side.kind {
            Kind::Store(_, users) => What::Store {
                device: self.disk.device().to_owned(),
                memory_bytes: self.memory_bytes,
                is_shared: users == Users::All,
            },
            _ => What::Null,
        };
        let transport = self.side.transport().context("it is not served")?;
        Daemon::start(&Serve {
            what,
            at: self.at.clone(),
            transport: transport.name().to_owned(),
            cgroup: self.cgroup.clone(),
        })
    }
}
