//! Inodes found by their numbers, as file handles are.

use crate::common::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use stitch_base::Ino;
use stitch_base::random::Rng;
use stitch_fs::{FsError, FsResult, RenameMode};
use stitch_kv::Engine as _;

/// A number that had an inode, which is gone.
fn gone(setup: &Setup) -> Ino {
    let ino = setup.file(ROOT, "gone").ino;
    setup.fs.unlink(&SUPER, at(ROOT, "gone")).expect("removes");
    setup.fs.forget(ino, 1);
    setup.fs.reclaim().expect("reclaims");
    ino
}

fn by_number(setup: &Setup, ino: Ino) -> FsResult<Ino> {
    let attr = setup.fs.look_up_number(ino)?;
    assert_eq!(attr.ino, ino);
    Ok(attr.ino)
}

fn is_stale(found: FsResult<Ino>) -> bool {
    matches!(found, Err(FsError::Stale(_)))
}

/// Opens a number and lets it go again.
fn is_found(setup: &Setup, ino: Ino) -> bool {
    let found = by_number(setup, ino);
    let is_found = found.is_ok();
    assert!(is_found || is_stale(found));
    if is_found {
        setup.fs.forget(ino, 1);
    }
    is_found
}

/// Rows of the sys tree that have to do with back rows.
fn back_rows(setup: &Setup) -> usize {
    let rows = &setup.engine.dump()["fs/sys"];
    rows.keys().filter(|key| key[0] == b'b').count()
}

#[test]
fn every_kind_of_inode_is_found_after_it_was_forgotten() {
    let setup = setup();
    let dir = setup.dir(ROOT, "d").ino;
    let inner = setup.dir(dir, "inner").ino;
    let file = setup.file(inner, "f").ino;
    setup.write(file, 0, b"contents");
    let large = setup.file(inner, "large").ino;
    setup.write(large, 0, &[3; 20_000]);
    let link = setup
        .fs
        .make_symlink(&SUPER, at(inner, "s"), b"target")
        .expect("makes")
        .ino;
    let named_twice = setup.file(inner, "one").ino;
    setup
        .fs
        .link(&SUPER, named_twice, at(dir, "two"))
        .expect("links");
    let setup = setup.reopened();
    assert_eq!(setup.fs.known_inodes(), 1);
    for ino in [file, large, link, named_twice, inner, dir, ROOT] {
        assert_eq!(by_number(&setup, ino).expect("is found"), ino);
    }
    assert_eq!(setup.contents(file), b"contents");
    assert_eq!(setup.contents(large), [3; 20_000]);
    assert_eq!(setup.fs.read_link(link).expect("reads")[..], *b"target");
    let up = setup.fs.lookup(at(inner, "..")).expect("is there");
    assert_eq!(up.ino, dir);
    setup.fs.forget(dir, 2);
    for ino in [file, large, link, named_twice, inner] {
        setup.fs.forget(ino, 1);
    }
    assert_eq!(setup.fs.known_inodes(), 1, "no lookup is left");
    setup.check();
}

#[test]
fn the_way_up_from_a_directory_is_known() {
    let setup = setup();
    let mut at = ROOT;
    for _ in 0..200 {
        at = setup.dir(at, "d").ino;
    }
    let setup = setup.reopened();
    by_number(&setup, at).expect("is found");
    let mut up = at;
    for _ in 0..200 {
        up = setup.lookup(up, "..").expect("is known").ino;
    }
    assert_eq!(up, ROOT);
    assert_eq!(setup.fs.known_inodes(), 201);
}

