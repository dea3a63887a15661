//! `diff` and `send` with clones in the directory, and `diff` between a clone and its source, which
//! may have clones in them: by written rows as by a walk.

use super::sent::send_and_compare;
use super::{clone, destroy, grow_with_clones};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use anyhow::{Result, ensure};

use crate::harness::context::Context;
use crate::harness::mount::{Mount, Spec, command_of};
use crate::harness::process::{command, run, text};
use crate::harness::user::{NOBODY, acting_as};

const DIRS: usize = 12;
const FILES_IN_DIR: usize = 60;

/// A directory with so many names that the daemon compares it by rows.
pub(super) fn grow_many(top: &Path) -> Result<()> {
    for dir in 0..DIRS {
        let dir = top.join(format!("many/{dir}"));
        fs::create_dir_all(&dir)?;
        for file in 0..FILES_IN_DIR {
            fs::write(dir.join(format!("f{file}")), format!("{file}"))?;
        }
    }
    Ok(())
}

pub(super) fn change_few(top: &Path) -> Result<()> {
    let many = top.join("many");
    fs::write(many.join("0/f0"), b"other contents")?;
    fs::rename(many.join("1/f1"), many.join("2/moved"))?;
    fs::rename(many.join("3"), many.join("4/dir"))?;
    fs::hard_link(many.join("5/f5"), many.join("6/second"))?;
    fs::remove_file(many.join("7/f7"))?;
    fs::create_dir(many.join("8/made"))?;
    fs::write(many.join("8/made/file"), text(top))?;
    Ok(())
}

/// Expects that the daemon tells what a walk finds, and returns it.
fn diff(context: &Context, sides: &[&Path]) -> Result<String> {
    let sides: Vec<String> = sides.iter().map(|side| text(side)).collect();
    let ask = |first: &[&'static str]| {
        let sides = sides.iter().map(String::as_str);
        let words: Vec<&str> = first.iter().copied().chain(sides).collect();
        command_of(context, &words)
    };
    let (told, walked) = (ask(&["diff"])?, ask(&["diff", "--walk"])?);
    ensure!(told == walked, "told: {told}; walked: {walked}");
    Ok(told)
}

/// Expects that a comparison looks few names up, after a first one has noted where inodes are.
fn expect_by_rows(context: &Context, mount: &mut Mount<'_>, sides: &[&Path]) -> Result<()> {
    let sides: Vec<String> = sides.iter().map(|side| text(side)).collect();
    let mut args = vec!["diff"];
    args.extend(sides.iter().map(String::as_str));
    command_of(context, &args)?;
    // Nothing of it is known to the kernel.
    mount.remount()?;
    let before = mount.stats()?;
    command_of(context, &args)?;
    let lookups = mount.stats()?.since(&before, "fuse.requests.lookup")?;
    ensure!(lookups < 200, "{args:?}: {lookups} names were looked up");
    Ok(())
}

pub(super) fn clones_in_the_directory_are_compared(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("clone-diff", "512M"))?;
    let dir = mount.dir().join("dir");
    // One that goes, so that those after it are other parts of later snapshots.
    fs::create_dir(mount.dir().join("empty"))?;
    clone(
        context,
        &mount.dir().join("empty"),
        &mount.dir().join("early"),
    )?;
    grow_with_clones(context, &dir)?;
    grow_many(&dir.join("twin/d2/inner"))?;
    command_of(context, &["snapshot", "create", &text(&dir), "mon"])?;
    let snapshots = mount.dir().join(".stitchfs/snap");
    let (mon, tue) = (snapshots.join("mon"), snapshots.join("tue"));
    ensure!(diff(context, &[&mon])?.is_empty(), "nothing changed");
    change_few(&dir.join("twin/d2/inner"))?;
    fs::rename(dir.join("twin"), dir.join("moved"))?;
    clone(context, &dir.join("top"), &dir.join("late"))?;
    destroy(context, &mount.dir().join("early"))?;
    let told = diff(context, &[&mon])?;
    for line in ["R\ttwin -> moved", "+\tlate", "M\tmoved/d2/inner/many/0/f0"] {
        ensure!(told.lines().any(|other| other == line), "no {line}: {told}");
    }
    ensure!(
        !told.contains("late/"),
        "a clone that came is a name: {told}"
    );
    command_of(context, &["snapshot", "create", &text(&dir), "tue"])?;
    let between = diff(context, &[&mon, &tue])?;
    ensure!(
        between == told,
        "between two snapshots: {between}; now: {told}"
    );
    expect_by_rows(context, &mut mount, &[&mon, &tue])?;
    destroy(context, &dir.join("moved"))?;
    let told = diff(context, &[&mon])?;
    ensure!(
        told == "-\ttwin\n+\tlate\n" || told == "+\tlate\n-\ttwin\n",
        "{told}"
    );
    mount.unmount()?;
    mount.fsck()
}

