//! What `fallocate` allocates: blocks that count, and that writes do not add to.

use crate::common::{ROOT, SUPER, Setup, at, cut, new, registry, setup, setup_on};
use stitch_base::Ino;
use stitch_fs::{Attr, BeginOptions, CloneSource, FallocateMode, FsError, FsResult, WriteOptions};
use stitch_kv::Engine as _;

const KEEP: FallocateMode = FallocateMode::Allocate { keep_size: true };
const GROW: FallocateMode = FallocateMode::Allocate { keep_size: false };
const ZERO: FallocateMode = FallocateMode::ZeroRange { keep_size: true };
const PUNCH: FallocateMode = FallocateMode::PunchHole;
const BLOCK: u64 = 4096;

fn allocate(setup: &Setup, ino: Ino, mode: FallocateMode, offset: u64, len: u64) -> Attr {
    let attr = setup.fs.fallocate(ino, mode, offset, len);
    attr.expect("there is room")
}

/// Blocks of 4 KiB of a file.
fn blocks(setup: &Setup, ino: Ino) -> u64 {
    let blocks = setup.attr(ino).blocks;
    assert!(blocks.is_multiple_of(8), "whole blocks");
    blocks / 8
}

fn extents(setup: &Setup) -> usize {
    let rows = &setup.engine.dump()["fs/sys"];
    rows.iter().filter(|(key, _)| key[0] == b'a').count()
}

fn unlink(setup: &Setup, name: &str) -> FsResult<()> {
    setup.fs.unlink(&SUPER, at(ROOT, name)).map(drop)
}

#[test]
fn allocated_ranges_count_in_whole_blocks_and_writes_add_none() {
    let setup = setup();
    let ino = setup.file(ROOT, "f").ino;
    // The last byte of a block and the first of the next.
    let attr = allocate(&setup, ino, GROW, BLOCK - 1, 2);
    assert_eq!((attr.size, attr.blocks), (BLOCK + 1, 16));
    assert_eq!(setup.rows("data"), 0, "nothing is written");
    assert_eq!(setup.contents(ino), vec![0; 4097]);
    setup.write(ino, BLOCK - 1, b"xy");
    assert_eq!(blocks(&setup, ino), 2);
    setup.write(ino, 10, b"z");
    assert_eq!(blocks(&setup, ino), 2, "written again");
    setup.check();
}

#[test]
fn a_range_of_any_length_is_one_row() {
    let setup = setup();
    let ino = setup.file(ROOT, "f").ino;
    allocate(&setup, ino, GROW, 0, 1 << 40);
    assert_eq!((blocks(&setup, ino), extents(&setup)), (1 << 28, 1));
    setup.write(ino, 5 * BLOCK, &[1; 4096]);
    assert_eq!((blocks(&setup, ino), extents(&setup)), (1 << 28, 3));
    // In order, the written extent grows.
    setup.write(ino, 6 * BLOCK, &[1; 4096]);
    assert_eq!((blocks(&setup, ino), extents(&setup)), (1 << 28, 3));
    setup.check();
}

#[test]
fn writes_in_any_order_into_an_allocated_range_keep_the_count() {
    let setup = setup();
    let ino = setup.file(ROOT, "f").ino;
    allocate(&setup, ino, KEEP, 0, 64 * BLOCK);
    for index in 0..64 {
        // 29 and 64 have no common factor, so every block is written once, then again.
        let block = index * 29 % 64;
        setup.write(ino, block * BLOCK + 100, &[7; 500]);
        setup.write(ino, block * BLOCK, &[7; 100]);
        assert_eq!(blocks(&setup, ino), 64, "after block {block}");
        setup.check();
    }
    assert_eq!(extents(&setup), 0, "a file without holes needs no rows");
    let attr = setup.write(ino, 64 * BLOCK, &[1]);
    assert_eq!(attr.blocks, 65 * 8);
}

