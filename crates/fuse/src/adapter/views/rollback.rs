//! Rollbacks: a thread of their own runs them, and tells the kernel what changed.
//!
//! ```text
//! request "roll back mon b keep clones"   creates snapshot b, queues the job
//! thread                                  rolls back; entries and pages are dropped: notices; done
//!                                         or is refused: deletes snapshot b
//! request "rolled back b"                 EAGAIN ... EAGAIN, then the outcome
//! ```
//!
//! No request waits for a notice: the kernel may need an answer of a worker before it is done with
//! one.

use stitch_base::sync::{Arc, Mutex};
use stitch_fs::{FileSystem, FsError, FsResult, MomentInfo, Notices, RollbackRights, SnapshotInfo};

use std::collections::BTreeSet;
use std::time::Duration;

use super::table::OpenSnapshots;
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
    pub(super) rights: RollbackRights,
    /// The snapshot that was created before.
    pub(super) before: String,
}

/// What the thread of rollbacks needs.
#[derive(Clone, Debug)]
pub(super) struct RollbackRunner {
    /// Mainline, which has the snapshots.
    pub(super) fs: Arc<FileSystem>,
    pub(super) table: Arc<OpenSnapshots>,
    /// Held while snapshots are created and deleted.
    pub(super) changing: Arc<Mutex<()>>,
    pub(super) notifier: Notifier,
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
    pub(super) fn start(&self, runner: RollbackRunner) {
        let progress = Arc::clone(&self.progress);
        self.running.start(move |round| {
            if round == Round::Due {
                runner.run_next(&progress);
            }
            Left::Nothing
        });
    }

    pub(super) fn stop(&self) {
        self.running.stop();
    }

    /// Runs what is queued without the thread.
    #[cfg(test)]
    pub(super) fn run_now(&self, runner: &RollbackRunner) {
        runner.run_next(&self.progress);
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

impl RollbackRunner {
    fn run_next(&self, progress: &Mutex<RollbackProgress>) {
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
        let outcome = self.run(&job);
        // Those of attempts that found no space after a part.
        let fs = job.dir.fs();
        fs.send_notices(|kept| self.tell(&job.dir, kept));
        let before = job.before;
        *progress.lock() = RollbackProgress::Done { before, outcome };
    }

    fn run(&self, job: &RollbackJob) -> Answer<()> {
        let (name, before) = (job.to.name(), &*job.before);
        match roll_back(job) {
            Ok(done) => {
                tracing::info!(name, before, "rolled a directory back");
                self.tell(&job.dir, done);
                job.dir.note_removed();
                Ok(())
            }
            Err(error) => {
                tracing::warn!(name, %error, "a directory was not rolled back");
                if is_refusal(&error) {
                    self.delete_before(job);
                }
                Err(crate::adapter::refused(&error))
            }
        }
    }

    /// Deletes the snapshot before a rollback that was refused. One that is held stays.
    fn delete_before(&self, job: &RollbackJob) {
        let deleted = self.delete(&job.before);
        match deleted {
            Ok(info) => {
                if let Some(past) = self.table.take_deleted(&info) {
                    let gone = UnaskedChange::View(past.numbers());
                    notices::send(&gone.notices(), &self.notifier);
                }
                let lists = UnaskedChange::SnapshotLists(BTreeSet::from([job.dir.list()]));
                notices::send(&lists.notices(), &self.notifier);
            }
            Err(error) => {
                let before = &*job.before;
                tracing::warn!(before, %error, "the snapshot before is not deleted");
            }
        }
    }

    fn delete(&self, name: &str) -> FsResult<SnapshotInfo> {
        let _changing = self.changing.lock();
        let info = self.fs.snapshots().get(name)?;
        self.fs.snapshots().delete(name)?;
        Ok(info)
    }

    /// Has the kernel drop what changed in the file system of a directory.
    fn tell(&self, dir: &WritableDir, notices: Notices) {
        let base = dir.base();
        let changed = UnaskedChange::Files { base, notices };
        notices::send(&changed.notices(), &self.notifier);
    }
}

/// Reports whether a rollback with this error was refused as a whole, so that the snapshot before
/// is of no use. After other errors a part may be done.
const fn is_refusal(error: &FsError) -> bool {
    matches!(
        error,
        FsError::Perm
            | FsError::LaterClones(_)
            | FsError::Unsupported
            | FsError::TooDeep
            | FsError::TooManyClones(_)
            | FsError::NumbersTooLarge
            | FsError::Invalid(_)
            | FsError::Stale(_)
            | FsError::NotFound
    )
}

fn roll_back(job: &RollbackJob) -> FsResult<Notices> {
    let (dir, rights) = (&job.dir, job.rights);
    let fs = dir.fs();
    let mut mark = fs.room_mark();
    loop {
        let done = match &job.to {
            RollbackTo::Snapshot(name) => dir.roll_back(name, rights),
            RollbackTo::Moment(moment) => dir.roll_back_to_moment(moment.id, rights),
        };
        let given_back = fs.room_mark();
        // What was removed gives its space back a little later.
        if !matches!(done, Err(FsError::NoSpace)) || given_back == mark {
            return done;
        }
        mark = given_back;
    }
}
