//! Files that share contents after a copy.

mod random;
mod views;

use crate::common::*;
use stitch_base::Ino;
use stitch_fs::{FallocateMode, FileSystem, FsError, SeekFor};
use stitch_kv::Engine as _;

/// Bytes that are different in every chunk; the last one is short.
fn pattern(len: usize) -> Vec<u8> {
    let bytes = (0..len).map(|at| (at / 4096 * 7 + at % 251).to_le_bytes()[0]);
    bytes.map(|byte| byte | 1).collect()
}

const LEN: usize = 200_000;
const CHUNKS: usize = 49;

/// A file `a` of `LEN` bytes.
fn source(setup: &Setup) -> Ino {
    let ino = setup.file(ROOT, "a").ino;
    setup.write(ino, 0, &pattern(LEN));
    ino
}

fn copy_in(fs: &FileSystem, from: Ino, dir: Ino, name: &str) -> Ino {
    let made = fs.create(&SUPER, at(dir, name), &new(0o644));
    let to = made.expect("the name is free").ino;
    let size = fs.get_attr(from).expect("it is known").size;
    let copied = fs.copy_range((from, 0), (to, 0), u64::MAX / 2);
    assert_eq!(copied.expect("it copies"), size);
    to
}

fn copy(setup: &Setup, from: Ino, name: &str) -> Ino {
    setup.tick();
    copy_in(&setup.fs, from, ROOT, name)
}

fn remove(setup: &Setup, ino: Ino, name: &str) {
    setup.fs.unlink(&SUPER, at(ROOT, name)).expect("is there");
    let count = 1_000;
    setup.fs.forget(ino, count);
    setup.fs.reclaim().expect("reclaims");
}

#[test]
fn a_copy_takes_no_chunks_until_one_side_changes() {
    let setup = setup();
    let a = source(&setup);
    assert_eq!(setup.rows("data"), CHUNKS);
    let before = setup.attr(a);
    let b = copy(&setup, a, "b");
    assert_eq!(setup.rows("data"), CHUNKS);
    assert_eq!(setup.attr(a), before, "the source is as it was");
    let attr = setup.attr(b);
    assert_eq!((attr.size, attr.blocks), (before.size, before.blocks));
    assert!(attr.mtime > before.mtime);
    assert!(setup.contents(b) == pattern(LEN));
    setup.check();
    // A part of a chunk, then whole ones, on either side.
    setup.write(b, 5000, b"changed");
    assert_eq!(setup.rows("data"), CHUNKS + 1);
    setup.write(a, 40_960, &[9; 8192]);
    assert_eq!(setup.rows("data"), CHUNKS + 3);
    let (mut in_a, mut in_b) = (pattern(LEN), pattern(LEN));
    in_b[5000..5007].copy_from_slice(b"changed");
    in_a[40_960..49_152].fill(9);
    assert!(setup.contents(a) == in_a && setup.contents(b) == in_b);
    setup.check();
    let setup = setup.reopened();
    let (a, b) = (setup.lookup(ROOT, "a"), setup.lookup(ROOT, "b"));
    assert!(setup.contents(a.unwrap().ino) == in_a);
    assert!(setup.contents(b.unwrap().ino) == in_b);
    setup.check();
}

#[test]
fn the_space_comes_back_with_the_last_user() {
    for order in [["a", "b", "c"], ["c", "a", "b"], ["b", "c", "a"]] {
        let setup = setup();
        let empty = setup.rows("sys");
        let a = source(&setup);
        let inos = [a, copy(&setup, a, "b"), copy(&setup, a, "c")];
        assert_eq!(setup.rows("data"), CHUNKS);
        for (index, name) in order.iter().enumerate() {
            assert_eq!(setup.rows("data"), CHUNKS, "{order:?} {index}");
            let of = ["a", "b", "c"].iter().position(|other| other == name);
            remove(&setup, inos[of.unwrap()], name);
            setup.check();
        }
        assert_eq!((setup.rows("data"), setup.rows("sys")), (0, empty));
    }
}

#[test]
fn what_a_crash_has_left_goes_when_it_opens() {
    let setup = setup();
    let empty = setup.rows("sys");
    let a = source(&setup);
    let b = copy(&setup, a, "b");
    setup.fs.unlink(&SUPER, at(ROOT, "a")).unwrap();
    setup.fs.unlink(&SUPER, at(ROOT, "b")).unwrap();
    // Both are open, and still read.
    assert!(setup.contents(a) == pattern(LEN) && setup.contents(b) == pattern(LEN));
    setup.write(b, 0, b"orphan");
    setup.check();
    let setup = setup.reopened();
    assert_eq!((setup.rows("data"), setup.rows("sys")), (0, empty));
    setup.check();
}

