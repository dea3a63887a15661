//! Several threads on one file system.

use crate::common::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use stitch_base::Ino;
use stitch_base::random::Rng;
use stitch_fs::{Attr, RenameMode, Taken, WriteOptions};

#[test]
fn creates_in_one_directory_are_all_there() {
    let setup = setup();
    thread::scope(|scope| {
        for worker in 0..4 {
            let setup = &setup;
            scope.spawn(move || {
                for index in 0..500 {
                    let file = setup.file(ROOT, &format!("{worker}-{index}"));
                    setup.write(file.ino, 0, &[1; 10]);
                    setup.fs.forget(file.ino, 1);
                }
            });
        }
    });
    assert_eq!(setup.names(ROOT).len(), 2000);
    assert_eq!(setup.fs.known_inodes(), 1);
    setup.check();
}

#[test]
fn renames_in_all_directions_keep_the_tree_a_tree() {
    let setup = setup();
    let names = ["a", "b", "c", "d"];
    for name in names {
        let dir = setup.dir(ROOT, name);
        setup.dir(dir.ino, "x");
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 0..3 {
            let (setup, stop) = (&setup, &stop);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                for _ in 0..1500 {
                    churn(setup, &mut rng, &names);
                }
                stop.store(true, Ordering::SeqCst);
            });
        }
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                let walked = setup.fs.read_dir_plus(ROOT, 0, &mut |_| Taken::More);
                walked.expect("walks");
            }
        });
    });
    setup.check();
}

/// Looks up two places a level deep, and moves, makes, writes or removes there.
fn churn(setup: &Setup, rng: &mut Rng, names: &[&str; 4]) {
    let mut pick = |of: u64| usize::try_from(rng.below(of)).expect("small");
    let (one, two) = (names[pick(4)], names[pick(4)]);
    let (name, other) = (names[pick(4)], names[pick(4)]);
    let what = pick(6);
    let (Ok(one), Ok(two)) = (setup.lookup(ROOT, one), setup.lookup(ROOT, two)) else {
        return;
    };
    let fs = &setup.fs;
    let (from, to) = (at(one.ino, name), at(two.ino, other));
    match what {
        0 => drop(fs.rename(&SUPER, from, to, RenameMode::Replace)),
        1 => drop(fs.rename(&SUPER, from, to, RenameMode::Exchange)),
        2 => {
            if let Ok(made) = fs.make_dir(&SUPER, from, &new(0o755)) {
                fs.forget(made.ino, 1);
            }
        }
        3 => {
            if let Ok(made) = fs.create(&SUPER, from, &new(0o644)) {
                drop(fs.write(made.ino, 0, &[1; 6000], WriteOptions::default()));
                drop(
                    fs.link(&SUPER, made.ino, to)
                        .map(|attr| fs.forget(attr.ino, 1)),
                );
                fs.forget(made.ino, 1);
            }
        }
        4 => drop(fs.unlink(&SUPER, from)),
        _ => drop(fs.remove_dir(&SUPER, from)),
    }
    fs.forget(one.ino, 1);
    fs.forget(two.ino, 1);
    fs.reclaim().expect("reclaims");
}

/// Makes, removes, moves and looks for names of a few directories, each of which is read now and
/// then.
fn churn_names(setup: &Setup, rng: &mut Rng, dirs: &[Ino]) {
    let mut pick = |of: usize| usize::try_from(rng.below(of as u64)).expect("small");
    let (one, two) = (dirs[pick(dirs.len())], dirs[pick(dirs.len())]);
    let (name, other) = (pick(12).to_string(), pick(12).to_string());
    let (from, to) = (at(one, &name), at(two, &other));
    let fs = &setup.fs;
    let forget = |attr: Attr| fs.forget(attr.ino, 1);
    match pick(12) {
        0..3 => drop(fs.create(&SUPER, from, &new(0o644)).map(forget)),
        3..5 => drop(fs.unlink(&SUPER, from)),
        5 => drop(fs.rename(&SUPER, from, to, RenameMode::Replace)),
        6 => drop(fs.rename(&SUPER, from, to, RenameMode::Exchange)),
        7 => {
            if let Ok(found) = fs.lookup(from) {
                drop(fs.link(&SUPER, found.ino, to).map(forget));
                forget(found);
            }
        }
        8 => fs.read_dir(one, 0, &mut |_| Taken::More).expect("walks"),
        9 => {
            drop(fs.make_dir(&SUPER, from, &new(0o755)).map(forget));
            drop(fs.remove_dir(&SUPER, from));
        }
        _ => drop(fs.lookup(from).map(forget)),
    }
}

#[test]
fn names_known_to_be_missing_are_missing_whatever_others_do() {
    for names_bytes in [700, 1 << 20] {
        let setup = setup_with(|options| {
            options.names_bytes = names_bytes;
            // Each answer without reading is compared with a read, by a panic.
            options.confirm_names = true;
        });
        let dirs = ["a", "b", "c", "d"].map(|name| setup.dir(ROOT, name).ino);
        thread::scope(|scope| {
            for seed in 0..4 {
                let setup = &setup;
                scope.spawn(move || {
                    let mut rng = Rng::new(seed);
                    for _ in 0..10_000 {
                        churn_names(setup, &mut rng, &dirs);
                    }
                });
            }
        });
        assert!(setup.fs.names_usage().answers > 1000);
        assert!(setup.fs.names_usage().bytes <= names_bytes);
        setup.fs.reclaim().expect("reclaims");
        setup.check();
    }
}

#[test]
fn writes_to_one_file_do_not_tear() {
    let setup = setup();
    let file = setup.file(ROOT, "f");
    setup.write(file.ino, 0, &[0; 20_000]);
    thread::scope(|scope| {
        for worker in 1..4u8 {
            let setup = &setup;
            scope.spawn(move || {
                for _ in 0..200 {
                    setup.write(file.ino, 3000, &vec![worker; 10_000]);
                    let seen = setup.read(file.ino, 3000, 10_000);
                    assert!(
                        seen.iter().all(|&byte| byte == seen[0]),
                        "whole writes only"
                    );
                }
            });
        }
    });
    setup.check();
}

#[test]
fn moving_a_small_file_never_undoes_a_write() {
    let setup = setup();
    let file = setup.file(ROOT, "a");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                let (a, b) = (at(ROOT, "a"), at(ROOT, "b"));
                let moved = setup.fs.rename(&SUPER, a, b, RenameMode::NoReplace);
                moved.expect("moves there");
                let moved = setup.fs.rename(&SUPER, b, a, RenameMode::NoReplace);
                moved.expect("moves back");
            }
        });
        let lost = (0..20_000u32).find(|round| {
            setup.write(file.ino, 0, &round.to_le_bytes());
            thread::yield_now();
            setup.read(file.ino, 0, 4) != round.to_le_bytes()
        });
        stop.store(true, Ordering::SeqCst);
        assert_eq!(lost, None, "a write was undone");
    });
    setup.check();
}
