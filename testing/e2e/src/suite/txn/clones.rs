//! Clones in a run: programs are told that their contents are not there.

use super::*;

const FAILED: i32 = 125;

/// Copies, archives and removals of a directory with a clone in it fail in a run, a list of it and
/// a rename do not, and a run does not begin in a clone.
pub(super) fn a_run_refuses_to_look_into_clones(context: &Context) -> Result<()> {
    let stage = TxnStage::new(context, "txn-clones")?;
    let (source, work) = (stage.top.join("source"), stage.top.join("work"));
    fs::create_dir_all(source.join("sub"))?;
    fs::write(source.join("a"), "data")?;
    fs::create_dir(&work)?;
    let clone = work.join("clone");
    let (code, said) = stitchfs(context, &["clone", &text(&source), &text(&clone)])?;
    ensure!(code == 0, "{code} {said}");
    let before = names(&stage.top)?;
    for script in [
        "cp -r work copy",
        "tar cf work.tar work",
        "rm -rf work",
        "touch work/clone/x",
        "chmod 700 work/clone",
        "cat work/clone/a",
    ] {
        let (code, said) = stage.ran(&[], script)?;
        ensure!(
            code != 0 && said.contains("not supported"),
            "{script}: {code} {said}"
        );
        let left = names(&stage.top)?;
        ensure!(left == before, "{script}: {left:?} is there");
    }
    let (code, said) = stage.ran(&[], "ls -l work; mv work/clone moved")?;
    ensure!(code == 0, "{code} {said}");
    let moved = stage.top.join("moved");
    ensure!(fs::read_to_string(moved.join("a"))? == "data", "it moved");
    for dir in [moved.clone(), moved.join("sub")] {
        let mut command = stage.command(&[], "touch x");
        let (code, said) = ended(command.current_dir(&dir))?;
        let is_named = said.contains(&format!("{}: is a clone", text(&moved)));
        ensure!(code == FAILED && is_named, "{code} {said}");
    }
    stage.end()
}