#[test]
fn small_files_and_ranges_elsewhere_are_written() {
    let setup = setup();
    let a = source(&setup);
    let b = setup.file(ROOT, "b").ino;
    let copied = setup.fs.copy_range((a, 0), (b, 4096), LEN as u64);
    assert_eq!(copied.unwrap(), LEN as u64);
    assert_eq!(setup.rows("data"), CHUNKS * 2);
    let c = setup.file(ROOT, "c").ino;
    setup.write(c, 0, &[1; 5000]);
    setup.fs.copy_range((a, 0), (c, 0), LEN as u64).unwrap();
    assert_eq!(setup.rows("data"), CHUNKS * 3, "it was not empty");
    let small = setup.file(ROOT, "small").ino;
    setup.write(small, 0, &[1; 60_000]);
    copy(&setup, small, "small-too");
    assert_eq!(setup.rows("data"), CHUNKS * 3 + 30);
    let allocated = setup.file(ROOT, "allocated").ino;
    let mode = FallocateMode::Allocate { keep_size: true };
    setup.fs.fallocate(allocated, mode, 0, 1 << 20).unwrap();
    setup
        .fs
        .copy_range((a, 0), (allocated, 0), 1 << 20)
        .unwrap();
    assert_eq!(setup.rows("data"), CHUNKS * 4 + 30);
    for ino in [c, allocated] {
        assert!(setup.contents(ino) == pattern(LEN));
    }
    setup.check();
}

#[test]
fn a_file_that_is_copied_in_ranges_is_shared() {
    let setup = setup();
    let a = source(&setup);
    let b = setup.file(ROOT, "b").ino;
    // As the kernel splits a long range, and as `cp` goes on at the end.
    for (start, len) in [(0, 81_920), (81_920, 90_112), (172_032, 1 << 20)] {
        setup.fs.copy_range((a, start), (b, start), len).unwrap();
    }
    assert_eq!(setup.rows("data"), CHUNKS);
    assert!(setup.contents(b) == pattern(LEN));
    let c = setup.file(ROOT, "c").ino;
    setup.fs.copy_range((a, 0), (c, 0), 100_000).unwrap();
    assert_eq!(setup.rows("data"), CHUNKS + 1, "the partial last chunk");
    assert!(setup.contents(c) == pattern(LEN)[..100_000]);
    setup.check();
}

#[test]
fn holes_stay_holes() {
    let setup = setup();
    let a = setup.file(ROOT, "a").ino;
    setup.write(a, 0, &pattern(40_960));
    setup.write(a, 409_600, &pattern(40_960));
    cut(&setup, a, 1 << 20).unwrap();
    let (blocks, rows) = (setup.attr(a).blocks, setup.rows("data"));
    let b = copy(&setup, a, "b");
    // As `cp` copies what `SEEK_DATA` finds.
    let c = setup.file(ROOT, "c").ino;
    setup.fs.copy_range((a, 0), (c, 0), 40_960).unwrap();
    assert_eq!(setup.rows("data"), rows + 10, "less than 64 KiB is written");
    cut(&setup, c, 0).unwrap();
    for ino in [a, b] {
        assert_eq!(setup.attr(ino).blocks, blocks);
        let seek = |at, what| setup.fs.seek(ino, at, what).ok();
        assert_eq!(seek(0, SeekFor::Hole), Some(40_960));
        assert_eq!(seek(40_960, SeekFor::Data), Some(409_600));
        assert_eq!(seek(409_601, SeekFor::Hole), Some(450_560));
        assert_eq!(seek(450_560, SeekFor::Data), None);
    }
    setup.write(b, 100_000, b"data");
    assert_eq!(setup.fs.seek(b, 41_000, SeekFor::Data).unwrap(), 98_304);
    assert_eq!(setup.fs.seek(a, 41_000, SeekFor::Data).unwrap(), 409_600);
    let mode = FallocateMode::PunchHole;
    setup.fs.fallocate(b, mode, 0, 20_480).unwrap();
    assert_eq!(setup.fs.seek(b, 0, SeekFor::Data).unwrap(), 20_480);
    assert_eq!(setup.fs.seek(b, 20_480, SeekFor::Hole).unwrap(), 40_960);
    setup.check();
}