pub(super) fn a_clone_is_compared_with_its_source(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("clone-source", "512M"))?;
    let root = mount.dir().to_owned();
    let (top, twin, second) = (root.join("top"), root.join("twin"), root.join("second"));
    grow_many(&top)?;
    command_of(context, &["snapshot", "create", &text(&top), "mon"])?;
    let mon = root.join(".stitchfs/snap/mon");
    clone(context, &top, &twin)?;
    clone(context, &mon, &second)?;
    for sides in [[&top, &twin], [&twin, &top], [&mon, &twin], [&mon, &second]] {
        let told = diff(context, &sides.map(std::path::PathBuf::as_path))?;
        ensure!(told.is_empty(), "{sides:?}: {told}");
    }
    change_few(&twin)?;
    fs::write(top.join("many/9/f9"), b"changed in the source")?;
    let told = diff(context, &[&top, &twin])?;
    for line in ["M\tmany/0/f0", "M\tmany/9/f9", "+\tmany/8/made/file"] {
        ensure!(told.lines().any(|other| other == line), "no {line}: {told}");
    }
    diff(context, &[&twin, &top])?;
    let since = diff(context, &[&mon, &twin])?;
    ensure!(
        !since.contains("f9"),
        "the clone has not changed it: {since}"
    );
    // Both make inodes, whose numbers are the same.
    change_few(&second)?;
    let told = diff(context, &[&twin, &second])?;
    ensure!(
        told.contains("+\tmany/8/made\n"),
        "another directory: {told}"
    );
    diff(context, &[&mon, &second])?;
    diff(context, &[&second.join("many"), &twin.join("many")])?;
    expect_by_rows(context, &mut mount, &[&top, &twin])?;
    expect_by_rows(context, &mut mount, &[&mon, &second])?;
    compare_as_owner(context, &mut mount, &top, &twin)?;
    // A clone in one of them is a name.
    clone(context, &top.join("many/1"), &twin.join("inner"))?;
    let told = diff(context, &[&top, &twin])?;
    ensure!(told.lines().any(|line| line == "+\tinner"), "{told}");
    ensure!(!told.contains("inner/"), "{told}");
    let (code, said) = crate::harness::mount::stitchfs(
        context,
        &[
            "diff",
            &text(&top.join("many/1")),
            &text(&top.join("many/2")),
        ],
    )?;
    ensure!(code == 1 && said.contains("in a clone"), "{code}: {said}");
    mount.unmount()?;
    mount.fsck()
}

