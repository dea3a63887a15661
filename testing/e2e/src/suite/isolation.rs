//! `stitchfs txn` with `--isolation ser` and `--lock`, through the kernel's caches.

mod clones;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use rustix::fs::{Mode, OFlags, open};

use crate::harness::context::Context;
use crate::harness::guardian;
use crate::harness::mount::{Mount, Spec, stitchfs};
use crate::harness::process::{output, run, text};
use crate::harness::report::Case;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "skew",
        run: write_skew_is_refused_if_reads_are_checked,
    },
    Case {
        name: "reads",
        run: each_kind_of_first_access_is_noted,
    },
    Case {
        name: "commutes",
        run: what_was_not_read_may_change,
    },
    Case {
        name: "remount",
        run: reads_survive_a_remount_and_all_counts_after_a_kill,
    },
    Case {
        name: "resolve",
        run: what_was_read_decides_what_is_resolved,
    },
    Case {
        name: "locks",
        run: locks_are_waited_for_and_released_by_a_kill,
    },
    Case {
        name: "clones",
        run: clones::each_kind_of_first_access_is_noted,
    },
    Case {
        name: "clones-skew",
        run: clones::write_skew_with_a_clone_is_refused,
    },
    Case {
        name: "clones-remount",
        run: clones::reads_of_a_clone_survive_a_remount,
    },
];

const PATIENCE: Duration = Duration::from_secs(30);
const CONFLICT: i32 = 75;

/// A mount with `top/dir/file`, `top/dir/large` and `top/one`, `top/two`.
struct IsolationStage<'a> {
    context: &'a Context,
    mount: Mount<'a>,
    top: PathBuf,
    /// A folder outside of the mount.
    outside: PathBuf,
}

impl<'a> IsolationStage<'a> {
    fn new(context: &'a Context, name: &str) -> Result<Self> {
        context.needs_stitch()?;
        let mount = Mount::create(context, &Spec::new(name, "256M"))?;
        let stage = Self {
            context,
            top: mount.dir().join("top"),
            mount,
            outside: context.dir(&format!("{name}-outside"))?,
        };
        stage.fill()?;
        Ok(stage)
    }

    fn fill(&self) -> Result<()> {
        fs::create_dir_all(self.top.join("dir/sub"))?;
        for name in ["dir/file", "one", "two"] {
            fs::write(self.top.join(name), "before")?;
        }
        fs::write(self.top.join("dir/large"), vec![1; 300_000])?;
        Ok(())
    }

    fn command(&self, options: &[&str], script: &str) -> Command {
        let mut command = Command::new(&self.context.stitchfs);
        command.args(["txn", "run"]).args(options);
        command.args(["--", "bash", "-euc", script]);
        command.current_dir(&self.top);
        command
    }

    fn ran(&self, options: &[&str], script: &str) -> Result<(i32, String)> {
        let ran = output(&mut self.command(options, script))?;
        let said = [ran.stdout, ran.stderr].concat();
        let code = ran.status.code().context("it has a code")?;
        Ok((code, String::from_utf8_lossy(&said).into_owned()))
    }

    /// Starts a script in a run. It goes on from `hold` when it is told to.
    fn start(&self, name: &str, options: &[&str], script: &str) -> Result<HeldRun> {
        let held = HeldRun {
            ready: self.outside.join(format!("{name}-ready")),
            go: self.outside.join(format!("{name}-go")),
            said: self.outside.join(format!("{name}-said")),
            child: None,
        };
        run(Command::new("mkfifo").arg(&held.go))?;
        let hold = format!("echo > {}; read x < {}", text(&held.ready), text(&held.go));
        let mut command = self.command(options, &script.replace("hold", &hold));
        let said = fs::File::create(&held.said)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(said)
            .spawn()?;
        guardian::watch_process(child.id())?;
        let child = Some(child);
        Ok(HeldRun { child, ..held })
    }

    /// Starts a script, and waits until it holds.
    fn start_held(&self, name: &str, options: &[&str], script: &str) -> Result<HeldRun> {
        let held = self.start(name, options, script)?;
        self.wait_for(&held.ready)?;
        Ok(held)
    }

    fn wait_for(&self, path: &Path) -> Result<()> {
        let is_there = self.context.wait_until(PATIENCE, || Ok(path.exists()))?;
        ensure!(is_there, "{} is not there", path.display());
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        self.mount.unmount()?;
        self.mount.fsck()
    }

    fn try_txn(&self, words: &[&str]) -> Result<(i32, String)> {
        let mount = text(self.mount.dir());
        stitchfs(self.context, &[&["txn"], words, &[&mount]].concat())
    }

