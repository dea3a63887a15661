//! What other users may do, and how the command behaves under its names, from fstab, and when used
//! wrongly.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::io::Errno;

use crate::harness::context::Context;
use crate::harness::guardian;
use crate::harness::helper::Helper;
use crate::harness::mount::{Mount, Spec, is_live_fuse, is_mount_point, stitchfs};
use crate::harness::process::{output, run, shell};
use crate::harness::report::{Case, Skip};
use crate::harness::user::{NOBODY, OTHER, User, acting_as};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "permissions",
        run: modes_hold_for_other_users,
    },
    Case {
        name: "sticky-setgid",
        run: sticky_and_setgid_folders,
    },
    Case {
        name: "acl",
        run: access_control_lists,
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

/// An error number, or none.
fn errno<T>(result: std::io::Result<T>) -> Option<Errno> {
    result
        .err()
        .and_then(|error| error.raw_os_error())
        .map(Errno::from_raw_os_error)
}

fn as_user(
    user: User,
    expected: Option<Errno>,
    what: &str,
    body: impl FnOnce() -> Option<Errno>,
) -> Result<()> {
    let found = acting_as(Some(user), body)?;
    ensure!(
        found == expected,
        "{what}: {found:?} instead of {expected:?}"
    );
    Ok(())
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

/// Path walks, opens, creations and executions are refused by mode, also for cached names.
fn modes_hold_for_other_users(context: &Context) -> Result<()> {
    let mount = Mount::create(context, &Spec::new("perm", "128M"))?;
    let dir = mount.dir();
    let closed = dir.join("closed");
    fs::create_dir(&closed)?;
    fs::write(closed.join("inside"), b"secret")?;
    set_mode(&closed.join("inside"), 0o666)?;
    set_mode(&closed, 0o700)?;
    fs::write(dir.join("private"), b"secret")?;
    set_mode(&dir.join("private"), 0o600)?;
    fs::write(dir.join("public"), b"news")?;
    fs::write(dir.join("script"), b"#!/bin/sh\nexit 0\n")?;
    set_mode(&dir.join("script"), 0o744)?;
    // Now the kernel has all of it cached.
    fs::read(closed.join("inside"))?;
    fs::read(dir.join("private"))?;

    let denied = Some(Errno::ACCESS);
    as_user(NOBODY, denied, "walk", || {
        errno(fs::read(closed.join("inside")))
    })?;
    as_user(NOBODY, denied, "stat inside", || {
        errno(fs::metadata(closed.join("inside")))
    })?;
    as_user(NOBODY, denied, "list", || errno(fs::read_dir(&closed)))?;
    as_user(NOBODY, denied, "read", || {
        errno(fs::read(dir.join("private")))
    })?;
    as_user(NOBODY, None, "read public", || {
        errno(fs::read(dir.join("public")))
    })?;
    as_user(NOBODY, denied, "write", || {
        errno(File::options().write(true).open(dir.join("public")))
    })?;
    as_user(NOBODY, denied, "create", || {
        errno(File::create(dir.join("new")))
    })?;
    as_user(NOBODY, denied, "mkdir", || {
        errno(fs::create_dir(dir.join("new")))
    })?;
    as_user(NOBODY, denied, "unlink", || {
        errno(fs::remove_file(dir.join("public")))
    })?;
    as_user(NOBODY, denied, "rename", || {
        errno(fs::rename(dir.join("public"), dir.join("p2")))
    })?;
    as_user(NOBODY, Some(Errno::PERM), "chmod", || {
        errno(fs::set_permissions(
            dir.join("public"),
            fs::Permissions::from_mode(0o777),
        ))
    })?;
    scripts_need_permission(&dir.join("script"))?;

    // A right that is taken away is gone at once, also for what is cached.
    as_user(NOBODY, None, "read before", || {
        errno(fs::read(dir.join("public")))
    })?;
    set_mode(&dir.join("public"), 0o600)?;
    as_user(NOBODY, denied, "read after", || {
        errno(fs::read(dir.join("public")))
    })
}

/// A script runs for another user only with permission.
fn scripts_need_permission(script: &Path) -> Result<()> {
    let run_script = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        // By way of a shell: `setpriv` itself still has capabilities.
        output(command.args(["sh", "-c", "exec \"$0\""]).arg(script))
    };
    ensure!(
        !run_script()?.status.success(),
        "a script without permission ran"
    );
    set_mode(script, 0o755)?;
    ensure!(
        run_script()?.status.success(),
        "a script with permission did not run"
    );
    Ok(())
}

/// In a sticky folder one removes only one's own; below a setgid folder the group is inherited.
fn sticky_and_setgid_folders(context: &Context) -> Result<()> {
    let mount = Mount::create(context, &Spec::new("sticky", "128M"))?;
    let sticky = mount.dir().join("sticky");
    fs::create_dir(&sticky)?;
    set_mode(&sticky, 0o1777)?;
    as_user(NOBODY, None, "create", || {
        errno(File::create(sticky.join("mine")))
    })?;
    let refused = Some(Errno::PERM);
    as_user(OTHER, refused, "unlink", || {
        errno(fs::remove_file(sticky.join("mine")))
    })?;
    as_user(OTHER, refused, "rename", || {
        errno(fs::rename(sticky.join("mine"), sticky.join("m")))
    })?;
    as_user(NOBODY, None, "own unlink", || {
        errno(fs::remove_file(sticky.join("mine")))
    })?;

    let shared = mount.dir().join("shared");
    fs::create_dir(&shared)?;
    std::os::unix::fs::chown(&shared, None, Some(OTHER.gid))?;
    set_mode(&shared, 0o2777)?;
    as_user(NOBODY, None, "create", || {
        errno(File::create(shared.join("file")))
    })?;
    as_user(NOBODY, None, "mkdir", || {
        errno(fs::create_dir(shared.join("dir")))
    })?;
    let (file, dir) = (
        fs::metadata(shared.join("file"))?,
        fs::metadata(shared.join("dir"))?,
    );
    ensure!(
        file.gid() == OTHER.gid && dir.gid() == OTHER.gid,
        "the group is not inherited"
    );
    ensure!(dir.mode() & 0o2000 != 0, "the bit is not inherited");
    ensure!(file.uid() == NOBODY.uid, "the owner is wrong");

    // Writing by another user takes set-id bits away.
    let program = mount.dir().join("program");
    fs::write(&program, b"x")?;
    set_mode(&program, 0o6777)?;
    as_user(NOBODY, None, "write", || errno(fs::write(&program, b"y")))?;
    let mode = fs::metadata(&program)?.mode() & 0o7777;
    ensure!(
        mode == 0o777,
        "set-id bits after a write by another user: {mode:o}"
    );
    Ok(())
}

/// Lists grant and deny beyond the mode, are inherited, and follow chmod.
fn access_control_lists(context: &Context) -> Result<()> {
    let mut spec = Spec::new("acl", "128M");
    if context.target == crate::harness::context::Target::Ext4 {
        spec.options.push("acl".to_owned());
    }
    let mut mount = Mount::create(context, &spec)?;
    let dir = mount.dir().to_path_buf();
    fs::write(dir.join("file"), b"x")?;
    set_mode(&dir.join("file"), 0o600)?;
    fs::create_dir(dir.join("folder"))?;
    shell(
        &dir,
        "setfacl -m u:65534:rw file
         setfacl -d -m u:65534:rwx,g::r-x,o::--- folder
         setfacl -m u:65534:rwx folder",
    )?;
    let denied = Some(Errno::ACCESS);
    let open = |path: &Path| errno(File::options().read(true).write(true).open(path));
    as_user(NOBODY, None, "granted", || open(&dir.join("file")))?;
    as_user(
        User {
            extra_gid: None,
            ..OTHER
        },
        denied,
        "others",
        || open(&dir.join("file")),
    )?;
    as_user(NOBODY, None, "create below", || {
        errno(File::create(dir.join("folder/new")))
    })?;
    let listed = shell(&dir, "getfacl -n -c folder/new")?;
    ensure!(
        listed.contains("user:65534:rwx"),
        "not inherited:\n{listed}"
    );
    fs::create_dir(dir.join("folder/sub"))?;
    let listed = shell(&dir, "getfacl -n -c folder/sub")?;
    ensure!(
        listed.contains("default:user:65534:rwx"),
        "default not inherited:\n{listed}"
    );

    // The group bits of a mode are the mask.
    set_mode(&dir.join("file"), 0o600)?;
    as_user(NOBODY, denied, "masked", || open(&dir.join("file")))?;
    set_mode(&dir.join("file"), 0o660)?;
    mount.remount()?;
    as_user(NOBODY, None, "granted after a remount", || {
        open(&dir.join("file"))
    })?;
    shell(&dir, "setfacl -b file")?;
    as_user(NOBODY, denied, "list removed", || open(&dir.join("file")))
}

/// The command where every user can reach it, under a name.
fn command_as(context: &Context, name: &str) -> Result<PathBuf> {
    let dir = context.dir("bin")?;
    let program = dir.join("stitchfs");
    if !program.exists() {
        fs::copy(&context.stitchfs, &program)
            .with_context(|| format!("no command at {}", context.stitchfs.display()))?;
        set_mode(&program, 0o755)?;
    }
    let path = dir.join(name);
    if !path.exists() {
        symlink("stitchfs", &path)?;
    }
    Ok(path)
}

fn text(path: &Path) -> String {
    path.display().to_string()
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

/// When the command returns, the mount answers; the mount point is made; unmounting ends the daemon.
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
    let helper = Helper::install(context, "mount.stitchfs")?;
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
         umount {dir}
         mount {dir}
         cat {dir}/file
         umount {dir}
         ! findmnt {dir}",
        fstab = text(&fstab),
        dir = text(&dir)
    );
    let mut command = Command::new("unshare");
    let said = run(command.args(["--mount", "bash", "-euc", &script]));
    drop(helper);
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
    let mistakes: [&[&str]; 11] = [
        &["mount", "--no-such-flag", &good, &dir_text],
        &["mount", &zeros, &dir_text],
        &["mount", &words, &dir_text],
        &["mount", &folder, &dir_text],
        &["mount", "/nonexistent/store", &dir_text],
        &["mount", "-o", "no_such_option", &good, &dir_text],
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
    let as_nobody = |args: &[&str]| -> Result<(bool, String)> {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        let output = output(
            command
                .args(["sh", "-c", "exec \"$0\" \"$@\""])
                .arg(&program)
                .args(args)
                .current_dir(&home),
        )?;
        let said = [output.stdout, output.stderr].concat();
        Ok((
            output.status.success(),
            String::from_utf8_lossy(&said).into_owned(),
        ))
    };
    let conf = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    if !conf.lines().any(|line| line.trim() == "user_allow_other") {
        let (done, said) =
            as_nobody(&["mount", "--create", "32M", "-o", "allow_other", "s", "mnt"])?;
        ensure!(!done, "allow_other without user_allow_other");
        ensure!(
            said.contains("user_allow_other") && said.contains("fuse.conf"),
            "{said}"
        );
        let _ = fs::remove_file(home.join("s"));
    }
    let (done, said) = as_nobody(&["mount", "--create", "32M", "s", "mnt"])?;
    ensure!(done, "mount as a user: {said}");
    let written = acting_as(Some(NOBODY), || fs::write(dir.join("file"), b"mine"))?;
    written.context("writing as the user who mounted")?;
    ensure!(
        fs::read_dir(&dir).is_err(),
        "another user, root, may look into a private mount"
    );
    let (done, said) = as_nobody(&["umount", "mnt"])?;
    ensure!(done, "umount as a user: {said}");
    ensure!(!is_mount_point(&dir)?, "still mounted");
    guardian::forget_mount(&dir);
    Ok(())
}
