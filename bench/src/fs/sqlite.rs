//! SQLite: inserts, each a transaction, with a rollback journal and with a write-ahead log; each
//! transaction synced (`FULL`), or as SQLite syncs to stay whole without being durable (`NORMAL`).
//! By the command `sqlite3`, which is told all of them at once.

use super::stage::{Ends, Stage};
use super::{Caches, FsWorkload, command};
use crate::measure::Op;
use anyhow::{Context as _, Result, ensure};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Phases: a journal mode, and when it syncs.
const MODES: [(&str, &str, &str); 4] = [
    ("rollback", "delete", "FULL"),
    ("wal", "wal", "FULL"),
    ("rollback-normal", "delete", "NORMAL"),
    ("wal-normal", "wal", "NORMAL"),
];
const ROW_BYTES: usize = 100;

pub(super) fn workload() -> FsWorkload {
    FsWorkload {
        why_not: |side| command::why_not(side).or_else(|| command::why_missing("sqlite3")),
        ..FsWorkload::new(
            "sqlite",
            "inserts by sqlite3, each a transaction, synchronous=FULL and NORMAL: rollback \
             journal, WAL",
            &[Caches::Warm],
            run,
        )
    }
}

fn run(stage: &mut Stage<'_>, _step: u32) -> Result<()> {
    stage.without_cap();
    let rows = (stage.fs_scale().files / 100).clamp(50, 5_000);
    let root = stage.root()?;
    for (name, mode, synchronous) in MODES {
        let path = root.join(format!("{name}.db"));
        let set_up = "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT);\n";
        sqlite(&path, &format!("PRAGMA journal_mode={mode};\n{set_up}"))?;
        let inserts = inserts(rows, synchronous);
        stage.phase(name, rows, Ends::Returned, |record| {
            record.time(Op::Sync, (rows, rows * ROW_BYTES as u64), || {
                sqlite(&path, &inserts)
            })
        })?;
        let found = sqlite(
            &path,
            "SELECT count(*), max(id) FROM t; PRAGMA integrity_check;\n",
        )?;
        let expected = format!("{rows}|{rows}\nok\n");
        ensure!(found == expected, "{name}: {found:?} is not {expected:?}");
    }
    Ok(())
}

fn inserts(rows: u64, synchronous: &str) -> String {
    let mut text = format!("PRAGMA synchronous={synchronous};\n");
    let name = "n".repeat(ROW_BYTES);
    for id in 1..=rows {
        let _ = writeln!(text, "INSERT INTO t VALUES ({id}, '{name}');");
    }
    text
}

/// Gives the command these statements on its standard input; what it printed.
fn sqlite(path: &Path, statements: &str) -> Result<String> {
    let mut child = Command::new("sqlite3")
        .arg("-bail")
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run sqlite3")?;
    let mut stdin = child.stdin.take().expect("stdin is piped");
    // It prints next to nothing, so it never waits for us while we write.
    stdin.write_all(statements.as_bytes())?;
    drop(stdin);
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "sqlite3: {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}
