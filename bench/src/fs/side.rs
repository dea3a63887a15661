//! The file systems that are measured.

use super::juicefs;
use crate::{disk, names};
use std::path::Path;
use std::process::Command;
use stitch_fuse::Transport;
use stitch_fuse::transport::uring::Switch;
use stitchfs::EngineKind;

/// The users of a mounted store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Users {
    /// All users, as mounts by root are by default.
    All,
    /// Root alone: the kernel checks no rights.
    Root,
}

/// Whether a mount has extended attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Xattrs {
    /// As by default.
    Served,
    /// The kernel does not ask for them (`noxattr`).
    Absent,
}

/// The reader of large files beside a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LargeReads {
    /// The daemon.
    Daemon,
    /// The kernel (`passthrough`).
    Kernel,
}

/// Where the large files of our file system on RocksDB are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RocksFiles {
    /// Those above 4 KiB are plain files beside it, as in vkFS.
    Beside,
    /// In RocksDB.
    Inside,
}

/// The kind of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SideKind {
    /// Our store, mounted.
    Store(Transport, Users, Xattrs),
    /// Our store in a file on an ext4, with large files beside it; the kernel may read those
    /// itself.
    External(Transport, LargeReads),
    /// Our file system on RocksDB in a directory of an ext4, mounted.
    Rocks(Transport, RocksFiles),
    /// Our store, by the library.
    Library,
    /// Our file system on RocksDB, by the library.
    RocksLibrary(RocksFiles),
    /// A file system in memory that does nothing else, mounted: what FUSE itself costs.
    Null(Transport),
    /// ext4, through a FUSE file system of ours that hands every request on to it.
    Passthrough(Transport),
    /// JuiceFS over an ext4.
    JuiceFs,
    /// The kernel's, made by this command on a device.
    Kernel(&'static [&'static str]),
}

/// A side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FsSide {
    /// Its name on the command line and in reports.
    pub(crate) name: &'static str,
    /// Its kind.
    pub(crate) kind: SideKind,
}

/// Nothing is left for the kernel to initialize in the background; room for many small files.
pub(super) const EXT4: &[&str] = &[
    "mkfs.ext4",
    "-q",
    "-F",
    "-m",
    "0",
    "-i",
    "4096",
    "-E",
    "lazy_itable_init=0,lazy_journal_init=0,nodiscard",
];
const XFS: &[&str] = &["mkfs.xfs", "-q", "-f", "-K"];
const BTRFS: &[&str] = &["mkfs.btrfs", "-q", "-f", "-K"];

const ALL: [FsSide; 25] = [
    mount("stitchfs-uring", Transport::Uring, Users::All),
    mount("stitchfs-dev", Transport::Dev, Users::All),
    mount("owned-uring", Transport::Uring, Users::Root),
    mount("owned-dev", Transport::Dev, Users::Root),
    bare("noxattr-uring", Transport::Uring),
    bare("noxattr-dev", Transport::Dev),
    side("library", SideKind::Library),
    rocks("rocks-uring", Transport::Uring, RocksFiles::Inside),
    rocks("rocks-dev", Transport::Dev, RocksFiles::Inside),
    side("rocks-library", SideKind::RocksLibrary(RocksFiles::Inside)),
    rocks("vkfs-uring", Transport::Uring, RocksFiles::Beside),
    rocks("vkfs-dev", Transport::Dev, RocksFiles::Beside),
    side("vkfs-library", SideKind::RocksLibrary(RocksFiles::Beside)),
    side("null-uring", SideKind::Null(Transport::Uring)),
    side("null-dev", SideKind::Null(Transport::Dev)),
    side("ext4", SideKind::Kernel(EXT4)),
    side("xfs", SideKind::Kernel(XFS)),
    side("btrfs", SideKind::Kernel(BTRFS)),
    external("external-uring", Transport::Uring, LargeReads::Daemon),
    external("external-dev", Transport::Dev, LargeReads::Daemon),
    external("lent-uring", Transport::Uring, LargeReads::Kernel),
    external("lent-dev", Transport::Dev, LargeReads::Kernel),
    side("passthrough-uring", SideKind::Passthrough(Transport::Uring)),
    side("passthrough-dev", SideKind::Passthrough(Transport::Dev)),
    side("juicefs", SideKind::JuiceFs),
];

/// The names of all sides.
pub(crate) const NAMES: [&str; ALL.len()] = names();

/// The names of those that run where none is named.
pub(crate) fn defaults() -> impl Iterator<Item = &'static str> {
    let sides = ALL.iter().filter(|side| side.is_default());
    sides.map(|side| side.name)
}