#[test]
fn a_copy_with_a_very_long_hole_gets_its_own_chunks_in_few_batches() {
    let setup = setup();
    let a = setup.file(ROOT, "a").ino;
    setup.write(a, 0, &pattern(LEN));
    let end = 1 << 40;
    setup.write(a, end, b"end");
    let b = copy(&setup, a, "b");
    let written = || setup.engine.snapshot().seqno().0;
    let (rows, before) = (setup.rows("data"), written());
    // Allocated extents and shared contents do not go together.
    let mode = FallocateMode::Allocate { keep_size: true };
    setup.fs.fallocate(b, mode, end + 8192, 4096).unwrap();
    assert!(setup.rows("data") > rows + CHUNKS, "they are its own");
    assert!(written() - before < 1_000, "{} rows", written() - before);
    let mut read = Vec::new();
    setup.fs.read(b, 0, LEN, &mut read).unwrap();
    assert!(read == pattern(LEN));
    assert_eq!(
        setup.fs.seek(b, LEN as u64 + 4096, SeekFor::Data).unwrap(),
        end
    );
    setup.check();
}

#[test]
fn a_file_that_is_cut_and_grows_shows_zeros() {
    let setup = setup();
    let a = source(&setup);
    let b = copy(&setup, a, "b");
    for ino in [a, b] {
        cut(&setup, ino, 10_000).unwrap();
        cut(&setup, ino, 50_000).unwrap();
        let expected = [&pattern(LEN)[..10_000], &[0; 40_000]].concat();
        assert!(setup.contents(ino) == expected);
        setup.check();
    }
    let c = copy(&setup, a, "c");
    assert_eq!(setup.contents(c), setup.contents(a));
    for ino in [a, b] {
        cut(&setup, ino, 0).unwrap();
        setup.check();
        setup.write(ino, 0, b"small");
        assert_eq!(setup.contents(ino), b"small");
        setup.write(ino, 3, &pattern(20_000));
        assert!(setup.contents(ino) == [b"sma", &pattern(20_000)[..]].concat());
        setup.check();
    }
}

#[test]
fn the_source_may_be_cut_to_nothing_and_written_again() {
    let setup = setup();
    let a = source(&setup);
    let b = copy(&setup, a, "b");
    cut(&setup, a, 0).unwrap();
    setup.write(a, 0, &[5; LEN]);
    assert!(setup.contents(b) == pattern(LEN));
    assert!(setup.contents(a) == [5; LEN]);
    // It is shared again, with its new contents.
    let rows = setup.rows("data");
    let c = copy(&setup, a, "c");
    assert_eq!(setup.rows("data"), rows);
    setup.write(a, 0, &[6; 100]);
    assert!(setup.contents(c) == [5; LEN]);
    for (ino, name) in [(a, "a"), (b, "b"), (c, "c")] {
        setup.check();
        remove(&setup, ino, name);
    }
    assert_eq!(setup.rows("data"), 0);
}

#[test]
fn a_copy_of_a_changed_file_writes_what_is_its_own() {
    let setup = setup();
    let a = source(&setup);
    let b = copy(&setup, a, "b");
    setup.write(b, 0, &[1; 100]);
    setup.write(b, 81_920, &[2; 8192]);
    let rows = setup.rows("data");
    let c = copy(&setup, b, "c");
    assert!(setup.contents(c) == setup.contents(b));
    assert_eq!(setup.rows("data"), rows + 3);
    setup.write(b, 4096, &[3; 100_000]);
    let (rows, before) = (setup.rows("data"), setup.contents(b));
    let d = copy(&setup, b, "d");
    assert_eq!(
        setup.rows("data"),
        rows + CHUNKS,
        "more than half is its own"
    );
    assert!(setup.contents(d) == before);
    setup.check();
}

#[test]
fn a_file_that_is_written_whole_shares_nothing() {
    let setup = setup();
    let empty = setup.rows("sys");
    let a = source(&setup);
    let b = copy(&setup, a, "b");
    setup.write(b, 0, &[1; LEN]);
    assert_eq!(setup.rows("data"), CHUNKS * 2);
    remove(&setup, a, "a");
    assert_eq!((setup.rows("data"), setup.rows("sys")), (CHUNKS, empty));
    assert!(setup.contents(b) == [1; LEN]);
    setup.check();
}

