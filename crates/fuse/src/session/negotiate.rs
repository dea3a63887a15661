//! The configuration of a session, and its negotiation with the kernel.

use crate::transport::idle_poll::IdlePollChoice;
use crate::transport::{Transport, TransportChoice};
use crate::wire::flags::InitFlags;
use crate::wire::init::{InitReply, InitRequest, MAJOR, MINOR, MINOR_MIN};

/// Page size in the protocol.
const PAGE_SIZE: usize = 4096;
/// Depth of stacked file systems. The kernel allows 2, including those on top of this mount. So
/// passthrough files must not be on a stacked file system, and one may be stacked on this mount.
const STACK_DEPTH_MAX: u32 = 1;

/// Configuration of a session. The defaults suit a file system that only this daemon changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    /// The transport.
    pub transport: TransportChoice,
    /// Number of worker threads with `/dev/fuse`.
    pub workers: usize,
    /// Most pages of a request (256 are 1 MiB).
    pub max_pages: u16,
    /// Most background requests of the kernel (read-ahead, write-back, RELEASE).
    pub max_background: u16,
    /// The kernel keeps written pages and sends them later.
    ///
    /// Off: a small new file costs its creation and a WRITE; on, a SETATTR for its times too.
    pub writeback_cache: bool,
    /// READDIRPLUS instead of READDIR.
    pub readdirplus: bool,
    /// READDIRPLUS only if the kernel expects it to be useful.
    pub readdirplus_auto: bool,
    /// The handler serves extended attributes. If off, it returns `ENOSYS` for reads of them, and
    /// [`Self::posix_acl`] is off too: ACLs are attributes.
    pub xattrs: bool,
    /// The kernel enforces the POSIX ACLs that the handler stores. This implies the kernel's
    /// permission checks, so it is not requested in a mount without `default_permissions`.
    pub posix_acl: bool,
    /// The handler keeps POSIX locks. If off, the kernel keeps them, which needs no request and is
    /// correct if only this kernel uses the files.
    pub remote_posix_locks: bool,
    /// The handler keeps flock locks. If off, the kernel does, as for POSIX locks.
    pub remote_flock: bool,
    /// LOOKUP of `.` and `..` is served, for file handles (NFS, `open_by_handle_at`).
    pub export_support: bool,
    /// OPEN carries `O_TRUNC`. Must be off for handlers that return `ENOSYS` for OPEN: the kernel
    /// would then not send it at all.
    pub atomic_truncate: bool,
    /// Idmapped mounts are allowed (needs `default_permissions`, Linux 6.12). The kernel then sends
    /// user and group only with creations, on every mount. For other requests they are read from
    /// the status of the calling thread, so this process must see the threads of all callers.
    pub id_mapped_mounts: bool,
    /// Another process holds the mount if this one dies. Requires `/dev/fuse`.
    pub held: bool,
    /// Idle processors poll between requests that follow each other.
    pub idle_poll: IdlePollChoice,
    /// Passthrough of files that the handler names. Not with [`Self::writeback_cache`] or
    /// [`Self::held`].
    pub passthrough: bool,
    /// The handler serves FLUSH and atomic writes of files. Not with [`Self::held`].
    pub atomic_writes: bool,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            transport: TransportChoice::Auto,
            workers: 2,
            max_pages: 256,
            max_background: 64,
            writeback_cache: false,
            readdirplus: true,
            readdirplus_auto: false,
            xattrs: true,
            posix_acl: true,
            remote_posix_locks: false,
            remote_flock: false,
            export_support: true,
            atomic_truncate: false,
            id_mapped_mounts: false,
            held: false,
            idle_poll: IdlePollChoice::default(),
            passthrough: false,
            atomic_writes: false,
        }
    }
}

impl SessionConfig {
    /// Most bytes of data in a request.
    #[must_use]
    pub fn data_max(&self) -> usize {
        usize::from(self.max_pages.max(1)) * PAGE_SIZE
    }

