//! What other users may do, and how the command behaves under its names, from fstab, and when used
//! wrongly.

mod rights;
mod tags;

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::harness::context::Context;
use crate::harness::guardian;
use crate::harness::helper::Helper;
use crate::harness::mount::{Mount, Spec, is_live_fuse, is_mount_point, stitchfs};
use crate::harness::process::{output, run, text};
use crate::harness::report::{Case, Skip};
use crate::harness::transport;
use crate::harness::user::NOBODY;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "permissions",
        run: rights::modes_hold_for_other_users,
    },
    Case {
        name: "for-root-alone",
        run: rights::a_mount_for_root_alone,
    },
    Case {
        name: "sticky-setgid",
        run: rights::sticky_and_setgid_folders,
    },
    Case {
        name: "setgid-without-execution",
        run: rights::set_group_id_without_execution,
    },
    Case {
        name: "acl",
        run: rights::access_control_lists,
    },
    Case {
        name: "background",
        run: the_mount_goes_to_the_background_once_it_answers,
    },
    Case {
        name: "dead-mount",
        run: a_dead_mount_is_cleaned_up,
    },
    Case {
        name: "fstab",
        run: a_line_in_fstab,
    },
    Case {
        name: "mount-table",
        run: a_line_of_the_mount_table,
    },
    Case {
        name: "tags",
        run: tags::stores_are_found_by_label_and_uuid,
    },
    Case {
        name: "fsck-codes",
        run: fsck_by_name_with_its_exit_codes,
    },
    Case {
        name: "mistakes",
        run: mistakes_are_named,
    },
    Case {
        name: "as-user",
        run: a_user_can_mount,
    },
];

/// The command where every user can reach it, under a name.
fn command_as(context: &Context, name: &str) -> Result<PathBuf> {
    let dir = context.dir("bin")?;
    let program = dir.join("stitchfs");
    if !program.exists() {
        fs::copy(&context.stitchfs, &program)
            .with_context(|| format!("no command at {}", context.stitchfs.display()))?;
        rights::set_mode(&program, 0o755)?;
    }
    let path = dir.join(name);
    if !path.exists() {
        symlink("stitchfs", &path)?;
    }
    Ok(path)
}

/// Unmounts what the command mounted by itself, and waits until its daemon let go of the store.
fn unmount(context: &Context, dir: &Path, store: &Path) -> Result<()> {
    let (code, said) = stitchfs(context, &["umount", &text(dir)])?;
    ensure!(code == 0, "umount: {said}");
    ensure!(!is_mount_point(dir)?, "still mounted");
    guardian::forget_mount(dir);
    let (code, said) = stitchfs(context, &["fsck", "-n", &text(store)])?;
    ensure!(code == 0, "fsck after the unmount: {code}\n{said}");
    Ok(())
}

/// When the command returns, the mount answers; the mount point is made; unmounting ends the
/// daemon.
fn the_mount_goes_to_the_background_once_it_answers(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let (store, dir) = (context.work.join("bg.store"), context.work.join("bg"));
    guardian::watch_mount(&dir)?;
    let (code, said) = stitchfs(
        context,
        &["mount", "--create", "64M", &text(&store), &text(&dir)],
    )?;
    ensure!(code == 0, "mount: {said}");
    ensure!(is_live_fuse(&dir), "no mount when the command returned");
    fs::write(dir.join("file"), b"kept")?;
    // A second time: the store and the folder are taken.
    let other = context.dir("bg-other")?;
    let (code, said) = stitchfs(context, &["mount", &text(&store), &text(&other)])?;
    ensure!(
        code != 0 && !is_mount_point(&other)?,
        "mounted twice: {said}"
    );
    ensure!(!said.is_empty(), "no message for a second mount");
    let (code, _) = stitchfs(context, &["fsck", "-n", &text(&store)])?;
    ensure!(code == 8, "fsck of a mounted store gave {code}, not 8");
    unmount(context, &dir, &store)?;

    let (code, said) = stitchfs(context, &["mount", &text(&store), &text(&dir)])?;
    ensure!(code == 0, "mount again: {said}");
    ensure!(fs::read(dir.join("file"))? == b"kept", "the file changed");
    ensure!(context.elapsed() > Duration::ZERO);
    unmount(context, &dir, &store)?;
    fs::remove_file(store)?;
    Ok(())
}

