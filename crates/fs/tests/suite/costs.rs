//! What operations cost, by the counters of the engine.

use crate::common::*;
use stitch_base::Ino;
use stitch_format::fs_inode::INODE_HEAD_BYTES;
use stitch_fs::{RenameMode, SetAttr, Taken, WriteOptions};
use stitch_kv::{Engine as _, counters};

/// Messages, commits, point reads and scans of an operation.
fn cost(setup: &Setup, run: impl FnOnce()) -> [u64; 4] {
    let names = [
        counters::PUT_MESSAGES,
        counters::COMMITS,
        counters::GETS,
        counters::SCANS,
    ];
    let read = || names.map(|name| setup.engine.counters().get(name));
    setup.tick();
    let before = read();
    run();
    let after = read();
    std::array::from_fn(|index| after[index] - before[index])
}

/// Without the reads that confirm, in debug builds, what is known without reading.
fn setup() -> Setup {
    setup_with(|options| options.confirm_names = false)
}

fn large_file(setup: &Setup, name: &str, size: u64) -> Ino {
    let file = setup.file(ROOT, name);
    let piece = vec![1; 1 << 20];
    let mut at = 0;
    while at < size {
        setup.write(file.ino, at, &piece);
        at += piece.len() as u64;
    }
    file.ino
}

#[test]
fn creating_is_a_put_and_an_upsert() {
    let setup = setup();
    setup.file(ROOT, "first");
    let [messages, commits, gets, scans] = cost(&setup, || {
        setup.file(ROOT, "f");
    });
    // The row, the directory's times, the count of inodes; one look for the name.
    assert_eq!((messages, commits, gets, scans), (3, 1, 1, 0));
    let [_, _, gets, scans] = cost(&setup, || {
        setup.lookup(ROOT, "g").unwrap_err();
        setup.file(ROOT, "g");
    });
    assert_eq!((gets, scans), (1, 0), "the lookup has missed it");
    let [_, _, gets, _] = cost(&setup, || {
        setup.lookup(ROOT, "h").unwrap_err();
        setup.lookup(ROOT, "h").unwrap_err();
        setup.file(ROOT, "h");
        setup.lookup(ROOT, "h").unwrap();
    });
    assert_eq!(gets, 2, "what was made is read");
}

/// Messages and reads of changes of names, each on a file that is not known.
fn costs_of_names(setup: &Setup) -> [[u64; 4]; 4] {
    let dir = setup.dir(ROOT, "costs").ino;
    let unknown = |name: &str| {
        let file = setup.file(dir, name);
        setup.fs.forget(file.ino, 1);
    };
    unknown("moved");
    unknown("removed");
    let made = cost(setup, || {
        setup.file(dir, "made");
    });
    let moved = cost(setup, || {
        let (from, to) = (at(dir, "moved"), at(dir, "there"));
        let renamed = setup.fs.rename(&SUPER, from, to, RenameMode::Replace);
        renamed.expect("moves");
    });
    let removed = cost(setup, || {
        setup.fs.unlink(&SUPER, at(dir, "removed")).expect("goes");
    });
    let directory = cost(setup, || {
        setup.dir(dir, "d");
    });
    [made, moved, removed, directory]
}

#[test]
fn back_rows_are_one_message_more_and_no_read() {
    let setup = setup();
    let file = setup.file(ROOT, "f").ino;
    let without = costs_of_names(&setup);
    setup.fs.forget(file, 1);
    setup.fs.look_up_number(file).expect("is found");
    setup
        .fs
        .remove_tree(&SUPER, at(ROOT, "costs"), None)
        .expect("goes");
    let with = costs_of_names(&setup);
    for (with, without) in with.into_iter().zip(without) {
        let [messages, commits, gets, scans] = without;
        assert_eq!(with, [messages + 1, commits, gets, scans]);
    }
}

