//! `stitchfs rollback`: a directory becomes what a snapshot of it shows.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::harness::context::Context;
use crate::harness::copies::{copy, expect_equal};
use crate::harness::map::Map;
use crate::harness::mount::{Mount, Spec, command_of, stitchfs};
use crate::harness::process::{command, shell, text};
use crate::harness::report::Case;
use crate::harness::user::{NOBODY, acting_as};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "whole",
        run: everything_is_as_it_was,
    },
    Case {
        name: "in-use",
        run: programs_inside_see_what_is_restored,
    },
    Case {
        name: "owners",
        run: owners_roll_back_what_is_theirs,
    },
    Case {
        name: "later-clones",
        run: later_clones_are_destroyed_only_on_request,
    },
    Case {
        name: "killed",
        run: a_kill_leaves_it_as_before_or_as_in_the_snapshot,
    },
];

const FILES: usize = 120;
const LARGE_BYTES: usize = 12 << 20;

pub(super) fn create(context: &Context, dir: &Path, name: &str) -> Result<()> {
    command_of(context, &["snapshot", "create", &text(dir), name]).map(drop)
}

/// Rolls back. Returns where the state before is kept.
pub(super) fn roll_back(context: &Context, name: &str, dir: &Path) -> Result<PathBuf> {
    let said = command_of(context, &["rollback", "--yes", name, &text(dir)])?;
    Ok(PathBuf::from(said.trim_end()))
}

fn grow(top: &Path) -> Result<()> {
    fs::create_dir(top)?;
    for index in 0..FILES {
        let dir = top.join(format!("d{}", index % 6));
        fs::create_dir_all(&dir)?;
        fs::write(dir.join(format!("f{index}")), format!("before {index}"))?;
    }
    fs::write(top.join("large"), vec![1; LARGE_BYTES])?;
    File::create(top.join("hole"))?.set_len(1 << 20)?;
    fs::hard_link(top.join("large"), top.join("d0/again"))?;
    fs::create_dir(top.join("d1/empty"))?;
    Ok(())
}

fn change_all(top: &Path) -> Result<()> {
    for index in 0..FILES {
        let file = top.join(format!("d{}/f{index}", index % 6));
        match index % 4 {
            0 => fs::write(&file, format!("after {index}"))?,
            1 => fs::remove_file(&file)?,
            2 => fs::rename(&file, top.join(format!("r{index}")))?,
            _ => fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?,
        }
    }
    let large = OpenOptions::new().write(true).open(top.join("large"))?;
    large.write_all_at(&vec![2; LARGE_BYTES], 100)?;
    fs::write(top.join("hole"), b"filled")?;
    fs::remove_file(top.join("d0/again"))?;
    fs::remove_dir(top.join("d1/empty"))?;
    fs::create_dir_all(top.join("new/dir"))?;
    fs::write(top.join("new/dir/file"), b"made later")?;
    fs::rename(top.join("d1"), top.join("new/moved"))?;
    Ok(())
}

/// Path, number, mode, size, times of content and attributes, and links of all below a directory.
fn listing(top: &Path) -> Result<String> {
    shell(
        top,
        "find . -printf '%P %y %i %m %s %T@ %C@ %n %U:%G\\n' | sort",
    )
}

fn are_equal(one: &Path, other: &Path) -> bool {
    expect_equal(one, other).is_ok()
}

fn everything_is_as_it_was(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("roll-whole", "512M"))?;
    let top = mount.dir().join("top");
    grow(&top)?;
    let before = copy(context, &top, "roll-copy")?;
    create(context, &top, "mon")?;
    let listed = listing(&top)?;
    change_all(&top)?;
    let changed = copy(context, &top, "roll-copy2")?;
    let snapshot = mount.dir().join(".stitchfs/snap/mon");
    let dry = command_of(context, &["rollback", "-n", &text(&snapshot), &text(&top)])?;
    ensure!(dry.contains("+\tnew"), "{dry}");
    ensure!(are_equal(&changed, &top), "-n changed something");
    let kept = roll_back(context, "mon", &top)?;
    ensure!(are_equal(&before, &top), "other contents");
    let after = listing(&top)?;
    ensure!(after == listed, "{after}\nand not\n{listed}");
    ensure!(
        are_equal(&changed, &kept),
        "{}: it is not what was there before",
        kept.display()
    );
    let other = stitchfs(context, &["rollback", "--yes", "mon", &text(mount.dir())])?;
    ensure!(other.0 == 1 && other.1.contains("another"), "{}", other.1);
    let other = stitchfs(context, &["rollback", "--yes", "tue", &text(&top)])?;
    ensure!(
        other.0 == 1 && other.1.contains("no snapshot"),
        "{}",
        other.1
    );
    mount.remount()?;
    ensure!(are_equal(&before, &top), "other contents after a remount");
    let after = listing(&top)?;
    ensure!(after == listed, "{after}\nand not\n{listed}");
    // And forth again.
    let name = kept.file_name().context("it has a name")?;
    roll_back(context, &name.to_string_lossy(), &top)?;
    ensure!(are_equal(&changed, &top), "the rollback is not taken back");
    mount.unmount()?;
    mount.fsck()
}

