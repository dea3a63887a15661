//! The words after `-o`, as in fstab(5) and mount(8).

use super::{compress, size};
use stitch_fs::HISTORY_S_MAX;
use stitch_fuse::transport::idle_poll::IdlePollChoice;
use stitch_fuse::{Transport, TransportChoice};
use stitch_serve::SyncPolicy;
use stitchfs::{
    Compression, EXTERNAL_FROM_BYTES, IoMode, LARGE_FILES_MAX, LARGE_FILES_MIN, LargeFiles,
};

/// One word after `-o`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MountOption {
    /// `ro`, `rw`.
    ReadOnly(bool),
    /// `nosuid`, `suid`.
    NoSuid(bool),
    /// `nodev`, `dev`.
    NoDev(bool),
    /// `noexec`, `exec`.
    NoExec(bool),
    /// `noatime`, `relatime`, `strictatime`.
    AccessTimes(AccessTimes),
    /// `nodiratime`, `diratime`.
    NoDirAtime(bool),
    /// `sync`, `async`.
    Sync(bool),
    /// `dirsync`.
    DirSync,
    /// `allow_other`, `noallow_other`.
    AllowOther(bool),
    /// `default_permissions`, `nodefault_permissions`.
    DefaultPermissions(bool),
    /// `uid=`: owner of a new store's root directory.
    Uid(u32),
    /// `gid=`: group of a new store's root directory.
    Gid(u32),
    /// `umask=`: mode bits that a new store's root directory lacks.
    Umask(u32),
    /// `commit=`: seconds.
    Commit(u32),
    /// `memory=`: bytes.
    Memory(u64),
    /// `discard`, `nodiscard`.
    Discard(bool),
    /// `io=`: the way to a block device.
    Io(IoMode),
    /// `compress=`: contents of files.
    Compress(Compression),
    /// `compress_meta=`: names and attributes.
    CompressMeta(Compression),
    /// `large_files=`: which files leave the store.
    LargeFiles(LargeFiles),
    /// `transport=`: how requests come.
    Transport(TransportChoice),
    /// `enable-uring`: turns the kernel's switch.
    EnableUring,
    /// `idle_poll`, `noidle_poll`: idle processors stay awake between requests.
    IdlePoll(bool),
    /// `restart`, `norestart`: the mount survives its daemon.
    Restart(bool),
    /// `passthrough`, `nopassthrough`: the kernel reads large files beside the store itself.
    Passthrough(bool),
    /// `atomic_write`, `noatomic_write`: programs can write to a file atomically.
    AtomicWrite(bool),
    /// `noxattr`, `xattr`: no extended attributes, access lists and file capabilities.
    NoXattr(bool),
    /// `kv`, `kv=`, `nokv`: keys are served to Redis clients; when they are made durable.
    Keys(Option<SyncPolicy>),
    /// `instance=`.
    Instance(String),
    /// `history=`, `nohistory`: seconds for which the history is kept.
    History(Option<u64>),
    /// `fsname=`.
    FsName(String),
    /// `remount`: other flags for what is mounted.
    Remount,
    /// A word for others: for mount(8), systemd, the boot scripts.
    Ignored,
}

/// When reading a file changes its access time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum AccessTimes {
    /// Never.
    None,
    /// When it is older than the last change, or than a day.
    #[default]
    Relative,
    /// Always.
    Strict,
}

/// All the words together, the later ones winning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MountWords {
    pub(super) read_only: bool,
    pub(super) no_suid: bool,
    pub(super) no_dev: bool,
    pub(super) no_exec: bool,
    pub(super) access_times: AccessTimes,
    pub(super) no_dir_atime: bool,
    pub(super) sync: bool,
    pub(super) dir_sync: bool,
    pub(super) allow_other: Option<bool>,
    pub(super) default_permissions: Option<bool>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) umask: Option<u32>,
    pub(super) commit_s: Option<u32>,
    pub(super) memory_bytes: Option<u64>,
    pub(super) discard: bool,
    pub(super) io: IoMode,
    pub(super) compress: Option<Compression>,
    pub(super) compress_meta: Option<Compression>,
    pub(super) large_files: LargeFiles,
    pub(super) transport: TransportChoice,
    pub(super) enable_uring: bool,
    pub(super) idle_poll: IdlePollChoice,
    pub(super) restart: bool,
    pub(super) passthrough: bool,
    pub(super) atomic_write: bool,
    pub(super) no_xattr: bool,
    pub(super) keys: Option<SyncPolicy>,
    pub(super) instance: Option<String>,
    pub(super) history_s: Option<u64>,
    pub(super) fs_name: Option<String>,
    pub(super) remount: bool,
}