#[test]
fn a_number_is_found_with_few_reads_once_the_pass_is_done() {
    let setup = setup();
    let dir = setup.dir(ROOT, "d").ino;
    let files: Vec<Ino> = (0..100)
        .map(|index| setup.file(dir, &index.to_string()).ino)
        .collect();
    setup
        .fs
        .look_up_number(Ino(dir.0 + 1000))
        .expect_err("no inode");
    let setup = without_memory_of(setup);
    setup.fs.look_up_number(files[1]).expect("is found");
    let again = cost(&setup, || {
        setup.fs.look_up_number(files[0]).expect("is found");
    });
    // The file and its directory, which are not known: own row, back row, and one scan of a name
    // for each.
    assert_eq!(again, [0, 0, 4, 2]);
}

/// Point reads and scans of making, moving and linking three names that are not there.
fn reads_of_new_names(setup: &Setup, dir: Ino) -> (u64, u64) {
    let mode = RenameMode::NoReplace;
    let [_, _, gets, scans] = cost(setup, || {
        for name in ["a", "b", "c"] {
            setup.lookup(dir, name).expect_err("is missing");
        }
        let file = setup.file(dir, "a");
        let linked = setup.fs.link(&SUPER, file.ino, at(dir, "b"));
        linked.expect("links");
        let moved = setup.fs.rename(&SUPER, at(dir, "b"), at(dir, "c"), mode);
        moved.expect("moves");
    });
    (gets, scans)
}

#[test]
fn names_missing_in_a_new_directory_cost_no_reads() {
    let setup = setup();
    let dir = setup.dir(ROOT, "d");
    // The name that is moved.
    assert_eq!(reads_of_new_names(&setup, dir.ino), (1, 0));
    let answers = setup.fs.names_usage().answers;
    assert_eq!(answers, 6, "each was asked for twice");
    let [_, _, gets, scans] = cost(&setup, || {
        setup.fs.unlink(&SUPER, at(dir.ino, "a")).unwrap();
        setup.fs.unlink(&SUPER, at(dir.ino, "c")).unwrap();
        setup.lookup(dir.ino, "c").unwrap_err();
        setup.fs.remove_dir(&SUPER, at(ROOT, "d")).unwrap();
    });
    // Two names of one file; the directory is known, and to be empty.
    assert_eq!((gets, scans), (2, 0));
    assert_eq!(setup.fs.names_usage().dirs, 0);
}

#[test]
fn names_missing_in_a_directory_that_was_read_cost_no_reads() {
    let setup = setup();
    let dir = setup.dir(ROOT, "d");
    for index in 0..100 {
        setup.file(dir.ino, &format!("f{index}"));
    }
    let setup = without_memory_of(setup);
    let dir = setup.lookup(ROOT, "d").unwrap();
    // Twice: a walk that ends early leaves what the next one begins with.
    let mut next = 0;
    for _ in 0..2 {
        next = walk_some(&setup, dir.ino, 0, 50);
        assert_eq!(setup.fs.names_usage().dirs, 0, "half of it");
    }
    while next > 0 {
        next = walk_some(&setup, dir.ino, next, 9);
    }
    assert_eq!(setup.fs.names_usage().dirs, 1);
    assert_eq!(reads_of_new_names(&setup, dir.ino), (1, 0));
}

/// Reads so many entries of a directory. Returns the next position; 0 at the end.
fn walk_some(setup: &Setup, dir: Ino, offset: u64, count: usize) -> u64 {
    let (mut room, mut last, mut is_full) = (count, 0, false);
    let walked = setup.fs.read_dir_plus(dir, offset, &mut |entry| {
        is_full = room == 0;
        if is_full {
            return Taken::Full;
        }
        room -= 1;
        last = entry.offset;
        Taken::More
    });
    walked.expect("walks");
    if is_full { last } else { 0 }
}

fn without_memory_of(setup: Setup) -> Setup {
    let engine = std::sync::Arc::new(setup.engine.reopened());
    setup_on(engine, |options| options.confirm_names = false)
}

