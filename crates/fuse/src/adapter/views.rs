//! The views of a file system in one mount: as it is, its snapshots, clones and transactions.
//!
//! [`Views`] is the handler of a mount. The node id of a request says which view it is for:
//!
//! ```text
//! node id --> Node::Mainline          the Adapter
//!             Node::Control(dir)      a directory of `.stitchfs`
//!             Node::Link              a link in it
//!             Node::Past(slot, ino)   a snapshot, or what a transaction shows of clones: read only
//!             Node::Live(slot, ino)   a clone or a transaction: an Adapter of its own
//! ```
//!
//! Requests to mainline cost one shift and one comparison more. The name `.stitchfs` in the root
//! directory is looked for in mainline first.

mod atomic;
mod changes;
mod clones;
mod control;
mod differences;
mod handler;
mod live;
mod mode;
mod node;
mod notices;
mod past;
mod places;
mod policies;
mod rollback;
mod served;
mod table;
#[cfg(test)]
mod tests;
mod transactions;
mod unasked;
mod usage;
mod writable;

use std::collections::BTreeMap;
use std::time::Duration;

use stitch_base::Ino;
use stitch_base::clock::Timestamp;
use stitch_base::sync::{Arc, Mutex};
use stitch_fs::{CloneInfo, DirName, FileSystem, MomentInfo, SnapshotInfo, inode_flag};

use super::alarm::Alarm;
use super::announced::Announcements;
use super::chore::Chore;
use super::report::put_framed;
use super::{Adapter, OrErrno as _};
use crate::clones::Target;
use crate::errno::Errno;
use crate::handler::{Answer, Context, Handler as _};
use crate::mount::MountMode;
use crate::wire::codec::Sink;
use crate::wire::reply::{AttrReply, DirEntry, Entry, FOREVER, Lookup};
pub use changes::SNAPSHOT_XATTR;
pub use clones::CLONE_XATTR;
pub use control::{
    CONTROL_DIR, ControlLink, HISTORY_DIR, SNAPSHOTS_DIR, TRANSACTION_ROOT, TRANSACTIONS_DIR,
};
use differences::DifferenceLists;
use live::OpenClones;
use node::{ControlDir, Node, Slot, transaction_link_number};
pub use node::{
    is_control_number, is_number_in_transaction, number_in_clone, number_in_snapshot,
    number_of_source, number_within,
};
use notices::NoticeQueue;
use rollback::Rollbacks;
use table::{OpenSnapshots, Past};
pub use transactions::TransactionSockets;
pub(super) use transactions::shown_number;
use transactions::{OpenTransaction, Transactions};
pub use usage::TellUsage;
use usage::UsageRequests;

/// Returns the number of a clone's directory in the mount.
pub(super) fn clone_number(info: &CloneInfo) -> Ino {
    Slot::of_clone(info.number).number(info.root)
}

/// Reports whether a snapshot is of a directory of mainline.
fn is_of(info: &SnapshotInfo, dir: Ino) -> bool {
    info.view == 0 && info.root == dir
}

/// Returns what there is to say about a snapshot, as a value of [`SNAPSHOT_XATTR`].
type Describe = Arc<dyn Fn(&SnapshotInfo) -> Vec<u8> + Send + Sync>;

/// A [`Handler`](crate::Handler) that is a file system with its snapshots.
pub struct Views {
    mainline: Adapter,
    table: Arc<OpenSnapshots>,
    clones: Arc<OpenClones>,
    transactions: Transactions,
    /// Clones that the next MKDIR of a thread makes: source and target.
    announced: Announcements<(Ino, Target)>,
    notices: Arc<NoticeQueue>,
    /// The thread that keeps the policies of snapshots, and the history.
    policies: Alarm,
    rollbacks: Rollbacks,
    difference_lists: DifferenceLists,
    usage: UsageRequests,
    /// The thread that puts back rows.
    places: Arc<Chore>,
    /// Whether the mount is read-only at the moment.
    mode: Arc<MountMode>,
    /// Held while snapshots are created and deleted.
    changing: Arc<Mutex<()>>,
    describe: Describe,
    /// Node ids have room for snapshots.
    has_slots: bool,
    link: Option<ControlLink>,
    /// When the file system was made.
    born: Timestamp,
    generation: u64,
}