const fn side(name: &'static str, kind: SideKind) -> FsSide {
    FsSide { name, kind }
}

const fn mount(name: &'static str, transport: Transport, users: Users) -> FsSide {
    side(name, SideKind::Store(transport, users, Xattrs::Served))
}

const fn bare(name: &'static str, transport: Transport) -> FsSide {
    side(
        name,
        SideKind::Store(transport, Users::Root, Xattrs::Absent),
    )
}

const fn external(name: &'static str, transport: Transport, reads: LargeReads) -> FsSide {
    side(name, SideKind::External(transport, reads))
}

const fn rocks(name: &'static str, transport: Transport, files: RocksFiles) -> FsSide {
    side(name, SideKind::Rocks(transport, files))
}

const fn names() -> [&'static str; ALL.len()] {
    let mut names = [""; ALL.len()];
    let mut index = 0;
    while index < ALL.len() {
        names[index] = ALL[index].name;
        index += 1;
    }
    names
}

impl FsSide {
    /// The side of this name.
    pub(crate) fn find(name: &str) -> Option<Self> {
        ALL.into_iter().find(|side| side.name == name)
    }

    /// Its transport, if it is a mount of ours.
    pub(crate) const fn transport(&self) -> Option<Transport> {
        match self.kind {
            SideKind::Store(transport, ..)
            | SideKind::External(transport, _)
            | SideKind::Rocks(transport, _)
            | SideKind::Null(transport)
            | SideKind::Passthrough(transport) => Some(transport),
            SideKind::Library
            | SideKind::RocksLibrary(_)
            | SideKind::JuiceFs
            | SideKind::Kernel(_) => None,
        }
    }

    /// Whether it runs where no sides are named.
    const fn is_default(&self) -> bool {
        !matches!(
            self.kind,
            SideKind::Store(.., Xattrs::Absent)
                | SideKind::External(..)
                | SideKind::Rocks(..)
                | SideKind::RocksLibrary(_)
                | SideKind::Passthrough(_)
                | SideKind::JuiceFs
        )
    }

    /// Whether it is used by the library, without a mount.
    pub(super) const fn is_library(&self) -> bool {
        matches!(self.kind, SideKind::Library | SideKind::RocksLibrary(_))
    }

    /// Why it cannot run here; `None` if it can.
    fn why_not(&self, may_enable_uring: bool) -> Option<String> {
        match self.kind {
            SideKind::Library => None,
            SideKind::RocksLibrary(_) => rocks_why_not(),
            SideKind::Kernel(make) => kernel_why_not(self.name, make[0]),
            SideKind::JuiceFs => fuse_why_not().or_else(juicefs::why_not),
            SideKind::Rocks(transport, _) => {
                rocks_why_not().or_else(|| transport_why_not(transport, may_enable_uring))
            }
            SideKind::Store(transport, ..)
            | SideKind::External(transport, _)
            | SideKind::Null(transport)
            | SideKind::Passthrough(transport) => transport_why_not(transport, may_enable_uring),
        }
    }
}

/// Why nothing can be mounted by this transport here; `None` if it can.
fn transport_why_not(transport: Transport, may_enable_uring: bool) -> Option<String> {
    fuse_why_not().or_else(|| match transport {
        Transport::Uring => uring_why_not(may_enable_uring),
        Transport::Dev => None,
    })
}

fn rocks_why_not() -> Option<String> {
    let is_built = EngineKind::RocksDb.is_built_in();
    (!is_built).then(|| "built without the feature `rocksdb`".to_owned())
}

fn fuse_why_not() -> Option<String> {
    let is_missing = !Path::new("/dev/fuse").exists();
    is_missing.then(|| "/dev/fuse is missing".to_owned())
}

fn uring_why_not(may_enable: bool) -> Option<String> {
    match Switch::read() {
        Switch::On => None,
        Switch::Off if may_enable => None,
        Switch::Off => Some("FUSE over io_uring is off: --enable-uring".to_owned()),
        Switch::Missing => Some("this kernel has no FUSE over io_uring".to_owned()),
    }
}

fn kernel_why_not(name: &str, make: &str) -> Option<String> {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !known.split_whitespace().any(|word| word == name) {
        return Some(format!("this kernel has no {name}"));
    }
    let version = Command::new(make).arg("-V").output();
    version.err().map(|error| format!("{make}: {error}"))
}

