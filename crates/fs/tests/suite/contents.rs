//! Reading, writing, cutting, punching and copying.

use crate::common::*;
use stitch_fs::{
    ClearSetId, FILE_BYTES_MAX, FallocateMode, FileKind, FsError, SeekFor, SetAttr, WriteOptions,
    inode_flag,
};

#[test]
fn a_file_leaves_its_row_when_it_outgrows_it() {
    let setup = setup();
    let file = setup.file(ROOT, "f");
    setup.write(file.ino, 0, &[1; 4096]);
    assert_eq!(setup.rows("data"), 0);
    setup.write(file.ino, 4096, &[2]);
    assert_eq!(setup.rows("data"), 2);
    let mut expected = vec![1; 4096];
    expected.push(2);
    assert_eq!(setup.contents(file.ino), expected);
    cut(&setup, file.ino, 0).expect("cuts");
    assert_eq!(setup.rows("data"), 0);
    setup.write(file.ino, 10, &[3]);
    assert_eq!(setup.rows("data"), 0);
    assert_eq!(setup.contents(file.ino), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3]);
}

#[test]
fn what_was_cut_reads_as_zeros_when_the_file_grows_again() {
    let setup = setup();
    for size in [3000, 10_000] {
        let file = setup.file(ROOT, &format!("f{size}"));
        setup.write(file.ino, 0, &vec![7; size]);
        cut(&setup, file.ino, 1500).expect("cuts");
        cut(&setup, file.ino, size as u64).expect("cuts");
        let mut expected = vec![7; 1500];
        expected.resize(size, 0);
        assert_eq!(setup.contents(file.ino), expected);
    }
}

#[test]
fn zeroing_and_growing_in_one_step_leaves_the_row_as_changed() {
    let setup = setup();
    let file = setup.file(ROOT, "f");
    setup.write(file.ino, 0, &[7; 2000]);
    let mode = FallocateMode::ZeroRange { keep_size: false };
    setup.fs.fallocate(file.ino, mode, 3, 6000).unwrap();
    let mut expected = vec![7; 3];
    expected.resize(6003, 0);
    assert_eq!(setup.contents(file.ino), expected);
}

#[test]
fn files_can_be_sparse_up_to_the_largest_offset() {
    let setup = setup();
    let file = setup.file(ROOT, "f");
    setup.write(file.ino, FILE_BYTES_MAX - 3, b"end");
    assert_eq!(setup.attr(file.ino).size, FILE_BYTES_MAX);
    assert_eq!(setup.attr(file.ino).blocks, 8);
    assert_eq!(setup.read(file.ino, FILE_BYTES_MAX - 4, 9), b"\0end");
    let beyond = setup.fs.write(
        file.ino,
        FILE_BYTES_MAX - 2,
        b"end",
        WriteOptions::default(),
    );
    assert!(matches!(beyond, Err(FsError::FileTooBig)));
    let set = SetAttr {
        size: Some(FILE_BYTES_MAX + 1),
        ..SetAttr::default()
    };
    let beyond = setup.fs.set_attr(&SUPER, file.ino, &set);
    assert!(matches!(beyond, Err(FsError::FileTooBig)));
    setup.check();
    cut(&setup, file.ino, 5).expect("cuts");
    assert_eq!(setup.contents(file.ino), [0; 5]);
    assert_eq!(setup.rows("data"), 0);
}

#[test]
fn data_and_holes_are_found() {
    let setup = setup();
    let file = setup.file(ROOT, "f");
    let seek = |offset, what| setup.fs.seek(file.ino, offset, what);
    assert!(matches!(seek(0, SeekFor::Data), Err(FsError::NoSeekTarget)));
    setup.write(file.ino, 100_000, &[1; 5000]);
    cut(&setup, file.ino, 200_000).expect("cuts");
    assert_eq!(seek(0, SeekFor::Hole).unwrap(), 0);
    assert_eq!(seek(0, SeekFor::Data).unwrap(), 98_304);
    assert_eq!(seek(100_001, SeekFor::Data).unwrap(), 100_001);
    assert_eq!(seek(100_001, SeekFor::Hole).unwrap(), 106_496);
    assert!(matches!(
        seek(106_496, SeekFor::Data),
        Err(FsError::NoSeekTarget)
    ));
    assert!(matches!(
        seek(200_000, SeekFor::Hole),
        Err(FsError::NoSeekTarget)
    ));
    let whole = setup.file(ROOT, "whole");
    setup.write(whole.ino, 0, &[1; 9000]);
    assert_eq!(setup.fs.seek(whole.ino, 5, SeekFor::Hole).unwrap(), 9000);
    assert_eq!(setup.fs.seek(whole.ino, 5, SeekFor::Data).unwrap(), 5);
}

