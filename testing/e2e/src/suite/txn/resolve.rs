//! Conflicts that are resolved, rebase, expiry, and removal of trees.

use super::*;

/// Two sides change the same; each conflict is resolved in another way.
pub(super) fn conflicts_are_resolved_and_committed(context: &Context) -> Result<()> {
    let mut stage = TxnStage::new(context, "txn-resolve")?;
    let top = stage.top.clone();
    fs::write(top.join("merged"), "1\n2\n3\n4\n5\n6\n7\n")?;
    fs::create_dir(top.join("dir"))?;
    stage.txn(&["begin", "work"])?;
    let inside = stage.place("work").join("top");
    for (dir, side) in [(&inside, "inside"), (&top, "outside")] {
        fs::write(dir.join("file"), side)?;
        fs::write(dir.join("made"), side)?;
    }
    fs::write(inside.join("merged"), "one\n2\n3\n4\n5\n6\n7\n")?;
    fs::write(top.join("merged"), "1\n2\n3\n4\n5\n6\nseven\n")?;
    fs::remove_dir(inside.join("dir"))?;
    fs::write(top.join("dir/new"), "outside")?;
    fs::write(inside.join("own"), "inside")?;
    let (code, said) = stage.try_txn(&["conflicts", "work"])?;
    ensure!(code == CONFLICT, "{code} {said}");
    ensure!(said.lines().count() == 4, "{said}");
    let (code, said) = stage.try_txn(&["resolve", "--ours", "work", "top/own"])?;
    ensure!(code == 1 && said.contains("no conflict"), "{code} {said}");
    stage.txn(&["resolve", "--ours", "work", "top/file"])?;
    stage.txn(&["resolve", "--theirs", "work", "top/made"])?;
    stage.txn(&["resolve", "--theirs", "--json", "work", "top/dir"])?;
    let (code, said) = stage.try_txn(&["commit", "work"])?;
    ensure!(code == CONFLICT, "one is open: {code} {said}");
    ensure!(
        said.contains("top/merged: ") && !said.contains("top/file"),
        "{said}"
    );
    // What was said survives; a merge that fails changes nothing.
    stage.mount.remount()?;
    let (code, said) = stage.try_txn(&["resolve", "--merge", "false", "work", "top/merged"])?;
    ensure!(
        code == 1 && said.contains("nothing was resolved"),
        "{code} {said}"
    );
    let merge = "test $(cat %O | wc -l) = 7 && sed -i '$d' %A && sed -n '$p' %B >> %A";
    stage.txn(&["resolve", "--merge", merge, "work", "top/merged"])?;
    let said = stage.txn(&["conflicts", "work"])?;
    ensure!(said.lines().count() == 4, "{said}");
    ensure!(said.contains("top/dir: name (resolved: theirs)"), "{said}");
    let open = fs::File::open(stage.place("work").join("top/own"))?;
    stage.txn(&["commit", "work"])?;
    ensure!(fs::read(top.join("file"))? == b"inside");
    ensure!(fs::read(top.join("made"))? == b"outside");
    ensure!(fs::read(top.join("dir/new"))? == b"outside");
    ensure!(fs::read(top.join("own"))? == b"inside");
    let merged = fs::read_to_string(top.join("merged"))?;
    ensure!(merged == "one\n2\n3\n4\n5\n6\nseven\n", "{merged}");
    let stale = open.metadata();
    ensure!(
        stale.is_err_and(|error| error.raw_os_error() == Some(libc::ESTALE)),
        "what was open in it goes on"
    );
    drop(open);
    stage.end()
}

