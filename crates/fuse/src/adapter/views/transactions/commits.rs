//! The thread that commits transactions and tells the kernel what changed.
//!
//! No request waits for a notice: the kernel may need an answer of a worker before it is done with
//! one.
//!
//! ```text
//! thread fuse-txn        read ahead | reclaim | commit | notices about mainline | clear | outcome
//! thread fuse-txn-drop   pages back |
//! ```
//!
//! Both first steps take long for a transaction of many files. If pages that were written back
//! change the transaction, the commit reads it anew.

use std::collections::VecDeque;
use std::time::Duration;

use stitch_base::Ino;
use stitch_base::sync::{Arc, Mutex};
use stitch_fs::{CommitAhead, FsError, FsResult, Notices};

use super::ReplyWords;
use super::open::OpenTransaction;
use super::table::TransactionTable;
use crate::adapter::chore::{Chore, Left, Round};
use crate::adapter::views::node::Slot;
use crate::adapter::views::table::OpenSnapshots;
use crate::adapter::views::unasked::UnaskedChange;
use crate::adapter::{notices, reclaim};
use crate::errno::Errno;
use crate::handler::Answer;
use crate::notify::Notifier;
use crate::transactions::{COMMITTED, CONFLICT, REBASED, REFUSED, RUNNING, record_word};
use crate::wire::notice::PRUNE_COUNT_MAX;

/// Number of outcomes that are kept for later requests.
const OUTCOMES_MAX: usize = 64;

/// What the thread has to do.
#[derive(Clone, Debug)]
enum TransactionJob {
    Commit(Arc<OpenTransaction>),
    Rebase(Arc<OpenTransaction>),
    /// Have the kernel drop what it has of one that was aborted.
    Clear(Arc<OpenTransaction>),
}

/// The outcome of a commit that was begun.
#[derive(Debug)]
struct Attempt {
    number: u64,
    reply: Vec<u8>,
    is_running: bool,
}

#[derive(Debug)]
struct CommitQueue {
    table: Arc<TransactionTable>,
    /// What transactions show of clones.
    pasts: Arc<OpenSnapshots>,
    jobs: Mutex<VecDeque<TransactionJob>>,
    attempts: Mutex<VecDeque<Attempt>>,
}

/// Commits that are queued, run or done.
#[derive(Debug)]
pub(super) struct Commits {
    queue: Arc<CommitQueue>,
    working: Chore,
}

impl Commits {
    /// No thread runs yet.
    pub(super) fn new(table: Arc<TransactionTable>, pasts: Arc<OpenSnapshots>) -> Self {
        let queue = CommitQueue {
            table,
            pasts,
            jobs: Mutex::default(),
            attempts: Mutex::default(),
        };
        Self {
            queue: Arc::new(queue),
            working: Chore::new("fuse-txn", Duration::ZERO),
        }
    }

    /// Starts the thread.
    pub(super) fn start(&self, notifier: &Notifier) {
        let (queue, notifier) = (Arc::clone(&self.queue), notifier.clone());
        self.working.start(move |round| {
            if round == Round::Due {
                queue.run_all(&notifier);
            }
            Left::Nothing
        });
    }

    pub(super) fn stop(&self) {
        self.working.stop();
    }

    /// Runs what is queued without the thread.
    #[cfg(test)]
    pub(super) fn run_all(&self, notifier: &Notifier) {
        self.queue.run_all(notifier);
    }

    /// Queues a commit.
    ///
    /// # Errors
    /// `EBUSY` if it is queued already.
    pub(super) fn queue(&self, open: Arc<OpenTransaction>) -> Answer<()> {
        self.queue_job(open.info().number, TransactionJob::Commit(open))
    }

    /// Queues a rebase, as [`Self::queue`] does a commit.
    pub(super) fn queue_rebase(&self, open: Arc<OpenTransaction>) -> Answer<()> {
        self.queue_job(open.info().number, TransactionJob::Rebase(open))
    }

    fn queue_job(&self, number: u64, job: TransactionJob) -> Answer<()> {
        let mut attempts = self.queue.attempts.lock();
        let is_it = |attempt: &&Attempt| attempt.number == number;
        if attempts.iter().find(is_it).is_some_and(|it| it.is_running) {
            return Err(Errno::EBUSY);
        }
        attempts.retain(|attempt| attempt.number != number);
        let done = attempts.iter().position(|attempt| !attempt.is_running);
        if attempts.len() >= OUTCOMES_MAX
            && let Some(oldest) = done
        {
            attempts.remove(oldest);
        }
        attempts.push_back(Attempt {
            number,
            reply: ReplyWords::of(&[RUNNING.as_bytes()]),
            is_running: true,
        });
        debug_assert_eq!(
            attempts.iter().filter(is_it).count(),
            1,
            "a transaction has one outcome"
        );
        drop(attempts);
        self.queue.push(job);
        self.working.note();
        Ok(())
    }

