//! Paths of operations, in a view whose directory has a path of its own.

use crate::files::What;

/// Returns the rest of a path below a directory; empty for the directory itself.
pub(super) fn below<'a>(path: &'a str, dir: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(dir)?;
    match dir.is_empty() || rest.is_empty() {
        true => Some(rest),
        false => rest.strip_prefix('/'),
    }
}

/// Returns the paths of an operation.
pub(super) fn paths_mut(what: &mut What) -> Vec<&mut String> {
    match what {
        What::Create { path, .. }
        | What::MakeDir { path }
        | What::MakeNode { path, .. }
        | What::Symlink { path, .. }
        | What::Unlink { path, .. }
        | What::RemoveDir { path }
        | What::RemoveTree { path }
        | What::Write { path, .. }
        | What::Truncate { path, .. }
        | What::SetMode { path, .. }
        | What::SetOwner { path, .. }
        | What::SetTimes { path, .. }
        | What::SetXattr { path, .. }
        | What::RemoveXattr { path, .. }
        | What::Fallocate { path, .. }
        | What::OpenNumber { path }
        | What::SyncFile { path }
        | What::Found { path, .. } => vec![path],
        What::Link { source, target }
        | What::Rename { source, target, .. }
        | What::Copy { source, target, .. } => vec![source, target],
        What::AtomicWrite(staged) => vec![&mut staged.path],
        What::Sync | What::Reclaim | What::Step => Vec::new(),
    }
}
