//! Takeover from a process that was killed: the inodes of its ledger are known again, each with as
//! many lookups.
//!
//! All rows are read at open, in the order of their keys. So no request waits for one, and no
//! operation meets an inode that the kernel knows and the table does not.

use crate::inode::Location;
use crate::ledger::{Ledger, LedgerInode};
use crate::namespace::Namespace;
use crate::residents::Residents;
use crate::schema::Store;
use crate::system::FileSystem;
use crate::{DirName, FsResult};
use stitch_base::sync::Arc;
use stitch_format::fs_inode::InodeHead;

/// Makes known what the last process knew.
pub(crate) struct Takeover<'fs> {
    store: &'fs Store,
    residents: &'fs Residents,
    names: Namespace<'fs>,
}

impl<'fs> Takeover<'fs> {
    pub(crate) fn of(fs: &'fs FileSystem) -> Self {
        Self {
            store: &fs.store,
            residents: &fs.residents,
            names: Namespace::of(fs),
        }
    }

    /// Reads the row of each inode of the ledger. One that cannot be found is stale.
    pub(crate) fn run(&self) {
        let mut known = self.residents.inodes.known_before();
        if known.is_empty() {
            return;
        }
        known.sort_by_cached_key(|known| match known.places.last() {
            Some(Location::Entry { parent, name }) => {
                self.store.keys.dentry(*parent, name).to_vec()
            }
            _ => Vec::new(),
        });
        let mut lost = 0;
        for known in &known {
            match self.find_row(known) {
                Ok(Some((head, location))) => self.residents.inodes.restore(known, head, location),
                Ok(None) => {
                    tracing::debug!(ino = %known.ino, "its row is nowhere");
                    lost += 1;
                }
                Err(error) => {
                    tracing::error!(ino = %known.ino, %error, "its row cannot be read");
                    lost += 1;
                }
            }
        }
        debug_assert!(lost <= known.len(), "each is found or lost");
        self.residents.inodes.restored();
        debug_assert!(
            self.residents.inodes.count() <= 1 + known.len(),
            "no more are known than before, but the root"
        );
        let taken = known.len() - lost;
        tracing::info!(taken, lost, "took over inodes in use");
    }

    /// The row of an inode, at one of the places where it may be.
    fn find_row(&self, known: &LedgerInode) -> FsResult<Option<(InodeHead, Location)>> {
        for place in known.places.iter().rev() {
            let Location::Entry { parent, name } = place else {
                continue;
            };
            let at = DirName::new(*parent, name);
            let dentry = self.names.find_dentry(at)?;
            if let Some(dentry) = dentry.filter(|dentry| dentry.ino == known.ino) {
                let row = self.names.row_of(at, &dentry)?;
                debug_assert_eq!(row.0.ino, known.ino, "the row of the inode");
                return Ok(Some(row));
            }
        }
        let own = self.store.own_row(known.ino)?;
        let own = own.map(|(head, _)| (head, Location::Own));
        debug_assert!(
            own.as_ref().is_none_or(|(head, _)| head.ino == known.ino),
            "the row of the inode"
        );
        Ok(own.or_else(|| known.in_memory()))
    }
}

impl FileSystem {
    /// Where the inodes in use are written down, if they are.
    #[must_use]
    pub fn ledger(&self) -> Option<&Arc<dyn Ledger>> {
        self.residents.inodes.ledger()
    }
}
