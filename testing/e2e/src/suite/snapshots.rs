//! `stitchfs snapshot` and `stitchfs diff`: a moment that stays, whatever happens after it.

mod remounted;
mod run;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::io::Errno;

use crate::harness::context::Context;
use crate::harness::copies::{copy, expect_equal};
use crate::harness::mount::{Mount, Spec, command_of, stitchfs};
use crate::harness::process::{self, command, text};
use crate::harness::report::Case;
use crate::harness::user::{NOBODY, acting_as};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "moment",
        run: a_moment_stays_through_changes_remounts_and_a_kill,
    },
    Case {
        name: "read-only",
        run: changes_are_refused,
    },
    Case {
        name: "hidden",
        run: it_is_found_and_not_listed,
    },
    Case {
        name: "deleted",
        run: deletion_is_stale_inside_and_frees_space,
    },
    Case {
        name: "users",
        run: owners_have_their_own,
    },
    Case {
        name: "held",
        run: a_held_one_stays,
    },
    Case {
        name: "diff",
        run: differences_are_named,
    },
    Case {
        name: "remounted",
        run: remounted::commands_change_nothing_while_it_is_read_only,
    },
    Case {
        name: "run",
        run: run::it_is_seen_wherever_the_directory_is_mounted,
    },
    Case {
        name: "run-codes",
        run: run::a_command_runs_as_without_it,
    },
    Case {
        name: "run-user",
        run: run::a_user_without_root_runs_commands,
    },
    Case {
        name: "run-left",
        run: run::nothing_outlives_the_run,
    },
    Case {
        name: "run-wait",
        run: run::the_run_waits_if_it_is_told_to,
    },
    Case {
        name: "run-signals",
        run: run::signals_are_passed_on,
    },
];

const FILES: usize = 200;
const LARGE_BYTES: usize = 4 << 20;

/// Where a snapshot is.
fn place(mount: &Mount<'_>, name: &str) -> PathBuf {
    mount.dir().join(".stitchfs/snap").join(name)
}

fn create(context: &Context, dir: &Path, name: &str) -> Result<()> {
    command_of(context, &["snapshot", "create", &text(dir), name]).map(drop)
}

/// A tree with small and large files, links, and a hole.
fn grow(top: &Path) -> Result<()> {
    fs::create_dir(top)?;
    for index in 0..FILES {
        let dir = top.join(format!("d{}", index % 10));
        fs::create_dir_all(&dir)?;
        fs::write(dir.join(format!("f{index}")), format!("before {index}"))?;
    }
    fs::write(top.join("large"), vec![1; LARGE_BYTES])?;
    File::create(top.join("hole"))?.set_len(1 << 20)?;
    symlink("large", top.join("link"))?;
    fs::hard_link(top.join("large"), top.join("d0/again"))?;
    Ok(())
}

/// Changes, replaces, renames or removes all of a tree.
fn change_all(top: &Path) -> Result<()> {
    for index in 0..FILES {
        let file = top.join(format!("d{}/f{index}", index % 10));
        match index % 4 {
            0 => fs::write(&file, format!("after {index}"))?,
            1 => fs::remove_file(&file)?,
            2 => fs::rename(&file, top.join(format!("r{index}")))?,
            _ => fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?,
        }
    }
    let large = OpenOptions::new().write(true).open(top.join("large"))?;
    large.write_all_at(&[2; LARGE_BYTES / 2], 100)?;
    fs::write(top.join("hole"), b"filled")?;
    fs::remove_file(top.join("link"))?;
    fs::rename(top.join("d1"), top.join("moved"))?;
    fs::write(top.join("new"), b"new")?;
    Ok(())
}

