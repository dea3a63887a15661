//! Which transactions a path leads through, from the root of a file system.
//!
//! ```text
//! /home/ada                                               none         /home/ada
//! /.stitchfs/txn/work/root/home/ada                       work         /home/ada
//! /.stitchfs/txn/work/root/.stitchfs/txn/inner/root/home  work/inner   /home
//! ```

use std::path::{Component, Path, PathBuf};
use stitch_fuse::adapter::{CONTROL_DIR, TRANSACTION_ROOT, TRANSACTIONS_DIR};

/// A path, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::command) struct ViewPath {
    /// The names of the transactions, the outermost one first.
    pub(in crate::command) names: Vec<String>,
    /// Where the root of the last one is found, from that of the file system; empty for none.
    pub(in crate::command) root: PathBuf,
    /// The rest of the path.
    pub(in crate::command) rest: PathBuf,
}

impl ViewPath {
    /// Takes a path apart. Names that are no text are part of the rest.
    pub(in crate::command) fn of(path: &Path) -> Self {
        let words = path.components().filter_map(|component| match component {
            Component::Normal(word) => Some(word),
            _ => None,
        });
        let words: Vec<_> = words.collect();
        let mut left = &words[..];
        let mut found = Self::default();
        while let [dir, kind, name, root, rest @ ..] = left
            && *dir == CONTROL_DIR
            && *kind == TRANSACTIONS_DIR
            && *root == TRANSACTION_ROOT
            && let Some(name) = name.to_str()
        {
            found.names.push(name.to_owned());
            found.root = place_in(&found.root, name);
            left = rest;
        }
        found.rest = left.iter().collect();
        debug_assert!(found.rest.is_relative(), "what follows a root");
        found
    }

    /// Reports whether the path is the root of a transaction.
    pub(in crate::command) fn is_root(&self) -> bool {
        !self.names.is_empty() && self.rest.as_os_str().is_empty()
    }
}

/// Returns where the transaction of a name is found from a directory on, which is the root of what
/// it began in. The name of one in another is `outer/inner`.
pub(in crate::command) fn place_in(root: &Path, name: &str) -> PathBuf {
    let mut place = root.to_owned();
    for name in name.split('/') {
        place.extend([CONTROL_DIR, TRANSACTIONS_DIR, name, TRANSACTION_ROOT]);
    }
    place
}

/// Longest name of a transaction, in bytes.
const NAME_BYTES_MAX: usize = 250;

/// Returns a name that a transaction can begin with; `outer/inner` for one in another.
pub(super) fn parse_new(text: &str) -> Result<String, String> {
    let is_name = |part: &str| !matches!(part, "" | "." | "..") && part.len() <= NAME_BYTES_MAX;
    match text.split('/').all(is_name) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "a name is not empty, `.` or `..`, and has at most {NAME_BYTES_MAX} bytes"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_judged_before_anything_begins() {
        let longest = "n".repeat(NAME_BYTES_MAX);
        for name in ["a", "outer/inner", &longest] {
            assert_eq!(parse_new(name).as_deref(), Ok(name));
        }
        for wrong in [
            "",
            ".",
            "..",
            "/",
            "a/",
            "/a",
            "a/../b",
            &format!("{longest}n"),
        ] {
            assert!(parse_new(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn paths_are_taken_apart_and_put_together() {
        for (path, names, root, rest) in [
            ("/", &[][..], "", ""),
            ("/home/ada", &[], "", "home/ada"),
            (
                "/.stitchfs/txn/a/root/x",
                &["a"],
                ".stitchfs/txn/a/root",
                "x",
            ),
            (
                "/.stitchfs/txn/a/root/.stitchfs/txn/b/root",
                &["a", "b"],
                ".stitchfs/txn/a/root/.stitchfs/txn/b/root",
                "",
            ),
            (
                "/.stitchfs/txn/a/root/.stitchfs/snap/b",
                &["a"],
                ".stitchfs/txn/a/root",
                ".stitchfs/snap/b",
            ),
            ("/.stitchfs/txn", &[], "", ".stitchfs/txn"),
            ("/.stitchfs/txn/a", &[], "", ".stitchfs/txn/a"),
            ("/x/.stitchfs/txn/a/root", &[], "", "x/.stitchfs/txn/a/root"),
        ] {
            let found = ViewPath::of(Path::new(path));
            assert_eq!(found.names, names, "{path}");
            assert_eq!(found.root, Path::new(root), "{path}");
            assert_eq!(found.rest, Path::new(rest), "{path}");
            if !names.is_empty() {
                assert_eq!(place_in(Path::new(""), &names.join("/")), found.root);
            }
        }
    }
}
