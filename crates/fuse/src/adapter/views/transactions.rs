//! Transactions of files in a mount: requests about them; see [`crate::transactions`].
//!
//! ```text
//! begin     a file system over branch trees, and an Adapter of its own     (table)
//! run       the process that began it is watched: when it ends, abort      (watch)
//! commit    queued; a thread commits, sends notices, then tells the outcome (commits)
//! rebase    likewise: it ends, and goes on under another number
//! expiry    a thread aborts it at its time (expiry)
//! clones    their contents are those of a pin, as of a snapshot (clones)
//! end       requests in it are ESTALE; the slot is free once the kernel has forgotten all
//! ```

mod begin;
mod clones;
mod commits;
mod expiry;
mod open;
mod resolving;
mod scope;
mod sockets;
mod table;
mod watch;

use std::sync::OnceLock;

use stitch_base::Ino;
use stitch_base::clock::Timestamp;
use stitch_base::sync::Arc;
use stitch_fs::{FileSystem, PathChange, TransactionInfo, TransactionLife, TransactionState};

use super::Views;
use super::changes::check_owner;
use super::node::{ControlDir, Node, Slot};
use super::table::OpenSnapshots;
use crate::adapter::alarm::Alarm;
use crate::adapter::report::put_framed;
use crate::adapter::{AdapterOptions, OrErrno as _};
use crate::errno::Errno;
use crate::handler::{Answer, Context};
use crate::notify::Notifier;
use crate::report::ROOM;
use crate::survive::is_resent;
use crate::transactions::{Lifetime, TransactionRequest, expiry_word};
use crate::wire::codec::Sink;
use crate::wire::reply::Entry;
use begin::LockLine;
pub(in crate::adapter) use clones::shown_number;
use commits::Commits;
pub(super) use open::OpenTransaction;
use scope::{Asker, Catalog};
pub use sockets::TransactionSockets;
use table::TransactionTable;
use watch::{ProcessHandle, ProcessWatch};

/// Most words of one answer, in bytes.
const REPLY_BYTES_MAX: usize = ROOM - 4;

/// The transactions of a mount, and the threads that serve them.
pub(super) struct Transactions {
    pub(super) table: Arc<TransactionTable>,
    commits: Arc<Commits>,
    line: LockLine,
    watch: OnceLock<ProcessWatch>,
    expiry: OnceLock<Alarm>,
}

impl Transactions {
    /// No thread runs yet.
    pub(super) fn new(
        mainline: Arc<FileSystem>,
        options: AdapterOptions,
        pasts: Arc<OpenSnapshots>,
    ) -> Self {
        let table = Arc::new(TransactionTable::new(mainline, options));
        Self {
            commits: Arc::new(Commits::new(Arc::clone(&table), pasts)),
            table,
            line: LockLine::default(),
            watch: OnceLock::new(),
            expiry: OnceLock::new(),
        }
    }

    /// Starts the thread that commits.
    pub(super) fn start(&self, notifier: &Notifier) {
        self.table.connect(notifier);
        self.commits.start(notifier);
        let all = self.listed();
        if all
            .iter()
            .any(|info| info.is_open() && info.expires.is_some())
        {
            self.note_expiry();
        }
    }

    /// Returns all transactions of the store; none if they cannot be read.
    fn listed(&self) -> Vec<TransactionInfo> {
        let listed = self.table.mainline().transactions().list();
        listed.unwrap_or_default()
    }

    /// Has the thread that aborts expired transactions look at their times.
    fn note_expiry(&self) {
        let expiry = self.expiry.get_or_init(|| {
            let (mainline, commits) =
                (Arc::clone(self.table.mainline()), Arc::clone(&self.commits));
            expiry::start(
                move || mainline.transactions().list(),
                move |number| commits.abort_expired(number),
            )
        });
        expiry.note();
    }

    /// Ends the threads, the runs and all that is open.
    pub(super) fn stop(&self) {
        if let Some(expiry) = self.expiry.get() {
            expiry.stop();
        }
        if let Some(watch) = self.watch.get() {
            for number in watch.stop() {
                // What is not aborted here is when the store is opened.
                drop(self.table.abort(number));
            }
        }
        self.commits.stop();
        self.table.end_sockets();
        self.table.clear();
    }

    /// Runs what is queued without the thread.
    #[cfg(test)]
    pub(super) fn run_now(&self, notifier: &Notifier) {
        self.commits.run_all(notifier);
    }

    /// Aborts a transaction when a process has ended.
    fn watch(&self, process: ProcessHandle, number: u64) -> Answer<()> {
        let watch = self.watch.get_or_init(|| {
            let commits = Arc::clone(&self.commits);
            ProcessWatch::new(move |number| commits.abort_ended(number))
        });
        watch.add(process, number).map_err(|error| {
            tracing::error!(%error, "cannot watch the process of a transaction");
            Errno::from_io(&error)
        })
    }

