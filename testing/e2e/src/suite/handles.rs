//! File handles: good as long as the inode has a name, whatever the kernel has forgotten.

mod overlay;

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use stitch_base::thread;

use crate::harness::context::Context;
use crate::harness::file_handle::{CONNECTABLE, FileHandle, drop_inodes, path_of};
use crate::harness::mount::{Mount, Spec, command_of};
use crate::harness::process::text;
use crate::harness::report::{Case, Skip};
use crate::harness::views;
use crate::suite::restart;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "remounts",
        run: handles_outlive_caches_remounts_and_a_kill,
    },
    Case {
        name: "renames",
        run: handles_follow_renames,
    },
    Case {
        name: "stale",
        run: what_has_no_name_is_stale,
    },
    Case {
        name: "connectable",
        run: a_handle_with_its_directory_has_a_path,
    },
    Case {
        name: "busy",
        run: the_first_handle_beside_other_work,
    },
    Case {
        name: "restart",
        run: what_a_handle_has_opened_outlives_the_daemon,
    },
    Case {
        name: "other-store",
        run: a_handle_of_another_store_is_stale,
    },
    Case {
        name: "clones",
        run: handles_in_clones_outlive_caches_remounts_and_a_kill,
    },
    Case {
        name: "overlay",
        run: overlay::an_overlay_is_exported_from_a_mount,
    },
];

/// What the kernel and the daemon are to forget.
#[derive(Clone, Copy, Debug)]
enum Forgotten {
    Caches,
    Mount,
    Daemon,
}

const ALL: [Forgotten; 3] = [Forgotten::Caches, Forgotten::Mount, Forgotten::Daemon];

fn forget(mount: &mut Mount<'_>, what: Forgotten) -> Result<()> {
    match what {
        Forgotten::Caches => drop_inodes(),
        Forgotten::Mount => mount.remount(),
        Forgotten::Daemon => {
            mount.sync()?;
            mount.kill()?;
            mount.detach()?;
            mount.mount_again()
        }
    }
}

/// Opens a handle and compares what it leads to with what it was made of.
fn expect(mount: &Path, handle: FileHandle, ino: u64, contents: Option<&[u8]>) -> Result<File> {
    let flags = contents.map_or(libc::O_PATH, |_| libc::O_RDONLY);
    let mut file = handle.open(mount, flags)?;
    ensure!(file.metadata()?.ino() == ino, "another inode");
    if let Some(contents) = contents {
        let mut found = Vec::new();
        file.read_to_end(&mut found)?;
        ensure!(found == contents, "other contents");
    }
    Ok(file)
}

fn expect_stale(mount: &Path, handle: FileHandle) -> Result<()> {
    let opened = handle.open(mount, libc::O_PATH);
    let errno = opened.err().and_then(|error| error.raw_os_error());
    ensure!(errno == Some(libc::ESTALE), "{errno:?}, not ESTALE");
    Ok(())
}

fn ino(path: &Path) -> Result<u64> {
    Ok(fs::symlink_metadata(path)?.ino())
}

/// A file of the text that is its name.
fn file(path: PathBuf) -> Result<PathBuf> {
    fs::write(
        &path,
        path.file_name().context("has a name")?.as_encoded_bytes(),
    )?;
    Ok(path)
}

