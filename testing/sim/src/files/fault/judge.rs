//! Judges the state after an operation that met an error.

use super::{HostRun, tree};
use crate::System;
use crate::files::past::Pages;
use crate::files::{FsOp, LiveFs, Node, Tree, What};
use crate::kv::Host;
use std::collections::{BTreeMap, BTreeSet};
use stitch_base::Ino;
use stitch_fs::fsck::{self, Issue};
use stitch_fs::{ExternalFiles, ExternalName, FileKind};

impl<H: Host> HostRun<'_, H> {
    /// Finds out what an operation has done, and continues the timeline from there.
    pub(super) fn follow(
        &mut self,
        live: &LiveFs,
        op: &FsOp,
        is_done: bool,
        found: &Tree,
    ) -> Result<(), String> {
        let len = self.timeline.len();
        let before = self.timeline.last().clone();
        self.timeline.push(self.system, op.clone(), false);
        let after = self.timeline.last().clone();
        let slack = Slack {
            partly: if is_done { None } else { written(op) },
            doubtful: paths_of(live, found, &self.doubtful)?,
        };
        let is_after = slack.allows(found, &after, &before);
        // A sync that failed has made nothing durable that can be relied upon.
        let is_sync = matches!(op.what, What::Sync | What::SyncFile { .. });
        let is_exact = exactly(found, &after) && !is_sync;
        if !is_done && !is_exact && slack.allows(found, &before, &after) {
            self.timeline = self.timeline.cut(self.system, len);
            self.timeline.push(self.system, op.clone(), true);
        } else if !is_after {
            let difference = |other| difference(found, other);
            return Err(format!(
                "is neither as before nor as after it; against before: {}; against after: {}",
                difference(&before),
                difference(&after)
            ));
        }
        self.take_found(op.at, found);
        self.exact(found)
    }

    /// Contents that are a part of what was to be, or have lost what was not synced, are what they
    /// are.
    fn take_found(&mut self, at: u64, found: &Tree) {
        let base = self.timeline.last().clone();
        for (path, node) in found {
            let is_other = node.content != base[path].content;
            if let (true, true, Some(pages)) = (is_other, *path == node.first, &node.pages) {
                let (path, pages) = (path.clone(), pages.clone());
                let what = What::Found { path, pages };
                self.timeline.push(self.system, FsOp { at, what }, false);
            }
        }
    }

    fn exact(&self, found: &Tree) -> Result<(), String> {
        match exactly(found, self.timeline.last()) {
            true => Ok(()),
            false => Err(difference(found, self.timeline.last())),
        }
    }

    /// Checks that the state is that of the timeline, to the byte.
    pub(super) fn same(&self, live: &LiveFs, when: &str) -> Result<(), String> {
        self.files.pause_faults(true);
        let found = self.system.state(live);
        self.files.pause_faults(false);
        let found = found.map_err(|e| format!("{when}: it cannot be read: {e}"))?;
        self.exact(&found)
            .map_err(|e| format!("{when}: {e}; the last:{}", self.timeline.tail(6)))
    }

    /// Plain files that are lent are as long as their files, but for those that could not be cut.
    pub(super) fn lent_fit(&self, live: &LiveFs) -> Result<(), String> {
        if self.device.hits() > 0 {
            // Cutting needs a sync of the engine.
            return Ok(());
        }
        let hits = self.files.hits();
        let lens = self.names()?;
        let firsts = self.timeline.last().iter();
        for (path, node) in firsts.filter(|(_, node)| node.attr.kind == FileKind::Regular) {
            let Ok(ino) = tree::ino(&live.fs, path) else {
                continue;
            };
            for name in live.lent.iter().filter(|name| name.ino == ino) {
                let is_excused = hits
                    .iter()
                    .any(|hit| hit.name == Some(*name) && ["cut", "open"].contains(&hit.op));
                let len = lens.get(name).copied();
                if !is_excused && len.is_some_and(|len| len != node.attr.size) {
                    let size = node.attr.size;
                    return Err(format!(
                        "{path:?} is lent and has {size} bytes, not {len:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks the counts, except for plain files that could not be made or removed.
    pub(super) fn counts(&self, live: &LiveFs) -> Result<(), String> {
        self.files.pause_faults(true);
        let files: &dyn ExternalFiles = &self.files;
        let issues = fsck::check_with_files(live.fs.engine(), &[], Some(files), &mut |_| {});
        self.files.pause_faults(false);
        let mut names = self.names()?;
        let hits = self.files.hits();
        for issue in issues.map_err(|e| e.to_string())? {
            let Issue::ExtraPlainFile { name, .. } = issue else {
                return Err(format!("fsck: {issue}"));
            };
            let is_hit = |op| {
                let mut of_it = hits.iter().filter(|hit| hit.name == Some(name));
                of_it.any(|hit| hit.op == op)
            };
            if !is_hit("create") && !is_hit("remove") {
                return Err(format!("{name} is left, and nothing of it has failed"));
            }
            names.remove(&name);
        }
        match self.doubtful.is_empty() {
            true => counts_all(live, self.timeline.last(), &names),
            // How long they are is not known.
            false => Ok(()),
        }
    }
}

/// Checks that the counts of files and bytes are correct. A file that was never opened, as in a
/// removed tree, counts with its synced length.
pub(super) fn counts_all(
    live: &LiveFs,
    state: &Tree,
    names: &BTreeMap<ExternalName, u64>,
) -> Result<(), String> {
    let mut read = BTreeSet::new();
    for (path, node) in state.iter().filter(|(_, node)| node.attr.size > 0) {
        if let (FileKind::Regular, Ok(ino)) = (node.attr.kind, tree::ino(&live.fs, path)) {
            read.insert(ino);
        }
    }
    let (count, most) = (names.len() as u64, names.values().sum());
    let of_read = names.iter().filter(|(name, _)| read.contains(&name.ino));
    let least: u64 = of_read.map(|(_, len)| len).sum();
    match live.fs.external_usage() {
        counted if counted.0 == count && (least..=most).contains(&counted.1) => Ok(()),
        counted => Err(format!(
            "files and bytes: {counted:?}, there are {count}, {least} to {most}"
        )),
    }
}

/// Which file an operation writes to, and so may have written a part of.
/// Paths in a tree of those of the files whose contents these plain files are.
pub(super) fn paths_of<'a>(
    live: &LiveFs,
    files: &Tree,
    names: impl IntoIterator<Item = &'a ExternalName>,
) -> Result<BTreeSet<String>, String> {
    let inos: BTreeSet<Ino> = names.into_iter().map(|name| name.ino).collect();
    let mut paths = BTreeSet::new();
    for (path, node) in files {
        let is_regular = node.attr.kind == FileKind::Regular && !inos.is_empty();
        if is_regular && inos.contains(&tree::ino(&live.fs, path).map_err(|e| e.to_string())?) {
            paths.insert(path.clone());
        }
    }
    Ok(paths)
}

fn written(op: &FsOp) -> Option<&str> {
    match &op.what {
        What::Write { path, .. } | What::Fallocate { path, .. } => Some(path),
        What::Copy { target, .. } => Some(target),
        _ => None,
    }
}

/// What may be otherwise than before or after an operation.
struct Slack<'a> {
    partly: Option<&'a str>,
    doubtful: BTreeSet<String>,
}

impl Slack<'_> {
    /// Whether `found` is `base`, but for contents that may be those of `other` in part.
    fn allows(&self, found: &Tree, base: &Tree, other: &Tree) -> bool {
        let first = |path: &str| base.get(path).map(|node| node.first.as_str());
        let partly = self.partly.and_then(first);
        found.keys().eq(base.keys())
            && found.iter().all(|(path, node)| {
                let expected = &base[path];
                if is_exactly(node, expected) {
                    return true;
                }
                let Some(pages) = &node.pages else {
                    return false;
                };
                let mut alike = node.clone();
                alike.content.clone_from(&expected.content);
                let Some(past) = expected
                    .past
                    .as_ref()
                    .filter(|_| is_exactly(&alike, expected))
                else {
                    return false;
                };
                let is_lost = self.doubtful.contains(path) && past.allows(pages);
                let others = other.get(path).and_then(|node| node.past.as_ref());
                let others = others.map(|past| past.pages()).unwrap_or_default();
                let may_be_part = partly == Some(node.first.as_str());
                is_lost || (may_be_part && is_part(pages, &past.pages(), &others))
            })
    }
}

/// Whether each byte is one of the others at its place.
fn is_part(found: &Pages, one: &Pages, other: &Pages) -> bool {
    let offsets: BTreeSet<u64> = [found, one, other]
        .iter()
        .flat_map(|pages| pages.keys().copied())
        .collect();
    offsets.into_iter().all(|at| {
        let byte = |pages: &Pages, i: usize| {
            let page = pages.get(&at);
            page.and_then(|page| page.get(i)).copied().unwrap_or(0)
        };
        let len = found.get(&at).map_or(4096, |page| page.len());
        (0..len).all(|i| [byte(one, i), byte(other, i)].contains(&byte(found, i)))
    })
}

fn is_exactly(found: &Node, expected: &Node) -> bool {
    found.content == expected.content && found == expected
}

/// Whether two states are the same, whatever a power cut could do.
pub(super) fn exactly(found: &Tree, expected: &Tree) -> bool {
    found.keys().eq(expected.keys())
        && found
            .iter()
            .all(|(path, node)| is_exactly(node, &expected[path]))
}

fn difference(found: &Tree, expected: &Tree) -> String {
    let mut strict = expected.clone();
    for node in strict.values_mut() {
        node.past = None;
    }
    tree::difference(found, &strict)
}