    fn wanted(&self, default_permissions: bool) -> InitFlags {
        // Without AUTO_INVAL_DATA, and with EXPLICIT_INVAL_DATA, cached pages are dropped only by
        // notices: every other change of a file sends one. ENOSYS for OPEN needs no flag from the
        // daemon.
        let always = InitFlags::ASYNC_READ
            | InitFlags::BIG_WRITES
            | InitFlags::DONT_MASK
            | InitFlags::HAS_IOCTL_DIR
            | InitFlags::PARALLEL_DIROPS
            | InitFlags::MAX_PAGES
            | InitFlags::CACHE_SYMLINKS
            | InitFlags::NO_OPEN_SUPPORT
            | InitFlags::NO_OPENDIR_SUPPORT
            | InitFlags::EXPLICIT_INVAL_DATA
            | InitFlags::HANDLE_KILLPRIV_V2
            | InitFlags::SETXATTR_EXT
            | InitFlags::INIT_EXT
            | InitFlags::CREATE_SUPP_GROUP
            | InitFlags::HAS_EXPIRE_ONLY
            | InitFlags::DIRECT_IO_ALLOW_MMAP;
        always
            .with(InitFlags::POSIX_LOCKS, self.remote_posix_locks)
            .with(InitFlags::FLOCK_LOCKS, self.remote_flock)
            .with(InitFlags::ATOMIC_O_TRUNC, self.atomic_truncate)
            .with(InitFlags::EXPORT_SUPPORT, self.export_support)
            .with(InitFlags::DO_READDIRPLUS, self.readdirplus)
            .with(
                InitFlags::READDIRPLUS_AUTO,
                self.readdirplus && self.readdirplus_auto,
            )
            .with(InitFlags::WRITEBACK_CACHE, self.writeback_cache)
            .with(
                InitFlags::OVER_IO_URING,
                self.transport != TransportChoice::Only(Transport::Dev),
            )
            .with(InitFlags::HAS_RESEND, self.held)
            .with(InitFlags::PASSTHROUGH, self.passthrough)
            .with(
                InitFlags::POSIX_ACL,
                self.posix_acl && self.xattrs && default_permissions,
            )
            .with(
                InitFlags::ALLOW_IDMAP,
                self.id_mapped_mounts && default_permissions,
            )
    }
}

/// The result of the negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Minor version of the protocol (the major is 7).
    pub minor: u32,
    /// Flags that both ends support.
    pub flags: InitFlags,
    /// Flags that the kernel offered.
    pub offered: InitFlags,
    /// Most bytes of a WRITE.
    pub max_write: u32,
    /// Most bytes of read-ahead.
    pub max_readahead: u32,
}

impl Negotiated {
    /// Reports whether SETXATTR has flags of its own.
    #[must_use]
    pub const fn setxattr_ext(&self) -> bool {
        self.flags.contains(InitFlags::SETXATTR_EXT)
    }

    /// Reports whether passthrough is on.
    #[must_use]
    pub const fn has_passthrough(&self) -> bool {
        self.flags.contains(InitFlags::PASSTHROUGH)
    }
}

