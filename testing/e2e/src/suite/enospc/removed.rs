//! A full store takes what fits into the space of what was just removed, without a wait in between.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{FallocateFlags, fallocate};

use super::beside::expect_full;
use super::{content, write};
use crate::harness::context::Context;
use crate::harness::mount::{Mount, Spec, stitchfs};
use crate::harness::tree::expect_content;
use crate::harness::views;

const BIG: usize = 24 << 20;
const ROUNDS: u64 = 3;

/// Fills what is left of a store, to the last page.
fn fill(mount: &Mount<'_>) -> Result<()> {
    let path = mount.dir().join("rest");
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    for len in [1 << 20, 4096] {
        let block = content(7, len);
        loop {
            if let Err(error) = file.write_all(&block) {
                expect_full(&error)?;
                break;
            }
        }
    }
    Ok(())
}

/// A big file is removed, and half as much is written or allocated at once.
fn replace_big(mount: &mut Mount<'_>, is_allocated: bool) -> Result<()> {
    let dir = mount.dir().to_owned();
    replace_big_in(mount, (&dir, &dir), is_allocated)?;
    mount.unmount()?;
    mount.fsck()
}

/// The big file is in one directory, what takes its space in another.
fn replace_big_in(mount: &Mount<'_>, dirs: (&Path, &Path), is_allocated: bool) -> Result<()> {
    for round in 0..ROUNDS {
        let big = dirs.0.join("big");
        let next = dirs.1.join("next");
        write(&big, &content(round, BIG))?;
        let file = File::create(&next)?;
        fill(mount)?;
        drop(file);
        fs::remove_file(&big)?;
        let half = content(100 + round, BIG / 2);
        if is_allocated {
            let file = OpenOptions::new().write(true).open(&next)?;
            let allocated = fallocate(&file, FallocateFlags::empty(), 0, half.len() as u64);
            allocated.with_context(|| format!("allocating in round {round}"))?;
        } else {
            write(&next, &half).with_context(|| format!("writing in round {round}"))?;
            expect_content(&next, &half)?;
        }
        fs::remove_file(&next)?;
        fs::remove_file(mount.dir().join("rest"))?;
    }
    Ok(())
}

pub(super) fn a_file_is_replaced_at_once(context: &Context) -> Result<()> {
    replace_big(
        &mut Mount::create(context, &Spec::new("gone-file", "64M"))?,
        false,
    )
}

pub(super) fn a_removed_file_makes_room_for_an_allocation(context: &Context) -> Result<()> {
    replace_big(
        &mut Mount::create(context, &Spec::new("gone-alloc", "64M"))?,
        true,
    )
}

/// Within a clone, and across its edge.
pub(super) fn a_file_is_replaced_at_once_in_views(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("gone-views", "64M"))?;
    let clone = views::clone(context, &mount)?;
    let dir = mount.dir().to_owned();
    for (from, to) in [(&clone, &clone), (&clone, &dir), (&dir, &clone)] {
        let what = || format!("{} to {}", from.display(), to.display());
        replace_big_in(&mount, (from, to), false).with_context(what)?;
    }
    mount.unmount()?;
    mount.fsck()
}

/// A commit sets room aside for what was allocated in its transaction.
pub(super) fn a_commit_has_the_space_of_a_file_removed_in_a_clone(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("gone-commit", "64M"))?;
    let clone = views::clone(context, &mount)?;
    let view = views::begin(context, &mount)?;
    let big = clone.join("big");
    write(&big, &content(1, BIG))?;
    let file = File::create(view.join("next"))?;
    fallocate(&file, FallocateFlags::empty(), 0, BIG as u64 / 2).context("in the transaction")?;
    drop(file);
    fill(&mount)?;
    fs::remove_file(&big)?;
    views::commit(context, &mount)?;
    let half = content(2, BIG / 2);
    let next = mount.dir().join("next");
    let mut file = OpenOptions::new().write(true).open(&next)?;
    file.write_all(&half).context("into what was allocated")?;
    drop(file);
    expect_content(&next, &half)?;
    mount.unmount()?;
    mount.fsck()
}

/// A tree of small files, of [`BIG`] bytes together.
fn plant(top: &Path) -> Result<()> {
    for index in 0..BIG as u64 / 2000 {
        let dir: PathBuf = top.join(format!("dir{}", index / 100));
        fs::create_dir_all(&dir)?;
        write(&dir.join(format!("file{index}")), &content(index, 2000))?;
    }
    Ok(())
}

pub(super) fn a_removed_tree_is_replaced_at_once(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("gone-tree", "64M"))?;
    let top = mount.dir().join("tree");
    let next = mount.dir().join("next");
    plant(&top)?;
    drop(File::create(&next)?);
    fill(&mount)?;
    let top_text = top.to_str().context("a path of ASCII")?;
    let (code, said) = stitchfs(context, &["rmtree", top_text])?;
    ensure!(code == 0, "rmtree: {said}");
    let half = content(5, BIG / 2);
    // All of it at once: a write may go on as slowly as space comes back.
    let file = OpenOptions::new().write(true).open(&next)?;
    let allocated = fallocate(&file, FallocateFlags::empty(), 0, half.len() as u64);
    allocated.context("allocating after rmtree")?;
    drop(file);
    write(&next, &half).context("writing after rmtree")?;
    expect_content(&next, &half)?;
    ensure!(!top.exists(), "the tree is gone");
    mount.unmount()?;
    mount.fsck()
}