impl std::fmt::Debug for Views {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Views")
            .field("mainline", &self.mainline)
            .finish_non_exhaustive()
    }
}

impl Views {
    /// Serves `mainline` and the snapshots of its file system. `describe` tells programs about one.
    #[must_use]
    pub fn new(mainline: Adapter, describe: Describe) -> Self {
        let fs = Arc::clone(mainline.fs());
        let generation = mainline.generation;
        let born = fs
            .get_attr(Ino::ROOT)
            .map_or(Timestamp(0), |root| root.btime);
        let table = Arc::new(OpenSnapshots::new(Arc::clone(&fs), generation));
        Self {
            has_slots: fs.snapshots().are_supported()
                || fs.takes_clones()
                || fs.transactions().can_begin(),
            clones: Arc::new(OpenClones::new(Arc::clone(&fs), mainline.options)),
            transactions: Transactions::new(fs, mainline.options, Arc::clone(&table)),
            announced: Announcements::new(),
            table,
            notices: Arc::new(NoticeQueue::new()),
            policies: Alarm::new("fuse-policies"),
            rollbacks: Rollbacks::new(),
            difference_lists: DifferenceLists::default(),
            usage: UsageRequests::default(),
            places: Arc::new(places::chore()),
            mode: Arc::default(),
            changing: Arc::default(),
            mainline,
            describe,
            link: None,
            born,
            generation,
        }
    }

    /// Adds a link to `.stitchfs`.
    #[must_use]
    pub fn with_link(mut self, link: ControlLink) -> Self {
        debug_assert!(!link.name.contains(&b'/'), "a link has one name");
        debug_assert!(self.link.is_none(), "there is one link");
        self.link = Some(link);
        self
    }

    /// Serves the records of transactions, which a link in `.stitchfs` of each leads to. It has the
    /// name of mainline's link.
    #[must_use]
    pub fn with_transaction_sockets(self, sockets: Arc<dyn TransactionSockets>) -> Self {
        debug_assert!(self.link.is_some(), "mainline's are served, too");
        self.transactions.table.serve_records(sockets);
        self
    }

    /// Reports whether there is `.stitchfs`.
    const fn has_control(&self) -> bool {
        self.has_slots || self.link.is_some()
    }

    fn node(&self, number: Ino) -> Node {
        if self.has_slots {
            return Node::of(number);
        }
        // No inode of a file system has a number in the control slot.
        match Node::of(number) {
            node @ (Node::Control(_) | Node::Link) if self.has_control() => node,
            _ => Node::Mainline,
        }
    }

    /// Marks mainline if a view has an immutable or append-only file: whether OPEN is served is
    /// decided once, for the whole mount.
    fn note_fixed(&self, view: &FileSystem) {
        if view.has_fixed_files() {
            self.mainline.fs().note_flags(inode_flag::IMMUTABLE);
        }
    }

    /// Refuses to change what is not mainline.
    fn check_writable(&self, number: Ino) -> Answer<()> {
        match self.node(number) {
            Node::Mainline | Node::Live(..) => Ok(()),
            Node::Control(_) | Node::Link | Node::TransactionLink(_) | Node::Past(..) => {
                Err(Errno::EROFS)
            }
            Node::Unknown => Err(Errno::ESTALE),
        }
    }

    /// Returns the hidden directory of a directory in mainline, if a name is that of it; `None`
    /// where there is none. What the directory itself has under the name is not looked at.
    fn hidden_dir(&self, parent: Ino, name: &[u8]) -> Option<ControlDir> {
        if name != CONTROL_DIR.as_bytes() || self.node(parent) != Node::Mainline {
            return None;
        }
        match parent {
            Ino::ROOT => self.has_control().then_some(ControlDir::Top),
            dir => self.has_slots.then_some(ControlDir::TopOf(dir)),
        }
    }

    /// Reports whether a name is that of the hidden directory, and the directory has no file of
    /// that name.
    fn is_control(&self, parent: Ino, name: &[u8]) -> Answer<bool> {
        if self.hidden_dir(parent, name).is_none() {
            return Ok(false);
        }
        let own = self.mainline.fs().peek(DirName::new(parent, name));
        Ok(own.or_errno()?.is_none())
    }

