use super::*;
use crate::system::FileSystem;
use crate::{Caller, FsOptions, NewNode, WriteOptions};

const FILE: NewNode = NewNode {
    perm: 0o644,
    umask: 0,
};

#[test]
fn a_row_that_changed_since_it_was_read_is_read_again() {
    let engine = crate::testing::formatted(&FsOptions::default());
    let fs = FileSystem::open(engine, FsOptions::default()).expect("opens");
    let at = DirName::new(Ino::ROOT, b"f");
    let made = fs.create(&Caller::ROOT, at, &FILE).expect("creates");
    let ino = made.ino;
    let write = |byte: u8| {
        let options = WriteOptions::default();
        fs.write(ino, 0, &[byte; 5], options).expect("writes");
    };
    let early = || Namespace::of(&fs).early(at).expect("is there");
    let tail_of = |early| {
        Namespace::of(&fs)
            .inode_of(at, early)
            .expect("is there")
            .1
            .tail()
    };

    write(1);
    assert_eq!(tail_of(early()), [1; 5][..]);
    let before = early();
    write(2);
    assert_eq!(tail_of(before), [2; 5][..], "it is known");
    let before = early();
    write(3);
    fs.forget(ino, 1);
    assert_eq!(tail_of(before), [3; 5][..], "it was known");
    let unknown = early();
    let (_, moment) = unknown.row.as_ref().expect("it was read");
    assert!(fs.residents.inodes.is_as_of(ino, *moment));
    assert_eq!(tail_of(unknown), [3; 5][..], "it is unchanged");
}
