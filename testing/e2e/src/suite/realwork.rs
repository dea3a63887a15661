//! What people do: unpack and compare a large tree, version it, copy it, build, run a database, and
//! remove it all, within little memory.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use stitch_base::random::Rng;

use super::amplification::write_random;
use super::kernel_source;
use crate::harness::context::{Context, Target};
use crate::harness::guardian;
use crate::harness::mount::{Mount, Spec};
use crate::harness::process::{command, peak_resident_bytes, run, shell};
use crate::harness::report::{Case, Skip};
use crate::harness::tree::{Rules, Tree, expect_equal, names, now_seconds, scan};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "builds",
        run: programs_build,
    },
    Case {
        name: "sqlite-rollback",
        run: sqlite_with_a_rollback_journal,
    },
    Case {
        name: "sqlite-wal",
        run: sqlite_with_a_write_ahead_log,
    },
    Case {
        name: "sequential",
        run: a_long_sequential_write_takes_little_memory,
    },
    Case {
        name: "kernel-source",
        run: the_source_of_linux,
    },
];

/// What the daemon may have resident with a budget of 128 MiB.
const RESIDENT_MAX: u64 = 256 << 20;
const MEMORY: &str = "128M";

/// Unpacks, compares, versions, copies and removes the source of Linux; then fsck.
fn the_source_of_linux(context: &Context) -> Result<()> {
    let tar = kernel_source::tar(context)?;
    let reference = Mount::reference(context, &Spec::new("work-refr", "4G"))?;
    let mut mount = Mount::create(context, &Spec::new("work", "8G").memory(MEMORY))?;
    let free_at_first = mount.free_bytes()?;
    // Folders that are not in the archive by themselves have times of this run.
    let rules = Rules {
        now_from: Some(now_seconds(mount.dir())?),
        ..Rules::copy()
    };
    let timed = |what: &str, body: &mut dyn FnMut() -> Result<()>| -> Result<()> {
        let start = context.elapsed();
        body().with_context(|| what.to_owned())?;
        println!(
            "      {what}: {:.1} s",
            (context.elapsed() - start).as_secs_f64()
        );
        Ok(())
    };

    let untar = format!("tar -xf {}", tar.display());
    timed("untar on ext4", &mut || {
        shell(reference.dir(), &untar).map(drop)
    })?;
    timed("untar", &mut || shell(mount.dir(), &untar).map(drop))?;
    expect_little_memory(&mount, "untar")?;
    let source = mount.dir().join(kernel_source::FOLDER);
    let original = scan(&reference.dir().join(kernel_source::FOLDER), rules)?;
    timed("compare", &mut || {
        expect_equal(&scan(&source, rules)?, &original)
    })?;

    timed("git", &mut || version(&source))?;
    timed("rsync", &mut || {
        shell(
            mount.dir(),
            "rsync -a --checksum --exclude=.git linux-source-6.1/ by-rsync/",
        )
        .map(drop)
    })?;
    timed("cp", &mut || {
        shell(
            mount.dir(),
            "rm -rf linux-source-6.1/.git; cp -a linux-source-6.1 by-cp",
        )
        .map(drop)
    })?;
    timed("remount", &mut || mount.remount())?;
    for copy in ["by-rsync", "by-cp"] {
        timed(copy, &mut || {
            expect_equal(
                &without_root(&scan(&mount.dir().join(copy), rules)?),
                &without_root(&original),
            )
        })?;
    }
    timed("rm", &mut || {
        shell(mount.dir(), "rm -rf linux-source-6.1 by-rsync by-cp").map(drop)
    })?;
    expect_space_back(context, &mount, free_at_first)?;
    timed("unmount", &mut || mount.unmount())?;
    timed("fsck", &mut || mount.fsck())?;
    timed("mount", &mut || mount.mount_again())?;
    let left = names(mount.dir())?;
    ensure!(
        left.len() <= usize::from(context.target == Target::Ext4),
        "left over: {left:?}"
    );
    mount.unmount()
}

/// The root's own entry is left out: git changed its times.
fn without_root(tree: &Tree) -> Tree {
    let mut tree = tree.clone();
    tree.remove(Path::new(""));
    tree
}

