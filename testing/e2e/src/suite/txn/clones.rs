//! Clones in transactions: they are shown as they were at the begin, and can be read only.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

const FAILED: i32 = 125;

/// A stage with a clone at `work/clone`, which has another clone in it.
fn stage_with_clone<'a>(context: &'a Context, name: &str) -> Result<(TxnStage<'a>, PathBuf)> {
    let stage = TxnStage::new(context, name)?;
    let (source, work) = (stage.top.join("source"), stage.top.join("work"));
    fs::create_dir_all(source.join("sub"))?;
    fs::write(source.join("a"), "data")?;
    fs::create_dir(&work)?;
    let clone = work.join("clone");
    for target in [&clone, &clone.join("inner")] {
        let (code, said) = stitchfs(context, &["clone", &text(&source), &text(target)])?;
        ensure!(code == 0, "{code} {said}");
    }
    fs::set_permissions(&clone, fs::Permissions::from_mode(0o711))?;
    Ok((stage, clone))
}

/// Programs read a clone, and the one in it, in a run; what would change one fails and leaves
/// nothing; a rename moves it; and a run does not begin in a clone.
pub(super) fn a_run_reads_clones_and_does_not_change_them(context: &Context) -> Result<()> {
    let (stage, clone) = stage_with_clone(context, "txn-clones")?;
    let before = names(&stage.top)?;
    for script in [
        "rm -rf work",
        "touch work/clone/x",
        "chmod 700 work/clone",
        "echo more >> work/clone/a",
        "mv work/clone/a out",
        "mv source work/clone/inner/",
    ] {
        let (code, said) = stage.ran(&[], script)?;
        ensure!(
            code != 0 && said.contains("Read-only"),
            "{script}: {code} {said}"
        );
        let left = names(&stage.top)?;
        ensure!(left == before, "{script}: {left:?} is there");
    }
    let script = "[ $(stat -c %a work/clone) = 711 ]
        [ $(cat work/clone/a) = data ]
        [ $(grep -rl data work | wc -l) = 2 ]
        [ $(ls -i work | awk '{print $1}') = $(stat -c %i work/clone) ]
        cp -a work copy; cp work/clone/inner/a taken
        tar cf work.tar work; tar tf work.tar | grep -qx work/clone/inner/a
        diff -r work copy";
    let (code, said) = stage.ran(&[], script)?;
    ensure!(code == 0, "{code} {said}");
    for copied in ["copy/clone/a", "copy/clone/inner/a", "taken"] {
        ensure!(fs::read(stage.top.join(copied))? == b"data", "{copied}");
    }
    let clone_it = format!("{} clone work/clone again", text(&context.stitchfs));
    let (code, said) = stage.ran(&[], &clone_it)?;
    ensure!(
        code != 0 && said.contains("is in a transaction"),
        "{code} {said}"
    );
    // What is written to it meanwhile does not show, nor that it is destroyed.
    let (mut child, _) = stage.start("hold; cat work/clone/inner/a work/clone/a > seen")?;
    fs::write(clone.join("inner/a"), "late")?;
    let (code, said) = stitchfs(context, &["destroy", &text(&clone.join("inner"))])?;
    ensure!(code == 0, "{code} {said}");
    fs::write(clone.join("a"), "late")?;
    stage.go()?;
    let status = child.wait()?;
    ensure!(status.code() == Some(0), "{status}");
    ensure!(fs::read(stage.top.join("seen"))? == b"datadata");
    let (code, said) = stage.ran(&[], "ls -l work; mv work/clone moved; cat moved/a")?;
    ensure!(code == 0 && said.ends_with("late"), "{code} {said}");
    let moved = stage.top.join("moved");
    ensure!(fs::read_to_string(moved.join("a"))? == "late", "it moved");
    for dir in [moved.clone(), moved.join("sub")] {
        let mut command = stage.command(&[], "touch x");
        let (code, said) = ended(command.current_dir(&dir))?;
        let is_named = said.contains(&format!("{}: is a clone", text(&moved)));
        ensure!(code == FAILED && is_named, "{code} {said}");
    }
    stage.end()
}

/// A named transaction shows the clones of the moment at which it began, also after it was mounted
/// again, and those of a later moment once it is rebased.
pub(super) fn a_named_one_shows_clones_of_its_moment(context: &Context) -> Result<()> {
    let (mut stage, clone) = stage_with_clone(context, "txn-clones-named")?;
    stage.txn(&["begin", "one"])?;
    fs::write(clone.join("a"), "late")?;
    let shown = stage.place("one").join("top/work/clone");
    let read = |name: &str| fs::read_to_string(shown.join(name));
    ensure!(read("a")? == "data" && read("inner/a")? == "data");
    let clones = stitchfs(context, &["snapshot", "list", &text(stage.mount.dir())])?;
    ensure!(!clones.1.contains("txn"), "a pin is listed: {}", clones.1);
    stage.mount.remount()?;
    ensure!(read("a")? == "data" && read("inner/a")? == "data");
    let script = "cat work/clone/a; cp work/clone/a kept";
    let mut command = Command::new(&context.stitchfs);
    command.args(["txn", "enter", "one", "--", "bash", "-euc", script]);
    let (code, said) = ended(command.current_dir(&stage.top))?;
    ensure!(code == 0 && said == "data", "{code} {said}");
    stage.txn(&["rebase", "one"])?;
    ensure!(read("a")? == "late");
    stage.txn(&["commit", "one"])?;
    ensure!(fs::read(stage.top.join("kept"))? == b"data");
    ensure!(read("a").is_err(), "it has ended");
    stage.end()
}
