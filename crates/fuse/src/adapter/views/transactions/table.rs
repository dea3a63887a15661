//! The transactions that are open in a mount: each has an adapter of its own.
//!
//! A slot is in use until the kernel has forgotten all inodes of its transaction, also after the
//! end: what is still open in it must not lead into a later transaction.
//!
//! Locks: `opening`, then that of `fs` for its transactions, then `open`, which is held for
//! moments.

use std::collections::HashMap;
use std::sync::OnceLock;

use stitch_base::Ino;
use stitch_base::sync::{Arc, Mutex};
use stitch_fs::{
    BeginOptions, CommitAhead, FileSystem, FsError, FsResult, Notices, TransactionInfo,
    TransactionView,
};

use super::TransactionSockets;
use super::open::OpenTransaction;
use super::scope::Catalog;
use crate::adapter::views::control::ControlLink;
use crate::adapter::views::node::Slot;
use crate::adapter::views::served::ViewServer;
use crate::adapter::{AdapterOptions, OrErrno as _};
use crate::errno::Errno;
use crate::handler::Answer;
use crate::notify::Notifier;

/// Most transactions that are open at a time.
const OPEN_MAX: usize = 256;
/// Most that an ordinary user has open: all users share the slots.
const OPEN_PER_USER_MAX: usize = 32;
/// Most of an ordinary user that have ended and are not forgotten by the kernel: files in them are
/// in use.
const ENDED_PER_USER_MAX: usize = 256;
/// How often a transaction is begun anew because its slot is in use.
const TRIES: usize = 16;

/// The transactions that are open, by slot.
#[derive(Debug)]
pub(in crate::adapter::views) struct TransactionTable {
    mainline: Arc<FileSystem>,
    server: ViewServer,
    /// Held while one begins, is opened or ends.
    opening: Mutex<()>,
    open: Mutex<HashMap<Slot, Arc<OpenTransaction>>>,
    sockets: OnceLock<Arc<dyn TransactionSockets>>,
}

impl TransactionTable {
    /// No transaction is open.
    pub(super) fn new(mainline: Arc<FileSystem>, options: AdapterOptions) -> Self {
        Self {
            mainline,
            server: ViewServer::new(options),
            opening: Mutex::default(),
            open: Mutex::default(),
            sockets: OnceLock::new(),
        }
    }

    /// Has the records of transactions served on sockets.
    pub(in crate::adapter::views) fn serve_records(&self, sockets: Arc<dyn TransactionSockets>) {
        let is_first = self.sockets.set(sockets).is_ok();
        debug_assert!(is_first, "they are set once");
    }

    /// Reports whether the records of transactions are served.
    pub(in crate::adapter::views) fn serves_records(&self) -> bool {
        self.sockets.get().is_some()
    }

    /// Returns the link to the socket of a transaction's records. Starts to serve them.
    ///
    /// # Errors
    /// `ESTALE` if the transaction has ended; as [`TransactionSockets::open`].
    pub(in crate::adapter::views) fn socket_link(&self, slot: Slot) -> Answer<ControlLink> {
        let sockets = self.sockets.get().ok_or(Errno::ENOENT)?;
        let open = self.by_slot(slot)?;
        let link = sockets.open(open.view());
        if open.has_ended() {
            // It may have been too late to be ended with the transaction.
            sockets.end(open.info().number);
            return Err(Errno::ESTALE);
        }
        link
    }

    /// Ends the sockets of all transactions.
    pub(super) fn end_sockets(&self) {
        if let Some(sockets) = self.sockets.get() {
            sockets.end_all();
        }
    }

    fn end_socket(&self, number: u64) {
        if let Some(sockets) = self.sockets.get() {
            sockets.end(number);
        }
    }

    /// Lets transactions that are opened from now on send notices.
    pub(super) fn connect(&self, notifier: &Notifier) {
        if !self.server.connect(notifier) {
            tracing::error!("mounted twice: transactions send notices to the first mount alone");
        }
    }

    pub(super) const fn mainline(&self) -> &Arc<FileSystem> {
        &self.mainline
    }

    /// Begins a transaction. `is_limited` for an ordinary user.
    ///
    /// # Errors
    /// `EMFILE` if too many are open; `EDQUOT` if the user has too many; those of the file system.
    pub(super) fn begin(
        &self,
        name: &str,
        options: &BeginOptions,
        is_limited: bool,
    ) -> Answer<Arc<OpenTransaction>> {
        let _one_at_a_time = self.opening.lock();
        let catalog = Catalog::read(&self.mainline)?;
        if catalog.open().count() >= OPEN_MAX {
            return Err(Errno::EMFILE);
        }
        if is_limited {
            self.check_user(&catalog, options.owner)?;
        }
        for _ in 0..TRIES {
            let view = self
                .mainline
                .transactions()
                .begin(name, options)
                .or_errno()?;
            let number = view.info().number;
            if self.find(Slot::of_transaction(number)).is_none() {
                return Ok(self.enter(view));
            }
            // The next one has the next number.
            self.mainline
                .transactions()
                .abort_number(number)
                .or_errno()?;
        }
        Err(Errno::ENFILE)
    }

