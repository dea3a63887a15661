//! A mount without extended attributes: programs find none and the kernel asks for none, but
//! requests to the daemon still work.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use stitch_base::Ino;
use stitch_fs::{Caller, FsError, XattrMode};
use stitch_fuse::adapter::REMOVE_TREE_XATTR;
use stitch_fuse::{AdapterOptions, SessionConfig, Transport, TransportChoice, report};

use crate::fixture::{Mounted, REPORT, can_mount, run_as};
use crate::switch::Turned;

const CAPABILITY: &str = "security.capability";
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

fn mounted(xattrs: bool) -> Option<Mounted> {
    let served = AdapterOptions {
        xattrs,
        ..AdapterOptions::default()
    };
    Mounted::served(served, SessionConfig::default())
}

fn set(path: &Path, name: &str) -> Result<(), Errno> {
    rustix::fs::setxattr(path, name, b"value", XattrFlags::empty())
}

fn get(path: &Path, name: &str) -> Result<usize, Errno> {
    rustix::fs::getxattr(path, name, &mut [0u8; 64][..])
}

fn ino(path: &Path) -> Ino {
    Ino(fs::metadata(path).unwrap().ino())
}

/// An attribute as another mount of the store would have set it.
fn stored(mounted: &Mounted, path: &Path, name: &str, value: &[u8]) {
    let mode = XattrMode::Set;
    let set = mounted.fs().set_xattr(
        &Caller::ROOT,
        ino(path),
        name.as_bytes(),
        value,
        mode,
        false,
    );
    set.unwrap();
}

fn is_stored(mounted: &Mounted, path: &Path, name: &str) -> bool {
    match mounted
        .fs()
        .get_xattr(&Caller::ROOT, ino(path), name.as_bytes())
    {
        Ok(_) => true,
        Err(FsError::NoData) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Encodes an ACL of entries: tag, rights, and id.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&rights.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
    }
    out
}

/// An ACL by which the owner, user 65534 and the mask may read and write, and other users may do
/// nothing.
fn for_user_65534() -> Vec<u8> {
    let none = u32::MAX;
    list(&[
        (1, 6, none),
        (2, 6, 65534),
        (4, 0, none),
        (16, 6, none),
        (32, 0, none),
    ])
}

#[test]
fn programs_find_no_attributes() {
    let Some(mounted) = mounted(false) else {
        return;
    };
    let path = mounted.path("file");
    fs::write(&path, b"x").unwrap();
    stored(&mounted, &path, "user.stored", b"1");
    // First without, then with the kernel's cached knowledge.
    for _ in 0..2 {
        let refused = Err(Errno::OPNOTSUPP);
        assert_eq!(set(&path, "user.color"), refused);
        assert_eq!(set(&path, "user.stored"), refused);
        assert_eq!(get(&path, "user.stored"), Err(Errno::OPNOTSUPP));
        let listed = rustix::fs::listxattr(&path, &mut [0u8; 64][..]);
        assert_eq!(listed, Err(Errno::OPNOTSUPP));
        assert_eq!(rustix::fs::removexattr(&path, "user.stored"), refused);
    }
    assert!(is_stored(&mounted, &path, "user.stored"));
    // Of lists the kernel says that there is none, so that tools show the mode.
    stored(&mounted, &path, ACCESS, &for_user_65534());
    assert_eq!(get(&path, ACCESS), Err(Errno::NODATA));
    let new = rustix::fs::setxattr(&path, ACCESS, &for_user_65534(), XattrFlags::empty());
    assert_eq!(new, Err(Errno::OPNOTSUPP));
}

#[test]
fn requests_that_come_as_attributes_are_heard() {
    let Some(mounted) = mounted(false) else {
        return;
    };
    let root = mounted.path("");
    assert_eq!(set(&root, "user.color"), Err(Errno::OPNOTSUPP));
    // The daemon received it: this report takes no requests.
    assert_eq!(set(&root, "a.report"), Err(Errno::PERM));
    let tree = mounted.path("tree");
    fs::create_dir_all(tree.join("d")).unwrap();
    fs::write(tree.join("d/file"), b"x").unwrap();
    assert_eq!(set(&tree, REMOVE_TREE_XATTR), Ok(()));
    fs::remove_dir(&tree).unwrap();
    assert!(!tree.exists());
}

