//! Operations on views: made from seeds, done on any [`FileSystem`].

use super::paths::{below, paths_mut};
use super::state::{Chain, CloneTree, Views, number_of};
use crate::files::ops::{self as plain, FsOp, What};
use crate::files::tree::{self, Tree};
use std::time::Duration;
use stitch_base::Ino;
use stitch_base::random::Rng;
use stitch_base::sync::Arc;
use stitch_fs::{
    BeginOptions, Caller, CloneSource, FileKind, FileSystem, FsError, FsResult, LiveView,
    RollbackRights, TransactionLife,
};

const SNAPSHOTS: [&str; 2] = ["mon", "tue"];
const TRANSACTIONS: [&str; 2] = ["one", "two"];
const RUN: &str = "run";
/// Clones at the same time.
const CLONES_MAX: usize = 3;
/// Transactions in each other.
const DEPTH_MAX: usize = 3;
/// Operations of one run.
const RUN_OPS_MAX: u64 = 8;

/// An operation and its time.
#[derive(Clone, Debug)]
pub struct ViewOp {
    /// Seconds on the clock.
    pub at: u64,
    /// What is done.
    pub what: ViewWhat,
}

/// What is done. Paths are from the root of the view.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the names are those of the operations")]
pub enum ViewWhat {
    Main(What),
    InClone {
        chain: Chain,
        what: What,
    },
    InTransaction {
        name: String,
        what: What,
    },
    CreateSnapshot {
        name: String,
        of: Chain,
        dir: String,
    },
    DeleteSnapshot {
        name: String,
    },
    RollBack {
        name: String,
        of: Chain,
        dir: String,
    },
    /// A clone of a directory of mainline or of another clone.
    Clone {
        of: Chain,
        dir: String,
        home: Chain,
        target: String,
    },
    CloneSnapshot {
        name: String,
        target: String,
    },
    Destroy {
        chain: Chain,
    },
    /// In mainline, or of `outer/name` in another transaction.
    Begin {
        name: String,
    },
    Commit {
        name: String,
    },
    Abort {
        name: String,
    },
    /// A transaction from its begin to its end.
    Run {
        ops: Vec<What>,
        commits: bool,
    },
}

impl ViewWhat {
    pub(super) fn is_step(&self) -> bool {
        matches!(self, Self::Main(What::Step))
    }

    /// Reports whether it makes all before it durable, if it succeeds.
    pub(super) fn is_durable(&self) -> bool {
        match self {
            Self::Main(what) => matches!(what, What::Sync | What::SyncFile { .. }),
            Self::InClone { what, .. } | Self::InTransaction { what, .. } => {
                matches!(what, What::Sync | What::SyncFile { .. })
            }
            Self::CreateSnapshot { .. }
            | Self::DeleteSnapshot { .. }
            | Self::RollBack { .. }
            | Self::Clone { .. }
            | Self::CloneSnapshot { .. }
            | Self::Begin { .. }
            | Self::Commit { .. } => true,
            Self::Run { commits, .. } => *commits,
            Self::Destroy { .. } | Self::Abort { .. } => false,
        }
    }

    /// Others may be refused for reasons of their own, and be acknowledged without a write.
    pub(super) fn is_write(&self) -> bool {
        matches!(self, Self::Main(What::SetTimes { .. }))
    }
}

fn pick<'a, T>(of: &'a [T], rng: &mut Rng) -> &'a T {
    let index = rng.below(of.len() as u64);
    &of[usize::try_from(index).expect("an index")]
}

fn any<T: Clone>(of: impl Iterator<Item = T>, rng: &mut Rng) -> Option<T> {
    let all: Vec<T> = of.collect();
    (!all.is_empty()).then(|| pick(&all, rng).clone())
}

/// Draws a next operation; now and then one that must be refused.
pub(super) fn generate(views: &Views, at: u64, rng: &mut Rng) -> ViewWhat {
    let special = match rng.below(32) {
        0..4 => in_clone(views, at, rng),
        4..8 => in_transaction(views, at, rng),
        8..10 => Some(snapshot(views, rng)),
        10..12 => roll_back(views, rng),
        12..14 => clone(views, rng),
        14 => any(views.clones.keys().cloned(), rng).map(|chain| ViewWhat::Destroy { chain }),
        15 => Some(begin_of(views, rng)),
        16 => any(views.transactions.keys().cloned(), rng).map(|name| ViewWhat::Commit { name }),
        17 if rng.one_in(2) => {
            any(views.transactions.keys().cloned(), rng).map(|name| ViewWhat::Abort { name })
        }
        18 => Some(run_of(views, at, rng)),
        _ => None,
    };
    special.unwrap_or_else(|| ViewWhat::Main(in_tree(&views.main, at, rng)))
}

