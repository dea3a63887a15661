//! Rows of external files against inodes, and against the plain files in their folder.

use super::lost::Lost;
use super::scan::Found;
use super::{Issue, Trees};
use crate::contents::Contents;
use crate::locator::Tree;
use crate::rows::is_readable;
use crate::{ExternalFiles, ExternalName, FsResult};
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::Ino;
use stitch_db::Changes;
use stitch_format::fs_sys::ExternalRow;

/// Rows of external files, by their inodes.
pub(super) type Rows = BTreeMap<Ino, ExternalRow>;

/// What rows say of each other.
pub(super) fn rows(found: &Found) -> Vec<Issue> {
    let is_external = |ino: &Ino| {
        let inode = found.inodes.get(ino);
        inode.filter(|inode| inode.contents() == Some(Contents::External))
    };
    let mut issues = Vec::new();
    for (&ino, row) in &found.externals {
        match is_external(&ino) {
            None => issues.push(Issue::LooseExternal { ino }),
            Some(inode) if row.settled > inode.size => {
                let size = inode.size;
                issues.push(Issue::SettledBeyondEnd { ino, size });
            }
            Some(_) => {}
        }
    }
    debug_assert!(issues.len() <= found.externals.len(), "one for each row");
    let mut nowhere: Vec<Ino> = found.inodes.keys().copied().collect();
    nowhere.retain(|ino| is_external(ino).is_some() && !found.externals.contains_key(ino));
    nowhere.sort_unstable();
    issues.extend(nowhere.into_iter().map(|ino| Issue::NoPlainFile { ino }));
    if !found.externals.is_empty() && !found.has(|header| header.has_external) {
        issues.push(Issue::Unmarked);
    }
    issues
}

/// Compares rows with the folder, both ways. A plain file that is longer than its row says was not
/// synced, or not cut yet: what lies behind the file's size is not of it.
pub(super) fn folder(
    externals: &Rows,
    lost: &Lost,
    files: &dyn ExternalFiles,
) -> FsResult<Vec<Issue>> {
    let found: BTreeMap<ExternalName, u64> = files.list()?.into_iter().collect();
    let mut issues = Vec::new();
    let mut named = BTreeSet::new();
    for (&ino, row) in externals {
        let number = row.number;
        let name = ExternalName { ino, number };
        named.insert(name);
        let path = files.path(name);
        match found.get(&name) {
            None => issues.push(Issue::MissingPlainFile { ino, path }),
            Some(&len) if len < row.settled => issues.push(Issue::ShortPlainFile {
                ino,
                path,
                settled: row.settled,
                len,
            }),
            Some(_) => {}
        }
    }
    // Rows that are lost may name them.
    debug_assert_eq!(named.len(), externals.len(), "an inode has one plain file");
    debug_assert!(issues.len() <= externals.len(), "one for each row");
    if !lost.is_any_of("sys") {
        let extra = found.keys().filter(|name| !named.contains(name));
        let issue = |&name: &ExternalName| Issue::ExtraPlainFile {
            name,
            path: files.path(name),
        };
        issues.extend(extra.map(issue));
    }
    Ok(issues)
}

/// What is settled of a file is at most `most`.
pub(super) fn unsettle(trees: &Trees, changes: &mut Changes, ino: Ino, most: u64) -> FsResult<()> {
    let key = trees.keys.external(ino);
    if let Some(row) = trees.schema.now().get(trees.sys, &key)? {
        let row = ExternalRow::decode(&row)?;
        let settled = row.settled.min(most);
        let row = ExternalRow { settled, ..row }.encode();
        debug_assert!(
            is_readable(Tree::Sys, &key, &row),
            "a repaired row is read again"
        );
        changes.put(trees.sys, &key, &row);
    }
    Ok(())
}
