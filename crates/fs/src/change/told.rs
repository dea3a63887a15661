//! Whether the events of a change say what its rows say. For assertions.
//!
//! Changes that the kernel did not ask for are not looked at: a rollback stages one inode several
//! times in one change.

use super::Change;
use crate::events::Event;
use crate::inode::Inode;
use crate::locator::{Locator, RowKey};
use stitch_base::Ino;
use stitch_format::fs_back::Place;
use stitch_format::fs_inode::MetaRow;
use stitch_kv::Message;

/// Changes of more rows are not looked at: each event would look at all of them.
const ROWS_MAX: usize = 64;

impl Change<'_> {
    /// Reports whether the events say of names and inodes what their rows say.
    pub(super) fn tells_rows(&self) -> bool {
        if self.batch.changes().messages().nth(ROWS_MAX).is_some() {
            return true;
        }
        let mut events = self.events.iter().enumerate();
        events.all(|(at, event)| self.is_told_later(at, event) || self.tells_row(event))
    }

    /// Reports whether a later event is about the same name or inode: memory is as that one says.
    fn is_told_later(&self, at: usize, event: &Event<'_>) -> bool {
        self.events[at + 1..]
            .iter()
            .any(|later| match (event, later) {
                (
                    Event::Linked { at, .. } | Event::Unlinked { at, .. },
                    Event::Linked { at: later, .. } | Event::Unlinked { at: later, .. },
                ) => at == later,
                (Event::Changed(inode), Event::Changed(later)) => inode.head.ino == later.head.ino,
                _ => false,
            })
    }

    fn tells_row(&self, event: &Event<'_>) -> bool {
        match event {
            Event::Linked { at, ino, .. } => {
                self.puts_inode(&self.keys().dentry(at.parent, at.name), *ino)
            }
            Event::Unlinked { at, .. } => self.deletes(&self.keys().dentry(at.parent, at.name)),
            Event::Made(inode) | Event::Changed(inode) => self.puts(inode).unwrap_or(true),
            _ => true,
        }
    }

    /// The last change of a row.
    fn last_of(&self, key: &RowKey) -> Option<Message<'_>> {
        let tree = self.scope.store.tree(key.tree());
        let of_row = |(of, message): &(_, Message<'_>)| {
            *of == tree
                && message.key() == &key[..]
                && !matches!(message, Message::DeleteRange { .. })
        };
        let rows = self.batch.changes().messages().filter(of_row);
        rows.last().map(|(_, message)| message)
    }

    fn deletes(&self, key: &RowKey) -> bool {
        matches!(self.last_of(key), Some(Message::Delete { .. }))
    }

    /// Reports whether a row under a name leads to an inode, and the back row of the inode, where
    /// it has one, to the name.
    fn puts_inode(&self, key: &RowKey, ino: Ino) -> bool {
        let Some(Message::Put { value, .. }) = self.last_of(key) else {
            return false;
        };
        let leads_back = || match self.last_of(&self.keys().back(ino)) {
            Some(Message::Put { value, .. }) => Place::decode(value).ok() == Locator::place_of(key),
            _ => false,
        };
        match MetaRow::decode(value) {
            Ok(MetaRow::Inode(head, _)) => {
                head.ino == ino && (!self.keeps_back_rows || leads_back())
            }
            Ok(MetaRow::Link { ino: found, .. }) => found == ino,
            Err(_) => false,
        }
    }

    /// Reports whether the row of an inode is put with its head; `None` if it has no row, or only
    /// messages are folded into it.
    fn puts(&self, inode: &Inode) -> Option<bool> {
        let key = self.keys().inode(inode)?;
        match self.last_of(&key)? {
            Message::Put { value, .. } => Some(matches!(
                MetaRow::decode(value),
                Ok(MetaRow::Inode(head, _)) if head == inode.head
            )),
            Message::Upsert { .. } => None,
            // What is known keeps its row until it is forgotten.
            Message::Delete { .. } => Some(!self.scope.residents().inodes.is_known(inode.head.ino)),
            Message::DeleteRange { .. } => Some(false),
        }
    }
}
