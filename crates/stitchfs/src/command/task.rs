//! Work on the space of a store, for the commands that ask for it: in its daemon if it is mounted,
//! else here.

use super::live::{self, Place};
use super::{output, size};
use anyhow::{Context, Result, anyhow, bail};
use indicatif::ProgressBar;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stitch_base::clock::{Clock, SystemClock};
use stitch_base::random;
use stitch_fuse::mount;
use stitchfs::{JOB_XATTR, Store, StoreOptions, Task};

const POLL_MIN: Duration = Duration::from_millis(2);
const POLL_MAX: Duration = Duration::from_millis(100);

/// Does a task for the store or mount at `path`. Answers what came of it.
pub(super) fn run(path: &Path, task: Task, what: &'static str) -> Result<Value> {
    let is_ended = end_by_signals()?;
    let bar = output::progress(what);
    let done = match Place::of(path)? {
        Place::Mount(entry) => in_daemon(&entry.path, task, &bar, &is_ended),
        Place::Store(store) => here(&store, task, &bar, &is_ended),
    };
    bar.finish_and_clear();
    let done = done?;
    if done["is_stopped"] == true {
        output::note("ended early by a signal");
    }
    Ok(done)
}

/// The exit code.
pub(super) fn code(done: &Value) -> u8 {
    u8::from(done["is_stopped"] == true)
}

/// The store that something was done to.
pub(super) fn store(done: &Value) -> &str {
    done["store"].as_str().unwrap_or_default()
}

/// Prints what came of another size.
pub(super) fn print_resized(done: &Value, is_json: bool) -> Result<u8> {
    if is_json {
        output::print_json(done)?;
    } else {
        let bytes = |name: &str| size::show(done[name].as_u64().unwrap_or_default());
        let (before, after) = (bytes("bytes_before"), bytes("bytes"));
        output::print(&format!("{}: {after}, before {before}", store(done)))?;
    }
    Ok(code(done))
}

fn here(path: &Path, task: Task, bar: &ProgressBar, is_ended: &AtomicBool) -> Result<Value> {
    let options = StoreOptions {
        memory_bytes: stitchfs::memory::default_budget(),
        // `usage` only reads.
        read_only: matches!(task, Task::Usage(_)),
        ..StoreOptions::default()
    };
    let store = Store::open(path, &options)?;
    let done = task.run(&store, None, &mut |done, total| {
        output::advance(bar, done, total);
        !is_ended.load(Ordering::Relaxed)
    });
    // What failed first says more.
    let closed = store.close();
    let done = done?;
    closed?;
    Ok(done)
}

/// Asks the daemon, and waits until it is done.
fn in_daemon(
    mount_point: &Path,
    task: Task,
    bar: &ProgressBar,
    is_ended: &AtomicBool,
) -> Result<Value> {
    let token = random::bytes16().context("the system gives no random numbers")?;
    let token = json!(uuid::Uuid::from_bytes(token).to_string());
    let mut request = task.to_json();
    request["token"] = token.clone();
    tell(mount_point, &request)?;
    let clock = SystemClock::default();
    let mut poll = POLL_MIN;
    let mut has_cancelled = false;
    loop {
        let asked = live::ask_for(mount_point, JOB_XATTR);
        let report = asked.map_err(|error| match mount::mounted_at(mount_point) {
            Ok(Some(_)) => error,
            _ => anyhow!(
                "{}: was unmounted before it was done",
                mount_point.display()
            ),
        })?;
        if report["token"] != token {
            bail!(
                "{}: its daemon does something else by now; `stitchfs info` shows the store",
                mount_point.display()
            );
        }
        if let Some(error) = report["error"].as_str() {
            bail!("{error}");
        }
        if !report["result"].is_null() {
            return with_all_rows(mount_point, &token, report["result"].clone());
        }
        let number = |name: &str| report[name].as_u64().unwrap_or_default();
        output::advance(bar, number("done"), number("total"));
        if is_ended.load(Ordering::Relaxed) && !has_cancelled {
            has_cancelled = true;
            tell(mount_point, &json!({ "do": "cancel", "token": token }))?;
        }
        clock.sleep(poll);
        poll = (poll * 2).min(POLL_MAX);
    }
}

/// Adds the rows of a result that are not in its first part.
fn with_all_rows(mount_point: &Path, token: &Value, mut result: Value) -> Result<Value> {
    let Some(mut rows) = result["rows"].as_array().cloned() else {
        return Ok(result);
    };
    let count = result["count"].as_u64().unwrap_or_default();
    while (rows.len() as u64) < count {
        tell(
            mount_point,
            &json!({ "do": "rows", "from": rows.len(), "token": token }),
        )?;
        let report = live::ask_for(mount_point, JOB_XATTR)?;
        match report["result"]["rows"].as_array() {
            Some(more) if report["token"] == *token && !more.is_empty() => {
                rows.extend(more.iter().cloned());
            }
            _ => bail!(
                "{}: its daemon does something else by now; try again",
                mount_point.display()
            ),
        }
    }
    result["rows"] = json!(rows);
    Ok(result)
}

fn tell(mount_point: &Path, request: &Value) -> Result<()> {
    let shown = mount_point.display();
    let text = request.to_string();
    let told = rustix::fs::setxattr(mount_point, JOB_XATTR, text.as_bytes(), XattrFlags::empty());
    match told {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => {
            bail!("{shown}: another defrag, trim, grow, shrink or usage is under way; try again")
        }
        Err(Errno::ROFS) => bail!("{shown}: is mounted for reading only"),
        Err(Errno::OPNOTSUPP | Errno::NODATA) => {
            bail!("{shown}: its daemon is of an older stitchfs; unmount it and mount it again")
        }
        Err(error) => Err(live::refusal(mount_point, error)),
    }
}

/// Set by a signal: the work ends where it can.
fn end_by_signals() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&flag))
            .context("cannot wait for signals")?;
    }
    Ok(flag)
}