#[test]
fn directories_on_the_way_are_read_once() {
    let setup = setup();
    let first = setup.dir(ROOT, "d").ino;
    setup.fs.forget(first, 1);
    let step = |name: &str| {
        let found = setup.fs.step(at(ROOT, name)).map(|attr| attr.ino);
        if let Ok(ino) = found {
            setup.fs.forget(ino, 1);
        }
        found.ok()
    };
    let gets = |name: &str, expected| {
        let [_, _, gets, _] = cost(&setup, || assert_eq!(step(name), expected));
        gets
    };
    assert_eq!(gets("d", Some(first)), 1);
    assert_eq!(gets("d", Some(first)), 0);
    let file = setup.file(first, "f");
    setup.fs.forget(file.ino, 1);
    assert_eq!(gets("d", Some(first)), 0, "it was changed");
    let mode = RenameMode::Replace;
    let moved = setup.fs.rename(&SUPER, at(ROOT, "d"), at(ROOT, "e"), mode);
    moved.expect("moves");
    assert_eq!(step("d"), None);
    assert_eq!(gets("e", Some(first)), 1);
    let second = setup.dir(ROOT, "d").ino;
    setup.fs.forget(second, 1);
    assert_eq!(step("d"), Some(second));
    let mode = RenameMode::Exchange;
    let swapped = setup.fs.rename(&SUPER, at(ROOT, "d"), at(ROOT, "e"), mode);
    swapped.expect("swaps");
    assert_eq!((step("d"), step("e")), (Some(first), Some(second)));
    setup.fs.remove_dir(&SUPER, at(ROOT, "e")).expect("removes");
    assert_eq!((step("d"), step("e")), (Some(first), None));
    let removed = setup.fs.remove_tree(&SUPER, at(ROOT, "d"), None);
    removed.expect("removes");
    assert_eq!(setup.fs.known_inodes(), 1, "what was removed is not kept");
}

#[test]
fn without_memory_for_names_each_look_is_a_read() {
    let setup = setup_with(|options| options.names_bytes = 0);
    let dir = setup.dir(ROOT, "d");
    assert_eq!(reads_of_new_names(&setup, dir.ino), (3 + 1 + 1 + 2, 0));
    assert_eq!(setup.fs.names_usage(), stitch_fs::NamesUsage::default());
}

#[test]
fn attributes_are_never_read_twice() {
    let setup = setup();
    let file = setup.file(ROOT, "f");
    let [messages, _, gets, scans] = cost(&setup, || {
        setup.attr(file.ino);
        setup.lookup(ROOT, ".").unwrap();
    });
    assert_eq!((messages, gets, scans), (0, 0, 0));
}

#[test]
fn overwriting_reads_nothing() {
    let setup = setup();
    large_file(&setup, "f", 4 << 20);
    let setup = setup.reopened();
    let file = setup.lookup(ROOT, "f").unwrap();
    let [messages, commits, gets, scans] = cost(&setup, || {
        setup.write(file.ino, 1_234_567, &[2; 100]);
    });
    // A patch and the row's times.
    assert_eq!((messages, commits, gets, scans), (2, 1, 0, 0));
    let [messages, commits, gets, scans] = cost(&setup, || {
        setup.write(file.ino, 1 << 20, &vec![3; 1 << 20]);
    });
    assert_eq!((messages, commits, gets, scans), (257, 1, 0, 0));
}

#[test]
fn unlinking_and_cutting_do_not_depend_on_the_size() {
    let setup = setup();
    let mut costs = Vec::new();
    for mebibytes in [1, 16] {
        let name = format!("f{mebibytes}");
        let ino = large_file(&setup, &name, mebibytes << 20);
        let set = SetAttr {
            size: Some(0),
            ..SetAttr::default()
        };
        let cut = cost(&setup, || {
            setup.fs.set_attr(&SUPER, ino, &set).unwrap();
        });
        let ino = large_file(&setup, &format!("g{mebibytes}"), mebibytes << 20);
        let unlink = cost(&setup, || {
            setup
                .fs
                .unlink(&SUPER, at(ROOT, &format!("g{mebibytes}")))
                .unwrap();
            setup.fs.forget(ino, 1);
            setup.fs.reclaim().unwrap();
        });
        assert_eq!(setup.rows("data"), 0);
        costs.push((cut, unlink));
    }
    assert_eq!(costs[0], costs[1]);
    let (cut, unlink) = costs[1];
    assert!(cut[0] <= 2 && unlink[0] <= 10, "{costs:?}");
}

