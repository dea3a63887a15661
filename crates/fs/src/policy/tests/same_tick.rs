//! Changes right before a snapshot and right after it have the same times. They are changes.

use super::*;
use crate::WriteOptions;

/// Files of these sizes are in the directory: in the row, in chunks, and shared with a copy.
struct Files {
    tester: Tester,
    small: Ino,
    large: Ino,
    copy: Ino,
}

const LARGE: usize = 300 << 10;

fn file(tester: &Tester, name: &[u8]) -> Ino {
    let at = DirName::new(tester.dir, name);
    let made = tester.fs.create(&SUPER, at, &NewNode::default());
    made.expect("it is made").ino
}

fn files() -> Files {
    let tester = tester();
    let files = [b"small", b"large", b"copyy"].map(|name| file(&tester, name));
    let [small, large, copy] = files;
    let files = Files {
        tester,
        small,
        large,
        copy,
    };
    files.write(small, b"1");
    files.write(large, &[1; 9_000]);
    let source = file(&files.tester, b"source");
    files.write(source, &vec![1; LARGE]);
    let copied = files
        .tester
        .fs
        .copy_range((source, 0), (copy, 0), LARGE as u64);
    assert_eq!(copied.expect("it is copied"), LARGE as u64);
    files
}

impl Files {
    fn write(&self, ino: Ino, bytes: &[u8]) {
        let written = self.tester.fs.write(ino, 0, bytes, WriteOptions::default());
        written.expect("it is written");
    }

    fn set_xattr(&self, ino: Ino, value: &[u8]) {
        let mode = crate::XattrMode::Set;
        let set = self
            .tester
            .fs
            .set_xattr(&SUPER, ino, b"user.a", value, mode, false);
        set.expect("it is set");
    }

    /// Creates the first snapshot, changes something in the same tick, and checks that the next
    /// round creates another one, and that the one after that does not.
    fn assert_seen(self, change: impl Fn(&Self)) {
        let Self { tester, .. } = &self;
        let keep = Keep {
            last: 10,
            ..Keep::default()
        };
        tester.set(MINUTE, keep);
        assert_eq!(tester.run().created.len(), 1);
        change(&self);
        tester.clock.set(tester.clock.second() + 60);
        assert_eq!(tester.run().created.len(), 1, "it changed");
        // Something elsewhere, so that the directory is compared.
        let elsewhere = DirName::new(Ino::ROOT, b"other");
        let made = tester.fs.make_dir(&SUPER, elsewhere, &NewNode::default());
        made.expect("it is made");
        tester.clock.set(tester.clock.second() + 60);
        assert_eq!(tester.run().created.len(), 0, "nothing changed");
    }
}

#[test]
fn contents_in_the_row() {
    files().assert_seen(|files| files.write(files.small, b"2"));
}

#[test]
fn contents_in_chunks() {
    files().assert_seen(|files| files.write(files.large, &[2; 9_000]));
}

#[test]
fn one_byte_of_shared_contents() {
    files().assert_seen(|files| files.write(files.copy, b"2"));
}

#[test]
fn attributes_of_a_file_and_of_the_directory_itself() {
    for is_dir in [false, true] {
        let files = files();
        let ino = if is_dir {
            files.tester.dir
        } else {
            files.large
        };
        files.set_xattr(ino, b"1");
        files.assert_seen(|files| files.set_xattr(ino, b"2"));
    }
}

#[test]
fn contents_that_are_written_again_are_the_same() {
    let files = files();
    let Files { tester, large, .. } = &files;
    tester.set(MINUTE, Keep::default());
    assert_eq!(tester.run().created.len(), 1);
    files.write(*large, &[1; 9_000]);
    tester.clock.set(tester.clock.second() + 60);
    assert_eq!(tester.run().created.len(), 0);
}
