//! Moments that a file system keeps, with a clock that the test sets.

mod paused;

use super::*;
use crate::testing::{SetClock, formatted, make_ring};
use crate::{Caller, DirName, FsOptions, NewNode, RollbackRights, WriteOptions, fsck};
use stitch_base::sync::Arc;
use stitch_kv::{Engine, ModelEngine};

const SUPER: Caller<'static> = Caller::ROOT;
const START: i64 = 1_709_164_800;
const DIR: DirName<'static> = DirName {
    parent: Ino::ROOT,
    name: b"d",
};

struct Tester {
    fs: FileSystem,
    model: Arc<ModelEngine>,
    clock: Arc<SetClock>,
    dir: Ino,
    file: Ino,
}

fn options(clock: &Arc<SetClock>, history_s: Option<u64>) -> FsOptions {
    FsOptions {
        clock: Arc::clone(clock) as _,
        history_s,
        ..FsOptions::default()
    }
}

/// A directory `d` with a file `f`, and a history of an hour.
fn tester() -> Tester {
    let clock = Arc::new(SetClock::default());
    clock.set(START);
    let options = options(&clock, Some(3600));
    let model = formatted(&options);
    let engine: Arc<dyn Engine> = Arc::clone(&model) as _;
    let fs = FileSystem::open(engine, options).expect("it opens");
    let new = NewNode::default();
    let dir = fs.make_dir(&SUPER, DIR, &new).expect("it is made").ino;
    let file = DirName::new(dir, b"f");
    let file = fs.create(&SUPER, file, &new).expect("it is made").ino;
    Tester {
        fs,
        model,
        clock,
        dir,
        file,
    }
}

impl Tester {
    fn write(&self, bytes: &[u8]) {
        let written = self.fs.write(self.file, 0, bytes, WriteOptions::default());
        written.expect("it is written");
    }

    fn read(&self, fs: &FileSystem) -> Vec<u8> {
        let at = DirName::new(self.dir, b"f");
        fs.lookup(DIR).expect("the directory is there");
        let file = fs.lookup(at).expect("the file is there");
        let mut out = Vec::new();
        fs.read(file.ino, 0, 100, &mut out).expect("it is read");
        out
    }

    /// A round, some seconds later.
    fn after(&self, seconds: i64) -> HistoryRound {
        self.clock.set(self.clock.second() + seconds);
        self.fs.history().run().expect("it runs")
    }

    fn reopened(self, history_s: Option<u64>) -> Self {
        let Self {
            fs, model, clock, ..
        } = self;
        fs.close().expect("it closes");
        drop(fs);
        let engine: Arc<dyn Engine> = Arc::clone(&model) as _;
        let fs = FileSystem::open(engine, options(&clock, history_s)).expect("it opens");
        let dir = fs.lookup(DIR).expect("it is there").ino;
        let file = fs.lookup(DirName::new(dir, b"f")).expect("it is there").ino;
        Self {
            fs,
            model,
            clock,
            dir,
            file,
        }
    }
}

#[test]
fn moments_are_kept_while_something_changes_and_read_as_it_was() {
    let tester = tester();
    tester.write(b"one");
    let first = tester.after(0).created.expect("it is the first one");
    assert_eq!(first.name(), "2024-02-29T00-00-00Z");
    assert_eq!(tester.after(60).created, None, "nothing changed");
    tester.write(b"two");
    let round = tester.after(5);
    let second = round.created.expect("it changed");
    assert_eq!(round.next_s, Some(5));
    tester.write(b"six");
    assert_eq!(tester.after(1).created, None, "it is too soon");
    for (moment, expected) in [(&first, b"one"), (&second, b"two")] {
        let view = tester.fs.history().open(moment.id).unwrap();
        assert_eq!(tester.read(view.fs()), expected);
    }
    assert!(
        tester.fs.snapshots().list().unwrap().is_empty(),
        "none is a snapshot"
    );
    let gone = tester.fs.history().open(PinId(99));
    assert!(matches!(gone, Err(FsError::NotFound)));
}

#[test]
fn moments_are_compared_in_their_order_alone() {
    let tester = tester();
    tester.write(b"one");
    let first = tester.after(0).created.expect("it is the first one").id;
    tester.write(b"two");
    let second = tester.after(5).created.expect("it changed").id;
    let history = tester.fs.history();
    let changed = |from, to| history.has_changed(tester.dir, from, Some(to));
    let swapped = changed(second, first);
    assert!(matches!(swapped, Err(FsError::Invalid(_))), "{swapped:?}");
    assert!(changed(first, second).expect("they are in order"));
    assert!(!changed(second, second).expect("it is one moment"));
}

