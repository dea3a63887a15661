//! `stitchfs txn`: what a command changes happens as a whole or not at all.

mod apt;
mod clones;
mod elsewhere;
mod git;
mod kills;
mod nested;
mod removed;
mod resolve;
mod user;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::kill9::views::killed_around_commits;
use crate::harness::context::Context;
use crate::harness::guardian;
use crate::harness::mount::{Mount, Spec, stitchfs};
use crate::harness::process::{output, run, text};
use crate::harness::report::{Case, Skip};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "run",
        run: a_run_shows_nothing_before_and_all_after,
    },
    Case {
        name: "failed",
        run: a_command_that_fails_leaves_nothing,
    },
    Case {
        name: "killed",
        run: what_is_killed_leaves_nothing,
    },
    Case {
        name: "daemon",
        run: a_killed_daemon_ends_runs_and_keeps_named_ones,
    },
    Case {
        name: "conflicts",
        run: the_second_of_two_that_change_the_same_is_refused,
    },
    Case {
        name: "named",
        run: a_named_one_is_kept_until_it_ends,
    },
    Case {
        name: "user",
        run: user::an_ordinary_user_has_transactions,
    },
    Case {
        name: "large",
        run: an_archive_of_any_size_is_unpacked_at_once,
    },
    Case {
        name: "large-killed",
        run: a_daemon_killed_at_a_large_commit_leaves_all_or_nothing,
    },
    Case {
        name: "resolve",
        run: resolve::conflicts_are_resolved_and_committed,
    },
    Case {
        name: "rebase",
        run: resolve::a_rebased_one_goes_on_from_now,
    },
    Case {
        name: "expire",
        run: resolve::an_expired_one_is_aborted,
    },
    Case {
        name: "removed",
        run: removed::programs_in_a_removed_tree_see_that_it_is_gone,
    },
    Case {
        name: "rmtree",
        run: resolve::trees_are_removed_in_a_run,
    },
    Case {
        name: "nested",
        run: nested::runs_in_a_run_are_committed_to_it,
    },
    Case {
        name: "nested-named",
        run: nested::named_ones_in_a_named_one,
    },
    Case {
        name: "nested-conflict",
        run: nested::conflicts_are_with_what_it_is_committed_to,
    },
    Case {
        name: "nested-killed",
        run: nested::what_is_killed_inside_leaves_the_outer_one,
    },
    Case {
        name: "clones",
        run: clones::a_run_reads_clones_and_does_not_change_them,
    },
    Case {
        name: "clones-named",
        run: clones::a_named_one_shows_clones_of_its_moment,
    },
    Case {
        name: "git-killed",
        run: git::work_of_git_is_whole_or_absent,
    },
    Case {
        name: "apt-killed",
        run: apt::an_installation_is_whole_or_absent,
    },
    Case {
        name: "elsewhere",
        run: elsewhere::a_run_keeps_no_other_mount_in_use,
    },
    Case {
        name: "kill9",
        run: killed_around_commits,
    },
];

const PATIENCE: Duration = Duration::from_secs(30);
const CONFLICT: i32 = 75;
const FILES: usize = 200;
/// Files of an archive, and the length of each.
const LARGE_FILES: usize = 3000;
const LARGE_BYTES: usize = 20_000;

/// A mount with a directory and a file in it.
struct TxnStage<'a> {
    context: &'a Context,
    mount: Mount<'a>,
    top: PathBuf,
    /// A folder outside of the mount.
    outside: PathBuf,
}

impl<'a> TxnStage<'a> {
    fn new(context: &'a Context, name: &str) -> Result<Self> {
        context.needs_stitch()?;
        let mount = Mount::create(context, &Spec::new(name, "256M"))?;
        let top = mount.dir().join("top");
        fs::create_dir(&top)?;
        fs::write(top.join("file"), "before")?;
        fs::write(top.join("gone"), "before")?;
        Ok(Self {
            context,
            mount,
            top,
            outside: context.dir(&format!("{name}-outside"))?,
        })
    }

    /// Where a transaction is found.
    fn place(&self, name: &str) -> PathBuf {
        self.mount
            .dir()
            .join(".stitchfs/txn")
            .join(name)
            .join("root")
    }