#[test]
fn punched_ranges_are_holes() {
    let setup = setup();
    let file = setup.file(ROOT, "f");
    setup.write(file.ino, 0, &[9; 40_960]);
    assert_eq!(setup.attr(file.ino).blocks, 80);
    let mode = FallocateMode::PunchHole;
    setup.fs.fallocate(file.ino, mode, 4000, 8_288).unwrap();
    let mut expected = vec![9; 40_960];
    expected[4000..12_288].fill(0);
    assert_eq!(setup.contents(file.ino), expected);
    assert_eq!(setup.fs.seek(file.ino, 0, SeekFor::Hole).unwrap(), 4096);
    assert_eq!((setup.rows("data"), setup.attr(file.ino).blocks), (8, 64));
    let empty = setup.fs.fallocate(file.ino, mode, 0, 0);
    assert!(matches!(empty, Err(FsError::Invalid(_))));
    setup.check();
}

#[test]
fn punching_takes_what_it_removes_from_the_block_count() {
    let setup = setup();
    let file = setup.file(ROOT, "f");
    let blocks = || setup.attr(file.ino).blocks;
    let punch = |offset, len| {
        let mode = FallocateMode::PunchHole;
        setup.fs.fallocate(file.ino, mode, offset, len).unwrap();
    };
    // As an image of a disk: 1,024 chunks, of which 200 are there and written again and again.
    setup.write(file.ino, (4 << 20) - 1, b"x");
    for _ in 0..3 {
        for chunk in (0..400).step_by(2) {
            setup.write(file.ino, chunk * 4096, &[7; 4096]);
        }
    }
    let before = blocks();
    assert!(before >= 201 * 8);
    punch(0, 50 * 4096);
    assert_eq!(blocks(), before - 25 * 8, "25 of 50 were there");
    punch(0, 50 * 4096);
    assert_eq!(blocks(), before - 25 * 8, "none was there");
    punch(0, 1 << 20);
    assert_eq!(blocks(), before - 128 * 8);
    punch(0, 4 << 20);
    assert_eq!(blocks(), 0);
    assert_eq!(setup.rows("data"), 0);
    setup.check();
}

#[test]
fn writes_one_after_the_other_count_each_chunk_once() {
    let setup = setup();
    let file = setup.file(ROOT, "f");
    // A megabyte of nothing, then a log, piece by piece.
    setup.write(file.ino, 1 << 20, b"x");
    for index in 0..100_u64 {
        setup.write(file.ino, 4096 * 10 + index * 100, &[7; 100]);
    }
    assert_eq!((setup.rows("data"), setup.attr(file.ino).blocks), (4, 32));
    // What was punched and written again is there once more.
    let punch = FallocateMode::PunchHole;
    setup
        .fs
        .fallocate(file.ino, punch, 4096 * 12, 4096)
        .expect("punches");
    setup.write(file.ino, 4096 * 12 + 50, &[7; 100]);
    setup.write(file.ino, 4096 * 12, &[7; 100]);
    assert_eq!(setup.rows("data"), 4);
    assert!((32..=40).contains(&setup.attr(file.ino).blocks));
}

#[test]
fn allocating_grows_and_refuses_what_does_not_fit() {
    let engine = std::sync::Arc::new(stitch_kv::ModelEngine::with_space(registry(), 1 << 20));
    let setup = setup_on(engine, |_| {});
    let file = setup.file(ROOT, "f");
    let allocate = |keep_size, len| {
        let mode = FallocateMode::Allocate { keep_size };
        setup.fs.fallocate(file.ino, mode, 0, len)
    };
    assert_eq!(allocate(false, 100_000).unwrap().size, 100_000);
    assert_eq!(allocate(true, 200_000).unwrap().size, 100_000);
    assert!(matches!(allocate(false, 2 << 20), Err(FsError::NoSpace)));
    assert_eq!(setup.contents(file.ino), vec![0; 100_000]);
}

