//! The table of known inodes stays within its bound, and no program notices.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};

use stitch_fs::FsOptions;
use stitch_fuse::SessionConfig;

use crate::fixture::{Mounted, wait_until};

const KNOWN_MAX: usize = 1000;

fn small_table() -> Option<Mounted> {
    let options = FsOptions {
        inodes_max: KNOWN_MAX,
        ..FsOptions::default()
    };
    Mounted::store_with(options, &SessionConfig::default())
}

fn wait_until_bounded(mounted: &Mounted) {
    if mounted.session.negotiated().minor < 45 {
        // An older kernel is asked nothing.
        return;
    }
    wait_until("the kernel forgets", || {
        mounted.fs().known_inodes() <= KNOWN_MAX
    });
}

/// `dirs` directories with `files` empty files each.
fn make_tree(top: &Path, dirs: u32, files: u32) {
    for dir in 0..dirs {
        let dir = top.join(format!("dir-{dir}"));
        fs::create_dir(&dir).unwrap();
        for file in 0..files {
            File::create(dir.join(format!("file-{file}"))).unwrap();
        }
    }
}

fn count_tree(top: &Path, dirs: u32, files: u32) {
    for dir in 0..dirs {
        let dir = top.join(format!("dir-{dir}"));
        for file in 0..files {
            let path = dir.join(format!("file-{file}"));
            assert!(fs::metadata(&path).unwrap().is_file(), "{path:?}");
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), files as usize);
    }
}

#[test]
fn what_is_in_use_stays_when_the_kernel_is_asked_to_forget() {
    let Some(mounted) = small_table() else {
        return;
    };
    let (open, unlinked) = (mounted.path("open"), mounted.path("unlinked"));
    let file = File::options()
        .create_new(true)
        .read(true)
        .write(true)
        .open(&open)
        .unwrap();
    let gone = File::options()
        .create_new(true)
        .read(true)
        .write(true)
        .open(&unlinked)
        .unwrap();
    gone.write_all_at(&[9; 10_000], 0).unwrap();
    fs::remove_file(&unlinked).unwrap();
    let linked = mounted.path("linked");
    fs::write(&linked, b"two names").unwrap();
    fs::hard_link(&linked, mounted.path("other")).unwrap();
    let cwd = mounted.path("cwd");
    fs::create_dir(&cwd).unwrap();
    fs::write(cwd.join("here"), b"found").unwrap();
    let mut shell = Command::new("sh")
        .args(["-c", "read go; pwd; cat here; cat ../linked"])
        .current_dir(&cwd)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();

    make_tree(&mounted.path(""), 40, 200);
    wait_until_bounded(&mounted);
    count_tree(&mounted.path(""), 40, 200);
    wait_until_bounded(&mounted);

    drop(shell.stdin.take());
    let said = shell.wait_with_output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    assert_eq!(said, format!("{}\nfoundtwo names", cwd.display()));
    file.write_all_at(b"still here", 5).unwrap();
    assert_eq!(fs::read(&open).unwrap()[5..], *b"still here");
    let mut bytes = [0; 10];
    gone.read_exact_at(&mut bytes, 9_990).unwrap();
    assert_eq!((bytes, gone.metadata().unwrap().nlink()), ([9; 10], 0));
    assert_eq!(fs::metadata(&linked).unwrap().nlink(), 2);
    assert_eq!(fs::read(mounted.path("other")).unwrap(), b"two names");
}

#[test]
fn what_is_open_may_be_more_than_the_table_is_for() {
    let Some(mounted) = small_table() else {
        return;
    };
    let open: Vec<File> = (0..1500)
        .map(|i| File::create(mounted.path(&format!("open-{i}"))).unwrap())
        .collect();
    assert!(mounted.fs().known_inodes() > KNOWN_MAX);
    for (i, file) in open.iter().enumerate() {
        file.write_all_at(i.to_string().as_bytes(), 0).unwrap();
    }
    drop(open);
    // The next new name triggers another round, which finds them unused.
    make_tree(&mounted.path(""), 1, 10);
    wait_until_bounded(&mounted);
    for i in (0..1500).step_by(100) {
        let read = fs::read_to_string(mounted.path(&format!("open-{i}")));
        assert_eq!(read.unwrap(), i.to_string());
    }
}

#[test]
fn a_tree_of_directories_goes_from_its_leaves_up() {
    let Some(mounted) = small_table() else {
        return;
    };
    for i in 0..300 {
        let deep = mounted.path(&format!("{i}/a/b/c/d/e/f"));
        fs::create_dir_all(&deep).unwrap();
    }
    wait_until_bounded(&mounted);
    for i in 0..300 {
        assert!(mounted.path(&format!("{i}/a/b/c/d/e/f")).is_dir());
    }
    wait_until_bounded(&mounted);
}
