//! The command line of `stitchfs mount`.

use crate::command::options::{self, MountOption};
use crate::command::{HELP_COLUMNS, size};
use clap::Parser;
use std::path::PathBuf;

const AFTER: &str = "\
Options after -o:
  ro rw nosuid nodev noexec     as for mount(8)
  sync dirsync                  every operation is on the medium when it
                                returns, names and attributes too
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
  atomic_write                  SQLite built for it commits without a journal:
                                the ioctls for atomic writes of F2FS work on
                                files in the store. Each close of a file costs
                                one request more; not with restart
  kv                            serve the store's keys to Redis clients of the
                                user who mounted, on the socket that
                                MNT/.stitchfs/kv.sock leads to; kv=always makes
                                each command durable before its reply,
                                kv=everysec each second
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
  history=TIME nohistory        keep the moments of the last TIME, as 30m, 1h or
                                7d, to go back to: see `stitchfs history`. It
                                needs the space of what was replaced or deleted
                                since, up to nine tenths of the store
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
pub(in crate::command) struct MountArgs {
    /// Make the store first if it does not exist, with this size
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(super) create: Option<u64>,

    /// Memory for buffers and caches; by default a quarter of the machine's or control group's,
    /// at least 64M
    #[arg(long, value_name = "SIZE", value_parser = size::parse_memory)]
    pub(super) memory: Option<u64>,

    /// Stay in the foreground; prints "MNT: ready" when the mount serves, and ends by Ctrl-C or
    /// unmounting
    #[arg(long, short)]
    pub(super) foreground: bool,

    /// Append the log to this file, instead of the system's log
    #[arg(long, value_name = "FILE")]
    pub(super) log: Option<PathBuf>,

    /// Mount options, see below
    #[arg(short = 'o', value_name = "OPTS", value_parser = option_list)]
    pub(super) options: Vec<OptionList>,

    /// File, directory, block device, LABEL=NAME or UUID=NUMBER
    #[arg(value_name = "STORE")]
    pub(in crate::command) store: PathBuf,

    /// Mount point; made if missing
    #[arg(value_name = "MNT")]
    pub(super) mount_point: PathBuf,

    #[arg(skip)]
    pub(super) fake: bool,
}

/// Mount a StitchFS store, as mount(8) asks for it
#[derive(Debug, Parser)]
#[command(name = "mount.stitchfs", version, after_help = AFTER, max_term_width = HELP_COLUMNS)]
pub(in crate::command) struct MountHelperArgs {
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
pub(super) struct OptionList(pub(super) Vec<MountOption>);

fn option_list(text: &str) -> Result<OptionList, String> {
    options::parse(text).map(OptionList)
}

impl From<MountHelperArgs> for MountArgs {
    fn from(helper: MountHelperArgs) -> Self {
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