pub(super) fn clones_in_a_clone_are_compared(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("clone-pairs", "512M"))?;
    let root = mount.dir().to_owned();
    let (dir, all) = (root.join("dir"), root.join("all"));
    let inner = Path::new("twin/d2/inner");
    grow_with_clones(context, &dir)?;
    grow_many(&dir.join(inner))?;
    command_of(context, &["snapshot", "create", &text(&dir), "mon"])?;
    let mon = root.join(".stitchfs/snap/mon");
    clone(context, &dir, &all)?;
    for sides in [[&dir, &all], [&all, &dir], [&mon, &all]] {
        let told = diff(context, &sides.map(std::path::PathBuf::as_path))?;
        ensure!(told.is_empty(), "{sides:?}: {told}");
    }
    change_few(&all.join(inner))?;
    fs::write(dir.join(inner).join("many/9/f9"), b"changed in the source")?;
    fs::write(
        dir.join(inner).join("made"),
        b"of the number of a file in the clone",
    )?;
    fs::rename(all.join("twin"), all.join("moved"))?;
    for home in [&dir, &all] {
        clone(context, &dir.join("top"), &home.join("late"))?;
    }
    let told = diff(context, &[&dir, &all])?;
    for line in [
        "R\ttwin -> moved",
        "M\tmoved/d2/inner/many/0/f0",
        "M\tmoved/d2/inner/many/9/f9",
        "+\tmoved/d2/inner/many/8/made/file",
        "-\ttwin/d2/inner/made",
        "-\tlate",
        "+\tlate",
    ] {
        ensure!(told.lines().any(|other| other == line), "no {line}: {told}");
    }
    ensure!(!told.contains("late/"), "they were made apart: {told}");
    diff(context, &[&all, &dir])?;
    let since = diff(context, &[&mon, &all])?;
    ensure!(
        !since.contains("f9"),
        "the clone has not changed it: {since}"
    );
    expect_by_rows(context, &mut mount, &[&dir, &all])?;
    expect_by_rows(context, &mut mount, &[&mon, &all])?;
    compare_as_owner(context, &mut mount, &dir, &all)?;
    destroy(context, &all.join("moved/d2/inner"))?;
    let told = diff(context, &[&dir, &all])?;
    ensure!(told.contains("-\ttwin/d2/inner\n"), "it is gone: {told}");
    mount.unmount()?;
    mount.fsck()
}

/// An ordinary user who owns both sides.
fn compare_as_owner(
    context: &Context,
    mount: &mut Mount<'_>,
    top: &Path,
    twin: &Path,
) -> Result<()> {
    let ids = format!("{}:{}", NOBODY.uid, NOBODY.gid);
    for dir in [top, twin] {
        run(&mut command("chown", &["-R", &ids, &text(dir)]))?;
    }
    let sides = [text(top), text(twin)];
    let diff = |first: &[&str]| {
        let words = [first, &[&sides[0], &sides[1]]].concat();
        acting_as(Some(NOBODY), || command_of(context, &words))?
    };
    ensure!(diff(&["diff"])? == diff(&["diff", "--walk"])?, "a walk");
    mount.remount()?;
    let before = mount.stats()?;
    diff(&["diff"])?;
    let lookups = mount.stats()?.since(&before, "fuse.requests.lookup")?;
    ensure!(lookups < 200, "{lookups} names were looked up by the owner");
    // The way to one side is closed: neither by rows nor by a walk.
    fs::set_permissions(top, fs::Permissions::from_mode(0o700))?;
    chown(top, Some(0), Some(0))?;
    ensure!(diff(&["diff"]).is_err(), "it cannot be opened");
    fs::set_permissions(top, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

pub(super) fn changes_in_clones_are_sent(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("clone-send", "512M"))?;
    let dir = mount.dir().join("dir");
    fs::create_dir(mount.dir().join("empty"))?;
    clone(
        context,
        &mount.dir().join("empty"),
        &mount.dir().join("early"),
    )?;
    grow_with_clones(context, &dir)?;
    grow_many(&dir.join("twin/d2/inner"))?;
    clone(context, &dir.join("top"), &dir.join("gone"))?;
    command_of(context, &["snapshot", "create", &text(&dir), "mon"])?;
    change_few(&dir.join("twin/d2/inner"))?;
    destroy(context, &dir.join("gone"))?;
    clone(context, &dir.join("top"), &dir.join("late"))?;
    // The others are other parts of the second snapshot.
    destroy(context, &mount.dir().join("early"))?;
    command_of(context, &["snapshot", "create", &text(&dir), "tue"])?;
    let snapshots = mount.dir().join(".stitchfs/snap");
    let sides = (&*snapshots.join("mon"), &*snapshots.join("tue"));
    send_and_compare(context, &mut mount, sides, 900)?;
    mount.unmount()?;
    mount.fsck()
}
