//! `stitchfs mount`: serves a store at a mount point.

mod ending;
mod keys;
mod remount;

pub(super) use ending::{Ending, catch_signals, end_by_signals};

use super::daemon::{self, Started};
use super::log::{self, Target};
use super::options::{self, AccessTimes, MountOption, MountWords};
use super::watch::Watcher;
use super::{access, busy, hold, live, output, size, startup, utab};
use anyhow::{Context, Result, bail};
use clap::Parser;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stitch_base::ErrorKind;
use stitch_base::clock::{Clock, SystemClock};
use stitch_fuse::mount;
use stitch_fuse::transport::uring::{Refusal, SWITCH_PATH, Switch};
use stitch_fuse::{MountOptions, SessionConfig};
use stitchfs::{
    AtimePolicy, CompressOptions, Durability, Host, MakeOptions, RootOwner, Store, StoreError,
    StoreOptions,
};

/// How long to wait for a store that is in use but not mounted.
const PATIENCE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);

const AFTER: &str = "\
Options after -o:
  ro rw nosuid nodev noexec     as for mount(8)
  sync dirsync                  every operation is on the medium when it returns,
                                names and attributes too
  noatime relatime strictatime nodiratime
                                when reading changes access times; default
                                relatime
  allow_other                   other users may enter; default for root, and off
                                by noallow_other
  default_permissions           the kernel checks modes; default, except for
                                root with noallow_other
  uid=N gid=N umask=OCTAL       owner and mode of the root directory of a new
                                store
  commit=SECONDS                longest time that writes stay unsynced; default
                                5
  memory=SIZE                   the same as --memory
  discard                       tell the device about space as it becomes free
  io=auto|buffered|direct|uring how a block device is accessed: bypassing the
                                page cache where that is faster (auto, the
                                default), never, always, or always by io_uring
  compress=none|lz4|zstd        contents of files that are written from now on;
                                kept until changed
  compress_meta=none|lz4|zstd   names, attributes and small files; lz4 in a new
                                store
  large_files=external[:SIZE]   keep files that grow beyond SIZE (default 1M) as
                                plain files in the folder STORE.files; for
                                stores in a file, and with the RocksDB engine,
                                where mkfs says the default. large_files=inside,
                                the default elsewhere, makes no more of them
  passthrough                   as root, with large_files=external: the kernel
                                reads those plain files itself, unless they were
                                open for writing first (Linux 6.9); not with
                                restart
  kv                            serve the store's keys to Redis clients, for who
                                mounted: on the socket MNT/.stitchfs/kv.sock
                                leads to; kv=always makes each command durable
                                before its reply, kv=everysec each second
  transport=auto|uring|dev      how requests arrive: auto uses io_uring if the
                                kernel has it switched on, else /dev/fuse; uring
                                fails if io_uring is unavailable
  enable-uring                  as root, switch FUSE over io_uring on, for all
                                mounts
  idle_poll noidle_poll         as root: keep idle processors awake between
                                requests; default on virtual machines with 2 to
                                8 processors
  restart                       if the daemon dies, another one takes over:
                                files stay open and nothing is lost. Requests
                                arrive by /dev/fuse then (Linux 6.9)
  xattr noxattr                 with or without extended attributes, access
                                lists and file capabilities; without them each
                                file that is written costs one request less.
                                What is stored stays
  history=TIME nohistory        keep the moments of the last TIME, as 30m, 1h or 7d,
                                to go back to: see `stitchfs history`. It needs
                                the space of what was replaced or deleted since,
                                up to nine tenths of the store
  instance=NAME                 the instance to mount; see `stitchfs instance`
  fsname=NAME                   the device name shown in the mount table
  remount                       change the flags of a mount in place; what was
                                mounted with ro stays so until it is mounted
                                again
Words for mount(8) and systemd (defaults, noauto, user, nofail, _netdev, x-...)
are ignored.

Examples:
  stitchfs mount --create 8G store.stitch mnt
  stitchfs mount -o ro,allow_other /dev/sdb1 /srv
In /etc/fstab, with mount.stitchfs in the path of mount(8):
  /dev/sdb1  /srv  stitchfs  noatime,memory=512M  0  2";