#[test]
fn fallocate_of_a_copy_changes_it_alone() {
    let modes = [
        FallocateMode::PunchHole,
        FallocateMode::ZeroRange { keep_size: true },
        FallocateMode::ZeroRange { keep_size: false },
        FallocateMode::Allocate { keep_size: true },
        FallocateMode::Allocate { keep_size: false },
    ];
    for mode in modes {
        for (offset, len) in [(5000, 50_000), (190_000, 100_000), (300_000, 4096)] {
            let setup = setup();
            let a = source(&setup);
            let plain = setup.file(ROOT, "plain").ino;
            setup.write(plain, 0, &pattern(LEN));
            let b = copy(&setup, a, "b");
            for ino in [a, b, plain] {
                setup.fs.fallocate(ino, mode, offset, len).unwrap();
                assert!(
                    setup.contents(ino) == setup.contents(a),
                    "{mode:?} {offset}"
                );
                setup.check();
            }
            let (attr, expected) = (setup.attr(b), setup.attr(plain));
            assert_eq!((attr.size, attr.blocks), (expected.size, expected.blocks));
        }
    }
}

#[test]
fn very_many_changes_are_held() {
    let setup = setup();
    let a = setup.file(ROOT, "a").ino;
    let mut expected = pattern(6 << 20);
    setup.write(a, 0, &expected);
    let b = copy(&setup, a, "b");
    for at in (0..1400_u64).step_by(2) {
        let chunk = at * 3989 % 1536;
        let offset = usize::try_from(chunk * 4096 + 100).unwrap();
        setup.write(b, offset as u64, &[3; 5]);
        expected[offset..offset + 5].fill(3);
    }
    assert!(setup.contents(b) == expected);
    assert!(setup.contents(a) == pattern(6 << 20));
    setup.check();
    setup
        .fs
        .fallocate(b, FallocateMode::PunchHole, 0, 5 << 20)
        .unwrap();
    expected[..5 << 20].fill(0);
    assert!(setup.contents(b) == expected);
    setup.check();
}

#[test]
fn links_and_attributes_of_a_copy_are_its_own() {
    let setup = setup();
    let a = source(&setup);
    let b = copy(&setup, a, "b");
    setup.fs.link(&SUPER, b, at(ROOT, "link")).unwrap();
    setup.write(b, 0, b"first");
    setup.fs.unlink(&SUPER, at(ROOT, "b")).unwrap();
    setup.check();
    assert_eq!(setup.contents(b)[..5], *b"first");
    remove(&setup, a, "a");
    let setup = setup.reopened();
    let b = setup.lookup(ROOT, "link").unwrap().ino;
    assert!(setup.contents(b)[5..] == pattern(LEN)[5..]);
    setup.check();
}

#[test]
fn a_temporary_file_can_be_a_copy() {
    let setup = setup();
    let a = source(&setup);
    let made = setup.fs.make_temp_file(&SUPER, ROOT, &new(0o600));
    let b = made.unwrap().ino;
    setup.fs.copy_range((a, 0), (b, 0), 1 << 20).unwrap();
    assert_eq!(setup.rows("data"), CHUNKS);
    setup.check();
    setup.fs.link(&SUPER, b, at(ROOT, "b")).unwrap();
    remove(&setup, a, "a");
    assert!(setup.contents(b) == pattern(LEN));
    setup.check();
}

#[test]
fn an_atomic_write_is_refused_for_shared_contents() {
    let setup = setup();
    let a = source(&setup);
    assert!(setup.fs.takes_atomic_writes(a).unwrap());
    let b = copy(&setup, a, "b");
    for ino in [a, b] {
        assert!(!setup.fs.takes_atomic_writes(ino).unwrap());
    }
}

#[test]
fn where_large_files_are_external_they_are_copied() {
    let setup = setup_external();
    let a = large(&setup, "a");
    let b = setup.file(ROOT, "b").ino;
    setup.fs.copy_range((a, 0), (b, 0), 1 << 20).unwrap();
    assert_eq!(setup.contents(b), [7; 20_000]);
    assert_eq!(setup.rows("data"), 0);
    setup.check();
}

#[test]
fn a_file_whose_row_is_gone_is_corrupt() {
    let setup = setup();
    let a = source(&setup);
    let b = copy(&setup, a, "b");
    let sys = setup.engine.trees();
    let sys = sys.iter().find(|tree| tree.name == "fs/sys").unwrap().id;
    let mut batch = stitch_kv::Batch::new();
    batch.delete(sys, &stitch_format::fs_key::shared(b));
    setup
        .engine
        .commit(&batch, stitch_kv::CommitOptions::default())
        .unwrap();
    let mut out = Vec::new();
    let read = setup.fs.read(b, 0, 10, &mut out);
    assert!(matches!(read, Err(FsError::Corrupt(_))), "{read:?}");
    assert!(setup.contents(a) == pattern(LEN));
}
