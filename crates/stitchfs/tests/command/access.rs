//! Rights to read the file or directory of a store.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::mounted::Mounted;
use crate::place::Place;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn only_the_owner_can_read_a_new_store() {
    let place = Place::new();
    let made = place.run(&["mkfs", "--size", "16M", "a"]);
    assert_eq!(made.code(0).err(), "");
    assert_eq!(mode(&place.path("a")), 0o600);
}

#[test]
fn mkfs_warns_about_a_file_that_others_can_read() {
    let place = Place::new();
    let path = place.path("a");
    for (given, is_wide) in [(0o644, true), (0o620, true), (0o600, false), (0o711, false)] {
        fs::File::create(&path).unwrap();
        set_mode(&path, given);
        let made = place.run(&["mkfs", "--size", "16M", "a"]);
        assert_eq!(made.code(0).err().contains("chmod 0600"), is_wide);
        assert_eq!(mode(&path), given, "the owner decides");
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_mount_makes_files_for_the_owner_alone_and_warns_about_others() {
    let log = ["--log", "log", "-o", "large_files=external:16K"];
    let Some(mounted) = Mounted::new(&log) else {
        return;
    };
    fs::write(mounted.path("large"), vec![7; 1 << 20]).unwrap();
    let place = &mounted.place;
    mounted.umount();
    let mut files = vec![place.path("a.files")];
    while let Some(path) = files.pop() {
        let is_dir = path.is_dir();
        assert_eq!(mode(&path), if is_dir { 0o700 } else { 0o600 }, "{path:?}");
        if is_dir {
            let entries = fs::read_dir(&path).unwrap();
            files.extend(entries.map(|entry| entry.unwrap().path()));
        }
    }
    assert_eq!(mode(&place.path("a")), 0o600);
    assert_eq!(mode(&place.path("log")), 0o600);
    let mount = || place.run(&["mount", "-o", "transport=dev", "a", "mnt"]);
    assert_eq!(mount().code(0).err(), "");
    mounted.place.run(&["umount", "mnt"]).code(0);
    set_mode(&place.path("a"), 0o640);
    set_mode(&place.path("a.files"), 0o755);
    let warned = mount();
    warned.code(0).says("/a: insecure mode 0640");
    warned.says("/a.files: insecure mode 0755");
    place.run(&["umount", "mnt"]).code(0);
}