/// Mount a store; returns when the mount answers
#[derive(Debug, Parser)]
#[command(after_help = AFTER)]
pub(super) struct Args {
    /// Make the store first if it does not exist, with this size
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    create: Option<u64>,

    /// Memory for buffers and caches; by default a quarter of the machine's or control group's,
    /// at least 64M
    #[arg(long, value_name = "SIZE", value_parser = size::parse_memory)]
    memory: Option<u64>,

    /// Stay in the foreground; prints "MNT: ready" when the mount serves, and ends by Ctrl-C or
    /// unmounting
    #[arg(long, short)]
    foreground: bool,

    /// Append the log to this file, instead of the system's log
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// Mount options, see below
    #[arg(short = 'o', value_name = "OPTS", value_parser = option_list)]
    options: Vec<OptionList>,

    /// File, directory, block device, LABEL=NAME or UUID=NUMBER
    #[arg(value_name = "STORE")]
    pub(super) store: PathBuf,

    /// Mount point; made if missing
    #[arg(value_name = "MNT")]
    mount_point: PathBuf,

    #[arg(skip)]
    fake: bool,
}

/// Mount a StitchFS store, as mount(8) asks for it
#[derive(Debug, Parser)]
#[command(name = "mount.stitchfs", version, after_help = AFTER, max_term_width = super::HELP_COLUMNS)]
pub(super) struct HelperArgs {
    /// File, directory, block device, LABEL=NAME or UUID=NUMBER
    #[arg(value_name = "STORE")]
    store: PathBuf,

    /// Mount point
    #[arg(value_name = "MNT")]
    mount_point: PathBuf,

    /// Mount options
    #[arg(short = 'o', value_name = "OPTS", value_parser = option_list)]
    options: Vec<OptionList>,

    /// Check the command line only
    #[arg(short = 'f')]
    fake: bool,

    /// Pass over options that are not known (accepted; none are)
    #[arg(short = 's')]
    sloppy: bool,

    /// Do not write /etc/mtab (it never is)
    #[arg(short = 'n')]
    no_mtab: bool,

    /// Say more
    #[arg(short = 'v')]
    verbose: bool,

    /// Type of file system
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
}

/// What one `-o` brought.
#[derive(Clone, Debug)]
struct OptionList(Vec<MountOption>);

fn option_list(text: &str) -> Result<OptionList, String> {
    options::parse(text).map(OptionList)
}

impl From<HelperArgs> for Args {
    fn from(helper: HelperArgs) -> Self {
        Self {
            create: None,
            memory: None,
            foreground: false,
            log: None,
            options: helper.options,
            store: helper.store,
            mount_point: helper.mount_point,
            fake: helper.fake,
        }
    }
}

pub(super) fn run(args: &Args, command_line: &[OsString]) -> Result<u8> {
    if args.fake {
        return Ok(0);
    }
    let words = args.words();
    if words.remount {
        remount::run(args, &words)?;
        return Ok(0);
    }
    if hold::is_worker() {
        return hold::run_worker(args);
    }
    let in_background = daemon::is_child();
    if in_background {
        daemon::leave_terminal();
    } else {
        startup::reset_for_daemon()?;
    }
    if args.foreground || in_background {
        if words.restart {
            return hold::run(args, command_line, in_background);
        }
        serve(args, in_background)?;
        return Ok(0);
    }
    match daemon::start(command_line)? {
        Started::Serving => {
            daemon::await_answer(&args.mount_point)?;
            Ok(0)
        }
        Started::Ended(code) => Ok(code),
    }
}

/// A store that is open, and how it is to be mounted.
pub(super) struct Prepared {
    pub(super) store: Store,
    pub(super) options: MountOptions,
    pub(super) config: SessionConfig,
}

impl Args {
    fn words(&self) -> MountWords {
        MountWords::new(self.options.iter().flat_map(|list| &list.0))
    }

    pub(super) const fn foreground(&self) -> bool {
        self.foreground
    }