/// An operation on files that leaves links and whole trees alone.
fn in_tree(tree: &Tree, at: u64, rng: &mut Rng) -> What {
    loop {
        let what = plain::generate(tree, at, rng).what;
        if !matches!(what, What::Link { .. } | What::RemoveTree { .. }) {
            return what;
        }
    }
}

/// An operation below the directory of a clone.
fn in_clone(views: &Views, at: u64, rng: &mut Rng) -> Option<ViewWhat> {
    let chain = any(views.clones.keys().cloned(), rng)?;
    let CloneTree { root, tree } = &views.clones[&chain];
    let mut what = in_tree(&tree_below(tree, root), at, rng);
    move_below(&mut what, root);
    Some(ViewWhat::InClone { chain, what })
}

/// An operation below a directory, which may give files further names.
pub(super) fn in_dir(tree: &Tree, dir: &str, at: u64, rng: &mut Rng) -> What {
    let inner = tree_below(tree, dir);
    let mut what = plain::generate(&inner, at, rng).what;
    while matches!(what, What::RemoveTree { .. }) {
        what = plain::generate(&inner, at, rng).what;
    }
    move_below(&mut what, dir);
    what
}

/// A directory and all below it, by paths from there on.
fn tree_below(tree: &Tree, dir: &str) -> Tree {
    let inner = tree
        .iter()
        .filter_map(|(path, node)| Some((below(path, dir)?.to_owned(), node.clone())));
    inner.collect()
}

/// Gives the paths of an operation from a directory on as those of the whole tree.
fn move_below(what: &mut What, dir: &str) {
    for path in paths_mut(what) {
        *path = match path.is_empty() {
            true => dir.to_owned(),
            false => tree::join(dir, path),
        };
    }
}

/// A transaction that begins in mainline, or in an open one.
fn begin_of(views: &Views, rng: &mut Rng) -> ViewWhat {
    let name = (*pick(&TRANSACTIONS, rng)).to_owned();
    let open = views.transactions.keys().cloned();
    let outer = any(open, rng).filter(|outer| outer.split('/').count() < DEPTH_MAX);
    let outer = outer.filter(|_| !rng.one_in(3));
    ViewWhat::Begin {
        name: outer.map_or(name.clone(), |outer| format!("{outer}/{name}")),
    }
}

fn in_transaction(views: &Views, at: u64, rng: &mut Rng) -> Option<ViewWhat> {
    let name = any(views.transactions.keys().cloned(), rng)?;
    let what = in_tree(&views.transactions[&name].tree, at, rng);
    Some(ViewWhat::InTransaction { name, what })
}

fn dirs(tree: &Tree) -> impl Iterator<Item = String> {
    let dirs = tree.iter();
    let dirs = dirs.filter(|(_, node)| node.attr.kind == FileKind::Directory);
    dirs.map(|(path, _)| path.clone())
}

fn snapshot(views: &Views, rng: &mut Rng) -> ViewWhat {
    let name = (*pick(&SNAPSHOTS, rng)).to_owned();
    match views.snapshots.contains_key(&name) {
        true => ViewWhat::DeleteSnapshot { name },
        false => {
            let of = place(views, rng);
            let (tree, root) = views.of_chain(&of);
            let here = dirs(tree).filter(|dir| below(dir, root).is_some());
            let dir = any(here, rng).unwrap_or_default();
            ViewWhat::CreateSnapshot { name, of, dir }
        }
    }
}

/// Mainline, or more seldom a clone.
fn place(views: &Views, rng: &mut Rng) -> Chain {
    match rng.one_in(3) {
        true => any(views.clones.keys().cloned(), rng).unwrap_or_default(),
        false => Chain::new(),
    }
}