    /// Reports whether a name in the root of a transaction would hide `.stitchfs` after the commit.
    fn would_be_control(&self, parent: Ino, name: &[u8]) -> bool {
        name == CONTROL_DIR.as_bytes()
            && matches!(self.node(parent), Node::Live(slot, Ino::ROOT) if slot.is_transaction())
    }

    /// Refuses to make a name.
    fn check_new(&self, parent: Ino, name: &[u8]) -> Answer<()> {
        self.check_writable(parent)?;
        if self.is_control(parent, name)? || self.would_be_control(parent, name) {
            return Err(Errno::EEXIST);
        }
        Ok(())
    }

    /// Refuses to remove, move or replace a name.
    fn check_old(&self, parent: Ino, name: &[u8]) -> Answer<()> {
        self.check_writable(parent)?;
        if self.is_control(parent, name)? {
            return Err(Errno::EBUSY);
        }
        Ok(())
    }

    fn control_entry(&self, dir: ControlDir) -> Lookup {
        Lookup::Found(dir.entry(self.born, self.generation))
    }

    fn lookup_control(&self, dir: ControlDir, name: &[u8]) -> Answer<Lookup> {
        match (dir, name) {
            (ControlDir::TransactionDir(slot), name) => self.lookup_in_transaction_dir(slot, name),
            (_, b".") => Ok(self.control_entry(dir)),
            (ControlDir::Top | ControlDir::TopOf(_), b"..") => {
                self.mainline.find(Ino::ROOT, dir.parent(), b".")
            }
            (ControlDir::InTransaction(slot), name) => self.lookup_in_transaction(slot, name),
            (ControlDir::TransactionsIn(_), b"..") => Ok(self.control_entry_for_now(dir.above())),
            (_, b"..") => Ok(self.control_entry(dir.above())),
            (ControlDir::Top, name) if name == SNAPSHOTS_DIR.as_bytes() => {
                Ok(self.control_entry(ControlDir::Snapshots))
            }
            (ControlDir::Top, name) if name == HISTORY_DIR.as_bytes() => {
                Ok(self.control_entry(ControlDir::History))
            }
            (ControlDir::History, name) => self.table.at_moment(name, Past::lookup_root),
            (ControlDir::TopOf(of), name) if name == SNAPSHOTS_DIR.as_bytes() => {
                Ok(self.control_entry(ControlDir::SnapshotsOf(of)))
            }
            (ControlDir::TopOf(_), _) => Ok(Lookup::Missing { ttl: FOREVER }),
            (ControlDir::Top, name) if name == TRANSACTIONS_DIR.as_bytes() => {
                Ok(self.control_entry(ControlDir::Transactions))
            }
            (ControlDir::Transactions, name) => {
                self.lookup_transaction(None, name).map(Lookup::Found)
            }
            (ControlDir::TransactionsIn(slot), name) => {
                let outer = self.transactions.table.number_in(slot)?;
                self.lookup_transaction(Some(outer), name)
                    .map(Lookup::Found)
            }
            (ControlDir::Top, name) => Ok(match &self.link {
                Some(link) if link.name == name => {
                    Lookup::Found(link.entry(self.born, self.generation))
                }
                _ => Lookup::Missing { ttl: FOREVER },
            }),
            // No entry stands for a time: snapshots come and go.
            (ControlDir::Snapshots, name) => self.table.named(name, Past::lookup_root),
            (ControlDir::SnapshotsOf(of), name) => {
                self.table
                    .named(name, |past| match is_of(past.view().info(), of) {
                        true => past.lookup_root(),
                        false => Err(Errno::ENOENT),
                    })
            }
        }
    }

    /// Looks up a name in the directory of a transaction.
    fn lookup_in_transaction_dir(&self, slot: Slot, name: &[u8]) -> Answer<Lookup> {
        if name == TRANSACTION_ROOT.as_bytes() {
            let entry = self
                .transactions
                .table
                .within(slot, OpenTransaction::lookup_root)?;
            debug_assert!(entry.ino != Ino::ROOT, "it is not that of the mount");
            return Ok(Lookup::Found(Entry {
                entry_ttl: Duration::ZERO,
                ..entry
            }));
        }
        match name {
            b"." => self.transaction_dir(slot).map(Lookup::Found),
            b".." => {
                let outer = self.transactions.table.outer_of(slot)?;
                let dir = outer.map_or(ControlDir::Transactions, ControlDir::TransactionsIn);
                Ok(self.control_entry_for_now(dir))
            }
            _ => Ok(Lookup::Missing {
                ttl: Duration::ZERO,
            }),
        }
    }

