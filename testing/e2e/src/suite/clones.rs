//! `stitchfs clone` and `stitchfs destroy`: directories that share data and change apart.

mod back;
mod compared;
mod lost;
mod sent;
mod threads;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::io::Errno;

use crate::harness::context::Context;
use crate::harness::copies::{copy, expect_equal};
use crate::harness::mount::{Mount, Spec, command_of, stitchfs};
use crate::harness::process::{command, run, shell, text};
use crate::harness::report::Case;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "apart",
        run: both_sides_change_apart,
    },
    Case {
        name: "sources",
        run: snapshots_and_clones_are_cloned,
    },
    Case {
        name: "git",
        run: a_clone_of_a_work_tree_is_clean,
    },
    Case {
        name: "refused",
        run: what_is_refused,
    },
    Case {
        name: "space",
        run: removal_gives_space_back_and_leaves_the_source,
    },
    Case {
        name: "snapshots",
        run: snapshots_show_clones,
    },
    Case {
        name: "inner",
        run: clones_in_the_source_are_cloned,
    },
    Case {
        name: "diff",
        run: compared::clones_in_the_directory_are_compared,
    },
    Case {
        name: "source",
        run: compared::a_clone_is_compared_with_its_source,
    },
    Case {
        name: "pairs",
        run: compared::clones_in_a_clone_are_compared,
    },
    Case {
        name: "send",
        run: compared::changes_in_clones_are_sent,
    },
    Case {
        name: "sent",
        run: sent::changes_between_a_directory_and_its_clone_are_sent,
    },
    Case {
        name: "files",
        run: copied_files_share,
    },
    Case {
        name: "rollback",
        run: back::a_directory_in_a_clone_is_rolled_back,
    },
    Case {
        name: "restore",
        run: back::files_and_directories_of_clones_are_restored,
    },
    Case {
        name: "rollback-lost",
        run: lost::destroyed_clones_are_brought_back,
    },
    Case {
        name: "rollback-lost-killed",
        run: lost::a_kill_leaves_destroyed_clones_gone_or_back,
    },
    Case {
        name: "rollback-killed",
        run: back::a_kill_leaves_a_clone_as_before_or_as_in_the_snapshot,
    },
    Case {
        name: "threads",
        run: threads::clones_at_rest_have_no_threads,
    },
    Case {
        name: "killed",
        run: a_kill_right_after_a_command_loses_nothing,
    },
];

const FILES: usize = 120;
const LARGE_BYTES: usize = 4 << 20;
/// Of a file that is copied.
const SHARED_BYTES: usize = 40 << 20;

fn clone(context: &Context, source: &Path, target: &Path) -> Result<()> {
    let args = ["clone", &text(source), &text(target)];
    command_of(context, &args).map(drop)
}

fn destroy(context: &Context, path: &Path) -> Result<()> {
    command_of(context, &["destroy", &text(path)]).map(drop)
}

/// A tree of small files, a large one and a hard link.
fn grow(top: &Path) -> Result<()> {
    fs::create_dir(top)?;
    for index in 0..FILES {
        let dir = top.join(format!("d{}", index % 6));
        fs::create_dir_all(&dir)?;
        fs::write(dir.join(format!("f{index}")), format!("before {index}"))?;
    }
    fs::write(top.join("large"), vec![1; LARGE_BYTES])?;
    fs::hard_link(top.join("large"), top.join("d0/again"))?;
    Ok(())
}

fn change_all(top: &Path) -> Result<()> {
    for index in 0..FILES {
        let file = top.join(format!("d{}/f{index}", index % 6));
        match index % 3 {
            0 => fs::write(&file, format!("after {index}"))?,
            1 => fs::remove_file(&file)?,
            _ => fs::rename(&file, top.join(format!("r{index}")))?,
        }
    }
    let large = OpenOptions::new().write(true).open(top.join("large"))?;
    large.write_all_at(&[2; LARGE_BYTES / 2], 100)?;
    fs::rename(top.join("d1"), top.join("moved"))?;
    fs::write(top.join("new"), b"new")?;
    Ok(())
}

