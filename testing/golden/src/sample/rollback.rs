//! A store that a crash leaves in the middle of a rollback.

use super::{ROOT, at, text};
use crate::store;
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_device::MemDevice;
use stitch_fs::{
    CloneSource, DirName, FileSystem, FsResult, LiveView, NewNode, RollbackRights, WriteOptions,
};

/// Files in the directory.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const NEW: NewNode = NewNode {
    perm: 0o755,
    umask: 0,
};
/// Writes to the device in a rollback of it, at most.
const WRITES_MAX: u64 = 60;

/// A new store with a directory and a clone of it, left by a crash in the middle of a rollback of
/// the directory, or of the clone.
///
/// # Errors
/// Whatever the store says.
pub fn make_rollback(in_clone: bool) -> Result<MemDevice, Box<dyn std::error::Error>> {
    for write in 1..=WRITES_MAX {
        let prepare = |fs: &FileSystem| prepare(fs, in_clone);
        let device = store::killed_at(write, prepare, |fs, (dir, clone)| {
            match in_clone {
                true => fs.roll_back_in(
                    &clone,
                    "before",
                    clone.info().root,
                    RollbackRights::default(),
                )?,
                false => fs.roll_back("before", dir, RollbackRights::default())?,
            };
            Ok(())
        })?;
        let issues = store::issues(&device)?;
        if issues.iter().any(|line| line.contains("was interrupted")) {
            return Ok(device);
        }
    }
    Err("no part of a rollback is left".into())
}

/// A directory and its clone, of one of which there is a snapshot. Both are changed since.
fn prepare(fs: &FileSystem, in_clone: bool) -> FsResult<(Ino, Arc<LiveView>)> {
    let dir = fs.make_dir(ROOT, at(Ino::ROOT, "directory"), &NEW)?.ino;
    for (number, name) in NAMES.into_iter().enumerate() {
        let ino = fs.create(ROOT, at(dir, name), &NEW)?.ino;
        fs.write(ino, 0, &text(number * 3_000 + 100), WriteOptions::default())?;
    }
    let source = CloneSource {
        fs,
        dir,
        snapshot: None,
    };
    let made = fs.make_clone(ROOT, &source, at(Ino::ROOT, "clone"))?;
    let clone = fs.open_clone(made.number)?;
    match in_clone {
        true => fs.snapshots().create_in(&clone, made.root, "before")?,
        false => fs.snapshots().create(dir, "before")?,
    };
    change(fs, dir)?;
    change(clone.fs(), made.root)?;
    Ok((dir, clone))
}

fn change(fs: &FileSystem, dir: Ino) -> FsResult<()> {
    for name in NAMES {
        let ino = fs.lookup(DirName::new(dir, name.as_bytes()))?.ino;
        // Longer than it was: the clock stands still, so nothing else tells that it changed.
        fs.write(ino, 0, &[b'x'; 12_000], WriteOptions::default())?;
    }
    let later = fs.create(ROOT, at(dir, "later"), &NEW)?.ino;
    fs.write(later, 0, &text(300), WriteOptions::default())?;
    Ok(())
}
