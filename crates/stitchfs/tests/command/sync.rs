//! `-o sync`, `-o dirsync` and `stitchfs sync`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::mounted::Mounted;
use crate::place::STITCHFS;

fn counter(mounted: &Mounted, name: &str) -> u64 {
    let stats = mounted.place.run(&["stats", "--json", "mnt"]);
    let counters = stats.code(0).json()["counters"].clone();
    counters[name].as_u64().unwrap_or(0)
}

type Operation = fn(&Path);

/// Every operation on names, each on its own, in an order in which it can be done.
const NAME_OPERATIONS: [(&str, Operation); 10] = [
    ("create", |dir| {
        drop(File::create(dir.join("file")).unwrap())
    }),
    ("mkdir", |dir| fs::create_dir(dir.join("dir")).unwrap()),
    ("symlink", |dir| symlink("file", dir.join("link")).unwrap()),
    ("mknod", |dir| {
        let kind = rustix::fs::FileType::Fifo;
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, dir.join("fifo"), kind, mode, 0).unwrap();
    }),
    ("link", |dir| {
        fs::hard_link(dir.join("file"), dir.join("hard")).unwrap();
    }),
    ("rename", |dir| {
        fs::rename(dir.join("file"), dir.join("moved")).unwrap();
    }),
    ("rename over", |dir| {
        fs::rename(dir.join("link"), dir.join("fifo")).unwrap();
    }),
    ("unlink", |dir| fs::remove_file(dir.join("hard")).unwrap()),
    ("rmdir", |dir| fs::remove_dir(dir.join("dir")).unwrap()),
    ("chmod", |dir| {
        let mode = fs::Permissions::from_mode(0o600);
        fs::set_permissions(dir.join("moved"), mode).unwrap();
    }),
];

#[test]
fn with_sync_and_dirsync_every_operation_on_names_is_durable() {
    for option in ["sync", "dirsync"] {
        // No sync of its own meanwhile.
        let options = format!("{option},commit=3600");
        let Some(mounted) = Mounted::new(&["-o", &options]) else {
            return;
        };
        let mnt = mounted.place.path("mnt");
        for (name, operation) in NAME_OPERATIONS {
            let before = counter(&mounted, "device.syncs");
            operation(&mnt);
            let after = counter(&mounted, "device.syncs");
            assert!(after > before, "{option}: {name}");
        }
        mounted.umount();
    }
}

#[test]
fn a_remount_with_sync_is_refused_where_the_daemon_does_not_sync() {
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    for option in ["remount,sync", "remount,dirsync"] {
        let remount = ["mount", "-o", option, "a", "mnt"];
        mounted.place.run(&remount).code(1).says("mount it again");
    }
    mounted.umount();
    mounted.mount(&["-o", "sync"]);
    let remount = ["mount", "-o", "remount,dirsync", "a", "mnt"];
    mounted.place.run(&remount).code(0);
    mounted.umount();
}

#[test]
fn sync_makes_names_contents_and_mapped_pages_durable() {
    let large = ["-o", "commit=3600,large_files=external"];
    let Some(mounted) = Mounted::new(&large) else {
        return;
    };
    let place = &mounted.place;
    fs::write(mounted.path("large"), vec![7; 2 << 20]).unwrap();
    fs::write(mounted.path("mapped"), vec![7; 8192]).unwrap();
    let script = "import mmap,sys; f=open(sys.argv[1],'r+b'); m=mmap.mmap(f.fileno(),0); \
                  f.close(); m[0:4]=b'new!'; print('written',flush=True); sys.stdin.read()";
    let mut program = Command::new("python3")
        .args(["-c", script])
        .arg(mounted.path("mapped"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut out = BufReader::new(program.stdout.take().unwrap());
    out.read_line(&mut said).unwrap();
    assert_eq!(said, "written\n");
    let before = ["device.syncs", "fuse.requests.write"].map(|name| counter(&mounted, name));
    place.run(&["sync", "mnt"]).code(0);
    let after = ["device.syncs", "fuse.requests.write"].map(|name| counter(&mounted, name));
    assert!(after[0] > before[0], "the device is synced");
    assert_eq!(after[1], before[1] + 1, "the mapped page is written");
    program.stdin.take().unwrap().flush().unwrap();
    assert!(program.wait().unwrap().success());
    place.run(&["sync", "a"]).code(0);
    mounted.umount();
    place.run(&["sync", "mnt"]).code(1).says("no StitchFS");
}

#[test]
fn sync_is_for_root_and_the_user_who_mounted_also_of_a_mount_to_be_read_only() {
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    let dir = mounted.place.path(".");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(STITCHFS);
    command
        .args(["sync", "mnt"])
        .current_dir(&dir)
        .uid(65534)
        .gid(65534);
    let refused = command.output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        said.contains("only root and the user who mounted"),
        "{refused:?}"
    );
    mounted.umount();
    mounted.mount(&["-o", "ro"]);
    mounted.place.run(&["sync", "mnt"]).code(0);
    mounted.umount();
}
