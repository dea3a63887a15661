//! Steps that run side by side: each lane takes the next task when its last one is done.
//!
//! A task writes to a buffer of its own, which is printed whole when the task ends, so the lines of
//! two tasks do not mix. The limit of a task's time is its program's.

use std::collections::VecDeque;
use std::process::Command;

use anyhow::{Result, anyhow};
use stitch_base::clock::{Clock as _, SystemClock};
use stitch_base::sync::{Arc, Mutex};
use stitch_base::thread;

use crate::steps::{Counts, Outcome, Row, counts_with, plain_counts};

/// A program that prints its counts in its last line, as a step.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) name: String,
    pub(crate) command: Command,
}

/// The tasks that no lane has taken yet, and the rows of those that are done.
struct Shared {
    waiting: Mutex<VecDeque<Task>>,
    rows: Mutex<Vec<Row>>,
}

/// Runs all tasks in `lanes` lanes. Returns their rows in the order in which they ended.
pub(crate) fn run(lanes: usize, tasks: Vec<Task>) -> Result<Vec<Row>> {
    assert!(lanes > 0, "at least one lane runs the tasks");
    let count = tasks.len();
    let shared = Arc::new(Shared {
        waiting: Mutex::new(tasks.into()),
        rows: Mutex::default(),
    });
    let mut threads = Vec::new();
    for lane in 0..lanes {
        let shared = Arc::clone(&shared);
        threads.push(thread::spawn(&format!("lane-{lane}"), move || {
            shared.work();
        })?);
    }
    for thread in threads {
        thread.join().map_err(|_| anyhow!("a lane panicked"))?;
    }
    let rows = std::mem::take(&mut *shared.rows.lock());
    assert_eq!(rows.len(), count, "each task has a row");
    Ok(rows)
}

impl Shared {
    fn work(&self) {
        loop {
            // The lock is released before the task runs.
            let Some(task) = self.waiting.lock().pop_front() else {
                return;
            };
            let row = run_task(task);
            self.rows.lock().push(row);
        }
    }
}

fn run_task(mut task: Task) -> Row {
    println!("==> {} begins", task.name);
    let clock = SystemClock::default();
    let mut output = String::new();
    let mut show = |line: &str| {
        output.push_str(line);
        output.push('\n');
    };
    let counts = counts_with(&mut show, &mut task.command, plain_counts);
    let outcome = Outcome::Ran(counts.unwrap_or_else(|error| {
        show(&format!("{}: {error:#}", task.name));
        Counts::one(false)
    }));
    let row = Row {
        name: task.name,
        seconds: clock.monotonic().as_secs(),
        outcome,
    };
    // One call: the lines of the other lane come before or after all of it.
    println!("==> {}\n{output}{}\n", row.name, row.end());
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str) -> Task {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Task {
            name: name.to_owned(),
            command,
        }
    }

    fn counts(row: &Row) -> Counts {
        match &row.outcome {
            Outcome::Ran(counts) => *counts,
            Outcome::Skipped(reason) => panic!("{} was skipped: {reason}", row.name),
        }
    }

    #[test]
    fn every_task_is_run_and_counted_once() {
        let ok = "echo '2 passed, 0 failed, 1 skipped'";
        let tasks = (0..5).map(|n| shell(&n.to_string(), ok)).collect();
        let mut rows = run(2, tasks).unwrap();
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["0", "1", "2", "3", "4"]);
        assert!(rows.iter().all(|row| counts(row).passed == 2));
    }

    #[test]
    fn tasks_of_two_lanes_run_at_once() {
        // Each opens one end of a pipe and waits for the other: alone, none would end.
        let pipe = std::env::temp_dir().join(format!("lanes-{}", std::process::id()));
        let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let path = pipe.display();
        let ok = "echo '1 passed, 0 failed, 0 skipped'";
        let tasks = vec![
            shell("reads", &format!("read line < {path}; {ok}")),
            shell("writes", &format!("echo line > {path}; {ok}")),
        ];
        let rows = run(2, tasks).unwrap();
        std::fs::remove_file(&pipe).unwrap();
        assert!(rows.iter().all(|row| counts(row) == Counts::one(true)));
    }

    #[test]
    fn a_task_that_fails_or_cannot_start_is_a_failure() {
        let missing = Task {
            name: "missing".to_owned(),
            command: Command::new("/nonexistent/program"),
        };
        let rows = run(1, vec![shell("fails", "exit 3"), missing]).unwrap();
        assert_eq!(rows.len(), 2);
        assert!(rows.iter().all(|row| counts(row) == Counts::one(false)));
    }
}