    /// Returns what is known of the last commit of a transaction.
    pub(super) fn outcome(&self, number: u64) -> Option<Vec<u8>> {
        let attempts = self.queue.attempts.lock();
        let found = attempts.iter().find(|attempt| attempt.number == number);
        found.map(|attempt| attempt.reply.clone())
    }

    /// Aborts a transaction, and those in it.
    pub(super) fn abort(&self, number: u64) -> FsResult<()> {
        for open in self.queue.table.abort(number)? {
            self.queue.push(TransactionJob::Clear(open));
            self.working.note();
        }
        Ok(())
    }

    /// Aborts a transaction that has expired, if it is open.
    pub(super) fn abort_expired(&self, number: u64) {
        match self.abort(number) {
            Ok(()) => tracing::info!(number, "a transaction has expired: aborted"),
            Err(FsError::Ended) => {}
            Err(error) => tracing::error!(%error, number, "an expired transaction stays open"),
        }
    }

    /// Aborts a transaction whose process has ended, if it is open.
    pub(super) fn abort_ended(&self, number: u64) {
        match self.abort(number) {
            Ok(()) => tracing::info!(number, "a run ended without a commit: aborted"),
            Err(FsError::Ended) => {}
            Err(error) => tracing::error!(
                %error,
                number,
                "a run was not aborted; it is when the store is mounted again"
            ),
        }
    }
}

impl CommitQueue {
    fn push(&self, job: TransactionJob) {
        self.jobs.lock().push_back(job);
    }

    fn run_all(&self, notifier: &Notifier) {
        loop {
            let job = self.jobs.lock().pop_front();
            match job {
                Some(TransactionJob::Commit(open)) => self.commit(&open, notifier),
                Some(TransactionJob::Rebase(open)) => self.rebase(&open, notifier),
                Some(TransactionJob::Clear(open)) => self.clear(&open, notifier),
                None => return,
            }
        }
    }

    fn commit(&self, open: &Arc<OpenTransaction>, notifier: &Notifier) {
        let (name, number) = (&open.info().name, open.info().number);
        // What programs wrote through mappings is written back.
        let ahead = self.read_beside_notices(open, notifier);
        // What it has made and removed again need not be committed.
        if let Err(error) = open.adapter().fs().reclaim() {
            tracing::debug!(%error, number, "removed files of a transaction are committed");
        }
        let committed = self.commit_where_room(open, ahead);
        let reply = match &committed {
            Ok(_) => ReplyWords::of(&[COMMITTED.as_bytes()]),
            Err(error) => refusal_of(error),
        };
        match committed {
            Ok(changed) => {
                debug_assert!(open.has_ended(), "requests in it are refused from now on");
                self.tell_target(open, changed, notifier);
                self.clear(open, notifier);
                tracing::info!(name, number, "committed a transaction");
            }
            Err(error) => {
                tracing::info!(name, number, %error, "a transaction was not committed");
                if open.has_ended() {
                    self.clear(open, notifier);
                }
            }
        }
        self.tell_outcome(number, reply);
    }

    fn rebase(&self, open: &OpenTransaction, notifier: &Notifier) {
        let (name, number) = (&open.info().name, open.info().number);
        drop_cached(open, notifier);
        let rebased = self.table.rebase(open);
        let reply = match &rebased {
            Ok(()) => ReplyWords::of(&[REBASED.as_bytes()]),
            Err(error) => refusal_of(error),
        };
        match &rebased {
            Ok(()) => {
                self.clear(open, notifier);
                tracing::info!(name, number, "rebased a transaction");
            }
            Err(error) => tracing::info!(name, number, %error, "a transaction was not rebased"),
        }
        self.tell_outcome(number, reply);
    }

    /// Has the kernel drop what a commit has changed in mainline, or in the outer transaction.
    fn tell_target(&self, open: &OpenTransaction, notices: Notices, notifier: &Notifier) {
        let outer = open.info().outer.map(Slot::of_transaction);
        let base = outer.map_or(0, Slot::base);
        let notices = UnaskedChange::Files { base, notices }.notices();
        let known_outer = outer.and_then(|slot| self.table.find(slot));
        notices::send_to_known(&notices, notifier, |number| {
            debug_assert_eq!(number.0 & base, base, "a number of the target");
            let ino = Ino(number.0 ^ base);
            match (&outer, &known_outer) {
                (None, _) => self.table.mainline().knows(ino),
                (Some(_), Some(outer)) => outer.adapter().fs().knows(ino),
                (Some(_), None) => true,
            }
        });
    }

