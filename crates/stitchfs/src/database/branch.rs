//! Branches, as users have them: trees that begin with what others hold, and go their own way.

use super::{Database, Snapshot, Tree};
use crate::owner::Owner;
use crate::{CommitOptions, Seqno, StoreError, TreeId};
use stitch_format::db_names::{branch_tree_name, parse_branch_tree_name};
use stitch_kv::{KvError, NewBranch, TREE_NAME_BYTES_MAX, TreeInfo};

/// A branch of some trees of a [`Database`]: under the same names, trees that began with what those
/// held at one moment. What is written to either is not seen in the other, until
/// [`Self::absorb`] gives it to the trees that were branched. Branches are in the store: they
/// are there again when it is opened anew.
///
/// Making one copies nothing. It keeps the moment at which it begins, so old versions of the trees
/// take space until it is absorbed or dropped.
///
/// ```
/// use stitchfs::{Database, StoreOptions, TreeOptions};
/// # let db = Database::in_memory(16 << 20, &StoreOptions::default())?;
/// let prices = db.create_tree("prices", &TreeOptions::default())?;
/// prices.put(b"apple", b"10")?;
/// prices.put(b"pear", b"12")?;
///
/// let sale = db.create_branch("sale", &[prices.clone()], None)?;
/// let lowered = sale.tree("prices").expect("it was branched");
/// lowered.put(b"apple", b"8")?;
/// prices.put(b"pear", b"13")?;
/// assert_eq!(prices.get(b"apple")?.as_deref(), Some(&b"10"[..]), "the sale has not begun");
/// assert_eq!(lowered.get(b"pear")?.as_deref(), Some(&b"12"[..]), "as when it was branched");
///
/// sale.absorb()?;
/// assert_eq!(prices.get(b"apple")?.as_deref(), Some(&b"8"[..]));
/// assert_eq!(prices.get(b"pear")?.as_deref(), Some(&b"13"[..]));
/// # Ok::<(), stitchfs::StoreError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Branch {
    db: Database,
    name: String,
    /// At least one, of one moment.
    trees: Vec<BranchedTree>,
}

/// A tree of a [`Branch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchedTree {
    /// Its name, which is that of the tree that was branched.
    pub name: String,
    /// Its number.
    pub id: TreeId,
    /// Number of the tree that was branched. It may be dropped by now.
    pub parent: TreeId,
    /// The last write to the tree that was branched that it sees.
    pub seqno: Seqno,
}

impl BranchedTree {
    /// Returns the tree, and the name of its branch, if it is in a branch of a database.
    fn of(info: &TreeInfo) -> Option<(&str, Self)> {
        let point = info.branch?;
        let (branch, name) = parse_branch_tree_name(&info.name)?;
        let tree = Self {
            name: name.to_owned(),
            id: info.id,
            parent: point.parent,
            seqno: point.seqno,
        };
        Some((branch, tree))
    }
}

impl Database {
    /// Makes a branch of trees, as they are now or were at a snapshot. Trees of other branches can
    /// be branched too, up to 32 deep.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`](crate::ErrorKind::Exists) if there is a branch of this name,
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a name that is empty, has a slash or
    /// is too long with that of a tree, without trees, and for a tree or snapshot of another store
    /// or instance; [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) for a tree that is gone or
    /// was made after the snapshot; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) with
    /// the RocksDB engine. Nothing is made.
    ///
    /// # Durability
    /// On the medium when this returns, with every commit that it sees. Older programs refuse a
    /// store that has had a branch.
    ///
    /// # Cost
    /// One sync of the log, and one record in the list of trees.
    pub fn create_branch(
        &self,
        name: &str,
        trees: &[Tree],
        at: Option<&Snapshot>,
    ) -> Result<Branch, StoreError> {
        check_branch_name(name)?;
        if self.branch(name).is_some() {
            let what = format!("a branch named {name:?}");
            return Err(StoreError::Exists { what });
        }
        let at = at.map(|at| at.moment_for(&self.instance)).transpose()?;
        let mut names = Vec::new();
        for tree in trees {
            let handle = || format!("tree {}", tree.id());
            Owner::new(tree.instance()).check(handle, &self.instance)?;
            names.push(branched_name(name, &tree.info()?)?);
        }
        let new = trees.iter().zip(&names);
        let new: Vec<_> = new
            .map(|(of, name)| NewBranch::new(of.id(), name))
            .collect();
        let made = self.instance.engine.branch_trees(&new, at)?;
        debug_assert_eq!(made.len(), trees.len(), "one tree for each");
        let branch = self.branch(name);
        branch.ok_or_else(|| KvError::Invalid("a branch is of at least one tree".into()).into())
    }

