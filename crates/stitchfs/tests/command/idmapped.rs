//! Idmapped mounts of a mount, as container runtimes make them.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags};

use crate::mounted::{Mounted, wait_until};

/// User and group 0 of the store are this one in the idmapped mount, 1 the next one, and so on.
const FIRST: u32 = 100_000;
const COUNT: u32 = 65_536;

/// A second mount of `mnt`, at `mapped`, with other ids. Dropped, it is gone.
struct Mapped {
    mounted: Mounted,
    at: PathBuf,
}

impl Mapped {
    /// `None` where nothing can be mounted.
    fn new() -> Option<Self> {
        let mounted = Mounted::new(&[])?;
        let mode = fs::Permissions::from_mode(0o777);
        for dir in [".", "mnt"] {
            fs::set_permissions(mounted.place.path(dir), mode.clone()).unwrap();
        }
        let at = mounted.place.path("mapped");
        fs::create_dir(&at).unwrap();
        mount_mapped(&mounted.place.path("mnt"), &at).unwrap();
        Some(Self { mounted, at })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }

    /// Returns user and group as the store has them, and as the idmapped mount shows them.
    fn owners(&self, name: &str) -> [(u32, u32); 2] {
        [self.mounted.path(name), self.path(name)].map(|path| {
            let found = fs::symlink_metadata(path).unwrap();
            (found.uid(), found.gid())
        })
    }

    /// Runs a shell script in the idmapped mount as a user of the store.
    #[track_caller]
    fn run_as(&self, id: u32, script: &str) {
        let mut command = Command::new("sh");
        command.uid(FIRST + id).gid(FIRST + id);
        let ended = command.args(["-ec", script]).current_dir(&self.at).output();
        let ended = ended.unwrap();
        assert!(ended.status.success(), "{script}: {ended:?}");
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // A test that ended well has unmounted it.
        let _ = rustix::mount::unmount(&self.at, UnmountFlags::DETACH);
    }
}

/// A process in a user namespace with the ids of the mapping.
struct Namespace(Child);

impl Namespace {
    fn new() -> io::Result<Self> {
        let mut sleeper = Command::new("unshare");
        sleeper.args(["--user", "sleep", "60"]).stdin(Stdio::null());
        let made = Self(sleeper.spawn()?);
        let own = fs::read_link("/proc/self/ns/user")?;
        let has_own = || fs::read_link(made.path("ns/user")).is_ok_and(|other| other != own);
        assert!(wait_until(has_own), "the namespace is made");
        for map in ["uid_map", "gid_map"] {
            fs::write(made.path(map), format!("0 {FIRST} {COUNT}"))?;
        }
        Ok(made)
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.0.id()))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn mount_mapped(from: &Path, to: &Path) -> io::Result<()> {
    let namespace = Namespace::new()?;
    let users = File::open(namespace.path("ns/user"))?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = rustix::mount::open_tree(CWD, from, flags)?;
    map_ids(&tree, &users)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(rustix::mount::move_mount(
        tree.as_fd(),
        c"",
        CWD,
        to,
        flags,
    )?)
}

#[expect(unsafe_code, reason = "the call has no wrapper")]
fn map_ids(tree: &OwnedFd, users: &File) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: u64::try_from(users.as_raw_fd()).expect("a descriptor"),
    };
    let path: &CStr = c"";
    // SAFETY: the path ends with a zero, and the length is that of the structure.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            path.as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[test]
fn owners_are_seen_and_set_through_the_mapping() {
    let Some(mapped) = Mapped::new() else { return };
    fs::write(mapped.mounted.path("roots"), b"x").unwrap();
    assert_eq!(mapped.owners("roots"), [(0, 0), (FIRST, FIRST)]);
    chown(mapped.path("roots"), Some(FIRST + 7), Some(FIRST + 8)).unwrap();
    assert_eq!(mapped.owners("roots"), [(7, 8), (FIRST + 7, FIRST + 8)]);
    let outside = chown(mapped.path("roots"), Some(5), None).unwrap_err();
    assert_eq!(outside.raw_os_error(), Some(libc::EOVERFLOW));
}

#[test]
fn what_is_made_through_the_mapping_belongs_to_the_mapped_user() {
    let Some(mapped) = Mapped::new() else { return };
    mapped.run_as(
        7,
        "echo x > file; mkdir dir; ln -s file link; mkfifo fifo; ln file hard; cp file copy",
    );
    for name in ["file", "dir", "link", "fifo", "hard", "copy"] {
        assert_eq!(mapped.owners(name)[0], (7, 7), "{name}");
    }
    mapped.run_as(7, "mv file moved; rm hard copy; rmdir dir; chmod 600 moved");
    assert_eq!(mapped.owners("moved")[0], (7, 7));
    fs::create_dir(mapped.mounted.path("shared")).unwrap();
    chown(mapped.mounted.path("shared"), Some(0), Some(9)).unwrap();
    let shared = fs::Permissions::from_mode(0o2777);
    fs::set_permissions(mapped.mounted.path("shared"), shared).unwrap();
    mapped.run_as(7, "echo x > shared/file; mkdir shared/dir");
    for name in ["shared/file", "shared/dir"] {
        assert_eq!(mapped.owners(name)[0], (7, 9), "{name}");
    }
    // Root of this system has no id in the store.
    let outside = fs::write(mapped.path("root"), b"x").unwrap_err();
    assert_eq!(outside.raw_os_error(), Some(libc::EOVERFLOW));
}

#[test]
fn rights_and_access_lists_hold_through_the_mapping() {
    let Some(mapped) = Mapped::new() else { return };
    mapped.run_as(7, "umask 077; echo secret > file; mkdir dir");
    mapped.run_as(8, "! cat file; ! touch dir/new");
    mapped.run_as(
        7,
        &format!(
            "setfacl -m u:{}:r file; setfacl -d -m u:{}:rw dir; chmod 711 dir",
            FIRST + 8,
            FIRST + 8
        ),
    );
    mapped.run_as(
        8,
        "grep -q secret file; ! sh -c 'echo x >> file' 2>/dev/null",
    );
    mapped.run_as(7, "echo x > dir/new");
    for (name, entry) in [("file", "user:8:r--"), ("dir/new", "user:8:rw-")] {
        let mut getfacl = Command::new("getfacl");
        let shown = getfacl
            .arg("-n")
            .arg(mapped.mounted.path(name))
            .output()
            .unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        assert!(shown.contains(entry), "{name}: {shown}");
    }
    mapped.run_as(8, "echo y >> dir/new");
}

#[test]
fn the_command_works_where_ids_can_be_mapped() {
    let Some(mapped) = Mapped::new() else { return };
    let place = &mapped.mounted.place;
    mapped.run_as(7, "mkdir -p tree/below; echo x > tree/below/file");
    place.run(&["info", "mapped"]).code(0);
    place.run(&["rmtree", "mnt/tree"]).code(0);
    assert!(!mapped.path("tree").exists());
    rustix::mount::unmount(&mapped.at, UnmountFlags::empty()).unwrap();
    mapped.mounted.umount();
}
