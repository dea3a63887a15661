//! A snapshot that is sent or exported.

use super::LEFT_OUT;
use crate::command::{live, output, snapshot, sync};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use stitch_fs::VIEW_INO_BITS;
use stitch_send::{SendId, Side, Tree, TreeOptions};

/// A snapshot with all its names.
pub(in crate::command) struct Source {
    pub(in crate::command) place: PathBuf,
    pub(in crate::command) mount: PathBuf,
    pub(in crate::command) tree: Tree,
    name: String,
    created_ns: i64,
    root: u64,
}

impl Source {
    /// Reads the names and attributes of a snapshot.
    pub(in crate::command) fn read(path: &Path, skip_unreadable: bool) -> Result<Self> {
        let shown = || path.display().to_string();
        let place = path.canonicalize().with_context(shown)?;
        let (mount, _) = live::around(&place)?;
        let Some(info) = snapshot::about(&place) else {
            bail!(
                "{}: is not the directory of a snapshot; `stitchfs snapshot list {}` lists them",
                path.display(),
                mount.display()
            );
        };
        let (Some(name), Some(created_ns), Some(root)) = (
            info["name"].as_str(),
            info["created"].as_i64(),
            info["root"].as_u64(),
        ) else {
            bail!(
                "{}: its daemon is of another version of stitchfs",
                path.display()
            );
        };
        // Times and sizes of what was written to are the kernel's until then.
        sync::write_back(&mount)?;
        let options = TreeOptions {
            ino_mask: (1 << VIEW_INO_BITS) - 1,
            skip_unreadable,
        };
        let tree = Tree::read(&place, &options).map_err(super::explained)?;
        for left in tree.skipped() {
            output::note(&format!("{}: left out, you cannot read it", left.display()));
        }
        let name = name.to_owned();
        Ok(Self {
            place,
            mount,
            tree,
            name,
            created_ns,
            root,
        })
    }

    /// One side of a stream.
    pub(in crate::command) fn side(&self) -> Side<'_> {
        Side {
            tree: &self.tree,
            name: self.name.as_bytes(),
            id: SendId::of(self.name.as_bytes(), self.root, self.created_ns),
            created_ns: self.created_ns,
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
