//! Write-back of what programs store through mappings, with a daemon that is slow.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::time::Duration;

use stitch_base::Ino;
use stitch_base::clock::{Clock, SystemClock, Timestamp};
use stitch_base::sync::{Arc, Mutex};
use stitch_fuse::errno::Errno;
use stitch_fuse::handler::{Answer, Context};
use stitch_fuse::wire::args::{Read, Write};
use stitch_fuse::wire::codec::Sink;
use stitch_fuse::wire::reply::{Attr, AttrReply, Entry, Lookup, StatFs};
use stitch_fuse::{
    Handler, MountOptions, RunningSession, Session, SessionConfig, Transport, TransportChoice,
    write_back,
};

use crate::fixture::{can_mount, run_as};
use crate::map::Map;
use crate::switch::Turned;

const PAGE: usize = 4096;
/// Pages of a file.
const PAGES: usize = 512;
const TTL: Duration = Duration::from_secs(3600);
const ROUNDS: u8 = 20;

/// Files of zeros with numbers as names. It keeps the first byte of each page that is written, and
/// takes its time.
struct Slow {
    delay: Duration,
    pages: Mutex<HashMap<(Ino, usize), u8>>,
}

fn attr(ino: Ino) -> Attr {
    let is_root = ino == Ino::ROOT;
    let time = Timestamp::default();
    Attr {
        ino,
        size: if is_root { 0 } else { (PAGES * PAGE) as u64 },
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        mode: if is_root { 0o040_755 } else { 0o100_644 },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
    }
}

impl Handler for Slow {
    fn lookup(&self, _: &Context<'_>, _: Ino, name: &[u8]) -> Answer<Lookup> {
        let number = std::str::from_utf8(name).ok().and_then(|n| n.parse().ok());
        let number: u64 = number.ok_or(Errno::from_raw(libc::ENOENT))?;
        let ino = Ino(2 + number);
        Ok(Lookup::Found(Entry {
            ino,
            generation: 0,
            attr: attr(ino),
            entry_ttl: TTL,
            attr_ttl: TTL,
        }))
    }

    fn getattr(&self, _: &Context<'_>, ino: Ino) -> Answer<AttrReply> {
        let attr = attr(ino);
        Ok(AttrReply { attr, ttl: TTL })
    }

    fn statfs(&self, _: &Context<'_>, _: Ino) -> Answer<StatFs> {
        Ok(StatFs::default())
    }

    fn read(&self, _: &Context<'_>, _: Ino, args: &Read, out: &mut Sink<'_>) -> Answer<()> {
        assert!(out.put_zeros(usize::try_from(args.size).unwrap()));
        Ok(())
    }

    fn write(&self, _: &Context<'_>, ino: Ino, args: &Write<'_>) -> Answer<u32> {
        SystemClock::default().sleep(self.delay);
        let first = usize::try_from(args.offset).unwrap() / PAGE;
        let mut pages = self.pages.lock();
        for (index, page) in args.data.chunks(PAGE).enumerate() {
            pages.insert((ino, first + index), page[0]);
        }
        Ok(u32::try_from(args.data.len()).unwrap())
    }
}

struct Mounted {
    session: RunningSession,
    handler: Arc<Slow>,
    dir: tempfile::TempDir,
}

impl Mounted {
    fn new(delay: Duration, config: &SessionConfig) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let handler = Arc::new(Slow {
            delay,
            pages: Mutex::default(),
        });
        let dir = tempfile::tempdir().unwrap();
        let options = MountOptions::shared("slow");
        let served: Arc<dyn Handler> = handler.clone();
        let session = Session::mount(served, dir.path(), &options, config).unwrap();
        Some(Self {
            session: session.spawn().unwrap(),
            handler,
            dir,
        })
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.path().join(number.to_string())
    }

    /// Maps the beginning of a file. It stays mapped: unmapping would write it back and wait, with
    /// the memory of this process locked, which the daemon in it needs.
    fn map(&self, number: u64, pages: usize) -> ManuallyDrop<Map> {
        let path = self.path(number);
        let file = OpenOptions::new().read(true).write(true).open(path);
        ManuallyDrop::new(Map::new(&file.unwrap(), pages * PAGE))
    }

    fn root(&self) -> File {
        File::open(self.dir.path()).unwrap()
    }

    /// Returns how many pages have another first byte at the daemon.
    fn missing(&self, pages: impl IntoIterator<Item = (u64, usize)>, byte: u8) -> usize {
        let stored = self.handler.pages.lock();
        let is_missing = |(number, page): &(u64, usize)| {
            let at = (Ino(2 + number), *page);
            stored.get(&at) != Some(&byte)
        };
        pages.into_iter().filter(is_missing).count()
    }
}

