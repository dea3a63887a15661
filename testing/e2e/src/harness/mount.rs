//! Mounts under test: a store of ours with its daemon, or ext4 on a loop device.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::mount::UnmountFlags;

use super::context::{Context, Target};
use super::disk::Disk;
use super::guardian;
use super::process::{command, output, run, tail};
use super::report::Skip;
use super::stats::Stats;

/// How long a mount may take to appear or to go.
const PATIENCE: Duration = Duration::from_secs(30);
/// `f_type` of FUSE.
const FUSE_MAGIC: i64 = 0x6573_5546;

/// The store to create and mount.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    /// Name of the store and of the mount point within the folder of the run.
    pub(crate) name: String,
    /// Size as `--create` takes it.
    pub(crate) size: String,
    /// `-o` options.
    pub(crate) options: Vec<String>,
    /// `--memory`.
    pub(crate) memory: Option<String>,
    /// The command, if it is not the one under test.
    pub(crate) program: Option<PathBuf>,
    medium: Medium,
}

/// The medium of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Medium {
    File,
    BlockDevice,
    /// A directory, with the RocksDB engine.
    RocksDb,
}

impl Spec {
    pub(crate) fn new(name: &str, size: &str) -> Self {
        let (name, size) = (name.to_owned(), size.to_owned());
        Self {
            name,
            size,
            options: vec!["noatime".to_owned()],
            memory: None,
            program: None,
            medium: Medium::File,
        }
    }

    pub(crate) fn on_device(mut self) -> Self {
        self.medium = Medium::BlockDevice;
        self
    }

    /// The store has the RocksDB engine; its size is the host's. A case is skipped where the
    /// command has no such engine.
    pub(crate) fn on_rocksdb(mut self) -> Self {
        self.medium = Medium::RocksDb;
        self
    }

    pub(crate) fn option(mut self, option: &str) -> Self {
        self.options.push(option.to_owned());
        self
    }

    pub(crate) fn memory(mut self, memory: &str) -> Self {
        self.memory = Some(memory.to_owned());
        self
    }
}

/// A store or image that is mounted, was mounted, and can be mounted again. Gone when dropped.
pub(crate) struct Mount<'a> {
    context: &'a Context,
    target: Target,
    spec: Spec,
    store: PathBuf,
    /// What the store is, if it is no file.
    disk: Option<Disk>,
    dir: PathBuf,
    daemon: Option<Child>,
}

impl<'a> Mount<'a> {
    /// Makes and mounts what the run is about.
    pub(crate) fn create(context: &'a Context, spec: &Spec) -> Result<Self> {
        Self::create_as(context, context.target, spec)
    }

    /// Makes and mounts ext4 to compare with.
    pub(crate) fn reference(context: &'a Context, spec: &Spec) -> Result<Self> {
        Self::create_as(context, Target::Ext4, spec)
    }

    fn create_as(context: &'a Context, target: Target, spec: &Spec) -> Result<Self> {
        let store = context.work.join(format!("{}.store", spec.name));
        let dir = context.dir(&spec.name)?;
        ensure!(!store.exists(), "the name {} is taken", spec.name);
        let mut mount = Self {
            context,
            target,
            spec: spec.clone(),
            store,
            disk: None,
            dir,
            daemon: None,
        };
        if target == Target::Ext4 {
            let store = mount.store.display().to_string();
            run(&mut command("truncate", &["-s", &spec.size, &store]))?;
            run(&mut command("mkfs.ext4", &["-q", "-F", "-m", "0", &store]))?;
        }
        if target == Target::Stitch {
            mount.make()?;
        }
        mount.mount(target == Target::Stitch && spec.medium == Medium::File)?;
        Ok(mount)
    }

    /// Makes the store, unless mounting does.
    fn make(&mut self) -> Result<()> {
        match self.spec.medium {
            Medium::File => Ok(()),
            Medium::BlockDevice => {
                let disk = Disk::attach(self.context, &self.spec.name, &self.spec.size)?;
                self.store = disk.device().to_owned();
                let mut make = Command::new(&self.context.stitchfs);
                run(make.arg("mkfs").arg(&self.store))?;
                self.disk = Some(disk);
                Ok(())
            }
            Medium::RocksDb => {
                let store = self.store.display().to_string();
                let made = stitchfs(self.context, &["mkfs", "--engine", "rocksdb", &store]);
                match made? {
                    (0, _) => Ok(()),
                    (1, said) if said.contains("was built without") => {
                        Err(Skip("the command was built without RocksDB".to_owned()).into())
                    }
                    (1, said) if said.contains("cannot load the RocksDB library") => {
                        Err(Skip("librocksdb7.8 is not installed".to_owned()).into())
                    }
                    (code, said) => bail!("mkfs: {code}\n{said}"),
                }
            }
        }
    }

    /// The store: a file, a device or a directory.
    pub(crate) fn store(&self) -> &Path {
        &self.store
    }

    /// Its name within the folder of the run.
    pub(crate) fn name(&self) -> &str {
        &self.spec.name
    }

