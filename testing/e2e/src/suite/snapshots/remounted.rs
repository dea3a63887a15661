//! A mount that was remounted read-only: commands change nothing in it, as system calls do not.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use super::{create, place};
use crate::harness::context::Context;
use crate::harness::mount::{Mount, Spec, command_of, stitchfs};
use crate::harness::process::{run, text};

/// Commands that change files, snapshots, transactions or keys, and the words after them.
const CHANGES: [&[&str]; 11] = [
    &["rollback", "-y", "mon", "TOP"],
    &["snapshot", "create", "TOP", "new"],
    &["snapshot", "create", "--every", "1h", "TOP"],
    &["snapshot", "delete", "MNT", "mon"],
    &["snapshot", "hold", "MNT", "mon", "tag"],
    &["txn", "commit", "work", "MNT"],
    &["txn", "abort", "work", "MNT"],
    &["txn", "begin", "more", "MNT"],
    &["kv", "put", "MNT", "key", "after"],
    &["kv", "del", "MNT", "key"],
    &["kv", "put", "MNT/.stitchfs/txn/work", "key", "after"],
];

/// Commands that change nothing.
const READS: [&[&str]; 5] = [
    &["snapshot", "list", "MNT"],
    &["txn", "list", "MNT"],
    &["txn", "diff", "work", "MNT"],
    &["diff", "MNT/.stitchfs/snap/mon", "TOP"],
    &["info", "MNT"],
];

struct RemountStage<'a> {
    context: &'a Context,
    mount: Mount<'a>,
}

impl<'a> RemountStage<'a> {
    fn new(context: &'a Context) -> Result<Self> {
        context.needs_stitch()?;
        let spec = Spec::new("remounted", "128M").option("kv");
        let mount = Mount::create(context, &spec)?;
        let stage = Self { context, mount };
        let top = stage.mount.dir().join("top");
        fs::create_dir(&top)?;
        fs::write(top.join("file"), "old")?;
        create(context, &top, "mon")?;
        fs::write(top.join("file"), "new")?;
        stage.expect_done(&["kv", "put", "MNT", "key", "before"])?;
        stage.expect_done(&["txn", "begin", "work", "MNT"])?;
        let inside = stage.mount.dir().join(".stitchfs/txn/work/root");
        fs::write(inside.join("top/made"), "made")?;
        run(Command::new("sync").arg("-f").arg(inside))?;
        Ok(stage)
    }

    fn words(&self, words: &[&str]) -> Vec<String> {
        let mount = text(self.mount.dir());
        let top = format!("{mount}/top");
        let word = |word: &&str| word.replace("MNT", &mount).replace("TOP", &top);
        words.iter().map(word).collect()
    }

    fn said(&self, words: &[&str]) -> Result<(i32, String)> {
        let words = self.words(words);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        stitchfs(self.context, &words)
    }

    fn expect_done(&self, words: &[&str]) -> Result<()> {
        let (code, said) = self.said(words)?;
        ensure!([0, 1].contains(&code), "{words:?}: {code} {said}");
        ensure!(code == 0 || words[0] == "diff", "{words:?}: {code} {said}");
        Ok(())
    }

    fn expect_refused(&self, words: &[&str]) -> Result<()> {
        let (code, said) = self.said(words)?;
        ensure!(
            code != 0 && said.contains("mounted for reading only"),
            "{words:?}: {code} {said}"
        );
        Ok(())
    }

    fn remount(&self, option: &str) -> Result<()> {
        let options = format!("remount,{option},kv");
        let (store, dir) = (text(self.mount.store()), text(self.mount.dir()));
        command_of(self.context, &["mount", "-o", &options, &store, &dir]).map(drop)
    }

    /// Expects everything to be as [`Self::new`] left it.
    fn expect_unchanged(&self) -> Result<()> {
        let top = self.mount.dir().join("top");
        ensure!(fs::read(top.join("file"))? == b"new" && !top.join("made").exists());
        ensure!(fs::read(place(&self.mount, "mon").join("file"))? == b"old");
        let (_, snapshots) = self.said(&["snapshot", "list", "MNT"])?;
        let of_top = snapshots.lines().filter(|line| line.ends_with("/top"));
        ensure!(of_top.count() == 1, "{snapshots}");
        let (_, transactions) = self.said(&["txn", "list", "MNT"])?;
        ensure!(!transactions.contains("more"), "{transactions}");
        for place in ["MNT", "MNT/.stitchfs/txn/work"] {
            let (code, value) = self.said(&["kv", "get", place, "key"])?;
            ensure!(code == 0 && value.contains("before"), "{code} {value}");
        }
        Ok(())
    }
}

/// Whatever changes something is refused until the mount is writable again, also if the daemon
/// hears of no change of its mount table.
pub(super) fn commands_change_nothing_while_it_is_read_only(context: &Context) -> Result<()> {
    let mut stage = RemountStage::new(context)?;
    stage.remount("ro")?;
    for words in CHANGES {
        stage.expect_refused(words)?;
    }
    for words in READS {
        stage.expect_done(words)?;
    }
    stage.expect_unchanged()?;
    stage.remount("rw")?;
    remount_elsewhere(stage.mount.dir(), "ro")?;
    for words in CHANGES {
        stage.expect_refused(words)?;
    }
    stage.expect_unchanged()?;
    stage.remount("rw")?;
    stage.expect_done(&["kv", "put", "MNT", "key", "after"])?;
    stage.expect_done(&["txn", "commit", "work", "MNT"])?;
    let top = stage.mount.dir().join("top");
    ensure!(fs::read(top.join("made"))? == b"made");
    stage.expect_done(&["rollback", "-y", "mon", "TOP"])?;
    ensure!(fs::read(top.join("file"))? == b"old");
    stage.expect_done(&["snapshot", "delete", "MNT", "mon"])?;
    stage.mount.unmount()?;
    stage.mount.fsck()
}

/// Remounts in another mount namespace.
fn remount_elsewhere(dir: &Path, option: &str) -> Result<()> {
    let script = format!("mount -i -o remount,{option} '{}'; sleep 0.3", text(dir));
    run(Command::new("unshare").args(["--mount", "sh", "-ec", &script])).map(drop)
}