/// After `kill -9` the next mount finds the dead one at its mount point and takes its place.
fn a_dead_mount_is_cleaned_up(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("dead", "64M"))?;
    fs::write(mount.dir().join("file"), b"acknowledged")?;
    mount.kill()?;
    ensure!(
        is_mount_point(mount.dir())? && !is_live_fuse(mount.dir()),
        "the dead mount is gone"
    );
    mount.mount_again()?;
    ensure!(
        fs::read(mount.dir().join("file"))? == b"acknowledged",
        "the file is lost"
    );
    mount.unmount()?;
    ensure!(
        !is_mount_point(mount.dir())?,
        "the dead mount is still below"
    );
    mount.fsck()
}

/// `mount MNT` with a line in fstab, through `mount.stitchfs`, in a mount namespace of its own.
fn a_line_in_fstab(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let (store, dir) = (context.work.join("fstab.store"), context.dir("fstab")?);
    let (code, said) = stitchfs(context, &["mkfs", "--size", "64M", &text(&store)])?;
    ensure!(code == 0, "mkfs: {said}");
    let helpers = (
        Helper::install(context, "mount.stitchfs")?,
        Helper::install(context, "umount.fuse.stitchfs")?,
    );
    let fstab = context.work.join("fstab.txt");
    fs::write(
        &fstab,
        format!(
            "{} {} stitchfs noatime,commit=2 0 0\n",
            text(&store),
            text(&dir)
        ),
    )?;
    let script = format!(
        "mount --bind {fstab} /etc/fstab
         mount {dir}
         findmnt -n -o FSTYPE,OPTIONS {dir}
         echo kept > {dir}/file
         umount -c {dir}
         {command} fsck -n {store}
         mount {dir}
         cat {dir}/file
         umount {dir}
         if findmnt {dir}; then exit 1; fi
         if test -d /run/mount; then {command} fsck -n {store}; fi",
        command = text(&context.stitchfs),
        store = text(&store),
        fstab = text(&fstab),
        dir = text(&dir)
    );
    let mut command = Command::new("unshare");
    let said = run(command.args(["--mount", "bash", "-euc", &script]));
    drop(helpers);
    let said = said?;
    ensure!(said.contains("noatime") && said.contains("kept"), "{said}");
    // The daemon lets go of the store once all is written.
    let free = context.wait_until(Duration::from_secs(20), || {
        Ok(stitchfs(context, &["fsck", "-n", &text(&store)])?.0 == 0)
    })?;
    ensure!(
        free,
        "fsck: {}",
        stitchfs(context, &["fsck", "-n", &text(&store)])?.1
    );
    Ok(())
}