fn roll_back(views: &Views, rng: &mut Rng) -> Option<ViewWhat> {
    let name = any(views.snapshots.keys().cloned(), rng)?;
    // Mostly it is where it was.
    let (of, dir) = views.snapshots[&name].place.clone();
    Some(ViewWhat::RollBack { name, of, dir })
}

fn clone(views: &Views, rng: &mut Rng) -> Option<ViewWhat> {
    if views.clones.len() >= CLONES_MAX {
        return None;
    }
    let target = |tree: &Tree, root: &str, rng: &mut Rng| {
        let here = dirs(tree).filter(|dir| below(dir, root).is_some());
        tree::join(
            &any(here, rng).unwrap_or_default(),
            &format!("clone{}", rng.below(3)),
        )
    };
    if rng.one_in(3)
        && let Some(name) = any(views.snapshots.keys().cloned(), rng)
    {
        let target = target(&views.main, "", rng);
        return Some(ViewWhat::CloneSnapshot { name, target });
    }
    let (of, home) = (place(views, rng), place(views, rng));
    let (tree, root) = views.of_chain(&of);
    let sources = dirs(tree).filter(|dir| below(dir, root).is_some());
    let dir = any(sources, rng).unwrap_or_default();
    let (tree, root) = views.of_chain(&home);
    let target = target(tree, root, rng);
    Some(ViewWhat::Clone {
        of,
        dir,
        home,
        target,
    })
}

fn run_of(views: &Views, at: u64, rng: &mut Rng) -> ViewWhat {
    let count = 1 + rng.below(RUN_OPS_MAX);
    ViewWhat::Run {
        ops: (0..count).map(|_| in_tree(&views.main, at, rng)).collect(),
        commits: !rng.one_in(4),
    }
}

/// Does one operation. `held` takes the inodes of mainline that stay open.
pub(super) fn run(fs: &FileSystem, op: &ViewOp, held: &mut Vec<Ino>) -> FsResult<()> {
    let at = op.at;
    match &op.what {
        ViewWhat::Main(what) => run_in(fs, at, what, held),
        ViewWhat::InClone { chain, what } => {
            let view = find(fs, chain)?.ok_or(FsError::NotFound)?;
            run_and_close(view.fs(), at, what)
        }
        ViewWhat::InTransaction { name, what } => {
            let view = fs.transactions().open_number(number_of(fs, name)?)?;
            run_and_close(view.fs(), at, what)
        }
        ViewWhat::CreateSnapshot { name, of, dir } => in_view(fs, (of, dir), |clone, ino| {
            let made = match clone {
                Some(clone) => fs.snapshots().create_in(clone, ino, name),
                None => fs.snapshots().create(ino, name),
            };
            made.map(drop)?;
            // As a mount does after it has answered. Every other one stays whole.
            if ino.0 % 2 == 0 {
                while let Ok(true) = fs.snapshots().narrow_ahead() {}
                // Those that are a minute old.
                while let Ok(Some(Duration::ZERO)) = fs.snapshots().narrow_clones_ahead() {}
            }
            Ok(())
        }),
        ViewWhat::DeleteSnapshot { name } => fs.snapshots().delete(name),
        ViewWhat::RollBack { name, of, dir } => in_view(fs, (of, dir), |clone, ino| {
            let done = match clone {
                Some(clone) => fs.roll_back_in(clone, name, ino, RollbackRights::ALL),
                None => fs.roll_back(name, ino, RollbackRights::ALL),
            };
            done.map(drop)
        }),
        ViewWhat::Clone {
            of,
            dir,
            home,
            target,
        } => clone_of_view(fs, (of, dir), (home, target)),
        ViewWhat::CloneSnapshot { name, target } => {
            let past = fs.snapshots().open(name)?;
            let source = CloneSource {
                fs: past.fs(),
                dir: past.info().root,
                snapshot: Some(name),
            };
            make(fs, &source, target)
        }
        ViewWhat::Destroy { chain } => destroy(fs, chain),
        ViewWhat::Begin { name } => begin(fs, name, TransactionLife::Named),
        ViewWhat::Commit { name } => {
            let view = fs.transactions().open_number(number_of(fs, name)?)?;
            fs.transactions().commit(&view).map(drop)
        }
        ViewWhat::Abort { name } => fs.transactions().abort_number(number_of(fs, name)?),
        ViewWhat::Run { ops, commits } => run_whole(fs, at, ops, *commits),
    }
}