    pub(super) fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// Where events go.
    pub(super) fn log_target(&self, in_background: bool) -> Target<'_> {
        self.log_target_or(self.log.as_deref(), in_background)
    }

    /// Where events go, with this file instead of ours.
    #[expect(clippy::unused_self, reason = "reads as what it is")]
    pub(super) fn log_target_or<'a>(
        &self,
        log: Option<&'a Path>,
        in_background: bool,
    ) -> Target<'a> {
        match log {
            Some(path) => Target::File(path),
            None if in_background => Target::System,
            None => Target::Terminal,
        }
    }

    /// The file of events, wherever a later daemon is started.
    pub(super) fn log_path(&self) -> Result<Option<PathBuf>> {
        let path = self.log.as_ref().map(std::path::absolute).transpose();
        path.context("cannot find the log")
    }

    /// Does all that comes before the mount.
    pub(super) fn prepare(&self) -> Result<Prepared> {
        let words = self.words();
        let rights = Rights::of(&words)?;
        clear_mount_point(&self.mount_point)?;
        if words.enable_uring {
            Switch::turn_on().with_context(|| {
                format!("enable-uring: only root can write to {SWITCH_PATH}, from Linux 6.14 on")
            })?;
        }
        let config = config(&words);
        // Before anything is made.
        config.check()?;
        keys::check(&words)?;
        let is_new = create_if_missing(self, &words)?;
        if !is_new && (words.uid.is_some() || words.gid.is_some() || words.umask.is_some()) {
            output::note("uid, gid and umask are for new stores only; they change nothing here");
        }
        let store = open(self, &words)?;
        access::warn_if_wide(store.path());
        for finding in store.damage() {
            output::note(&format!("{}: {}", finding.rule, finding.detail));
        }
        if !self.mount_point.exists() {
            std::fs::create_dir_all(&self.mount_point)
                .with_context(|| format!("cannot make {}", self.mount_point.display()))?;
        }
        keys::serve(&store, &words)?;
        let options = mount_options(&words, rights, store.path());
        Ok(Prepared {
            store,
            options,
            config,
        })
    }

    /// Opens the store of a mount whose daemon has ended, perhaps a moment ago.
    pub(super) fn open_again(&self, path: &Path) -> Result<Store> {
        let options = store_options(self, &self.words());
        let clock = SystemClock::default();
        loop {
            match Store::open(path, &options) {
                Err(error) if error.is_busy() && clock.monotonic() < PATIENCE => {
                    clock.sleep(POLL);
                }
                other => {
                    let store = other?;
                    keys::serve(&store, &self.words())?;
                    return Ok(store);
                }
            }
        }
    }

    /// Whether the kernel checks modes in this mount, and how it is served.
    pub(super) fn checks_and_config(&self) -> Result<(bool, SessionConfig)> {
        let words = self.words();
        Ok((Rights::of(&words)?.default_permissions, config(&words)))
    }
}

fn config(words: &MountWords) -> SessionConfig {
    SessionConfig {
        transport: words.transport,
        held: words.restart,
        idle_poll: words.idle_poll,
        passthrough: words.passthrough,
        xattrs: !words.no_xattr,
        id_mapped_mounts: stitchfs::sees_all_processes(),
        ..SessionConfig::default()
    }
}

/// Mounts and serves until it is unmounted.
fn serve(args: &Args, in_background: bool) -> Result<()> {
    log::subscribe(args.log_target(in_background))?;
    let Prepared {
        store,
        options,
        config,
    } = args.prepare()?;
    let signals = catch_signals(in_background)?;
    let host = Host::mount(store, &args.mount_point, &options, &config)?;
    // Where it is merely off, `info` says how to switch it on: few who mount can.
    let refused = host.transport().1;
    if let Some(reason) = refused.filter(|reason| !matches!(reason, Refusal::Off)) {
        output::note(&format!("{reason}; requests come by /dev/fuse"));
    }
    let _watcher = watcher(&args.mount_point);
    let ending = Ending {
        stopper: host.stopper(),
        gate: Some(host.gate()),
        in_background,
    };
    end_by_signals(signals, ending)?;
    if in_background {
        // Nobody waits for the mount any more: it is undone as the host is dropped.
        daemon::report_ready()?;
    } else {
        report_ready(&args.mount_point)?;
    }
    let _listed = utab::Listed::new(&args.mount_point);
    startup::leave_directory()?;
    host.join()?;
    Ok(())
}

