//! Compares what the walk kept. Pure: the same findings give the same issues in the same order.

use super::Issue;
use super::allocated::Sum;
use super::back;
use super::lost::Lost;
use super::scan::Found;
use crate::contents::Contents;
use std::collections::{BTreeSet, HashMap};
use stitch_base::Ino;
use stitch_format::fs_inode::FileKind;
use stitch_format::fs_key::{CHUNK_BYTES, INO_MAX};

/// All issues of a file system that lost rows do not explain.
pub(super) fn judge(found: &mut Found, lost: &Lost) -> Vec<Issue> {
    if !found.is_readable {
        debug_assert!(!found.issues.is_empty(), "a fault keeps it from being read");
        debug_assert!(found.inodes.is_empty(), "no row was read");
        return std::mem::take(&mut found.issues);
    }
    names(found);
    debug_assert!(found.links.is_empty(), "each link is counted or an issue");
    if !found.inodes.contains_key(&Ino::ROOT) {
        found.issues.push(Issue::NoRoot);
    }
    let mut issues = std::mem::take(&mut found.issues);
    let mut order: Vec<Ino> = found.inodes.keys().copied().collect();
    order.sort_unstable();
    for ino in &order {
        issues.extend(inode(found, *ino));
        issues.extend(chunks(found, *ino));
    }
    issues.extend(directories(found));
    issues.extend(unreachable(found, &order));
    issues.extend(orphans(found));
    issues.extend(policies(found));
    issues.extend(order.iter().filter_map(|&ino| back::missing(found, ino)));
    issues.extend(numbers(found));
    lost.withhold(found, issues)
}

/// Counts the names of inodes that have their own row.
fn names(found: &mut Found) {
    for link in std::mem::take(&mut found.links) {
        let (key, ino) = (link.key, link.ino);
        match found.inodes.get_mut(&ino) {
            None => found.issues.push(Issue::DanglingName { key, ino }),
            Some(inode) if inode.kind == FileKind::Directory || inode.place.is_some() => {
                found.issues.push(Issue::TwoRows { ino, key });
            }
            Some(inode) => {
                inode.names += 1;
                debug_assert!(inode.key.len() == 8, "a link leads to a row under a number");
                if inode.kind != link.kind {
                    found.issues.push(Issue::WrongType { key, ino });
                }
            }
        }
    }
}

fn inode(found: &Found, ino: Ino) -> Option<Issue> {
    let inode = &found.inodes[&ino];
    debug_assert!(
        inode.kind != FileKind::Directory || inode.names <= 1,
        "a directory has one place"
    );
    debug_assert!(
        inode.place.is_none() || inode.names == 1,
        "links do not lead to a row under a name"
    );
    if inode.names == 0 && ino != Ino::ROOT {
        if found.orphans.contains(&ino) {
            return None;
        }
        return Some(if inode.nlink == 0 {
            Issue::UnlistedOrphan { ino }
        } else {
            Issue::Nameless { ino }
        });
    }
    let counted = match inode.kind {
        FileKind::Directory => 2 + found.subdirs.get(&ino).copied().unwrap_or(0),
        _ => inode.names,
    };
    debug_assert!(counted > 0, "it has a name, or is the root");
    (inode.nlink != counted).then(|| Issue::LinkCount {
        ino,
        key: inode.key.to_vec(),
        stored: inode.nlink,
        counted,
    })
}

/// What a row says of holes is what `SEEK_HOLE` and block counts are made of.
fn chunks(found: &Found, ino: Ino) -> Option<Issue> {
    let inode = &found.inodes[&ino];
    let is_chunked = inode.contents().is_some_and(Contents::are_chunks);
    debug_assert!(
        is_chunked || inode.chunks == 0,
        "chunks of no other kind are counted"
    );
    debug_assert!(is_chunked || !inode.is_odd);
    let chunks = inode.chunks.saturating_add(found.shared.chunks(ino));
    let allocated = found.allocated.get(&ino).map_or(0, Sum::known_chunks);
    let is_wrong = match inode.chunks_most {
        Some(most) => chunks.max(allocated) > most,
        None => chunks < inode.size.div_ceil(CHUNK_BYTES),
    };
    let is_issue = is_chunked && is_wrong && !inode.is_odd;
    // Contents that no path of a clone leads to may be gone.
    let is_needed = || found.has_contents_of(ino) && found.shows(ino);
    (is_issue && is_needed()).then(|| Issue::ChunkCount {
        ino,
        key: inode.key.to_vec(),
        // Which of them are the same is not known.
        counted: chunks.saturating_add(allocated),
    })
}

