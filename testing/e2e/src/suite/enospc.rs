//! Full stores: a clean ENOSPC, nothing lost, and space that comes back.

mod allocated;
mod beside;
mod removed;

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use stitch_base::random::Rng;

use crate::harness::context::Context;
use crate::harness::mount::{Mount, Spec};
use crate::harness::report::Case;
use crate::harness::tree::expect_content;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "small-files",
        run: filled_with_small_files,
    },
    Case {
        name: "large-files",
        run: filled_with_large_files,
    },
    Case {
        name: "smallest-store",
        run: the_smallest_store_holds_thousands,
    },
    Case {
        name: "removed-file",
        run: removed::a_file_is_replaced_at_once,
    },
    Case {
        name: "removed-views",
        run: removed::a_file_is_replaced_at_once_in_views,
    },
    Case {
        name: "removed-commit",
        run: removed::a_commit_has_the_space_of_a_file_removed_in_a_clone,
    },
    Case {
        name: "removed-tree",
        run: removed::a_removed_tree_is_replaced_at_once,
    },
    Case {
        name: "removed-fallocate",
        run: removed::a_removed_file_makes_room_for_an_allocation,
    },
    Case {
        name: "allocated",
        run: allocated::allocated_blocks_have_room,
    },
    Case {
        name: "host",
        run: beside::the_hosts_file_system_gets_full,
    },
    Case {
        name: "host-lent",
        run: beside::the_hosts_file_system_gets_full_of_lent_files,
    },
    Case {
        name: "store-beside",
        run: beside::the_store_is_full_of_small_files,
    },
    Case {
        name: "too-large",
        run: beside::a_file_larger_than_the_host_takes,
    },
    Case {
        name: "too-large-lent",
        run: beside::a_lent_file_larger_than_the_host_takes,
    },
];

/// Small files until it is full.
fn filled_with_small_files(context: &Context) -> Result<()> {
    fill_and_empty(context, "full-small", 2000, 20_000)
}

/// Large files until it is full.
fn filled_with_large_files(context: &Context) -> Result<()> {
    fill_and_empty(context, "full-large", 16 << 20, 8)
}

/// 16 MiB hold 3,000 files of 200 bytes.
fn the_smallest_store_holds_thousands(context: &Context) -> Result<()> {
    let mut mount = Mount::create(context, &Spec::new("smallest", "16M"))?;
    for index in 0..3000 {
        write(
            &mount.dir().join(format!("file{index}")),
            &content(index, 200),
        )
        .with_context(|| format!("file {index}"))?;
    }
    mount.remount()?;
    for index in 0..3000 {
        expect_content(
            &mount.dir().join(format!("file{index}")),
            &content(index, 200),
        )?;
    }
    mount.unmount()?;
    mount.fsck()
}

/// Fills 256 MiB with files of `len` bytes, at least `count_min` of them, then empties it.
fn fill_and_empty(context: &Context, name: &str, len: usize, count_min: u64) -> Result<()> {
    let mut mount = Mount::create(context, &Spec::new(name, "256M"))?;
    let free_at_first = mount.free_bytes()?;
    let path = |mount: &Mount<'_>, index: u64| {
        mount
            .dir()
            .join(format!("dir{}", index / 1000))
            .join(format!("file{index}"))
    };
    let mut count = 0;
    let error = loop {
        let path = path(&mount, count);
        let made = fs::create_dir_all(path.parent().expect("in a folder"));
        if let Err(error) = made.and_then(|()| write(&path, &content(count, len))) {
            break error;
        }
        count += 1;
        ensure!(count < 10_000_000, "it never gets full");
    };
    ensure!(
        error.kind() == ErrorKind::StorageFull,
        "not ENOSPC but {error:?}"
    );
    println!("      full after {count} files of {len} bytes");
    ensure!(
        count >= count_min,
        "full after {count} files of {len} bytes"
    );
    // The file that did not fit may be there in part.
    let _ = fs::remove_file(path(&mount, count));
    check_all(&mount, count, len, &path).context("while full")?;

    mount.remount().context("remount while full")?;
    check_all(&mount, count, len, &path).context("after a remount while full")?;

    for index in 0..count {
        fs::remove_file(path(&mount, index)).with_context(|| format!("removing file {index}"))?;
    }
    let mut free = 0;
    let returned = context.wait_until(Duration::from_secs(60), || {
        free = mount.free_bytes()?;
        Ok(free >= free_at_first / 10 * 9)
    })?;
    ensure!(
        returned,
        "{free} bytes free after removing all, {free_at_first} at first"
    );

    // As much fits again as before.
    for index in 0..count * 8 / 10 {
        write(&path(&mount, index), &content(index + 7, len))
            .with_context(|| format!("writing file {index} again"))?;
    }
    let last = count * 8 / 10 - 1;
    mount.remount()?;
    expect_content(&path(&mount, last), &content(last + 7, len))?;
    mount.unmount()?;
    mount.fsck()
}

fn check_all(
    mount: &Mount<'_>,
    count: u64,
    len: usize,
    path: &impl Fn(&Mount<'_>, u64) -> std::path::PathBuf,
) -> Result<()> {
    for index in 0..count {
        expect_content(&path(mount, index), &content(index, len))?;
    }
    if count == 0 {
        bail!("nothing was written");
    }
    Ok(())
}

fn content(index: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(index).fill(&mut bytes);
    bytes
}

fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    File::create(path)?.write_all(bytes)
}