impl MountWords {
    /// Folds the words.
    pub(super) fn new<'a>(options: impl IntoIterator<Item = &'a MountOption>) -> Self {
        let mut words = Self::default();
        for option in options {
            words.take(option.clone());
        }
        words
    }

    fn take(&mut self, option: MountOption) {
        match option {
            MountOption::ReadOnly(on) => self.read_only = on,
            MountOption::NoSuid(on) => self.no_suid = on,
            MountOption::NoDev(on) => self.no_dev = on,
            MountOption::NoExec(on) => self.no_exec = on,
            MountOption::AccessTimes(policy) => self.access_times = policy,
            MountOption::NoDirAtime(on) => self.no_dir_atime = on,
            MountOption::Sync(on) => self.sync = on,
            MountOption::DirSync => self.dir_sync = true,
            MountOption::AllowOther(on) => self.allow_other = Some(on),
            MountOption::DefaultPermissions(on) => self.default_permissions = Some(on),
            MountOption::Uid(uid) => self.uid = Some(uid),
            MountOption::Gid(gid) => self.gid = Some(gid),
            MountOption::Umask(umask) => self.umask = Some(umask),
            MountOption::Commit(seconds) => self.commit_s = Some(seconds),
            MountOption::History(seconds) => self.history_s = seconds,
            MountOption::Memory(bytes) => self.memory_bytes = Some(bytes),
            MountOption::Discard(on) => self.discard = on,
            MountOption::Io(way) => self.io = way,
            MountOption::Compress(how) => self.compress = Some(how),
            MountOption::CompressMeta(how) => self.compress_meta = Some(how),
            MountOption::LargeFiles(from) => self.large_files = from,
            MountOption::Transport(choice) => self.transport = choice,
            MountOption::EnableUring => self.enable_uring = true,
            MountOption::IdlePoll(true) => self.idle_poll = IdlePollChoice::Always,
            MountOption::IdlePoll(false) => self.idle_poll = IdlePollChoice::Never,
            MountOption::Restart(on) => self.restart = on,
            MountOption::Passthrough(on) => self.passthrough = on,
            MountOption::AtomicWrite(on) => self.atomic_write = on,
            MountOption::Keys(sync) => self.keys = sync,
            MountOption::NoXattr(on) => self.no_xattr = on,
            MountOption::Instance(name) => self.instance = Some(name),
            MountOption::FsName(name) => self.fs_name = Some(name),
            MountOption::Remount => self.remount = true,
            MountOption::Ignored => {}
        }
    }
}

/// Parses what stands after one `-o`: words with commas between them.
pub(super) fn parse(list: &str) -> Result<Vec<MountOption>, String> {
    let words = list.split(',').map(str::trim).filter(|w| !w.is_empty());
    words.map(parse_word).collect()
}

