//! Transactions in transactions: runs in a run, kills of either, conflicts inside.

use super::*;

/// Transactions in each other, at most.
const DEPTH_MAX: usize = 8;
/// Exit code of `run` for failures of its own.
const OWN_FAILURE: i32 = 125;

impl TxnStage<'_> {
    /// The words of a run of a script within a script.
    fn inner(&self, script: &str) -> String {
        let program = text(&self.context.stitchfs);
        format!("{program} txn run -- bash -euc '{script}'")
    }

    fn expect_file(&self, contents: &str) -> Result<()> {
        let found = fs::read_to_string(self.top.join("file"))?;
        ensure!(found == contents, "file: {found:?}, not {contents:?}");
        Ok(())
    }
}

/// Runs in a run see what it has changed and are committed to it, or leave nothing in it.
pub(super) fn runs_in_a_run_are_committed_to_it(context: &Context) -> Result<()> {
    let stage = TxnStage::new(context, "txn-nested")?;
    let good = stage.inner("cat file; echo inner > file; mkdir made; echo x > made/x; rm gone");
    let bad = stage.inner("echo bad > file; rm -r made; exit 3");
    // The kernel knows in the outer one what the inner one changes.
    let script = format!(
        "echo outer > file; cat file gone; test ! -e made
         {good}
         cat file made/x; test ! -e gone
         code=0; {bad} || code=$?; test $code = 3
         cat file made/x; hold"
    );
    let (mut child, _) = stage.start(&script)?;
    ensure!(
        names(&stage.top)? == ["file", "gone"],
        "it shows outside of both"
    );
    stage.expect_file("before")?;
    stage.go()?;
    let status = child.wait()?;
    ensure!(status.code() == Some(0), "{status}");
    ensure!(names(&stage.top)? == ["file", "made"]);
    stage.expect_file("inner\n")?;
    ensure!(fs::read(stage.top.join("made/x"))? == b"x\n");
    let said = stage.txn(&["list"])?;
    ensure!(
        said.lines().all(|line| line.contains("committed")) && said.lines().count() == 1,
        "{said}"
    );
    // An outer one that fails takes all along.
    let (code, said) = stage.ran(&[], &format!("{}; exit 4", stage.inner("echo x > file")))?;
    ensure!(code == 4, "{code} {said}");
    stage.expect_file("inner\n")?;
    // As deep as it goes, and one more.
    let program = text(&context.stitchfs);
    let deep = |count: usize| {
        let run = format!("{program} txn run -- ");
        format!("{}sh -c 'echo deep > file'", run.repeat(count))
    };
    let (code, said) = stage.ran(&[], &deep(DEPTH_MAX))?;
    ensure!(
        code == OWN_FAILURE && said.contains("at most 8 transactions are in each other"),
        "{code} {said}"
    );
    stage.expect_file("inner\n")?;
    let (code, said) = stage.ran(&[], &deep(DEPTH_MAX - 1))?;
    ensure!(code == 0, "{code} {said}");
    stage.expect_file("deep\n")?;
    stage.end()
}

/// `begin`, `enter`, `diff`, `list`, `commit` and `abort` in a transaction, and from outside.
pub(super) fn named_ones_in_a_named_one(context: &Context) -> Result<()> {
    let mut stage = TxnStage::new(context, "txn-nested-named")?;
    let program = text(&context.stitchfs);
    stage.txn(&["begin", "outer"])?;
    let enter = |script: &str| -> Result<(i32, String)> {
        let mut command = Command::new(&context.stitchfs);
        command.args(["txn", "enter", "outer", "--", "bash", "-euc", script]);
        ended(command.current_dir(&stage.top))
    };
    let (code, said) = enter(&format!(
        "echo outer > file; t() {{ {program} txn \"$@\"; }}
         t begin one >&2; t begin two >&2; test \"$STITCHFS_TXN\" = outer
         t enter one -- bash -euc 'echo $STITCHFS_TXN; cat file; echo one > file; echo x > new'
         t diff one; cat file
         t commit one; cat file new
         echo again > file; t enter two -- sh -c 'echo two > file' || true
         t list | grep -c open; t abort two"
    ))?;
    let expected = "outer/one\nouter\nM\ttop/file\n+\ttop/new\nouter\none\nx\n1\n";
    ensure!(
        code == 0 && said.starts_with(expected),
        "{code} {said}, not {expected}"
    );
    // From outside they have longer names, and survive as long as the outer one.
    stage.txn(&["begin", "outer/three"])?;
    let place = stage.place("outer").join(".stitchfs/txn/three/root/top");
    fs::write(place.join("three"), "three")?;
    ensure!(names(&stage.place("outer").join("top"))? == ["file", "gone", "new"]);
    let (code, said) = stage.try_txn(&["commit", "outer"])?;
    ensure!(
        code == 1 && said.contains("transactions in it are open: three"),
        "{code} {said}"
    );
    stage.mount.remount()?;
    let said = stage.txn(&["list"])?;
    ensure!(
        said.contains("open       outer/three") && said.contains("committed  outer/one"),
        "{said}"
    );
    ensure!(stage.txn(&["status", "outer/three"])?.contains("open"));
    ensure!(stage.txn(&["diff", "outer/three"])? == "+\ttop/three\n");
    stage.txn(&["commit", "outer/three"])?;
    ensure!(names(&stage.place("outer").join("top"))? == ["file", "gone", "new", "three"]);
    ensure!(names(&stage.top)? == ["file", "gone"], "it shows outside");
    // A run that leaves a named one open is not committed.
    let (code, said) = stage.ran(&[], &format!("echo x > file; {program} txn begin left"))?;
    ensure!(
        code == OWN_FAILURE && said.contains("transactions in it are open: left"),
        "{code} {said}"
    );
    stage.expect_file("before")?;
    stage.txn(&["commit", "outer"])?;
    ensure!(names(&stage.top)? == ["file", "gone", "new", "three"]);
    stage.expect_file("again\n")?;
    stage.txn(&["begin", "outer"])?;
    stage.txn(&["begin", "outer/inner"])?;
    stage.txn(&["abort", "outer"])?;
    let said = stage.txn(&["list"])?;
    ensure!(!said.contains("open") && !said.contains("outer/"), "{said}");
    stage.end()
}

