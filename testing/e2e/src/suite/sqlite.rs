//! Atomic writes of files, and an SQLite that commits by them: without a journal, whole or not at
//! all after a kill of the program or the daemon, and with fewer syncs of the device.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use stitch_base::random::Rng;

use crate::harness::context::Context;
use crate::harness::guardian;
use crate::harness::mount::{Mount, Spec, command_of};
use crate::harness::process::{output, run, text};
use crate::harness::report::{Case, Skip};
use crate::harness::stats::Stats;
use crate::harness::views;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "counts",
        run: commits_have_no_journal_and_one_sync,
    },
    Case {
        name: "program-killed",
        run: a_killed_program_leaves_the_file_as_it_was,
    },
    Case {
        name: "daemon-killed",
        run: a_killed_daemon_leaves_transactions_whole,
    },
    Case {
        name: "ends",
        run: readers_see_how_an_atomic_write_ended,
    },
    Case {
        name: "large",
        run: a_large_transaction_goes_through_the_journal,
    },
    Case {
        name: "full",
        run: a_full_store_leaves_the_database_and_works_after_room_was_made,
    },
    Case {
        name: "allocated",
        run: a_database_with_allocated_space_has_atomic_writes,
    },
    Case {
        name: "in-transactions",
        run: a_transaction_has_what_sqlite_commits_in_it,
    },
    Case {
        name: "views",
        run: views_tell_whether_they_have_atomic_writes,
    },
];

const PYTHON: &str = "/usr/bin/python3";
const PROGRAM: &str = include_str!("sqlite/program.py");
/// Transactions whose costs are counted.
const COUNT: u64 = 50;
const PAGE: usize = 4096;

/// A command of the program.
struct Program<'a> {
    context: &'a Context,
    path: PathBuf,
}

impl<'a> Program<'a> {
    fn new(context: &'a Context) -> Result<Self> {
        context.needs_stitch()?;
        if !Path::new(PYTHON).exists() {
            return Err(Skip("python3 is missing".to_owned()).into());
        }
        let path = context.work.join("program.py");
        fs::write(&path, PROGRAM)?;
        Ok(Self { context, path })
    }

    /// A command that runs with the system's SQLite.
    fn plain(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PYTHON);
        command.arg(&self.path).args(args);
        command
    }

    /// A command that runs with an SQLite that has batch atomic writes.
    fn atomic(&self, args: &[&str]) -> Result<Command> {
        let library = self.context.tools.join("../lib");
        if !library.join("libsqlite3.so.0").exists() {
            let missing = "SQLite with batch atomic writes is missing: cargo xtask install-tools";
            return Err(Skip(missing.to_owned()).into());
        }
        let mut command = self.plain(args);
        command.env("LD_LIBRARY_PATH", library);
        Ok(command)
    }
}