    fn tell_outcome(&self, number: u64, reply: Vec<u8>) {
        let mut attempts = self.attempts.lock();
        let is_it = |attempt: &&mut Attempt| attempt.number == number;
        if let Some(attempt) = attempts.iter_mut().find(is_it) {
            debug_assert!(attempt.is_running, "an attempt has one outcome");
            (attempt.reply, attempt.is_running) = (reply, false);
        }
    }

    /// Has the kernel write back and drop what it has of a transaction. Reads what a commit of it
    /// needs meanwhile, if there are so many inodes that it is worth a thread. No lock is held: the
    /// kernel may wait for replies of this daemon.
    fn read_beside_notices(
        &self,
        open: &Arc<OpenTransaction>,
        notifier: &Notifier,
    ) -> Option<CommitAhead> {
        if open.numbers().len() <= PRUNE_COUNT_MAX {
            drop_cached(open, notifier);
            return None;
        }
        let notices = {
            let (open, notifier) = (Arc::clone(open), notifier.clone());
            stitch_base::thread::spawn("fuse-txn-drop", move || drop_cached(&open, &notifier))
        };
        let Ok(notices) = notices else {
            drop_cached(open, notifier);
            return None;
        };
        let ahead = self.table.mainline().transactions();
        let ahead = ahead.read_ahead(open.view());
        if notices.join().is_err() {
            tracing::error!("the thread that sends notices panicked");
        }
        ahead
            .inspect_err(|error| tracing::debug!(%error, "nothing is read ahead of a commit"))
            .ok()
    }

    fn commit_where_room(
        &self,
        open: &OpenTransaction,
        mut ahead: Option<CommitAhead>,
    ) -> FsResult<Notices> {
        let mainline = self.table.mainline();
        loop {
            let mark = mainline.room_mark();
            let done = self.table.commit(open, ahead.take());
            let is_full = matches!(done, Err(FsError::NoSpace));
            if !is_full || !reclaim::make_room(mainline, mark) {
                return done;
            }
        }
    }

    /// Has the kernel drop what it has of a transaction that has ended, and ends its threads.
    fn clear(&self, open: &OpenTransaction, notifier: &Notifier) {
        debug_assert!(open.has_ended(), "programs in an open one go on");
        drop_cached(open, notifier);
        // The pin of the clones that it showed is dropped.
        for past in self.pasts.take_gone() {
            notices::send(&UnaskedChange::View(past.numbers()).notices(), notifier);
        }
        let outer = open.info().outer.map(Slot::of_transaction);
        let name = open.info().name.clone();
        notices::send(
            &UnaskedChange::TransactionEnded { outer, name }.notices(),
            notifier,
        );
        open.stop();
        self.table.sweep();
    }
}

/// Has the kernel write back and drop what it has of a transaction. Unused inodes need no notice of
/// their own, if the kernel can be asked to forget hundreds at once: it wrote their pages back when
/// they were closed.
fn drop_cached(open: &OpenTransaction, notifier: &Notifier) {
    if notifier.can_prune() {
        let mut numbers = open.numbers();
        // A directory is unused once the kernel has no names below it: these are mostly younger.
        numbers.sort_unstable_by_key(|number| std::cmp::Reverse(*number));
        for part in numbers.chunks(PRUNE_COUNT_MAX) {
            if let Err(error) = notifier.prune(part) {
                tracing::debug!(%error, "the kernel was not asked to forget");
            }
        }
    }
    notices::send(&UnaskedChange::View(open.numbers()).notices(), notifier);
}

/// The words of an outcome that is none of those that were asked for.
pub(super) fn refusal_of(error: &FsError) -> Vec<u8> {
    let mut reply = ReplyWords::default();
    if let FsError::Conflict(conflicts) = error {
        reply.add(&[CONFLICT.as_bytes(), conflicts.len().to_string().as_bytes()]);
        for conflict in conflicts.iter() {
            let kind = conflict.kind.to_string();
            let about = match &conflict.record {
                Some(record) => record_word(&record.tree, &record.key),
                None => conflict.path.clone(),
            };
            if !reply.add(&[kind.as_bytes(), &about]) {
                break;
            }
        }
        return reply.0;
    }
    let errno = crate::adapter::refused(error).raw().to_string();
    let why = error.to_string().replace('\0', " ");
    reply.add(&[REFUSED.as_bytes(), errno.as_bytes(), why.as_bytes()]);
    reply.0
}