    fn txn(&self, words: &[&str]) -> Result<String> {
        let (code, said) = self.try_txn(words)?;
        ensure!(code == 0, "{words:?}: {code} {said}");
        Ok(said)
    }
}

/// A run that holds.
struct HeldRun {
    ready: PathBuf,
    go: PathBuf,
    said: PathBuf,
    child: Option<Child>,
}

impl HeldRun {
    /// Lets it go on. Returns its exit code and what it said.
    fn finish(mut self) -> Result<(i32, String)> {
        fs::write(&self.go, "go\n")?;
        let mut child = self.child.take().context("it runs")?;
        let code = child.wait()?.code().context("it has a code")?;
        Ok((code, fs::read_to_string(&self.said)?))
    }

    fn kill(mut self) -> Result<()> {
        let mut child = self.child.take().context("it runs")?;
        child.kill()?;
        child.wait()?;
        // What it has started ends, if it is still there.
        let flags = OFlags::WRONLY | OFlags::NONBLOCK;
        if let Ok(go) = open(&self.go, flags, Mode::empty()) {
            rustix::io::write(&go, b"go\n")?;
        }
        Ok(())
    }
}

fn write_skew_is_refused_if_reads_are_checked(context: &Context) -> Result<()> {
    for (level, expected) in [("si", 0), ("ser", CONFLICT)] {
        let stage = IsolationStage::new(context, &format!("skew-{level}"))?;
        let options = ["--isolation", level, "--json"];
        let script = |read: &str, write: &str| format!("cat {read}; hold; echo gone > {write}");
        let first = stage.start_held("first", &options, &script("one", "two"))?;
        let second = stage.start_held("second", &options, &script("two", "one"))?;
        let (code, said) = first.finish()?;
        ensure!(code == 0, "{level}: {code} {said}");
        let (code, said) = second.finish()?;
        ensure!(code == expected, "{level}: {code} {said}");
        let one = fs::read_to_string(stage.top.join("one"))?;
        if expected == 0 {
            ensure!(one == "gone\n", "{one}");
            continue;
        }
        let told: serde_json::Value = serde_json::from_str(&said)?;
        ensure!(told["conflicts"][0]["path"] == "top/two", "{told}");
        let kind = &told["conflicts"][0]["kind"];
        ensure!(*kind == "read attributes or contents", "{told}");
        ensure!(one == "before" && told["count"] == 1, "{one}: {told}");
        stage.end()?;
    }
    Ok(())
}

/// Conflicts of writes are resolved and rebased as long as all that was read is unchanged.
fn what_was_read_decides_what_is_resolved(context: &Context) -> Result<()> {
    let stage = IsolationStage::new(context, "isolation-resolve")?;
    let begin = |name| stage.txn(&["begin", "--isolation", "ser", name]);
    let inside = |name: &str| {
        stage
            .mount
            .dir()
            .join(".stitchfs/txn")
            .join(name)
            .join("root/top")
    };
    let mark = |top: &Path, value: &str| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(top.join("dir"), "user.mark", value.as_bytes(), flags)
    };
    // The first attribute of a directory changes its inode.
    mark(&stage.top, "before")?;
    for name in ["kept", "lost"] {
        begin(name)?;
        ensure!(fs::read(inside(name).join("one"))? == b"before");
        mark(&inside(name), name)?;
    }
    fs::write(inside("lost").join("two"), "inside")?;
    mark(&stage.top, "outside")?;
    let (code, said) = stage.try_txn(&["rebase", "kept"])?;
    ensure!(
        code == CONFLICT && said.contains("top/dir: extended"),
        "{code} {said}"
    );
    stage.txn(&["resolve", "--ours", "kept", "top/dir"])?;
    stage.txn(&["rebase", "kept"])?;
    // What was read before the rebase counts still, by whatever the kernel keeps.
    fs::write(stage.top.join("one"), "after")?;
    for name in ["kept", "lost"] {
        let (code, said) = stage.try_txn(&["commit", name])?;
        ensure!(
            code == CONFLICT && said.contains("top/one: read "),
            "{code} {said}"
        );
        ensure!(said.contains("no side can be chosen"), "{said}");
        let (code, said) = stage.try_txn(&["rebase", name])?;
        ensure!(
            code == CONFLICT && said.contains("top/one: read "),
            "{code} {said}"
        );
    }
    let (code, said) = stage.try_txn(&["conflicts", "lost"])?;
    ensure!(
        code == CONFLICT && said.contains("top/dir: extended"),
        "{code} {said}"
    );
    let (code, said) = stage.try_txn(&["resolve", "--theirs", "lost", "."])?;
    ensure!(
        code == 1 && said.contains("begin it again"),
        "{code} {said}"
    );
    stage.txn(&["abort", "lost"])?;
    stage.txn(&["abort", "kept"])?;
    ensure!(fs::read(stage.top.join("two"))? == b"before");
    stage.end()
}