#[test]
fn writes_into_allocated_ranges_read_rows_once() {
    let setup = setup();
    let inos: Vec<Ino> = (0..200)
        .map(|name| setup.file(ROOT, &name.to_string()).ino)
        .collect();
    for &ino in &inos {
        allocate(&setup, ino, KEEP, 0, 100 * BLOCK);
    }
    let scans = || setup.engine.counters().get(stitch_kv::counters::SCANS);
    let before = scans();
    for &ino in &inos[..100] {
        for block in 0..50 {
            setup.write(ino, block * 37 % 100 * BLOCK, &[1; 4096]);
        }
    }
    assert!(scans() - before <= 100, "{} scans", scans() - before);
    // More files than are kept.
    for round in 0..3 {
        for &ino in &inos {
            setup.write(ino, (round * 11 + 50) * BLOCK, &[1; 4096]);
        }
    }
    setup.check();
}

#[test]
fn more_extents_than_are_kept_are_read_from_rows() {
    let setup = setup();
    let ino = setup.file(ROOT, "f").ino;
    allocate(&setup, ino, KEEP, 0, 3000 * BLOCK);
    for block in 0..1200 {
        setup.write(ino, 2 * block * BLOCK, b"x");
        if block % 100 == 0 {
            setup.check();
        }
    }
    assert_eq!((blocks(&setup, ino), extents(&setup)), (3000, 2400));
    for block in 0..1200 {
        setup.write(ino, (2 * block + 1) * BLOCK, b"x");
    }
    assert_eq!((blocks(&setup, ino), extents(&setup)), (3000, 2));
    setup.check();
}

#[test]
fn what_is_allocated_beyond_the_end_counts_and_goes_with_a_cut() {
    let setup = setup();
    let ino = setup.file(ROOT, "f").ino;
    setup.write(ino, 0, &[1; 100]);
    let attr = allocate(&setup, ino, KEEP, 0, 10 * BLOCK);
    assert_eq!((attr.size, attr.blocks), (100, 80));
    setup.write(ino, 8 * BLOCK, b"x");
    assert_eq!(blocks(&setup, ino), 10);
    cut(&setup, ino, 9 * BLOCK).unwrap();
    assert_eq!(blocks(&setup, ino), 10, "growing keeps them");
    cut(&setup, ino, 9 * BLOCK).unwrap();
    assert_eq!(blocks(&setup, ino), 9, "the same size cuts what is beyond");
    cut(&setup, ino, 2 * BLOCK + 1).unwrap();
    assert_eq!(blocks(&setup, ino), 3);
    setup.check();
    cut(&setup, ino, 0).unwrap();
    assert_eq!((blocks(&setup, ino), extents(&setup)), (0, 0));
    setup.check();
}

#[test]
fn punching_takes_blocks_and_zeroing_gives_them() {
    let setup = setup();
    let ino = setup.file(ROOT, "f").ino;
    allocate(&setup, ino, GROW, 0, 8 * BLOCK);
    setup.write(ino, 0, &[1; 4 * 4096]);
    allocate(&setup, ino, PUNCH, 2 * BLOCK - 1, 4 * BLOCK + 2);
    assert_eq!(blocks(&setup, ino), 4, "four whole ones went");
    allocate(&setup, ino, PUNCH, 7 * BLOCK, 1 << 30);
    assert_eq!(blocks(&setup, ino), 3);
    setup.check();
    allocate(&setup, ino, ZERO, BLOCK + 7, 20 * BLOCK);
    assert_eq!(blocks(&setup, ino), 22, "from the first partial one on");
    let mut expected = vec![0; 8 * 4096];
    expected[..4096 + 7].fill(1);
    assert_eq!(setup.contents(ino), expected);
    setup.check();
    allocate(&setup, ino, PUNCH, 0, 1 << 30);
    assert_eq!((blocks(&setup, ino), extents(&setup)), (0, 0));
    setup.check();
}

