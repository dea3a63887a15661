//! Extended attributes and ACLs.

use crate::common::*;
use stitch_base::Ino;
use stitch_fs::{Caller, FileKind, FsError, FsResult, NewNode, SetAttr, XattrMode, access_mask};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

fn set(setup: &Setup, ino: Ino, name: &[u8], value: &[u8]) -> FsResult<()> {
    setup
        .fs
        .set_xattr(&SUPER, ino, name, value, XattrMode::Set, false)
}

fn get(setup: &Setup, ino: Ino, name: &[u8]) -> FsResult<Vec<u8>> {
    setup.fs.get_xattr(&SUPER, ino, name).map(Vec::from)
}

/// An ACL as the kernel writes it: tag, rights, id.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(rights.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

/// Owner rwx, user 1000 rw, group r, mask as given, others none.
fn named(mask: u16) -> Vec<u8> {
    let none = u32::MAX;
    acl(&[
        (1, 7, none),
        (2, 6, 1000),
        (4, 4, none),
        (0x10, mask, none),
        (0x20, 0, none),
    ])
}

#[test]
fn attributes_are_set_listed_and_removed() {
    let setup = setup();
    let file = setup.file(ROOT, "f");
    assert!(matches!(
        get(&setup, file.ino, b"user.a"),
        Err(FsError::NoData)
    ));
    set(&setup, file.ino, b"user.a", b"1").unwrap();
    set(&setup, file.ino, b"user.empty", b"").unwrap();
    set(&setup, file.ino, b"trusted.t", b"2").unwrap();
    set(&setup, file.ino, b"user.a", b"3").unwrap();
    let setup = setup.reopened();
    let file = setup.lookup(ROOT, "f").unwrap();
    assert_eq!(get(&setup, file.ino, b"user.a").unwrap(), b"3");
    assert_eq!(get(&setup, file.ino, b"user.empty").unwrap(), b"");
    let list = |caller| setup.fs.list_xattr(&caller, file.ino).unwrap();
    assert_eq!(list(SUPER), b"trusted.t\0user.a\0user.empty\0");
    assert_eq!(list(USER), b"user.a\0user.empty\0");
    setup.fs.remove_xattr(&SUPER, file.ino, b"user.a").unwrap();
    let again = setup.fs.remove_xattr(&SUPER, file.ino, b"user.a");
    assert!(matches!(again, Err(FsError::NoData)));
    setup.fs.unlink(&SUPER, at(ROOT, "f")).unwrap();
    assert_eq!(get(&setup, file.ino, b"trusted.t").unwrap(), b"2");
    setup.fs.forget(file.ino, 1);
    setup.fs.sync().unwrap();
    assert_eq!(setup.rows("xattr"), 0);
    setup.check();
}

#[test]
fn create_and_replace_look_first() {
    let setup = setup();
    let file = setup.file(ROOT, "f");
    let set = |mode| {
        setup
            .fs
            .set_xattr(&SUPER, file.ino, b"user.a", b"1", mode, false)
    };
    assert!(matches!(set(XattrMode::Replace), Err(FsError::NoData)));
    set(XattrMode::Create).unwrap();
    assert!(matches!(set(XattrMode::Create), Err(FsError::Exists)));
    set(XattrMode::Replace).unwrap();
}

#[test]
fn names_and_values_have_limits() {
    let setup = setup();
    let file = setup.file(ROOT, "f");
    let name = format!("user.{}", "n".repeat(250));
    set(&setup, file.ino, name.as_bytes(), &[1; 65_536]).unwrap();
    assert_eq!(get(&setup, file.ino, name.as_bytes()).unwrap(), [1; 65_536]);
    let long = format!("user.{}", "n".repeat(251));
    let refused = set(&setup, file.ino, long.as_bytes(), b"");
    assert!(matches!(refused, Err(FsError::TooBig)));
    let refused = set(&setup, file.ino, b"user.a", &[1; 65_537]);
    assert!(matches!(refused, Err(FsError::TooBig)));
    for unknown in [&b"other.a"[..], b"system.nfs4_acl", b"plain"] {
        let refused = set(&setup, file.ino, unknown, b"");
        assert!(matches!(refused, Err(FsError::Unsupported)));
    }
    assert!(matches!(
        set(&setup, file.ino, b"user.", b""),
        Err(FsError::Invalid(_))
    ));
}

#[test]
fn each_class_has_its_rules() {
    let setup = setup();
    let link = setup.fs.make_symlink(&SUPER, at(ROOT, "l"), b"t").unwrap();
    let fifo = setup
        .fs
        .make_node(&SUPER, at(ROOT, "p"), FileKind::Fifo, 0, &new(0o600))
        .unwrap();
    for ino in [link.ino, fifo.ino] {
        assert!(matches!(
            set(&setup, ino, b"user.a", b""),
            Err(FsError::Perm)
        ));
        set(&setup, ino, b"trusted.a", b"1").unwrap();
        set(&setup, ino, b"security.a", b"1").unwrap();
    }
    let mode = XattrMode::Set;
    let refused = setup
        .fs
        .set_xattr(&USER, fifo.ino, b"trusted.a", b"", mode, false);
    assert!(matches!(refused, Err(FsError::Perm)));
    let hidden = setup.fs.get_xattr(&USER, fifo.ino, b"trusted.a");
    assert!(matches!(hidden, Err(FsError::NoData)));
    assert!(matches!(
        set(&setup, link.ino, ACCESS, &named(6)),
        Err(FsError::Unsupported)
    ));
    assert!(matches!(
        set(&setup, fifo.ino, DEFAULT, &named(6)),
        Err(FsError::Access)
    ));
    assert!(matches!(
        set(&setup, fifo.ino, ACCESS, b"\x02\0\0\0junk"),
        Err(FsError::Invalid(_))
    ));
}