fn read_all(file: &File) -> Result<Vec<u8>> {
    let size = usize::try_from(file.metadata()?.len())?;
    let mut out = vec![0; size];
    file.read_exact_at(&mut out, 0)?;
    Ok(out)
}

fn programs_inside_see_what_is_restored(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("roll-in-use", "256M"))?;
    let top = mount.dir().join("top");
    fs::create_dir_all(top.join("inside"))?;
    fs::write(top.join("inside/file"), b"before")?;
    fs::write(top.join("gone"), b"was here")?;
    fs::write(top.join("mapped"), vec![1; 8192])?;
    create(context, &top, "mon")?;
    let mut both = OpenOptions::new();
    both.read(true).write(true);
    let file = both.open(top.join("inside/file"))?;
    let gone = File::open(top.join("gone"))?;
    let mapped = both.open(top.join("mapped"))?;
    let map = Map::new(&mapped, 8192, true)?;
    file.set_len(0)?;
    file.write_all_at(b"AFTER, and longer", 0)?;
    // Written through a mapping, and not written back.
    map.write(100, &[2; 50])?;
    fs::remove_file(top.join("gone"))?;
    fs::write(top.join("later"), b"made later")?;
    let later = File::open(top.join("later"))?;
    // The kernel knows that this one is missing.
    ensure!(!top.join("gone").exists(), "it was removed");
    // A shell inside: it stays where it is.
    let inside = File::open(top.join("inside"))?;
    roll_back(context, "mon", &top)?;
    ensure!(read_all(&file)? == b"before", "an open file");
    ensure!(map.read(0, 8192)? == vec![1; 8192], "a mapped file");
    ensure!(fs::read(top.join("gone"))? == b"was here", "a removed file");
    ensure!(
        gone.metadata()?.ino() == fs::metadata(top.join("gone"))?.ino(),
        "another number"
    );
    ensure!(gone.metadata()?.nlink() == 1, "it has a name");
    ensure!(!top.join("later").exists(), "a file made later is there");
    ensure!(read_all(&later)? == b"made later", "it is open");
    let by_descriptor = format!("/proc/self/fd/{}/file", {
        use std::os::fd::AsRawFd as _;
        inside.as_raw_fd()
    });
    ensure!(
        fs::read(by_descriptor)? == b"before",
        "the directory is open"
    );
    // All are as any file: they can be written to again.
    file.write_all_at(b"once more", 0)?;
    fs::write(top.join("later"), b"anew")?;
    fs::write(top.join("inside/new"), b"new")?;
    drop((file, gone, map, mapped, later, inside));
    mount.remount()?;
    ensure!(
        fs::read(top.join("inside/file"))? == b"once more",
        "it is lost"
    );
    mount.unmount()?;
    mount.fsck()
}

fn owners_roll_back_what_is_theirs(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("roll-users", "256M"))?;
    let theirs = mount.dir().join("theirs");
    fs::create_dir(&theirs)?;
    fs::write(theirs.join("roots"), b"before")?;
    std::os::unix::fs::chown(&theirs, Some(NOBODY.uid), Some(NOBODY.gid))?;
    acting_as(Some(NOBODY), || -> Result<()> {
        fs::write(theirs.join("mine"), b"before")?;
        create(context, &theirs, "mon")?;
        fs::write(theirs.join("mine"), b"after")?;
        roll_back(context, "mon", &theirs)?;
        ensure!(fs::read(theirs.join("mine"))? == b"before", "their own");
        Ok(())
    })??;
    fs::write(theirs.join("roots"), b"after")?;
    acting_as(Some(NOBODY), || -> Result<()> {
        let args = ["rollback", "--yes", "mon", &text(&theirs)];
        let count = || Ok::<_, anyhow::Error>(fs::read_dir(theirs.join(".stitchfs/snap"))?.count());
        let kept = count()?;
        let (code, said) = stitchfs(context, &args)?;
        ensure!(code == 1 && said.contains("owner of all"), "{said}");
        ensure!(count()? == kept, "a refused one leaves a snapshot: {said}");
        Ok(())
    })??;
    ensure!(fs::read(theirs.join("roots"))? == b"after", "another's");
    mount.unmount()
}

