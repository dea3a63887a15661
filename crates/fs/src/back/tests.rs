use super::*;
use crate::change::Changes;
use crate::fsck::check;
use crate::locator::Tree;
use crate::{Caller, FsError, FsOptions, NewNode, RenameMode};
use crate::{DirName, FileSystem};
use stitch_base::Ino;
use stitch_base::random::Rng;
use stitch_base::sync::Arc;
use stitch_db::SpaceClass;
use stitch_kv::{Batch, CommitOptions, Engine, ModelEngine};

const NEW: NewNode = NewNode {
    perm: 0o755,
    umask: 0,
};
const NAMES: [&[u8]; 6] = [b"a", b"b", b"c", b"d", b"e", b"f"];
const ROOT: &Caller<'static> = &Caller::ROOT;

struct Sample {
    engine: Arc<ModelEngine>,
    fs: FileSystem,
    dirs: Vec<Ino>,
    rng: Rng,
}

fn open(engine: &Arc<ModelEngine>) -> FileSystem {
    let engine: Arc<dyn Engine> = engine.clone();
    FileSystem::open(engine, FsOptions::default()).expect("opens")
}

impl Sample {
    /// Four directories in each other, with some files and links.
    fn new(seed: u64) -> Self {
        let engine = crate::testing::formatted(&FsOptions::default());
        let mut sample = Self {
            fs: open(&engine),
            engine,
            dirs: vec![Ino::ROOT],
            rng: Rng::new(seed),
        };
        for _ in 0..3 {
            let parent = *sample.dirs.last().expect("the root");
            let made = sample.fs.make_dir(ROOT, DirName::new(parent, b"dir"), &NEW);
            sample.dirs.push(made.expect("makes").ino);
        }
        for _ in 0..40 {
            sample.change();
        }
        sample
    }

    fn pick(&mut self, of: usize) -> usize {
        usize::try_from(self.rng.below(of as u64)).expect("small")
    }

    fn at(&mut self) -> DirName<'static> {
        let (dir, name) = (self.pick(4), self.pick(6));
        DirName::new(self.dirs[dir], NAMES[name])
    }

    /// One change of names, or none where it is refused.
    fn change(&mut self) {
        let (from, to) = (self.at(), self.at());
        let what = self.pick(7);
        let fs = &self.fs;
        match what {
            0..2 => drop(
                fs.create(ROOT, from, &NEW)
                    .map(|attr| fs.forget(attr.ino, 1)),
            ),
            2 => drop(fs.rename(ROOT, from, to, RenameMode::Replace)),
            3 => drop(fs.rename(ROOT, from, to, RenameMode::Exchange)),
            4 => drop(fs.rename(ROOT, from, to, RenameMode::Whiteout)),
            5 => drop(fs.unlink(ROOT, from)),
            _ => {
                if let Ok(found) = fs.lookup(from) {
                    drop(
                        fs.link(ROOT, found.ino, to)
                            .map(|attr| fs.forget(attr.ino, 1)),
                    );
                    fs.forget(found.ino, 1);
                }
            }
        }
    }

    fn reopen(&mut self) {
        self.engine = Arc::new(self.engine.reopened());
        self.fs = open(&self.engine);
        for &dir in &self.dirs.clone()[1..] {
            self.fs.look_up_number(dir).expect("is found");
        }
    }

    fn check(&self) {
        let engine: Arc<dyn Engine> = self.engine.clone();
        assert_eq!(check(&engine, &mut |_| {}).expect("checks"), []);
    }

    fn progress(&self) -> Place {
        *self.fs.back_rows.progress.lock()
    }

    /// One slice of the pass, of `count` rows.
    fn step(&self, count: usize) {
        let mut progress = self.fs.back_rows.progress.lock();
        BackRowPass::of(&self.fs).keep().expect("keeps");
        *progress = BackRowPass::of(&self.fs)
            .put_slice(*progress, count, &|| false)
            .expect("puts");
    }
}