fn dev(workers: usize) -> SessionConfig {
    SessionConfig {
        workers,
        transport: TransportChoice::Only(Transport::Dev),
        ..SessionConfig::default()
    }
}

/// Every second page: the kernel sends a WRITE for each.
fn scattered() -> impl Iterator<Item = (u64, usize)> {
    (0..PAGES).step_by(2).map(|page| (0, page))
}

fn expect_all_pages_of_a_file(config: &SessionConfig) {
    let delay = Duration::from_micros(300);
    let Some(mounted) = Mounted::new(delay, config) else {
        return;
    };
    let map = mounted.map(0, PAGES);
    let root = mounted.root();
    if rustix::process::geteuid().is_root() {
        let look = write_back::look(&root).unwrap();
        assert_eq!(look.others, Some(0), "root needs no mounted fusectl");
    }
    for round in 1..=ROUNDS {
        scattered().for_each(|(_, page)| map.write(page * PAGE, &[round]));
        write_back::complete(&root).unwrap();
        assert_eq!(mounted.missing(scattered(), round), 0, "round {round}");
    }
}

#[test]
fn all_pages_of_a_file_have_reached_the_daemon() {
    expect_all_pages_of_a_file(&dev(2));
}

#[test]
fn all_pages_of_a_file_have_reached_a_daemon_with_one_worker() {
    expect_all_pages_of_a_file(&dev(1));
}

#[test]
fn all_pages_of_a_file_have_reached_the_daemon_by_io_uring() {
    if !can_mount() {
        return;
    }
    let Some(_on) = Turned::to(true) else { return };
    expect_all_pages_of_a_file(&SessionConfig {
        transport: TransportChoice::Only(Transport::Uring),
        ..SessionConfig::default()
    });
}

/// The kernel leaves out files once its queue has 48 requests.
#[test]
fn pages_of_many_files_have_reached_the_daemon() {
    let Some(mounted) = Mounted::new(Duration::from_millis(1), &dev(2)) else {
        return;
    };
    let files = || (0..300).map(|number| (number, 0));
    let maps: Vec<_> = files().map(|(number, _)| mounted.map(number, 1)).collect();
    let root = mounted.root();
    for round in 1..=ROUNDS {
        maps.iter().for_each(|map| map.write(0, &[round]));
        write_back::complete(&root).unwrap();
        assert_eq!(mounted.missing(files(), round), 0, "round {round}");
    }
}

/// Once a page is being written back, the kernel makes a store to it wait. So stores that come
/// while the queue is served are those of pages that had been served.
#[test]
fn pages_that_are_stored_to_again_have_reached_the_daemon() {
    let Some(mounted) = Mounted::new(Duration::from_micros(300), &dev(2)) else {
        return;
    };
    let map = mounted.map(0, PAGES);
    let root = mounted.root();
    for round in 1..=ROUNDS {
        scattered().for_each(|(_, page)| map.write(page * PAGE, &[0]));
        rustix::fs::syncfs(&root).unwrap();
        scattered().for_each(|(_, page)| map.write(page * PAGE, &[round]));
        write_back::complete(&root).unwrap();
        assert_eq!(mounted.missing(scattered(), round), 0, "round {round}");
    }
}

#[test]
fn a_mount_in_use_is_written_back_before_it_is_aborted() {
    let Some(mounted) = Mounted::new(Duration::from_micros(300), &dev(2)) else {
        return;
    };
    let map = mounted.map(0, PAGES);
    scattered().for_each(|(_, page)| map.write(page * PAGE, &[7]));
    let stopper = mounted.session.stopper();
    stopper.stop().unwrap();
    assert_eq!(mounted.missing(scattered(), 7), 0);
}

#[test]
fn any_user_may_look() {
    let Some(mounted) = Mounted::new(Duration::ZERO, &dev(2)) else {
        return;
    };
    std::fs::metadata(mounted.dir.path()).unwrap();
    let script = "python3 -c 'import fcntl, os, sys; \
                  fd = os.open(sys.argv[1], os.O_RDONLY); \
                  look = fcntl.ioctl(fd, 0x80205306, bytes(32)); \
                  sys.exit(look[:16] != bytes(16))' \"$1\"";
    assert!(run_as(65534, script, mounted.dir.path()));
}
