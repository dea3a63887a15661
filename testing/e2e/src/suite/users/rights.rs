//! What modes, ACLs and set-id bits allow users who did not mount.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use rustix::io::Errno;

use crate::harness::context::Context;
use crate::harness::mount::{Mount, Spec};
use crate::harness::process::{output, run, shell};
use crate::harness::user::{NOBODY, OTHER, User, acting_as};

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

pub(super) fn set_mode(path: &Path, mode: u32) -> Result<()> {
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

/// Path walks, opens, creations and executions are refused by mode, also for cached names.
pub(super) fn modes_hold_for_other_users(context: &Context) -> Result<()> {
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

    // A revoked right is gone at once, also for cached names.
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

/// Other users cannot walk, open, create or execute there, whatever the modes say. Root may do
/// there what it may elsewhere.
pub(super) fn a_mount_for_root_alone(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut spec = Spec::new("alone", "128M");
    spec.options.push("noallow_other".to_owned());
    let mount = Mount::create(context, &spec)?;
    let dir = mount.dir();
    fs::write(dir.join("script"), b"#!/bin/sh\nexit 0\n")?;
    for path in [dir.to_path_buf(), dir.join("script")] {
        set_mode(&path, 0o777)?;
    }
    run(&mut Command::new(dir.join("script")))?;
    let denied = Some(Errno::ACCESS);
    as_user(NOBODY, denied, "walk", || {
        errno(fs::metadata(dir.join("script")))
    })?;
    as_user(NOBODY, denied, "list", || errno(fs::read_dir(dir)))?;
    as_user(NOBODY, denied, "open", || {
        errno(fs::read(dir.join("script")))
    })?;
    as_user(NOBODY, denied, "create", || {
        errno(File::create(dir.join("new")))
    })?;
    as_user(NOBODY, denied, "execute", || {
        errno(Command::new(dir.join("script")).status())
    })?;
    set_mode(&dir.join("script"), 0o600)?;
    let refused = errno(Command::new(dir.join("script")).status());
    ensure!(
        refused == denied,
        "root ran a file without an execute bit: {refused:?}"
    );
    ensure!(!dir.join("new").exists(), "something was made");
    Ok(())
}

/// In a sticky folder one removes only one's own; below a setgid folder the group is inherited.
pub(super) fn sticky_and_setgid_folders(context: &Context) -> Result<()> {
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
pub(super) fn access_control_lists(context: &Context) -> Result<()> {
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

/// A way to change the contents of a file that is open for writing, and its name.
type Change = (&'static str, fn(&File) -> std::io::Result<()>);

const CHANGES: [Change; 4] = [
    ("write", |file| file.write_at(b"y", 0).map(drop)),
    ("truncate", |file| file.set_len(2)),
    ("fallocate", |file| {
        let mode = rustix::fs::FallocateFlags::empty();
        Ok(rustix::fs::fallocate(file, mode, 0, 9000)?)
    }),
    ("copy_file_range", |file| {
        let (mut from, mut to) = (0, 1);
        let copied = rustix::fs::copy_file_range(file, Some(&mut from), file, Some(&mut to), 1)?;
        assert_eq!(copied, 1, "a byte is there to be copied");
        Ok(())
    }),
];

/// Set-group-id of a file that its group may not execute stays when a member of the group changes
/// the contents, and goes when a stranger does.
pub(super) fn set_group_id_without_execution(context: &Context) -> Result<()> {
    let mount = Mount::create(context, &Spec::new("setgid", "128M"))?;
    let path = mount.dir().join("file");
    for (what, change) in CHANGES {
        // `OTHER` is in both groups, by its own and by a further one.
        for (user, group, left) in [
            (OTHER, OTHER.gid, 0o2666),
            (OTHER, NOBODY.gid, 0o2666),
            (NOBODY, OTHER.gid, 0o666),
        ] {
            fs::write(&path, b"x")?;
            std::os::unix::fs::chown(&path, None, Some(group))?;
            set_mode(&path, 0o2666)?;
            as_user(user, None, what, || {
                let file = File::options().read(true).write(true).open(&path);
                errno(file.and_then(|file| change(&file)))
            })?;
            let mode = fs::metadata(&path)?.mode() & 0o7777;
            ensure!(
                mode == left,
                "{what} by user {} in a file of group {group}: {mode:o} instead of {left:o}",
                user.uid
            );
        }
    }
    Ok(())
}
