//! What is moved while a clone is made.

use super::*;
use crate::back::BackRowPass;
use crate::testing::formatted;
use crate::{FsOptions, RenameMode};

const SUPER: Caller<'static> = Caller::ROOT;
const NEW: NewNode = NewNode {
    perm: 0o755,
    umask: 0,
};

fn at(dir: Ino, name: &str) -> DirName<'_> {
    DirName::new(dir, name.as_bytes())
}

/// `/d` with the clone `copy` of `/src`, and `/e`.
struct Grown {
    fs: FileSystem,
    dir: Ino,
    other: Ino,
}

fn grown() -> Grown {
    let options = FsOptions::default();
    let engine: Arc<dyn Engine> = formatted(&options) as _;
    let fs = FileSystem::open(engine, options).expect("it opens");
    let dir = |name| fs.make_dir(&SUPER, at(Ino::ROOT, name), &NEW);
    let [src, dir, other] = ["src", "d", "e"].map(|name| dir(name).expect("is made").ino);
    let source = source(&fs, src);
    let made = fs.make_clone(&SUPER, &source, at(dir, "copy"));
    made.expect("is made");
    Grown { fs, dir, other }
}

const fn source(fs: &FileSystem, dir: Ino) -> CloneSource<'_> {
    CloneSource {
        fs,
        dir,
        snapshot: None,
    }
}

impl Grown {
    /// As another process finds it.
    fn reopened(self) -> Self {
        let engine = Arc::clone(self.fs.engine());
        drop(self.fs);
        let fs = FileSystem::open(engine, FsOptions::default()).expect("it opens");
        for name in ["src", "d", "e"] {
            fs.lookup(at(Ino::ROOT, name)).expect("it is there");
        }
        Self { fs, ..self }
    }

    fn rename(&self, from: DirName<'_>, to: DirName<'_>) {
        let renamed = self.fs.rename(&SUPER, from, to, RenameMode::Replace);
        renamed.expect("it moves");
    }

    /// Chooses the clones in `/d`, and branches the trees after `meanwhile` was done.
    fn checked(&self, meanwhile: impl FnOnce()) -> FsResult<u16> {
        let source = source(&self.fs, self.dir);
        let clones = self.fs.clones();
        let inner = source.inner_clones(&clones, &self.fs.standing.views.ways)?;
        let (first, path) = (10, b"d".to_vec());
        let plan = ClonePlan {
            first,
            path,
            inner,
            clones,
        };
        meanwhile();
        let maker = CloneMaker::of(&self.fs);
        maker.branch_trees(&source, &plan)?;
        maker.check_branches(&source, &plan)
    }
}

#[test]
fn a_clone_that_is_moved_in_or_out_meanwhile_is_noticed() {
    let grown = grown();
    assert_eq!(grown.checked(|| {}).expect("nothing moved"), 0o755);
    for is_out in [true, false] {
        drop_trees(grown.fs.engine().as_ref(), |of| of >= 10).expect("they go");
        let (from, to) = match is_out {
            true => (grown.dir, grown.other),
            false => (grown.other, grown.dir),
        };
        let found = grown.checked(|| grown.rename(at(from, "copy"), at(to, "copy")));
        let is_stale = matches!(found, Err(FsError::Stale(ino)) if ino == grown.dir);
        assert!(is_stale, "{found:?}");
    }
}

#[test]
fn a_clone_that_is_removed_meanwhile_is_noticed() {
    let grown = grown();
    let found = grown.checked(|| {
        let removed = grown.fs.remove_dir(&SUPER, at(grown.dir, "copy"));
        removed.expect("it is empty");
        grown.fs.reclaim().expect("its trees go");
    });
    let is_stale = matches!(found, Err(FsError::Stale(ino)) if ino == grown.dir);
    assert!(is_stale, "{found:?}");
}

/// The first clone over clones of an earlier life scans; back rows come later.
#[test]
fn back_rows_are_put_behind_the_clone_that_asks_for_them() {
    let grown = grown();
    for number in 0..6_000 {
        let made = grown
            .fs
            .make_dir(&SUPER, at(grown.other, &number.to_string()), &NEW);
        grown.fs.forget(made.expect("is made").ino, 1);
    }
    let made = grown.fs.make_clone(
        &SUPER,
        &source(&grown.fs, grown.dir),
        at(Ino::ROOT, "before"),
    );
    made.expect("is made");
    assert!(
        !grown
            .fs
            .put_back_rows_ahead()
            .expect("nothing is asked for")
    );
    let grown = grown.reopened();
    let fs = &grown.fs;
    assert!(!BackRowPass::of(fs).is_complete());
    let made = fs.make_clone(&SUPER, &source(fs, grown.dir), at(Ino::ROOT, "all"));
    let all = made.expect("is made");
    assert_eq!(fs.clones().len(), 5, "the one in it was found");
    assert!(!BackRowPass::of(fs).is_complete(), "the request puts none");
    assert!(fs.put_back_rows_ahead().expect("some are put"));
    assert!(!BackRowPass::of(fs).is_complete(), "some at a time");
    while fs.put_back_rows_ahead().expect("they are put") {}
    assert!(BackRowPass::of(fs).is_complete());
    let again = fs.make_clone(&SUPER, &source(fs, grown.dir), at(Ino::ROOT, "again"));
    again.expect("is made");
    assert!(!fs.put_back_rows_ahead().expect("nothing is asked for"));

    // A clone in which one lies asks for its own, and is removed before they are put.
    let grown = grown.reopened();
    let fs = &grown.fs;
    let live = fs.open_clone(all.number).expect("it opens");
    assert!(
        !BackRowPass::of(live.fs()).is_complete(),
        "it was made before"
    );
    let made = fs.make_clone(&SUPER, &source(live.fs(), all.root), at(Ino::ROOT, "third"));
    made.expect("is made");
    drop(live);
    let removed = fs.remove_tree(&SUPER, at(Ino::ROOT, "all"), Some(all.graft));
    removed.expect("it goes");
    assert!(!fs.put_back_rows_ahead().expect("it is gone"));
}