/// Starts the watcher of a mount. Without one, a mount whose daemon is killed may hang.
fn watcher(mount_point: &Path) -> Option<Watcher> {
    let started = Watcher::start(mount_point);
    started
        .inspect_err(|error| tracing::warn!(%error, "the mount has no watcher"))
        .ok()
}

/// Prints that a mount in the foreground serves: `MNT: ready`.
///
/// The protocol is negotiated and the threads run, so no request to the mount is needed to know
/// that. None may be sent: a thread of the daemon that waits for its own daemon cannot be killed,
/// and holds the descriptors that keep the connection open.
pub(super) fn report_ready(mount_point: &Path) -> Result<()> {
    output::print(&format!("{}: ready", mount_point.display()))
}

/// Takes away what an earlier daemon left behind; refuses a mount of ours that lives.
fn clear_mount_point(mount_point: &Path) -> Result<()> {
    if mount::detach_dead(mount_point).unwrap_or(0) > 0 {
        let shown = mount_point.display();
        output::note(&format!(
            "{shown}: an earlier mount had lost its daemon and is cleared"
        ));
    }
    let entry = mount::mounted_at(mount_point).ok().flatten();
    if let Some(entry) = entry.filter(mount::table::MountEntry::is_ours) {
        bail!(
            "{}: {} is mounted there already; `stitchfs umount` takes it away",
            mount_point.display(),
            entry.source.display()
        );
    }
    Ok(())
}

/// True if a store was made.
fn create_if_missing(args: &Args, words: &MountWords) -> Result<bool> {
    let Some(len_bytes) = args.create else {
        return Ok(false);
    };
    let path = stitchfs::store_path(&args.store);
    if path.exists() {
        return Ok(false);
    }
    words.io.check_for_file(&path.display().to_string())?;
    let options = MakeOptions {
        len_bytes: Some(len_bytes),
        root: RootOwner {
            uid: words
                .uid
                .unwrap_or_else(|| rustix::process::geteuid().as_raw()),
            gid: words
                .gid
                .unwrap_or_else(|| rustix::process::getegid().as_raw()),
            mode: 0o777 & !words.umask.unwrap_or(0o022),
        },
        ..MakeOptions::default()
    };
    let bar = output::progress("making the store");
    let made = stitchfs::make(&path, &options, &mut |done, total| {
        output::advance(&bar, done, total);
    });
    bar.finish_and_clear();
    made?;
    Ok(true)
}

fn open(args: &Args, words: &MountWords) -> Result<Store> {
    let options = store_options(args, words);
    open_patiently(&args.store, &options).map_err(|error| explain(&args.store, error))
}

fn store_options(args: &Args, words: &MountWords) -> StoreOptions {
    let memory = args.memory.or(words.memory_bytes);
    StoreOptions {
        read_only: words.read_only,
        memory_bytes: memory.unwrap_or_else(stitchfs::memory::default_budget),
        history: words.history_s.map(Duration::from_secs),
        sync_interval: Duration::from_secs(u64::from(words.commit_s.unwrap_or(5))),
        atime: match words.access_times {
            AccessTimes::None => AtimePolicy::Noatime,
            AccessTimes::Relative => AtimePolicy::Relatime,
            AccessTimes::Strict => AtimePolicy::Strictatime,
        },
        // The kernel leaves `dirsync` to us, and `sync` in part.
        durability: if words.sync || words.dir_sync {
            Durability::Device
        } else {
            Durability::default()
        },
        discard: words.discard,
        io: words.io,
        large_files: words.large_files,
        instance: words.instance.clone(),
        compress: CompressOptions {
            data: words.compress,
            meta: words.compress_meta,
        },
        ..StoreOptions::default()
    }
}

/// A store that was unmounted a moment ago is in use until its daemon has written everything out;
/// `umount` and `mount` one after the other are to work all the same.
fn open_patiently(path: &Path, options: &StoreOptions) -> Result<Store, StoreError> {
    let clock = SystemClock::default();
    let store = stitchfs::store_path(path);
    loop {
        match Store::open(path, options) {
            Err(error) if error.is_busy() && clock.monotonic() < PATIENCE => {
                let is_mounted = live::mount_of(&store).is_ok_and(|entry| entry.is_some());
                if is_mounted || busy::is_mounted_elsewhere(&store) {
                    return Err(error);
                }
            }
            other => return other,
        }
        clock.sleep(POLL);
    }
}