/// A repository of it all, checked and packed.
fn version(source: &Path) -> Result<()> {
    shell(
        source,
        "export HOME=/nonexistent GIT_CONFIG_NOSYSTEM=1
         git init -q .
         git config user.name tester
         git config user.email tester@example.invalid
         git config gc.auto 0
         git config pack.window 1
         git add -A -f
         git commit -q -m everything
         test -z \"$(git status --porcelain)\"
         git gc -q
         git fsck --no-progress
         test -z \"$(git status --porcelain)\"",
    )
    .map(drop)
}

fn expect_space_back(context: &Context, mount: &Mount<'_>, free_at_first: u64) -> Result<()> {
    let start = context.elapsed();
    let mut free = 0;
    let back = context.wait_until(Duration::from_secs(60), || {
        free = mount.free_bytes()?;
        Ok(free >= free_at_first / 100 * 97)
    })?;
    ensure!(
        back,
        "{free} of {free_at_first} bytes free a minute after removing all"
    );
    println!(
        "      space back after {:.1} s",
        (context.elapsed() - start).as_secs_f64()
    );
    Ok(())
}

fn expect_little_memory(mount: &Mount<'_>, what: &str) -> Result<()> {
    let Ok(daemon) = mount.daemon_id() else {
        return Ok(());
    };
    let peak = peak_resident_bytes(daemon)?;
    println!("      resident memory at {what}: {} MiB", peak >> 20);
    ensure!(
        peak < RESIDENT_MAX,
        "{what} took {} MiB with --memory {MEMORY}",
        peak >> 20
    );
    Ok(())
}

/// 4 GiB in order with a budget of 128 MiB, then read back.
fn a_long_sequential_write_takes_little_memory(context: &Context) -> Result<()> {
    let mut mount = Mount::create(context, &Spec::new("long", "8G").memory(MEMORY))?;
    let path = mount.dir().join("file");
    write_random(&path, 4 << 30)?;
    mount.sync()?;
    expect_little_memory(&mount, "4 GiB")?;
    let written = shell(mount.dir(), "sha256sum < file")?;
    mount.remount()?;
    ensure!(
        shell(mount.dir(), "sha256sum < file")? == written,
        "other bytes after a remount"
    );
    expect_little_memory(&mount, "reading 4 GiB")?;
    fs::remove_file(&path)?;
    mount.unmount()?;
    mount.fsck()
}

fn sqlite_with_a_rollback_journal(context: &Context) -> Result<()> {
    sqlite(context, "sqlr", "DELETE")
}

fn sqlite_with_a_write_ahead_log(context: &Context) -> Result<()> {
    sqlite(context, "sqlw", "WAL")
}

/// Inserts until the daemon is killed; every acknowledged row is there, and the database is whole.
fn sqlite(context: &Context, name: &str, journal: &str) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new(name, "512M"))?;
    let mut rng = Rng::new(context.seed.unwrap_or(1));
    for round in 0..3 {
        let delay = Duration::from_millis(300 + rng.below(1200));
        let acknowledged = insert_until_killed(context, &mut mount, journal, round, delay)?;
        mount.mount_again()?;
        let check = sqlite_query(&mount, "PRAGMA integrity_check;")?;
        ensure!(check.trim() == "ok", "round {round}: {check}");
        let query = format!("SELECT count(*) FROM t WHERE round={round} AND id<={acknowledged};");
        let count: u64 = sqlite_query(&mount, &query)?.trim().parse()?;
        ensure!(
            count == acknowledged,
            "round {round}: {count} of {acknowledged} rows"
        );
        println!("      {journal}: {acknowledged} rows in {delay:?}, all there");
        ensure!(acknowledged > 0, "nothing was acknowledged");
    }
    mount.unmount()?;
    mount.fsck()
}