#[test]
fn unlinking_a_small_file_is_a_delete_and_two_upserts() {
    let setup = setup();
    let file = setup.file(ROOT, "f");
    setup.write(file.ino, 0, &[1; 200]);
    let [messages, commits, gets, _] = cost(&setup, || {
        setup.fs.unlink(&SUPER, at(ROOT, "f")).unwrap();
        setup.fs.forget(file.ino, 1);
        setup.fs.reclaim().unwrap();
    });
    // The name's row is read to know which inode to lock.
    assert_eq!((messages, commits, gets), (3, 1, 1));
}

#[test]
fn what_is_known_is_not_read_to_be_moved_or_removed() {
    let setup = setup();
    setup.file(ROOT, "f");
    setup.dir(ROOT, "d");
    let mode = RenameMode::Replace;
    let [_, commits, gets, scans] = cost(&setup, || {
        setup
            .fs
            .rename(&SUPER, at(ROOT, "f"), at(ROOT, "g"), mode)
            .unwrap();
    });
    // Whether there is one with the new name.
    assert_eq!((commits, gets, scans), (1, 1, 0));
    setup.file(ROOT, "h");
    let [_, commits, gets, scans] = cost(&setup, || {
        setup
            .fs
            .rename(&SUPER, at(ROOT, "g"), at(ROOT, "h"), mode)
            .unwrap();
    });
    // What is replaced.
    assert_eq!((commits, gets, scans), (1, 1, 0));
    let [_, commits, gets, scans] = cost(&setup, || {
        setup.fs.unlink(&SUPER, at(ROOT, "h")).unwrap();
        setup.fs.remove_dir(&SUPER, at(ROOT, "d")).unwrap();
    });
    // It was made here, and nothing in it.
    assert_eq!((commits, gets, scans), (2, 0, 0));
    let known = setup.dir(ROOT, "e").ino;
    setup.fs.forget(known, 1);
    let [_, commits, gets, scans] = cost(&setup, || {
        setup.fs.remove_dir(&SUPER, at(ROOT, "e")).unwrap();
    });
    assert_eq!((commits, gets, scans), (1, 1, 0), "its inode is unknown");
}

#[test]
fn names_are_read_where_they_say_more_than_is_known() {
    let setup = setup();
    let (first, second) = (setup.file(ROOT, "f").ino, setup.file(ROOT, "g").ino);
    setup.write(first, 0, &[1; 5]);
    setup.fs.link(&SUPER, second, at(ROOT, "h")).expect("links");
    let [_, _, gets, _] = cost(&setup, || {
        setup.fs.unlink(&SUPER, at(ROOT, "f")).expect("removes");
        setup.fs.unlink(&SUPER, at(ROOT, "h")).expect("removes");
    });
    assert_eq!(gets, 2, "what is in it, and that it is a link");
    assert_eq!(setup.read(first, 0, 9), [1; 5]);
    setup.dir(ROOT, "e");
    let setup = without_memory_of(setup);
    let [_, commits, gets, scans] = cost(&setup, || {
        setup.fs.remove_dir(&SUPER, at(ROOT, "e")).unwrap();
    });
    // The scan says that it is empty.
    assert_eq!((commits, gets, scans), (1, 1, 1));
    let [_, _, gets, _] = cost(&setup, || {
        setup.lookup(ROOT, "g").expect("is there");
        setup.fs.unlink(&SUPER, at(ROOT, "g")).expect("removes");
    });
    assert_eq!(gets, 3, "the name and its row, and the name again");
}