fn later_clones_are_destroyed_only_on_request(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("roll-clones", "256M"))?;
    let (top, source) = (mount.dir().join("top"), mount.dir().join("source"));
    for dir in [&top, &source] {
        fs::create_dir(dir)?;
        fs::write(dir.join("file"), b"before")?;
    }
    create(context, &top, "mon")?;
    fs::write(top.join("file"), b"after")?;
    fs::create_dir(top.join("new"))?;
    let clones = [top.join("new/deep"), top.join("also")];
    for clone in &clones {
        command_of(context, &["clone", &text(&source), &text(clone)])?;
    }
    let count =
        || Ok::<_, anyhow::Error>(fs::read_dir(mount.dir().join(".stitchfs/snap"))?.count());
    let dir = text(&top);
    for way in ["--yes", "--json"] {
        let (code, said) = stitchfs(context, &["rollback", way, "mon", &dir])?;
        let is_told = said.contains("destroyed: also, new/deep; nothing was changed");
        ensure!(code == 1 && is_told, "{way}: {said}");
        ensure!(!said.contains("is kept"), "{way}: {said}");
        ensure!(fs::read(top.join("file"))? == b"after", "{way}: changed");
        ensure!(count()? == 1, "{way}: a refused one leaves a snapshot");
        for clone in &clones {
            ensure!(fs::read(clone.join("file"))? == b"before", "{way}: a clone");
        }
    }
    let allowed = ["rollback", "--yes", "--destroy-clones", "mon", &dir];
    command_of(context, &allowed)?;
    ensure!(fs::read(top.join("file"))? == b"before", "not rolled back");
    ensure!(
        !clones.iter().any(|clone| clone.exists()),
        "a clone is left"
    );
    ensure!(count()? == 2, "the state before is not kept");
    mount.unmount()?;
    mount.fsck()
}

/// Rolls a directory back to `mon`, and kills the daemon while the rollback is under way.
fn kill_under_way(context: &Context, mount: &mut Mount, dir: &Path) -> Result<()> {
    let args = ["rollback", "--yes", "mon", &text(dir)];
    let mut rolling = command(&context.stitchfs, &args);
    rolling.stdout(Stdio::null()).stderr(Stdio::null());
    let mut rolling = rolling.spawn().context("cannot start a rollback")?;
    // It is under way once the snapshot before is there.
    let snapshots = mount.dir().join(".stitchfs/snap");
    let has_begun = context.wait_until(Duration::from_secs(60), || {
        Ok(fs::read_dir(&snapshots)?.count() > 1)
    })?;
    ensure!(has_begun, "it does not begin");
    mount.kill()?;
    rolling.wait()?;
    Ok(())
}

/// Kills the daemon in a rollback of a directory to `mon`. There are copies of it as `mon` has it,
/// and as it is: the next mount shows one of these. Then it is rolled back whole.
pub(super) fn kill_and_roll_back(
    context: &Context,
    mount: &mut Mount,
    dir: &Path,
    (before, changed): (&Path, &Path),
) -> Result<()> {
    kill_under_way(context, mount, dir)?;
    mount.mount_again()?;
    let is_back = are_equal(before, dir);
    ensure!(is_back || are_equal(changed, dir), "a part is restored");
    roll_back(context, "mon", dir)?;
    expect_equal(before, dir).context("it is not restored")
}

fn a_kill_leaves_it_as_before_or_as_in_the_snapshot(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("roll-killed", "512M"))?;
    let top = mount.dir().join("top");
    grow(&top)?;
    let before = copy(context, &top, "roll-copy3")?;
    create(context, &top, "mon")?;
    change_all(&top)?;
    let changed = copy(context, &top, "roll-copy4")?;
    kill_and_roll_back(context, &mut mount, &top, (&before, &changed))?;
    mount.unmount()?;
    mount.fsck()
}
