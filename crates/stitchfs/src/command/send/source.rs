//! A snapshot that is sent or exported.

use super::LEFT_OUT;
use crate::command::numbers::{self, DirNumbers};
use crate::command::{live, output, snapshot, sync};
use anyhow::{Result, bail};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use stitch_fs::TouchedPaths;
use stitch_fuse::differences;
use stitch_send::{SendId, Side, Tree, TreeOptions};

/// A snapshot with its names, all of them or those that a stream is about.
pub(in crate::command) struct Source {
    pub(in crate::command) tree: Tree,
    snapshot: FoundSnapshot,
}

/// Where a snapshot is, and what its daemon says of it.
pub(super) struct FoundSnapshot {
    pub(super) place: PathBuf,
    pub(super) mount: PathBuf,
    name: String,
    created_ns: i64,
    root: u64,
    numbers: DirNumbers,
    /// Of the earlier one: since when the later one may be different.
    since_ns: i64,
    /// The other one is of another view, and the daemon tells which inodes both have.
    has_twins: bool,
}

impl FoundSnapshot {
    /// Finds a snapshot by its directory, or by its name in the mount that `at` is in.
    pub(super) fn find(path: &Path, at: &Path) -> Result<Self> {
        let place = snapshot::path_or_name(path, &[at])?;
        let (mount, _) = live::around(&place)?;
        let info = snapshot::information(path, &place, &mount)?;
        let (Some(name), Some(created_ns), Some(root)) = (
            info["name"].as_str(),
            info["created_ns"].as_i64(),
            info["root"].as_u64(),
        ) else {
            bail!(
                "{}: its daemon is of another version of stitchfs",
                path.display()
            );
        };
        Ok(Self {
            numbers: numbers::of(&place),
            place,
            mount,
            name: name.to_owned(),
            created_ns,
            root,
            since_ns: created_ns,
            has_twins: false,
        })
    }

    /// Learns which inodes both of two snapshots have, if they are of two views. This one is the
    /// earlier, or the one that the receiver has.
    pub(super) fn meet(&mut self, later: &mut Self) {
        let home = self.numbers.home;
        if home.is_none() || home == later.numbers.home {
            return;
        }
        let twins = &mut later.numbers;
        if twins.twin_with(&self.numbers, &self.place, &later.place) {
            (self.has_twins, later.has_twins) = (true, true);
            // Either view went on from their common moment, which may be before both snapshots.
            self.since_ns = i64::MIN;
        }
    }

    /// Asks the daemon which paths a copy of the snapshot needs to become one of a later snapshot;
    /// `None` where a walk through both has to tell.
    pub(super) fn touched_paths(&self, later: &Self) -> Option<TouchedPaths> {
        // As long as it is open the daemon has the snapshot open, too.
        let before = snapshot::open_dir(&self.place).ok()?;
        let after = snapshot::open_dir(&later.place).ok()?;
        let number = before.metadata().ok()?.ino();
        match self.has_twins {
            true => differences::copy_paths(&before, &after, number).ok(),
            false => differences::paths(&after, number).ok(),
        }
    }

    /// Reads all names and attributes.
    pub(super) fn read(self, skip_unreadable: bool) -> Result<Source> {
        let tree = Tree::read(&self.place, &self.options(skip_unreadable));
        let tree = tree.map_err(super::explained)?;
        for left in tree.skipped() {
            output::note(&format!("{}: left out, you cannot read it", left.display()));
        }
        let snapshot = self;
        Ok(Source { tree, snapshot })
    }

    /// Reads the names and attributes of some paths: those of which the daemon tells that they may
    /// be different.
    pub(super) fn read_paths(self, paths: &BTreeSet<Vec<u8>>) -> Result<Source> {
        let tree = Tree::read_paths(&self.place, &self.options(false), paths);
        let tree = tree.map_err(super::explained)?;
        let snapshot = self;
        Ok(Source { tree, snapshot })
    }

    fn options(&self, skip_unreadable: bool) -> TreeOptions {
        TreeOptions {
            numbers: self.numbers.numbers.clone(),
            skip_unreadable,
        }
    }
}

impl Source {
    /// Reads the names and attributes of a snapshot that was given by its directory, or by its name
    /// in the mount that `at` is in.
    pub(in crate::command) fn read(
        (path, at): (&Path, &Path),
        skip_unreadable: bool,
    ) -> Result<Self> {
        let snapshot = FoundSnapshot::find(path, at)?;
        // Times and sizes of what was written to are the kernel's until then.
        sync::write_back(&snapshot.mount)?;
        snapshot.read(skip_unreadable)
    }

    /// One side of a stream.
    pub(in crate::command) fn side(&self) -> Side<'_> {
        let of = &self.snapshot;
        Side {
            tree: &self.tree,
            name: of.name.as_bytes(),
            id: SendId::of(of.name.as_bytes(), of.root, of.created_ns),
            created_ns: of.created_ns,
            since_ns: of.since_ns,
        }
    }

    /// The exit code if all else went well.
    pub(in crate::command) fn code(&self) -> u8 {
        if self.tree.skipped().is_empty() {
            0
        } else {
            LEFT_OUT
        }
    }
}