fn handles_outlive_caches_remounts_and_a_kill(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("handles", "128M"))?;
    let dir = mount.dir().to_owned();
    let deep = dir.join("a/b/c/d");
    fs::create_dir_all(&deep)?;
    let paths = [
        dir.clone(),
        dir.join("a"),
        deep.clone(),
        file(deep.join("file"))?,
        file(dir.join("linked"))?,
        deep.join("symlink"),
    ];
    fs::hard_link(dir.join("linked"), deep.join("second"))?;
    symlink("file", &paths[5])?;
    let mut handles = Vec::new();
    for path in &paths {
        handles.push((path, FileHandle::of(path)?, ino(path)?));
    }
    for what in ALL {
        forget(&mut mount, what)?;
        for &(path, handle, ino) in &handles {
            let text = path.file_name().map(|name| name.as_encoded_bytes());
            let contents = text.filter(|_| path.is_file() && !path.is_symlink());
            forget(&mut mount, Forgotten::Caches)?;
            let opened = expect(&dir, handle, ino, contents)
                .with_context(|| format!("{what:?}: {}", path.display()))?;
            if path.is_dir() {
                ensure!(path_of(&opened)? == **path, "{what:?}: not connected");
            }
        }
        // Found by name and by number, it is the same inode.
        ensure!(FileHandle::of(&paths[3])? == handles[3].1, "another handle");
    }
    mount.unmount()?;
    mount.fsck()
}

/// In a clone, and in a clone that lies in it; files of a snapshot, too.
fn handles_in_clones_outlive_caches_remounts_and_a_kill(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("handles-clones", "128M"))?;
    let dir = mount.dir().to_owned();
    let clone = views::clone(context, &mount)?;
    fs::create_dir_all(clone.join("a/b"))?;
    let inner = clone.join("a/inner");
    command_of(
        context,
        &["clone", &text(&dir.join("source")), &text(&inner)],
    )?;
    fs::create_dir(inner.join("c"))?;
    let past = file(dir.join("source/past"))?;
    // A snapshot has the back rows that there are when it is created.
    let (handle, number) = (FileHandle::of(&past)?, ino(&past)?);
    mount.remount()?;
    expect(&dir, handle, number, Some(b"past"))?;
    command_of(context, &["snapshot", "create", &text(&dir), "s"])?;
    let paths = [
        clone.clone(),
        clone.join("a/b"),
        file(clone.join("a/b/one"))?,
        inner.clone(),
        inner.join("c"),
        file(inner.join("c/two"))?,
        dir.join(".stitchfs/snap/s/source/past"),
    ];
    let mut handles = Vec::new();
    for path in &paths {
        handles.push((path, FileHandle::of(path)?, ino(path)?));
    }
    for what in ALL {
        forget(&mut mount, what)?;
        for &(path, handle, ino) in &handles {
            let name = path.file_name().map(|name| name.as_encoded_bytes());
            let contents = name.filter(|_| path.is_file());
            forget(&mut mount, Forgotten::Caches)?;
            let opened = expect(&dir, handle, ino, contents)
                .with_context(|| format!("{what:?}: {}", path.display()))?;
            if contents.is_none() {
                ensure!(path_of(&opened)? == **path, "{what:?}: not connected");
            }
        }
    }
    command_of(context, &["destroy", &text(&clone)])?;
    for &(_, handle, _) in &handles[..6] {
        expect_stale(&dir, handle)?;
    }
    mount.unmount()?;
    mount.fsck()
}

fn handles_follow_renames(context: &Context) -> Result<()> {
    let mut mount = Mount::create(context, &Spec::new("handles-moved", "128M"))?;
    let dir = mount.dir().to_owned();
    let (one, two) = (dir.join("one"), dir.join("two"));
    fs::create_dir_all(one.join("sub"))?;
    fs::create_dir(&two)?;
    let (moved, other) = (file(one.join("moved"))?, file(two.join("other"))?);
    let below = file(one.join("sub/below"))?;
    let texts: [&[u8]; 3] = [b"moved", b"other", b"below"];
    let mut handles = Vec::new();
    for (path, text) in [&moved, &other, &below].into_iter().zip(texts) {
        handles.push((FileHandle::of(path)?, ino(path)?, text));
    }
    let sub = (FileHandle::of(&one.join("sub"))?, ino(&one.join("sub"))?);
    let check = |mount: &mut Mount<'_>, sub_is: &Path| -> Result<()> {
        for what in [Forgotten::Caches, Forgotten::Mount] {
            forget(mount, what)?;
            for &(handle, ino, text) in &handles {
                expect(&dir, handle, ino, Some(text))?;
            }
            let opened = expect(&dir, sub.0, sub.1, None)?;
            ensure!(
                path_of(&opened)? == sub_is,
                "{}",
                path_of(&opened)?.display()
            );
        }
        Ok(())
    };
    check(&mut mount, &one.join("sub")).context("before")?;
    fs::rename(&moved, two.join("moved"))?;
    fs::rename(one.join("sub"), two.join("renamed"))?;
    check(&mut mount, &two.join("renamed")).context("moved")?;
    let exchange = |a: &Path, b: &Path| renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE);
    exchange(&other, &two.join("renamed"))?;
    check(&mut mount, &other).context("exchanged")?;
    renameat_with(
        CWD,
        two.join("moved"),
        CWD,
        one.join("moved"),
        RenameFlags::WHITEOUT,
    )?;
    check(&mut mount, &other).context("whiteout")?;
    fs::hard_link(one.join("moved"), two.join("link"))?;
    fs::remove_file(one.join("moved"))?;
    check(&mut mount, &other).context("a second name, and the first gone")?;
    mount.unmount()?;
    mount.fsck()
}