fn a_moment_stays_through_changes_remounts_and_a_kill(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("snap-moment", "512M"))?;
    let top = mount.dir().join("top");
    grow(&top)?;
    let before = copy(context, &top, "snap-copy")?;
    // Open over the moment, and written to before and after it without a sync.
    let mut open = OpenOptions::new().append(true).open(top.join("d0/f0"))?;
    create(context, &top, "first")?;
    open.write_all(b"more")?;
    change_all(&top)?;
    expect_equal(&before, &place(&mount, "first")).context("after the changes")?;
    let middle = copy(context, &top, "snap-copy2")?;
    create(context, &top, "second")?;
    fs::remove_dir_all(&top)?;
    // The moment, and nothing after it, is durable.
    create(context, mount.dir(), "third")?;
    mount.kill()?;
    drop(open);
    mount.mount_again()?;
    ensure!(!top.exists(), "the tree came back");
    for round in ["after the kill", "after a remount"] {
        expect_equal(&before, &place(&mount, "first")).context(round)?;
        expect_equal(&middle, &place(&mount, "second")).context(round)?;
        ensure!(place(&mount, "third").is_dir(), "{round}: it is gone");
        let dir = text(mount.dir());
        let listed = command_of(context, &["snapshot", "list", "--quick", &dir])?;
        ensure!(listed.lines().count() == 3, "{round}: {listed}");
        mount.remount()?;
    }
    mount.unmount()?;
    mount.fsck()
}

/// What a call that is to fail gave.
fn errno<T>(result: std::io::Result<T>) -> Result<Errno> {
    match result {
        Ok(_) => bail!("it was not refused"),
        Err(error) => Errno::from_io_error(&error).context("no errno"),
    }
}

fn changes_are_refused(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("snap-rofs", "256M"))?;
    let top = mount.dir().join("top");
    grow(&top)?;
    create(context, &top, "mon")?;
    let dir = place(&mount, "mon");
    let file = dir.join("d0/f0");
    let content = fs::read(&file)?;
    let refused = [
        ("create", errno(File::create(dir.join("new")))?),
        ("truncate", errno(File::create(&file))?),
        ("mkdir", errno(fs::create_dir(dir.join("new")))?),
        ("unlink", errno(fs::remove_file(&file))?),
        ("rmdir", errno(fs::remove_dir(dir.join("d0")))?),
        (
            "chmod",
            errno(fs::set_permissions(
                &file,
                fs::Permissions::from_mode(0o600),
            ))?,
        ),
        ("rename", errno(fs::rename(&file, dir.join("new")))?),
        ("link", errno(fs::hard_link(&file, dir.join("new")))?),
        ("symlink", errno(symlink("x", dir.join("new")))?),
    ];
    for (what, errno) in refused {
        ensure!(errno == Errno::ROFS, "{what}: {errno:?}");
    }
    let out = errno(fs::hard_link(&file, mount.dir().join("out")))?;
    ensure!(out == Errno::XDEV, "link out of it: {out:?}");
    let written = OpenOptions::new()
        .write(true)
        .open(&file)
        .and_then(|mut file| file.seek(SeekFrom::End(0)).and_then(|_| file.write(b"x")));
    let written = errno(written)?;
    ensure!(written == Errno::ROFS, "write: {written:?}");
    ensure!(fs::read(&file)? == content, "the file shows other bytes");
    let again = stitchfs(context, &["snapshot", "create", &text(&dir), "again"])?;
    ensure!(again.0 == 1, "a snapshot of a snapshot: {}", again.1);
    process::run(&mut command(
        "cp",
        &["-a", &text(&file), &text(&mount.dir().join("out"))],
    ))?;
    ensure!(
        fs::read(mount.dir().join("out"))? == content,
        "a copy has other bytes"
    );
    mount.unmount()?;
    mount.fsck()
}

fn it_is_found_and_not_listed(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("snap-hidden", "256M"))?;
    let top = mount.dir().join("top");
    grow(&top)?;
    create(context, &top, "mon")?;
    let names: Vec<_> = fs::read_dir(mount.dir())?
        .map(|entry| Ok(entry?.file_name()))
        .collect::<Result<_>>()?;
    ensure!(names == ["top"], "{names:?} are listed");
    let found = process::run(&mut command("find", &[&text(mount.dir()), "-name", "snap"]))?;
    ensure!(found.is_empty(), "find meets it: {found}");
    let taken = errno(fs::create_dir(mount.dir().join(".stitchfs")))?;
    ensure!(taken == Errno::EXIST, "{taken:?}");
    let past = place(&mount, "mon").join("large");
    let (past, present) = (fs::metadata(past)?, fs::metadata(top.join("large"))?);
    ensure!(past.ino() != present.ino(), "one number for two files");
    ensure!(past.nlink() == 2, "{} links", past.nlink());
    process::run(&mut command(
        "sh",
        &["-c", &format!("rm -rf {}/*", text(mount.dir()))],
    ))?;
    ensure!(
        place(&mount, "mon").join("large").is_file(),
        "it was removed"
    );
    mount.unmount()
}