    /// `stitchfs txn run` of a script in the directory.
    fn command(&self, options: &[&str], script: &str) -> Command {
        let mut command = Command::new(&self.context.stitchfs);
        command.args(["txn", "run"]).args(options);
        command.args(["--", "bash", "-euc", script]);
        command.current_dir(&self.top);
        command
    }

    /// The exit code of a script in a run, and all that was printed.
    fn ran(&self, options: &[&str], script: &str) -> Result<(i32, String)> {
        ended(&mut self.command(options, script))
    }

    /// Starts a script in a run. It writes the number of its shell when it has got as far as
    /// `hold`, and goes on when it is told to.
    fn start(&self, script: &str) -> Result<(Child, u32)> {
        let (id, go) = (self.outside.join("id"), self.outside.join("go"));
        let _ = fs::remove_file(&id);
        if !go.exists() {
            run(Command::new("mkfifo").arg(&go))?;
        }
        let hold = format!("echo $$ > {}; read x < {}", text(&id), text(&go));
        let mut command = self.command(&[], &script.replace("hold", &hold));
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn()?;
        guardian::watch_process(child.id())?;
        let mut number = None;
        self.context.wait_until(PATIENCE, || {
            let said = fs::read_to_string(&id).unwrap_or_default();
            number = said.strip_suffix('\n').and_then(|said| said.parse().ok());
            Ok(number.is_some())
        })?;
        let number = number.context("the script did not get as far")?;
        guardian::watch_process(number)?;
        Ok((child, number))
    }

    fn go(&self) -> Result<()> {
        Ok(fs::write(self.outside.join("go"), "go\n")?)
    }

    /// `stitchfs txn` with these words, which is to succeed.
    fn txn(&self, words: &[&str]) -> Result<String> {
        let (code, said) = self.try_txn(words)?;
        ensure!(code == 0, "{words:?}: {code} {said}");
        Ok(said)
    }

    fn try_txn(&self, words: &[&str]) -> Result<(i32, String)> {
        let mount = text(self.mount.dir());
        let words = [&["txn"], words, &[&mount]].concat();
        stitchfs(self.context, &words)
    }

    /// Expects the files to be as they were, and no transaction to be left, soon.
    fn expect_untouched(&self) -> Result<()> {
        let is_left = || {
            let said = self.txn(&["list"])?;
            Ok(!said.lines().any(|line| !line.contains("committed")))
        };
        ensure!(
            self.context.wait_until(PATIENCE, is_left)?,
            "one is left: {}",
            self.txn(&["list"])?
        );
        ensure!(names(&self.top)? == ["file", "gone"], "names have changed");
        ensure!(fs::read(self.top.join("file"))? == b"before");
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        self.mount.unmount()?;
        self.mount.fsck()
    }
}

fn ended(command: &mut Command) -> Result<(i32, String)> {
    let output = output(command)?;
    let said = [output.stdout, output.stderr].concat();
    let code = output.status.code().context("it was killed")?;
    Ok((code, String::from_utf8_lossy(&said).into_owned()))
}

