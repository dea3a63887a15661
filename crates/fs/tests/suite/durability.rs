//! Every way to ask for durability makes what was acknowledged before durable, whatever the inode
//! is.

use crate::common::*;
use stitch_base::Ino;
use stitch_fs::{FileSystem, FsResult};
use stitch_kv::{Engine as _, counters};

type Sync = fn(&FileSystem, Ino) -> FsResult<()>;

fn syncs(setup: &Setup) -> u64 {
    setup.engine.counters().get(counters::SYNCS)
}

/// Makes a directory elsewhere and asks for durability by way of `ino`: one sync makes it durable.
/// The second call finds nothing pending.
fn expect_one_sync(setup: &Setup, what: &str, ino: Ino, sync: Sync) {
    setup.tick();
    setup.dir(ROOT, &format!("before the sync of {what}"));
    let before = syncs(setup);
    sync(&setup.fs, ino).expect("syncs");
    assert_eq!(syncs(setup), before + 1, "{what}: one sync");
    sync(&setup.fs, ino).expect("syncs again");
    assert_eq!(syncs(setup), before + 1, "{what}: nothing is pending");
}

fn unlinked(setup: &Setup, name: &str, contents: &[u8]) -> Ino {
    let ino = setup.file(ROOT, name).ino;
    if !contents.is_empty() {
        setup.write(ino, 0, contents);
    }
    setup.fs.open_handle(ino).expect("opens");
    setup.fs.unlink(&SUPER, at(ROOT, name)).expect("unlinks");
    ino
}

fn temporary(setup: &Setup) -> Ino {
    let made = setup.fs.make_temp_file(&SUPER, ROOT, &new(0o600));
    made.expect("makes a file without a name").ino
}

/// An inode of each kind, by what it is.
fn inodes(setup: &Setup) -> Vec<(&'static str, Ino)> {
    let written = setup.file(ROOT, "written").ino;
    setup.write(written, 0, b"contents");
    let node = setup.fs.make_symlink(&SUPER, at(ROOT, "link"), b"target");
    let temporary_written = temporary(setup);
    setup.write(temporary_written, 0, b"contents");
    vec![
        ("the root", ROOT),
        ("a directory", setup.dir(ROOT, "directory").ino),
        ("a symlink", node.expect("makes a symlink").ino),
        ("an empty file", setup.file(ROOT, "empty").ino),
        ("a written file", written),
        ("a large file", large(setup, "large")),
        ("an unlinked empty file", unlinked(setup, "a", b"")),
        ("an unlinked small file", unlinked(setup, "b", b"contents")),
        ("an unlinked large file", unlinked(setup, "c", &[7; 20_000])),
        ("a file that never had a name", temporary(setup)),
        ("a written file that never had a name", temporary_written),
    ]
}

#[test]
fn syncing_an_inode_makes_all_earlier_operations_durable() {
    for setup in [setup(), setup_external()] {
        for (what, ino) in inodes(&setup) {
            expect_one_sync(&setup, what, ino, FileSystem::sync_inode);
        }
    }
}

#[test]
fn syncing_the_file_system_makes_all_earlier_operations_durable() {
    for setup in [setup(), setup_external()] {
        for (what, ino) in inodes(&setup) {
            expect_one_sync(&setup, what, ino, |fs, _| fs.sync());
        }
    }
}
