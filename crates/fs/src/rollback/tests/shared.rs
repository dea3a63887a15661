//! Files that share contents, before the snapshot and after it.

use super::*;
use crate::FallocateMode;
use crate::locator::Tree;
use stitch_base::random::Rng;
use stitch_format::fs_shared::SharedRow;

const CHUNK: usize = 4096;
const CHUNKS: usize = 40;
const NAMES: [&str; 4] = ["a", "b", "c", "e"];

/// A directory that is rolled back, and one outside of it.
struct Pair {
    tester: Tester,
    dir: Ino,
    other: Ino,
}

fn pattern(chunks: usize, seed: usize) -> Vec<u8> {
    let bytes = (0..chunks * CHUNK).map(|at| (at / CHUNK * 7 + at % 251 + seed).to_le_bytes()[0]);
    bytes.map(|byte| byte | 1).collect()
}

fn pair() -> Pair {
    let tester = tester();
    let (dir, other) = (tester.dir(ROOT, "d"), tester.dir(ROOT, "other"));
    Pair { tester, dir, other }
}

impl Pair {
    fn with<T>(&self, (dir, name): (Ino, &str), run: impl FnOnce(&FileSystem, Ino) -> T) -> T {
        let fs = &*self.tester.fs;
        let found = fs.lookup(DirName::new(dir, name.as_bytes()));
        let ino = found.expect("it is there").ino;
        let done = run(fs, ino);
        fs.forget(ino, 1);
        done
    }

    fn write(&self, at: (Ino, &str), offset: usize, bytes: &[u8]) {
        let done = self.with(at, |fs, ino| {
            fs.write(ino, offset as u64, bytes, WriteOptions::default())
        });
        done.expect("it is written");
    }

    /// Copies a file to a new one.
    fn copy(&self, from: (Ino, &str), to: (Ino, &str)) {
        let target = self.tester.file(to.0, to.1, b"");
        self.with(to, |_, ino| assert_eq!(ino, target));
        let copied = self.with(from, |fs, from| {
            self.with(to, |_, to| fs.copy_range((from, 0), (to, 0), 1 << 30))
        });
        copied.expect("it is copied");
    }

    fn remove(&self, (dir, name): (Ino, &str)) {
        self.tester.remove(dir, name);
        self.tester.fs.reclaim().expect("it is reclaimed");
    }

    fn snapshot(&self) {
        let made = self.tester.fs.snapshots().create(self.dir, "mon");
        made.expect("it is made");
    }

    fn roll_back(&self) {
        let done = self.tester.fs.roll_back("mon", self.dir, ANY);
        done.expect("it is rolled back");
    }

    fn row(&self, at: (Ino, &str)) -> Option<SharedRow> {
        let ino = self.tester.find(at.0, at.1).expect("it is there");
        let store = &self.tester.fs.store;
        let row = store.get(&store.keys.shared(ino)).expect("it can be read");
        row.map(|row| SharedRow::decode(&row).expect("it is sound"))
    }

    /// Chunks that a file shares.
    fn shared(&self, at: (Ino, &str)) -> u64 {
        let row = self.row(at);
        let extents = row.into_iter().flat_map(|row| row.extents);
        extents.map(|one| one.end - one.start).sum()
    }

    fn rows(&self, tree: Tree) -> usize {
        let store = &self.tester.fs.store;
        let range = match tree {
            Tree::Data => store.keys.inodes(tree, Ino(1), Ino(1 << 40)),
            _ => store.keys.contents_from(Ino(0)),
        };
        let mut rows = store.scan(&range).expect("it can be read");
        let mut count = 0;
        while rows.next().expect("it can be read").is_some() {
            count += 1;
        }
        count
    }

    /// Paths and contents.
    fn shown(&self, dir: Ino) -> BTreeMap<String, Vec<u8>> {
        let all = self.tester.listing(dir).into_iter();
        all.map(|(path, (_, bytes, _))| (path, bytes)).collect()
    }

    /// Removes everything. No chunk is left.
    #[track_caller]
    fn check_and_empty(self) {
        let tester = &self.tester;
        let engine: Arc<dyn Engine> = Arc::clone(&tester.model) as _;
        tester.fs.close().expect("it closes");
        let issues = fsck::check(&engine, &mut |_| ()).expect("it can be read");
        assert!(issues.is_empty(), "{issues:?}");
        let tester = open(&tester.model);
        for name in ["d", "other"] {
            let removed = tester
                .fs
                .remove_tree(&SUPER, DirName::new(ROOT, name.as_bytes()), None);
            removed.expect("it is removed");
        }
        while tester.fs.detached_dirs() > 0 {
            tester.fs.empty_detached(100).expect("it goes");
        }
        tester.fs.snapshots().delete("mon").expect("it is there");
        tester.fs.reclaim().expect("it is reclaimed");
        let pair = Pair { tester, ..self };
        let left = (pair.rows(Tree::Data), pair.rows(Tree::Sys));
        assert_eq!(left, (0, 0), "chunks, and rows of contents");
    }
}