#[test]
fn a_sparse_file_counts_exactly_once_it_is_allocated() {
    let setup = setup();
    let ino = setup.file(ROOT, "f").ino;
    setup.write(ino, 100 * BLOCK, b"x");
    for _ in 0..3 {
        // Between, so that the count of a sparse file is an upper bound.
        setup.write(ino, 20 * BLOCK, b"x");
        setup.write(ino, 30 * BLOCK, b"x");
    }
    assert!(blocks(&setup, ino) > 3);
    allocate(&setup, ino, GROW, 25 * BLOCK, 10 * BLOCK);
    assert_eq!(blocks(&setup, ino), 12);
    setup.write(ino, 20 * BLOCK, b"x");
    setup.write(ino, 40 * BLOCK, b"x");
    setup.write(ino, 40 * BLOCK, b"x");
    assert_eq!(blocks(&setup, ino), 13);
    setup.check();
}

#[test]
fn a_large_sparse_file_counts_no_less_than_it_has() {
    let setup = setup();
    let ino = setup.file(ROOT, "f").ino;
    for block in 0..1100 {
        setup.write(ino, (2 * block + 1) * BLOCK, b"x");
    }
    allocate(&setup, ino, GROW, 0, 1000 * BLOCK);
    let counted = blocks(&setup, ino);
    assert!((1600..=2200).contains(&counted), "{counted}");
    allocate(&setup, ino, GROW, 0, 2200 * BLOCK);
    assert_eq!(blocks(&setup, ino), 2200, "all of it is allocated");
    setup.check();
}

#[test]
fn removed_files_leave_no_extents() {
    let setup = setup();
    for name in ["known", "forgotten", "over", "below"] {
        let parent = match name {
            "below" => setup.dir(ROOT, "d").ino,
            _ => ROOT,
        };
        let ino = setup.file(parent, name).ino;
        allocate(&setup, ino, KEEP, 0, 64 * BLOCK);
        for block in 0..32 {
            setup.write(ino, 2 * block * BLOCK, b"x");
        }
        if name == "forgotten" || name == "below" {
            setup.fs.forget(ino, 1);
        }
    }
    setup.check();
    let known = setup.lookup(ROOT, "known").unwrap().ino;
    unlink(&setup, "known").unwrap();
    assert_eq!(blocks(&setup, known), 64, "it is open");
    setup.write(known, 60 * BLOCK, b"y");
    setup.check();
    setup.fs.forget(known, 2);
    unlink(&setup, "forgotten").unwrap();
    let other = setup.file(ROOT, "other").ino;
    setup.fs.forget(other, 1);
    let mode = stitch_fs::RenameMode::Replace;
    setup
        .fs
        .rename(&SUPER, at(ROOT, "other"), at(ROOT, "over"), mode)
        .unwrap();
    let over = setup.fs.known_inodes();
    assert!(over > 1, "the replaced file is still known");
    let dir = setup.lookup(ROOT, "d").unwrap().ino;
    setup.fs.remove_tree(&SUPER, at(ROOT, "d"), None).unwrap();
    setup.fs.forget(dir, 2);
    while setup.fs.detached_dirs() > 0 {
        setup.fs.empty_detached(100).unwrap();
    }
    setup.fs.reclaim().unwrap();
    setup.check();
    // The replaced one goes with the next life.
    let setup = setup.reopened();
    assert_eq!(extents(&setup), 0);
    setup.check();
}

#[test]
fn allocated_extents_are_kept_over_a_reopening() {
    let setup = setup();
    let ino = setup.file(ROOT, "f").ino;
    allocate(&setup, ino, KEEP, 0, 10 * BLOCK);
    setup.write(ino, 3 * BLOCK, b"x");
    let setup = setup.reopened();
    let ino = setup.lookup(ROOT, "f").unwrap().ino;
    assert_eq!((blocks(&setup, ino), extents(&setup)), (10, 3));
    setup.write(ino, 4 * BLOCK, b"x");
    assert_eq!(blocks(&setup, ino), 10);
    setup.check();
}