/// Adds what the user can do here.
fn explain(store: &Path, error: StoreError) -> anyhow::Error {
    let path = stitchfs::store_path(store);
    if error.kind() == ErrorKind::NotFound && !path.exists() {
        let path = path.display();
        return anyhow::anyhow!("{path}: does not exist; to make it, add --create SIZE");
    }
    if error.is_write_protected() {
        let path = path.display();
        return anyhow::anyhow!("{path}: is write-protected; mount it with -o ro");
    }
    if error.is_permission_denied() && std::fs::File::open(&path).is_ok() {
        let path = path.display();
        return anyhow::anyhow!("{path}: you may only read it; mount it with -o ro");
    }
    if error.is_log_damaged() {
        let path = path.display();
        return anyhow::anyhow!(
            "{path}: {error}; restore the store from a copy, or give that up and keep what was \
             before it: stitchfs fsck -y --drop-log-tail {path}"
        );
    }
    if error.kind() == ErrorKind::Corrupt {
        let path = path.display();
        return anyhow::anyhow!("{error}; see what `stitchfs fsck {path}` can do");
    }
    error.into()
}

fn mount_options(words: &MountWords, rights: Rights, store: &Path) -> MountOptions {
    let source = words.fs_name.clone().map(OsString::from);
    MountOptions {
        source: source.unwrap_or_else(|| store.into()),
        read_only: words.read_only,
        no_suid: words.no_suid,
        no_dev: words.no_dev,
        no_exec: words.no_exec,
        no_atime: words.access_times == AccessTimes::None,
        no_dir_atime: words.no_dir_atime,
        sync: words.sync,
        dir_sync: words.dir_sync,
        allow_other: rights.allow_other,
        default_permissions: rights.default_permissions,
        max_read: None,
    }
}

/// Who can enter a mount, and whether the kernel checks modes for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rights {
    allow_other: bool,
    default_permissions: bool,
}

impl Rights {
    /// What the words say, and what is best where they say nothing: root alone may do everything,
    /// so the kernel need not ask for what modes are. A user's modes bind the user, too.
    fn of(words: &MountWords) -> Result<Self> {
        Self::for_user(words, rustix::process::geteuid().is_root())
    }

    fn for_user(words: &MountWords, is_root: bool) -> Result<Self> {
        let allow_other = words.allow_other.unwrap_or(is_root);
        let is_roots_alone = is_root && !allow_other;
        let default_permissions = words.default_permissions.unwrap_or(!is_roots_alone);
        anyhow::ensure!(
            default_permissions || !allow_other,
            "nodefault_permissions lets everybody who can enter do everything; give noallow_other \
             as well, so that only who mounts can enter"
        );
        Ok(Self {
            allow_other,
            default_permissions,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights(list: &str, is_root: bool) -> Result<(bool, bool)> {
        let words = MountWords::new(&options::parse(list).unwrap());
        let rights = Rights::for_user(&words, is_root)?;
        Ok((rights.allow_other, rights.default_permissions))
    }

    #[test]
    fn only_what_root_mounts_for_root_alone_does_without_checks() {
        let cases = [
            ("", true, (true, true)),
            ("noallow_other", true, (false, false)),
            ("noallow_other,default_permissions", true, (false, true)),
            ("", false, (false, true)),
            ("allow_other", false, (true, true)),
            ("nodefault_permissions", false, (false, false)),
        ];
        for (list, is_root, expected) in cases {
            assert_eq!(rights(list, is_root).unwrap(), expected, "{list} {is_root}");
        }
    }

    #[test]
    fn a_shared_mount_without_checks_is_refused() {
        for (list, is_root) in [
            ("nodefault_permissions", true),
            ("allow_other,nodefault_permissions", false),
        ] {
            let error = rights(list, is_root).unwrap_err().to_string();
            assert!(error.contains("noallow_other"), "{error}");
        }
    }
}