fn what_has_no_name_is_stale(context: &Context) -> Result<()> {
    let mut mount = Mount::create(context, &Spec::new("handles-stale", "128M"))?;
    let dir = mount.dir().to_owned();
    let (gone, open, empty) = (dir.join("gone"), dir.join("open"), dir.join("empty"));
    file(gone.clone())?;
    file(open.clone())?;
    fs::create_dir(&empty)?;
    let kept = file(dir.join("kept"))?;
    let (kept_handle, kept_ino) = (FileHandle::of(&kept)?, ino(&kept)?);
    let handles = [FileHandle::of(&gone)?, FileHandle::of(&empty)?];
    let open_handle = FileHandle::of(&open)?;
    let mut opened = File::open(&open)?;
    for path in [&gone, &open] {
        fs::remove_file(path)?;
    }
    fs::remove_dir(&empty)?;
    for handle in handles {
        expect_stale(&dir, handle)?;
    }
    drop_inodes()?;
    let again = open_handle.open(&dir, libc::O_RDONLY);
    ensure!(again.is_ok(), "an open file has a handle without a name");
    let mut text = Vec::new();
    opened.read_to_end(&mut text)?;
    ensure!(text == b"open", "an open file lost its contents");
    drop((again, opened));
    drop_inodes()?;
    expect_stale(&dir, open_handle)?;
    mount.remount()?;
    // Numbers are not given away again.
    for index in 0..200 {
        file(dir.join(format!("new{index}")))?;
    }
    for handle in handles.into_iter().chain([open_handle]) {
        expect_stale(&dir, handle)?;
    }
    expect(&dir, kept_handle, kept_ino, Some(b"kept"))?;
    mount.unmount()?;
    mount.fsck()
}

fn a_handle_with_its_directory_has_a_path(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("handles-path", "128M"))?;
    let dir = mount.dir().to_owned();
    fs::create_dir_all(dir.join("a/b"))?;
    let path = file(dir.join("a/b/file"))?;
    let handle = match FileHandle::with_flags(&path, CONNECTABLE) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            let reason = "the kernel makes no connectable handles".to_owned();
            return Err(Skip(reason).into());
        }
        made => made?,
    };
    for what in ALL {
        forget(&mut mount, what)?;
        let opened = handle.open(&dir, libc::O_PATH)?;
        ensure!(
            path_of(&opened)? == path,
            "{what:?}: {:?}",
            path_of(&opened)?
        );
    }
    mount.unmount()?;
    mount.fsck()
}

