//! What is done with plain files when a file system is opened.

use super::files::PlainFiles;
use super::{ExternalName, ExternalRow};
use crate::locator::{Locator, SysRow};
use crate::{FsError, FsResult};
use std::collections::BTreeSet;

impl PlainFiles<'_> {
    /// Counts the external files, and removes plain files that no row names: a crash has left them.
    pub(crate) fn sweep(&self) -> FsResult<()> {
        if !self.store.header.has_external {
            return self.remove_unnamed(&BTreeSet::new());
        }
        if !self.externals.is_there() {
            return Err(FsError::NoFolder);
        }
        let mut named = BTreeSet::new();
        let mut scan = self.store.scan(&self.store.keys.externals())?;
        while let Some((key, row)) = scan.next()? {
            let Some(SysRow::External(ino)) = Locator::sys_row(key) else {
                continue;
            };
            let row = ExternalRow::decode(row)?;
            let number = row.number;
            debug_assert!(number > 0, "0 is the number of no plain file");
            named.insert(ExternalName { ino, number });
            self.externals.add(1, row.settled);
        }
        drop(scan);
        self.remove_unnamed(&named)
    }

    fn remove_unnamed(&self, named: &BTreeSet<ExternalName>) -> FsResult<()> {
        if self.read_only || !self.externals.is_there() {
            return Ok(());
        }
        let files = self.externals.files()?;
        let found = files.list()?;
        let unnamed = found.iter().map(|(name, _)| *name);
        let unnamed: Vec<_> = unnamed.filter(|name| !named.contains(name)).collect();
        debug_assert!(unnamed.len() <= found.len(), "no more than there are");
        if unnamed.is_empty() {
            return Ok(());
        }
        // What took the rows away must not come undone by a power cut.
        self.engine.sync()?;
        let retired = std::mem::take(&mut *self.externals.retired.lock());
        debug_assert!(
            retired.iter().all(|name| !named.contains(name)),
            "what is retired has no row"
        );
        let next = self.store.number(&self.store.keys.next_ino())?;
        let mut count = 0;
        for &name in &unnamed {
            if name.number < next {
                match files.remove(name) {
                    Ok(()) => count += 1,
                    Err(error) => {
                        tracing::warn!(%error, "a plain file is left; the next open removes it");
                    }
                }
                continue;
            }
            // Perhaps the store is an older copy than the folder.
            match files.set_aside(name) {
                Ok(path) => {
                    tracing::warn!(path, "a plain file that the store never made is set aside");
                }
                Err(error) => {
                    tracing::warn!(%error, "a plain file that the store never made is left");
                }
            }
        }
        debug_assert!(count <= unnamed.len(), "no file with a row is removed");
        tracing::info!(count, "removed plain files that no file needs any more");
        Ok(())
    }
}