    /// Aborts the runs in a transaction whose processes have ended. They would be soon: but its
    /// commit, which follows, is refused while they are open.
    fn abort_ended_within(&self, number: u64) {
        let all = self.listed();
        for inner in Catalog::of(all).within(number) {
            if self
                .watch
                .get()
                .is_some_and(|watch| watch.take_ended(inner))
            {
                self.commits.abort_ended(inner);
            }
        }
    }

    fn is_watched(&self, number: u64) -> bool {
        self.watch.get().is_some_and(|watch| watch.has(number))
    }

    fn unwatch(&self, number: u64) -> bool {
        self.watch.get().is_some_and(|watch| watch.remove(number))
    }
}

/// Words of an answer, as many as fit.
#[derive(Default)]
pub(super) struct ReplyWords(pub(super) Vec<u8>);

impl ReplyWords {
    /// Adds words that belong together. Returns false if they do not fit.
    pub(super) fn add(&mut self, words: &[&[u8]]) -> bool {
        let len: usize = words.iter().map(|word| word.len() + 1).sum();
        if self.0.len() + len > REPLY_BYTES_MAX {
            return false;
        }
        for word in words {
            debug_assert!(!word.contains(&0), "a zero byte ends a word");
            self.0.extend_from_slice(word);
            self.0.push(0);
        }
        true
    }

    /// Adds a change: its sign, its path, and the path before. Returns false if it does not fit.
    pub(super) fn add_change(&mut self, change: &PathChange) -> bool {
        let (sign, path, old): (&[u8], _, &[u8]) = match change {
            PathChange::Removed(path) => (b"-", path, b""),
            PathChange::Added(path) => (b"+", path, b""),
            PathChange::Modified(path) => (b"M", path, b""),
            PathChange::Renamed { from, to } => (b"R", to, from),
        };
        self.add(&[sign, path, old])
    }

    fn of(words: &[&[u8]]) -> Vec<u8> {
        let mut reply = Self::default();
        let fits = reply.add(words);
        debug_assert!(fits, "few short words");
        reply.0
    }
}

impl Views {
    /// Serves a request about transactions.
    pub(super) fn ask_transactions(
        &self,
        context: &Context<'_>,
        dir: Ino,
        input: &[u8],
        out: &mut Sink<'_>,
    ) -> Answer<i32> {
        let scope = self.scope_of(dir)?;
        let request = TransactionRequest::parse(input).ok_or(Errno::EINVAL)?;
        if request.is_refused_read_only() {
            self.check_mode()?;
        }
        let reply = self.transaction_reply(&Asker { context, scope }, request)?;
        put_framed(&reply, out).map(|()| 0)
    }

    /// Returns the transaction that names are looked up in, if a directory is asked; `None` for
    /// mainline.
    fn scope_of(&self, dir: Ino) -> Answer<Option<u64>> {
        match self.node(dir) {
            Node::Control(
                ControlDir::InTransaction(slot)
                | ControlDir::TransactionsIn(slot)
                | ControlDir::TransactionDir(slot),
            ) => self.transactions.table.number_in(slot).map(Some),
            Node::Live(slot, _) if slot.is_transaction() => {
                self.transactions.table.number_in(slot).map(Some)
            }
            Node::Mainline | Node::Control(_) => Ok(None),
            Node::Live(..) | Node::Past(..) => Err(Errno::ENOTSUP),
            Node::Link | Node::TransactionLink(_) => Err(Errno::EINVAL),
            Node::Unknown => Err(Errno::ESTALE),
        }
    }

    fn transaction_reply(
        &self,
        asker: &Asker<'_>,
        request: TransactionRequest<'_>,
    ) -> Answer<Vec<u8>> {
        match request {
            TransactionRequest::Begin(args) => self.begin(asker, &args),
            TransactionRequest::Details(from) => self.list_details(asker.scope, from),
            TransactionRequest::Commit(name) => self.begin_commit(asker, name),
            TransactionRequest::Outcome(number) => self.commit_outcome(number),
            TransactionRequest::Abort(name) => self.abort(asker, name),
            TransactionRequest::Keep(name) => self.keep(asker, name),
            TransactionRequest::Expire(name, at) => self.expire(asker, name, at.map(Timestamp)),
            TransactionRequest::List(after) => self.list_transactions(asker.scope, after),
            TransactionRequest::Changes(name, from) => self.list_changes(asker, name, from),
            TransactionRequest::Conflicts(name, from) => self.list_conflicts(asker, name, from),
            TransactionRequest::Resolve(name, side, path) => {
                self.resolve(asker, (name, path), side)
            }
            TransactionRequest::ResolveRecord(name, side, record) => {
                self.resolve_record(asker, (name, &record), side)
            }
            TransactionRequest::Rebase(name) => self.begin_rebase(asker, name),
            TransactionRequest::Base(name, offset, path) => {
                self.base_contents(asker, (name, path), offset)
            }
        }
    }

    /// Returns the open transaction of a name, if the caller may end it.
    fn owned(&self, asker: &Asker<'_>, name: &str) -> Answer<TransactionInfo> {
        let catalog = Catalog::read(self.mainline.fs())?;
        let info = catalog.find(asker.scope, name)?;
        check_owner(asker.context, info.owner)?;
        Ok(info.clone())
    }