/// A script that reads, what another program changes meanwhile, and what is told of it.
struct Access<'a> {
    what: &'a str,
    script: &'a str,
    change: &'a str,
    expected: &'a str,
}

const MAP: &str = "python3 -c 'import mmap\nwith open(\"dir/large\") as f:\n \
    m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n m[200000]'";
const TWICE: &str = "test ! -e dir/new; test ! -e dir/new; bash -c 'test ! -e dir/new'";
/// The second access is after the kernel has forgotten what it can, where that may be asked for.
const FORGOTTEN: &str =
    "cat dir/file; (echo 3 > /proc/sys/vm/drop_caches) 2> /dev/null || true; cat dir/file";

const ACCESSES: &[Access<'_>] = &[
    Access {
        what: "a missing name, which the kernel keeps",
        script: TWICE,
        change: "echo > dir/new",
        expected: "dir/new: read name",
    },
    Access {
        what: "contents",
        script: "cat dir/file; cat dir/file",
        change: "echo other > dir/file",
        expected: "dir/file: read attributes or contents",
    },
    Access {
        what: "contents that the kernel forgot",
        script: FORGOTTEN,
        change: "echo other > dir/file",
        expected: "dir/file: read attributes or contents",
    },
    Access {
        what: "mapped contents",
        script: MAP,
        change: "echo other > dir/large",
        expected: "dir/large: read attributes or contents",
    },
    Access {
        what: "attributes",
        script: "stat dir/file",
        change: "chmod 600 dir/file",
        expected: "dir/file: read attributes or contents",
    },
    Access {
        what: "names of a directory",
        script: "python3 -c 'import os; os.listdir(\"dir\")'",
        change: "rm dir/file",
        expected: "dir: read list of names",
    },
    Access {
        what: "names with attributes, by READDIRPLUS",
        script: "ls -l dir",
        change: "chmod 600 dir/large",
        expected: "dir/large: read attributes or contents",
    },
    Access {
        what: "a directory that is not empty",
        script: "rmdir dir || true",
        change: "mkdir dir/new",
        expected: "dir: read list of names",
    },
    Access {
        what: "a directory above",
        script: "cat dir/file",
        change: "mv dir moved",
        expected: "dir: read name",
    },
];

fn each_kind_of_first_access_is_noted(context: &Context) -> Result<()> {
    let mut stage = IsolationStage::new(context, "reads")?;
    for (index, access) in ACCESSES.iter().enumerate() {
        let top = format!("top{index}");
        stage.top = stage.mount.dir().join(&top);
        stage.fill()?;
        stage.check_access(&top, access)?;
    }
    stage.end()
}

impl IsolationStage<'_> {
    /// Runs an access in the directory of a name, and the change: the commit is refused.
    fn check_access(&self, top: &str, access: &Access<'_>) -> Result<()> {
        let script = format!("{}; echo done > result; hold", access.script);
        let held = self.start_held(top, &["--isolation", "ser"], &script)?;
        let mut change = Command::new("bash");
        run(change.args(["-euc", access.change]).current_dir(&self.top))?;
        let (code, said) = held.finish()?;
        let (what, expected) = (access.what, format!("{top}/{}", access.expected));
        ensure!(code == CONFLICT, "{what}: {code} {said}");
        ensure!(said.contains(&expected), "{what}: {said}");
        let result = self.top.join("result");
        ensure!(!result.exists(), "{what}: it was committed");
        Ok(())
    }
}

fn what_was_not_read_may_change(context: &Context) -> Result<()> {
    let stage = IsolationStage::new(context, "commutes")?;
    let script = "mkdir dir/a; cat dir/file; hold; echo done > dir/a/result; cat one > /dev/null";
    let held = stage.start_held("run", &["--isolation", "ser"], script)?;
    // Other names in directories on the way, files that were not looked up, times of access.
    fs::create_dir(stage.top.join("dir/b"))?;
    fs::write(stage.top.join("new"), "new")?;
    fs::write(stage.top.join("two"), "other")?;
    fs::write(stage.top.join("dir/large"), "other")?;
    run(Command::new("touch")
        .args(["-a", "two"])
        .current_dir(&stage.top))?;
    let (code, said) = held.finish()?;
    ensure!(code == 0, "{code} {said}");
    ensure!(stage.top.join("dir/a/result").exists(), "it was committed");
    ensure!(stage.top.join("dir/b").exists(), "what others did stays");
    let (code, said) = stage.ran(&["--isolation", "ser"], "cat one; rm -r dir")?;
    ensure!(
        code == 0 && !stage.top.join("dir").exists(),
        "{code} {said}"
    );
    stage.end()
}