fn reports_come_by_ioctl(xattrs: bool, transport: Transport) {
    let served = AdapterOptions {
        xattrs,
        ..AdapterOptions::default()
    };
    let config = SessionConfig {
        transport: TransportChoice::Only(transport),
        ..SessionConfig::default()
    };
    let Some(mounted) = Mounted::served(served, config) else {
        return;
    };
    let dir = mounted.path("dir");
    fs::create_dir(&dir).unwrap();
    let by_attribute = match get(&mounted.path(""), "a.report") {
        Err(Errno::RANGE) => true,
        Err(Errno::OPNOTSUPP) => false,
        other => panic!("{other:?}"),
    };
    assert_eq!(by_attribute, xattrs);
    let root = File::open(mounted.path("")).unwrap();
    let of = |name| report::read(&root, name).map_err(|error| error.raw_os_error());
    assert!(of("a.report").unwrap() == REPORT, "all of it");
    let none = Err(Some(Errno::OPNOTSUPP.raw_os_error()));
    assert_eq!(of("a.repor"), none);
    assert_eq!(of("user.color"), none);
    let inside = report::read(File::open(&dir).unwrap(), "a.report");
    let errno = inside.unwrap_err().raw_os_error();
    assert_eq!(errno, Some(Errno::NOTTY.raw_os_error()));
}

#[test]
fn reports_come_by_ioctl_of_every_mount() {
    for xattrs in [true, false] {
        reports_come_by_ioctl(xattrs, Transport::Dev);
    }
    if !can_mount() {
        return;
    }
    let Some(_on) = Turned::to(true) else { return };
    for xattrs in [true, false] {
        reports_come_by_ioctl(xattrs, Transport::Uring);
    }
}

#[test]
fn access_lists_have_no_effect_and_are_kept() {
    for xattrs in [true, false] {
        let Some(mounted) = mounted(xattrs) else {
            return;
        };
        let path = mounted.path("file");
        fs::write(&path, b"x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        stored(&mounted, &path, ACCESS, &for_user_65534());
        let may_read = run_as(65534, "cat \"$1\"", &path);
        assert_eq!(may_read, xattrs, "by the list, not the mode");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o614)).unwrap();
        // The list's entry for this user is masked now; the mode lets others read.
        assert_eq!(run_as(65534, "cat \"$1\"", &path), !xattrs);
        assert!(is_stored(&mounted, &path, ACCESS));
    }
}

#[test]
fn default_lists_are_inherited_and_else_the_umask_counts() {
    let Some(mounted) = mounted(false) else {
        return;
    };
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    let dir = mounted.path("dir");
    fs::create_dir(&dir).unwrap();
    let script = "umask 027 && touch \"$1/file\" && mkdir \"$1/sub\"";
    assert!(run_as(0, script, &dir));
    assert_eq!(mode(&dir.join("file")), 0o640);
    assert_eq!(mode(&dir.join("sub")), 0o750);
    let with_list = mounted.path("with-list");
    fs::create_dir(&with_list).unwrap();
    stored(&mounted, &with_list, DEFAULT, &for_user_65534());
    assert!(run_as(0, script, &with_list));
    assert_eq!(mode(&with_list.join("file")), 0o660, "not the umask");
    assert!(is_stored(&mounted, &with_list.join("file"), ACCESS));
    assert!(is_stored(&mounted, &with_list.join("sub"), DEFAULT));
}

/// The kernel does not mention them, since it believes that there are none.
#[test]
fn a_change_of_a_file_takes_its_capabilities() {
    let Some(mounted) = mounted(false) else {
        return;
    };
    let scripts = [
        "echo x >> \"$1\"",
        "truncate -s 5 \"$1\"",
        "chown 7 \"$1\"",
        "fallocate -l 20000 \"$1\"",
        "dd if=/dev/zero of=\"$1\" bs=10 count=1 conv=notrunc",
    ];
    for (i, script) in scripts.iter().enumerate() {
        let path = mounted.path(&format!("file-{i}"));
        fs::write(&path, vec![7; 10_000]).unwrap();
        stored(&mounted, &path, CAPABILITY, b"1");
        assert!(run_as(0, "cat \"$1\" && chmod 755 \"$1\"", &path));
        assert!(is_stored(&mounted, &path, CAPABILITY));
        assert!(run_as(0, script, &path), "{script}");
        assert!(!is_stored(&mounted, &path, CAPABILITY), "{script}");
    }
}