fn run_in(fs: &FileSystem, at: u64, what: &What, held: &mut Vec<Ino>) -> FsResult<()> {
    let op = FsOp {
        at,
        what: what.clone(),
    };
    plain::run(fs, &op, held)
}

/// Does an operation in a view. What it leaves open is closed.
fn run_and_close(fs: &FileSystem, at: u64, what: &What) -> FsResult<()> {
    let mut held = Vec::new();
    let done = run_in(fs, at, what, &mut held);
    held.iter().for_each(|ino| fs.close_handle(*ino));
    done
}

/// The clone that a chain of paths leads to; `None` for mainline.
fn find(fs: &FileSystem, chain: &[String]) -> FsResult<Option<Arc<LiveView>>> {
    let mut found: Option<Arc<LiveView>> = None;
    for path in chain {
        let here = found.as_ref().map_or(fs, |view| view.fs());
        let graft = tree::ino(here, path)?;
        let info = here.clone_at(graft).ok_or(FsError::NotFound)?;
        let next = here.open_clone(info.number)?;
        found = Some(next);
    }
    Ok(found)
}

/// Does something with a directory of mainline or of a clone.
fn in_view(
    fs: &FileSystem,
    (of, dir): (&Chain, &str),
    body: impl FnOnce(Option<&LiveView>, Ino) -> FsResult<()>,
) -> FsResult<()> {
    let clone = find(fs, of)?;
    let view = clone.as_ref().map_or(fs, |clone| clone.fs());
    tree::with_path(view, dir, |ino| body(clone.as_deref(), ino))
}

fn make(home: &FileSystem, source: &CloneSource<'_>, target: &str) -> FsResult<()> {
    let made = tree::with_name(home, target, |at| {
        home.make_clone(&Caller::ROOT, source, at)
    });
    made.map(drop)
}

fn clone_of_view(
    fs: &FileSystem,
    (of, dir): (&Chain, &str),
    (home, target): (&Chain, &str),
) -> FsResult<()> {
    let (of, home) = (find(fs, of)?, find(fs, home)?);
    let source = of.as_ref().map_or(fs, |view| view.fs());
    let home = home.as_ref().map_or(fs, |view| view.fs());
    tree::with_path(source, dir, |ino| {
        let source = CloneSource {
            fs: source,
            dir: ino,
            snapshot: None,
        };
        make(home, &source, target)
    })
}

fn destroy(fs: &FileSystem, chain: &Chain) -> FsResult<()> {
    let (path, above) = chain.split_last().ok_or(FsError::NotFound)?;
    let home = find(fs, above)?;
    let home = home.as_ref().map_or(fs, |view| view.fs());
    let graft = tree::ino(home, path)?;
    if home.clone_at(graft).is_none() {
        return Err(FsError::NotFound);
    }
    tree::with_name(home, path, |at| {
        home.remove_tree(&Caller::ROOT, at, Some(graft))
    })
}

fn begin(fs: &FileSystem, name: &str, life: TransactionLife) -> FsResult<()> {
    let (outer, name) = match name.rsplit_once('/') {
        Some((outer, name)) => (Some(number_of(fs, outer)?), name),
        None => (None, name),
    };
    let options = BeginOptions {
        life,
        outer,
        ..BeginOptions::default()
    };
    fs.transactions().begin(name, &options).map(drop)
}

/// Operations that are refused are passed over.
fn run_whole(fs: &FileSystem, at: u64, ops: &[What], commits: bool) -> FsResult<()> {
    begin(fs, RUN, TransactionLife::Run)?;
    let done = work(fs, at, ops, commits);
    if done.is_err() || !commits {
        fs.transactions().abort(RUN)?;
    }
    done
}

fn work(fs: &FileSystem, at: u64, ops: &[What], commits: bool) -> FsResult<()> {
    let view = fs.transactions().open(RUN)?;
    for what in ops {
        match run_and_close(view.fs(), at, what) {
            Err(e) if !super::is_refusal(&e) => return Err(e),
            _ => {}
        }
    }
    match commits {
        true => fs.transactions().commit(&view).map(drop),
        false => Ok(()),
    }
}