fn reads_survive_a_remount_and_all_counts_after_a_kill(context: &Context) -> Result<()> {
    let mut stage = IsolationStage::new(context, "remount")?;
    for name in ["kept", "killed"] {
        let (code, said) = stage.try_txn(&["begin", "--isolation", "ser", name])?;
        ensure!(code == 0, "{said}");
        let place = stage
            .mount
            .dir()
            .join(".stitchfs/txn")
            .join(name)
            .join("root/top");
        ensure!(fs::read(place.join("dir/file"))? == b"before", "it is read");
        fs::write(place.join("result"), "done")?;
        let list = stage.txn(&["list", "--json"])?;
        ensure!(list.contains("\"isolation\": \"ser\""), "{list}");
        match name {
            "kept" => {
                stage.mount.unmount()?;
                stage.mount.mount_again()?;
            }
            _ => {
                run(Command::new("sync").arg("-f").arg(&place))?;
                stage.mount.kill()?;
                stage.mount.detach()?;
                stage.mount.mount_again()?;
            }
        }
        fs::write(stage.top.join("two"), name)?;
        if name == "kept" {
            fs::write(stage.top.join("dir/file"), "other")?;
        }
        let (code, said) = stage.try_txn(&["commit", name])?;
        let expected = match name {
            "kept" => "top/dir/file: read attributes or contents",
            _ => "perhaps read",
        };
        ensure!(
            code == CONFLICT && said.contains(expected),
            "{name}: {code} {said}"
        );
        ensure!(name == "killed" || !said.contains("two"), "{said}");
        stage.txn(&["abort", name])?;
        fs::write(stage.top.join("dir/file"), "before")?;
    }
    stage.end()
}

fn locks_are_waited_for_and_released_by_a_kill(context: &Context) -> Result<()> {
    let stage = IsolationStage::new(context, "locks")?;
    let held = stage.start_held("first", &["--lock", "dir", "--name", "first"], "hold")?;
    let (code, said) = stage.ran(&["--lock", "dir/file", "--json"], "true")?;
    ensure!(code == CONFLICT, "{code} {said}");
    let told: serde_json::Value = serde_json::from_str(&said)?;
    ensure!(
        told["outcome"] == "locked" && told["holders"][0] == "first",
        "{told}"
    );
    let (code, said) = stage.ran(&["--lock", "one"], "true")?;
    ensure!(code == 0, "another path: {code} {said}");
    let (code, said) = stage.ran(&["--lock", "dir", "--lock-wait=1s"], "true")?;
    ensure!(code == CONFLICT && said.contains("first"), "{code} {said}");
    // A writer outside, and a run without locks, do not wait.
    fs::write(stage.top.join("dir/file"), "other")?;
    let (code, said) = stage.ran(&[], "echo > dir/new")?;
    ensure!(code == 0, "{code} {said}");
    let options = ["--lock", ".", "--lock-wait", "--name", "second"];
    let second = stage.start("second", &options, "hold; cat dir/file > result")?;
    let is_listed = context.wait_until(PATIENCE, || {
        let list = stage.txn(&["list"])?;
        Ok(list.contains("holds top/dir\n") && list.contains("second waits for top\n"))
    })?;
    ensure!(is_listed && !second.ready.exists(), "it waits");
    held.kill()?;
    stage.wait_for(&second.ready)?;
    let list = stage.txn(&["list", "--json"])?;
    ensure!(list.contains("\"waiting\": []"), "{list}");
    let (code, said) = second.finish()?;
    ensure!(code == 0, "{code} {said}");
    // What waits and is killed leaves the line.
    let first = stage.start_held("third", &["--lock", "dir"], "hold")?;
    let options = ["--lock", ".", "--lock-wait", "--name", "fourth"];
    let waits = stage.start("fourth", &options, "true")?;
    let is_listed = context.wait_until(PATIENCE, || {
        Ok(stage.txn(&["list"])?.contains("fourth waits"))
    })?;
    ensure!(is_listed, "it waits");
    waits.kill()?;
    let (code, said) = stage.ran(&["--lock", "one"], "true")?;
    ensure!(code == 0, "{code} {said}");
    let (code, said) = first.finish()?;
    ensure!(code == 0, "{code} {said}");
    stage.end()
}