fn parse_word(word: &str) -> Result<MountOption, String> {
    if let Some((name, value)) = word.split_once('=') {
        return parse_value(word, name, value);
    }
    Ok(match word {
        "ro" => MountOption::ReadOnly(true),
        "rw" => MountOption::ReadOnly(false),
        "nosuid" => MountOption::NoSuid(true),
        "suid" => MountOption::NoSuid(false),
        "nodev" => MountOption::NoDev(true),
        "dev" => MountOption::NoDev(false),
        "noexec" => MountOption::NoExec(true),
        "exec" => MountOption::NoExec(false),
        "noatime" => MountOption::AccessTimes(AccessTimes::None),
        "relatime" | "atime" => MountOption::AccessTimes(AccessTimes::Relative),
        "strictatime" => MountOption::AccessTimes(AccessTimes::Strict),
        "nodiratime" => MountOption::NoDirAtime(true),
        "diratime" => MountOption::NoDirAtime(false),
        "sync" => MountOption::Sync(true),
        "async" => MountOption::Sync(false),
        "dirsync" => MountOption::DirSync,
        "allow_other" => MountOption::AllowOther(true),
        "noallow_other" => MountOption::AllowOther(false),
        "default_permissions" => MountOption::DefaultPermissions(true),
        "nodefault_permissions" => MountOption::DefaultPermissions(false),
        "discard" => MountOption::Discard(true),
        "nodiscard" => MountOption::Discard(false),
        "enable-uring" => MountOption::EnableUring,
        "idle_poll" => MountOption::IdlePoll(true),
        "noidle_poll" => MountOption::IdlePoll(false),
        "restart" => MountOption::Restart(true),
        "norestart" => MountOption::Restart(false),
        "passthrough" => MountOption::Passthrough(true),
        "nopassthrough" => MountOption::Passthrough(false),
        "atomic_write" => MountOption::AtomicWrite(true),
        "noatomic_write" => MountOption::AtomicWrite(false),
        "noxattr" => MountOption::NoXattr(true),
        "kv" => MountOption::Keys(Some(SyncPolicy::EverySecond)),
        "nokv" => MountOption::Keys(None),
        "xattr" => MountOption::NoXattr(false),
        "nohistory" => MountOption::History(None),
        "remount" => MountOption::Remount,
        _ if is_for_others(word) => MountOption::Ignored,
        _ => return Err(unknown(word)),
    })
}

fn parse_value(word: &str, name: &str, value: &str) -> Result<MountOption, String> {
    let number = |radix| {
        u32::from_str_radix(value, radix).map_err(|_| match (name, radix) {
            ("uid" | "gid", _) => {
                format!("{word:?}: give a number; `id {value}` tells that of a name")
            }
            (_, 8) => format!("{word:?}: give an octal number up to 777, as umask=022"),
            _ => format!("{word:?}: {value:?} is no number"),
        })
    };
    Ok(match name {
        "uid" => MountOption::Uid(number(10)?),
        "gid" => MountOption::Gid(number(10)?),
        "umask" => match number(8)? {
            umask @ 0..=0o777 => MountOption::Umask(umask),
            _ => {
                return Err(format!(
                    "{word:?}: give an octal number up to 777, as umask=022"
                ));
            }
        },
        "commit" => match number(10)? {
            seconds @ 1..=3600 => MountOption::Commit(seconds),
            _ => return Err(format!("{word:?}: give 1 to 3600 seconds")),
        },
        "history" => match size::parse_seconds(value) {
            Some(seconds @ 10..=HISTORY_S_MAX) => MountOption::History(Some(seconds)),
            _ => {
                return Err(format!(
                    "{word:?}: give a time of at least 10s, as history=30m or history=7d"
                ));
            }
        },
        "memory" => MountOption::Memory(size::parse_memory(value)?),
        "io" => {
            MountOption::Io(value.parse().map_err(|_| {
                format!("{word:?}: give io=auto, io=buffered, io=direct or io=uring")
            })?)
        }
        "compress" => MountOption::Compress(compression(word, value)?),
        "compress_meta" => MountOption::CompressMeta(compression(word, value)?),
        "large_files" => MountOption::LargeFiles(large_files(word, value)?),
        "transport" => MountOption::Transport(transport(word, value)?),
        "kv" => MountOption::Keys(Some(match value {
            "always" => SyncPolicy::Always,
            "everysec" => SyncPolicy::EverySecond,
            _ => return Err(format!("{word:?}: give kv=always or kv=everysec")),
        })),
        "instance" if !value.is_empty() => MountOption::Instance(value.to_owned()),
        "instance" => return Err("instance= needs a name, as instance=mail".into()),
        "fsname" if !value.is_empty() => MountOption::FsName(value.to_owned()),
        "fsname" => return Err("fsname= needs a name, as fsname=data".into()),
        // Ours whatever it says; mount.fuse passes it.
        "subtype" | "comment" => MountOption::Ignored,
        // The kernel shows these, so a remount brings them back.
        "user_id" | "group_id" | "rootmode" | "max_read" => MountOption::Ignored,
        _ if is_for_others(name) => MountOption::Ignored,
        _ => return Err(unknown(name)),
    })
}

