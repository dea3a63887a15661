//! Tests of the real file system: rights, flags and attributes with a meaning.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use rustix::fs::{AtFlags, CWD, StatxFlags, XattrFlags};

use stitch_fs::FsOptions;
use stitch_fuse::SessionConfig;

use crate::fixture::{Mounted, run_as, wait_until};

/// Reads the mode as programs do that need nothing else.
fn mode(path: &Path) -> u32 {
    let stat = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::MODE).unwrap();
    u32::from(stat.stx_mode) & 0o7777
}

fn setid_file(mounted: &Mounted, name: &str) -> std::path::PathBuf {
    let path = mounted.path(name);
    fs::write(&path, vec![7; 10_000]).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
    assert_eq!(mode(&path), 0o6777);
    path
}

#[test]
fn a_file_that_strangers_change_loses_its_set_id_bits_at_once() {
    for config in with_and_without_mapped_ids() {
        if let Some(mounted) = Mounted::store_with(FsOptions::default(), &config) {
            expect_set_id_bits_cleared(&mounted);
        }
    }
}

fn with_and_without_mapped_ids() -> [SessionConfig; 2] {
    [false, true].map(|id_mapped_mounts| SessionConfig {
        id_mapped_mounts,
        ..SessionConfig::default()
    })
}

fn expect_set_id_bits_cleared(mounted: &Mounted) {
    let scripts = [
        "echo x >> \"$1\"",
        "truncate -s 5 \"$1\"",
        "fallocate -l 20000 \"$1\"",
        "dd if=/dev/zero of=\"$1\" bs=10 count=1 conv=notrunc",
    ];
    for (i, script) in scripts.iter().enumerate() {
        let path = setid_file(mounted, &format!("file-{i}"));
        assert!(run_as(65534, script, &path), "{script}");
        assert_eq!(mode(&path), 0o777, "{script}");
    }
    for script in [scripts[0], scripts[2]] {
        let path = setid_file(mounted, "root");
        assert!(run_as(0, script, &path));
        assert_eq!(mode(&path), 0o6777, "root may: {script}");
    }
}

#[test]
fn overwriting_by_strangers_costs_a_write() {
    let Some(mounted) = Mounted::store() else {
        return;
    };
    let path = mounted.path("file");
    fs::write(&path, vec![7; 10_000]).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let script = "for i in 1 2 3 4 5; do echo x; done > \"$1\"";
    let counts = mounted.requests_of(|| assert!(run_as(65534, script, &path)));
    let writes = counts.get(stitch_fuse::wire::opcode::Opcode::Write);
    assert_eq!(writes, 5, "{counts}");
    // The others read access lists, which strangers' rights depend on, and capabilities, once.
    let asked = counts.get(stitch_fuse::wire::opcode::Opcode::GetAttr);
    assert!(asked <= 1 && counts.total() <= 12, "{counts}");
}

#[test]
fn what_only_root_may_see_is_listed_for_root() {
    for config in with_and_without_mapped_ids() {
        if let Some(mounted) = Mounted::store_with(FsOptions::default(), &config) {
            expect_trusted_hidden(&mounted);
        }
    }
}

fn expect_trusted_hidden(mounted: &Mounted) {
    let path = mounted.path("file");
    fs::write(&path, b"").unwrap();
    for name in ["trusted.secret", "user.open"] {
        rustix::fs::setxattr(&path, name, b"x", XattrFlags::empty()).unwrap();
    }
    let mut list = [0; 100];
    let len = rustix::fs::listxattr(&path, &mut list[..]).unwrap();
    let list = String::from_utf8(list[..len].to_vec()).unwrap();
    assert!(
        list.contains("trusted.secret\0") && list.contains("user.open\0"),
        "{list:?}"
    );
    let script = "getfattr -d -m - \"$1\" | grep -q user.open && \
                  ! getfattr -d -m - \"$1\" | grep -q trusted";
    assert!(run_as(65534, script, &path));
}