#[test]
fn more_extents_than_a_batch_takes_are_filled_in_several() {
    let setup = setup();
    let ino = setup.file(ROOT, "f").ino;
    allocate(&setup, ino, KEEP, 0, 10_000 * BLOCK);
    for block in 0..4_500 {
        setup.write(ino, 2 * block * BLOCK, b"x");
    }
    assert!(extents(&setup) >= 9000);
    let attr = allocate(&setup, ino, GROW, 0, 10_001 * BLOCK);
    assert_eq!((attr.blocks, attr.size), (10_001 * 8, 10_001 * BLOCK));
    let attr = allocate(&setup, ino, ZERO, 1, 10_000 * BLOCK);
    assert_eq!((attr.blocks, extents(&setup)), (10_001 * 8, 2));
    assert_eq!(setup.rows("data"), 1);
    allocate(&setup, ino, PUNCH, 0, 20_000 * BLOCK);
    assert_eq!((blocks(&setup, ino), extents(&setup)), (0, 0));
    setup.check();
}

/// A store of a megabyte.
fn small() -> Setup {
    let engine = stitch_kv::ModelEngine::with_space(registry(), 1 << 20);
    setup_on(std::sync::Arc::new(engine), |_| {})
}

fn free_bytes(setup: &Setup) -> u64 {
    let space = setup.fs.stat_fs().expect("there is no folder to ask");
    space.blocks_free * u64::from(space.block_bytes)
}

