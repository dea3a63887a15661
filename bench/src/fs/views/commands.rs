//! The commands by which a side makes, compares, sends and removes snapshots and clones.

use crate::disk::output;
use crate::fs::side::{FsSide, SideKind};
use crate::fs::{command, tool};
use anyhow::{Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The family of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    /// Those of `stitchfs`.
    Stitchfs,
    /// Those of `btrfs`, on subvolumes.
    Btrfs,
    /// `cp --reflink`: clones only.
    Reflink,
}

/// The commands of a side, and its mount.
pub(super) struct SnapshotCommands {
    family: Family,
    root: PathBuf,
}

/// Returns the reason that a side has no snapshots or clones; `None` if it has.
pub(super) fn why_not(side: &FsSide) -> Option<String> {
    match family_of(side) {
        None => Some("it has neither snapshots nor clones".to_owned()),
        Some(Family::Stitchfs) => tool::why_missing(),
        Some(Family::Btrfs) => command::why_missing("btrfs"),
        Some(Family::Reflink) => None,
    }
}

/// Returns the reason that a side has no snapshots; `None` if it has.
pub(super) fn why_no_snapshots(side: &FsSide) -> Option<String> {
    let has_clones_only = family_of(side) == Some(Family::Reflink);
    why_not(side).or_else(|| has_clones_only.then(|| "it has no snapshots".to_owned()))
}

fn family_of(side: &FsSide) -> Option<Family> {
    match (side.kind, side.name) {
        (SideKind::Store(..), _) => Some(Family::Stitchfs),
        (SideKind::Kernel(_), "btrfs") => Some(Family::Btrfs),
        (SideKind::Kernel(_), "xfs") => Some(Family::Reflink),
        _ => None,
    }
}

impl SnapshotCommands {
    /// The commands of the side of this name, mounted at `root`.
    pub(super) fn of(side: &str, root: PathBuf) -> Result<Self> {
        let family = FsSide::find(side).and_then(|side| family_of(&side));
        let family = family.with_context(|| format!("{side} has no snapshots"))?;
        Ok(Self { family, root })
    }

    /// The directory that snapshots and clones are made of.
    pub(super) fn source(&self) -> PathBuf {
        self.root.join("source")
    }

    /// Makes it.
    pub(super) fn make_source(&self) -> Result<()> {
        match self.family {
            Family::Btrfs => output(btrfs(&["subvolume", "create"]).arg(self.source())).map(drop),
            Family::Stitchfs | Family::Reflink => Ok(fs::create_dir(self.source())?),
        }
    }

    /// Reports whether the side has snapshots. All have clones.
    pub(super) fn has_snapshots(&self) -> bool {
        self.family != Family::Reflink
    }

    /// The place of a clone.
    pub(super) fn clone_path(&self, number: u32) -> PathBuf {
        self.root.join(format!("clone-{number}"))
    }

    /// The place of a snapshot.
    pub(super) fn snapshot_path(&self, number: u32) -> PathBuf {
        let name = format!("snapshot-{number}");
        match self.family {
            Family::Stitchfs => self.root.join(".stitchfs/snap").join(name),
            Family::Btrfs | Family::Reflink => self.root.join(name),
        }
    }

    /// Makes a snapshot.
    pub(super) fn snapshot(&self, number: u32) -> Command {
        let name = format!("snapshot-{number}");
        match self.family {
            Family::Stitchfs => with(
                tool::stitchfs(&["snapshot", "create"]),
                &[&self.source(), Path::new(&name)],
            ),
            Family::Btrfs | Family::Reflink => with(
                btrfs(&["subvolume", "snapshot", "-r"]),
                &[&self.source(), &self.snapshot_path(number)],
            ),
        }
    }

    /// Makes a clone.
    pub(super) fn clone(&self, number: u32) -> Command {
        let run = match self.family {
            Family::Stitchfs => tool::stitchfs(&["clone"]),
            Family::Btrfs => btrfs(&["subvolume", "snapshot"]),
            Family::Reflink => program("cp", &["-a", "--reflink=always"]),
        };
        with(run, &[&self.source(), &self.clone_path(number)])
    }

    /// Prints what changed since the first snapshot. Btrfs compares snapshots, so it makes one.
    pub(super) fn diff(&self) -> Command {
        if self.family == Family::Stitchfs {
            return with(
                tool::stitchfs(&["diff"]),
                &[&self.snapshot_path(0), &self.source()],
            );
        }
        let script = "btrfs -q subvolume snapshot -r \"$0\" \"$2\" && btrfs -q send --no-data -p \
                      \"$1\" \"$2\" | btrfs receive --dump";
        let now = self.root.join("now");
        let run = program("sh", &["-c", script]);
        with(run, &[&self.source(), &self.snapshot_path(0), &now])
    }

    /// Sends what changed between the first snapshot and this one, and prints the length.
    pub(super) fn send(&self, number: u32) -> Command {
        let script = match self.family {
            Family::Stitchfs => "\"$2\" send -i \"$0\" \"$1\" | wc -c",
            Family::Btrfs | Family::Reflink => "btrfs -q send -p \"$0\" \"$1\" | wc -c",
        };
        let run = program("sh", &["-c", script]);
        let stitchfs = PathBuf::from(tool::stitchfs(&[]).get_program());
        with(
            run,
            &[
                &self.snapshot_path(0),
                &self.snapshot_path(number),
                &stitchfs,
            ],
        )
    }

    /// Removes a snapshot.
    pub(super) fn delete(&self, number: u32) -> Command {
        let name = format!("snapshot-{number}");
        match self.family {
            Family::Stitchfs => with(
                tool::stitchfs(&["snapshot", "delete"]),
                &[&self.root, Path::new(&name)],
            ),
            Family::Btrfs | Family::Reflink => with(
                btrfs(&["subvolume", "delete"]),
                &[&self.snapshot_path(number)],
            ),
        }
    }

    /// Removes a clone.
    pub(super) fn destroy(&self, number: u32) -> Command {
        let run = match self.family {
            Family::Stitchfs => tool::stitchfs(&["destroy"]),
            Family::Btrfs => btrfs(&["subvolume", "delete"]),
            Family::Reflink => program("rm", &["-rf"]),
        };
        with(run, &[&self.clone_path(number)])
    }
}

fn program(name: &str, arguments: &[&str]) -> Command {
    let mut run = Command::new(name);
    run.args(arguments);
    run
}

fn btrfs(arguments: &[&str]) -> Command {
    let mut run = program("btrfs", &["-q"]);
    run.args(arguments);
    run
}

/// Adds paths to a command.
fn with(mut run: Command, paths: &[&Path]) -> Command {
    run.args(paths);
    run
}