fn bytes_free(mount: &Mount<'_>) -> Result<u64> {
    let stat = rustix::fs::statvfs(mount.dir())?;
    Ok(stat.f_bavail * stat.f_frsize)
}

fn deletion_is_stale_inside_and_frees_space(context: &Context) -> Result<()> {
    const BYTES: usize = 96 << 20;
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("snap-deleted", "512M"))?;
    let top = mount.dir().join("top");
    fs::create_dir(&top)?;
    fs::write(top.join("large"), vec![1; BYTES])?;
    create(context, &top, "mon")?;
    fs::remove_file(top.join("large"))?;
    mount.sync()?;
    let inside = place(&mount, "mon");
    let open = File::open(inside.join("large"))?;
    let mut bytes = [0; 4096];
    open.read_exact_at(&mut bytes, 0)?;
    let held = bytes_free(&mount)?;
    command_of(context, &["snapshot", "delete", &text(mount.dir()), "mon"])?;
    let gone = errno(fs::metadata(&inside))?;
    ensure!(gone == Errno::NOENT, "its name: {gone:?}");
    let limit = Duration::from_secs(20);
    // The kernel drops what it has cached a moment later.
    let is_stale = context.wait_until(limit, || {
        Ok(open
            .read_at(&mut bytes, 0)
            .is_err_and(|error| error.raw_os_error() == Some(Errno::STALE.raw_os_error())))
    })?;
    ensure!(is_stale, "an open file is readable");
    drop(open);
    let is_free = context.wait_until(limit, || {
        command_of(context, &["defrag", &text(mount.dir())])?;
        Ok(bytes_free(&mount)? >= held + BYTES as u64 * 9 / 10)
    })?;
    ensure!(
        is_free,
        "free {} before, {} after",
        held,
        bytes_free(&mount)?
    );
    let (code, said) = stitchfs(context, &["snapshot", "delete", &text(mount.dir()), "mon"])?;
    ensure!(code == 1 && said.contains("no such snapshot"), "{said}");
    mount.unmount()?;
    mount.fsck()
}

fn owners_have_their_own(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("snap-users", "256M"))?;
    let (theirs, closed) = (mount.dir().join("theirs"), mount.dir().join("closed"));
    fs::create_dir(&theirs)?;
    fs::create_dir_all(closed.join("inner"))?;
    fs::write(closed.join("inner/secret"), b"secret")?;
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700))?;
    std::os::unix::fs::chown(&theirs, Some(NOBODY.uid), Some(NOBODY.gid))?;
    create(context, &closed.join("inner"), "roots")?;
    let dir = text(mount.dir());
    let said = acting_as(Some(NOBODY), || -> Result<String> {
        create(context, &theirs, "mine")?;
        let other = stitchfs(context, &["snapshot", "create", &dir, "all"])?;
        ensure!(
            other.0 == 1,
            "a snapshot of another's directory: {}",
            other.1
        );
        let other = stitchfs(context, &["snapshot", "delete", &dir, "roots"])?;
        ensure!(other.0 == 1, "another's snapshot was deleted: {}", other.1);
        let secret = fs::read(place(&mount, "roots").join("secret"));
        ensure!(
            secret.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied),
            "what was closed is open"
        );
        let listed = command_of(context, &["snapshot", "list", &dir])?;
        command_of(context, &["snapshot", "delete", &dir, "mine"])?;
        Ok(listed)
    })??;
    ensure!(said.contains("mine") && said.contains("roots"), "{said}");
    mount.unmount()
}