    /// Refuses a user who has as many as a user may have.
    fn check_user(&self, catalog: &Catalog, owner: u32) -> Answer<()> {
        let open = catalog.open().filter(|info| info.owner == owner).count();
        let table = self.open.lock();
        let ended = table.values().filter(|open| open.has_ended());
        let ended = ended.filter(|open| open.info().owner == owner).count();
        match open < OPEN_PER_USER_MAX && ended < ENDED_PER_USER_MAX {
            true => Ok(()),
            false => Err(Errno::EDQUOT),
        }
    }

    /// Returns the open transaction of a number.
    ///
    /// # Errors
    /// `ESTALE` if it has ended; `ENFILE` if its slot is in use.
    pub(super) fn by_number(&self, number: u64) -> Answer<Arc<OpenTransaction>> {
        if let Some(open) = self.find_number(number) {
            return Ok(open);
        }
        let _one_at_a_time = self.opening.lock();
        match self.find_number(number) {
            Some(open) => Ok(open),
            None => self.open(number),
        }
    }

    /// Returns the number of the transaction that the inodes of a slot are in.
    ///
    /// # Errors
    /// `ESTALE` if it has ended.
    pub(in crate::adapter::views) fn number_in(&self, slot: Slot) -> Answer<u64> {
        Ok(self.by_slot(slot)?.info().number)
    }

    /// Returns the user who began the transaction of a slot.
    ///
    /// # Errors
    /// `ESTALE` if it has ended.
    pub(in crate::adapter::views) fn owner_of(&self, slot: Slot) -> Answer<u32> {
        Ok(self.by_slot(slot)?.info().owner)
    }

    /// Returns the slot of the transaction that the one of a slot began in, if it did in one.
    ///
    /// # Errors
    /// `ESTALE` if it has ended.
    pub(in crate::adapter::views) fn outer_of(&self, slot: Slot) -> Answer<Option<Slot>> {
        let outer = self.by_slot(slot)?.info().outer;
        Ok(outer.map(Slot::of_transaction))
    }

    /// Returns the transaction that the inodes of a slot are in.
    ///
    /// # Errors
    /// `ESTALE` if it has ended.
    fn by_slot(&self, slot: Slot) -> Answer<Arc<OpenTransaction>> {
        if let Some(found) = self.find(slot) {
            return match found.has_ended() {
                true => Err(Errno::ESTALE),
                false => Ok(found),
            };
        }
        let _one_at_a_time = self.opening.lock();
        let all = self.mainline.transactions().list().or_errno()?;
        let mut open = all.iter().filter(|info| info.is_open());
        let info = open.find(|info| Slot::of_transaction(info.number) == slot);
        match self.find(slot) {
            Some(found) if !found.has_ended() => Ok(found),
            Some(_) => Err(Errno::ESTALE),
            None => self.open(info.ok_or(Errno::ESTALE)?.number),
        }
    }

    pub(super) fn find(&self, slot: Slot) -> Option<Arc<OpenTransaction>> {
        self.open.lock().get(&slot).map(Arc::clone)
    }

    /// Returns the open transaction of a name that is in use, of those that began in `outer`;
    /// `None` also of one that may be ending, which the catalog tells.
    pub(super) fn find_name(&self, outer: Option<u64>, name: &str) -> Option<Arc<OpenTransaction>> {
        let open = self.open.lock();
        let is_it = |open: &&Arc<OpenTransaction>| {
            let info = open.info();
            !open.may_have_ended() && info.outer == outer && info.name == name
        };
        open.values().find(is_it).map(Arc::clone)
    }

    fn find_number(&self, number: u64) -> Option<Arc<OpenTransaction>> {
        let found = self.find(Slot::of_transaction(number));
        found.filter(|open| !open.has_ended() && open.info().number == number)
    }

    /// Opens one that was begun before this daemon.
    fn open(&self, number: u64) -> Answer<Arc<OpenTransaction>> {
        let view = self
            .mainline
            .transactions()
            .open_number(number)
            .or_errno()?;
        debug_assert_eq!(
            view.info().number,
            number,
            "the transaction that was asked for"
        );
        match self.find(Slot::of_transaction(view.info().number)) {
            Some(_) => Err(Errno::ENFILE),
            None => Ok(self.enter(view)),
        }
    }

