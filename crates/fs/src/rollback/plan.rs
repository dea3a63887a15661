//! What each inode of a snapshot becomes. Reads rows, changes nothing but takes numbers for copies.

use super::present::Present;
use super::shares::{ShareFinder, Shares};
use super::sides::RollbackSides;
use super::tree::{DirTree, SeenInode};
use crate::contents::Contents;
use crate::inode::Location;
use crate::{FsError, FsResult};
use std::collections::{HashMap, HashSet};
use stitch_base::Ino;
use stitch_format::fs_inode::{FileKind, InodeHead, row_flag};

/// What an inode of the snapshot becomes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    /// As it will be. Its number is another one than in the snapshot if it is a copy.
    pub(super) head: InodeHead,
    /// Its row will be under its number.
    pub(super) is_own: bool,
    /// All of it is so already.
    pub(super) is_same: bool,
    /// It has no name at the moment.
    pub(super) is_revived: bool,
    /// It has a row under its number, and no name: its head.
    pub(super) orphan: Option<InodeHead>,
    /// The number under which its own chunks will be.
    pub(super) chunks: Ino,
}

/// Where an inode is that the directory does not have.
enum Whereabouts {
    /// Nowhere, or in memory alone.
    Gone,
    /// Under its number, without names.
    Orphan(InodeHead),
    /// It has a name elsewhere.
    Elsewhere,
}

/// What becomes of all inodes of the snapshot.
#[derive(Debug)]
pub(super) struct RollbackPlan {
    targets: HashMap<Ino, Target>,
    /// What files of the snapshot share afterwards, where anything.
    shares: HashMap<Ino, Shares>,
    /// Numbers of the directories that will have a known directory below them.
    above_known: HashSet<Ino>,
    /// Names at the top, for directories whose name leads to another inode of the snapshot before
    /// they have their own again.
    aside: HashMap<Ino, Box<[u8]>>,
}

impl RollbackPlan {
    /// Decides, with all locks held. `None` if back rows have to be complete first.
    pub(super) fn new(fs: &Present<'_>, sides: RollbackSides<'_>) -> FsResult<Option<Self>> {
        let ((_, was), (_, now)) = (sides.past, sides.present);
        debug_assert_eq!(was.top, now.top, "one directory on both sides");
        let (mut targets, mut shares) = (HashMap::new(), HashMap::new());
        let finder = ShareFinder::new(fs, sides);
        for (ino, seen) in was.inodes() {
            if Contents::are_external(&seen.head) {
                return Err(FsError::Unsupported);
            }
            let mut target = match now.get(ino) {
                Some(present) => in_both(fs, sides, seen, present)?,
                None => match whereabouts(fs, was.top, ino)? {
                    None => return Ok(None),
                    Some(found) => revived(fs, seen, &found)?,
                },
            };
            if !target.is_same
                && let Some(shared) = finder.of_file(&seen.head, target.head.ino)?
            {
                debug_assert_ne!(shared.contents, target.chunks, "own chunks are apart");
                target.head.flags = Contents::Shared.mark(target.head.flags);
                shares.insert(ino, shared);
            }
            targets.insert(ino, target);
        }
        debug_assert_eq!(
            targets.len(),
            was.numbers().count(),
            "every inode has a target"
        );
        let mut plan = Self {
            targets,
            shares,
            above_known: HashSet::new(),
            aside: names_aside(was, now),
        };
        let above = above_known(fs, was);
        plan.above_known = above.into_iter().map(|dir| plan.number(dir)).collect();
        debug_assert_eq!(
            plan.number(was.top),
            was.top,
            "the directory keeps its number"
        );
        Ok(Some(plan))
    }

    /// Reports whether a directory, by its number afterwards, is above a known one.
    pub(super) fn is_above_known(&self, number: Ino) -> bool {
        self.above_known.contains(&number)
    }

    /// Returns the name that a directory has at the top while its own leads to another inode.
    pub(super) fn name_aside(&self, dir: Ino) -> &[u8] {
        self.aside.get(&dir).expect("its name is overwritten")
    }

    /// Returns what an inode of the snapshot becomes.
    pub(super) fn of(&self, ino: Ino) -> &Target {
        self.targets.get(&ino).expect("every inode has a target")
    }