    /// Returns the entry of the directory that has the root of the transaction in a slot.
    fn transaction_dir(&self, slot: Slot) -> Answer<Entry> {
        let owner = self.transactions.table.owner_of(slot)?;
        let dir = ControlDir::TransactionDir(slot);
        Ok(dir.owners_entry(owner, self.born, self.generation))
    }

    /// Returns the attributes of a directory of `.stitchfs`.
    fn control_attr(&self, dir: ControlDir) -> Answer<AttrReply> {
        let ControlDir::TransactionDir(slot) = dir else {
            return Ok(dir.attr_reply(self.born));
        };
        let entry = self.transaction_dir(slot)?;
        Ok(AttrReply {
            attr: entry.attr,
            ttl: entry.attr_ttl,
        })
    }

    /// Looks up a name in `.stitchfs` of a transaction. The kernel asks again at each use.
    fn lookup_in_transaction(&self, slot: Slot, name: &[u8]) -> Answer<Lookup> {
        let table = &self.transactions.table;
        if name == b".." {
            return table.within(slot, |open| open.lookup(Ino::ROOT, b"."));
        }
        if name == TRANSACTIONS_DIR.as_bytes() {
            return Ok(self.control_entry_for_now(ControlDir::TransactionsIn(slot)));
        }
        let is_link = self.link.as_ref().is_some_and(|link| link.name == name);
        if !is_link || !table.serves_records() {
            return Ok(Lookup::Missing {
                ttl: Duration::ZERO,
            });
        }
        let link = table.socket_link(slot)?;
        let mut entry = link.entry(self.born, self.generation);
        entry.ino = transaction_link_number(slot);
        entry.attr.ino = entry.ino;
        entry.entry_ttl = Duration::ZERO;
        entry.attr_ttl = Duration::ZERO;
        Ok(Lookup::Found(entry))
    }

    /// Returns the entry of a directory of `.stitchfs` in a transaction: slots are used again.
    fn control_entry_for_now(&self, dir: ControlDir) -> Lookup {
        Lookup::Found(Entry {
            entry_ttl: Duration::ZERO,
            ..dir.entry(self.born, self.generation)
        })
    }

    /// Adds `.stitchfs` to what is found in a transaction.
    fn found_in_transaction(&self, (slot, ino): (Slot, Ino), name: &[u8], found: Lookup) -> Lookup {
        let is_missing = matches!(found, Lookup::Missing { .. });
        let is_control = ino == Ino::ROOT && name == CONTROL_DIR.as_bytes();
        match is_missing && is_control {
            true => self.control_entry_for_now(ControlDir::InTransaction(slot)),
            false => found,
        }
    }

    fn transaction_link(&self, slot: Slot) -> Answer<ControlLink> {
        self.transactions.table.socket_link(slot)
    }

    fn lookup_mainline(&self, context: &Context<'_>, parent: Ino, name: &[u8]) -> Answer<Lookup> {
        let found = self.mainline.lookup(context, parent, name)?;
        let found = self.enter_clone(&self.mainline, found)?;
        match self.hidden_dir(parent, name) {
            Some(hidden) if matches!(found, Lookup::Missing { .. }) => {
                Ok(self.control_entry(hidden))
            }
            _ => Ok(found),
        }
    }

    /// Runs a request in a snapshot; others are refused with `otherwise`.
    fn within<T>(
        &self,
        node: Node,
        otherwise: Errno,
        request: impl FnOnce(&Past, Ino) -> Answer<T>,
    ) -> Answer<T> {
        match node {
            Node::Past(slot, ino) => self.table.within(slot, |past| request(past, ino)),
            Node::Unknown => Err(Errno::ESTALE),
            Node::Mainline
            | Node::Live(..)
            | Node::Control(_)
            | Node::Link
            | Node::TransactionLink(_) => Err(otherwise),
        }
    }

    /// Runs a request in a clone or a transaction.
    fn live<T>(&self, slot: Slot, request: impl FnOnce(&Adapter) -> Answer<T>) -> Answer<T> {
        if slot.is_transaction() {
            let table = &self.transactions.table;
            return table.within(slot, |open| request(open.adapter()));
        }
        self.clones.within(slot, |clone| request(clone.adapter()))
    }