pub(super) fn a_rebased_one_goes_on_from_now(context: &Context) -> Result<()> {
    let mut stage = TxnStage::new(context, "txn-rebase")?;
    let top = stage.top.clone();
    stage.txn(&["begin", "work"])?;
    let inside = stage.place("work").join("top");
    fs::write(inside.join("own"), vec![7; 100_000])?;
    fs::write(inside.join("file"), "inside")?;
    fs::write(top.join("later"), "outside")?;
    let open = fs::File::open(inside.join("own"))?;
    stage.txn(&["rebase", "work"])?;
    let stale = open.metadata();
    ensure!(
        stale.is_err_and(|error| error.raw_os_error() == Some(libc::ESTALE)),
        "what was open in it goes on"
    );
    drop(open);
    ensure!(names(&inside)? == ["file", "gone", "later", "own"]);
    ensure!(fs::read(inside.join("later"))? == b"outside");
    ensure!(fs::read(inside.join("own"))? == vec![7; 100_000]);
    fs::write(inside.join("own"), "inside")?;
    // A conflict leaves all as it was.
    fs::write(top.join("file"), "outside")?;
    let (code, said) = stage.try_txn(&["rebase", "work"])?;
    ensure!(
        code == CONFLICT && said.contains("top/file: "),
        "{code} {said}"
    );
    ensure!(fs::read(inside.join("own"))? == b"inside");
    stage.mount.remount()?;
    stage.txn(&["resolve", "--ours", "work", "."])?;
    stage.txn(&["rebase", "work"])?;
    let said = stage.txn(&["diff", "work"])?;
    ensure!(said == "M\ttop/file\n+\ttop/own\n", "{said}");
    stage.txn(&["commit", "work"])?;
    ensure!(fs::read(top.join("file"))? == b"inside");
    ensure!(fs::read(top.join("own"))? == b"inside");
    stage.end()
}

pub(super) fn an_expired_one_is_aborted(context: &Context) -> Result<()> {
    let mut stage = TxnStage::new(context, "txn-expire")?;
    stage.txn(&["begin", "--expires", "2s", "soon"])?;
    stage.txn(&["begin", "--expires", "2h", "later"])?;
    stage.txn(&["begin", "kept"])?;
    fs::write(stage.place("soon").join("top/file"), "inside")?;
    let (code, said) = stage.try_txn(&["begin", "--expires", "2 hours", "none"])?;
    ensure!(code == 2 && said.contains("is no time"), "{code} {said}");
    let said = stage.txn(&["list"])?;
    ensure!(said.matches("(expires 2").count() == 2, "{said}");
    let is_gone = || Ok(!stage.txn(&["list"])?.contains("soon"));
    ensure!(context.wait_until(PATIENCE, is_gone)?, "it is open still");
    ensure!(fs::read(stage.top.join("file"))? == b"before");
    ensure!(fs::metadata(stage.place("soon")).is_err(), "it is found");
    // At a mount, too.
    stage.txn(&["keep", "--expires", "1s", "kept"])?;
    stage.txn(&["keep", "later"])?;
    stage.mount.unmount()?;
    let start = context.elapsed();
    context.wait_until(PATIENCE, || {
        Ok(context.elapsed() - start > Duration::from_millis(1100))
    })?;
    stage.mount.mount_again()?;
    let said = stage.txn(&["list"])?;
    ensure!(
        said.lines().count() == 1 && said.contains("later"),
        "{said}"
    );
    ensure!(!said.contains("expires"), "{said}");
    stage.txn(&["abort", "later"])?;
    stage.end()
}

pub(super) fn trees_are_removed_in_a_run(context: &Context) -> Result<()> {
    let stage = TxnStage::new(context, "txn-rmtree")?;
    let tree = stage.top.join("tree/inner");
    fs::create_dir_all(&tree)?;
    for index in 0..FILES {
        fs::write(tree.join(index.to_string()), "x")?;
    }
    let script = format!("{} rmtree tree; [ ! -e tree ]", text(&context.stitchfs));
    let (code, said) = stage.ran(&[], &format!("{script}; exit 3"))?;
    ensure!(code == 3, "{code} {said}");
    ensure!(names(&tree)?.len() == FILES, "it shows outside");
    let (code, said) = stage.ran(&[], &script)?;
    ensure!(code == 0, "{code} {said}");
    ensure!(!stage.top.join("tree").exists());
    stage.expect_untouched()?;
    stage.end()
}
