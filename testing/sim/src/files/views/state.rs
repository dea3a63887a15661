//! All that every view of a file system shows, as one value.

use crate::files::tree::{self, Tree};
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::Ino;
use stitch_fs::{
    FileKind, FileSystem, FsError, FsResult, SnapshotPart, SnapshotView, TransactionInfo,
};

/// Where a clone is: its path in mainline, or in the clone before it, and so on.
pub(super) type Chain = Vec<String>;

/// A clone: the path of its directory in its own file system, and all below it. What is outside is
/// not shown, and a clone of a narrowed snapshot does not have its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CloneTree {
    pub(super) root: String,
    pub(super) tree: Tree,
}

/// A snapshot: the path of its directory, and all below it at its moment, with what the clones that
/// it shows have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PastTree {
    pub(super) path: String,
    /// The clone that has the directory now, and its path in that; empty for what is gone.
    pub(super) place: (Chain, String),
    pub(super) tree: Tree,
    clones: BTreeMap<Chain, Tree>,
}

/// A transaction, with what the clones that it shows had when it began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WorkTree {
    pub(super) tree: Tree,
    pub(super) clones: BTreeMap<Chain, Tree>,
}

/// The views of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Views {
    pub(super) main: Tree,
    pub(super) snapshots: BTreeMap<String, PastTree>,
    pub(super) clones: BTreeMap<Chain, CloneTree>,
    /// By name; `one/two` is one that began in `one`.
    pub(super) transactions: BTreeMap<String, WorkTree>,
    /// Names of transactions that were committed, in their order.
    outcomes: Vec<String>,
}

impl Views {
    /// Reads everything.
    pub(super) fn read(fs: &FileSystem) -> FsResult<Self> {
        let main = tree::read(fs)?;
        let mut clones = BTreeMap::new();
        let mut chains = BTreeMap::new();
        read_clones(fs, &[], &main, (&mut clones, &mut chains))?;
        let mut snapshots = BTreeMap::new();
        for info in fs.snapshots().list()? {
            let view = fs.snapshots().open(&info.name)?;
            let path = String::from_utf8_lossy(&info.path).into_owned();
            let tree = read_view(view.fs(), info.root)?.tree;
            let mut clones = BTreeMap::new();
            let (base, _) = view.part(info.root)?;
            read_past_clones(&view, &base, &[], &tree, &mut clones)?;
            let place = place_of(fs, &chains, &view)?;
            let past = PastTree {
                path,
                place,
                tree,
                clones,
            };
            snapshots.insert(info.name, past);
        }
        let (open, ended) = split(&fs.transactions().list()?);
        let mut transactions = BTreeMap::new();
        for (number, name) in open {
            let view = fs.transactions().open_number(number)?;
            transactions.insert(name, read_work(fs, view.fs())?);
        }
        Ok(Self {
            main,
            snapshots,
            clones,
            transactions,
            outcomes: ended.into_iter().map(|(_, name)| name).collect(),
        })
    }

    /// Returns the tree of mainline or of a clone, and the path of its directory.
    pub(super) fn of_chain(&self, chain: &[String]) -> (&Tree, &str) {
        match self.clones.get(chain) {
            Some(CloneTree { root, tree }) => (tree, root),
            None => (&self.main, ""),
        }
    }

    /// Names every view, and its tree.
    fn trees(&self) -> Vec<(String, &Tree)> {
        let mut all = vec![("mainline".to_owned(), &self.main)];
        let pasts = self.snapshots.iter();
        for (name, past) in pasts {
            all.push((format!("snapshot {name}"), &past.tree));
            let clones = past.clones.iter();
            let named = |chain: &Chain| format!("snapshot {name}, clone {chain:?}");
            all.extend(clones.map(|(chain, tree)| (named(chain), tree)));
        }
        let clones = self.clones.iter();
        all.extend(clones.map(|(chain, clone)| (format!("clone {chain:?}"), &clone.tree)));
        let works = self.transactions.iter();
        for (name, work) in works {
            all.push((format!("transaction {name}"), &work.tree));
            let clones = work.clones.iter();
            let named = |chain: &Chain| format!("transaction {name}, clone {chain:?}");
            all.extend(clones.map(|(chain, tree)| (named(chain), tree)));
        }
        all
    }

    /// The first difference, for a person.
    pub(super) fn difference(&self, expected: &Self) -> String {
        let (found, wanted) = (self.trees(), expected.trees());
        let names = |trees: &[(String, &Tree)]| -> Vec<String> {
            trees.iter().map(|(name, _)| name.clone()).collect()
        };
        let (found_names, wanted_names) = (names(&found), names(&wanted));
        if found_names != wanted_names {
            return format!("views are {found_names:?}, not {wanted_names:?}");
        }
        for ((name, one), (_, other)) in found.iter().zip(&wanted) {
            if one != other {
                return format!("in {name}: {}", tree::difference(one, other));
            }
        }
        if self.outcomes != expected.outcomes {
            return format!("outcomes {:?}, not {:?}", self.outcomes, expected.outcomes);
        }
        format!("of {found_names:?} no tree differs")
    }
}

/// Numbers and names of transactions.
type Named = Vec<(u64, String)>;

/// Open transactions, and those that have ended.
fn split(infos: &[TransactionInfo]) -> (Named, Named) {
    let named = |is_open: bool| {
        let some = infos.iter().filter(|info| info.is_open() == is_open);
        let named = some.map(|info| (info.number, full_name(infos, info)));
        named.collect()
    };
    (named(true), named(false))
}

/// The name of a transaction after those that it is in.
fn full_name(infos: &[TransactionInfo], info: &TransactionInfo) -> String {
    let outer = infos.iter().find(|other| Some(other.number) == info.outer);
    assert_eq!(outer.is_some(), info.outer.is_some(), "both go in one step");
    match outer {
        Some(outer) => format!("{}/{}", full_name(infos, outer), info.name),
        None => info.name.clone(),
    }
}

