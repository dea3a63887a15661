//! Where a side stands: an empty disk, a file system made on it, and a mount.
//!
//! Whatever was set up is taken down as this goes, also after a failure; what a run leaves that was
//! killed, the next one takes down (`disk::take_down`).

use super::juicefs;
use super::serve::{Beside, Daemon, Serve, What};
use super::side::{self, FsSide, LargeReads, RocksFiles, SideKind, Users, Xattrs};
use crate::disk::{Disk, Mount};
use anyhow::{Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};
use stitch_fuse::{MountOptions, Transport, mount};
use stitchfs::{EngineKind, LargeFiles, MakeOptions};

/// A side, mounted.
pub(crate) struct Ground<'a> {
    side: FsSide,
    disk: &'a Disk,
    at: PathBuf,
    below: PathBuf,
    memory_bytes: u64,
    cgroup: Option<PathBuf>,
    held: Option<Held>,
}

/// What is to be taken down: the daemon first.
struct Held {
    daemon: Option<Daemon>,
    _mount: Option<Mount>,
}

impl<'a> Ground<'a> {
    /// Makes an empty file system and mounts it in `folder`.
    pub(crate) fn new(
        side: FsSide,
        disk: &'a Disk,
        folder: &Path,
        (memory_bytes, cgroup): (u64, Option<PathBuf>),
    ) -> Result<Self> {
        let at = folder.join("mnt");
        let below = folder.join("below");
        fs::create_dir_all(&at)?;
        fs::create_dir_all(&below)?;
        let mut ground = Self {
            side,
            disk,
            at,
            below,
            memory_bytes,
            cgroup,
            held: None,
        };
        ground.make()?;
        ground.held = ground.set_up()?;
        Ok(ground)
    }

    /// Makes an empty file system.
    fn make(&self) -> Result<()> {
        match self.side.kind {
            SideKind::Store(..) | SideKind::Library => {
                let options = MakeOptions {
                    force: true,
                    ..MakeOptions::default()
                };
                stitchfs::make(self.disk.device(), &options, &mut |_, _| ())?;
                Ok(())
            }
            SideKind::Kernel(make) => self.disk.make(make),
            SideKind::External(..) => {
                self.disk.make(side::EXT4)?;
                let _mount = Mount::new(self.disk.device(), &self.below)?;
                self.make_beside()
            }
            SideKind::Rocks(_, files) | SideKind::RocksLibrary(files) => {
                self.disk.make(side::EXT4)?;
                let _mount = Mount::new(self.disk.device(), &self.below)?;
                self.make_rocks(files)
            }
            SideKind::Passthrough(_) => self.disk.make(side::EXT4),
            SideKind::JuiceFs => {
                self.disk.make(side::EXT4)?;
                let _mount = Mount::new(self.disk.device(), &self.below)?;
                juicefs::make(&self.below)
            }
            SideKind::Null(_) => Ok(()),
        }
    }

    /// A store in a file of half of the room, so that as much is left for what is beside it.
    fn make_beside(&self) -> Result<()> {
        let stat = rustix::fs::statvfs(&self.below)?;
        let options = MakeOptions {
            len_bytes: Some(stat.f_bavail * stat.f_frsize / 2),
            ..MakeOptions::default()
        };
        stitchfs::make(&self.store_beside(), &options, &mut |_, _| ())?;
        Ok(())
    }

    /// A store of the RocksDB engine in a directory.
    fn make_rocks(&self, files: RocksFiles) -> Result<()> {
        let options = MakeOptions {
            engine: EngineKind::RocksDb,
            large_files: match files {
                RocksFiles::Beside => LargeFiles::AsMade,
                RocksFiles::Inside => LargeFiles::Inside,
            },
            ..MakeOptions::default()
        };
        stitchfs::make(&self.store_beside(), &options, &mut |_, _| ())?;
        Ok(())
    }

    fn store_beside(&self) -> PathBuf {
        self.below.join("store")
    }

