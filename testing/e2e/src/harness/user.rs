//! Acts as another user: the calling thread takes its ids for a while.

use std::process::Command;

use super::process::output;
use super::report::Skip;
use anyhow::{Context as _, Result};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// Ids of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// One further group.
    pub(crate) extra_gid: Option<u32>,
}

/// The user `nobody`.
pub(crate) const NOBODY: User = User {
    uid: 65534,
    gid: 65534,
    extra_gid: None,
};
/// A user without a name, who is in the group of `nobody` as well.
pub(crate) const OTHER: User = User {
    uid: 4242,
    gid: 4243,
    extra_gid: Some(65534),
};

/// Returns the words of setpriv(1) that run a command as an ordinary user who may create user
/// namespaces. Files of others belong to 65534 in such a namespace, so the user is another one.
///
/// # Errors
/// [`Skip`] if users may not create any here.
pub(crate) fn ordinary_user() -> Result<[&'static str; 5]> {
    let words = ["--reuid", "4242", "--regid", "4243", "--clear-groups"];
    let mut probe = Command::new("setpriv");
    probe
        .args(words)
        .args(["unshare", "--user", "--mount", "true"]);
    match output(&mut probe)?.status.success() {
        true => Ok(words),
        false => Err(Skip("users may not create user namespaces here".to_owned()).into()),
    }
}

/// Runs `body` as `user`, then becomes root again.
pub(crate) fn acting_as<T>(user: Option<User>, body: impl FnOnce() -> T) -> Result<T> {
    let Some(user) = user else { return Ok(body()) };
    let guard = Guard::new(user)?;
    let result = body();
    drop(guard);
    Ok(result)
}

/// Root again when dropped, also by a panic.
struct Guard;

impl Guard {
    fn new(user: User) -> Result<Self> {
        let groups: Vec<Gid> = user.extra_gid.map(Gid::from_raw).into_iter().collect();
        set_thread_groups(&groups).context("setgroups")?;
        let guard = Self;
        set_thread_res_gid(Gid::ROOT, Gid::from_raw(user.gid), Gid::ROOT).context("setresgid")?;
        // The effective id takes the file-system id and the capabilities along.
        set_thread_res_uid(Uid::ROOT, Uid::from_raw(user.uid), Uid::ROOT).context("setresuid")?;
        Ok(guard)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).expect("the saved id is root's");
        set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT).expect("root may take any group");
        set_thread_groups(&[]).expect("root may leave any group");
    }
}