    fn begin_commit(&self, asker: &Asker<'_>, name: &str) -> Answer<Vec<u8>> {
        let info = self.owned(asker, name)?;
        self.transactions.abort_ended_within(info.number);
        let open = self.transactions.table.by_number(info.number)?;
        match self.transactions.commits.queue(open) {
            Err(Errno::EBUSY) if is_resent(asker.context.unique) => {}
            queued => queued?,
        }
        Ok(number_reply(info.number))
    }

    /// Tells what came of a commit, also of one before this daemon.
    fn commit_outcome(&self, number: u64) -> Answer<Vec<u8>> {
        if let Some(reply) = self.transactions.commits.outcome(number) {
            // Some files may have lost their last name.
            self.mainline.trees.note();
            self.mainline.reclaiming.note();
            return Ok(reply);
        }
        let all = self.mainline.fs().transactions().list().or_errno()?;
        let info = all.into_iter().find(|info| info.number == number);
        match info.map(|info| info.state) {
            Some(TransactionState::Committed(_)) => {
                let committed = crate::transactions::COMMITTED;
                Ok(ReplyWords::of(&[committed.as_bytes()]))
            }
            _ => Err(Errno::ENOENT),
        }
    }

    fn abort(&self, asker: &Asker<'_>, name: &str) -> Answer<Vec<u8>> {
        let info = match self.owned(asker, name) {
            Err(Errno::ENOENT) if is_resent(asker.context.unique) => return Ok(Vec::new()),
            owned => owned?,
        };
        self.transactions.unwatch(info.number);
        self.transactions.commits.abort(info.number).or_errno()?;
        tracing::info!(name, number = info.number, "aborted a transaction");
        Ok(Vec::new())
    }

    fn keep(&self, asker: &Asker<'_>, name: &str) -> Answer<Vec<u8>> {
        let info = self.owned(asker, name)?;
        if info.life != TransactionLife::Named {
            return Err(Errno::EINVAL);
        }
        match self.transactions.unwatch(info.number) || is_resent(asker.context.unique) {
            true => Ok(Vec::new()),
            false => Err(Errno::EINVAL),
        }
    }

    fn expire(&self, asker: &Asker<'_>, name: &str, at: Option<Timestamp>) -> Answer<Vec<u8>> {
        let info = self.owned(asker, name)?;
        if info.life != TransactionLife::Named {
            return Err(Errno::EINVAL);
        }
        let fs = self.mainline.fs();
        fs.transactions().expire(info.number, at).or_errno()?;
        self.transactions.note_expiry();
        Ok(Vec::new())
    }

    fn list_transactions(&self, scope: Option<u64>, after: u64) -> Answer<Vec<u8>> {
        let mut reply = ReplyWords::default();
        let catalog = Catalog::read(self.mainline.fs())?;
        for info in catalog.all().filter(|info| info.number > after) {
            if let Some(name) = catalog.name_in(scope, info)
                && !add_info(&mut reply, info, &name)
            {
                break;
            }
        }
        Ok(reply.0)
    }

    fn list_changes(&self, asker: &Asker<'_>, name: &str, from: usize) -> Answer<Vec<u8>> {
        let info = self.owned(asker, name)?;
        let open = self.transactions.table.by_number(info.number)?;
        let changes = open.changes(from == 0).or_errno()?;
        let mut reply = ReplyWords::default();
        reply.add(&[changes.len().to_string().as_bytes()]);
        for change in changes.iter().skip(from) {
            if !reply.add_change(change) {
                return Ok(reply.0);
            }
        }
        open.forget_changes();
        Ok(reply.0)
    }

    /// Looks up the directory of a transaction that began in `outer`. The kernel asks again at each
    /// use: names are used again.
    pub(super) fn lookup_transaction(&self, outer: Option<u64>, name: &[u8]) -> Answer<Entry> {
        let name = std::str::from_utf8(name).map_err(|_| Errno::ENOENT)?;
        let table = &self.transactions.table;
        let open = match table.find_name(outer, name) {
            Some(open) => open,
            None => {
                let catalog = Catalog::read(self.mainline.fs())?;
                table.by_number(catalog.find(outer, name)?.number)?
            }
        };
        self.transaction_dir(Slot::of_transaction(open.info().number))
    }
}

fn number_reply(number: u64) -> Vec<u8> {
    ReplyWords::of(&[number.to_string().as_bytes()])
}

fn add_info(reply: &mut ReplyWords, info: &TransactionInfo, name: &str) -> bool {
    let life = match info.life {
        TransactionLife::Run => Lifetime::Run,
        TransactionLife::Named => Lifetime::Named,
    };
    let state = match info.state {
        TransactionState::Open => "open".to_owned(),
        TransactionState::Committed(at) => at.to_string(),
    };
    reply.add(&[
        info.number.to_string().as_bytes(),
        name.as_bytes(),
        info.owner.to_string().as_bytes(),
        info.created.0.to_string().as_bytes(),
        life.word().as_bytes(),
        state.as_bytes(),
        expiry_word(info.expires.map(|at| at.0)).as_bytes(),
    ])
}