fn compression(word: &str, value: &str) -> Result<Compression, String> {
    compress::parse(value).map_err(|_| format!("{word:?}: give none, lz4 or zstd"))
}

fn large_files(word: &str, value: &str) -> Result<LargeFiles, String> {
    let range = LARGE_FILES_MIN..=LARGE_FILES_MAX;
    let refused = || {
        format!(
            "{word:?}: give large_files=inside, large_files=external, or \
             large_files=external:SIZE with 4K to 1G"
        )
    };
    match value.split_once(':') {
        None if value == "inside" => Ok(LargeFiles::Inside),
        None if value == "external" => Ok(LargeFiles::External(EXTERNAL_FROM_BYTES)),
        Some(("external", text)) => {
            let bytes = size::parse(text).ok().filter(|bytes| range.contains(bytes));
            bytes.map(LargeFiles::External).ok_or_else(refused)
        }
        _ => Err(refused()),
    }
}

fn transport(word: &str, value: &str) -> Result<TransportChoice, String> {
    match value {
        "auto" => Ok(TransportChoice::Auto),
        "uring" => Ok(TransportChoice::Only(Transport::Uring)),
        "dev" => Ok(TransportChoice::Only(Transport::Dev)),
        _ => Err(format!("{word:?}: give auto, uring or dev")),
    }
}

fn unknown(name: &str) -> String {
    format!("there is no mount option {name:?}; `stitchfs mount --help` lists them")
}