    /// Returns what a file of the snapshot shares afterwards.
    pub(super) fn shares_of(&self, ino: Ino) -> Option<&Shares> {
        let shares = self.shares.get(&ino);
        debug_assert!(
            shares.is_none() || !self.of(ino).is_same,
            "one that is the same is not restored"
        );
        shares
    }

    /// Returns the number that an inode of the snapshot has afterwards.
    pub(super) fn number(&self, ino: Ino) -> Ino {
        self.of(ino).head.ino
    }

    /// Refuses to change an inode of another owner.
    pub(super) fn check_owner(
        &self,
        was: &DirTree,
        now: &DirTree,
        owner: Option<u32>,
    ) -> FsResult<()> {
        let Some(owner) = owner else {
            return Ok(());
        };
        let is_same = |ino| self.targets.get(&ino).is_some_and(|target| target.is_same);
        let mut both = was.inodes().chain(now.inodes());
        match both.all(|(ino, seen)| seen.head.uid == owner || is_same(ino)) {
            true => Ok(()),
            false => Err(FsError::Perm),
        }
    }
}

fn is_own(head: &InodeHead) -> bool {
    head.kind != FileKind::Directory && head.nlink > 1
}

/// Returns the number under which a file gets its own chunks: its own, unless others may share what
/// is under it.
fn number_of_chunks(fs: &Present<'_>, head: &InodeHead, is_same: bool) -> FsResult<Ino> {
    let (store, ino) = (fs.store, head.ino);
    if is_same || head.kind != FileKind::Regular || !fs.header.lock().has_shared {
        return Ok(ino);
    }
    if let Some(row) = store.find_shared_row(ino)? {
        return Ok(row.own);
    }
    match store.get(&store.keys.contents(ino))? {
        Some(_) => fs.changes.new_ino(),
        None => Ok(ino),
    }
}

/// Marks where the contents of a file will be, if it shares none.
fn mark_contents(head: &mut InodeHead, chunks: Ino) {
    debug_assert!(chunks.0 > 0, "chunks are under a number");
    debug_assert!(
        head.kind == FileKind::Regular || chunks == head.ino,
        "files alone have chunks elsewhere"
    );
    if head.kind != FileKind::Regular {
        return;
    }
    if chunks == head.ino {
        head.flags = Contents::unshared(head.flags);
        return;
    }
    if Contents::of(head) == Contents::Inline && head.size > 0 {
        // What the row has becomes a chunk, if it has anything.
        head.flags |= row_flag::HOLES;
        head.chunks = 1;
    }
    head.flags = Contents::Shared.mark(head.flags);
}

/// An inode that the directory has on both sides.
fn in_both(
    fs: &Present<'_>,
    sides: RollbackSides<'_>,
    seen: &SeenInode,
    present: &SeenInode,
) -> FsResult<Target> {
    let mut head = seen.head;
    debug_assert_eq!(head.ino, present.head.ino, "one inode");
    debug_assert!(seen.names > 0, "a name leads to it");
    debug_assert!(present.names > 0, "a name leads to it");
    let is_dir = head.kind == FileKind::Directory;
    if !is_dir {
        let outside = present.head.nlink.saturating_sub(present.names);
        head.nlink = seen.names + outside;
    }
    debug_assert!(is_dir || head.nlink >= seen.names, "its names lead to it");
    // A row that is under its number stays there.
    let is_own = is_own(&head) || present.is_own;
    let unshared = InodeHead {
        flags: Contents::unshared(present.head.flags),
        ..present.head
    };
    let is_same_head = unshared
        == InodeHead {
            flags: Contents::unshared(head.flags),
            ..head
        };
    let is_same = is_same_head
        && is_own == present.is_own
        && !sides.has_changed(&seen.head, &present.head)?;
    let chunks = number_of_chunks(fs, &head, is_same)?;
    if is_same {
        head = present.head;
    } else {
        head.flags &= !row_flag::ALLOCATED;
        mark_contents(&mut head, chunks);
    }
    Ok(Target {
        head,
        is_own,
        is_same,
        is_revived: false,
        orphan: None,
        chunks,
    })
}