    /// Returns the branches, by name.
    #[must_use]
    pub fn branches(&self) -> Vec<Branch> {
        let mut branches: Vec<Branch> = Vec::new();
        for info in self.instance.engine.trees() {
            let Some((name, tree)) = BranchedTree::of(&info) else {
                continue;
            };
            match branches.iter_mut().find(|branch| branch.name == name) {
                Some(branch) => branch.trees.push(tree),
                None => branches.push(Branch {
                    db: self.clone(),
                    name: name.to_owned(),
                    trees: vec![tree],
                }),
            }
        }
        branches.sort_by(|a, b| a.name.cmp(&b.name));
        branches
    }

    /// Returns the branch of this name; `None` if there is none.
    #[must_use]
    pub fn branch(&self, name: &str) -> Option<Branch> {
        let mut branches = self.branches().into_iter();
        branches.find(|branch| branch.name == name)
    }
}

impl Branch {
    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its trees, by number.
    #[must_use]
    pub fn trees(&self) -> &[BranchedTree] {
        &self.trees
    }

    /// Returns the tree of this name, to be read, written to, and used in batches and transactions
    /// as any other; `None` if no tree of this name was branched.
    #[must_use]
    pub fn tree(&self, name: &str) -> Option<Tree> {
        let found = self.trees.iter().find(|tree| tree.name == name)?;
        Some(Tree::new(self.db.instance.clone(), found.id))
    }

    /// Returns the keys of a tree that may hold something else than where the branch began, in
    /// order: at most `count_max` after `after`. Fewer are the last ones.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if no tree of this name was branched, or
    /// the branch is gone.
    pub fn written_keys(
        &self,
        tree: &str,
        after: Option<&[u8]>,
        count_max: usize,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let found = self.trees.iter().find(|found| found.name == tree);
        let missing = || StoreError::Missing {
            what: format!("tree named {tree:?} in branch {:?}", self.name),
        };
        let tree = found.ok_or_else(missing)?.id;
        Ok(self
            .db
            .instance
            .engine
            .branch_keys(tree, after, count_max)?)
    }

    /// Gives what was written to the branch to the trees that were branched, and drops the branch:
    /// one commit, whole or not at all. What others wrote to those trees meanwhile stays, unless
    /// the branch wrote the same keys: then it is refused, or settled as
    /// [`Database::with_conflicts`] says. Upserts of the branch are folded into what the trees hold
    /// by then.
    ///
    /// No thread may write to the branch meanwhile: such writes are refused.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] with the keys that others have changed since the branch began, also
    /// those that they put into a range that the branch deleted;
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a branch that has a branch itself, and
    /// for more than [`Database::limits`] says of a batch;
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if the branch or one of the trees is
    /// gone; as [`Database::commit`]. The branch and the trees are as they were.
    ///
    /// # Durability
    /// As of [`Database::commit`].
    pub fn absorb(&self) -> Result<Seqno, StoreError> {
        self.absorb_with(CommitOptions::default())
    }

    /// As [`Self::absorb`], with options of the commit chosen by the caller.
    ///
    /// # Errors
    /// As [`Self::absorb`].
    pub fn absorb_with(&self, options: CommitOptions) -> Result<Seqno, StoreError> {
        let (engine, conflicts) = (&self.db.instance.engine, self.db.transactions.conflicts());
        let done = stitch_db::absorb_branches(engine.as_ref(), &self.ids(), conflicts, options);
        done.map_err(|error| self.db.store_error(error))
    }

    /// Drops the branch, with what was written to it, in one step.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if it is gone already.
    ///
    /// # Durability
    /// On the medium when this returns. A crash leaves all of its trees or none.
    pub fn drop_all(&self) -> Result<(), StoreError> {
        Ok(self.db.instance.engine.drop_trees(&self.ids())?)
    }

    fn ids(&self) -> Vec<TreeId> {
        debug_assert!(!self.trees.is_empty(), "a branch has a tree");
        self.trees.iter().map(|tree| tree.id).collect()
    }
}

fn check_branch_name(name: &str) -> Result<(), StoreError> {
    if name.is_empty() || name.contains('/') {
        let what = format!("{name:?} is no name of a branch: it is empty or has a slash in it");
        return Err(KvError::Invalid(what).into());
    }
    Ok(())
}

/// Returns the name of a tree's branch in the branch `branch`.
fn branched_name(branch: &str, of: &TreeInfo) -> Result<String, StoreError> {
    let inner = BranchedTree::of(of).map(|(_, tree)| tree.name);
    let own = inner.as_deref().unwrap_or(&of.name);
    let name = branch_tree_name(branch, own);
    if name.len() > TREE_NAME_BYTES_MAX {
        let more = name.len() - TREE_NAME_BYTES_MAX;
        let what = format!("{branch:?} is {more} bytes too long to branch tree {own:?}");
        return Err(KvError::Invalid(what).into());
    }
    debug_assert_eq!(
        parse_branch_tree_name(&name),
        Some((branch, own)),
        "a tree tells its branch by its name"
    );
    Ok(name)
}