/// Negotiates `config` with the kernel's offer. Returns `None` if its version is not supported.
#[must_use]
pub fn negotiate(
    config: &SessionConfig,
    default_permissions: bool,
    offer: &InitRequest,
) -> Option<(Negotiated, InitReply)> {
    if offer.major != MAJOR || offer.minor < MINOR_MIN {
        return None;
    }
    let minor = offer.minor.min(MINOR);
    let flags = config.wanted(default_permissions) & offer.flags;
    let max_write = if flags.contains(InitFlags::MAX_PAGES) {
        config.data_max()
    } else {
        // 32 pages are what a kernel without the flag sends.
        config.data_max().min(32 * PAGE_SIZE)
    };
    let max_write = u32::try_from(max_write).expect("at most 65535 pages");
    let reply = InitReply {
        minor,
        max_readahead: offer.max_readahead,
        flags,
        max_background: config.max_background,
        congestion_threshold: config.max_background / 4 * 3,
        max_write,
        time_gran: 1,
        max_pages: config.max_pages.max(1),
        max_stack_depth: if flags.contains(InitFlags::PASSTHROUGH) {
            STACK_DEPTH_MAX
        } else {
            0
        },
    };
    let negotiated = Negotiated {
        minor,
        flags,
        offered: offer.flags,
        max_write,
        max_readahead: offer.max_readahead,
    };
    Some((negotiated, reply))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: InitFlags = InitFlags(u64::MAX);

    fn offer(minor: u32, flags: InitFlags) -> InitRequest {
        InitRequest {
            major: MAJOR,
            minor,
            max_readahead: 131_072,
            flags,
        }
    }

    fn default_with(minor: u32, flags: InitFlags) -> (Negotiated, InitReply) {
        negotiate(&SessionConfig::default(), true, &offer(minor, flags)).unwrap()
    }

    #[test]
    fn only_what_is_offered_is_taken() {
        let offered = InitFlags::ASYNC_READ | InitFlags::MAX_PAGES;
        let (negotiated, reply) = default_with(31, offered);
        assert_eq!(negotiated.flags, offered);
        assert_eq!(reply.minor, 31);
        assert_eq!(reply.max_write, 1 << 20);
    }

    #[test]
    fn newer_kernels_get_our_version_and_older_ones_none() {
        let config = SessionConfig::default();
        assert_eq!(default_with(99, ALL).0.minor, MINOR);
        assert_eq!(negotiate(&config, true, &offer(30, ALL)), None);
        assert_eq!(
            negotiate(
                &config,
                true,
                &InitRequest {
                    major: 8,
                    ..offer(0, ALL)
                }
            ),
            None
        );
    }

    #[test]
    fn the_page_cache_is_ours_to_invalidate() {
        let (negotiated, _) = default_with(45, ALL);
        assert!(negotiated.flags.contains(InitFlags::EXPLICIT_INVAL_DATA));
        assert!(!negotiated.flags.contains(InitFlags::AUTO_INVAL_DATA));
        assert!(!negotiated.flags.contains(InitFlags::WRITEBACK_CACHE));
        assert!(!negotiated.flags.contains(InitFlags::ASYNC_DIO));
        assert!(!negotiated.flags.contains(InitFlags::POSIX_LOCKS));
        assert!(!negotiated.flags.contains(InitFlags::SECURITY_CTX));
    }

    #[test]
    fn the_ring_is_asked_for_unless_it_is_not_to_be() {
        let flag = InitFlags::OVER_IO_URING;
        assert!(default_with(45, ALL).0.flags.contains(flag));
        assert!(!default_with(45, ALL.without(flag)).0.flags.contains(flag));
        let config = SessionConfig {
            transport: TransportChoice::Only(Transport::Dev),
            ..SessionConfig::default()
        };
        let (negotiated, _) = negotiate(&config, true, &offer(45, ALL)).unwrap();
        assert!(!negotiated.flags.contains(flag));
    }

    #[test]
    fn other_files_are_read_by_the_kernel_only_when_asked() {
        let flag = InitFlags::PASSTHROUGH;
        let (negotiated, reply) = default_with(45, ALL);
        assert!(!negotiated.flags.contains(flag));
        assert_eq!(reply.max_stack_depth, 0);
        let config = SessionConfig {
            passthrough: true,
            ..SessionConfig::default()
        };
        let (negotiated, reply) = negotiate(&config, true, &offer(45, ALL)).unwrap();
        assert!(negotiated.flags.contains(flag));
        assert_eq!(reply.max_stack_depth, 1);
        let (_, reply) = negotiate(&config, true, &offer(45, ALL.without(flag))).unwrap();
        assert_eq!(reply.max_stack_depth, 0);
    }

    #[test]
    fn a_mount_without_permission_checks_takes_nothing_that_needs_them() {
        let config = SessionConfig {
            id_mapped_mounts: true,
            ..SessionConfig::default()
        };
        let (negotiated, _) = negotiate(&config, false, &offer(45, ALL)).unwrap();
        assert!(!negotiated.flags.contains(InitFlags::POSIX_ACL));
        assert!(!negotiated.flags.contains(InitFlags::ALLOW_IDMAP));
    }

    #[test]
    fn access_lists_are_enforced_where_there_are_attributes() {
        let flag = InitFlags::POSIX_ACL;
        assert!(default_with(45, ALL).0.flags.contains(flag));
        let config = SessionConfig {
            xattrs: false,
            ..SessionConfig::default()
        };
        let (negotiated, _) = negotiate(&config, true, &offer(45, ALL)).unwrap();
        assert!(!negotiated.flags.contains(flag));
    }

    #[test]
    fn kernels_without_max_pages_get_smaller_writes() {
        let (negotiated, _) = default_with(45, ALL.without(InitFlags::MAX_PAGES));
        assert_eq!(negotiated.max_write, 128 * 1024);
    }
}
