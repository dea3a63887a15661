//! Keys of shared contents, and of the inodes that use them.

use super::{Locator, RowKey, RowRange, SysRow, Tree, sys_key, sys_rows};
use stitch_base::Ino;
use stitch_format::fs_key;

impl Locator {
    /// Where the contents of an inode are that shares them.
    pub(crate) fn shared(&self, ino: Ino) -> RowKey {
        let key = sys_key(SysRow::Shared(ino), fs_key::shared(ino));
        debug_assert!(self.all_shared().contains(&key), "a listing finds it");
        key
    }

    /// The rows of all inodes that share contents.
    pub(crate) fn all_shared(&self) -> RowRange {
        let rows = sys_rows(fs_key::SYS_SHARED);
        debug_assert!(
            rows.contains(&fs_key::shared(Ino(u64::MAX))),
            "those of any inode"
        );
        rows
    }

    /// The row of shared contents.
    pub(crate) fn contents(&self, number: Ino) -> RowKey {
        let key = sys_key(SysRow::Contents(number), fs_key::contents(number));
        debug_assert!(
            self.contents_from(number).contains(&key),
            "a listing finds it"
        );
        key
    }

    /// The row that an inode uses shared contents.
    pub(crate) fn contents_user(&self, number: Ino, ino: Ino) -> RowKey {
        let row = SysRow::ContentsUser(number, ino);
        let key = sys_key(row, fs_key::contents_user(number, ino));
        debug_assert!(self.all_contents().contains(&key), "a listing finds it");
        key
    }

    /// The rows of the users of shared contents.
    pub(crate) fn contents_users(&self, number: Ino) -> RowRange {
        let start = fs_key::contents_user(number, Ino(0));
        let users = RowRange::new(Tree::Sys, start, fs_key::contents(Ino(number.0 + 1)));
        debug_assert!(
            !users.contains(&fs_key::contents(number)),
            "the row of the contents is before those of users"
        );
        debug_assert!(
            users.contains(&fs_key::contents_user(number, Ino(u64::MAX))),
            "users of any number"
        );
        users
    }

    /// The rows of shared contents from a number on, each before those of its users.
    pub(crate) fn contents_from(&self, number: Ino) -> RowRange {
        let end = fs_key::single(&[fs_key::SYS_CONTENTS + 1]);
        let rows = RowRange::new(Tree::Sys, fs_key::contents(number), end);
        debug_assert!(
            rows.contains(&fs_key::contents_user(number, Ino(u64::MAX))),
            "those of users too"
        );
        rows
    }

    /// The rows of all shared contents, each before those of its users.
    pub(crate) fn all_contents(&self) -> RowRange {
        let rows = sys_rows(fs_key::SYS_CONTENTS);
        debug_assert!(
            rows.contains(&fs_key::contents_user(Ino(u64::MAX), Ino(u64::MAX))),
            "those of users too"
        );
        rows
    }
}
