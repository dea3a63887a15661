//! A directory and all below it, as the rows say at one moment.

use crate::locator::Locator;
use crate::recent::{RecentSince, hash_of};
use crate::schema::Store;
use crate::{FsError, FsResult};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use stitch_base::Ino;
use stitch_format::fs_inode::{FileKind, InodeHead, MetaRow};

/// Names of a directory, and the inodes that they lead to.
pub(super) type NameMap = BTreeMap<Box<[u8]>, Ino>;

/// An inode below the directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeenInode {
    pub(super) head: InodeHead,
    /// Names below the directory.
    pub(super) names: u32,
    /// Its row is under its number.
    pub(super) is_own: bool,
}

impl SeenInode {
    pub(super) fn is_dir(&self) -> bool {
        self.head.kind == FileKind::Directory
    }
}

/// All inodes and names of the tree.
#[derive(Debug)]
pub(super) struct DirTree {
    pub(super) top: Ino,
    /// Directories, each behind the one that it is in.
    pub(super) dirs: Vec<Ino>,
    inodes: HashMap<Ino, SeenInode>,
    names: HashMap<Ino, NameMap>,
    /// Inodes that changed from this time on are recent.
    recent_since: RecentSince,
    /// What stands for the bytes behind the heads of recent inodes.
    recent_tails: HashMap<Ino, u64>,
}

static NO_NAMES: NameMap = NameMap::new();

impl DirTree {
    /// Reads all below a directory. Keeps hashes of what is behind the heads of inodes that changed
    /// at `recent_since` or later.
    ///
    /// # Errors
    /// [`FsError::Corrupt`] for rows that lead nowhere; those of a read.
    pub(super) fn read(store: &Store, top: InodeHead, recent_since: RecentSince) -> FsResult<Self> {
        debug_assert_eq!(top.kind, FileKind::Directory, "only directories have names");
        let mut tree = Self {
            top: top.ino,
            dirs: vec![top.ino],
            inodes: HashMap::new(),
            names: HashMap::new(),
            recent_since,
            recent_tails: HashMap::new(),
        };
        let seen = SeenInode {
            head: top,
            names: 1,
            is_own: top.ino == Ino::ROOT,
        };
        tree.inodes.insert(top.ino, seen);
        let mut next = 0;
        while let Some(&dir) = tree.dirs.get(next) {
            tree.read_dir(store, dir)?;
            next += 1;
        }
        debug_assert!(tree.holds());
        debug_assert_eq!(tree.names.len(), tree.dirs.len(), "all are read");
        debug_assert!(
            tree.recent_tails.keys().all(|ino| tree.has(*ino)),
            "of inodes of the tree"
        );
        Ok(tree)
    }

    /// Reports whether directories are inodes of the tree, and no other ones have names.
    fn holds(&self) -> bool {
        let is_of_top = self.dirs.first() == Some(&self.top);
        is_of_top && self.names.len() <= self.dirs.len() && self.dirs.len() <= self.inodes.len()
    }

    fn read_dir(&mut self, store: &Store, dir: Ino) -> FsResult<()> {
        debug_assert!(self.has(dir), "a name led to it");
        debug_assert!(!self.names.contains_key(&dir), "it is read once");
        let mut names = NameMap::new();
        let mut scan = store.scan(&store.keys.dentries(dir))?;
        while let Some((key, row)) = scan.next()? {
            let (_, name) = Locator::name_of(key).ok_or_else(|| {
                FsError::Corrupt(format!("directory {dir} has a row without name"))
            })?;
            let ino = match MetaRow::decode(row)? {
                MetaRow::Inode(head, tail) => {
                    self.see(head, tail, false);
                    head.ino
                }
                MetaRow::Link { ino, .. } => {
                    self.see_link(store, ino)?;
                    ino
                }
            };
            names.insert(Box::from(name), ino);
        }
        self.names.insert(dir, names);
        debug_assert!(self.holds());
        Ok(())
    }