#[test]
fn appends_go_to_the_end() {
    let setup = setup();
    let file = setup.file(ROOT, "f");
    let options = WriteOptions {
        append: true,
        ..WriteOptions::default()
    };
    for _ in 0..3 {
        setup.fs.write(file.ino, 0, &[5; 3000], options).unwrap();
    }
    assert_eq!(setup.contents(file.ino), vec![5; 9000]);
}

#[test]
fn long_writes_are_cut_into_batches() {
    let setup = setup();
    let file = setup.file(ROOT, "f");
    let data: Vec<u8> = (0..5u32 << 20).map(|i| i.to_le_bytes()[1]).collect();
    setup.write(file.ino, 77, &data);
    assert!(setup.read(file.ino, 77, data.len()) == data);
    setup.check();
}

#[test]
fn ranges_are_copied() {
    let setup = setup();
    let (one, two) = (setup.file(ROOT, "1"), setup.file(ROOT, "2"));
    setup.write(one.ino, 0, &[4; 10_000]);
    let copied = setup.fs.copy_range((one.ino, 1000), (two.ino, 50), 100_000);
    assert_eq!(copied.unwrap(), 9000);
    assert_eq!(
        setup.read(two.ino, 49, 9999),
        [&[0][..], &[4; 9000]].concat()
    );
    let within = setup.fs.copy_range((one.ino, 0), (one.ino, 5000), 5000);
    assert_eq!(within.unwrap(), 5000);
    let meeting = setup.fs.copy_range((one.ino, 0), (one.ino, 4999), 5000);
    assert!(matches!(meeting, Err(FsError::Invalid(_))));
    assert_eq!(
        setup
            .fs
            .copy_range((one.ino, 1 << 40), (two.ino, 0), 1)
            .unwrap(),
        0
    );
}

#[test]
fn writing_changes_times_and_takes_set_id_bits() {
    let setup = setup();
    let file = setup
        .fs
        .create(&SUPER, at(ROOT, "f"), &new(0o6775))
        .unwrap();
    setup.tick();
    let written = setup.write(file.ino, 0, b"x");
    assert!(written.mtime > file.mtime && written.ctime > file.ctime);
    assert_eq!(written.perm, 0o6775);
    let kill = WriteOptions {
        clear_setid: ClearSetId::Executable,
        ..WriteOptions::default()
    };
    assert_eq!(setup.fs.write(file.ino, 0, b"x", kill).unwrap().perm, 0o775);
    let locked = setup
        .fs
        .create(&SUPER, at(ROOT, "g"), &new(0o6764))
        .unwrap();
    assert_eq!(
        setup.fs.write(locked.ino, 0, b"x", kill).unwrap().perm,
        0o2764
    );
    let by_stranger = WriteOptions {
        clear_setid: ClearSetId::All,
        ..WriteOptions::default()
    };
    assert_eq!(
        setup
            .fs
            .write(locked.ino, 0, b"x", by_stranger)
            .unwrap()
            .perm,
        0o764
    );
    let set = SetAttr {
        size: Some(0),
        clear_setid: ClearSetId::Executable,
        ..SetAttr::default()
    };
    let again = setup
        .fs
        .create(&SUPER, at(ROOT, "h"), &new(0o4755))
        .unwrap();
    assert_eq!(
        setup.fs.set_attr(&SUPER, again.ino, &set).unwrap().perm,
        0o755
    );
}

#[test]
fn only_files_have_contents() {
    let setup = setup();
    let fifo = setup
        .fs
        .make_node(&SUPER, at(ROOT, "p"), FileKind::Fifo, 0, &new(0o600))
        .unwrap();
    let options = WriteOptions::default();
    assert!(matches!(
        setup.fs.write(ROOT, 0, b"x", options),
        Err(FsError::IsDir)
    ));
    assert!(matches!(
        setup.fs.write(fifo.ino, 0, b"x", options),
        Err(FsError::Invalid(_))
    ));
    let set = SetAttr {
        size: Some(1),
        ..SetAttr::default()
    };
    assert!(matches!(
        setup.fs.set_attr(&SUPER, ROOT, &set),
        Err(FsError::IsDir)
    ));
}