#[test]
fn a_copy_with_a_changed_chunk_shares_all_of_it_again() {
    for is_source in [false, true] {
        let pair = pair();
        let (file, other) = ((pair.dir, "a"), (pair.other, "b"));
        pair.tester.file(file.0, file.1, &[]);
        if is_source {
            pair.write(file, 0, &pattern(CHUNKS, 0));
            pair.copy(file, other);
        } else {
            pair.remove(file);
            pair.tester.file(other.0, other.1, &pattern(CHUNKS, 0));
            pair.copy(other, file);
        }
        assert_eq!(pair.rows(Tree::Data), CHUNKS);
        pair.snapshot();
        let before = pair.row(file);
        pair.write(file, 5 * CHUNK + 7, b"changed");
        assert_eq!(pair.rows(Tree::Data), CHUNKS + 1);
        pair.roll_back();
        assert_eq!(pair.row(file), before);
        assert_eq!(pair.rows(Tree::Data), CHUNKS, "the own chunk is gone");
        assert_eq!(pair.shown(pair.dir)["/a"], pattern(CHUNKS, 0));
        pair.check_and_empty();
    }
}

#[test]
fn a_file_that_is_copied_after_the_snapshot_shares_what_was_not_written_before_the_copy() {
    let pair = pair();
    let (file, other) = ((pair.dir, "a"), (pair.other, "b"));
    pair.tester.file(file.0, file.1, &pattern(CHUNKS, 0));
    pair.snapshot();
    pair.write(file, 3 * CHUNK, b"before the copy");
    pair.copy(file, other);
    pair.write(file, 9 * CHUNK, b"after it");
    pair.roll_back();
    let row = pair.row(file).expect("it shares");
    assert_eq!(row.extents, [0..3, 4..CHUNKS as u64]);
    assert_eq!(pair.rows(Tree::Data), CHUNKS + 1);
    assert_eq!(pair.shown(pair.dir)["/a"], pattern(CHUNKS, 0));
    assert_eq!(
        &pair.shown(pair.other)["/b"][3 * CHUNK..][..6],
        b"before",
        "the copy stays"
    );
    pair.check_and_empty();
}

#[test]
fn a_removed_copy_shares_again_what_others_use() {
    let pair = pair();
    let (file, copy) = ((pair.dir, "a"), (pair.dir, "b"));
    pair.tester.file(file.0, file.1, &pattern(CHUNKS, 0));
    pair.copy(file, copy);
    pair.snapshot();
    pair.remove(copy);
    pair.roll_back();
    assert_eq!(pair.shared(copy), CHUNKS as u64);
    assert_eq!(pair.rows(Tree::Data), CHUNKS);
    assert_eq!(pair.shown(pair.dir)["/b"], pattern(CHUNKS, 0));
    pair.check_and_empty();
}

/// Contents without users may be deleted at any time.
#[test]
fn contents_that_no_file_keeps_are_not_shared_again() {
    for reclaims in [false, true] {
        let pair = pair();
        let (file, copy, third) = ((pair.dir, "a"), (pair.dir, "b"), (pair.other, "c"));
        pair.tester.file(file.0, file.1, &pattern(CHUNKS, 0));
        pair.copy(file, copy);
        pair.copy(file, third);
        pair.snapshot();
        for at in [file, copy] {
            pair.write(at, 0, &pattern(CHUNKS, 3));
        }
        // It is open, and may be forgotten at any time.
        let open = pair.with(third, |fs, ino| {
            fs.lookup(DirName::new(third.0, b"c")).expect("it is there");
            ino
        });
        pair.tester.remove(third.0, third.1);
        if reclaims {
            pair.tester.fs.forget(open, 1);
            pair.tester.fs.reclaim().expect("it is reclaimed");
        }
        pair.roll_back();
        for at in [file, copy] {
            assert_eq!(pair.shared(at), 0);
            assert_eq!(
                pair.shown(pair.dir)[&format!("/{}", at.1)],
                pattern(CHUNKS, 0)
            );
        }
        if !reclaims {
            pair.tester.fs.forget(open, 1);
        }
        pair.tester.fs.reclaim().expect("it is reclaimed");
        assert_eq!(pair.rows(Tree::Data), 2 * CHUNKS);
        pair.check_and_empty();
    }
}