/// The walk through both sides had no end.
#[test]
fn a_ring_of_damaged_directories_is_the_same_at_two_moments() {
    let tester = tester();
    let (fs, new) = (&tester.fs, NewNode::default());
    let below = fs.make_dir(&SUPER, DirName::new(tester.dir, b"below"), &new);
    let below = below.expect("it is made").ino;
    make_ring(fs, DIR, below);
    let moment = tester.after(0).created.expect("it is the first one").id;
    let other = fs.create(&SUPER, DirName::new(Ino::ROOT, b"other"), &new);
    other.expect("it is made");
    let has_changed = fs.history().has_changed(tester.dir, moment, None);
    assert!(!has_changed.expect("the walk ends"));
}

#[test]
fn they_go_by_age_also_where_no_more_are_kept() {
    let tester = tester();
    for _ in 0..2000 {
        tester.write(b"x");
        tester.after(5);
    }
    let moments = tester.fs.history().moments().unwrap();
    assert!((150..400).contains(&moments.len()), "{}", moments.len());
    let oldest = tester.clock.second() - moments[0].created.seconds();
    assert!((3000..=3600).contains(&oldest), "{oldest}");
    let tester = tester.reopened(None);
    let round = tester.after(1800);
    assert_eq!(round.created, None);
    assert!(!round.dropped.is_empty() && !tester.fs.history().moments().unwrap().is_empty());
    tester.after(3600);
    assert!(tester.fs.history().moments().unwrap().is_empty());
    assert_eq!(tester.after(1).next_s, None, "there is nothing to do");
}

#[test]
fn a_change_is_seen_below_the_directory_alone() {
    let tester = tester();
    let first = tester.after(0).created.unwrap().id;
    assert!(
        !tester
            .fs
            .history()
            .has_changed(tester.dir, first, None)
            .unwrap()
    );
    let other = DirName::new(Ino::ROOT, b"other");
    tester
        .fs
        .make_dir(&SUPER, other, &NewNode::default())
        .unwrap();
    assert!(
        !tester
            .fs
            .history()
            .has_changed(tester.dir, first, None)
            .unwrap()
    );
    assert!(
        tester
            .fs
            .history()
            .has_changed(Ino::ROOT, first, None)
            .unwrap()
    );
    let second = tester.after(5).created.unwrap().id;
    tester.write(b"two");
    let third = tester.after(5).created.unwrap().id;
    let changed = |from, to| {
        tester
            .fs
            .history()
            .has_changed(tester.dir, from, to)
            .unwrap()
    };
    assert!(!changed(first, Some(second)) && changed(second, Some(third)));
    assert!(changed(first, Some(third)) && changed(second, None) && !changed(third, None));
    // One that was not there, and one that is there at neither of two.
    let late = DirName::new(Ino::ROOT, b"late");
    let late = tester
        .fs
        .make_dir(&SUPER, late, &NewNode::default())
        .unwrap()
        .ino;
    let now = |from, to| tester.fs.history().has_changed(late, from, to).unwrap();
    assert!(now(third, None) && !now(first, Some(third)));
}

/// Both writes have the same times.
#[test]
fn a_change_right_after_a_moment_is_seen() {
    let tester = tester();
    tester.write(&[1; 9_000]);
    let (fs, dir) = (&tester.fs, tester.dir);
    let first = tester.after(0).created.unwrap().id;
    tester.write(&[2; 9_000]);
    assert!(fs.history().has_changed(dir, first, None).unwrap());
    let second = tester.after(5).created.unwrap().id;
    assert!(fs.history().has_changed(dir, first, Some(second)).unwrap());
    let other = DirName::new(Ino::ROOT, b"other");
    fs.make_dir(&SUPER, other, &NewNode::default()).unwrap();
    assert!(!fs.history().has_changed(dir, second, None).unwrap());
}

