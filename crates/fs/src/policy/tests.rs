//! Policies, with a clock that the test sets, beside a plain twin.

mod in_clone;
mod same_tick;

use super::*;
use crate::testing::{SetClock, formatted};
use crate::{Caller, DirName, FsOptions, NewNode, RenameMode, SetAttr, SetTime};
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::calendar::DAY_S;
use stitch_base::random::Rng;
use stitch_base::sync::Arc;

const SUPER: Caller<'static> = Caller::ROOT;
const MINUTE: u64 = 60;
/// 2024-02-29 00:00:00, on a Thursday.
const START: i64 = 1_709_164_800;
const NAME: DirName<'static> = DirName {
    parent: Ino::ROOT,
    name: b"d",
};

struct Tester {
    fs: FileSystem,
    clock: Arc<SetClock>,
    dir: Ino,
}

fn tester() -> Tester {
    let clock = Arc::new(SetClock::default());
    clock.set(START);
    let options = options(&clock);
    let fs = FileSystem::open(formatted(&options), options).expect("it opens");
    let made = fs.make_dir(&SUPER, NAME, &NewNode::default());
    let dir = made.expect("it is made").ino;
    Tester { fs, clock, dir }
}

fn options(clock: &Arc<SetClock>) -> FsOptions {
    FsOptions {
        clock: Arc::clone(clock) as _,
        ..FsOptions::default()
    }
}

fn rule(every_s: u64, keep: Keep) -> PolicyRule {
    PolicyRule {
        every_s,
        keep,
        prefix: "auto".to_owned(),
    }
}

impl Tester {
    fn set(&self, every_s: u64, keep: Keep) {
        let set = self.fs.policies().set(self.dir, &rule(every_s, keep));
        set.expect("it is set");
    }

    /// The same store, opened again.
    fn reopened(self) -> Self {
        let Self { fs, clock, .. } = self;
        fs.close().expect("it closes");
        let engine = Arc::clone(fs.engine());
        drop(fs);
        let fs = FileSystem::open(engine, options(&clock)).expect("it opens");
        let dir = fs.lookup(NAME).expect("it is there").ino;
        Self { fs, clock, dir }
    }

    fn after(&self, minutes: i64) -> PolicyRound {
        self.clock.set(self.clock.second() + minutes * 60);
        self.touch();
        self.run()
    }

    fn run(&self) -> PolicyRound {
        self.fs.policies().run().expect("it runs")
    }

    fn names(&self) -> BTreeSet<String> {
        let all = self.fs.snapshots().list().expect("they are listed");
        all.into_iter().map(|info| info.name).collect()
    }

    fn touch(&self) {
        let set = SetAttr {
            mtime: Some(SetTime::Now),
            ..SetAttr::default()
        };
        let touched = self.fs.set_attr(&SUPER, self.dir, &set);
        touched.expect("it is known");
    }
}

#[test]
fn snapshots_are_created_in_time_and_deleted_by_age() {
    let tester = tester();
    let keep = Keep {
        hourly: 2,
        ..Keep::default()
    };
    tester.set(15 * MINUTE, keep);
    let first = tester.after(0);
    assert_eq!(first.created.len(), 1);
    assert_eq!(first.created[0].name, "auto-2024-02-29T00-00-00Z");
    assert!(first.created[0].is_automatic);
    assert_eq!(first.next_s, Some(15 * MINUTE));
    assert_eq!(tester.after(14).created, [], "it is not due");
    let created = (0..4 * 10).map(|_| tester.after(15).created.len());
    assert_eq!(created.sum::<usize>(), 4 * 10);
    assert_eq!(tester.names().len(), 2, "of two hours the newest");
    // A missed time is not made up for.
    assert_eq!(tester.after(24 * 60).created.len(), 1);
    let info = tester.fs.policies().list().unwrap().remove(0);
    assert_eq!(
        (info.dir, &info.path[..], info.owner),
        (tester.dir, &b"d"[..], 0)
    );
    assert!(info.next.seconds() > tester.clock.second() && info.last_error.is_none());
    tester.fs.policies().delete(tester.dir).unwrap();
    assert_eq!(tester.after(60), PolicyRound::default());
    assert_eq!(tester.names().len(), 2, "its snapshots stay");
    let gone = tester.fs.policies().delete(tester.dir);
    assert!(matches!(gone, Err(FsError::NotFound)));
}