fn both_sides_change_apart(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("clone-apart", "512M"))?;
    let (top, twin) = (mount.dir().join("top"), mount.dir().join("twin"));
    grow(&top)?;
    let before = copy(context, &top, "clone-copy")?;
    // Written before the moment without a sync, and after it through the same descriptor.
    let open = OpenOptions::new().write(true).open(top.join("d0/f0"))?;
    open.write_all_at(b"BEFORE", 0)?;
    fs::write(before.join("d0/f0"), b"BEFORE 0")?;
    clone(context, &top, &twin)?;
    open.write_all_at(b"LATER!", 0)?;
    expect_equal(&before, &twin).context("the clone")?;
    open.write_all_at(b"BEFORE", 0)?;
    drop(open);
    change_all(&twin)?;
    expect_equal(&before, &top).context("the source, after changes of the clone")?;
    let changed = copy(context, &twin, "clone-copy2")?;
    change_all(&top)?;
    fs::write(top.join("new"), b"of the source")?;
    expect_equal(&changed, &twin).context("the clone, after changes of the source")?;
    run(&mut command("rm", &["-r", &text(&top)]))?;
    mount.remount()?;
    ensure!(!top.exists(), "the source came back");
    expect_equal(&changed, &twin).context("the clone, without its source")?;
    mount.unmount()?;
    mount.fsck()
}

fn snapshots_and_clones_are_cloned(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("clone-sources", "512M"))?;
    let dir = mount.dir().to_owned();
    let (top, first) = (dir.join("top"), dir.join("first"));
    grow(&top)?;
    let before = copy(context, &top, "clone-copy3")?;
    command_of(context, &["snapshot", "create", &text(&top), "mon"])?;
    change_all(&top)?;
    let changed = copy(context, &top, "clone-copy4")?;
    clone(context, &dir.join(".stitchfs/snap/mon"), &first)?;
    command_of(context, &["snapshot", "delete", &text(&dir), "mon"])?;
    expect_equal(&before, &first).context("a clone of a snapshot")?;
    change_all(&first)?;
    clone(context, &first, &dir.join("second"))?;
    clone(context, &top, &first.join("inner"))?;
    fs::write(first.join("inner/new"), b"in the inner one")?;
    for round in ["before a remount", "after it"] {
        expect_equal(&changed, &top).context(round)?;
        expect_equal(&changed, &dir.join("second")).context(round)?;
        let inner = fs::read(first.join("inner/new"))?;
        ensure!(inner == b"in the inner one", "{round}: {inner:?}");
        mount.remount()?;
    }
    destroy(context, &first)?;
    ensure!(!first.exists(), "it is there");
    expect_equal(&changed, &dir.join("second")).context("after its source went")?;
    mount.unmount()?;
    mount.fsck()
}

fn a_clone_of_a_work_tree_is_clean(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("clone-git", "256M"))?;
    let (top, twin) = (mount.dir().join("top"), mount.dir().join("twin"));
    grow(&top)?;
    let begun = "git init -q . && git add . && \
                 git -c user.name=a -c user.email=a@b commit -qm one";
    shell(&top, begun)?;
    clone(context, &top, &twin)?;
    let status = shell(&twin, "git status --porcelain && git fsck --strict")?;
    ensure!(status.trim().is_empty(), "{status}");
    fs::write(twin.join("d0/f0"), b"changed")?;
    let status = shell(&twin, "git status --porcelain")?;
    ensure!(status.trim() == "M d0/f0", "{status}");
    let status = shell(&top, "git status --porcelain")?;
    ensure!(status.trim().is_empty(), "the source: {status}");
    mount.unmount()?;
    mount.fsck()
}

fn errno<T>(result: std::io::Result<T>) -> Result<Errno> {
    match result {
        Ok(_) => bail!("it was not refused"),
        Err(error) => Errno::from_io_error(&error).context("no errno"),
    }
}

