//! The mount namespace of the command.
//!
//! Root gets one directly. Any other user gets a user namespace first, which owns it. Both ids are
//! mapped to themselves, so the user stays who they are, and only their own ids exist in it.

use anyhow::{Context, Result, anyhow};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{getegid, geteuid};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::path::Path;

/// Moves this process, which must have one thread, into a mount namespace of its own. What it
/// mounts does not show outside. Later mounts and unmounts outside show in it where the mounts are
/// shared (`mount --make-rshared`), so that it keeps no other mount in use.
///
/// # Errors
/// If the system refuses.
pub(super) fn enter() -> Result<()> {
    match unshare(UnshareFlags::NEWNS) {
        Err(Errno::PERM) => enter_as_user()?,
        other => other.context("cannot create a mount namespace")?,
    }
    // Mounts that are not shared stay private.
    let follow = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", follow).context("cannot keep the mounts of the namespace from others")
}

fn enter_as_user() -> Result<()> {
    let (user, group) = (geteuid(), getegid());
    unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS).map_err(refused)?;
    // Before the group may be mapped, its members give up changing their groups.
    write("setgroups", "deny")?;
    write("uid_map", &format!("{user} {user} 1"))?;
    write("gid_map", &format!("{group} {group} 1"))?;
    debug_assert_eq!((geteuid(), getegid()), (user, group), "the ids stay");
    Ok(())
}

#[expect(unsafe_code, reason = "unshare(2) is unsafe for descriptors alone")]
fn unshare(flags: UnshareFlags) -> Result<(), Errno> {
    debug_assert!(!flags.contains(UnshareFlags::FILES), "namespaces alone");
    // SAFETY: the table of descriptors stays shared; only namespaces change.
    unsafe { unshare_unsafe(flags) }
}

fn write(name: &str, text: &str) -> Result<()> {
    let path = Path::new("/proc/self").join(name);
    std::fs::write(&path, text).map_err(|error| match Errno::from_io_error(&error) {
        Some(errno @ Errno::PERM) => refused(errno),
        _ => anyhow::Error::new(error).context(path.display().to_string()),
    })
}

fn refused(error: Errno) -> anyhow::Error {
    match error {
        Errno::PERM | Errno::ACCESS | Errno::NOSPC | Errno::USERS | Errno::NOSYS => anyhow!(
            "this system lets users create no user namespaces ({error}); run it as root, or see \
             `sysctl user.max_user_namespaces kernel.unprivileged_userns_clone \
             kernel.apparmor_restrict_unprivileged_userns`"
        ),
        error => anyhow::Error::new(error).context("cannot create a user namespace"),
    }
}
