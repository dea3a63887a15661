//! Rows of shared contents.

use super::Change;
use crate::events::Event;
use stitch_base::Ino;
use stitch_format::fs_key::INO_MAX;
use stitch_format::fs_shared::SharedRow;
use stitch_format::fs_sys::encode_number;

impl Change<'_> {
    /// Puts where the contents of an inode are.
    pub(crate) fn put_shared(&mut self, ino: Ino, row: &SharedRow) {
        debug_assert!(
            (1..=INO_MAX).contains(&row.own.0),
            "a reader takes no other number"
        );
        debug_assert_ne!(
            row.contents,
            Some(row.own),
            "own chunks are apart from shared ones"
        );
        let key = self.keys().shared(ino);
        self.batch.put(&key, &row.encode());
    }

    /// Deletes the row of an inode that shares nothing any more, and has its own chunks under its
    /// own number.
    pub(crate) fn delete_shared(&mut self, ino: Ino) {
        let key = self.keys().shared(ino);
        self.batch.delete(&key);
    }

    /// Makes a number one of contents, which have chunks below `end`.
    pub(crate) fn put_contents(&mut self, number: Ino, end: u64) {
        debug_assert!(number.0 > 0, "0 is no number of contents");
        debug_assert!(end > 0, "contents have chunks");
        let key = self.keys().contents(number);
        self.batch.put(&key, &encode_number(end));
    }

    /// Stages that an inode uses contents.
    pub(crate) fn use_contents(&mut self, number: Ino, ino: Ino) {
        debug_assert!(number.0 > 0, "0 is no number of contents");
        let key = self.keys().contents_user(number, ino);
        self.batch.put(&key, &[]);
    }

    /// Stages that an inode does not use contents any more. Some time after the commit they go, if
    /// it was the last one.
    pub(crate) fn leave_contents(&mut self, number: Ino, ino: Ino) {
        debug_assert!(number.0 > 0, "0 is no number of contents");
        let key = self.keys().contents_user(number, ino);
        self.batch.delete(&key);
        self.events.push(Event::ContentsLeft(number));
    }

    /// Reports whether rows are put that say nothing new, for the commit of a transaction to find:
    /// it has to know whose own number each chunk is under.
    pub(crate) fn keeps_track(&self) -> bool {
        self.scope.may_be_compared()
    }
}
