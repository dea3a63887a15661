//! Files and directories, through the kernel.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, XattrFlags};

use crate::fixture::{Mounted, on_both};

on_both! {
    what_is_written_is_read
    large_writes_come_in_pieces_of_a_mebibyte
    direct_reads_and_writes_work
    names_come_and_go
    rename_has_flags
    an_unlinked_file_lives_while_it_is_open
    a_file_without_a_name_can_get_one
    a_large_directory_is_listed_once_each
    modes_follow_the_umask_and_writes_clear_set_id_bits
    others_are_let_in_and_kept_out_by_mode
    a_file_that_its_maker_may_not_write_is_open_for_writing_once
    extended_attributes_are_kept
    ranges_are_allocated_sought_and_copied
    special_files_and_space_are_reported
}

fn names(path: &std::path::Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn what_is_written_is_read(mounted: &Mounted) {
    let path = mounted.path("file");
    fs::write(&path, b"hello").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"hello");
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b", world").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"hello, world");
    assert_eq!(fs::metadata(&path).unwrap().len(), 12);
    OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
}

fn large_writes_come_in_pieces_of_a_mebibyte(mounted: &Mounted) {
    let path = mounted.path("large");
    let data: Vec<u8> = (0..3_500_000u32).map(|i| (i % 251) as u8).collect();
    let counts = mounted.requests_of(|| fs::write(&path, &data).unwrap());
    assert_eq!(
        counts.get(stitch_fuse::wire::opcode::Opcode::Write),
        4,
        "{counts}"
    );
    fs::File::open(&path).unwrap().sync_all().unwrap();
    assert_eq!(fs::read(&path).unwrap(), data);
    let mut piece = [0; 100];
    File::open(&path)
        .unwrap()
        .read_exact_at(&mut piece, 3_000_001)
        .unwrap();
    assert_eq!(piece[..], data[3_000_001..3_000_101]);
}

fn direct_reads_and_writes_work(mounted: &Mounted) {
    let path = mounted.path("direct");
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::DIRECT;
    let fd = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600)).unwrap();
    assert_eq!(rustix::io::pwrite(&fd, &[7; 8192], 4096).unwrap(), 8192);
    let mut back = vec![1; 16384];
    assert_eq!(rustix::io::pread(&fd, &mut back[..], 0).unwrap(), 12288);
    assert!(back[..4096].iter().all(|&byte| byte == 0));
    assert!(back[4096..12288].iter().all(|&byte| byte == 7));
}

fn names_come_and_go(mounted: &Mounted) {
    let root = mounted.path("");
    fs::create_dir(mounted.path("d")).unwrap();
    fs::write(mounted.path("d/a"), b"a").unwrap();
    fs::hard_link(mounted.path("d/a"), mounted.path("b")).unwrap();
    assert_eq!(fs::metadata(mounted.path("b")).unwrap().nlink(), 2);
    symlink("d/a", mounted.path("s")).unwrap();
    assert_eq!(fs::read(mounted.path("s")).unwrap(), b"a");
    assert_eq!(names(&root), ["b", "d", "s"]);
    fs::rename(mounted.path("b"), mounted.path("d/c")).unwrap();
    assert_eq!(names(&mounted.path("d")), ["a", "c"]);
    let refused = fs::remove_dir(mounted.path("d")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENOTEMPTY));
    fs::remove_dir_all(mounted.path("d")).unwrap();
    fs::remove_file(mounted.path("s")).unwrap();
    assert_eq!(names(&root), Vec::<String>::new());
    crate::fixture::wait_until("inodes are forgotten", || mounted.inodes_used() == 1);
}

fn rename_has_flags(mounted: &Mounted) {
    let (a, b) = (mounted.path("a"), mounted.path("b"));
    fs::write(&a, b"a").unwrap();
    fs::write(&b, b"b").unwrap();
    let rename = |flags| rustix::fs::renameat_with(CWD, &a, CWD, &b, flags);
    assert_eq!(
        rename(RenameFlags::NOREPLACE),
        Err(rustix::io::Errno::EXIST)
    );
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(&a).unwrap(), b"b");
    assert_eq!(fs::read(&b).unwrap(), b"a");
}

fn an_unlinked_file_lives_while_it_is_open(mounted: &Mounted) {
    let path = mounted.path("gone");
    fs::write(&path, b"still here").unwrap();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    fs::remove_file(&path).unwrap();
    file.write_all_at(b"STILL", 0).unwrap();
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "STILL here");
    drop(file);
    crate::fixture::wait_until("the inode is forgotten", || mounted.inodes_used() == 1);
}

fn a_file_without_a_name_can_get_one(mounted: &Mounted) {
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let fd = rustix::fs::open(mounted.path(""), flags, Mode::from_raw_mode(0o640)).unwrap();
    rustix::io::write(&fd, b"from nowhere").unwrap();
    assert_eq!(names(&mounted.path("")), Vec::<String>::new());
    rustix::fs::linkat(&fd, "", CWD, mounted.path("here"), AtFlags::EMPTY_PATH).unwrap();
    assert_eq!(fs::read(mounted.path("here")).unwrap(), b"from nowhere");
}