    /// Mounts what was made.
    fn set_up(&self) -> Result<Option<Held>> {
        let mount = match self.side.kind {
            SideKind::Kernel(_) => Some(Mount::new(self.disk.device(), &self.at)?),
            SideKind::External(..)
            | SideKind::Rocks(..)
            | SideKind::RocksLibrary(_)
            | SideKind::Passthrough(_)
            | SideKind::JuiceFs => Some(Mount::new(self.disk.device(), &self.below)?),
            SideKind::Library | SideKind::Store(..) | SideKind::Null(_) => None,
        };
        // Each step opens a library anew.
        let is_served = !self.side.is_library() && !matches!(self.side.kind, SideKind::Kernel(_));
        let daemon = is_served.then(|| self.serve()).transpose()?;
        Ok(Some(Held {
            daemon,
            _mount: mount,
        }))
    }

    /// Where it is mounted; of a library, its device or directory.
    pub(crate) fn path(&self) -> PathBuf {
        match self.side.kind {
            SideKind::Library => self.disk.device().to_owned(),
            SideKind::RocksLibrary(_) => self.store_beside(),
            _ => self.at.clone(),
        }
    }

    /// The file system that keeps what the mount is given, if that is another.
    pub(crate) fn below(&self) -> Option<&Path> {
        let has_below = matches!(
            self.side.kind,
            SideKind::External(..)
                | SideKind::Rocks(..)
                | SideKind::RocksLibrary(_)
                | SideKind::Passthrough(_)
                | SideKind::JuiceFs
        );
        has_below.then_some(&*self.below)
    }

    /// Where the kernel counts what its disk did, if it has one.
    pub(crate) fn counters(&self) -> Option<PathBuf> {
        match self.side.kind {
            SideKind::Null(_) => None,
            _ => Some(self.disk.counters()),
        }
    }

    /// Most memory that its daemon had resident so far, if it has one.
    pub(crate) fn daemon_peak_bytes(&self) -> Option<u64> {
        let daemon = self.held.as_ref()?.daemon.as_ref()?;
        Some(daemon.peak_bytes())
    }

    /// Leaves nothing of it in memory.
    pub(crate) fn cool(&mut self) -> Result<()> {
        if let SideKind::Null(_) = self.side.kind {
            // It would lose its files; so only the kernel forgets what it knows of them.
            return mount::remount(&self.at, &MountOptions::shared("null"))
                .context("cannot empty the kernel's caches");
        }
        drop(self.held.take());
        self.held = self.set_up()?;
        Ok(())
    }

    fn serve(&self) -> Result<Daemon> {
        let what = match self.side.kind {
            SideKind::Store(_, users, xattrs) => What::Store {
                device: self.disk.device().to_owned(),
                memory_bytes: self.memory_bytes,
                is_shared: users == Users::All,
                has_xattrs: xattrs == Xattrs::Served,
                beside: None,
            },
            // Where its large files are is as it was made.
            SideKind::Rocks(..) => What::Store {
                device: self.store_beside(),
                memory_bytes: self.memory_bytes,
                is_shared: true,
                has_xattrs: true,
                beside: None,
            },
            SideKind::External(_, reads) => What::Store {
                device: self.store_beside(),
                memory_bytes: self.memory_bytes,
                is_shared: true,
                has_xattrs: true,
                beside: Some(Beside {
                    is_read_by_kernel: reads == LargeReads::Kernel,
                }),
            },
            SideKind::Passthrough(_) => What::Passthrough(self.below.clone()),
            SideKind::JuiceFs => What::Program {
                words: juicefs::mount_command(&self.below, &self.at, self.memory_bytes),
                log: self.below.with_extension("log"),
            },
            _ => What::Null,
        };
        let transport = self.side.transport().unwrap_or(Transport::Dev);
        Daemon::start(&Serve {
            what,
            at: self.at.clone(),
            transport: transport.name().to_owned(),
            cgroup: self.cgroup.clone(),
        })
    }
}
