//! Parts of the lines for a person.

use crate::locator::Locator;
use stitch_base::Ino;

pub(super) fn back_text(place: &Option<(Ino, u64)>) -> String {
    match place {
        Some((parent, _)) => {
            format!("its back row is missing or does not lead to directory {parent}")
        }
        None => "it has a back row and no row under a name".to_owned(),
    }
}

/// Reports whether all keys of a range of the sys tree are those of back rows.
fn is_of_back_rows(first: &[u8], end: &[u8]) -> bool {
    let all = Locator::default().back_rows();
    all.start() <= first && end <= all.end()
}

/// Returns the text about data that is lost: which, and the remedy.
pub(super) fn lost_text(tree: &str, first: &[u8], end: &[u8], owners: usize) -> String {
    debug_assert!(
        matches!(tree, "meta" | "data" | "xattr" | "sys"),
        "a tree of a file system"
    );
    let these = |one: &str, many: &str| match owners {
        1 => one.to_owned(),
        count => format!("{count} {many}"),
    };
    let what = match (tree, owners) {
        ("sys", _) if is_of_back_rows(first, end) => "a block of back rows cannot be read: the \
             first file handle in it puts them anew; nothing else is lost"
            .to_owned(),
        ("sys", _) => "a block of counters and of the list of orphans cannot be read: restore the \
             store from a copy"
            .to_owned(),
        (_, 0) => format!("a block of the {tree} tree cannot be read; whose it is is not known"),
        ("data", _) => format!(
            "a block with contents of {} cannot be read: restore them from a copy, or remove the \
             file with all that is left of it",
            these("a file", "files")
        ),
        ("meta", _) => format!(
            "a block with entries of {} cannot be read: restore what is missing there from a copy",
            these("a directory", "directories")
        ),
        (_, _) => format!(
            "a block with extended attributes of {} cannot be read: restore them from a copy, or \
             remove the file with its contents",
            these("a file", "files")
        ),
    };
    let (first, end) = (first.escape_ascii(), end.escape_ascii());
    format!("{what}; a repair cannot bring it back (keys {first} to {end} of the {tree} tree)")
}