/// Why no side can run here: all need a disk of their own and a mount.
pub(crate) fn why_none() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("mounting needs root".to_owned());
    }
    let losetup = disk::output(Command::new("losetup").arg("--find"));
    losetup
        .err()
        .map(|error| format!("no loop device: {error:#}"))
}

/// Why a side cannot run here; `None` if it can.
pub(crate) fn why_not(name: &str, may_enable_uring: bool) -> Option<String> {
    match FsSide::find(name) {
        None => Some("there is no such side".to_owned()),
        Some(side) => why_none().or_else(|| side.why_not(may_enable_uring)),
    }
}

/// Whether it can run, in a few words.
pub(crate) fn about(name: &str) -> String {
    let is_asked = FsSide::find(name).is_some_and(|side| !side.is_default());
    let when = if is_asked { ", when asked for" } else { "" };
    why_not(name, false).unwrap_or_else(|| format!("can run here{when}"))
}

/// The names that a name means: itself, or those that it begins, up to a `-`. One that is not known
/// means itself.
pub(crate) fn meant(asked: &str) -> Vec<String> {
    let is_meant = |name: &&str| names::is_meant(asked, name);
    let meant: Vec<String> = NAMES
        .iter()
        .copied()
        .filter(is_meant)
        .map(str::to_owned)
        .collect();
    if meant.is_empty() {
        vec![asked.to_owned()]
    } else {
        meant
    }
}

/// The side that does nothing by the same transport.
pub(crate) fn floor_of(name: &str) -> Option<&'static str> {
    let side = FsSide::find(name)?;
    let null = |transport| move |other: &FsSide| other.kind == SideKind::Null(transport);
    match side.kind {
        SideKind::Store(transport, ..)
        | SideKind::External(transport, _)
        | SideKind::Rocks(transport, _)
        | SideKind::Passthrough(transport) => name_of(null(transport)),
        SideKind::Library
        | SideKind::RocksLibrary(_)
        | SideKind::Null(_)
        | SideKind::JuiceFs
        | SideKind::Kernel(_) => None,
    }
}

/// The side that hands on to ext4 by the same transport.
pub(crate) fn passthrough_of(name: &str) -> Option<&'static str> {
    match FsSide::find(name)?.kind {
        SideKind::Store(transport, ..)
        | SideKind::External(transport, _)
        | SideKind::Rocks(transport, _) => {
            name_of(|other| other.kind == SideKind::Passthrough(transport))
        }
        _ => None,
    }
}

fn name_of(is_it: impl Fn(&FsSide) -> bool) -> Option<&'static str> {
    ALL.iter().find(|side| is_it(side)).map(|side| side.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_and_no_other() {
        for name in NAMES {
            assert_eq!(FsSide::find(name).unwrap().name, name);
        }
        assert!(why_not("zfs", false).unwrap().contains("no such side"));
    }

    #[test]
    fn the_floor_of_a_mount_has_its_transport() {
        for name in [
            "stitchfs-uring",
            "stitchfs-dev",
            "owned-uring",
            "owned-dev",
            "noxattr-dev",
            "external-uring",
            "lent-dev",
            "rocks-uring",
            "vkfs-dev",
        ] {
            let floor = floor_of(name).unwrap();
            let transport = |name: &str| FsSide::find(name).unwrap().transport();
            assert_eq!(transport(floor), transport(name));
            assert!(floor.starts_with("null-"), "{floor}");
            let below = passthrough_of(name).unwrap();
            assert_eq!(transport(below), transport(name));
            assert!(below.starts_with("passthrough-"), "{below}");
        }
        assert_eq!(floor_of("passthrough-dev"), Some("null-dev"));
        assert_eq!((floor_of("ext4"), passthrough_of("ext4")), (None, None));
        assert_eq!(passthrough_of("passthrough-dev"), None);
    }

    #[test]
    fn a_name_means_those_that_it_begins() {
        assert_eq!(
            meant("passthrough"),
            ["passthrough-uring", "passthrough-dev"]
        );
        assert_eq!(meant("null-dev"), ["null-dev"]);
        assert_eq!(meant("external"), ["external-uring", "external-dev"]);
        assert_eq!(meant("pass"), ["pass"]);
    }

    #[test]
    fn a_mount_without_extended_attributes_runs_when_asked_for() {
        assert_eq!(meant("noxattr"), ["noxattr-uring", "noxattr-dev"]);
        let sides: Vec<&str> = defaults().collect();
        assert!(sides.contains(&"owned-dev") && !sides.contains(&"noxattr-dev"));
    }
}