#[test]
fn an_access_acl_is_the_mode_and_more() {
    let setup = setup();
    let file = setup.file(ROOT, "f");
    set(&setup, file.ino, ACCESS, &named(6)).unwrap();
    assert_eq!(setup.attr(file.ino).perm, 0o760);
    let user = |mask| setup.fs.access(&USER, file.ino, mask).is_ok();
    assert!(user(access_mask::READ | access_mask::WRITE));
    let chmod = SetAttr {
        perm: Some(0o2740),
        ..SetAttr::default()
    };
    setup.fs.set_attr(&SUPER, file.ino, &chmod).unwrap();
    assert_eq!(get(&setup, file.ino, ACCESS).unwrap(), named(4));
    assert!(user(access_mask::READ) && !user(access_mask::WRITE));
    // A list that says no more than a mode is not stored.
    let none = u32::MAX;
    let minimal = acl(&[(1, 6, none), (4, 5, none), (0x20, 1, none)]);
    let mode = XattrMode::Set;
    setup
        .fs
        .set_xattr(&SUPER, file.ino, ACCESS, &minimal, mode, true)
        .unwrap();
    assert_eq!(setup.attr(file.ino).perm, 0o651);
    assert!(matches!(
        get(&setup, file.ino, ACCESS),
        Err(FsError::NoData)
    ));
    setup.fs.remove_xattr(&SUPER, file.ino, ACCESS).unwrap();
    assert_eq!(setup.rows("xattr"), 0);
    setup.check();
}

#[test]
fn a_default_acl_is_inherited() {
    let setup = setup();
    let dir = setup.dir(ROOT, "d");
    set(&setup, dir.ino, DEFAULT, &named(7)).unwrap();
    assert_eq!(setup.attr(dir.ino).perm, 0o755);
    let made = NewNode {
        perm: 0o664,
        umask: 0o077,
    };
    let file = setup.fs.create(&SUPER, at(dir.ino, "f"), &made).unwrap();
    assert_eq!(file.perm, 0o660);
    let expected = acl(&[
        (1, 6, u32::MAX),
        (2, 6, 1000),
        (4, 4, u32::MAX),
        (0x10, 6, u32::MAX),
        (0x20, 0, u32::MAX),
    ]);
    assert_eq!(get(&setup, file.ino, ACCESS).unwrap(), expected);
    assert!(matches!(
        get(&setup, file.ino, DEFAULT),
        Err(FsError::NoData)
    ));
    let sub = setup
        .fs
        .make_dir(&SUPER, at(dir.ino, "s"), &new(0o777))
        .unwrap();
    assert_eq!(get(&setup, sub.ino, DEFAULT).unwrap(), named(7));
    assert_eq!(get(&setup, sub.ino, ACCESS).unwrap(), named(7));
    let link = setup
        .fs
        .make_symlink(&SUPER, at(dir.ino, "l"), b"t")
        .unwrap();
    assert_eq!(link.perm, 0o777);
    let temp = setup.fs.make_temp_file(&SUPER, dir.ino, &made).unwrap();
    assert_eq!(
        (temp.perm, get(&setup, temp.ino, ACCESS).unwrap()),
        (0o660, expected)
    );
    setup.check();
    setup.fs.remove_xattr(&SUPER, dir.ino, DEFAULT).unwrap();
    let plain = setup.fs.create(&SUPER, at(dir.ino, "g"), &made).unwrap();
    assert_eq!(plain.perm, 0o600);
}

#[test]
fn a_default_acl_that_is_a_mode_replaces_the_umask() {
    let setup = setup();
    let dir = setup.dir(ROOT, "d");
    let none = u32::MAX;
    let minimal = acl(&[(1, 7, none), (4, 5, none), (0x20, 0, none)]);
    set(&setup, dir.ino, DEFAULT, &minimal).unwrap();
    let made = NewNode {
        perm: 0o666,
        umask: 0o777,
    };
    let file = setup.fs.create(&SUPER, at(dir.ino, "f"), &made).unwrap();
    assert_eq!(file.perm, 0o640);
    assert!(matches!(
        get(&setup, file.ino, ACCESS),
        Err(FsError::NoData)
    ));
}

#[test]
fn attributes_of_unlinked_files_stay_with_them() {
    let setup = setup();
    let temp = setup.fs.make_temp_file(&SUPER, ROOT, &new(0o600)).unwrap();
    setup.write(temp.ino, 0, b"abc");
    set(&setup, temp.ino, b"user.a", b"1").unwrap();
    assert_eq!(setup.contents(temp.ino), b"abc");
    setup.check();
    setup.fs.link(&SUPER, temp.ino, at(ROOT, "f")).unwrap();
    let setup = setup.reopened();
    let file = setup.lookup(ROOT, "f").unwrap();
    assert_eq!(get(&setup, file.ino, b"user.a").unwrap(), b"1");
    assert_eq!(setup.contents(file.ino), b"abc");
    let groups = Caller::default();
    assert!(groups.is_privileged());
}