#[test]
fn back_rows_are_right_at_every_step_of_the_pass() {
    let mut steps = 0;
    for seed in 0..200 {
        let mut sample = Sample::new(seed);
        while sample.progress() != Place::END {
            let count = 1 + sample.pick(3);
            sample.step(count);
            sample.check();
            for _ in 0..sample.pick(6) {
                sample.change();
            }
            sample.check();
            steps += 1;
        }
        sample.reopen();
        assert!(sample.fs.back_rows.are_complete());
        sample.check();
    }
    assert!(steps > 800, "{steps}");
}

#[test]
fn a_slice_ends_at_the_next_row_while_a_command_is_under_way() {
    let sample = Sample::new(7);
    let commands = &sample.fs.standing.views.commands;
    let command = commands.begin(&*sample.fs.options.clock);
    let mut rounds = 1;
    while BackRowPass::of(&sample.fs)
        .put_some(commands)
        .expect("puts")
    {
        rounds += 1;
    }
    drop(command);
    assert!(rounds > 10, "{rounds} for some twenty rows");
    assert!(sample.fs.back_rows.are_complete());
    sample.check();
}

#[test]
fn a_pass_that_a_crash_has_ended_goes_on_where_it_was() {
    for seed in 0..50 {
        let mut sample = Sample::new(1000 + seed);
        for _ in 0..2 {
            sample.step(1);
        }
        let reached = sample.progress();
        assert!(Place::FIRST < reached && reached < Place::END);
        let engine = Arc::new(sample.engine.reopened());
        let again = open(&engine);
        assert!(again.back_rows.are_kept() && !again.back_rows.are_complete());
        assert_eq!(*again.back_rows.progress.lock(), reached);
        // What is found is found without going on.
        sample.reopen();
        sample.change();
        let gone = Ino(Changes::of(&sample.fs).new_ino().expect("a number").0);
        assert!(matches!(
            sample.fs.look_up_number(gone),
            Err(FsError::Stale(_))
        ));
        assert!(sample.fs.back_rows.are_complete(), "this one needed all");
        sample.check();
    }
}

#[test]
fn back_rows_that_cannot_be_read_are_put_anew() {
    for damages_progress in [false, true] {
        let mut sample = Sample::new(3);
        BackRowPass::of(&sample.fs).complete().expect("puts");
        let store = &sample.fs.store;
        let dir = sample.dirs[3];
        let (mut batch, keys) = (Batch::new(), store.keys);
        let sys = store.tree(Tree::Sys);
        batch.put(sys, &keys.back(dir), b"junk");
        if damages_progress {
            batch.put(sys, &keys.back_progress(), b"junk");
        }
        let committed = sample.engine.commit(&batch, CommitOptions::default());
        committed.expect("the model commits");
        sample.engine = Arc::new(sample.engine.reopened());
        sample.fs = open(&sample.engine);
        assert_eq!(sample.fs.back_rows.are_complete(), !damages_progress);
        let found = sample.fs.look_up_number(dir).expect("is found");
        assert_eq!(found.ino, dir);
        assert!(sample.fs.back_rows.are_complete());
        sample.check();
    }
}

#[test]
fn directories_in_each_other_are_damage_and_no_endless_search() {
    let sample = Sample::new(7);
    let engine: Arc<dyn Engine> = sample.engine.clone();
    BackRowPass::of(&sample.fs).complete().expect("puts");
    let (one, two) = (sample.dirs[1], sample.dirs[2]);
    let store = &sample.fs.store;
    let (mut batch, keys) = (store.batch(), store.keys);
    let row = keys.dentry(Ino::ROOT, b"dir");
    let head = store.get(&row).expect("reads").expect("is there");
    let ring = keys.dentry(two, b"ring");
    batch.delete(&row);
    batch.put(&ring, &head);
    let place = Place::of_key(&ring).expect("a name").encode();
    batch.put(&keys.back(one), &place);
    store.commit(&batch, SpaceClass::Normal).expect("commits");
    let fs = FileSystem::open(engine, FsOptions::default()).expect("opens");
    let found = fs.look_up_number(one);
    assert!(matches!(found, Err(FsError::Corrupt(_))), "{found:?}");
    assert_eq!(fs.known_inodes(), 1);
}