/// Writes until there is no space, and returns how much there was.
fn fill(setup: &Setup, name: &str) -> u64 {
    let ino = setup.file(ROOT, name).ino;
    for block in 0.. {
        let written = setup
            .fs
            .write(ino, block * BLOCK, &[5; 4096], WriteOptions::default());
        match written {
            Ok(_) => {}
            Err(FsError::NoSpace) => return block * BLOCK,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!("the store is small")
}

#[test]
fn room_for_allocated_blocks_is_left_by_others() {
    let setup = small();
    let ino = setup.file(ROOT, "f").ino;
    let before = free_bytes(&setup);
    let len = 100 * BLOCK;
    allocate(&setup, ino, KEEP, 0, len);
    let left = free_bytes(&setup);
    assert!(left <= before - len, "df shows it as used");
    let filled = fill(&setup, "others");
    assert!(filled <= left && filled > left / 2);
    // More than there is: nothing is changed.
    let refused = setup.fs.fallocate(ino, GROW, 0, 2 * len);
    assert!(matches!(refused, Err(FsError::NoSpace)));
    assert_eq!((blocks(&setup, ino), setup.attr(ino).size), (100, 0));
    // Again is nothing new.
    allocate(&setup, ino, KEEP, 0, len);
    let setup = setup.reopened();
    let ino = setup.lookup(ROOT, "f").unwrap().ino;
    for block in 0..100 {
        // In parts, and again: the first write of a block is not the last.
        setup.write(ino, block * BLOCK, &[6; 1000]);
        setup.write(ino, block * BLOCK + 1000, &[6; 3096]);
        setup.write(ino, block * BLOCK, &[7; 4096]);
    }
    assert!(setup.contents(ino) == vec![7; 409_600]);
    assert_eq!(blocks(&setup, ino), 100);
    setup.check();
}

#[test]
fn room_comes_back_with_cuts_holes_and_removals() {
    let setup = small();
    let before = free_bytes(&setup);
    let gives_back: [(&str, &dyn Fn(Ino)); 4] = [
        ("cut", &|ino| cut(&setup, ino, 0).unwrap()),
        ("same size", &|ino| {
            cut(&setup, ino, setup.attr(ino).size).unwrap()
        }),
        ("punch", &|ino| {
            allocate(&setup, ino, PUNCH, 0, 1 << 30);
        }),
        ("unlink", &|ino| {
            unlink(&setup, "f").unwrap();
            let aside = free_bytes(&setup);
            assert!(aside < before / 2, "it is open");
            setup.fs.forget(ino, 10);
            setup.fs.reclaim().unwrap();
            setup.file(ROOT, "f");
        }),
    ];
    let mut ino = setup.file(ROOT, "f").ino;
    for (way, give_back) in gives_back {
        let most = 140 * BLOCK;
        allocate(&setup, ino, KEEP, 0, most);
        assert!(free_bytes(&setup) < before - most);
        give_back(ino);
        assert!(free_bytes(&setup) + 4 * BLOCK > before, "{way}");
        ino = setup.lookup(ROOT, "f").unwrap().ino;
    }
    setup.check();
}

#[test]
fn a_refused_allocation_sets_nothing_aside() {
    let setup = small();
    let ino = setup.file(ROOT, "f").ino;
    let before = free_bytes(&setup);
    for _ in 0..3 {
        let refused = setup.fs.fallocate(ino, GROW, 0, before);
        assert!(matches!(refused, Err(FsError::NoSpace)));
    }
    assert!(free_bytes(&setup) + BLOCK > before);
    assert_eq!(setup.attr(ino).size, 0);
    setup.check();
}

/// The commit looks for the room, and is refused without.
#[test]
fn an_allocation_in_a_transaction_needs_room_at_the_commit() {
    let setup = small();
    let taken = setup.file(ROOT, "taken").ino;
    setup.write(taken, 0, b"before");
    let before = free_bytes(&setup);
    let view = setup
        .fs
        .transactions()
        .begin("work", &BeginOptions::default());
    let view = view.unwrap();
    let inner = view.fs();
    let found = inner.lookup(at(ROOT, "taken")).unwrap().ino;
    let options = WriteOptions::default();
    inner.write(found, 0, b"AFTER!", options).unwrap();
    let big = inner.create(&SUPER, at(ROOT, "big"), &new(0o644));
    let big = big.unwrap().ino;
    inner
        .fallocate(big, GROW, 0, 64 << 20)
        .expect("not looked for");
    assert!(
        free_bytes(&setup) + 16 * BLOCK > before,
        "nothing is set aside"
    );
    let refused = setup.fs.transactions().commit(&view);
    assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
    assert!(setup.lookup(ROOT, "big").is_err());
    assert_eq!(setup.contents(taken), b"before");
    inner.fallocate(big, PUNCH, 0, 64 << 20).unwrap();
    let most = 100 * BLOCK;
    inner.fallocate(big, GROW, 0, most).unwrap();
    setup
        .fs
        .transactions()
        .commit(&view)
        .expect("there is room");
    assert_eq!(setup.contents(taken), b"AFTER!");
    assert!(free_bytes(&setup) < before - most, "it is set aside now");
    setup.check();
}

#[test]
fn room_of_a_clone_is_set_aside_while_it_is_open() {
    let setup = small();
    let dir = setup.dir(ROOT, "dir").ino;
    let source = CloneSource {
        fs: &setup.fs,
        dir,
        snapshot: None,
    };
    let made = setup.fs.make_clone(&SUPER, &source, at(ROOT, "clone"));
    let number = made.unwrap().number;
    let before = free_bytes(&setup);
    let most = 100 * BLOCK;
    let open = || setup.fs.open_clone(number).unwrap();
    let clone = open();
    let file = clone.fs().create(&SUPER, at(dir, "file"), &new(0o644));
    clone
        .fs()
        .fallocate(file.unwrap().ino, KEEP, 0, most)
        .unwrap();
    assert!(free_bytes(&setup) < before - most);
    drop(clone);
    assert!(free_bytes(&setup) + 16 * BLOCK > before, "it is closed");
    let clone = open();
    assert!(free_bytes(&setup) < before - most, "it is open again");
    drop(clone);
    setup.check();
}