fn a_held_one_stays(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("snap-held", "256M"))?;
    let dir = text(mount.dir());
    create(context, mount.dir(), "mon")?;
    command_of(context, &["snapshot", "hold", &dir, "mon", "audit"])?;
    mount.kill()?;
    mount.mount_again()?;
    let (code, said) = stitchfs(context, &["snapshot", "delete", &dir, "mon"])?;
    ensure!(code == 1 && said.contains("audit"), "{said}");
    ensure!(place(&mount, "mon").is_dir(), "it was deleted");
    let listed = command_of(context, &["snapshot", "list", &dir])?;
    ensure!(listed.contains("(held)"), "{listed}");
    let is_told = listed.contains("REFER") && !listed.contains("-  mon");
    ensure!(is_told, "what it needs is not told: {listed}");
    let (code, said) = stitchfs(context, &["snapshot", "release", &dir, "mon"])?;
    ensure!(
        code == 1 && said.contains("not held under the tag hold"),
        "{said}"
    );
    command_of(context, &["snapshot", "release", &dir, "mon", "audit"])?;
    command_of(context, &["snapshot", "delete", &dir, "mon"])?;
    ensure!(!place(&mount, "mon").exists(), "it is there");
    mount.unmount()
}

fn differences_are_named(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("snap-diff", "256M"))?;
    let top = mount.dir().join("top");
    grow(&top)?;
    create(context, &top, "mon")?;
    let snapshot = text(&place(&mount, "mon"));
    let said = command_of(context, &["diff", &snapshot])?;
    ensure!(said.is_empty(), "nothing changed, and it says {said}");
    fs::write(top.join("d0/f0"), b"other")?;
    fs::write(top.join("d0/new"), b"new")?;
    fs::remove_file(top.join("d1/f1"))?;
    fs::rename(top.join("d2"), top.join("moved"))?;
    fs::rename(top.join("d3/f3"), top.join("f3"))?;
    fs::set_permissions(top.join("d4/f4"), fs::Permissions::from_mode(0o600))?;
    let expected: BTreeSet<&str> = [
        "M\td0/f0",
        "+\td0/new",
        "-\td1/f1",
        "R\td2 -> moved",
        "R\td3/f3 -> f3",
        "M\td4/f4",
    ]
    .into();
    let said = command_of(context, &["diff", &snapshot])?;
    let found: BTreeSet<&str> = said.lines().collect();
    ensure!(found == expected, "{said}");
    create(context, &top, "tue")?;
    fs::remove_dir_all(&top)?;
    let said = command_of(context, &["diff", &snapshot, &text(&place(&mount, "tue"))])?;
    let found: BTreeSet<&str> = said.lines().collect();
    ensure!(found == expected, "between two snapshots: {said}");
    differences_of_many_names(context, &mount)?;
    mount.unmount()
}

/// A directory with so many names that the daemon tells what changed: as a walk does.
fn differences_of_many_names(context: &Context, mount: &Mount) -> Result<()> {
    let many = mount.dir().join("many");
    for dir in 0..6 {
        fs::create_dir_all(many.join(format!("{dir}/inner")))?;
        for file in 0..100 {
            fs::write(many.join(format!("{dir}/inner/{file}")), b"1")?;
        }
    }
    fs::hard_link(many.join("0/inner/0"), many.join("linked"))?;
    create(context, &many, "many")?;
    let snapshot = text(&place(mount, "many"));
    fs::write(many.join("0/inner/0"), b"22")?;
    fs::write(many.join("1/inner/1"), b"22")?;
    fs::rename(many.join("2"), many.join("3/inner/moved"))?;
    fs::rename(many.join("4/inner"), mount.dir().join("out"))?;
    fs::remove_dir_all(many.join("5"))?;
    create(context, &many, "later")?;
    fs::write(many.join("1/inner/2"), b"22")?;
    let later = text(&place(mount, "later"));
    for sides in [vec![&snapshot], vec![&snapshot, &later], vec![&later]] {
        let ask = |first: &[&'static str]| {
            let sides = sides.iter().map(|side| side.as_str());
            let words: Vec<&str> = first.iter().copied().chain(sides).collect();
            command_of(context, &words)
        };
        let (told, walked) = (ask(&["diff"])?, ask(&["diff", "--walk"])?);
        ensure!(told == walked, "told: {told}; walked: {walked}");
        ensure!(told.contains("M\t1/inner/"), "{told}");
    }
    Ok(())
}