/// A line that was copied from /proc/mounts does as a line of fstab, and mount(8) remounts: it
/// starts `mount.fuse.stitchfs` for the type that the table shows.
fn a_line_of_the_mount_table(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let (store, dir) = (context.work.join("table.store"), context.dir("table")?);
    let (code, said) = stitchfs(context, &["mkfs", "--size", "64M", &text(&store)])?;
    ensure!(code == 0, "mkfs: {said}");
    let helpers = (
        Helper::install(context, "mount.fuse.stitchfs")?,
        Helper::install(context, "umount.fuse.stitchfs")?,
    );
    let script = format!(
        "{command} mount -o noatime,nosuid {store} {dir}
         grep ' {dir} fuse.stitchfs ' /proc/mounts > {fstab}
         umount -c {dir}
         mount --bind {fstab} /etc/fstab
         mount {dir}
         findmnt -n -o FSTYPE,OPTIONS {dir}
         echo kept > {dir}/file
         mount -o remount,ro {dir}
         if touch {dir}/refused; then exit 1; fi
         mount -o remount,rw {dir}
         cat {dir}/file
         touch {dir}/taken
         umount -c {dir}
         {command} fsck -n {store}",
        command = text(&context.stitchfs),
        store = text(&store),
        fstab = text(&context.work.join("table.txt")),
        dir = text(&dir)
    );
    let mut command = Command::new("unshare");
    let said = run(command.args(["--mount", "bash", "-euc", &script]));
    drop(helpers);
    let said = said?;
    for expected in ["fuse.stitchfs", "noatime", "nosuid", "kept"] {
        ensure!(said.contains(expected), "no {expected}: {said}");
    }
    Ok(())
}

/// `mkfs.stitchfs` and `fsck.stitchfs` are the same command; exit codes are those of fsck(8).
fn fsck_by_name_with_its_exit_codes(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let store = context.work.join("codes.store");
    let code = |name: &str, args: &[&str]| -> Result<i32> {
        let output = output(Command::new(command_as(context, name)?).args(args))?;
        output.status.code().context("killed")
    };
    File::create(&store)?.set_len(64 << 20)?;
    ensure!(
        code("mkfs.stitchfs", &[&text(&store)])? == 0,
        "mkfs.stitchfs of a file"
    );
    ensure!(
        code("mkfs.stitchfs", &[&text(&store)])? != 0,
        "mkfs over a store without --force"
    );
    ensure!(
        code("fsck.stitchfs", &["-n", &text(&store)])? == 0,
        "a fresh store is not clean"
    );
    ensure!(
        code("fsck.stitchfs", &["-y", &text(&store)])? == 0,
        "-y of a clean store"
    );
    ensure!(
        code("fsck.stitchfs", &["-n", "/nonexistent/store"])? == 8,
        "no such store: 8"
    );
    ensure!(
        code("fsck.stitchfs", &["--no-such-flag", &text(&store)])? == 16,
        "bad flag: 16"
    );
    let (damaged_code, said) = {
        let damaged = context.work.join("damaged.store");
        fs::copy(&store, &damaged)?;
        let file = File::options().write(true).open(&damaged)?;
        use std::os::unix::fs::FileExt as _;
        // Both superblocks and whatever follows.
        file.write_all_at(&[0x55; 65536], 0)?;
        stitchfs(context, &["fsck", "-n", &text(&damaged)])?
    };
    ensure!(
        [4, 8].contains(&damaged_code),
        "a destroyed store: {damaged_code}\n{said}"
    );
    Ok(())
}

/// Wrong use ends with an error that says what is wrong, and mounts nothing.
fn mistakes_are_named(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let dir = context.dir("mistakes")?;
    let zeros = context.work.join("zeros");
    File::create(&zeros)?.set_len(64 << 20)?;
    let words = context.work.join("words");
    fs::write(&words, "not an image\n".repeat(1_000_000))?;
    let folder = context.dir("folder-as-image")?;
    let good = context.work.join("good.store");
    let (code, said) = stitchfs(context, &["mkfs", "--size", "64M", &text(&good)])?;
    ensure!(code == 0, "mkfs: {said}");
    let (zeros, words, folder) = (text(&zeros), text(&words), text(&folder));
    let (dir_text, good) = (text(&dir), text(&good));
    let mistakes: [&[&str]; 12] = [
        &["mount", "--no-such-flag", &good, &dir_text],
        &["mount", &zeros, &dir_text],
        &["mount", &words, &dir_text],
        &["mount", &folder, &dir_text],
        &["mount", "/nonexistent/store", &dir_text],
        &["mount", "-o", "no_such_option", &good, &dir_text],
        &["mount", "-o", "nodefault_permissions", &good, &dir_text],
        &["mount", "--create", "1K", "/nonexistent/store", &dir_text],
        &["mount", &good, &words],
        &["umount", &dir_text],
        &["mkfs", "--size", "64M", "/dev/null"],
        &["no-such-command"],
    ];
    for arguments in mistakes {
        let (code, said) = stitchfs(context, arguments)?;
        let mounted = is_mount_point(&dir)?;
        if mounted {
            let _ = stitchfs(context, &["umount", &dir_text]);
        }
        ensure!(
            !mounted && code != 0,
            "{arguments:?} was accepted ({code}): {said}"
        );
        ensure!(
            code < 100 && !said.contains("panicked"),
            "{arguments:?}: {code} {said}"
        );
        ensure!(
            said.trim().len() > 10,
            "{arguments:?} says too little: {said:?}"
        );
    }
    a_missing_ring_is_said_before_a_store_is_made(context, &dir_text)
}