/// The last row that was acknowledged.
fn insert_until_killed(
    context: &Context,
    mount: &mut Mount<'_>,
    journal: &str,
    round: u64,
    delay: Duration,
) -> Result<u64> {
    let mut child = Command::new("stdbuf")
        .args(["-oL", "sqlite3", "-bail"])
        .arg(mount.dir().join("db"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("stdbuf sqlite3")?;
    guardian::watch_process(child.id())?;
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let stdout = child.stdout.take().expect("stdout is piped");
    let journal = journal.to_owned();
    let feeder = stitch_base::thread::spawn("feeder", move || {
        let mut feed = || -> std::io::Result<()> {
            writeln!(
                stdin,
                "PRAGMA journal_mode={journal}; PRAGMA synchronous=FULL;"
            )?;
            writeln!(stdin, "CREATE TABLE IF NOT EXISTS t(round, id, data);")?;
            for id in 1..1_000_000 {
                writeln!(stdin, "INSERT INTO t VALUES({round},{id},randomblob(200));")?;
                writeln!(stdin, "SELECT 'row {id}';")?;
            }
            Ok(())
        };
        // It ends with a broken pipe.
        let _ = feed();
    })?;
    let reader = stitch_base::thread::spawn("reader", move || {
        let rows = BufReader::new(stdout).lines().map_while(Result::ok);
        rows.filter_map(|line| line.strip_prefix("row ")?.parse().ok())
            .last()
            .unwrap_or(0)
    })?;
    context.sleep(delay);
    mount.kill()?;
    context.sleep(Duration::from_millis(50));
    let _ = child.kill();
    child.wait()?;
    feeder
        .join()
        .map_err(|_| anyhow::anyhow!("the feeder panicked"))?;
    reader
        .join()
        .map_err(|_| anyhow::anyhow!("the reader panicked"))
}

fn sqlite_query(mount: &Mount<'_>, query: &str) -> Result<String> {
    let db = mount.dir().join("db").display().to_string();
    run(&mut command("sqlite3", &[&db, query]))
}

/// A C project by make and a Rust workspace by cargo build and run in the mount.
fn programs_build(context: &Context) -> Result<()> {
    let mut mount = Mount::create(context, &Spec::new("build", "1G"))?;
    write_c_project(&mount.dir().join("c"))?;
    write_rust_project(&mount.dir().join("rust"))?;
    let sum = shell(mount.dir(), "make -s -j2 -C c && c/program")?;
    ensure!(sum.trim() == "1225", "the C program printed {sum}");
    // A second make has nothing to do: times are kept.
    let again = shell(mount.dir(), "make -C c program")?;
    ensure!(again.contains("up to date"), "make built again: {again}");

    if Command::new("cargo").arg("--version").output().is_err() {
        return Err(Skip("no cargo in the PATH".to_owned()).into());
    }
    let cargo = "unset CARGO_TARGET_DIR RUSTFLAGS
                 cd rust && cargo build --quiet --offline && target/debug/program";
    ensure!(
        shell(mount.dir(), cargo)?.trim() == "42",
        "the Rust program is wrong"
    );
    let again = shell(mount.dir(), "cd rust && cargo build --offline 2>&1")?;
    ensure!(!again.contains("Compiling"), "cargo built again: {again}");
    mount.remount()?;
    ensure!(
        shell(mount.dir(), "c/program")?.trim() == "1225",
        "after a remount"
    );
    mount.unmount()?;
    mount.fsck()
}

fn write_c_project(dir: &Path) -> Result<()> {
    fs::create_dir(dir)?;
    let count = 50;
    let mut main = String::from("#include <stdio.h>\n");
    let mut sum = String::from("0");
    for index in 0..count {
        fs::write(
            dir.join(format!("part{index}.c")),
            format!("int part{index}(void) {{ return {index}; }}\n"),
        )?;
        main += &format!("int part{index}(void);\n");
        sum += &format!(" + part{index}()");
    }
    main += &format!("int main(void) {{ printf(\"%d\\n\", {sum}); return 0; }}\n");
    fs::write(dir.join("main.c"), main)?;
    fs::write(
        dir.join("Makefile"),
        "PARTS := $(patsubst %.c,%.o,$(wildcard part*.c))\n\
         program: main.o libparts.a\n\tcc -o $@ main.o libparts.a\n\
         libparts.a: $(PARTS)\n\tar rcs $@ $^\n\
         %.o: %.c\n\tcc -O1 -c -o $@ $<\n",
    )?;
    Ok(())
}

fn write_rust_project(dir: &Path) -> Result<()> {
    let package = |name: &str| format!("[package]\nname = \"{name}\"\nedition = \"2021\"\n");
    fs::create_dir_all(dir.join("src"))?;
    fs::create_dir_all(dir.join("part/src"))?;
    let manifest = package("program") + "[dependencies]\npart = { path = \"part\" }\n[workspace]\n";
    fs::write(dir.join("Cargo.toml"), manifest)?;
    fs::write(
        dir.join("src/main.rs"),
        "fn main() { println!(\"{}\", part::answer()); }\n",
    )?;
    fs::write(dir.join("part/Cargo.toml"), package("part"))?;
    fs::write(
        dir.join("part/src/lib.rs"),
        "pub fn answer() -> u32 { 42 }\n",
    )?;
    Ok(())
}
