//! What a daemon does when it is asked to: one task at a time, in a thread of its own, so that no
//! request to the file system waits for it.
//!
//! The attribute [`crate::JOB_XATTR`] takes `{"do": ..., "token": ...}` and returns the state of
//! the last task, with its token, so that the caller can recognize its own. A result with many rows
//! is read a part at a time: `{"do": "rows", "from": ..., "token": ...}` chooses which.

use crate::{ROWS_AT_ONCE, Store, StoreError, Task};
use serde_json::{Value, json};
use std::thread::JoinHandle;
use stitch_base::ErrorKind;
use stitch_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stitch_base::sync::{Arc, Mutex};
use stitch_fs::FileSystem;
use stitch_fuse::errno::Errno;
use stitch_volume::TrimRange;

/// The tasks of a daemon.
pub(crate) struct Jobs {
    store: Arc<Store>,
    fs: Arc<FileSystem>,
    last: Mutex<Option<Running>>,
}

/// Returns the errno of a trim that failed; logs storage errors.
fn refused(error: &StoreError) -> Errno {
    match error.kind() {
        ErrorKind::Unsupported => Errno::ENOTSUP,
        ErrorKind::ReadOnly => Errno::EROFS,
        _ => {
            tracing::warn!(%error, "a trim failed");
            Errno::EIO
        }
    }
}

/// Refuses a task while the last one is under way.
fn check_over(last: &Option<Running>) -> Result<(), Errno> {
    match last {
        Some(running) if !running.job.is_over() => Err(Errno::EBUSY),
        _ => Ok(()),
    }
}

/// The last task, perhaps still under way.
struct Running {
    job: Arc<Job>,
    thread: Option<JoinHandle<()>>,
}

struct Job {
    task: Task,
    token: Value,
    done: AtomicU64,
    total: AtomicU64,
    /// The first row of the result that is told.
    from: AtomicU64,
    is_cancelled: AtomicBool,
    outcome: Mutex<Option<Result<Value, StoreError>>>,
}

impl Job {
    fn new(task: Task, token: Value) -> Self {
        Self {
            task,
            token,
            done: AtomicU64::new(0),
            total: AtomicU64::new(0),
            from: AtomicU64::new(0),
            is_cancelled: AtomicBool::new(false),
            outcome: Mutex::new(None),
        }
    }

    fn run(&self, store: &Store, fs: &Arc<FileSystem>) {
        let mut watch = |done, total| {
            self.done.store(done, Ordering::Relaxed);
            self.total.store(total, Ordering::Relaxed);
            !self.is_cancelled.load(Ordering::Relaxed)
        };
        let outcome = self.task.run(store, Some(fs), &mut watch);
        if let Err(error) = &outcome {
            tracing::warn!(%error, task = self.task.name(), "a task failed");
        }
        let before = self.outcome.lock().replace(outcome);
        debug_assert!(before.is_none(), "a job ends once");
    }

    fn is_over(&self) -> bool {
        self.outcome.lock().is_some()
    }

    /// Returns a result with the rows that are to be told.
    fn part_of(&self, result: &Value) -> Value {
        let Some(fields) = result.as_object() else {
            return result.clone();
        };
        let mut out = json!({});
        for (name, value) in fields {
            out[name] = match value.as_array().filter(|_| name == "rows") {
                Some(rows) => {
                    let from = usize::try_from(self.from.load(Ordering::Relaxed));
                    let rows = rows.get(from.unwrap_or(usize::MAX)..).unwrap_or_default();
                    json!(rows[..rows.len().min(ROWS_AT_ONCE)])
                }
                None => value.clone(),
            };
        }
        out
    }

    fn report(&self) -> Value {
        let mut out = json!({
            "do": self.task.name(),
            "token": self.token,
            "done": self.done.load(Ordering::Relaxed),
            "total": self.total.load(Ordering::Relaxed),
        });
        match &*self.outcome.lock() {
            None => {}
            Some(Ok(result)) => out["result"] = self.part_of(result),
            Some(Err(error)) => out["error"] = json!(error.to_string()),
        }
        out
    }
}

impl Jobs {
    /// None yet.
    pub(crate) fn new(store: Arc<Store>, fs: Arc<FileSystem>) -> Self {
        Self {
            store,
            fs,
            last: Mutex::new(None),
        }
    }

    /// What the attribute is given.
    pub(crate) fn request(&self, text: &[u8]) -> Result<(), Errno> {
        let request: Value = serde_json::from_slice(text).map_err(|_| Errno::EINVAL)?;
        let mut last = self.last.lock();
        if request["do"] == "cancel" {
            if let Some(running) = last.as_ref().filter(|r| r.job.token == request["token"]) {
                running.job.is_cancelled.store(true, Ordering::Relaxed);
            }
            return Ok(());
        }
        if request["do"] == "rows" {
            let from = request["from"].as_u64().ok_or(Errno::EINVAL)?;
            if let Some(running) = last.as_ref().filter(|r| r.job.token == request["token"]) {
                running.job.from.store(from, Ordering::Relaxed);
            }
            return Ok(());
        }
        let task = Task::from_json(&request).ok_or(Errno::EINVAL)?;
        check_over(&last)?;
        let job = Arc::new(Job::new(task, request["token"].clone()));
        let (shared, store) = (Arc::clone(&job), Arc::clone(&self.store));
        let fs = Arc::clone(&self.fs);
        let body = move || shared.run(&store, &fs);
        let thread = stitch_base::thread::spawn("stitch-task", body).map_err(|_| Errno::EAGAIN)?;
        *last = Some(Running {
            job,
            thread: Some(thread),
        });
        Ok(())
    }

    /// Trims a part of the store in the calling thread, as `FITRIM` wants it. Returns the number of
    /// bytes. Ends early once `is_interrupted`.
    ///
    /// # Errors
    /// `EBUSY` while another task runs; `EOPNOTSUPP` of a device that cannot discard; `EINTR`.
    pub(crate) fn trim(
        &self,
        range: &TrimRange,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<u64, Errno> {
        let job = Arc::new(Job::new(Task::Trim, Value::Null));
        {
            let mut last = self.last.lock();
            check_over(&last)?;
            *last = Some(Running {
                job: Arc::clone(&job),
                thread: None,
            });
        }
        let mut is_stopped = false;
        let trimmed = self.store.trim_range(range, &mut |_, _| {
            is_stopped = job.is_cancelled.load(Ordering::Relaxed) || is_interrupted();
            !is_stopped
        });
        let bytes = trimmed.as_ref().copied().unwrap_or_default();
        let outcome = Ok(json!({ "discarded_bytes": bytes }));
        let before = job.outcome.lock().replace(outcome);
        debug_assert!(before.is_none(), "a job ends once");
        match trimmed {
            Ok(_) if is_stopped => Err(Errno::EINTR),
            Ok(bytes) => Ok(bytes),
            Err(error) => Err(refused(&error)),
        }
    }

    /// What the attribute answers.
    pub(crate) fn report(&self) -> Value {
        let last = self.last.lock();
        last.as_ref()
            .map_or_else(|| json!({}), |running| running.job.report())
    }

    /// Ends the task that is under way, and waits until it has.
    pub(crate) fn stop(&self) {
        let thread = self.last.lock().as_mut().and_then(|running| {
            running.job.is_cancelled.store(true, Ordering::Relaxed);
            running.thread.take()
        });
        if let Some(thread) = thread {
            // A thread that panicked has said so already.
            drop(thread.join());
        }
    }
}
