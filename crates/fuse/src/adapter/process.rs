//! The process that sent a request, as `/proc/PID/status` shows it.
//!
//! A request names one user, one group and a thread. The rest is read from the thread's status
//! while it waits for the reply: its other groups, its capabilities, and, with idmapped mounts,
//! also user and group, which only creations carry then.

use crate::handler::{Caller, Context};

/// `FUSE_INVALID_UIDGID`: the request does not carry the id.
const NOT_SENT: u32 = u32::MAX;
const CAP_SYS_ADMIN: u32 = 21;

/// The sender of a request.
pub(super) struct Process {
    caller: Caller,
    status: Option<String>,
}

impl Process {
    /// Reads the status of a request's sender. It has none if the sender has ended, or is in a pid
    /// namespace that this process cannot see.
    pub(super) fn of(context: &Context<'_>) -> Self {
        let caller = context.caller;
        let status = std::fs::read_to_string(format!("/proc/{}/status", caller.pid)).ok();
        Self { caller, status }
    }

    /// Returns the user whose rights apply to files; `None` if unknown.
    pub(super) fn uid(&self) -> Option<u32> {
        match self.caller.uid {
            NOT_SENT => self.number("Uid:", 3),
            uid => Some(uid),
        }
    }

    /// Returns the first group whose rights apply to files; `None` if unknown.
    pub(super) fn gid(&self) -> Option<u32> {
        match self.caller.gid {
            NOT_SENT => self.number("Gid:", 3),
            gid => Some(gid),
        }
    }

    /// Reports whether the sender is in a group. Without a status, the sender counts as a member of
    /// its first group only.
    pub(super) fn is_in_group(&self, gid: u32) -> bool {
        let mut others = self.words("Groups:");
        self.gid() == Some(gid) || others.any(|word| word.parse() == Ok(gid))
    }

    /// Returns the number of the sender's process: a request names a thread of it. `None` if it
    /// cannot be seen from here.
    pub(super) fn id(&self) -> Option<u32> {
        self.number("Tgid:", 0)
    }

    /// Reports whether the sender is root with `CAP_SYS_ADMIN`.
    pub(super) fn is_admin(&self) -> bool {
        let effective = self.words("CapEff:").next();
        let effective = effective.and_then(|word| u64::from_str_radix(word, 16).ok());
        self.uid() == Some(0) && effective.is_some_and(|bits| bits >> CAP_SYS_ADMIN & 1 == 1)
    }

    fn number(&self, field: &str, index: usize) -> Option<u32> {
        self.words(field).nth(index)?.parse().ok()
    }

    fn words(&self, field: &str) -> impl Iterator<Item = &str> {
        let status = self.status.as_deref().unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        line.unwrap_or_default().split_ascii_whitespace()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tcat\nTgid:\t9\nUid:\t1\t2\t3\t1000\nGid:\t4\t5\t6\t100\n\
                          Groups:\t4 24 1000 \nNStgid:\t5\nCapEff:\t000001ffffffffff\n";

    fn process(uid: u32, status: Option<&str>) -> Process {
        let caller = Caller {
            uid,
            gid: uid,
            pid: 7,
        };
        Process {
            caller,
            status: status.map(str::to_owned),
        }
    }

    #[test]
    fn user_and_groups_come_from_the_request_or_the_status() {
        let sent = process(33, Some(STATUS));
        assert_eq!((sent.uid(), sent.gid()), (Some(33), Some(33)));
        assert!(sent.is_in_group(33) && sent.is_in_group(24) && !sent.is_in_group(100));
        let read = process(NOT_SENT, Some(STATUS));
        assert_eq!((read.uid(), read.gid()), (Some(1000), Some(100)));
        assert!(read.is_in_group(100) && !read.is_in_group(33));
        assert_eq!((read.id(), process(33, None).id()), (Some(9), None));
    }

    #[test]
    fn a_sender_without_a_status_is_in_no_group_but_its_own() {
        let sent = process(33, None);
        assert!(sent.is_in_group(33) && !sent.is_in_group(24));
        let unknown = process(NOT_SENT, None);
        assert_eq!((unknown.uid(), unknown.gid()), (None, None));
        assert!(!unknown.is_in_group(NOT_SENT));
    }

    #[test]
    fn an_admin_is_root_and_has_the_capability() {
        assert!(process(0, Some(STATUS)).is_admin());
        assert!(!process(1, Some(STATUS)).is_admin());
        assert!(!process(NOT_SENT, Some(STATUS)).is_admin());
        assert!(!process(0, Some("CapEff:\t00000000a80425fb\n")).is_admin());
        assert!(!process(0, None).is_admin());
    }
}