    /// Where it is mounted.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Process id of the daemon.
    pub(crate) fn daemon_id(&self) -> Result<u32> {
        Ok(self.daemon.as_ref().context("no daemon is running")?.id())
    }

    /// Mounts it again after [`Self::unmount`] or [`Self::kill`].
    pub(crate) fn mount_again(&mut self) -> Result<()> {
        self.mount(false)
    }

    /// Unmounts and mounts.
    pub(crate) fn remount(&mut self) -> Result<()> {
        self.unmount()?;
        self.mount_again()
    }

    fn mount(&mut self, create: bool) -> Result<()> {
        guardian::watch_mount(&self.dir)?;
        match self.target {
            Target::Stitch => self.start_daemon(create),
            Target::Ext4 => {
                let options = [&["loop".to_owned()], self.spec.options.as_slice()].concat();
                let mut command = Command::new("mount");
                command
                    .args(["-o", &options.join(",")])
                    .arg(&self.store)
                    .arg(&self.dir);
                run(&mut command).map(drop)
            }
        }
    }

    fn start_daemon(&mut self, create: bool) -> Result<()> {
        let _turned = self.context.transport.prepare()?;
        let log_path = self.log_path();
        let log = File::options().create(true).append(true).open(&log_path)?;
        let program = self.spec.program.as_ref();
        let mut command = Command::new(program.unwrap_or(&self.context.stitchfs));
        command.arg("mount").arg("--foreground");
        if create {
            command.args(["--create", &self.spec.size]);
        }
        if let Some(memory) = &self.spec.memory {
            command.args(["--memory", memory]);
        }
        command.args(["-o", self.context.transport.option()]);
        if !self.spec.options.is_empty() {
            command.args(["-o", &self.spec.options.join(",")]);
        }
        command.arg(&self.store).arg(&self.dir).stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log);
        let daemon = command
            .spawn()
            .with_context(|| format!("cannot run {command:?}"))?;
        guardian::watch_process(daemon.id())?;
        let daemon = self.daemon.insert(daemon);