#[test]
fn a_number_follows_its_inode_through_renames_and_links() {
    let setup = setup();
    let (one, two) = (setup.dir(ROOT, "1").ino, setup.dir(ROOT, "2").ino);
    let file = setup.file(one, "f").ino;
    let other = setup.file(two, "o").ino;
    let dir = setup.dir(one, "d").ino;
    let below = setup.file(dir, "below").ino;
    let all = [file, other, dir, below];
    let expect_all = |setup: &Setup| {
        for ino in all {
            assert!(is_found(setup, ino), "{ino}");
        }
        setup.check();
    };
    for ino in [file, other, below, dir] {
        setup.fs.forget(ino, 1);
    }
    expect_all(&setup);
    let rename = |from, to, mode| setup.fs.rename(&SUPER, from, to, mode).expect("renames");
    rename(at(one, "f"), at(two, "g"), RenameMode::Replace);
    expect_all(&setup);
    rename(at(one, "d"), at(two, "d"), RenameMode::NoReplace);
    expect_all(&setup);
    rename(at(two, "g"), at(two, "o"), RenameMode::Exchange);
    expect_all(&setup);
    rename(at(two, "g"), at(one, "h"), RenameMode::Whiteout);
    expect_all(&setup);
    let found = setup.lookup(one, "h").expect("is there").ino;
    setup.fs.link(&SUPER, found, at(ROOT, "l")).expect("links");
    setup.fs.forget(found, 2);
    expect_all(&setup);
    setup.fs.unlink(&SUPER, at(one, "h")).expect("removes");
    expect_all(&setup);
    setup.fs.unlink(&SUPER, at(ROOT, "l")).expect("removes");
    assert!(!is_found(&setup, found));
    rename(at(two, "d"), at(ROOT, "d"), RenameMode::Replace);
    let left = all.iter().filter(|&&ino| is_found(&setup, ino));
    assert_eq!(left.count(), 3);
    setup.check();
}

#[test]
fn numbers_without_a_name_are_stale() {
    let setup = setup();
    let gone = gone(&setup);
    let open = setup.file(ROOT, "open").ino;
    setup.fs.unlink(&SUPER, at(ROOT, "open")).expect("removes");
    let temp = setup
        .fs
        .make_temp_file(&SUPER, ROOT, &new(0o600))
        .expect("makes")
        .ino;
    // None, kept, never handed out, the largest.
    for ino in [Ino(0), Ino(2), Ino(15), Ino(1 << 40), Ino(u64::MAX)] {
        assert!(is_stale(by_number(&setup, ino)), "{ino}");
    }
    assert_eq!(back_rows(&setup), 0, "such a number starts no pass");
    for ino in [gone, open, temp] {
        assert!(is_stale(by_number(&setup, ino)), "{ino}");
    }
    setup.fs.link(&SUPER, temp, at(ROOT, "t")).expect("links");
    setup.fs.forget(temp, 2);
    assert!(is_found(&setup, temp));
    setup.check();
}

#[test]
fn what_is_in_a_removed_tree_is_stale_at_once() {
    let setup = setup();
    let top = setup.dir(ROOT, "top").ino;
    let dir = setup.dir(top, "d").ino;
    let file = setup.file(dir, "f").ino;
    let kept = setup.file(dir, "kept").ino;
    setup
        .fs
        .link(&SUPER, kept, at(ROOT, "kept"))
        .expect("links");
    let setup = setup.reopened();
    assert!(is_found(&setup, file));
    setup
        .fs
        .remove_tree(&SUPER, at(ROOT, "top"), None)
        .expect("removes");
    for ino in [top, dir, file] {
        assert!(!is_found(&setup, ino), "{ino}");
    }
    assert!(is_found(&setup, kept));
    while setup.fs.detached_dirs() > 0 {
        setup.fs.empty_detached(1).expect("empties");
        assert!(!is_found(&setup, file));
    }
    assert!(is_found(&setup, kept));
    setup.check();
    assert_eq!(back_rows(&setup), 1, "how far they go");
}