fn a_large_directory_is_listed_once_each(mounted: &Mounted) {
    let expected: Vec<String> = (0..3000).map(|i| format!("file-{i:05}")).collect();
    for name in &expected {
        File::create(mounted.path(name)).unwrap();
    }
    assert_eq!(names(&mounted.path("")), expected);
    // Again, from the kernel's cache.
    assert_eq!(names(&mounted.path("")), expected);
}

fn modes_follow_the_umask_and_writes_clear_set_id_bits(mounted: &Mounted) {
    let path = mounted.path("suid");
    fs::write(&path, b"x").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o6755);
    std::os::unix::fs::chown(&path, Some(0), Some(1)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o755);
    let status = std::process::Command::new("sh")
        .args([
            "-c",
            "umask 027; touch \"$1/new\"; mkdir \"$1/newdir\"",
            "sh",
        ])
        .arg(mounted.path(""))
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(
        fs::metadata(mounted.path("new")).unwrap().mode() & 0o7777,
        0o640
    );
    assert_eq!(
        fs::metadata(mounted.path("newdir")).unwrap().mode() & 0o7777,
        0o750
    );
}

fn others_are_let_in_and_kept_out_by_mode(mounted: &Mounted) {
    fs::write(mounted.path("open"), b"x").unwrap();
    fs::write(mounted.path("shut"), b"x").unwrap();
    fs::set_permissions(mounted.path("shut"), fs::Permissions::from_mode(0o600)).unwrap();
    let can_read = |name| {
        let mut command = std::process::Command::new("cat");
        std::os::unix::process::CommandExt::uid(&mut command, 65534);
        let output = command.arg(mounted.path(name)).output().unwrap();
        output.status.success()
    };
    assert!(can_read("open"));
    assert!(!can_read("shut"));
}

fn a_file_that_its_maker_may_not_write_is_open_for_writing_once(mounted: &Mounted) {
    let dir = mounted.path("public");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = std::process::Command::new("sh");
    std::os::unix::process::CommandExt::uid(&mut command, 65534);
    let script = "umask 777; echo x > \"$1/f\" || exit 1; echo y > \"$1/f\" && exit 2; \
                  set -C; echo z > \"$1/g\" || exit 3; echo z > \"$1/g\" && exit 4; exit 0";
    let output = command
        .args(["-c", script, "sh"])
        .arg(&dir)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(fs::read(dir.join("f")).unwrap(), b"x\n");
    assert_eq!(fs::metadata(dir.join("f")).unwrap().mode() & 0o7777, 0);
}

fn extended_attributes_are_kept(mounted: &Mounted) {
    let path = mounted.path("file");
    fs::write(&path, b"").unwrap();
    rustix::fs::setxattr(&path, "user.color", b"green", XattrFlags::empty()).unwrap();
    let mut value = [0; 64];
    assert_eq!(
        rustix::fs::getxattr(&path, "user.color", &mut value[..]).unwrap(),
        5
    );
    assert_eq!(&value[..5], b"green");
    let mut short = [0; 3];
    let refused = rustix::fs::getxattr(&path, "user.color", &mut short[..]);
    assert_eq!(refused, Err(rustix::io::Errno::RANGE));
    assert_eq!(
        rustix::fs::listxattr(&path, &mut value[..]).unwrap(),
        "user.color\0".len()
    );
    rustix::fs::removexattr(&path, "user.color").unwrap();
    let missing = rustix::fs::getxattr(&path, "user.color", &mut value[..]);
    assert_eq!(missing, Err(rustix::io::Errno::NODATA));
}

fn ranges_are_allocated_sought_and_copied(mounted: &Mounted) {
    let (a, b) = (mounted.path("a"), mounted.path("b"));
    fs::write(&a, vec![9; 10_000]).unwrap();
    let source = File::open(&a).unwrap();
    let target = File::create(&b).unwrap();
    rustix::fs::fallocate(&target, rustix::fs::FallocateFlags::empty(), 0, 20_000).unwrap();
    assert_eq!(target.metadata().unwrap().len(), 20_000);
    let (mut from, mut to) = (1000, 5000);
    let copied =
        rustix::fs::copy_file_range(&source, Some(&mut from), &target, Some(&mut to), 4000);
    assert_eq!(copied, Ok(4000));
    let back = fs::read(&b).unwrap();
    assert_eq!(back.iter().filter(|&&byte| byte == 9).count(), 4000);
    assert_eq!(
        rustix::fs::seek(&source, rustix::fs::SeekFrom::Hole(0)),
        Ok(10_000)
    );
}

fn special_files_and_space_are_reported(mounted: &Mounted) {
    let device = rustix::fs::makedev(259, 70_000);
    let node = mounted.path("node");
    rustix::fs::mknodat(
        CWD,
        &node,
        rustix::fs::FileType::BlockDevice,
        Mode::from_raw_mode(0o600),
        device,
    )
    .unwrap();
    assert_eq!(fs::metadata(&node).unwrap().rdev(), device);
    let space = rustix::fs::statvfs(mounted.path("")).unwrap();
    assert_eq!(space.f_namemax, 255);
    assert!(space.f_bavail > 0 && space.f_bavail <= space.f_blocks);
    let born = fs::metadata(&node).unwrap().created().unwrap();
    assert!(born.elapsed().unwrap() < crate::memfs::SOON);
}
