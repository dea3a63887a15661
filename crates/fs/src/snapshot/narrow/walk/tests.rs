//! What one round reads.

use super::*;
use crate::testing::{formatted, make_ring};
use crate::{Caller, DirName, FsOptions, NewNode};

const SUPER: Caller<'static> = Caller::ROOT;
const NEW: NewNode = NewNode {
    perm: 0o755,
    umask: 0,
};

struct Grown {
    options: FsOptions,
    fs: FileSystem,
    dir: Ino,
}

/// A directory with as many entries, each of which `make` makes.
fn grown(count: usize, make: impl Fn(&FileSystem, DirName<'_>) -> FsResult<Ino>) -> Grown {
    let options = FsOptions::default();
    let fs = FileSystem::open(formatted(&options), options.clone()).expect("it opens");
    let dir = fs.make_dir(&SUPER, DirName::new(Ino::ROOT, b"d"), &NEW);
    let dir = dir.expect("it is made").ino;
    for number in 0..count {
        let name = number.to_string();
        let made = make(&fs, DirName::new(dir, name.as_bytes()));
        fs.forget(made.expect("it is made"), 1);
    }
    Grown { options, fs, dir }
}

impl Grown {
    /// A walk of a new snapshot.
    fn walk(&self, name: &str) -> NumberWalk {
        self.fs.snapshots().create(self.dir, name).expect("created");
        let view = self.fs.snapshots().open(name).expect("it opens");
        NumberWalk::new(Arc::clone(view.fs()), self.dir)
    }
}

/// Numbers of files that were read.
fn read(walk: &NumberWalk) -> u64 {
    let ranges = walk.numbers.joined().into_iter();
    let ended = ranges.filter_map(|(first, end)| Some(end?.0 - first.0));
    ended.sum()
}

#[test]
fn a_round_ends_at_the_next_name_while_a_command_is_under_way() {
    const FILES: usize = NAMES_PER_ROUND + 500;
    let grown = grown(FILES, |fs, at| Ok(fs.create(&SUPER, at, &NEW)?.ino));
    let commands = ViewCommands::default();
    let mut walk = grown.walk("one");
    let command = commands.begin(&*grown.options.clock);
    for rounds in 1..10 {
        assert!(!walk.round(&commands).expect("it reads"));
        assert!(read(&walk) <= rounds, "{} files", read(&walk));
    }
    assert!(read(&walk) > 0, "each comes further");
    drop(command);
    assert!(!walk.round(&commands).expect("it reads"));
    assert!(read(&walk) > NAMES_PER_ROUND as u64 / 2, "a whole round");
    while !walk.round(&commands).expect("it reads") {}
    let mut whole = grown.walk("two");
    while !whole.round(&commands).expect("it reads") {}
    assert_eq!(walk.ranges(), whole.ranges(), "no name is left out");
    assert_eq!(read(&walk), FILES as u64);
}

/// Regression: a directory without names counted nothing, so one round read any number of them.
#[test]
fn directories_without_names_count_in_a_round() {
    const DIRS: usize = NAMES_PER_ROUND + 100;
    let grown = grown(DIRS, |fs, at| Ok(fs.make_dir(&SUPER, at, &NEW)?.ino));
    let commands = ViewCommands::default();
    let mut walk = grown.walk("one");
    let mut rounds = 1;
    while !walk.round(&commands).expect("it reads") {
        rounds += 1;
    }
    // The names of the directories, and what is in them.
    assert_eq!(rounds, (2 * DIRS).div_ceil(NAMES_PER_ROUND));
}

/// Rows that no program of ours has written: the walk of the background had no end.
#[test]
fn directories_in_each_other_end_the_walk() {
    let grown = grown(3, |fs, at| Ok(fs.make_dir(&SUPER, at, &NEW)?.ino));
    let at = DirName::new(grown.dir, b"0");
    let dir = grown.fs.lookup(at).expect("it is there").ino;
    make_ring(&grown.fs, at, dir);
    let commands = ViewCommands::default();
    let mut walk = grown.walk("one");
    let ended = loop {
        match walk.round(&commands) {
            Ok(false) => {}
            other => break other,
        }
    };
    assert!(matches!(ended, Err(FsError::Corrupt(_))), "{ended:?}");
}