fn names(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Makes a tree, as tar does, changes a file and removes another.
fn changes() -> String {
    format!(
        "mkdir -p new/deep
         for i in $(seq {FILES}); do echo $i > new/deep/f$i; done
         ln new/deep/f1 new/link; ln -s f1 new/deep/symlink
         echo after > file; rm gone; mv new/deep/f2 moved"
    )
}

/// While a run goes on no other process sees its changes. After it all of them are there, whatever
/// the kernel had cached.
fn a_run_shows_nothing_before_and_all_after(context: &Context) -> Result<()> {
    let stage = TxnStage::new(context, "txn-run")?;
    // The kernel knows that these names are missing, and what the file holds.
    ensure!(!stage.top.join("new").exists() && !stage.top.join("moved").exists());
    ensure!(fs::read(stage.top.join("file"))? == b"before");
    let script = format!(
        "{}; [ $(cat $PWD/file) = after ]; [ -n \"$STITCHFS_TXN\" ]; hold",
        changes()
    );
    let (mut child, _) = stage.start(&script)?;
    ensure!(names(&stage.top)? == ["file", "gone"], "it shows outside");
    ensure!(fs::read(stage.top.join("file"))? == b"before");
    ensure!(
        stage.txn(&["list"])?.contains("running"),
        "it is not listed"
    );
    let control = stage.mount.dir().join(".stitchfs");
    ensure!(
        names(&control.join("txn"))?.is_empty(),
        "it shows in a list"
    );
    stage.go()?;
    let status = child.wait()?;
    ensure!(status.code() == Some(0), "{status}");
    let top = &stage.top;
    ensure!(names(top)? == ["file", "moved", "new"], "{:?}", names(top)?);
    ensure!(fs::read(top.join("file"))? == b"after\n", "a stale page");
    ensure!(fs::read(top.join("moved"))? == b"2\n");
    ensure!(!top.join("gone").exists(), "a stale name");
    ensure!(names(&top.join("new/deep"))?.len() == FILES);
    ensure!(fs::metadata(top.join("new/link"))?.nlink() == 2);
    for index in 3..=FILES {
        let file = top.join(format!("new/deep/f{index}"));
        ensure!(fs::read(file)? == format!("{index}\n").into_bytes());
    }
    stage.end()
}

fn a_command_that_fails_leaves_nothing(context: &Context) -> Result<()> {
    let stage = TxnStage::new(context, "txn-failed")?;
    let (code, said) = stage.ran(&[], &format!("{}; exit 3", changes()))?;
    ensure!(code == 3, "{code} {said}");
    stage.expect_untouched()?;
    let (code, said) = stage.ran(&[], &format!("{}; kill -KILL $$", changes()))?;
    ensure!(code == 128 + 9, "{code} {said}");
    stage.expect_untouched()?;
    let missing = stage.ran(&["--no-such-option"], "true")?;
    ensure!(missing.0 == 125, "{}", missing.1);
    // Its own hidden directory stays reachable.
    let (code, said) = stage.ran(&[], "touch ../.stitchfs")?;
    ensure!(code == 1, "{code} {said}");
    stage.end()
}

fn what_is_killed_leaves_nothing(context: &Context) -> Result<()> {
    let stage = TxnStage::new(context, "txn-killed")?;
    let script = format!("{}; hold", changes());
    let (mut child, shell) = stage.start(&script)?;
    let shell = i32::try_from(shell).ok().and_then(Pid::from_raw);
    kill_process(shell.context("a number")?, Signal::KILL)?;
    let status = child.wait()?;
    ensure!(status.code() == Some(128 + 9), "the command: {status}");
    stage.expect_untouched()?;
    let (mut child, _) = stage.start(&script)?;
    kill_process(Pid::from_child(&child), Signal::INT)?;
    let status = child.wait()?;
    ensure!(status.code() == Some(128 + 2), "by SIGINT: {status}");
    stage.expect_untouched()?;
    let (mut child, _) = stage.start(&script)?;
    child.kill()?;
    child.wait()?;
    stage.expect_untouched()?;
    stage.end()
}

fn a_killed_daemon_ends_runs_and_keeps_named_ones(context: &Context) -> Result<()> {
    let mut stage = TxnStage::new(context, "txn-daemon")?;
    let mount = text(stage.mount.dir());
    stage.txn(&["begin", "work"])?;
    fs::write(stage.place("work").join("top/kept"), "kept")?;
    run(Command::new("sync").arg("-f").arg(stage.place("work")))?;
    let (mut child, _) = stage.start(&format!("{}; hold", changes()))?;
    stage.mount.kill()?;
    child.kill()?;
    child.wait()?;
    stage.mount.detach()?;
    stage.mount.fsck()?;
    stage.mount.mount_again()?;
    let said = stage.txn(&["list"])?;
    ensure!(said.lines().count() == 1 && said.contains("work"), "{said}");
    ensure!(
        names(&stage.top)? == ["file", "gone"],
        "the run has left something"
    );
    ensure!(fs::read(stage.place("work").join("top/kept"))? == b"kept");
    stage.txn(&["commit", "work"])?;
    ensure!(fs::read(stage.top.join("kept"))? == b"kept", "{mount}");
    stage.mount.kill()?;
    stage.mount.detach()?;
    stage.mount.mount_again()?;
    ensure!(fs::read(stage.top.join("kept"))? == b"kept", "not durable");
    ensure!(stage.txn(&["status", "work"])?.contains("committed"));
    stage.end()
}

fn the_second_of_two_that_change_the_same_is_refused(context: &Context) -> Result<()> {
    let stage = TxnStage::new(context, "txn-conflicts")?;
    for name in ["one", "two", "three"] {
        stage.txn(&["begin", name])?;
    }
    let (one, two, three) = (stage.place("one"), stage.place("two"), stage.place("three"));
    fs::write(one.join("top/one"), "one")?;
    fs::create_dir(one.join("top/dir"))?;
    fs::write(two.join("top/two"), "two")?;
    fs::create_dir(two.join("top/other"))?;
    fs::write(two.join("top/file"), "two")?;
    fs::write(three.join("top/file"), "three")?;
    fs::write(three.join("top/three"), "three")?;
    stage.txn(&["commit", "one"])?;
    stage.txn(&["commit", "two"])?;
    let top = &stage.top;
    let expected = ["dir", "file", "gone", "one", "other", "two"];
    ensure!(names(top)? == expected, "{:?}", names(top)?);
    ensure!(fs::metadata(top)?.nlink() == 4, "links of both");
    let (code, said) = stage.try_txn(&["commit", "three"])?;
    ensure!(
        code == CONFLICT && said.contains("top/file: "),
        "{code} {said}"
    );
    ensure!(!said.contains("top/three"), "{said}");
    let (code, said) = stage.try_txn(&["commit", "--json", "three"])?;
    ensure!(
        code == CONFLICT && said.contains("\"top/file\""),
        "{code} {said}"
    );
    ensure!(fs::read(top.join("file"))? == b"two" && !top.join("three").exists());
    ensure!(
        fs::read(three.join("top/file"))? == b"three",
        "it is not whole"
    );
    let said = stage.txn(&["diff", "three"])?;
    ensure!(said == "M\ttop/file\n+\ttop/three\n", "{said}");
    stage.txn(&["abort", "three"])?;
    ensure!(fs::metadata(three).is_err(), "it is found still");
    // What is changed outside meanwhile is a conflict too.
    let (mut child, _) = stage.start("echo inside > file; hold")?;
    fs::write(top.join("file"), "outside")?;
    stage.go()?;
    let status = child.wait()?;
    ensure!(status.code() == Some(CONFLICT), "{status}");
    ensure!(fs::read(top.join("file"))? == b"outside");
    stage.end()
}

fn a_named_one_is_kept_until_it_ends(context: &Context) -> Result<()> {
    let mut stage = TxnStage::new(context, "txn-named")?;
    let enter = |script: &str| -> Result<(i32, String)> {
        let mut command = Command::new(&context.stitchfs);
        command.args(["txn", "enter", "work", "--", "bash", "-euc", script]);
        ended(command.current_dir(&stage.top))
    };
    let (code, said) = stage.ran(&["--on-success", "keep", "--name", "work"], &changes())?;
    ensure!(code == 0 && said.contains("is kept"), "{code} {said}");
    let said = stage.txn(&["list"])?;
    ensure!(said.contains("open") && said.contains("work"), "{said}");
    let (code, said) = enter("cat file; echo more > more; exit 4")?;
    ensure!((code, &*said) == (4, "after\n"), "{code} {said}");
    ensure!(names(&stage.top)? == ["file", "gone"], "it shows outside");
    let (code, said) = stage.try_txn(&["begin", "work"])?;
    ensure!(code == 1 && said.contains("has this name"), "{code} {said}");
    stage.mount.remount()?;
    let open = fs::File::open(stage.place("work").join("top/more"))?;
    let said = stage.txn(&["diff", "work"])?;
    ensure!(
        said.contains("-\ttop/gone") && said.contains("+\ttop/more"),
        "{said}"
    );
    stage.txn(&["commit", "work"])?;
    ensure!(fs::read(stage.top.join("more"))? == b"more\n");
    ensure!(names(&stage.top)? == ["file", "more", "moved", "new"]);
    let stale = open.metadata();
    ensure!(
        stale.is_err_and(|error| error.raw_os_error() == Some(libc::ESTALE)),
        "what was open in it goes on"
    );
    let (code, said) = stage.try_txn(&["commit", "work"])?;
    ensure!(code == 1 && said.contains("no such open"), "{code} {said}");
    drop(open);
    stage.end()
}

/// An archive of many files, more than any batch of the engine holds, and the folder with them.
fn archive(stage: &TxnStage<'_>) -> Result<(PathBuf, PathBuf)> {
    let (files, archive) = (stage.outside.join("files"), stage.outside.join("files.tar"));
    for folder in 0..LARGE_FILES / 100 {
        let dir = files.join(format!("d{folder}"));
        fs::create_dir_all(&dir)?;
        for index in 0..100 {
            let number = folder * 100 + index;
            let byte = |at: usize| u8::try_from((at * 7 + number) % 251).expect("below 251");
            let bytes: Vec<u8> = (0..LARGE_BYTES).map(byte).collect();
            fs::write(dir.join(format!("f{number}")), bytes)?;
        }
    }
    let mut tar = Command::new("tar");
    run(tar.arg("-cf").arg(&archive).arg("-C").arg(&files).arg("."))?;
    Ok((files, archive))
}

fn unpack(archive: &Path) -> String {
    format!(
        "mkdir new; tar -xf {} -C new; echo after > file; hold",
        text(archive)
    )
}

/// Compares what was unpacked with what was packed.
fn expect_unpacked(stage: &TxnStage<'_>, files: &Path) -> Result<()> {
    run(Command::new("diff")
        .arg("-r")
        .arg(files)
        .arg(stage.top.join("new")))?;
    ensure!(fs::read(stage.top.join("file"))? == b"after\n");
    Ok(())
}

fn an_archive_of_any_size_is_unpacked_at_once(context: &Context) -> Result<()> {
    let mut stage = TxnStage::new(context, "txn-large")?;
    let (files, archive) = archive(&stage)?;
    let (mut child, _) = stage.start(&unpack(&archive))?;
    ensure!(names(&stage.top)? == ["file", "gone"], "it shows outside");
    fs::write(stage.top.join("others"), "meanwhile")?;
    stage.go()?;
    let status = child.wait()?;
    ensure!(status.code() == Some(0), "{status}");
    expect_unpacked(&stage, &files)?;
    ensure!(fs::read(stage.top.join("others"))? == b"meanwhile");
    stage.mount.kill()?;
    stage.mount.detach()?;
    stage.mount.fsck()?;
    stage.mount.mount_again()?;
    expect_unpacked(&stage, &files)?;
    stage.end()
}

fn a_daemon_killed_at_a_large_commit_leaves_all_or_nothing(context: &Context) -> Result<()> {
    let mut stage = TxnStage::new(context, "txn-large-killed")?;
    let (files, archive) = archive(&stage)?;
    let (mut whole, mut absent) = (0, 0);
    for delay_ms in [0, 40, 120, 250, 500, 1000, 2000] {
        let (mut child, _) = stage.start(&unpack(&archive))?;
        stage.go()?;
        context.sleep(Duration::from_millis(delay_ms));
        stage.mount.kill()?;
        let _ = child.kill();
        child.wait()?;
        stage.mount.detach()?;
        stage.mount.fsck()?;
        stage.mount.mount_again()?;
        if stage.top.join("new").exists() {
            expect_unpacked(&stage, &files).with_context(|| format!("after {delay_ms} ms"))?;
            run(Command::new("rm").arg("-r").arg(stage.top.join("new")))?;
            fs::write(stage.top.join("file"), "before")?;
            whole += 1;
        } else {
            stage.expect_untouched()?;
            absent += 1;
        }
    }
    ensure!(
        absent > 0,
        "each of {whole} commits was done before the daemon was killed"
    );
    stage.end()
}
