//! Pages that a program has written through a mapping, in cases that the kernel or a single server
//! thread cannot handle.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use stitch_fs::FsOptions;
use stitch_fuse::{SessionConfig, Transport, TransportChoice};

use crate::fixture::Mounted;
use crate::map::Map;

const PAGE: usize = 4096;

fn open(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path).unwrap()
}

fn config(workers: usize) -> SessionConfig {
    SessionConfig {
        workers,
        transport: TransportChoice::Only(Transport::Dev),
        ..SessionConfig::default()
    }
}

/// Documents a limit: if a later kernel fills the gap itself, this test fails, and the limit can be
/// removed.
#[test]
fn a_write_in_the_last_page_shows_what_is_behind_the_end() {
    for mounted in [Mounted::plain(), Mounted::store()] {
        let Some(mounted) = mounted else {
            return;
        };
        let path = mounted.path("file");
        fs::write(&path, [b'a'; 100]).unwrap();
        let file = open(&path);
        let map = Map::new(&file, PAGE);
        map.write(110, b"stray");
        file.write_all_at(b"new", 200).unwrap();
        assert_eq!(&fs::read(&path).unwrap()[110..115], b"stray");
    }
}

#[test]
fn one_server_thread_is_never_waited_for() {
    for (workers, found) in [(1, Ok(0)), (2, Ok(4 * PAGE as u64))] {
        let mounted = Mounted::store_with(FsOptions::default(), &config(workers));
        let Some(mounted) = mounted else {
            return;
        };
        let file = open(&mounted.path("file"));
        file.set_len(16 * PAGE as u64).unwrap();
        assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(0)), Err(Errno::NXIO));
        let map = Map::new(&file, 16 * PAGE);
        map.write(4 * PAGE, b"mapped");
        assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(0)), found);
    }
}

#[test]
fn one_server_thread_fills_what_is_behind_the_end() {
    let Some(mounted) = Mounted::store_with(FsOptions::default(), &config(1)) else {
        return;
    };
    let path = mounted.path("file");
    fs::write(&path, [b'a'; 100]).unwrap();
    let file = open(&path);
    let map = Map::new(&file, PAGE);
    map.write(110, b"stray");
    file.set_len(1000).unwrap();
    assert!(
        fs::read(&path).unwrap()[100..]
            .iter()
            .all(|&byte| byte == 0)
    );
    map.write(1010, b"stray");
    file.write_all_at(b"new", 2 * PAGE as u64).unwrap();
    let read = fs::read(&path).unwrap();
    assert!(read[100..2 * PAGE].iter().all(|&byte| byte == 0));
    assert!(read.ends_with(b"new"));
}