#[test]
fn a_directory_is_read_without_folding_long_chains() {
    let setup = setup();
    let dir = setup.dir(ROOT, "d");
    setup.fs.forget(dir.ino, 1);
    // Two whole rows, that of the file and that of its directory.
    let are_both_whole = |setup: &Setup, dir: Ino, index: u32| {
        setup.tick();
        let before = setup.engine.counters().get(counters::PUT_BYTES);
        setup.file(dir, &format!("f{index}"));
        let bytes = setup.engine.counters().get(counters::PUT_BYTES) - before;
        bytes >= 2 * INODE_HEAD_BYTES as u64
    };
    // As the library does it: looked up for each name in it, and forgotten again.
    for index in 0..20 {
        let dir = setup.lookup(ROOT, "d").unwrap();
        assert!(are_both_whole(&setup, dir.ino, index), "no chain grows");
        setup.fs.forget(dir.ino, 1);
    }
    // As the kernel does it: looked up once.
    let dir = setup.lookup(ROOT, "d").unwrap();
    let whole: Vec<u32> = (20..40)
        .filter(|&index| are_both_whole(&setup, dir.ino, index))
        .collect();
    assert_eq!(whole, [20, 29, 38]);
    assert_eq!(
        setup.attr(dir.ino),
        setup.reopened().lookup(ROOT, "d").unwrap()
    );
}

#[test]
fn renaming_a_directory_moves_one_row() {
    let setup = setup();
    let dir = setup.dir(ROOT, "d");
    for index in 0..100 {
        setup.file(dir.ino, &format!("f{index}"));
    }
    let [messages, commits, _, scans] = cost(&setup, || {
        let mode = RenameMode::Replace;
        setup
            .fs
            .rename(&SUPER, at(ROOT, "d"), at(ROOT, "e"), mode)
            .unwrap();
    });
    assert_eq!((messages, commits, scans), (3, 1, 0));
}

#[test]
fn attributes_that_are_not_there_cost_nothing() {
    let setup = setup();
    let file = setup.file(ROOT, "f");
    let [_, _, gets, scans] = cost(&setup, || {
        for name in [
            &b"security.capability"[..],
            b"system.posix_acl_access",
            b"user.a",
        ] {
            assert!(setup.fs.get_xattr(&SUPER, file.ino, name).is_err());
        }
        assert!(setup.fs.list_xattr(&SUPER, file.ino).unwrap().is_empty());
    });
    assert_eq!((gets, scans), (0, 0));
}

#[test]
fn taking_a_capability_reads_nothing() {
    let setup = setup();
    large_file(&setup, "f", 1 << 20);
    let setup = setup.reopened();
    let file = setup.lookup(ROOT, "f").unwrap().ino;
    let caps = b"security.capability";
    let mode = stitch_fs::XattrMode::Set;
    let set = setup.fs.set_xattr(&SUPER, file, caps, b"1", mode, false);
    set.unwrap();
    let write = || {
        setup.write(file, 5000, b"x");
    };
    // A patch, the row's times, and the attribute.
    assert_eq!(cost(&setup, write), [3, 1, 0, 0]);
    assert_eq!(cost(&setup, write), [2, 1, 0, 0], "there is none any more");
}

#[test]
fn listing_with_attributes_is_one_scan() {
    let setup = setup();
    for index in 0..1000 {
        setup.file(ROOT, &format!("f{index}"));
    }
    let setup = setup.reopened();
    let [_, _, gets, scans] = cost(&setup, || {
        let mut count = 0;
        setup
            .fs
            .read_dir_plus(ROOT, 0, &mut |_| {
                count += 1;
                stitch_fs::Taken::More
            })
            .unwrap();
        assert_eq!(count, 1002);
    });
    assert_eq!((gets, scans), (0, 1));
}

#[test]
fn a_row_is_put_whole_before_its_upserts_become_many() {
    let setup = setup();
    let file = setup.file(ROOT, "f");
    setup.write(file.ino, 0, &[1; 5000]);
    let options = WriteOptions::default();
    let before = setup.engine.counters().get(counters::PUT_BYTES);
    for _ in 0..1000 {
        setup.fs.write(file.ino, 0, b"x", options).unwrap();
    }
    let bytes = setup.engine.counters().get(counters::PUT_BYTES) - before;
    assert!(bytes < 1000 * 120, "{bytes} bytes for 1000 small writes");
    assert_eq!(
        setup.attr(file.ino),
        setup.reopened().lookup(ROOT, "f").unwrap()
    );
}
