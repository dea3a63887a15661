//! The mount options of the kernel, and the users who can enter.

use crate::command::options::{AccessTimes, MountWords};
use anyhow::Result;
use std::ffi::OsString;
use std::path::Path;
use stitch_fuse::MountOptions;

/// Returns the options of the kernel for these words.
pub(super) fn mount_options(words: &MountWords, rights: Rights, store: &Path) -> MountOptions {
    let source = words.fs_name.clone().map(OsString::from);
    MountOptions {
        source: source.unwrap_or_else(|| store.into()),
        read_only: words.read_only,
        no_suid: words.no_suid,
        no_dev: words.no_dev,
        no_exec: words.no_exec,
        no_atime: words.access_times == AccessTimes::None,
        no_dir_atime: words.no_dir_atime,
        sync: words.sync,
        dir_sync: words.dir_sync,
        allow_other: rights.allow_other,
        default_permissions: rights.default_permissions,
        max_read: None,
    }
}

/// Rights in a mount: whether other users may enter it, and whether the kernel checks modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rights {
    allow_other: bool,
    pub(super) default_permissions: bool,
}

impl Rights {
    /// What the words say, and what is best where they say nothing: root alone may do everything,
    /// so the kernel need not ask for what modes are. A user's modes bind the user, too.
    pub(super) fn of(words: &MountWords) -> Result<Self> {
        Self::for_user(words, rustix::process::geteuid().is_root())
    }

    fn for_user(words: &MountWords, is_root: bool) -> Result<Self> {
        let allow_other = words.allow_other.unwrap_or(is_root);
        let is_roots_alone = is_root && !allow_other;
        let default_permissions = words.default_permissions.unwrap_or(!is_roots_alone);
        anyhow::ensure!(
            default_permissions || !allow_other,
            "nodefault_permissions lets all users who can enter do everything; give noallow_other \
             as well, so that only the user who mounts can enter"
        );
        Ok(Self {
            allow_other,
            default_permissions,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::options;

    fn rights(list: &str, is_root: bool) -> Result<(bool, bool)> {
        let words = MountWords::new(&options::parse(list).unwrap());
        let rights = Rights::for_user(&words, is_root)?;
        Ok((rights.allow_other, rights.default_permissions))
    }

    #[test]
    fn only_what_root_mounts_for_root_alone_does_without_checks() {
        let cases = [
            ("", true, (true, true)),
            ("noallow_other", true, (false, false)),
            ("noallow_other,default_permissions", true, (false, true)),
            ("", false, (false, true)),
            ("allow_other", false, (true, true)),
            ("nodefault_permissions", false, (false, false)),
        ];
        for (list, is_root, expected) in cases {
            assert_eq!(rights(list, is_root).unwrap(), expected, "{list} {is_root}");
        }
    }

    #[test]
    fn a_shared_mount_without_checks_is_refused() {
        for (list, is_root) in [
            ("nodefault_permissions", true),
            ("allow_other,nodefault_permissions", false),
        ] {
            let error = rights(list, is_root).unwrap_err().to_string();
            assert!(error.contains("noallow_other"), "{error}");
        }
    }
}
