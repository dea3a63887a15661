//! Clones in serializable transactions: what is read of them is checked at the commit.

use super::*;

impl<'a> IsolationStage<'a> {
    /// As [`Self::new`], but `top/dir` is a clone of `top/source`.
    fn with_clone(context: &'a Context, name: &str) -> Result<Self> {
        let stage = Self::new(context, name)?;
        stage.make_clone()?;
        Ok(stage)
    }

    fn make_clone(&self) -> Result<()> {
        let (source, dir) = (self.top.join("source"), self.top.join("dir"));
        fs::rename(&dir, &source)?;
        let (code, said) = stitchfs(self.context, &["clone", &text(&source), &text(&dir)])?;
        ensure!(code == 0, "{code} {said}");
        Ok(())
    }
}

/// The accesses that are noted of plain directories, to a clone. What would change a clone fails.
pub(super) fn each_kind_of_first_access_is_noted(context: &Context) -> Result<()> {
    let mut stage = IsolationStage::new(context, "isolation-clones")?;
    for (index, access) in ACCESSES.iter().enumerate() {
        if access.script.starts_with("rmdir") {
            continue;
        }
        let top = format!("top{index}");
        stage.top = stage.mount.dir().join(&top);
        stage.fill()?;
        stage.make_clone()?;
        stage.check_access(&top, access)?;
    }
    let destroy = format!("{} destroy dir", text(&context.stitchfs));
    stage.top = stage.mount.dir().join("top");
    stage.make_clone()?;
    let (code, said) = stage.ran(&["--isolation", "ser"], "cat dir/file; touch dir/new")?;
    ensure!(code == 1 && said.contains("Read-only"), "{code} {said}");
    let destroyed = Access {
        what: "a clone that is destroyed",
        script: "cat dir/file",
        change: &destroy,
        expected: "dir: read name",
    };
    stage.check_access("top", &destroyed)?;
    stage.end()
}

/// A file in a clone and one in mainline: each is written because of what the other one holds.
pub(super) fn write_skew_with_a_clone_is_refused(context: &Context) -> Result<()> {
    for (level, expected) in [("si", 0), ("ser", CONFLICT)] {
        let stage = IsolationStage::with_clone(context, &format!("clones-skew-{level}"))?;
        let script = "grep -q before dir/file; echo gone > two; hold";
        let held = stage.start_held("run", &["--isolation", level], script)?;
        ensure!(fs::read(stage.top.join("two"))? == b"before");
        fs::write(stage.top.join("dir/file"), "gone")?;
        let (code, said) = held.finish()?;
        ensure!(code == expected, "{level}: {code} {said}");
        if expected == CONFLICT {
            let conflict = "top/dir/file: read attributes or contents";
            ensure!(said.contains(conflict), "{said}");
            ensure!(fs::read(stage.top.join("two"))? == b"before");
        }
        // What the clone does not see, and what was not read, may change. So may all, if the run
        // in the run ends without a commit of the outer one.
        let nested = format!("{} txn run -- cat dir/large", text(&context.stitchfs));
        let script = format!("{nested} > copy; hold");
        let held = stage.start_held("next", &["--isolation", level], &script)?;
        fs::write(stage.top.join("source/large"), "other")?;
        fs::write(stage.top.join("dir/file"), "other")?;
        let (code, said) = held.finish()?;
        ensure!(code == 0, "{level}: {code} {said}");
        ensure!(fs::metadata(stage.top.join("copy"))?.len() == 300_000);
        // A read in a run in the run counts.
        let held = stage.start_held("last", &["--isolation", level], &script)?;
        fs::write(stage.top.join("dir/large"), "other")?;
        let (code, said) = held.finish()?;
        ensure!(code == expected, "{level}: {code} {said}");
        stage.end()?;
    }
    Ok(())
}

/// After a remount all of a clone counts that was read, and nothing of one that was not.
pub(super) fn reads_of_a_clone_survive_a_remount(context: &Context) -> Result<()> {
    let mut stage = IsolationStage::with_clone(context, "clones-remount")?;
    let place = |stage: &IsolationStage<'_>, name: &str| {
        let all = stage.mount.dir().join(".stitchfs/txn");
        all.join(name).join("root/top")
    };
    for name in ["read", "unread"] {
        stage.txn(&["begin", "--isolation", "ser", name])?;
        fs::write(place(&stage, name).join(name), "done")?;
    }
    ensure!(fs::read(place(&stage, "read").join("dir/file"))? == b"before");
    stage.mount.unmount()?;
    stage.mount.mount_again()?;
    ensure!(fs::read(place(&stage, "read").join("dir/file"))? == b"before");
    fs::write(stage.top.join("dir/large"), "other")?;
    stage.txn(&["commit", "unread"])?;
    for words in [&["commit", "read"], &["rebase", "read"]] {
        let (code, said) = stage.try_txn(words)?;
        let is_told = said.contains("top/dir/large: read ");
        ensure!(code == CONFLICT && is_told, "{code} {said}");
    }
    stage.txn(&["abort", "read"])?;
    stage.txn(&["begin", "--isolation", "ser", "read"])?;
    ensure!(fs::read(place(&stage, "read").join("dir/large"))? == b"other");
    fs::write(stage.top.join("dir/file"), "other")?;
    stage.txn(&["rebase", "read"])?;
    ensure!(fs::read(place(&stage, "read").join("dir/file"))? == b"other");
    stage.txn(&["commit", "read"])?;
    stage.end()
}