        let dir = &self.dir;
        let up = self.context.wait_until(PATIENCE, || {
            if let Some(status) = daemon.try_wait()? {
                bail!("the daemon ended: {status}");
            }
            Ok(is_live_fuse(dir))
        });
        match up {
            Ok(true) => Ok(()),
            Ok(false) => bail!("no mount after {PATIENCE:?}\n{}", self.log_tail()),
            Err(error) => Err(error.context(self.log_tail())),
        }
    }

    fn log_path(&self) -> PathBuf {
        self.context.work.join(format!("{}.log", self.spec.name))
    }

    /// The last lines that the daemon printed.
    pub(crate) fn log_tail(&self) -> String {
        tail(&fs::read(self.log_path()).unwrap_or_default())
    }

    /// Unmounts and waits until everything is written and the daemon has ended well.
    pub(crate) fn unmount(&mut self) -> Result<()> {
        match self.target {
            Target::Stitch => {
                run(Command::new(&self.context.stitchfs)
                    .arg("umount")
                    .arg(&self.dir))?;
                self.wait_for_daemon()?;
            }
            Target::Ext4 => drop(run(Command::new("umount").arg(&self.dir))?),
        }
        ensure!(
            !is_mount_point(&self.dir)?,
            "{} is still mounted",
            self.dir.display()
        );
        guardian::forget_mount(&self.dir);
        Ok(())
    }

    fn wait_for_daemon(&mut self) -> Result<()> {
        let Some(mut daemon) = self.daemon.take() else {
            return Ok(());
        };
        let mut status = None;
        let ended = self.context.wait_until(PATIENCE, || {
            status = daemon.try_wait()?;
            Ok(status.is_some())
        })?;
        if !ended {
            guardian::kill(daemon.id());
            daemon.wait()?;
            bail!("the daemon did not end after the unmount");
        }
        let status = status.expect("ended");
        ensure!(
            status.success(),
            "the daemon ended with {status}\n{}",
            self.log_tail()
        );
        Ok(())
    }

    /// Waits until the daemon has ended by itself.
    pub(crate) fn ended(&mut self, limit: Duration) -> Result<ExitStatus> {
        let daemon = self.daemon.as_mut().context("no daemon is running")?;
        let mut status = None;
        let ended = self.context.wait_until(limit, || {
            status = daemon.try_wait()?;
            Ok(status.is_some())
        })?;
        ensure!(ended, "it goes on\n{}", self.log_tail());
        self.daemon = None;
        Ok(status.expect("ended"))
    }

    /// Kills the daemon as `kill -9` does. The dead mount stays, for the next mount to find.
    pub(crate) fn kill(&mut self) -> Result<()> {
        let mut daemon = self.daemon.take().context("no daemon is running")?;
        daemon.kill()?;
        daemon.wait()?;
        Ok(())
    }

    /// Kills as [`Self::kill`] does, a daemon that may fail to end.
    pub(crate) fn kill_within(&mut self, limit: Duration) -> Result<()> {
        self.daemon
            .as_mut()
            .context("no daemon is running")?
            .kill()?;
        self.ended(limit).map(drop)
    }

    /// Unmounts the dead mount that [`Self::kill`] has left.
    pub(crate) fn detach(&self) -> Result<()> {
        ensure!(self.daemon.is_none(), "its daemon is running");
        rustix::mount::unmount(&self.dir, UnmountFlags::DETACH)?;
        Ok(())
    }

    /// Checks the store, which must not be mounted; anything wrong is an error.
    pub(crate) fn fsck(&self) -> Result<()> {
        match self.target {
            Target::Stitch => {
                let mut command = Command::new(&self.context.stitchfs);
                run(command.args(["fsck", "-n"]).arg(&self.store)).map(drop)
            }
            Target::Ext4 => run(Command::new("e2fsck").arg("-fn").arg(&self.store)).map(drop),
        }
    }

    /// Counters of the daemon.
    pub(crate) fn stats(&self) -> Result<Stats> {
        let mut command = Command::new(&self.context.stitchfs);
        Stats::parse(&run(command.args(["stats", "--json"]).arg(&self.dir))?)
    }

    /// Makes everything durable.
    pub(crate) fn sync(&self) -> Result<()> {
        let dir = File::open(&self.dir)?;
        rustix::fs::fsync(&dir)?;
        if self.target == Target::Ext4 {
            rustix::fs::syncfs(&dir)?;
        }
        Ok(())
    }

    /// The folder of the large files of a store of this name.
    pub(crate) fn folder(context: &Context, name: &str) -> PathBuf {
        context.work.join(format!("{name}.store.files"))
    }

    /// How many plain files there are beside the store.
    pub(crate) fn plain_files(&self) -> Result<u64> {
        let mut count = 0;
        let folder = match self.spec.medium {
            Medium::RocksDb => self.store.join("files"),
            _ => Self::folder(self.context, &self.spec.name),
        };
        let folder = folder.join("main");
        for group in entries(&folder)? {
            if group.ends_with("lost+found") {
                bail!("{} was set aside", group.display());
            }
            count += entries(&group)?.len() as u64;
        }
        Ok(count)
    }

    /// Waits until there is a plain file for each file that has one, and no other.
    pub(crate) fn expect_no_stray_files(&self) -> Result<()> {
        let (mut plain, mut known) = (0, 0);
        let is_even = self.context.wait_until(PATIENCE, || {
            known = self.stats()?.get("fs.large_files")?;
            plain = self.plain_files()?;
            Ok(plain == known)
        })?;
        ensure!(is_even, "{plain} plain files for {known} large files");
        Ok(())
    }

    /// Free bytes as `statfs` tells.
    pub(crate) fn free_bytes(&self) -> Result<u64> {
        let stat = rustix::fs::statvfs(&self.dir)?;
        Ok(stat.f_bavail * stat.f_frsize)
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        if self.daemon.is_some() {
            let _ = self.unmount();
        }
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        while is_mount_point(&self.dir).unwrap_or(false) {
            if rustix::mount::unmount(&self.dir, UnmountFlags::DETACH).is_err() {
                break;
            }
        }
        guardian::forget_mount(&self.dir);
        if self.disk.is_some() {
            return;
        }
        let _ = match self.spec.medium {
            Medium::RocksDb => fs::remove_dir_all(&self.store),
            _ => fs::remove_file(&self.store),
        };
        let mut folder = self.store.clone().into_os_string();
        folder.push(".files");
        let _ = fs::remove_dir_all(folder);
        let _ = fs::remove_dir(&self.dir);
    }
}

/// What is in a folder; nothing if there is none.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path()));
    Ok(entries.collect::<Result<_, _>>()?)
}

/// Whether a FUSE file system answers at `dir`.
pub(crate) fn is_live_fuse(dir: &Path) -> bool {
    rustix::fs::statfs(dir).is_ok_and(|stat| stat.f_type == FUSE_MAGIC)
}

/// Whether anything, alive or dead, is mounted at `dir`.
pub(crate) fn is_mount_point(dir: &Path) -> Result<bool> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let dir = dir.display().to_string();
    Ok(table
        .lines()
        .any(|line| line.split(' ').nth(4) == Some(&dir)))
}

/// Runs `stitchfs` with arguments and gives its exit code and all it printed.
pub(crate) fn stitchfs(context: &Context, args: &[&str]) -> Result<(i32, String)> {
    let output = output(Command::new(&context.stitchfs).args(args))?;
    let text = [output.stdout, output.stderr].concat();
    let code = output.status.code().context("stitchfs was killed")?;
    Ok((code, String::from_utf8_lossy(&text).into_owned()))
}

/// Runs `stitchfs` with arguments, which must succeed, and gives all it printed.
pub(crate) fn command_of(context: &Context, args: &[&str]) -> Result<String> {
    let (code, said) = stitchfs(context, args)?;
    ensure!(code == 0, "{args:?}: {said}");
    Ok(said)
}
