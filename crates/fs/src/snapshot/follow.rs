//! Looking up a directory along a path, by the public operations of file systems.

use super::OTHERS_EXECUTE;
use crate::system::FileSystem;
use crate::{DirName, FsError, FsResult};
use std::ops::Deref;
use stitch_base::Ino;

/// Looks up a directory of a view along a path from the root of `start`, so that it is known.
/// `enter` returns the file system of the clone that lies at a directory, with its own directory;
/// the path goes on in that. Returns the file system of the directory, and whether some directory
/// above it does not let all users pass.
///
/// # Errors
/// [`FsError::Stale`] if the path does not lead to `(view, dir)`.
pub(crate) fn follow_path<F: Deref<Target = FileSystem>>(
    start: F,
    path: &[u8],
    (view, dir): (u64, Ino),
    enter: impl Fn(&F, Ino) -> FsResult<Option<(F, Ino)>>,
) -> FsResult<(F, bool)> {
    let elsewhere = |error| match error {
        FsError::NotFound | FsError::NotDir => FsError::Stale(dir),
        other => other,
    };
    let mut at = start.get_attr(Ino::ROOT)?;
    let (mut fs, mut is_private) = (start, false);
    for name in path
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty())
    {
        is_private |= at.perm & OTHERS_EXECUTE == 0;
        let found = fs.lookup(DirName::new(at.ino, name));
        // What was passed stays known as long as what is below it.
        fs.forget(at.ino, 1);
        at = found.map_err(elsewhere)?;
        let clone = enter(&fs, at.ino)
            .inspect_err(|_| fs.forget(at.ino, 1))
            .map_err(elsewhere)?;
        if let Some((clone, root)) = clone {
            fs.forget(at.ino, 1);
            at = clone.lookup(DirName::new(root, b"."))?;
            debug_assert_eq!(at.ino, root, "a directory is its own `.`");
            fs = clone;
        }
    }
    if (fs.view_number(), at.ino) != (view, dir) {
        fs.forget(at.ino, 1);
        return Err(FsError::Stale(dir));
    }
    // Kept as an open file is: no lookup that is taken back makes it unknown.
    fs.open_handle(at.ino)?;
    fs.forget(at.ino, 1);
    Ok((fs, is_private))
}

/// Looks up the directory of a view along its path, so that it is known. Reports whether some
/// directory above it does not let all users pass.
///
/// # Errors
/// [`FsError::Stale`] if the path does not lead there.
pub(crate) fn walk_path(fs: &FileSystem, root: Ino, path: &[u8]) -> FsResult<bool> {
    let (_, is_private) = follow_path(fs, path, (fs.view_number(), root), |_, _| Ok(None))?;
    Ok(is_private)
}

/// Makes a directory known by its path, or by its number where it was renamed since. A handle holds
/// it.
pub(crate) fn know_dir(fs: &FileSystem, dir: Ino, path: &[u8]) -> FsResult<()> {
    // By its path no back rows are needed.
    if walk_path(fs, dir, path).is_ok() {
        return Ok(());
    }
    know_dir_by_number(fs, dir)
}

/// The same, by its number alone.
pub(crate) fn know_dir_by_number(fs: &FileSystem, dir: Ino) -> FsResult<()> {
    debug_assert!(dir.0 > 0, "0 is no inode");
    let attr = fs.look_up_number(dir)?;
    debug_assert_eq!(attr.ino, dir, "it has this number");
    let held = fs.open_handle(dir);
    fs.forget(dir, 1);
    held
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Caller, FsOptions, NewNode};

    #[test]
    fn a_directory_whose_clone_cannot_be_opened_is_not_known_any_more() {
        let engine = crate::testing::formatted(&FsOptions::default());
        let fs = FileSystem::open(engine, FsOptions::default()).unwrap();
        let new = NewNode::default();
        let at = DirName::new(Ino::ROOT, b"d");
        let dir = fs.make_dir(&Caller::ROOT, at, &new).unwrap().ino;
        fs.forget(dir, 1);
        let followed = follow_path(&fs, b"d", (0, dir), |_, _| Err(FsError::NotFound));
        assert!(matches!(followed, Err(FsError::Stale(_))));
        assert_eq!(fs.known_inodes(), 1, "the root alone");
    }
}