fn what_a_handle_has_opened_outlives_the_daemon(context: &Context) -> Result<()> {
    let mut mount = Mount::create(context, &restart::held(context, "handles-held")?)?;
    let dir = mount.dir().to_owned();
    fs::create_dir_all(dir.join("a/b"))?;
    let paths = [file(dir.join("a/b/one"))?, file(dir.join("a/b/two"))?];
    let mut handles = Vec::new();
    for path in &paths {
        handles.push((FileHandle::of(path)?, ino(path)?));
    }
    let ((one, one_ino), (two, two_ino)) = (handles[0], handles[1]);
    mount.remount()?;
    // Known to the kernel by their numbers alone.
    let mut opened = one.open(&dir, libc::O_RDONLY)?;
    let mut removed = two.open(&dir, libc::O_RDONLY)?;
    restart::kill(context, &mount)?;
    fs::rename(&paths[0], dir.join("a/moved"))?;
    fs::remove_file(&paths[1])?;
    restart::kill(context, &mount)?;
    for (file, text) in [(&mut opened, "one"), (&mut removed, "two")] {
        let mut found = String::new();
        file.read_to_string(&mut found)?;
        ensure!(found == text, "{found}, not {text}");
    }
    ensure!(removed.metadata()?.nlink() == 0 && removed.metadata()?.ino() == two_ino);
    drop((opened, removed));
    drop_inodes()?;
    restart::kill(context, &mount)?;
    expect(&dir, one, one_ino, Some(b"one"))?;
    expect_stale(&dir, two)?;
    mount.unmount()?;
    mount.fsck()
}

/// Both have the same numbers.
fn a_handle_of_another_store_is_stale(context: &Context) -> Result<()> {
    let mut one = Mount::create(context, &Spec::new("handles-one", "64M"))?;
    let mut two = Mount::create(context, &Spec::new("handles-two", "64M"))?;
    let paths = [file(one.dir().join("one"))?, file(two.dir().join("two"))?];
    let numbers = [ino(&paths[0])?, ino(&paths[1])?];
    ensure!(numbers[0] == numbers[1], "{numbers:?}");
    let handle = FileHandle::of(&paths[0])?;
    expect_stale(two.dir(), handle)?;
    for mount in [&mut one, &mut two] {
        forget(mount, Forgotten::Mount)?;
    }
    expect_stale(two.dir(), handle)?;
    expect(one.dir(), handle, numbers[0], Some(b"one"))?;
    for mount in [&mut one, &mut two] {
        mount.unmount()?;
        mount.fsck()?;
    }
    Ok(())
}

/// Directories and files of the case `busy`: some tens of slices of the pass.
const DIRS: usize = 40;
const FILES: usize = 250;

fn the_first_handle_beside_other_work(context: &Context) -> Result<()> {
    let mut mount = Mount::create(context, &Spec::new("handles-busy", "256M"))?;
    let dir = mount.dir().to_owned();
    let mut handles = Vec::new();
    for outer in 0..DIRS {
        let parent = dir.join(format!("d{outer}"));
        fs::create_dir(&parent)?;
        for index in 0..FILES {
            let path = file(parent.join(format!("f{index}")))?;
            if index % 50 == 0 {
                handles.push((FileHandle::of(&path)?, ino(&path)?));
            }
        }
    }
    mount.remount()?;
    let work = dir.clone();
    let worker = thread::spawn("busy", move || -> Result<()> {
        for round in 0..4 {
            for outer in 0..DIRS {
                let (from, to) = (work.join(format!("d{outer}")), work.join("d0"));
                let name = format!("f{}", round * 50 + 7);
                fs::rename(from.join(&name), to.join(format!("m{outer}-{round}")))?;
                fs::write(from.join(name), b"new")?;
            }
        }
        Ok(())
    })?;
    for &(handle, ino) in &handles {
        expect(&dir, handle, ino, None)?;
    }
    let worked = worker.join();
    ensure!(worked.is_ok_and(|worked| worked.is_ok()), "the other work");
    for &(handle, ino) in &handles {
        expect(&dir, handle, ino, None)?;
    }
    mount.remount()?;
    for (handle, ino) in handles {
        expect(&dir, handle, ino, None)?;
    }
    mount.unmount()?;
    mount.fsck()
}