/// What the outer one has changed meanwhile is a conflict of the inner one; what mainline has is
/// one of the outer one.
pub(super) fn conflicts_are_with_what_it_is_committed_to(context: &Context) -> Result<()> {
    let stage = TxnStage::new(context, "txn-nested-conflict")?;
    let program = text(&context.stitchfs);
    // The change of the outer one lies between begin and commit of the inner one.
    let script = format!(
        "{program} txn begin inner; i=../.stitchfs/txn/inner/root/top
         echo inner > $i/file; echo own > $i/own; echo outer > file; mkdir dir
         code=0; {program} txn commit inner || code=$?; test $code = {CONFLICT}
         test $(cat file) = outer; test ! -e own; test $(cat $i/own) = own
         {program} txn resolve --theirs inner top/file
         {program} txn commit inner; test $(cat own) = own; test $(cat file) = outer
         echo x > gone; hold"
    );
    let (mut child, _) = stage.start(&script)?;
    fs::write(stage.top.join("gone"), "outside")?;
    stage.go()?;
    let status = child.wait()?;
    ensure!(
        status.code() == Some(CONFLICT),
        "the outer one conflicts: {status}"
    );
    ensure!(names(&stage.top)? == ["file", "gone"]);
    ensure!(fs::read(stage.top.join("gone"))? == b"outside");
    let inner = stage.inner("cat file > /dev/null; echo x > result; echo changed > ../top/gone");
    let (code, said) = stage.ran(&["--isolation", "ser"], &inner)?;
    ensure!(code == 0, "{code} {said}");
    ensure!(fs::read(stage.top.join("gone"))? == b"changed\n");
    stage.end()
}

/// The inner starter, the outer one, and the daemon are killed.
pub(super) fn what_is_killed_inside_leaves_the_outer_one(context: &Context) -> Result<()> {
    let mut stage = TxnStage::new(context, "txn-nested-killed")?;
    // The command of the inner one kills its starter.
    let suicide = stage.inner("echo bad > file; echo bad > bad; kill -KILL $PPID; sleep 60");
    let script = format!(
        "echo outer > file; code=0; {suicide} || code=$?; test $code = 137
         test $(cat file) = outer; test ! -e bad"
    );
    let (code, said) = stage.ran(&[], &script)?;
    ensure!(code == 0, "{code} {said}");
    stage.expect_file("outer\n")?;
    fs::write(stage.top.join("file"), "before")?;
    // The outer starter: the inner one ends with it.
    let inner = stage.inner("echo inner > file; hold");
    let (mut child, shell) = stage.start(&format!("echo outer > file; {inner}"))?;
    ensure!(stage.txn(&["list"])?.matches("running").count() == 2);
    child.kill()?;
    child.wait()?;
    stage.expect_untouched()?;
    // The inner command ends with its starters.
    let process = PathBuf::from(format!("/proc/{shell}"));
    let has_ended = || Ok(!process.exists());
    ensure!(
        context.wait_until(PATIENCE, has_ended)?,
        "the inner command goes on"
    );
    // The daemon: named ones are as they were synced, in each other.
    for name in ["outer", "outer/inner"] {
        stage.txn(&["begin", name])?;
    }
    let outer = stage.place("outer");
    let inside = outer.join(".stitchfs/txn/inner/root/top");
    fs::write(inside.join("inner"), "inner")?;
    fs::write(outer.join("top/outer"), "outer")?;
    run(Command::new("sync").arg("-f").arg(&outer))?;
    stage.mount.kill()?;
    stage.mount.detach()?;
    stage.mount.fsck()?;
    stage.mount.mount_again()?;
    ensure!(names(&inside)? == ["file", "gone", "inner"]);
    ensure!(names(&outer.join("top"))? == ["file", "gone", "outer"]);
    stage.txn(&["commit", "outer/inner"])?;
    stage.mount.kill()?;
    stage.mount.detach()?;
    stage.mount.mount_again()?;
    ensure!(names(&outer.join("top"))? == ["file", "gone", "inner", "outer"]);
    stage.txn(&["abort", "outer"])?;
    stage.expect_untouched()?;
    stage.end()
}