/// A program that runs beside the case.
struct Beside {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Beside {
    fn start(command: &mut Command) -> Result<Self> {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().context("cannot start python3")?;
        guardian::watch_process(child.id())?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        let lines = BufReader::new(stdout);
        Ok(Self { child, lines })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    /// Kills it. Returns the last line that it printed.
    fn kill(mut self) -> Result<Option<String>> {
        self.child.kill()?;
        self.child.wait()?;
        let rest: Vec<String> = self.lines.lines().map_while(Result::ok).collect();
        Ok(rest.into_iter().next_back())
    }
}

fn spec(name: &str, size: &str) -> Spec {
    // Nothing is synced by the clock.
    Spec::new(name, size)
        .option("atomic_write")
        .option("commit=3600")
}

/// Returns what the check of a database prints, with nothing wrong in it: the value of all rows.
fn value(program: &Program<'_>, db: &str) -> Result<u64> {
    let checked = run(&mut program.atomic(&["check", db])?)?;
    let words: Vec<&str> = checked.split_whitespace().collect();
    let &["ok", least, most] = &words[..] else {
        anyhow::bail!("the database is damaged: {checked}");
    };
    ensure!(least == most, "half of a transaction: {least} and {most}");
    Ok(least.parse()?)
}

/// Counts transactions up from `committed`, at least one and at most `most`, until `kill` ends the
/// program, and the daemon where that is killed. Returns the number in the database then: that of
/// the last transaction that was acknowledged, or one more.
fn counted(
    (program, db, committed): (&Program<'_>, &str, u64),
    (rng, most): (&mut Rng, u64),
    kill: impl FnOnce(Beside) -> Result<Option<String>>,
) -> Result<u64> {
    let first = (committed + 1).to_string();
    let mut command = program.atomic(&["count", db, &first, "100000"])?;
    let mut counter = Beside::start(command.stderr(Stdio::null()))?;
    let mut last = committed;
    for _ in 0..=rng.below(most) {
        last = counter.line()?.parse()?;
    }
    let acknowledged = match kill(counter)? {
        Some(line) => line.parse()?,
        None => last,
    };
    ensure!(!Path::new(&format!("{db}-journal")).exists(), "a journal");
    let committed = value(program, db)?;
    ensure!(
        committed == acknowledged || committed == acknowledged + 1,
        "{committed} is there, {acknowledged} was acknowledged"
    );
    Ok(committed)
}

/// What a number of transactions cost.
struct Cost {
    syncs: u64,
    writes: u64,
    requests: u64,
    files: u64,
}

fn cost(mount: &Mount<'_>, before: &Stats) -> Result<Cost> {
    let after = mount.stats()?;
    let since = |name: &str| after.since(before, name);
    Ok(Cost {
        syncs: since("device.syncs")?,
        writes: since("device.writes")?,
        requests: since("fuse.requests_total")?,
        files: since("fuse.requests.mknod")? + since("fuse.requests.create")?,
    })
}

/// With the flag and without it, by turns, in one mount.
fn commits_have_no_journal_and_one_sync(context: &Context) -> Result<()> {
    let program = Program::new(context)?;
    let mut mount = Mount::create(context, &spec("sql-counts", "256M"))?;
    let db = text(&mount.dir().join("db"));
    run(&mut program.atomic(&["make", &db])?)?;
    let number = COUNT.to_string();
    for round in 0..3 {
        let mut costs = Vec::new();
        for (side, first) in [(0, "1000"), (1, "2000")] {
            let args = ["count", &db, first, &number];
            let mut command = match side {
                0 => program.atomic(&args)?,
                _ => program.plain(&args),
            };
            let before = mount.stats()?;
            let start = context.elapsed();
            run(&mut command)?;
            let took = context.elapsed() - start;
            let cost = cost(&mount, &before)?;
            println!(
                "      round {round}, {}: {} syncs, {} writes of the device, {} requests, {} files \
                 made in {COUNT} commits; {took:?}",
                ["atomic", "journal"][side],
                cost.syncs,
                cost.writes,
                cost.requests,
                cost.files
            );
            costs.push(cost);
        }
        let (atomic, journal) = (&costs[0], &costs[1]);
        ensure!(atomic.files == 0, "{} files were made", atomic.files);
        ensure!(journal.files >= COUNT, "a journal is made for each commit");
        ensure!(
            // The store may write out a write buffer meanwhile.
            atomic.syncs <= COUNT + 10,
            "{} syncs for {COUNT} commits",
            atomic.syncs
        );
        ensure!(
            2 * atomic.syncs <= journal.syncs,
            "{} syncs with a journal",
            journal.syncs
        );
    }
    ensure!(value(&program, &db)? == 1999 + COUNT, "the last commit");
    mount.unmount()?;
    mount.fsck()
}

/// A process that waits for the lock of a killed program finds the file as it was before its atomic
/// write; so does one that opens a database.
fn a_killed_program_leaves_the_file_as_it_was(context: &Context) -> Result<()> {
    let program = Program::new(context)?;
    let mut mount = Mount::create(context, &spec("sql-killed", "256M"))?;
    let path = mount.dir().join("file");
    fs::write(&path, [b'A'; 2 * PAGE])?;
    let file = text(&path);
    for round in 0..10 {
        let mut holder = Beside::start(&mut program.plain(&["hold", &file]))?;
        ensure!(holder.line()? == "held", "round {round}");
        let mut waiter = Beside::start(&mut program.plain(&["wait", &file]))?;
        ensure!(waiter.line()? == "waiting", "round {round}");
        holder.kill()?;
        let seen = waiter.line()?;
        ensure!(seen == "8192 AA", "round {round}: the next saw {seen}");
        waiter.child.wait()?;
    }
    let db = text(&mount.dir().join("db"));
    run(&mut program.atomic(&["make", &db])?)?;
    let mut rng = Rng::new(context.seed.unwrap_or(1));
    let mut committed = 0;
    for _ in 0..10 {
        committed = counted((&program, &db, committed), (&mut rng, 20), Beside::kill)?;
    }
    mount.unmount()?;
    mount.fsck()
}

/// Every acknowledged transaction is there, the last one whole or not at all.
fn a_killed_daemon_leaves_transactions_whole(context: &Context) -> Result<()> {
    let program = Program::new(context)?;
    let mut mount = Mount::create(context, &spec("sql-daemon", "256M"))?;
    let db = text(&mount.dir().join("db"));
    run(&mut program.atomic(&["make", &db])?)?;
    let mut rng = Rng::new(context.seed.unwrap_or(1));
    let mut committed = 0;
    for _ in 0..4 {
        committed = counted((&program, &db, committed), (&mut rng, 60), |counter| {
            mount.kill()?;
            let last = counter.kill()?;
            mount.mount_again()?;
            Ok(last)
        })?;
    }
    mount.unmount()?;
    mount.fsck()
}

/// Also through the kernel's page cache, and after a remount.
fn readers_see_how_an_atomic_write_ended(context: &Context) -> Result<()> {
    let program = Program::new(context)?;
    let mut mount = Mount::create(context, &spec("sql-ends", "256M"))?;
    let path = mount.dir().join("file");
    for (how, expected) in [
        ("abort", "8192 AA"),
        ("close", "8192 AA"),
        ("commit", "12288 ABB"),
        ("cut", "4096 A"),
    ] {
        fs::write(&path, [b'A'; 2 * PAGE])?;
        let seen = run(&mut program.plain(&["end", &text(&path), how]))?;
        ensure!(seen.trim() == expected, "{how}: {seen}");
        let size = expected.split(' ').next().unwrap_or_default();
        ensure!(
            fs::metadata(&path)?.len().to_string() == size,
            "{how}: another size"
        );
        let cached = fs::read(&path)?;
        mount.remount()?;
        ensure!(fs::read(&path)? == cached, "{how}: other bytes are stored");
    }
    mount.unmount()?;
    mount.fsck()
}

/// A transaction that fits an atomic write, and one that does not.
fn a_large_transaction_goes_through_the_journal(context: &Context) -> Result<()> {
    let program = Program::new(context)?;
    let mut mount = Mount::create(context, &spec("sql-large", "4G"))?;
    let db = text(&mount.dir().join("db"));
    run(&mut program.atomic(&["make", &db])?)?;
    for (mebibytes, files) in [("2", 0), ("20", 1)] {
        let before = mount.stats()?;
        run(&mut program.atomic(&["large", &db, mebibytes])?)?;
        let made = cost(&mount, &before)?.files;
        ensure!(made == files, "{mebibytes} MiB: {made} files were made");
        ensure!(value(&program, &db)? == 0, "{mebibytes} MiB");
    }
    mount.remount()?;
    ensure!(value(&program, &db)? == 0, "after a remount");
    mount.unmount()?;
    mount.fsck()
}

/// Fills the store until no page is written any more.
fn fill(path: &Path) -> Result<()> {
    let mut file = fs::File::create(path)?;
    for len in [1 << 20, PAGE] {
        let piece = vec![b'F'; len];
        let error = loop {
            if let Err(error) = file.write_all(&piece).and_then(|()| file.sync_data()) {
                break error;
            }
        };
        ensure!(
            error.kind() == std::io::ErrorKind::StorageFull,
            "the store is not full: {error}"
        );
    }
    Ok(())
}

/// `SQLite` reports that the store is full, and nothing of the transaction is there.
fn a_full_store_leaves_the_database_and_works_after_room_was_made(context: &Context) -> Result<()> {
    let program = Program::new(context)?;
    let mut mount = Mount::create(context, &spec("sql-full", "64M"))?;
    let db = text(&mount.dir().join("db"));
    run(&mut program.atomic(&["make", &db])?)?;
    run(&mut program.atomic(&["count", &db, "1", "7"])?)?;
    let filler = mount.dir().join("filler");
    for round in 0..3 {
        let (committed, before) = (value(&program, &db)?, fs::read(&db)?);
        fill(&filler)?;
        let said = run(&mut program.atomic(&["full", &db])?)?;
        ensure!(
            said.trim() == "database or disk is full",
            "round {round}: {said}"
        );
        // SQLite has tried its journal, and may need room to roll that back.
        fs::remove_file(&filler)?;
        let found = value(&program, &db)?;
        ensure!(found == committed, "round {round}: {found} is there");
        ensure!(fs::read(&db)? == before, "round {round}: the file changed");
        ensure!(!Path::new(&format!("{db}-journal")).exists(), "a journal");
        let next = (committed + 1).to_string();
        run(&mut program.atomic(&["count", &db, &next, "1"])?)?;
    }
    ensure!(value(&program, &db)? == 10, "after room was made");
    mount.remount()?;
    ensure!(value(&program, &db)? == 10, "after a remount");
    mount.unmount()?;
    mount.fsck()
}

/// Commits make no journal, before and after the space is written.
fn a_database_with_allocated_space_has_atomic_writes(context: &Context) -> Result<()> {
    let program = Program::new(context)?;
    let mut mount = Mount::create(context, &spec("sql-allocated", "256M"))?;
    let db = text(&mount.dir().join("db"));
    run(&mut program.atomic(&["make", &db])?)?;
    run(&mut program.plain(&["allocate", &db, "1048576"]))?;
    let blocks = fs::metadata(&db)?.blocks();
    ensure!(blocks == 2048, "{blocks} sectors are allocated");
    let before = mount.stats()?;
    run(&mut program.atomic(&["count", &db, "1", "10"])?)?;
    let made = cost(&mount, &before)?.files;
    ensure!(made == 0, "{made} files were made");
    ensure!(fs::metadata(&db)?.blocks() == blocks, "writes added blocks");
    mount.kill()?;
    mount.mount_again()?;
    ensure!(value(&program, &db)? == 10, "after a kill");
    mount.unmount()?;
    mount.fsck()
}

/// `SQLite` commits to the view without a journal; mainline has it with the transaction.
fn a_transaction_has_what_sqlite_commits_in_it(context: &Context) -> Result<()> {
    let program = Program::new(context)?;
    let mut mount = Mount::create(context, &spec("sql-txn", "256M"))?;
    let (dir, db) = (text(mount.dir()), text(&mount.dir().join("db")));
    run(&mut program.atomic(&["make", &db])?)?;
    let inner = text(&views::begin(context, &mount)?.join("db"));
    let before = mount.stats()?;
    run(&mut program.atomic(&["count", &inner, "1", "20"])?)?;
    let made = cost(&mount, &before)?.files;
    ensure!(made == 0, "{made} files were made");
    let mut rng = Rng::new(context.seed.unwrap_or(1));
    let mut committed = 20;
    for _ in 0..5 {
        committed = counted((&program, &inner, committed), (&mut rng, 20), Beside::kill)?;
    }
    ensure!(value(&program, &db)? == 0, "mainline does not have it yet");
    command_of(context, &["txn", "commit", "t", &dir])?;
    ensure!(value(&program, &db)? == committed, "mainline has it");
    // In a run, whose end gives up what it has written.
    let count = text(&program.path);
    let script = format!("{PYTHON} {count} count db 1000 3; exit 9");
    let mut refused = Command::new(&context.stitchfs);
    refused.args(["txn", "run", "--", "sh", "-c", &script]);
    let library = program.atomic(&[])?;
    for (name, value) in library.get_envs() {
        refused.env(name, value.unwrap_or_default());
    }
    let ended = output(refused.current_dir(mount.dir()))?;
    ensure!(ended.status.code() == Some(9), "{ended:?}");
    ensure!(
        value(&program, &db)? == committed,
        "what the run has written is gone"
    );
    mount.remount()?;
    ensure!(value(&program, &db)? == committed, "after a remount");
    mount.unmount()?;
    mount.fsck()
}

/// Clones and transactions have them, snapshots have none, nor have mounts without the option.
fn views_tell_whether_they_have_atomic_writes(context: &Context) -> Result<()> {
    let program = Program::new(context)?;
    let mut mount = Mount::create(context, &spec("sql-views", "256M"))?;
    let dir = text(mount.dir());
    let clone = views::clone(context, &mount)?;
    command_of(context, &["snapshot", "create", &dir, "mon"])?;
    let transaction = views::begin(context, &mount)?;
    let past = mount.dir().join(".stitchfs/snap/mon");
    let attempt = |path: PathBuf| run(&mut program.plain(&["attempt", &text(&path)]));
    let expected = [
        (mount.dir().join("source/of-the-source"), "4 ok ok"),
        (clone.join("of-the-source"), "4 ok ok"),
        (transaction.join("source/of-the-source"), "4 ok ok"),
        (past.join("source/of-the-source"), "ENOTTY EROFS EROFS"),
    ];
    for (path, expected) in expected {
        let found = attempt(path.clone())?.replace('\n', " ");
        ensure!(found.trim() == expected, "{}: {found}", path.display());
    }
    let db = text(&clone.join("db"));
    run(&mut program.atomic(&["make", &db])?)?;
    run(&mut program.atomic(&["count", &db, "1", "5"])?)?;
    ensure!(value(&program, &db)? == 5, "in the clone");
    command_of(context, &["txn", "abort", "t", &dir])?;
    mount.unmount()?;
    mount.fsck()?;
    let plain = Mount::create(context, &Spec::new("sql-none", "64M"))?;
    let path = plain.dir().join("file");
    fs::write(&path, "contents")?;
    let found = attempt(path)?.replace('\n', " ");
    ensure!(found.trim() == "ENOTTY ENOTTY ENOTTY", "without: {found}");
    Ok(())
}