#[test]
fn immutable_and_append_only_files_keep_what_they_have() {
    let setup = setup();
    let file = setup.file(ROOT, "f");
    setup.write(file.ino, 0, b"abc");
    let flags = |flags| setup.fs.set_inode_flags(&SUPER, file.ino, flags);
    flags(inode_flag::APPEND).unwrap();
    let write = |offset, append| {
        let options = WriteOptions {
            append,
            ..WriteOptions::default()
        };
        setup.fs.write(file.ino, offset, b"x", options)
    };
    assert!(matches!(write(0, false), Err(FsError::Perm)));
    write(0, true).unwrap();
    flags(inode_flag::IMMUTABLE).unwrap();
    assert!(matches!(write(0, true), Err(FsError::Perm)));
    assert!(matches!(
        setup.fs.unlink(&SUPER, at(ROOT, "f")),
        Err(FsError::Perm)
    ));
    let refused = setup.fs.set_inode_flags(&USER, file.ino, 0);
    assert!(matches!(refused, Err(FsError::Perm)));
    flags(0).unwrap();
    write(0, false).unwrap();
    assert_eq!(setup.contents(file.ino), b"xbcx");
}

#[test]
fn a_full_store_still_deletes() {
    let engine = std::sync::Arc::new(stitch_kv::ModelEngine::with_space(registry(), 1 << 20));
    let setup = setup_on(engine, |_| {});
    let mut made = Vec::new();
    let full = loop {
        let name = format!("f{}", made.len());
        match setup.fs.create(&SUPER, at(ROOT, &name), &new(0o644)) {
            Ok(attr) => made.push(attr.ino),
            Err(error) => break error,
        }
        let last = *made.last().unwrap();
        let options = WriteOptions::default();
        if let Err(error) = setup.fs.write(last, 0, &[1; 50_000], options) {
            break error;
        }
    };
    assert!(matches!(full, FsError::NoSpace), "{full}");
    for ino in &made[..made.len() - 1] {
        assert_eq!(setup.contents(*ino), vec![1; 50_000]);
    }
    setup.check();
    // Fill the rest with empty files, then cut, move over and remove.
    let mut count = 0;
    while setup
        .fs
        .create(&SUPER, at(ROOT, &format!("e{count}")), &new(0o644))
        .is_ok()
    {
        count += 1;
    }
    cut(&setup, made[0], 0).expect("cuts");
    for (index, &ino) in made.iter().enumerate() {
        setup
            .fs
            .unlink(&SUPER, at(ROOT, &format!("f{index}")))
            .unwrap();
        setup.fs.forget(ino, 1);
    }
    setup.fs.sync().unwrap();
    assert_eq!(setup.rows("data"), 0);
    setup.check();
    let file = setup.file(ROOT, "new");
    setup.write(file.ino, 0, &vec![1; 500_000]);
}

#[test]
fn nothing_changes_when_read_only() {
    let first = setup();
    let file = first.file(ROOT, "f");
    first.write(file.ino, 0, b"abc");
    let engine = std::sync::Arc::new(first.engine.reopened());
    let setup = setup_on(engine, |options| options.read_only = true);
    let file = setup.lookup(ROOT, "f").unwrap();
    let before = setup.engine.dump();
    setup.tick();
    assert_eq!(setup.contents(file.ino), b"abc");
    let refused = setup.fs.write(file.ino, 0, b"x", WriteOptions::default());
    assert!(matches!(refused, Err(FsError::ReadOnly)));
    let refused = setup.fs.unlink(&SUPER, at(ROOT, "f"));
    assert!(matches!(refused, Err(FsError::ReadOnly)));
    let refused = setup.fs.create(&SUPER, at(ROOT, "g"), &new(0o644));
    assert!(matches!(refused, Err(FsError::ReadOnly)));
    setup.fs.sync().unwrap();
    setup.fs.close().unwrap();
    assert!(setup.engine.dump() == before);
}