#[test]
fn access_lists_are_enforced_and_inherited() {
    let Some(mounted) = Mounted::store() else {
        return;
    };
    let dir = mounted.path("dir");
    fs::create_dir(&dir).unwrap();
    let script = "setfacl -m u:65534:rwx \"$1\" && \
                  setfacl -d -m u:65534:rw,g::r,o::- \"$1\" && umask 022 && touch \"$1/new\"";
    assert!(run_as(0, script, &dir));
    assert_eq!(
        mode(&dir.join("new")),
        0o660,
        "by the default list, not the umask"
    );
    assert!(run_as(
        65534,
        "echo x >> \"$1/new\" && touch \"$1/mine\"",
        &dir
    ));
    assert!(!run_as(1001, "cat \"$1/new\"", &dir));
    assert!(run_as(0, "setfacl -m u:1001:r \"$1/new\"", &dir));
    assert!(
        run_as(1001, "cat \"$1/new\"", &dir),
        "a new list counts at once"
    );
    assert!(run_as(0, "chmod 600 \"$1/new\"", &dir));
    assert!(
        !run_as(1001, "cat \"$1/new\"", &dir),
        "the mask went with the mode"
    );
}

#[test]
fn flags_of_chattr_hold() {
    let Some(mounted) = Mounted::store() else {
        return;
    };
    let path = mounted.path("file");
    fs::write(&path, b"first\n").unwrap();
    let before = fs::metadata(&path).unwrap().ctime_nsec();
    assert!(run_as(
        0,
        "chattr +i \"$1\" && lsattr \"$1\" | grep -q '^----i'",
        &path
    ));
    assert_ne!(fs::metadata(&path).unwrap().ctime_nsec(), before);
    assert!(fs::write(&path, b"x").is_err());
    assert!(fs::remove_file(&path).is_err());
    assert!(run_as(
        0,
        "chattr -i +a \"$1\" && echo second >> \"$1\"",
        &path
    ));
    assert!(fs::write(&path, b"x").is_err());
    assert_eq!(fs::read(&path).unwrap(), b"first\nsecond\n");
    assert!(
        !run_as(0, "chattr +S \"$1\"", &path),
        "a flag without a meaning here"
    );
    assert!(run_as(0, "chattr -a \"$1\"", &path));
    fs::remove_file(&path).unwrap();
}

#[test]
fn handles_open_files_that_the_kernel_knows() {
    let Some(mounted) = Mounted::store() else {
        return;
    };
    fs::create_dir(mounted.path("d")).unwrap();
    let path = mounted.path("d/file");
    fs::write(&path, b"by its number").unwrap();
    let script = r"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [('size', ctypes.c_uint), ('kind', ctypes.c_int), ('bytes', ctypes.c_ubyte * 128)]
handle, mount = Handle(), ctypes.c_int()
handle.size = 128
path = sys.argv[1].encode()
assert libc.name_to_handle_at(-100, path, ctypes.byref(handle), ctypes.byref(mount), 0) == 0
root = os.open(os.path.dirname(os.path.dirname(sys.argv[1])), os.O_RDONLY)
fd = libc.open_by_handle_at(root, ctypes.byref(handle), os.O_RDONLY)
assert fd >= 0, ctypes.get_errno()
assert os.read(fd, 100) == b'by its number'
";
    let output = Command::new("python3")
        .args(["-c", script])
        .arg(&path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn space_of_removed_files_comes_back() {
    let Some(mounted) = Mounted::store() else {
        return;
    };
    let path = mounted.path("file");
    let engine = std::sync::Arc::clone(mounted.fs().engine());
    fs::write(&path, vec![7; 4 << 20]).unwrap();
    let chunks = |engine: &dyn stitch_kv::Engine| engine.space().free_bytes;
    let full = chunks(&*engine);
    fs::remove_file(&path).unwrap();
    wait_until("the space is free", || {
        chunks(&*engine) > full || full == u64::MAX
    });
    assert_eq!(mounted.inodes_used(), 1);
}