fn directories(found: &Found) -> Vec<Issue> {
    let issue = |&ino: &Ino| match found.inodes.get(&ino) {
        None => Some(Issue::MissingDirectory { ino }),
        Some(inode) if inode.kind != FileKind::Directory => Some(Issue::NotADirectory { ino }),
        Some(_) => None,
    };
    debug_assert!(
        found.parents.iter().all(|ino| ino.0 <= found.largest),
        "numbers were counted"
    );
    found.parents.iter().filter_map(issue).collect()
}

/// One directory of each ring of directories that hold each other. All others hang from the root,
/// from a missing directory, or from a ring.
fn unreachable(found: &Found, order: &[Ino]) -> Vec<Issue> {
    debug_assert!(
        order.is_sorted_by(|a, b| a < b),
        "each inode once, in order"
    );
    let mut settled: HashMap<Ino, ()> = HashMap::new();
    let mut issues = Vec::new();
    for &start in order
        .iter()
        .filter(|ino| found.inodes[ino].kind == FileKind::Directory)
    {
        let mut path = BTreeSet::new();
        let mut at = start;
        loop {
            if settled.contains_key(&at) {
                break;
            }
            if !path.insert(at) {
                debug_assert!(found.inodes[&at].place.is_some(), "a ring has no end");
                let key = found.inodes[&at].key.to_vec();
                issues.push(Issue::Unreachable { ino: at, key });
                break;
            }
            match found.inodes.get(&at).and_then(|inode| inode.place) {
                Some(parent) => at = parent,
                None => break,
            }
        }
        debug_assert!(
            path.len() <= order.len() + 1,
            "inodes, and one that is missing"
        );
        settled.extend(path.into_iter().map(|ino| (ino, ())));
    }
    debug_assert!(issues.len() <= order.len(), "a ring has a directory");
    issues
}

fn orphans(found: &Found) -> Vec<Issue> {
    let is_orphan = |ino: &Ino| found.inodes.get(ino).is_some_and(|i| i.names == 0);
    let wrong = found.orphans.iter().filter(|ino| !is_orphan(ino));
    debug_assert!(
        found.orphans.iter().all(|ino| ino.0 <= found.largest),
        "numbers were counted"
    );
    wrong.map(|&ino| Issue::FalseOrphan { ino }).collect()
}

/// Those of directories in clones are compared with the clones; see [`false_policies`].
fn policies(found: &Found) -> Vec<Issue> {
    let own = found.policies.iter().filter(|(view, _)| *view == 0);
    let wrong = own.filter(|(_, dir)| !may_have_policy(found, *dir));
    wrong.map(|&(_, ino)| Issue::FalsePolicy { ino }).collect()
}

/// Lists the policies in a clone, of which `found` was found, of what is no directory there.
pub(super) fn false_policies(
    policies: &BTreeSet<(u64, Ino)>,
    number: u64,
    found: &Found,
) -> Vec<Issue> {
    debug_assert!(number > 0, "mainline has none in a clone");
    if !found.is_readable {
        return Vec::new();
    }
    let own = policies.iter().filter(|(view, _)| *view == number);
    let wrong = own.filter(|(_, dir)| !may_have_policy(found, *dir));
    wrong
        .map(|&(number, ino)| Issue::FalseClonePolicy { number, ino })
        .collect()
}

/// A directory that was removed may have its policy for a while.
fn may_have_policy(found: &Found, dir: Ino) -> bool {
    debug_assert!(found.is_readable, "inodes of what was read");
    match found.inodes.get(&dir) {
        Some(inode) => inode.kind == FileKind::Directory,
        None => dir.0 < found.next_ino.unwrap_or(INO_MAX),
    }
}

fn numbers(found: &Found) -> Vec<Issue> {
    let mut issues = Vec::new();
    let needed = (found.largest.max(Ino::ROOT.0) + 1).min(INO_MAX);
    debug_assert!(needed > Ino::ROOT.0, "the root has its number");
    let stored = found.next_ino.unwrap_or(0);
    if stored < needed || stored > INO_MAX {
        issues.push(Issue::NextIno { stored, needed });
    }
    let is_named =
        |(ino, inode): &(&Ino, &super::scan::FoundInode)| inode.names > 0 || **ino == Ino::ROOT;
    let counted = found.inodes.iter().filter(is_named).count() as u64;
    let stored = found.inode_count.unwrap_or(0);
    if stored != counted {
        issues.push(Issue::InodeCount { stored, counted });
    }
    issues
}