/// Both writes have the same times.
#[test]
fn a_change_in_a_clone_right_after_a_moment_is_seen() {
    let tester = tester();
    tester.write(&[1; 9_000]);
    let source = crate::CloneSource {
        fs: &tester.fs,
        dir: tester.dir,
        snapshot: None,
    };
    let clone = DirName::new(Ino::ROOT, b"clone");
    let info = tester.fs.make_clone(&SUPER, &source, clone).unwrap();
    let view = tester.fs.open_clone(info.number).unwrap();
    let file = view
        .fs()
        .lookup(DirName::new(tester.dir, b"f"))
        .unwrap()
        .ino;
    let write = |bytes: &[u8]| view.fs().write(file, 0, bytes, WriteOptions::default());
    write(&[3; 9_000]).unwrap();
    let first = tester.after(0).created.unwrap().id;
    write(&[4; 9_000]).unwrap();
    let changed = |fs: &FileSystem, dir| fs.history().has_changed(dir, first, None).unwrap();
    assert!(changed(&tester.fs, Ino::ROOT), "through the root");
    assert!(changed(view.fs(), tester.dir), "in the clone");
    assert!(!changed(&tester.fs, tester.dir), "not the source");
}

#[test]
fn a_directory_goes_back_to_a_moment() {
    let tester = tester();
    tester.write(b"one");
    let first = tester.after(0).created.unwrap().id;
    // A row with the same times has the same contents.
    tester.clock.set(START + 1);
    tester.write(b"two");
    let later = DirName::new(tester.dir, b"later");
    tester
        .fs
        .create(&SUPER, later, &NewNode::default())
        .unwrap();
    let (fs, dir) = (&tester.fs, tester.dir);
    fs.roll_back_to_moment(first, dir, RollbackRights::default())
        .unwrap();
    assert_eq!(tester.read(fs), b"one");
    assert!(matches!(fs.lookup(later), Err(FsError::NotFound)));
    assert!(!fs.history().has_changed(dir, first, None).unwrap());
    let new = DirName::new(Ino::ROOT, b"renamed");
    fs.rename(&SUPER, DIR, new, crate::RenameMode::Replace)
        .unwrap();
    let elsewhere = fs.roll_back_to_moment(first, dir, RollbackRights::default());
    assert!(matches!(elsewhere, Err(FsError::Stale(_))), "{elsewhere:?}");
}

#[test]
fn a_directory_in_a_clone_goes_back_to_a_moment() {
    let tester = tester();
    let (fs, dir) = (&tester.fs, tester.dir);
    tester.write(b"one");
    let early = tester.after(0).created.expect("it is due").id;
    let source = crate::CloneSource {
        fs,
        dir,
        snapshot: None,
    };
    let at = DirName::new(Ino::ROOT, b"clone");
    let made = fs.make_clone(&SUPER, &source, at).expect("it is made");
    let clone = fs.open_clone(made.number).expect("it opens");
    let first = tester.after(5).created.expect("it is due").id;
    let has_changed = |from| {
        clone
            .fs()
            .history()
            .has_changed(dir, from, None)
            .expect("it is known")
    };
    assert!(has_changed(early) && !has_changed(first));
    let later = DirName::new(dir, b"later");
    let new = clone.fs().create(&SUPER, later, &NewNode::default());
    new.expect("it is made");
    assert!(has_changed(first));
    assert!(
        !fs.history()
            .has_changed(dir, first, None)
            .expect("it is known")
    );
    // The name that the clone lies at makes no difference.
    let renamed = DirName::new(Ino::ROOT, b"renamed");
    let moved = fs.rename(&SUPER, at, renamed, crate::RenameMode::Replace);
    moved.expect("it is there");
    let back = fs.roll_back_in_to_moment(&clone, first, dir, RollbackRights::default());
    back.expect("it is rolled back");
    assert!(!has_changed(first));
    let gone = clone.fs().lookup(later);
    assert!(matches!(gone, Err(FsError::NotFound)), "{gone:?}");
    let before = fs.roll_back_in_to_moment(&clone, early, dir, RollbackRights::default());
    assert!(matches!(before, Err(FsError::NotFound)), "{before:?}");
    let direct = clone
        .fs()
        .roll_back_to_moment(first, dir, RollbackRights::default());
    assert!(matches!(direct, Err(FsError::Unsupported)), "{direct:?}");
}