/// An inode that the directory has lost.
fn revived(fs: &Present<'_>, seen: &SeenInode, found: &Whereabouts) -> FsResult<Target> {
    let mut head = seen.head;
    debug_assert!(seen.names > 0, "the snapshot has a name of it");
    head.flags &= !row_flag::ALLOCATED;
    if head.kind != FileKind::Directory {
        head.nlink = seen.names;
    }
    if matches!(found, Whereabouts::Elsewhere) {
        head.ino = fs.changes.new_ino()?;
    }
    debug_assert!(
        head.kind == FileKind::Directory || head.nlink > 0,
        "its names lead to it"
    );
    let chunks = number_of_chunks(fs, &head, false)?;
    mark_contents(&mut head, chunks);
    Ok(Target {
        chunks,
        head,
        is_own: is_own(&head),
        is_same: false,
        is_revived: true,
        orphan: match found {
            Whereabouts::Orphan(head) => Some(*head),
            Whereabouts::Gone | Whereabouts::Elsewhere => None,
        },
    })
}

/// Finds an inode that is not below the directory; `None` if back rows are needed.
fn whereabouts(fs: &Present<'_>, top: Ino, ino: Ino) -> FsResult<Option<Whereabouts>> {
    debug_assert_ne!(ino, top, "the directory itself is there");
    if let Some(known) = fs.residents.inodes.find(ino) {
        return Ok(Some(match known.location {
            Location::Memory(_) => Whereabouts::Gone,
            Location::Own if known.head.nlink == 0 => Whereabouts::Orphan(known.head),
            Location::Own | Location::Entry { .. } => Whereabouts::Elsewhere,
        }));
    }
    match fs.store.own_row(ino)? {
        Some((head, _)) if head.nlink == 0 => Ok(Some(Whereabouts::Orphan(head))),
        Some(_) => Ok(Some(Whereabouts::Elsewhere)),
        // Nothing leaves the directory that the view shows.
        None if top == fs.standing.views.shown_root(fs.standing.number) => {
            Ok(Some(Whereabouts::Gone))
        }
        None => Ok(fs.numbers.has_place(ino)?.map(|has_place| match has_place {
            true => Whereabouts::Elsewhere,
            false => Whereabouts::Gone,
        })),
    }
}

/// Names that are free at the top, for each directory whose name leads to another inode in the
/// snapshot.
fn names_aside(was: &DirTree, now: &DirTree) -> HashMap<Ino, Box<[u8]>> {
    let is_free = |name: &[u8]| {
        let is_in = |tree: &DirTree| tree.names(tree.top).contains_key(name);
        !is_in(was) && !is_in(now)
    };
    let free = |dir: Ino| {
        let mut names = (0u64..).map(|n| format!(".rollback-{dir}-{n}").into_bytes());
        let name = names.find(|name| is_free(name));
        name.expect("a directory has fewer names")
            .into_boxed_slice()
    };
    let mut aside = HashMap::new();
    for &dir in &was.dirs {
        for (name, &ino) in was.names(dir) {
            let old = now.names(dir).get(name).filter(|old| **old != ino);
            let is_dir = |old: &Ino| now.get(*old).is_some_and(SeenInode::is_dir);
            if let Some(&old) = old.filter(|old| is_dir(old)) {
                aside.entry(old).or_insert_with(|| free(old));
            }
        }
    }
    debug_assert!(
        aside.keys().all(|dir| now.has(*dir)),
        "directories that are there"
    );
    aside
}

/// The directories on the way from the top to each known directory: it pins the one that it is in.
fn above_known(fs: &Present<'_>, was: &DirTree) -> HashSet<Ino> {
    let mut parents = HashMap::new();
    for &dir in &was.dirs {
        for &child in was.names(dir).values() {
            parents.insert(child, dir);
        }
    }
    let mut above = HashSet::new();
    for &dir in &was.dirs {
        let mut at = dir;
        if fs.residents.inodes.find(dir).is_none() {
            continue;
        }
        while let Some(&parent) = parents.get(&at)
            && at != was.top
            && above.insert(parent)
        {
            at = parent;
        }
    }
    debug_assert!(
        above.iter().all(|dir| was.has(*dir)),
        "directories of the snapshot"
    );
    above
}