    fn see(&mut self, head: InodeHead, tail: &[u8], is_own: bool) {
        let is_new = !self.inodes.contains_key(&head.ino);
        let seen = self.inodes.entry(head.ino).or_insert(SeenInode {
            head,
            names: 0,
            is_own,
        });
        seen.names += 1;
        if is_new && self.is_recent(&head) {
            self.recent_tails.insert(head.ino, hash_of(tail));
        }
        if is_new && head.kind == FileKind::Directory {
            debug_assert_ne!(head.ino, self.top, "the top is there before");
            self.dirs.push(head.ino);
        }
        debug_assert!(self.has(head.ino));
    }

    fn see_link(&mut self, store: &Store, ino: Ino) -> FsResult<()> {
        if let Some(seen) = self.inodes.get_mut(&ino) {
            seen.names += 1;
            return Ok(());
        }
        let Some((head, tail)) = store.own_row(ino)? else {
            return Err(FsError::Corrupt(format!(
                "a link names inode {ino}, which is not"
            )));
        };
        self.see(head, &tail, true);
        Ok(())
    }

    /// Reports whether an inode changed so late that its times do not tell of a later change.
    pub(super) const fn is_recent(&self, head: &InodeHead) -> bool {
        self.recent_since.is_recent(head)
    }

    /// Returns the hash of what is behind the head of a recent inode.
    pub(super) fn recent_tail(&self, ino: Ino) -> Option<u64> {
        let tail = self.recent_tails.get(&ino).copied();
        debug_assert!(tail.is_none() || self.has(ino), "of an inode of the tree");
        tail
    }

    /// Returns the paths of directories of the tree from its top on, in the order of their numbers.
    /// The top itself has none.
    ///
    /// # Cost
    /// A walk through all names of the tree, in memory.
    pub(super) fn paths_of(&self, wanted: &BTreeSet<Ino>) -> Vec<Vec<u8>> {
        let mut above: HashMap<Ino, (Ino, &[u8])> = HashMap::new();
        for dir in &self.dirs {
            for (name, ino) in self.names(*dir) {
                // A damaged directory has a second name, further down: the first one counts.
                if *ino != self.top && self.get(*ino).is_some_and(SeenInode::is_dir) {
                    above.entry(*ino).or_insert((*dir, name));
                }
            }
        }
        debug_assert!(!above.contains_key(&self.top), "the top has no name in it");
        let path_of = |ino: &Ino| {
            let mut names = Vec::new();
            let mut at = *ino;
            while let Some((dir, name)) = above.get(&at) {
                names.push(*name);
                debug_assert!(names.len() < self.dirs.len(), "the way up has no ring");
                at = *dir;
            }
            names.reverse();
            (!names.is_empty()).then(|| names.join(&b'/'))
        };
        let paths: Vec<Vec<u8>> = wanted.iter().filter_map(path_of).collect();
        debug_assert!(
            paths.iter().all(|path| !path.is_empty()),
            "the top alone has none"
        );
        paths
    }

    pub(super) fn has(&self, ino: Ino) -> bool {
        self.inodes.contains_key(&ino)
    }

    pub(super) fn get(&self, ino: Ino) -> Option<&SeenInode> {
        let found = self.inodes.get(&ino);
        debug_assert!(
            found.is_none_or(|seen| seen.head.ino == ino),
            "of the number"
        );
        debug_assert!(found.is_none_or(|seen| seen.names > 0), "a name led to it");
        found
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = Ino> {
        self.inodes.keys().copied()
    }

    pub(super) fn inodes(&self) -> impl Iterator<Item = (Ino, &SeenInode)> {
        self.inodes.iter().map(|(ino, seen)| (*ino, seen))
    }

    /// Returns the names of a directory; none of what is no directory below the top.
    pub(super) fn names(&self, dir: Ino) -> &NameMap {
        debug_assert!(!self.names.contains_key(&dir) || self.has(dir));
        self.names.get(&dir).unwrap_or(&NO_NAMES)
    }
}
