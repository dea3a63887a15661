//! What a mount of it does, beside what is below.

use super::*;
use rustix::fs::{CWD, FallocateFlags, XattrFlags};
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::time::Duration;
use stitch_base::clock::{Clock as _, SystemClock};
use stitch_fuse::session::RunningSession;
use stitch_fuse::{Session, Transport, TransportChoice};

/// A mount over a folder; both go when this does.
struct Mounted {
    session: Option<RunningSession>,
    inodes: Arc<Inodes>,
    dir: tempfile::TempDir,
}

impl Mounted {
    /// `None` where nothing can be mounted.
    fn new(count_max: Option<usize>) -> Option<Self> {
        if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
            #[expect(
                clippy::print_stderr,
                reason = "the output of a test run shows skipped tests"
            )]
            {
                eprintln!("SKIP: not root, or /dev/fuse is missing");
            }
            return None;
        }
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        for name in ["below", "mnt"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let mut handler = Passthrough::new(&dir.path().join("below")).unwrap();
        if let Some(count_max) = count_max {
            Arc::get_mut(&mut handler.inodes)
                .unwrap()
                .set_count_max(count_max);
        }
        let inodes = Arc::clone(&handler.inodes);
        let config = config(SessionConfig {
            transport: TransportChoice::Only(Transport::Dev),
            ..SessionConfig::default()
        });
        let at = dir.path().join("mnt");
        let session = Session::mount(Arc::new(handler), &at, &mount_options(), &config);
        let session = Some(session.unwrap().spawn().unwrap());
        Some(Self {
            session,
            inodes,
            dir,
        })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join("mnt").join(name)
    }

    fn below(&self, name: &str) -> PathBuf {
        self.dir.path().join("below").join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            session.stop().unwrap();
        }
    }
}

#[test]
fn names_and_links_are_those_below() {
    let Some(mounted) = Mounted::new(None) else {
        return;
    };
    fs::write(mounted.at("file"), b"contents").unwrap();
    assert_eq!(fs::read(mounted.below("file")).unwrap(), b"contents");
    fs::hard_link(mounted.at("file"), mounted.at("other")).unwrap();
    symlink("other", mounted.at("link")).unwrap();
    assert_eq!(
        fs::read_link(mounted.below("link")).unwrap(),
        Path::new("other")
    );
    assert_eq!(fs::read(mounted.at("link")).unwrap(), b"contents");
    let (here, there) = (mounted.at("file"), mounted.below("other"));
    let (here, there) = (here.metadata().unwrap(), there.metadata().unwrap());
    assert_eq!((here.ino(), here.nlink()), (there.ino(), 2));
    fs::create_dir(mounted.at("dir")).unwrap();
    fs::rename(mounted.at("file"), mounted.at("dir/file")).unwrap();
    let no_replace = |source: &str, target: &str| {
        let (source, target) = (mounted.at(source), mounted.at(target));
        sys::renameat_with(CWD, source, CWD, target, RenameFlags::NOREPLACE)
    };
    assert_eq!(
        no_replace("other", "dir/file").err(),
        Some(rustix::io::Errno::EXIST)
    );
    no_replace("other", "dir/other").unwrap();
    assert!(fs::remove_dir(mounted.at("dir")).is_err());
    fs::remove_file(mounted.at("dir/file")).unwrap();
    assert_eq!(fs::read_dir(mounted.below("dir")).unwrap().count(), 1);
    let fifo = (sys::FileType::Fifo, Mode::from_raw_mode(0o600));
    sys::mknodat(CWD, mounted.at("fifo"), fifo.0, fifo.1, 0).unwrap();
    assert!(
        mounted
            .below("fifo")
            .metadata()
            .unwrap()
            .file_type()
            .is_fifo()
    );
}