/// Words of fstab that speak to mount(8), systemd and boot scripts.
fn is_for_others(name: &str) -> bool {
    let words = [
        "defaults",
        "auto",
        "noauto",
        "user",
        "nouser",
        "users",
        "owner",
        "group",
        "nofail",
        "_netdev",
        "silent",
        "loud",
        "norelatime",
        "nostrictatime",
        "lazytime",
        "nolazytime",
        "iversion",
        "noiversion",
        "mand",
        "nomand",
    ];
    words.contains(&name) || name.starts_with("x-") || name.starts_with("X-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(list: &str) -> MountWords {
        MountWords::new(&parse(list).unwrap())
    }

    #[test]
    fn later_words_win() {
        let words = words("ro,noatime,nosuid,rw,strictatime,commit=7,memory=128M");
        assert!(!words.read_only && words.no_suid);
        assert_eq!(words.access_times, AccessTimes::Strict);
        assert_eq!(words.commit_s, Some(7));
        let packed = self::words("compress=lz4,compress_meta=none,compress=zstd");
        assert_eq!(packed.compress, Some(Compression::Zstd));
        assert_eq!(packed.compress_meta, Some(Compression::None));
        assert_eq!(words.memory_bytes, Some(128 << 20));
    }

    #[test]
    fn discards_are_off_unless_asked_for() {
        assert!(!words("rw").discard);
        assert!(words("nodiscard,discard").discard);
        assert!(!words("discard,nodiscard").discard);
    }

    #[test]
    fn the_transport_is_chosen_by_name() {
        assert_eq!(words("rw").transport, TransportChoice::Auto);
        let device = words("enable-uring,transport=uring,transport=dev");
        let dev = TransportChoice::Only(Transport::Dev);
        assert_eq!((device.transport, device.enable_uring), (dev, true));
        let uring = TransportChoice::Only(Transport::Uring);
        assert_eq!(words("transport=uring").transport, uring);
    }

    #[test]
    fn a_mount_ends_with_its_daemon_unless_asked() {
        assert!(!words("rw").restart);
        assert!(words("norestart,restart").restart);
        assert!(!words("restart,norestart").restart);
    }

    #[test]
    fn closes_are_not_served_unless_asked() {
        assert!(!words("rw").atomic_write);
        assert!(words("noatomic_write,atomic_write").atomic_write);
        assert!(!words("atomic_write,noatomic_write").atomic_write);
    }

    #[test]
    fn large_files_are_read_by_the_daemon_unless_asked() {
        assert!(!words("large_files=external").passthrough);
        assert_eq!(words("kv").keys, Some(SyncPolicy::EverySecond));
        assert_eq!(words("kv,kv=always").keys, Some(SyncPolicy::Always));
        assert_eq!(words("kv=always,nokv").keys, None);
        assert!(words("nopassthrough,passthrough").passthrough);
        assert!(!words("passthrough,nopassthrough").passthrough);
    }

    #[test]
    fn there_are_attributes_unless_an_option_turns_them_off() {
        assert!(!words("rw").no_xattr);
        assert!(words("xattr,noxattr").no_xattr);
        assert!(!words("noxattr,xattr").no_xattr);
    }

    #[test]
    fn idle_polling_is_automatic_unless_an_option_says_otherwise() {
        assert_eq!(words("rw").idle_poll, IdlePollChoice::Auto);
        let always = words("noidle_poll,idle_poll").idle_poll;
        assert_eq!(always, IdlePollChoice::Always);
        let never = words("idle_poll,noidle_poll").idle_poll;
        assert_eq!(never, IdlePollChoice::Never);
    }

    #[test]
    fn the_way_to_a_device_has_words() {
        assert_eq!(words("rw").io, IoMode::Auto);
        assert_eq!(words("io=direct,io=uring").io, IoMode::Ring);
        assert_eq!(words("io=buffered").io, IoMode::Buffered);
    }

    #[test]
    fn large_files_stay_inside_unless_asked() {
        assert_eq!(words("rw").large_files, LargeFiles::AsMade);
        for (list, expected) in [
            ("large_files=external", LargeFiles::External(1 << 20)),
            ("large_files=external:64K", LargeFiles::External(64 << 10)),
            (
                "large_files=external,large_files=inside",
                LargeFiles::Inside,
            ),
        ] {
            assert_eq!(words(list).large_files, expected, "{list}");
        }
    }

    #[test]
    fn an_fstab_line_passes() {
        let line = "defaults,noauto,nofail,_netdev,x-systemd.automount,x-gvfs-show,user,,";
        assert_eq!(words(line), MountWords::default());
        let owner = words("uid=1000,gid=100,umask=027,fsname=disk,allow_other");
        assert_eq!((owner.uid, owner.gid), (Some(1000), Some(100)));
        assert_eq!(owner.umask, Some(0o27));
        assert_eq!(words("instance=mail").instance.as_deref(), Some("mail"));
        assert_eq!(owner.fs_name.as_deref(), Some("disk"));
        assert_eq!(owner.allow_other, Some(true));
    }

    #[test]
    fn unknown_words_and_bad_values_are_named() {
        let cases = [
            ("noatme", "noatme"),
            ("data=ordered", "data"),
            ("umask=1777", "777"),
            ("umask=9", "number"),
            ("commit=0", "3600"),
            ("uid=nobody", "nobody"),
            ("compress=gzip", "zstd"),
            ("compress", "--help"),
            ("transport=tcp", "uring"),
            ("enable-uring=1", "enable-uring"),
            ("io=mmap", "io=auto, io=buffered, io=direct or io=uring"),
            ("io", "--help"),
            ("restart=5", "restart"),
            ("passthrough=1", "passthrough"),
            ("atomic_write=1", "atomic_write"),
            ("noxattr=1", "noxattr"),
            ("large_files=beside", "large_files=external:SIZE"),
            ("large_files=external:1K", "4K to 1G"),
            ("large_files=external:2G", "4K to 1G"),
            ("large_files=external:", "4K to 1G"),
            ("memory=lots", "lots"),
            ("memory=1M", "64M"),
            ("mode=755", "--help"),
            ("fsname=", "name"),
            ("instance=", "name"),
            ("discard=1", "discard"),
        ];
        for (list, hint) in cases {
            let error = parse(list).unwrap_err();
            assert!(error.contains(hint), "{list}: {error}");
        }
    }
}