    /// Runs a request in mainline, a clone or a transaction, where it may change something.
    /// Elsewhere it is refused.
    fn change<T>(
        &self,
        number: Ino,
        request: impl FnOnce(&Adapter, Ino) -> Answer<T>,
    ) -> Answer<T> {
        match self.node(number) {
            Node::Mainline => request(&self.mainline, number),
            Node::Live(slot, ino) => self.live(slot, |adapter| request(adapter, ino)),
            Node::Control(_) | Node::Link | Node::TransactionLink(_) | Node::Past(..) => {
                Err(Errno::EROFS)
            }
            Node::Unknown => Err(Errno::ESTALE),
        }
    }

    /// Returns the moments of the history as snapshots of the root. Of two with one name, of before
    /// and after the clock was set back, the newer one is found.
    fn moments(&self) -> Answer<Vec<SnapshotInfo>> {
        let moments = self.mainline.fs().history().moments().or_errno()?;
        let mut newest = BTreeMap::new();
        for moment in &moments {
            newest.insert(moment.name(), moment.id);
        }
        let shown = moments
            .iter()
            .filter(|moment| newest[&moment.name()] == moment.id);
        Ok(shown.map(MomentInfo::as_snapshot).collect())
    }

    fn list_control(
        &self,
        dir: ControlDir,
        offset: u64,
        push: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Answer<()> {
        let mut snapshots = match dir.of() {
            _ if dir == ControlDir::History => self.moments()?,
            Some(_) if self.has_slots => self.mainline.fs().snapshots().list().or_errno()?,
            _ => Vec::new(),
        };
        if let ControlDir::SnapshotsOf(of) = dir {
            snapshots.retain(|info| is_of(info, of));
        }
        let mut has_room = true;
        dir.list(offset, &snapshots, &mut |entry| {
            has_room = push(entry);
            has_room
        });
        let has_link = match dir {
            ControlDir::Top => true,
            ControlDir::InTransaction(_) => self.transactions.table.serves_records(),
            ControlDir::Snapshots
            | ControlDir::Transactions
            | ControlDir::TransactionsIn(_)
            | ControlDir::TransactionDir(_)
            | ControlDir::History
            | ControlDir::TopOf(_)
            | ControlDir::SnapshotsOf(_) => false,
        };
        let link = self.link.as_ref().filter(|_| has_link);
        if let Some(entry) = link.map(ControlLink::dir_entry)
            && has_room
            && entry.next_offset > offset
        {
            push(&entry);
        }
        Ok(())
    }

    fn transaction_link_attr(&self, slot: Slot) -> Answer<AttrReply> {
        let link = self.transaction_link(slot)?;
        Ok(AttrReply {
            attr: link.attr_as(transaction_link_number(slot), self.born),
            ttl: Duration::ZERO,
        })
    }

    fn link_attr(&self) -> Answer<AttrReply> {
        let link = self.link.as_ref().ok_or(Errno::ESTALE)?;
        Ok(AttrReply {
            attr: link.attr(self.born),
            ttl: FOREVER,
        })
    }

    /// Returns what there is to say about a snapshot, if its directory is asked.
    fn description(&self, past: &Past, ino: Ino) -> Option<Vec<u8>> {
        past.is_root(ino).then(|| {
            let opened = past.view().info();
            // As it is now: holds come and go.
            let now = self.mainline.fs().snapshots().get(&opened.name);
            let now = now.ok().filter(|info| info.id == opened.id);
            (self.describe)(now.as_ref().unwrap_or(opened))
        })
    }

    /// The same as an ioctl asks for it: also where there are no attributes.
    fn describe_framed(
        &self,
        past: &Past,
        ino: Ino,
        input: &[u8],
        out: &mut Sink<'_>,
    ) -> Answer<i32> {
        let name = crate::report::name_in(input).ok_or(Errno::EINVAL)?;
        let text = match self.description(past, ino) {
            Some(text) if name == SNAPSHOT_XATTR.as_bytes() => text,
            Some(_) => return Err(Errno::ENOTSUP),
            None => return Err(Errno::ENOTTY),
        };
        put_framed(&text, out).map(|()| 0)
    }
}