/// Expects that a command fails, and says so.
fn expect_refused(context: &Context, args: &[&str], reason: &str) -> Result<()> {
    let (code, said) = stitchfs(context, args)?;
    ensure!(code == 1 && said.contains(reason), "{args:?}: {said}");
    Ok(())
}

fn what_is_refused(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("clone-refused", "256M"))?;
    let (top, twin) = (mount.dir().join("top"), mount.dir().join("twin"));
    grow(&top)?;
    clone(context, &top, &twin)?;
    let file = twin.join("d0/f0");
    let linked = errno(fs::hard_link(&file, mount.dir().join("out")))?;
    ensure!(linked == Errno::XDEV, "link out: {linked:?}");
    let linked = errno(fs::hard_link(top.join("large"), twin.join("in")))?;
    ensure!(linked == Errno::XDEV, "link in: {linked:?}");
    let renamed = errno(fs::rename(&file, mount.dir().join("out")))?;
    ensure!(renamed == Errno::XDEV, "rename out: {renamed:?}");
    let full = errno(fs::remove_dir(&twin))?;
    ensure!(full == Errno::NOTEMPTY, "rmdir: {full:?}");
    // mv(1) copies and removes.
    let out = mount.dir().join("out");
    run(&mut command("mv", &[&text(&file), &text(&out)]))?;
    ensure!(fs::read(&out)? == b"before 0", "other bytes");
    ensure!(!file.exists() && top.join("d0/f0").exists(), "mv");
    let (source, target) = (text(&top), text(&twin));
    expect_refused(context, &["clone", &source, &target], "exists")?;
    let host = text(&context.dir("clone-host")?.join("x"));
    expect_refused(context, &["clone", &source, &host], "cp -a")?;
    expect_refused(context, &["destroy", &source], "is no clone")?;
    expect_refused(
        context,
        &["destroy", &text(&twin.join("d1"))],
        "is no clone",
    )?;
    // A clone is renamed like any directory.
    let renamed = mount.dir().join("renamed");
    fs::rename(&twin, &renamed)?;
    ensure!(fs::read(renamed.join("d1/f1"))? == b"before 1", "renamed");
    mount.unmount()?;
    mount.fsck()
}

fn removal_gives_space_back_and_leaves_the_source(context: &Context) -> Result<()> {
    const BYTES: usize = 64 << 20;
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("clone-space", "512M"))?;
    let (top, twin) = (mount.dir().join("top"), mount.dir().join("twin"));
    grow(&top)?;
    let before = copy(context, &top, "clone-copy5")?;
    for by_rm in [false, true] {
        clone(context, &top, &twin)?;
        fs::write(twin.join("own"), vec![3; BYTES])?;
        mount.sync()?;
        let held = mount.free_bytes()?;
        if by_rm {
            run(&mut command("rm", &["-rf", &text(&twin)]))?;
        } else {
            destroy(context, &twin)?;
        }
        ensure!(!twin.exists(), "its name is there");
        let is_free = context.wait_until(Duration::from_secs(20), || {
            command_of(context, &["defrag", &text(mount.dir())])?;
            Ok(mount.free_bytes()? >= held + BYTES as u64 * 9 / 10)
        })?;
        let free = mount.free_bytes()?;
        ensure!(
            is_free,
            "rm {by_rm}: {held} bytes free before, {free} after"
        );
        expect_equal(&before, &top).with_context(|| format!("rm {by_rm}"))?;
    }
    mount.unmount()?;
    mount.fsck()
}

