//! Transactions of a user who is not root.

use super::*;
use crate::harness::user::ordinary_user;
use std::os::unix::fs::PermissionsExt as _;

/// Transactions that an ordinary user can have open.
const OPEN_PER_USER: usize = 32;

/// An exit code, and all that was printed.
type Said = (i32, String);

pub(super) fn an_ordinary_user_has_transactions(context: &Context) -> Result<()> {
    let as_user = ordinary_user()?;
    let stage = TxnStage::new(context, "txn-user")?;
    std::os::unix::fs::chown(&stage.top, Some(4242), Some(4243))?;
    let program = context.dir("txn-bin")?.join("stitchfs");
    fs::copy(&context.stitchfs, &program)?;
    let theirs = |words: &[&str]| -> Result<(i32, String)> {
        let mut command = Command::new("setpriv");
        command.args(as_user).arg(&program).arg("txn").args(words);
        ended(command.current_dir(&stage.top))
    };
    let (code, said) = theirs(&["run", "--", "bash", "-euc", "id -u; echo mine > mine"])?;
    ensure!((code, &*said) == (0, "4242\n"), "{code} {said}");
    let made = fs::metadata(stage.top.join("mine"))?;
    ensure!((made.uid(), made.gid()) == (4242, 4243), "another's file");
    let (code, said) = theirs(&["run", "--", "bash", "-euc", "echo x > file"])?;
    ensure!(code == 1, "a file of root: {code} {said}");
    ensure!(fs::read(stage.top.join("file"))? == b"before");
    stage.txn(&["begin", "roots"])?;
    for verb in ["commit", "abort", "diff"] {
        let (code, said) = theirs(&[verb, "roots"])?;
        ensure!(
            code == 1 && said.contains("only root"),
            "{verb}: {code} {said}"
        );
    }
    let (code, said) = theirs(&["begin", "roots/inner"])?;
    ensure!(code == 1 && said.contains("only root"), "{code} {said}");
    let (code, said) = theirs(&["enter", "roots", "--", "true"])?;
    ensure!(code == 125 && said.contains("only root"), "{code} {said}");
    others_cannot_walk_into_one(&stage, &as_user)?;
    stage.txn(&["abort", "roots"])?;
    theirs(&["begin", "theirs"])?;
    stage.txn(&["abort", "theirs"])?;
    let program = text(&program);
    let inner = format!("{program} txn run -- bash -euc 'echo inner > mine'; cat mine");
    let (code, said) = theirs(&["run", "--", "bash", "-euc", &inner])?;
    ensure!((code, &*said) == (0, "inner\n"), "{code} {said}");
    one_cannot_use_up_the_room_of_all(&stage, &theirs)?;
    stage.end()
}

/// Neither by its path, nor after root has walked there, which leaves the names in the kernel.
fn others_cannot_walk_into_one(stage: &TxnStage<'_>, as_user: &[&str]) -> Result<()> {
    let place = stage.place("roots").join("top");
    fs::write(place.join("open"), "not committed")?;
    fs::set_permissions(&place, fs::Permissions::from_mode(0o777))?;
    for script in ["cat open", "echo theirs > theirs", "ls"] {
        let mut command = Command::new("setpriv");
        command.args(as_user).args(["bash", "-c"]);
        command.arg(format!("cd {} && {script}", text(&place)));
        let (code, said) = ended(&mut command)?;
        ensure!(
            code != 0 && said.contains("denied"),
            "{script}: {code} {said}"
        );
    }
    ensure!(!place.join("theirs").exists(), "it was made");
    Ok(())
}

fn one_cannot_use_up_the_room_of_all(
    stage: &TxnStage<'_>,
    theirs: &dyn Fn(&[&str]) -> Result<Said>,
) -> Result<()> {
    let mut begun = Vec::new();
    let said = loop {
        let name = format!("theirs{}", begun.len());
        match theirs(&["begin", &name])? {
            (0, _) => begun.push(name),
            (_, said) => break said,
        }
    };
    ensure!(
        begun.len() == OPEN_PER_USER && said.contains("as many transactions as one may have"),
        "{}: {said}",
        begun.len()
    );
    stage.txn(&["begin", "another"])?;
    for name in begun.iter().map(String::as_str).chain(["another"]) {
        stage.txn(&["abort", name])?;
    }
    let (code, said) = theirs(&["run", "--", "true"])?;
    ensure!(code == 0, "{code} {said}");
    Ok(())
}
