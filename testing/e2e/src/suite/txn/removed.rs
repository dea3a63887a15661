//! A tree that is removed in a run, while programs outside use it.

use std::io::Read as _;

use rustix::fs::{AtFlags, Dir, DirEntry, Mode, OFlags, fstat, open, statat};
use rustix::io::Errno;

use super::*;

const DIRS: usize = 20;
const NAMES: usize = 50;

/// A program outside is in a directory of the tree, another one has a file open there. After the
/// commit no name is found from either, and the kernel was told of few names: those in directories
/// that are in use.
pub(super) fn programs_in_a_removed_tree_see_that_it_is_gone(context: &Context) -> Result<()> {
    let stage = TxnStage::new(context, "txn-removed")?;
    let tree = stage.top.join("tree");
    fs::create_dir(&tree)?;
    for dir in 0..DIRS {
        let dir = tree.join(format!("d{dir}"));
        fs::create_dir_all(dir.join("in"))?;
        for name in 0..NAMES {
            fs::write(dir.join(format!("f{name}")), "before")?;
        }
    }
    let used = tree.join("d7/in");
    fs::write(used.join("a"), "before")?;
    fs::write(used.join("b"), "before")?;
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let inside = open(&used, flags, Mode::empty())?;
    let above = open(tree.join("d7"), flags, Mode::empty())?;
    let mut file = fs::File::open(used.join("a"))?;
    for name in ["a", "b"] {
        statat(&inside, name, AtFlags::empty())?;
    }
    ensure!(file.metadata()?.nlink() == 1, "it has one name");
    let before = stage.mount.stats()?;
    let (code, said) = stage.ran(&[], "rm -rf tree")?;
    ensure!(code == 0, "{code} {said}");
    let notices = stage.mount.stats()?.since(&before, "fuse.name_notices")?;
    ensure!(!tree.exists(), "it was removed");
    for (dir, name) in [
        (&inside, "a"),
        (&inside, "b"),
        (&above, "in"),
        (&above, "f3"),
    ] {
        let found = statat(dir, name, AtFlags::empty());
        ensure!(found.err() == Some(Errno::NOENT), "{name} is found");
    }
    ensure!(fstat(&inside)?.st_nlink == 0, "the directory has a name");
    let is_a = |entry: rustix::io::Result<DirEntry>| {
        entry.is_ok_and(|entry| entry.file_name().to_bytes() == b"a")
    };
    ensure!(!Dir::read_from(&inside)?.any(is_a), "a name is listed");
    ensure!(file.metadata()?.nlink() == 0, "an open file has a name");
    let mut contents = String::new();
    file.read_to_string(&mut contents)?;
    ensure!(contents == "before", "an open file has {contents:?}");
    // Names in the tree, in `d7` and in `in`, that of the tree, and of the transaction.
    let most = u64::try_from(DIRS + NAMES + 1 + 2 + 2)?;
    ensure!(notices <= most, "{notices} names were told, not {most}");
    drop((inside, above, file));
    stage.end()
}