/// Some change of the files of both directories.
fn change(pair: &Pair, rng: &mut Rng) {
    let mut pick = |count: usize| usize::try_from(rng.below(count as u64)).expect("small");
    let dirs = [pair.dir, pair.dir, pair.other];
    let (from, to) = (
        (dirs[pick(3)], NAMES[pick(4)]),
        (dirs[pick(3)], NAMES[pick(4)]),
    );
    let (offset, len, seed) = (pick(CHUNKS * CHUNK), 1 + pick(3 * CHUNK), pick(200));
    let is_there = |at: (Ino, &str)| pair.tester.find(at.0, at.1).is_some();
    match (pick(12), is_there(from), is_there(to)) {
        (0..4, true, _) => pair.write(from, offset, &vec![seed.to_le_bytes()[0]; len]),
        (0..2, false, _) => {
            pair.tester
                .file(from.0, from.1, &pattern(CHUNKS - seed % 9, seed));
        }
        (4..8, true, false) => pair.copy(from, to),
        (4..6, true, true) if from != to => {
            pair.remove(to);
            pair.copy(from, to);
        }
        (8, true, _) => pair.remove(from),
        (9, true, false) => pair.tester.rename(from, to),
        (10, true, _) => {
            let size = SetAttr {
                size: Some(offset as u64),
                ..SetAttr::default()
            };
            let cut = pair.with(from, |fs, ino| fs.set_attr(&SUPER, ino, &size));
            cut.expect("it is cut");
        }
        (11, true, _) => {
            let mode = FallocateMode::PunchHole;
            let (offset, len) = (offset as u64, len as u64);
            let punched = pair.with(from, |fs, ino| fs.fallocate(ino, mode, offset, len));
            punched.expect("it is punched");
        }
        _ => {}
    }
}

/// Names the first path that is different, and its first chunk that is.
fn difference(before: &BTreeMap<String, Vec<u8>>, after: &BTreeMap<String, Vec<u8>>) -> String {
    for (path, bytes) in before {
        let Some(other) = after.get(path) else {
            return format!("{path} is gone");
        };
        let mut pairs = bytes.chunks(CHUNK).zip(other.chunks(CHUNK));
        let chunk = pairs.position(|(one, other)| one != other);
        if bytes != other {
            let lens = (bytes.len(), other.len());
            return format!("{path}: {lens:?} bytes, chunk {chunk:?}");
        }
    }
    format!(
        "{:?} came",
        after.keys().find(|path| !before.contains_key(*path))
    )
}

/// What became of a random life.
#[derive(Default)]
struct Tally {
    shared: u64,
    interruptions: u32,
}

/// Changes, a snapshot, more changes, and a rollback, which `ends` finishes.
fn live(seed: u64, tally: &mut Tally, roll_back: impl FnOnce(Pair, &mut Tally) -> Pair) {
    let (pair, mut rng) = (pair(), Rng::new(seed));
    for name in NAMES {
        pair.tester.file(pair.dir, name, &pattern(CHUNKS, 0));
    }
    let mut change_some = |pair: &Pair| {
        for _ in 0..5 + rng.below(12) {
            change(pair, &mut rng);
        }
    };
    change_some(&pair);
    let before = pair.shown(pair.dir);
    pair.snapshot();
    change_some(&pair);
    let outside = pair.shown(pair.other);
    let pair = roll_back(pair, tally);
    let after = pair.shown(pair.dir);
    assert!(
        after == before,
        "seed {seed}: {}",
        difference(&before, &after)
    );
    assert!(pair.shown(pair.other) == outside, "seed {seed}: outside");
    for name in NAMES
        .iter()
        .filter(|name| before.contains_key(&format!("/{name}")))
    {
        tally.shared += pair.shared((pair.dir, name));
    }
    // They go on to change apart.
    change_some(&pair);
    pair.check_and_empty();
}

#[test]
fn random_lives_of_files_that_share_are_rolled_back() {
    let mut tally = Tally::default();
    for seed in 0..120 {
        live(seed, &mut tally, |pair, _| {
            pair.roll_back();
            pair
        });
    }
    assert!(tally.shared > 1_000, "{} chunks are shared", tally.shared);
}

/// Each batch may be the last one of its process.
#[test]
fn rollbacks_of_files_that_share_are_finished_however_often_they_are_interrupted() {
    let mut tally = Tally::default();
    for seed in 1_000..1_040 {
        live(seed, &mut tally, |pair, tally| {
            let options = || FsOptions {
                rollback_batch_bytes: Some(3 * CHUNK as u64),
                ..FsOptions::default()
            };
            let Pair { tester, dir, other } = pair;
            let model = tester.model;
            drop(tester.fs);
            model.mend_commits();
            let engine: Arc<dyn Engine> = Arc::clone(&model) as _;
            let run = || {
                let fs = FileSystem::open(Arc::clone(&engine), options())?;
                fs.lookup(DirName::new(ROOT, b"d"))?;
                fs.roll_back("mon", dir, ANY)
            };
            // The first commits may set inode numbers aside, which each life does anew.
            let lives = (0..300).take_while(|life| {
                model.fail_commits_after(life % 5, CommitFault::Done, 1);
                run().is_err()
            });
            tally.interruptions += u32::try_from(lives.count()).expect("few");
            model.mend_commits();
            let tester = open_with(&model, options());
            for name in [b"d".as_slice(), b"other"] {
                tester
                    .fs
                    .lookup(DirName::new(ROOT, name))
                    .expect("it is there");
            }
            Pair { tester, dir, other }
        });
    }
    assert!(tally.interruptions > 200, "{}", tally.interruptions);
    assert!(tally.shared > 300, "{} chunks are shared", tally.shared);
}