fn a_missing_ring_is_said_before_a_store_is_made(context: &Context, dir: &str) -> Result<()> {
    if transport::is_ring_on() {
        return Ok(());
    }
    let store = context.work.join("none.store");
    let (ring, path) = ("transport=uring", text(&store));
    let arguments = ["mount", "--create", "64M", "-o", ring, &path, dir];
    let (code, said) = stitchfs(context, &arguments)?;
    ensure!(code == 1 && said.contains("io_uring"), "{code} {said}");
    ensure!(
        !store.exists(),
        "a store was made for a mount that cannot be"
    );
    Ok(())
}

/// Without root: through fusermount3, for oneself; sharing needs a line in fuse.conf.
fn a_user_can_mount(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    if fs::metadata("/dev/fuse")?.mode() & 0o006 != 0o006 {
        return Err(Skip("/dev/fuse is for root only here".to_owned()).into());
    }
    let program = command_as(context, "stitchfs")?;
    let home = context.dir("home")?;
    std::os::unix::fs::chown(&home, Some(NOBODY.uid), Some(NOBODY.gid))?;
    let dir = home.join("mnt");
    guardian::watch_mount(&dir)?;
    // With all their ids: the kernel refuses a process with an id of another user in a private
    // mount.
    let as_nobody = |program: &Path, args: &[&str]| -> Result<(bool, String)> {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        let output = output(
            command
                .args(["sh", "-c", "exec \"$0\" \"$@\""])
                .arg(program)
                .args(args)
                .current_dir(&home),
        )?;
        let said = [output.stdout, output.stderr].concat();
        Ok((
            output.status.success(),
            String::from_utf8_lossy(&said).into_owned(),
        ))
    };
    let ours = |args: &[&str]| as_nobody(&program, args);
    let conf = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    if !conf.lines().any(|line| line.trim() == "user_allow_other") {
        let (done, said) = ours(&["mount", "--create", "32M", "-o", "allow_other", "s", "mnt"])?;
        ensure!(!done, "allow_other without user_allow_other");
        ensure!(
            said.contains("user_allow_other") && said.contains("fuse.conf"),
            "{said}"
        );
        let _ = fs::remove_file(home.join("s"));
    }
    let (done, said) = ours(&["mount", "--create", "32M", "s", "mnt"])?;
    ensure!(done, "mount as a user: {said}");
    let (done, said) = as_nobody(
        Path::new("sh"),
        &["-c", "echo mine > mnt/file; cat mnt/file"],
    )?;
    ensure!(
        done && said == "mine\n",
        "writing as the user who mounted: {said}"
    );
    ensure!(
        fs::read_dir(&dir).is_err(),
        "another user, root, may look into a private mount"
    );
    let (done, said) = ours(&["umount", "mnt"])?;
    ensure!(done, "umount as a user: {said}");
    ensure!(!is_mount_point(&dir)?, "still mounted");
    guardian::forget_mount(&dir);
    Ok(())
}