#[test]
fn contents_and_sizes_are_those_below() {
    let Some(mounted) = Mounted::new(None) else {
        return;
    };
    let data: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
    fs::write(mounted.at("file"), &data).unwrap();
    assert!(fs::read(mounted.at("file")).unwrap() == data);
    let file = File::options()
        .read(true)
        .write(true)
        .open(mounted.at("file"))
        .unwrap();
    file.set_len(100).unwrap();
    file.write_all_at(b"end", 200).unwrap();
    file.sync_all().unwrap();
    assert_eq!(mounted.below("file").metadata().unwrap().len(), 203);
    let mut found = [1; 3];
    file.read_exact_at(&mut found, 150).unwrap();
    assert_eq!(found, [0; 3]);
    sys::fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1 << 20);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    sys::fallocate(&file, punch, 0, 1 << 20).unwrap();
    assert_eq!(mounted.below("file").metadata().unwrap().blocks(), 0);
    assert_eq!(sys::seek(&file, SeekFrom::Hole(0)), Ok(0));
    // An open file without a name is still there.
    fs::remove_file(mounted.at("file")).unwrap();
    file.write_all_at(b"more", 0).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    let (here, there) = (mounted.at(""), mounted.below(""));
    let size = |path: PathBuf| sys::statvfs(path).unwrap().f_blocks;
    assert_eq!(size(here), size(there));
}

#[test]
fn attributes_are_those_below() {
    let Some(mounted) = Mounted::new(None) else {
        return;
    };
    fs::write(mounted.at("file"), b"").unwrap();
    symlink("nowhere", mounted.at("link")).unwrap();
    let time = sys::Timespec {
        tv_sec: 1_000_000_000,
        tv_nsec: 7,
    };
    let times = sys::Timestamps {
        last_access: time,
        last_modification: time,
    };
    for name in ["file", "link"] {
        let path = mounted.at(name);
        sys::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        std::os::unix::fs::lchown(&path, Some(12), Some(34)).unwrap();
        let there = fs::symlink_metadata(mounted.below(name)).unwrap();
        assert_eq!((there.mtime(), there.mtime_nsec()), (time.tv_sec, 7));
        assert_eq!((there.uid(), there.gid()), (12, 34));
        let (attr, flags) = ("trusted.colour", XattrFlags::CREATE);
        sys::lsetxattr(&path, attr, b"blue", flags).unwrap();
        let mut value = [0; 9];
        let len = sys::lgetxattr(mounted.below(name), attr, &mut value).unwrap();
        assert_eq!(&value[..len], b"blue");
        assert_eq!(sys::lgetxattr(&path, attr, &mut value), Ok(4));
        let mut names = [0; 99];
        let len = sys::llistxattr(&path, &mut names).unwrap();
        assert_eq!(&names[..len], b"trusted.colour\0");
        sys::lremovexattr(&path, attr).unwrap();
        let gone = sys::lgetxattr(mounted.below(name), attr, &mut value);
        assert_eq!(gone, Err(rustix::io::Errno::NODATA));
    }
    let mode = fs::Permissions::from_mode(0o4711);
    fs::set_permissions(mounted.at("file"), mode).unwrap();
    let there = mounted.below("file").metadata().unwrap();
    assert_eq!(there.mode() & 0o7777, 0o4711);
}

/// A listing goes over many requests, also from the middle.
#[test]
fn long_listings_are_whole_and_what_is_too_much_is_forgotten() {
    const COUNT: usize = 3000;
    let Some(mounted) = Mounted::new(Some(100)) else {
        return;
    };
    for number in 0..COUNT {
        fs::write(mounted.below(&format!("{number:0>100}")), b"").unwrap();
    }
    let listed = |is_plus: bool| {
        let entries = fs::read_dir(mounted.at("")).unwrap().map(Result::unwrap);
        let names = entries.map(|entry| {
            assert!(!is_plus || entry.metadata().unwrap().is_file());
            entry.file_name()
        });
        names.collect::<std::collections::BTreeSet<_>>().len()
    };
    assert_eq!(listed(true), COUNT);
    assert_eq!(listed(false), COUNT);
    let session = mounted.session.as_ref().unwrap();
    if !session.notifier().can_prune() {
        return;
    }
    let clock = SystemClock::default();
    while mounted.inodes.len() > 100 {
        assert!(
            clock.monotonic() < Duration::from_secs(30),
            "nothing is forgotten"
        );
        clock.sleep(Duration::from_millis(5));
    }
}