fn snapshots_show_clones(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("clone-snapshots", "512M"))?;
    let dir = mount.dir().join("dir");
    let (top, twin) = (dir.join("top"), dir.join("twin"));
    fs::create_dir(&dir)?;
    grow(&top)?;
    clone(context, &top, &twin)?;
    clone(context, &top, &twin.join("d2/inner"))?;
    change_all(&twin)?;
    let before = copy(context, &dir, "clone-copy8")?;
    command_of(context, &["snapshot", "create", &text(&dir), "mon"])?;
    let inner = twin.join("d2/inner");
    command_of(context, &["snapshot", "create", &text(&inner), "in"])?;
    let snapshots = mount.dir().join(".stitchfs/snap");
    let (mon, of_inner) = (snapshots.join("mon"), snapshots.join("in"));
    let same = command_of(context, &["diff", &text(&mon)])?;
    ensure!(same.trim().is_empty(), "differs at once: {same}");
    change_all(&inner)?;
    let changed = command_of(context, &["diff", &text(&mon)])?;
    ensure!(changed.contains("+\ttwin/d2/inner/new\n"), "{changed}");
    let changed = command_of(context, &["diff", &text(&of_inner)])?;
    ensure!(changed.contains("\tnew"), "{changed}");
    for round in ["before a remount", "after it"] {
        expect_equal(&before, &mon).context(round)?;
        expect_equal(&before.join("twin/d2/inner"), &of_inner).context(round)?;
        mount.remount()?;
        if twin.exists() {
            destroy(context, &twin)?;
        }
    }
    let back = mount.dir().join("back");
    clone(context, &mon.join("top"), &back)?;
    expect_equal(&before.join("top"), &back).context("a clone of a part")?;
    command_of(context, &["rollback", "-y", "mon", &text(&dir)])?;
    expect_equal(&before, &dir).context("a destroyed clone is back")?;
    command_of(context, &["snapshot", "delete", &text(mount.dir()), "mon"])?;
    expect_equal(&before.join("twin/d2/inner"), &of_inner).context("one is deleted")?;
    mount.unmount()?;
    mount.fsck()
}

/// A directory with a clone, and a clone in that one.
fn grow_with_clones(context: &Context, dir: &Path) -> Result<()> {
    let (top, twin) = (dir.join("top"), dir.join("twin"));
    fs::create_dir(dir)?;
    grow(&top)?;
    clone(context, &top, &twin)?;
    change_all(&twin)?;
    clone(context, &top, &twin.join("d2/inner"))?;
    fs::write(twin.join("d2/inner/own"), b"of the inner one")?;
    Ok(())
}

fn clones_in_the_source_are_cloned(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("clone-inner", "512M"))?;
    let root = mount.dir().to_owned();
    let (dir, all) = (root.join("dir"), root.join("all"));
    grow_with_clones(context, &dir)?;
    // Written before the moment without a sync.
    fs::write(dir.join("twin/d2/inner/late"), b"late")?;
    let before = copy(context, &dir, "clone-copy9")?;
    command_of(context, &["snapshot", "create", &text(&dir), "mon"])?;
    clone(context, &dir, &all)?;
    change_all(&dir.join("twin/d2/inner"))?;
    fs::write(all.join("twin/of-the-clone"), b"apart")?;
    ensure!(!dir.join("twin/of-the-clone").exists(), "they are one");
    fs::remove_file(all.join("twin/of-the-clone"))?;
    mount.kill()?;
    mount.mount_again()?;
    expect_equal(&before, &all).context("the clone, after a kill")?;
    let old = root.join("old");
    clone(context, &root.join(".stitchfs/snap/mon"), &old)?;
    expect_equal(&before, &old).context("a clone of a snapshot")?;
    clone(context, &all, &root.join("again"))?;
    // In another order than they were made.
    destroy(context, &dir.join("twin"))?;
    for round in ["before a remount", "after it"] {
        expect_equal(&before, &all).context(round)?;
        expect_equal(&before, &root.join("again")).context(round)?;
        mount.remount()?;
    }
    destroy(context, &all.join("twin/d2/inner"))?;
    expect_equal(&before, &root.join("again")).context("one is destroyed in its source")?;
    // The snapshot has what was destroyed since.
    let gone = root.join("gone");
    clone(context, &root.join(".stitchfs/snap/mon"), &gone)?;
    expect_equal(&before, &gone).context("a clone of destroyed clones")?;
    for name in ["all", "again", "old", "gone"] {
        destroy(context, &root.join(name))?;
    }
    mount.unmount()?;
    mount.fsck()
}