#[test]
fn held_ones_and_those_of_users_are_not_deleted() {
    let tester = tester();
    tester
        .fs
        .snapshots()
        .create(tester.dir, "auto-by-hand")
        .unwrap();
    tester.set(MINUTE, Keep::default());
    let held = tester.after(1).created.remove(0).name;
    tester.fs.snapshots().hold(&held, "audit").unwrap();
    for _ in 0..5 {
        assert_eq!(tester.after(1).created.len(), 1);
    }
    let names = tester.names();
    assert_eq!(names.len(), 3, "by hand, held, and the newest: {names:?}");
    assert!(names.contains(&held) && names.contains("auto-by-hand"));
    tester.fs.snapshots().release(&held, "audit").unwrap();
    let deleted = tester.after(1).deleted;
    assert!(deleted.iter().any(|info| info.name == held));
}

#[test]
fn nothing_is_created_while_nothing_below_changes() {
    let tester = tester();
    let keep = Keep {
        last: 10,
        ..Keep::default()
    };
    tester.set(MINUTE, keep);
    assert_eq!(tester.after(1).created.len(), 1);
    let idle = || {
        tester.clock.set(tester.clock.second() + 60);
        tester.run().created.len()
    };
    assert_eq!(idle(), 0);
    let elsewhere = DirName::new(Ino::ROOT, b"other");
    tester
        .fs
        .make_dir(&SUPER, elsewhere, &NewNode::default())
        .unwrap();
    assert_eq!(idle(), 0, "another directory changed");
    // A change deep below, and one of a file with two names.
    let sub = DirName::new(tester.dir, b"sub");
    let sub = tester
        .fs
        .make_dir(&SUPER, sub, &NewNode::default())
        .unwrap()
        .ino;
    assert_eq!((idle(), idle()), (1, 0));
    let file = DirName::new(sub, b"f");
    let file = tester
        .fs
        .create(&SUPER, file, &NewNode::default())
        .unwrap()
        .ino;
    let other_name = DirName::new(Ino::ROOT, b"name");
    tester.fs.link(&SUPER, file, other_name).unwrap();
    assert_eq!((idle(), idle()), (1, 0));
    let written = tester
        .fs
        .write(file, 0, b"x", crate::WriteOptions::default());
    written.unwrap();
    assert_eq!((idle(), idle()), (1, 0));
}

#[test]
fn a_policy_outlives_the_process_and_a_rename_and_not_its_directory() {
    let tester = tester();
    let keep = Keep {
        last: 10,
        ..Keep::default()
    };
    tester.set(MINUTE, keep);
    let tester = tester.reopened();
    assert_eq!(tester.after(1).created[0].root, tester.dir);
    let new = DirName::new(Ino::ROOT, b"e");
    tester
        .fs
        .rename(&SUPER, NAME, new, RenameMode::Replace)
        .unwrap();
    assert_eq!(tester.after(1).created[0].path, b"e");
    assert_eq!(tester.fs.policies().list().unwrap()[0].path, b"e");
    tester.fs.remove_dir(&SUPER, new).unwrap();
    tester.clock.set(tester.clock.second() + 60);
    assert_eq!(tester.run().created, [], "there is nothing to show");
    assert_eq!(
        tester.fs.policies().list().unwrap(),
        [],
        "it went with its directory"
    );
    assert_eq!(tester.names().len(), 2);
}

#[test]
fn what_is_no_policy_is_refused_and_a_failure_is_told_and_passes() {
    let tester = tester();
    let set = |every_s, prefix: &str| {
        let mut rule = rule(every_s, Keep::default());
        rule.prefix = prefix.to_owned();
        tester.fs.policies().set(tester.dir, &rule)
    };
    for (every_s, prefix) in [(0, "a"), (u64::MAX, "a"), (1, ""), (1, "a/b")] {
        assert!(matches!(set(every_s, prefix), Err(FsError::Invalid(_))));
    }
    set(MINUTE, "nightly").unwrap();
    // The two names that it would choose are taken.
    let taken = "nightly-2024-02-29T00-01-00Z";
    tester.fs.snapshots().create(Ino::ROOT, taken).unwrap();
    let second = format!("{taken}-{}", tester.dir);
    tester.fs.snapshots().create(Ino::ROOT, &second).unwrap();
    let failed = tester.after(1);
    assert_eq!((failed.created, failed.next_s), (vec![], Some(60)));
    let error = tester.fs.policies().list().unwrap().remove(0).last_error;
    assert!(error.is_some(), "it is told");
    tester.fs.snapshots().delete(&second).unwrap();
    assert_eq!(tester.run().created[0].name, second, "tried again");
    assert_eq!(tester.fs.policies().list().unwrap()[0].last_error, None);
}