    fn enter(&self, view: Arc<TransactionView>) -> Arc<OpenTransaction> {
        let slot = Slot::of_transaction(view.info().number);
        let served = self.server.serve(Arc::clone(view.fs()), slot);
        let opened = Arc::new(OpenTransaction::new(view, served));
        let before = self.open.lock().insert(slot, Arc::clone(&opened));
        debug_assert!(before.is_none(), "one is opened at a time");
        opened
    }

    /// Runs a request in the transaction that a node id names.
    ///
    /// # Errors
    /// `ESTALE` if it has ended; those of the request.
    pub(in crate::adapter::views) fn within<T>(
        &self,
        slot: Slot,
        request: impl FnOnce(&OpenTransaction) -> Answer<T>,
    ) -> Answer<T> {
        request(self.by_slot(slot)?.as_ref())
    }

    /// Takes lookups back. The slot of one that has ended is free after the last.
    pub(in crate::adapter::views) fn forget(&self, slot: Slot, ino: Ino, count: u64) {
        let Some(open) = self.find(slot) else {
            return;
        };
        open.forget(ino, count);
        if open.is_gone() {
            drop(open);
            self.sweep();
        }
    }

    /// Commits a transaction, of which something may have been read before. Its end is known to
    /// requests when this returns.
    pub(super) fn commit(
        &self,
        open: &OpenTransaction,
        ahead: Option<CommitAhead>,
    ) -> FsResult<Notices> {
        let _one_at_a_time = self.opening.lock();
        if open.has_ended() {
            return Err(FsError::Ended);
        }
        open.ending(|| {
            let transactions = self.mainline.transactions();
            let committed = match ahead {
                Some(ahead) => transactions.commit_ahead(open.view(), ahead),
                None => transactions.commit(open.view()),
            };
            // With resolutions it is rebased first: then it goes on under another number.
            if committed.is_ok() || self.is_renumbered(open) {
                open.set_ended(true);
                self.end_socket(open.info().number);
            }
            committed
        })
    }

    fn is_renumbered(&self, open: &OpenTransaction) -> bool {
        let all = self.mainline.transactions().list().unwrap_or_default();
        let mut others = all.iter().filter(|info| info.is_open());
        let name = |info: &TransactionInfo| (info.outer, info.name.clone());
        others.any(|info| name(info) == name(open.info()) && info.number != open.info().number)
    }

    /// Rebases a transaction. It is another one afterwards, which has its name.
    pub(super) fn rebase(&self, open: &OpenTransaction) -> FsResult<()> {
        let _one_at_a_time = self.opening.lock();
        if open.has_ended() {
            return Err(FsError::Ended);
        }
        open.ending(|| {
            let rebased = self.mainline.transactions().rebase(open.view())?;
            debug_assert_ne!(rebased.info().number, open.info().number, "another one");
            open.set_ended(true);
            self.end_socket(open.info().number);
            Ok(())
        })
    }

    /// Aborts the transaction of a number, and those in it. Returns those that were in use.
    pub(super) fn abort(&self, number: u64) -> FsResult<Vec<Arc<OpenTransaction>>> {
        let _one_at_a_time = self.opening.lock();
        let mut ended = Catalog::of(self.mainline.transactions().list()?).within(number);
        ended.push(number);
        // Before they are listed as aborted: a reader of that list does not find them any more.
        let in_use = ended.iter().filter_map(|number| self.find_number(*number));
        let in_use: Vec<Arc<OpenTransaction>> = in_use.collect();
        in_use.iter().for_each(|open| open.set_ended(true));
        if let Err(error) = self.mainline.transactions().abort_number(number) {
            in_use.iter().for_each(|open| open.set_ended(false));
            return Err(error);
        }
        ended.iter().for_each(|number| self.end_socket(*number));
        Ok(in_use)
    }

    /// Forgets those that have ended and that the kernel has forgotten.
    pub(super) fn sweep(&self) {
        let mut gone = Vec::new();
        {
            let mut table = self.open.lock();
            let slots: Vec<Slot> = table
                .iter()
                .filter_map(|(slot, open)| open.is_gone().then_some(*slot))
                .collect();
            gone.extend(slots.iter().filter_map(|slot| table.remove(slot)));
        }
        // Their file systems are dropped without the lock.
        drop(gone);
    }

    /// Closes all, for good.
    pub(super) fn clear(&self) {
        let all = std::mem::take(&mut *self.open.lock());
        for open in all.into_values() {
            open.stop();
            if !open.has_ended()
                && let Err(error) = open.adapter().fs().close()
            {
                tracing::warn!(%error, "a transaction was not closed in order");
            }
        }
    }

    /// Number of slots in use.
    #[cfg(test)]
    pub(in crate::adapter::views) fn count(&self) -> usize {
        self.open.lock().len()
    }
}