/// It is compared with the one that was destroyed, also what was written in the tick of the moment.
#[test]
fn a_destroyed_clone_comes_back_from_a_moment() {
    let tester = tester();
    let (fs, dir) = (&tester.fs, tester.dir);
    let outer = DirName::new(Ino::ROOT, b"outer");
    let outer = fs.make_dir(&SUPER, outer, &NewNode::default());
    let outer = outer.expect("it is made").ino;
    let source = crate::CloneSource {
        fs,
        dir,
        snapshot: None,
    };
    let at = DirName::new(outer, b"clone");
    let made = fs.make_clone(&SUPER, &source, at).expect("it is made");
    let file = tester.file;
    let write_in = |number: u64, bytes: &[u8]| {
        let live = fs.open_clone(number).expect("it opens");
        let found = live.fs().lookup(DirName::new(dir, b"f"));
        assert_eq!(found.expect("it is there").ino, file);
        let written = live.fs().write(file, 0, bytes, WriteOptions::default());
        written.expect("it is written");
    };
    write_in(made.number, b"one");
    let first = tester.after(0).created.expect("it is due").id;
    let removed = fs.remove_tree(&SUPER, at, Some(made.graft));
    removed.expect("it is removed");
    while fs.detached_dirs() > 0 {
        fs.empty_detached(100).expect("it goes");
    }
    fs.reclaim().expect("its trees are dropped");
    let second = tester.after(5).created.expect("it is due").id;
    let has_changed = |from, to| {
        let told = fs.history().has_changed(outer, from, to);
        told.expect("it is known")
    };
    assert!(has_changed(first, Some(second)) && has_changed(first, None));
    let back = fs.roll_back_to_moment(first, outer, RollbackRights::default());
    back.expect("it is rolled back");
    let again = fs.clone_at(made.graft).expect("it is there again");
    assert!(again.number > made.number);
    assert!(!has_changed(first, None) && has_changed(second, None));
    let third = tester.after(5).created.expect("it is due").id;
    assert!(!has_changed(first, Some(third)));
    // In the same tick: no time tells of it.
    tester.clock.set(START);
    write_in(again.number, b"two");
    assert!(has_changed(first, None) && has_changed(third, None));
}

#[test]
fn the_moment_of_an_interrupted_rollback_stays() {
    let tester = tester();
    tester.write(b"one");
    let first = tester.after(0).created.expect("it is due").id;
    let under_way = &tester.fs.standing.views.under_way;
    under_way.begin(7, first);
    tester.after(100_000);
    assert!(tester.fs.history().moment(first).is_ok());
    while tester.fs.history().yield_older().expect("it may") {}
    assert!(tester.fs.history().moment(first).is_ok());
    under_way.end(7);
    assert!(tester.fs.history().yield_older().expect("it may"));
    assert!(tester.fs.history().moment(first).is_err());
}

#[test]
fn a_writer_without_space_gets_that_of_the_history() {
    let tester = tester();
    for _ in 0..8 {
        tester.write(b"x");
        assert!(tester.after(5).created.is_some());
    }
    for left in [4, 2, 1, 0] {
        let mark = tester.fs.room_mark();
        assert!(tester.fs.make_room(mark).unwrap());
        assert_eq!(tester.fs.history().moments().unwrap().len(), left);
        assert_ne!(tester.fs.room_mark(), mark);
    }
    assert!(!tester.fs.make_room(tester.fs.room_mark()).unwrap());
}

#[test]
fn damaged_moments_are_found_and_dropped() {
    let tester = tester();
    tester.after(0).created.unwrap();
    let engine = Arc::clone(tester.fs.engine());
    engine.create_pin("history/7", b"damaged").unwrap();
    engine
        .create_pin("history/x", &tester.model.pins().unwrap()[0].user)
        .unwrap();
    engine.create_pin("other", b"of another program").unwrap();
    let issues = fsck::check(&engine, &mut |_| {}).unwrap();
    let is_moment = |issue: &fsck::Issue| matches!(issue, fsck::Issue::BadMoment { .. });
    assert!(
        issues.len() == 2 && issues.iter().all(is_moment),
        "{issues:?}"
    );
    assert_eq!(fsck::repair(&engine, &issues).unwrap(), 2);
    assert_eq!(fsck::check(&engine, &mut |_| {}).unwrap(), []);
    let names: Vec<String> = engine
        .pins()
        .unwrap()
        .into_iter()
        .map(|pin| pin.name)
        .collect();
    assert_eq!(names, ["history/1", "other"]);
}

#[test]
fn a_moment_of_the_largest_number_is_no_end_of_the_history() {
    let tester = tester();
    tester.after(0).created.unwrap();
    let record = MomentRecord {
        created_ns: START * 1_000_000_000,
        keep_s: 3600,
    };
    let engine = tester.fs.engine();
    let last = moment_pin(u64::MAX);
    engine.create_pin(&last, &record.encode()).unwrap();
    tester.write(b"changed");
    let made = tester.after(10).created.unwrap();
    assert_eq!(made.number, 2, "the smallest that is free");
    tester.write(b"again");
    assert_eq!(tester.after(10).created.unwrap().number, 3);
}