/// The rules of a policy, written once more without cleverness.
struct Twin {
    every_s: i64,
    keep: Keep,
    /// Seconds of the snapshots, as they were created.
    seconds: Vec<i64>,
    done: Option<i64>,
    is_changed: bool,
}

impl Twin {
    fn run(&mut self, now_s: i64) {
        let last = self
            .seconds
            .last()
            .map(|last| last.div_euclid(self.every_s));
        let interval = now_s.div_euclid(self.every_s);
        let is_due = match self.done.or(last) {
            None => true,
            Some(done) => interval > done || interval + 1 < done,
        };
        if is_due {
            if self.is_changed || self.seconds.is_empty() {
                self.seconds.push(now_s);
                self.is_changed = false;
            }
            self.done = Some(interval);
        }
        let kept = self.kept();
        let last = self.seconds.last().copied();
        self.seconds
            .retain(|second| kept.contains(second) || Some(*second) == last);
    }

    fn kept(&self) -> BTreeSet<i64> {
        let monday = |second: i64| {
            let mut day = second.div_euclid(DAY_S);
            while (day - START / DAY_S - 4).rem_euclid(7) != 0 {
                day -= 1;
            }
            day.to_string()
        };
        let cut = |second: i64, len: usize| UtcTime::of(second).to_string()[..len].to_owned();
        let keep = self.keep;
        let rules: [(u16, &dyn Fn(i64) -> String); 5] = [
            (keep.hourly, &|second| cut(second, 13)),
            (keep.daily, &|second| cut(second, 10)),
            (keep.weekly, &monday),
            (keep.monthly, &|second| cut(second, 7)),
            (keep.yearly, &|second| cut(second, 4)),
        ];
        let mut sorted = self.seconds.clone();
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        let mut kept: BTreeSet<i64> = sorted
            .iter()
            .copied()
            .take(usize::from(keep.last))
            .collect();
        kept.extend(sorted.first());
        for (count, label) in rules {
            let mut periods: BTreeMap<i64, String> = BTreeMap::new();
            for second in &sorted {
                let name = label(*second);
                if !periods.values().any(|known| *known == name) {
                    periods.insert(*second, name);
                }
            }
            kept.extend(periods.keys().rev().take(usize::from(count)));
        }
        kept
    }
}

#[test]
fn a_policy_does_what_its_twin_does_whatever_the_clock_does() {
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let mut tester = tester();
        let keep = Keep {
            last: u16::try_from(rng.below(4)).unwrap(),
            hourly: u16::try_from(rng.below(5)).unwrap(),
            daily: u16::try_from(rng.below(5)).unwrap(),
            weekly: u16::try_from(rng.below(3)).unwrap(),
            monthly: u16::try_from(rng.below(3)).unwrap(),
            yearly: u16::try_from(rng.below(3)).unwrap(),
        };
        let every_s = [61, 900, 3600, 7200][usize::try_from(rng.below(4)).unwrap()];
        tester.set(every_s, keep);
        let mut twin = Twin {
            every_s: every_s.cast_signed(),
            keep,
            seconds: Vec::new(),
            done: None,
            is_changed: false,
        };
        for step in 0..120 {
            let by = match rng.below(12) {
                0 => rng.below(40 * 86_400).cast_signed(),
                1 => -rng.below(40 * 86_400).cast_signed(),
                2 => -1,
                _ => rng.below(3 * every_s).cast_signed(),
            };
            tester.clock.set(tester.clock.second() + by);
            if rng.below(3) > 0 {
                // Times of a directory may stay where the clock was set back.
                let name = format!("{step}");
                let made = DirName::new(tester.dir, name.as_bytes());
                let made = tester.fs.make_dir(&SUPER, made, &NewNode::default());
                made.expect("it is made");
                twin.is_changed = true;
            }
            if rng.below(10) == 0 {
                tester = tester.reopened();
                twin.done = None;
            }
            tester.run();
            twin.run(tester.clock.second());
            let all = tester.fs.snapshots().list().unwrap();
            let seconds: Vec<i64> = all.iter().map(|info| info.created.seconds()).collect();
            assert_eq!(seconds, twin.seconds, "seed {seed}, step {step}");
        }
    }
}
