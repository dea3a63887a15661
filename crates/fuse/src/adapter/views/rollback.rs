//! Rollbacks: a thread of their own runs them, and tells the kernel what changed.
//!
//! ```text
//! request "rollback mon b"       creates snapshot b, queues the job
//! thread                         rolls back; entries and pages are dropped: notices; done
//! request "rolled back b"        EAGAIN ... EAGAIN, then the outcome
//! ```
//!
//! No request waits for a notice: the kernel may need an answer of a worker before it is done with
//! one.

use stitch_base::sync::{Arc, Mutex};
use stitch_fs::{FsError, FsResult, MomentInfo, Notices};

use std::time::Duration;

use super::unasked::UnaskedChange;
use super::writable::WritableDir;
use crate::adapter::chore::{Chore, Left, Round};
use crate::adapter::notices;
use crate::errno::Errno;
use crate::handler::Answer;
use crate::notify::Notifier;

/// What a rollback goes back to.
#[derive(Clone, Debug)]
pub(super) enum RollbackTo {
    /// The snapshot of this name.
    Snapshot(String),
    /// A moment of the history.
    Moment(MomentInfo),
}

impl RollbackTo {
    fn name(&self) -> String {
        match self {
            Self::Snapshot(name) => name.clone(),
            Self::Moment(moment) => moment.name(),
        }
    }
}

/// A rollback that was asked for.
#[derive(Clone, Debug)]
pub(super) struct RollbackJob {
    pub(super) to: RollbackTo,
    pub(super) dir: WritableDir,
    /// The user whose files alone may change; `None` for all.
    pub(super) owner: Option<u32>,
    /// The snapshot that was created before.
    pub(super) before: String,
}

#[derive(Debug, Default)]
enum RollbackProgress {
    #[default]
    Idle,
    Waiting(RollbackJob),
    Running(String),
    Done {
        before: String,
        outcome: Answer<()>,
    },
}

/// The last rollback of a mount, and the thread that runs it.
#[derive(Debug)]
pub(super) struct Rollbacks {
    progress: Arc<Mutex<RollbackProgress>>,
    running: Chore,
}

impl Rollbacks {
    /// No thread runs yet.
    pub(super) fn new() -> Self {
        Self {
            progress: Arc::default(),
            running: Chore::new("fuse-rollback", Duration::ZERO),
        }
    }

    /// Starts the thread.
    pub(super) fn start(&self, notifier: &Notifier) {
        let notifier = notifier.clone();
        let progress = Arc::clone(&self.progress);
        self.running.start(move |round| {
            if round == Round::Due {
                run_next(&progress, &notifier);
            }
            Left::Nothing
        });
    }

    pub(super) fn stop(&self) {
        self.running.stop();
    }

    /// Runs what is queued without the thread.
    #[cfg(test)]
    pub(super) fn run_now(&self, notifier: &Notifier) {
        run_next(&self.progress, notifier);
    }

    /// Refuses a rollback while another one is to be run.
    pub(super) fn check_idle(&self) -> Answer<()> {
        match &*self.progress.lock() {
            RollbackProgress::Idle | RollbackProgress::Done { .. } => Ok(()),
            RollbackProgress::Waiting(_) | RollbackProgress::Running(_) => Err(Errno::EBUSY),
        }
    }

    /// Queues a job. Requests come here one after the other.
    pub(super) fn begin(&self, job: RollbackJob) {
        let mut progress = self.progress.lock();
        debug_assert!(
            matches!(
                *progress,
                RollbackProgress::Idle | RollbackProgress::Done { .. }
            ),
            "it was checked"
        );
        *progress = RollbackProgress::Waiting(job);
        drop(progress);
        self.running.note();
    }

    /// Returns what came of a rollback; `EAGAIN` while it is to be run.
    pub(super) fn outcome(&self, asked: &str) -> Answer<()> {
        match &*self.progress.lock() {
            RollbackProgress::Waiting(job) if job.before == asked => Err(Errno::EAGAIN),
            RollbackProgress::Running(before) if before == asked => Err(Errno::EAGAIN),
            RollbackProgress::Done { before, outcome } if before == asked => *outcome,
            _ => Err(Errno::ENOENT),
        }
    }
}

fn run_next(progress: &Mutex<RollbackProgress>, notifier: &Notifier) {
    let job = match &mut *progress.lock() {
        state @ RollbackProgress::Waiting(_) => {
            let RollbackProgress::Waiting(job) = std::mem::take(state) else {
                return;
            };
            *state = RollbackProgress::Running(job.before.clone());
            job
        }
        _ => return,
    };
    let outcome = match roll_back(&job) {
        Ok(done) => {
            tracing::info!(
                name = job.to.name(),
                before = job.before,
                "rolled a directory back"
            );
            tell(&job.dir, done, notifier);
            job.dir.note_removed();
            Ok(())
        }
        Err(error) => {
            tracing::warn!(name = job.to.name(), %error, "a directory was not rolled back");
            Err(crate::adapter::refused(&error))
        }
    };
    // Those of attempts that found no space after a part.
    let fs = job.dir.fs();
    fs.send_notices(|kept| tell(&job.dir, kept, notifier));
    let before = job.before;
    *progress.lock() = RollbackProgress::Done { before, outcome };
}

fn roll_back(job: &RollbackJob) -> FsResult<Notices> {
    let (dir, owner) = (&job.dir, job.owner);
    let fs = dir.fs();
    let mut mark = fs.room_mark();
    loop {
        let done = match &job.to {
            RollbackTo::Snapshot(name) => dir.roll_back(name, owner),
            RollbackTo::Moment(moment) => dir.roll_back_to_moment(moment.id, owner),
        };
        let given_back = fs.room_mark();
        // What was removed gives its space back a little later.
        if !matches!(done, Err(FsError::NoSpace)) || given_back == mark {
            return done;
        }
        mark = given_back;
    }
}

/// Has the kernel drop what changed in the file system of a directory.
fn tell(dir: &WritableDir, notices: Notices, notifier: &Notifier) {
    let base = dir.base();
    let changed = UnaskedChange::Files { base, notices };
    notices::send(&changed.notices(), notifier);
}