/// The number of the open transaction of a name.
pub(super) fn number_of(fs: &FileSystem, name: &str) -> FsResult<u64> {
    let (open, _) = split(&fs.transactions().list()?);
    let found = open.into_iter().find(|(_, full)| full == name);
    found.map(|(number, _)| number).ok_or(FsError::NotFound)
}

/// Reads the clones that lie in a file system.
fn read_clones(
    fs: &FileSystem,
    above: &[String],
    tree: &Tree,
    (clones, chains): (&mut BTreeMap<Chain, CloneTree>, &mut BTreeMap<u64, Chain>),
) -> FsResult<()> {
    if fs.clones().is_empty() {
        return Ok(());
    }
    for (path, node) in tree {
        if node.attr.kind != FileKind::Directory {
            continue;
        }
        let Some(info) = fs.clone_at(tree::ino(fs, path)?) else {
            continue;
        };
        let view = fs.open_clone(info.number)?;
        let shown = read_view(view.fs(), info.root)?;
        let mut chain = above.to_vec();
        chain.push(path.clone());
        read_clones(view.fs(), &chain, &shown.tree, (clones, chains))?;
        chains.insert(info.number, chain.clone());
        clones.insert(chain, shown);
    }
    Ok(())
}

/// Finds the directory of a snapshot: mostly at its path at that moment, in the file system at that
/// moment.
fn place_of(
    fs: &FileSystem,
    chains: &BTreeMap<u64, Chain>,
    view: &SnapshotView,
) -> FsResult<(Chain, String)> {
    let info = view.info();
    let Some(chain) = chains.get(&info.view) else {
        let path = String::from_utf8_lossy(&info.path).into_owned();
        return Ok((Chain::new(), path));
    };
    let path = path_of(view.fs(), info.root)?;
    debug_assert!(fs.clone_of(info.view).is_ok(), "it is among the clones");
    Ok((chain.clone(), path))
}

/// Reads the clones that a snapshot shows.
fn read_past_clones(
    view: &SnapshotView,
    part: &SnapshotPart,
    above: &[String],
    tree: &Tree,
    clones: &mut BTreeMap<Chain, Tree>,
) -> FsResult<()> {
    for (path, node) in tree {
        if node.attr.kind != FileKind::Directory {
            continue;
        }
        let Some(clone) = view.clone_in(part, tree::ino(part.fs(), path)?)? else {
            continue;
        };
        let tree = read_view(clone.fs(), clone.root())?.tree;
        let mut chain = above.to_vec();
        chain.push(path.clone());
        read_past_clones(view, &clone, &chain, &tree, clones)?;
        clones.insert(chain, tree);
    }
    Ok(())
}

/// Reads a transaction, and the clones that it shows.
fn read_work(mainline: &FileSystem, fs: &FileSystem) -> FsResult<WorkTree> {
    let tree = tree::read(fs)?;
    let mut clones = BTreeMap::new();
    for (path, node) in &tree {
        if node.attr.kind != FileKind::Directory {
            continue;
        }
        let graft = tree::ino(fs, path)?;
        let Some(shown) = fs.shown_clone_at(graft) else {
            continue;
        };
        let view = mainline.history().open_pinned(shown.pin)?;
        let (base, _) = view.part(view.info().root)?;
        let clone = view.clone_in(&base, graft)?.ok_or(FsError::NotFound)?;
        let tree = read_view(clone.fs(), clone.root())?.tree;
        let chain = vec![path.clone()];
        read_past_clones(&view, &clone, &chain, &tree, &mut clones)?;
        clones.insert(chain, tree);
    }
    Ok(WorkTree { tree, clones })
}

/// Reads what a view shows of a file system: a directory.
fn read_view(fs: &FileSystem, dir: Ino) -> FsResult<CloneTree> {
    let root = path_of(fs, dir)?;
    let tree = tree::read_below(fs, &root)?;
    Ok(CloneTree { root, tree })
}

/// The path of a directory.
pub(super) fn path_of(fs: &FileSystem, dir: Ino) -> FsResult<String> {
    let found = tree::path_of_dir(fs, "", dir)?;
    found.ok_or_else(|| FsError::Corrupt(format!("directory {dir} has no path")))
}

/// Returns the trees of the engine that no clone and no open transaction has, and the pins of
/// transactions that have ended.
pub(super) fn loose_trees(fs: &FileSystem) -> FsResult<Vec<String>> {
    let mut known = BTreeSet::from(["fs".to_owned()]);
    known.extend(fs.clones().iter().map(|info| format!("fs~{}", info.number)));
    let open = fs
        .transactions()
        .list()?
        .into_iter()
        .filter(TransactionInfo::is_open);
    let open: Vec<u64> = open.map(|info| info.number).collect();
    known.extend(open.iter().map(|number| format!("txn~{number}")));
    let trees = fs.engine().trees().into_iter();
    let schema = |name: &str| name.split('/').next().unwrap_or_default().to_owned();
    let loose = trees.filter(|tree| !known.contains(&schema(&tree.name)));
    let mut found: Vec<String> = loose
        .map(|tree| format!("loose-tree: {}", tree.name))
        .collect();
    if fs.engine().capabilities().pins {
        let is_open = |name: &str| open.iter().any(|number| name == format!("txn/{number}"));
        let pins = fs.engine().pins()?.into_iter().map(|pin| pin.name);
        let loose = pins.filter(|name| name.starts_with("txn/") && !is_open(name));
        found.extend(loose.map(|name| format!("loose-pin: {name}")));
    }
    Ok(found)
}