/// Expects that what `work` does takes less than a tenth of the large file.
fn expect_little_space(mount: &Mount, work: impl FnOnce() -> Result<()>) -> Result<()> {
    mount.sync()?;
    let before = mount.free_bytes()?;
    work()?;
    mount.sync()?;
    let taken = before.saturating_sub(mount.free_bytes()?);
    ensure!(taken < SHARED_BYTES as u64 / 10, "it took {taken} bytes");
    Ok(())
}

/// Bytes that no compression and no hole makes less of.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 7_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..len / 8).flat_map(|_| next()).collect()
}

/// `cp` and `clone` of a file share, and both sides change apart.
fn copied_files_share(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("clone-files", "512M"))?;
    let dir = mount.dir().to_owned();
    let (source, by_cp, by_clone) = (dir.join("a"), dir.join("b"), dir.join("c"));
    let mut in_source = noise(SHARED_BYTES);
    fs::write(&source, &in_source)?;
    expect_little_space(&mount, || {
        run(&mut command("cp", &["-p", &text(&source), &text(&by_cp)]))?;
        clone(context, &source, &by_clone)
    })?;
    for path in [&by_cp, &by_clone] {
        ensure!(fs::read(path)? == in_source, "{}", path.display());
        let times = (path.metadata()?.modified()?, source.metadata()?.modified()?);
        ensure!(times.0 == times.1, "{times:?}");
    }
    let mut in_cp = in_source.clone();
    expect_little_space(&mount, || {
        let file = OpenOptions::new().write(true).open(&by_cp)?;
        file.write_all_at(b"of the copy", 1_000_000)?;
        file.set_len(SHARED_BYTES as u64 - 5000)?;
        let file = OpenOptions::new().write(true).open(&source)?;
        file.write_all_at(&[3; 10_000], 2_000_000)?;
        Ok(())
    })?;
    in_cp.truncate(SHARED_BYTES - 5000);
    in_cp[1_000_000..1_000_011].copy_from_slice(b"of the copy");
    let in_clone = in_source.clone();
    in_source[2_000_000..2_010_000].fill(3);
    let expect = |mount: &Mount| -> Result<()> {
        for (name, bytes) in [("a", &in_source), ("b", &in_cp), ("c", &in_clone)] {
            ensure!(fs::read(mount.dir().join(name))? == *bytes, "{name}");
        }
        Ok(())
    };
    expect(&mount)?;
    mount.remount()?;
    expect(&mount)?;
    fs::remove_file(&source)?;
    fs::remove_file(&by_clone)?;
    ensure!(fs::read(&by_cp)? == in_cp, "the copy, without the others");
    mount.unmount()?;
    mount.fsck()
}

fn a_kill_right_after_a_command_loses_nothing(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("clone-killed", "256M"))?;
    let (top, twin) = (mount.dir().join("top"), mount.dir().join("twin"));
    grow(&top)?;
    let before = copy(context, &top, "clone-copy6")?;
    clone(context, &top, &twin)?;
    mount.kill()?;
    mount.mount_again()?;
    expect_equal(&before, &twin).context("the clone, after a kill")?;
    expect_equal(&before, &top).context("the source, after a kill")?;
    change_all(&twin)?;
    let changed = copy(context, &twin, "clone-copy7")?;
    mount.sync()?;
    mount.kill()?;
    mount.mount_again()?;
    expect_equal(&changed, &twin).context("a changed clone, after a kill")?;
    destroy(context, &twin)?;
    mount.kill()?;
    mount.mount_again()?;
    ensure!(!twin.exists(), "a destroyed clone came back");
    expect_equal(&before, &top).context("the source, at the end")?;
    mount.unmount()?;
    mount.fsck()
}
