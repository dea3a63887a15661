//! Long lists of extended attributes, and access lists in any order.

use std::fs;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::fixture::{Mounted, on_both};

on_both! {
    lists_of_names_are_read_up_to_the_kernels_limit
}

/// `XATTR_LIST_MAX`
const LIST_BYTES_MAX: usize = 65_536;

fn lists_of_names_are_read_up_to_the_kernels_limit(mounted: &Mounted) {
    let path = mounted.path("file");
    fs::write(&path, b"").unwrap();
    let mut len_bytes = 0;
    while len_bytes < LIST_BYTES_MAX {
        // Of 256 bytes with the zero behind it.
        let name = format!("user.{len_bytes:0250}");
        rustix::fs::setxattr(&path, name.as_str(), b"", XattrFlags::empty()).unwrap();
        len_bytes += 256;
        if len_bytes % 4096 == 0 {
            let mut list = vec![0; len_bytes];
            let listed = rustix::fs::listxattr(&path, &mut list[..]).unwrap();
            assert_eq!(listed, len_bytes);
            assert_eq!(
                list.iter().filter(|byte| **byte == 0).count(),
                len_bytes / 256
            );
            let short = rustix::fs::listxattr(&path, &mut list[1..]);
            assert_eq!(short, Err(Errno::RANGE));
        }
    }
    rustix::fs::setxattr(&path, "user.more", b"", XattrFlags::empty()).unwrap();
    let mut list = vec![0; LIST_BYTES_MAX];
    let more = rustix::fs::listxattr(&path, &mut list[..]);
    assert_eq!(more, Err(Errno::TOOBIG), "as on other file systems");
}

/// An access list with these named users.
fn access_list(users: impl Iterator<Item = u32>) -> Vec<u8> {
    let none = u32::MAX;
    let named = users.map(|user| (0x02_u16, 4_u16, user));
    let entries = [(0x01, 6, none)].into_iter().chain(named);
    let entries = entries.chain([(0x04, 4, none), (0x10, 4, none), (0x20, 4, none)]);
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(rights.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

#[test]
fn an_access_list_is_taken_with_named_entries_in_any_order_up_to_a_page() {
    let Some(mounted) = Mounted::store() else {
        return;
    };
    let path = mounted.path("file");
    fs::write(&path, b"").unwrap();
    let name = "system.posix_acl_access";
    let set = |list: &[u8]| rustix::fs::setxattr(&path, name, list, XattrFlags::empty());
    for users in [vec![3, 9], vec![9, 3], vec![9, 9]] {
        let list = access_list(users.iter().copied());
        set(&list).unwrap();
        let mut found = [0; 200];
        let len = rustix::fs::getxattr(&path, name, &mut found[..]).unwrap();
        assert_eq!(found[..len], list, "{users:?}");
    }
    // 4 bytes, and 8 for each entry, of which four are not named.
    set(&access_list(0..507)).unwrap();
    let long = set(&access_list(0..508));
    assert_eq!(
        long,
        Err(Errno::TOOBIG),
        "the kernel takes no more for FUSE"
    );
}