#[test]
fn a_store_without_handles_has_no_back_rows() {
    let setup = setup();
    let file = setup.file(ROOT, "f").ino;
    let dir = setup.dir(ROOT, "d").ino;
    // What is known, and what has several names, needs none.
    assert!(is_found(&setup, file));
    setup.fs.link(&SUPER, file, at(dir, "g")).expect("links");
    setup.fs.forget(file, 2);
    assert!(is_found(&setup, file));
    assert_eq!(back_rows(&setup), 0);
    let setup = setup.reopened();
    assert!(is_found(&setup, dir));
    assert_eq!(
        back_rows(&setup),
        2,
        "of the directory, and how far they go"
    );
    let seqno = setup.engine.snapshot().seqno();
    assert!(is_found(&setup, dir));
    assert_eq!(setup.engine.snapshot().seqno(), seqno, "one pass is enough");
}

#[test]
fn where_nothing_can_be_written_only_back_rows_that_are_there_help() {
    let setup = setup();
    let file = setup.file(ROOT, "f").ino;
    let twice = setup.file(ROOT, "1").ino;
    setup.fs.link(&SUPER, twice, at(ROOT, "2")).expect("links");
    let read_only = |setup: Setup| {
        let engine = std::sync::Arc::new(setup.engine.reopened());
        drop(setup);
        setup_on(engine, |options| options.read_only = true)
    };
    let setup = read_only(setup);
    assert!(is_found(&setup, twice));
    assert!(!is_found(&setup, file));
    let setup = setup.reopened();
    assert!(is_found(&setup, file));
    let setup = read_only(setup);
    assert!(is_found(&setup, file));
}

#[test]
fn names_of_many_slices_are_all_found() {
    let setup = setup();
    let mut all = Vec::new();
    for index in 0..30 {
        let dir = setup.dir(ROOT, &format!("d{index}")).ino;
        all.push(dir);
        for name in 0..index * 5 {
            all.push(setup.file(dir, &name.to_string()).ino);
        }
    }
    let setup = setup.reopened();
    for ino in all {
        assert!(is_found(&setup, ino), "{ino}");
    }
    setup.check();
}

#[test]
fn a_pass_beside_changes_of_names_misses_nothing() {
    for seed in 0..20 {
        let setup = setup();
        let dirs: Vec<Ino> = (0..8)
            .map(|d| setup.dir(ROOT, &d.to_string()).ino)
            .collect();
        for index in 0..1200 {
            let file = setup.file(dirs[index % 8], &(index / 8).to_string());
            setup.fs.forget(file.ino, 1);
        }
        let target = setup.file(ROOT, "target").ino;
        setup.fs.forget(target, 1);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for worker in 0..3 {
                let (setup, stop, dirs) = (&setup, &stop, &dirs);
                scope.spawn(move || {
                    let mut rng = Rng::new(seed * 10 + worker);
                    while !stop.load(Ordering::SeqCst) {
                        move_a_name(setup, &mut rng, dirs);
                    }
                });
            }
            for _ in 0..2 {
                assert!(is_found(&setup, target));
            }
            stop.store(true, Ordering::SeqCst);
        });
        setup.check();
    }
}

fn move_a_name(setup: &Setup, rng: &mut Rng, dirs: &[Ino]) {
    let mut pick = |of: usize| usize::try_from(rng.below(of as u64)).expect("small");
    let (one, two) = (dirs[pick(8)], dirs[pick(8)]);
    let (name, other) = (pick(150).to_string(), pick(150).to_string());
    let (from, to) = (at(one, &name), at(two, &other));
    let fs = &setup.fs;
    match pick(6) {
        0 | 1 => drop(fs.rename(&SUPER, from, to, RenameMode::Replace)),
        2 => drop(fs.rename(&SUPER, from, to, RenameMode::Exchange)),
        3 => drop(fs.unlink(&SUPER, from)),
        4 => drop(
            fs.create(&SUPER, from, &new(0o644))
                .map(|attr| fs.forget(attr.ino, 1)),
        ),
        _ => {
            if let Ok(found) = fs.lookup(from) {
                drop(
                    fs.link(&SUPER, found.ino, to)
                        .map(|attr| fs.forget(attr.ino, 1)),
                );
                is_found(setup, found.ino);
                fs.forget(found.ino, 1);
            }
        }
    }
}
