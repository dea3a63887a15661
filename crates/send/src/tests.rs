//! Round trips of directories in a temporary one: complete, changed, damaged, resumed.

mod paths;

use crate::beneath::Root;
use crate::{
    ReceiveOptions, Received, SendError, SendId, SendToken, Sender, Sent, Side, Tree, TreeOptions,
    receive, token_of,
};
use rustix::fs::{AtFlags, FileType, Mode, Timespec, Timestamps, XattrFlags};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use stitch_format::send_stream::{SEND_HEAD_BYTES, SEND_HEADER_BYTES};

const LARGE: usize = 700_000;

/// A directory that is changed, and copies of it at moments.
struct Lab {
    dir: tempfile::TempDir,
    moments: u64,
}

/// A moment: what the tree was, with contents in a copy.
struct Moment {
    tree: Tree,
    number: u64,
    created: i64,
    copy: PathBuf,
}

impl Moment {
    fn side(&self) -> Side<'_> {
        Side {
            tree: &self.tree,
            name: b"moment",
            id: SendId::of(b"moment", 1, i64::try_from(self.number).unwrap()),
            created_ns: self.created,
            since_ns: self.created,
        }
    }
}

impl Lab {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let lab = Self { dir, moments: 0 };
        fs::create_dir(lab.path("top")).unwrap();
        fs::create_dir(lab.path("moments")).unwrap();
        lab
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn top(&self, name: &str) -> PathBuf {
        self.path("top").join(name)
    }

    /// Numbers are those of the directory, so they are the same in all moments.
    fn moment(&mut self) -> Moment {
        self.moments += 1;
        let copy = self.path(&format!("moments/{}", self.moments));
        let status = std::process::Command::new("cp")
            .args(["-a", "--sparse=always"])
            .args([&self.path("top"), &copy])
            .status();
        assert!(status.unwrap().success(), "cp");
        let mut tree = Tree::read(&self.path("top"), &TreeOptions::default()).unwrap();
        tree.root = Root::open(&copy).unwrap();
        // All is as recent as can be: contents are compared wherever that matters.
        let (number, created) = (self.moments, i64::MIN);
        Moment {
            tree,
            number,
            created,
            copy,
        }
    }
}

fn send(base: Option<&Moment>, moment: &Moment, rest: Option<&SendToken>) -> (Vec<u8>, Sent) {
    let mut out = Vec::new();
    let progress = &mut |_, _, _| {};
    let mut sender = Sender::new(base.map(Moment::side), moment.side(), progress).unwrap();
    let sent = sender.send(&mut out, rest).unwrap();
    assert_eq!(sent.bytes, out.len() as u64);
    (out, sent)
}

fn take(mut stream: &[u8], dir: &Path) -> Result<Received, SendError> {
    receive(
        &mut stream,
        dir,
        ReceiveOptions::default(),
        &mut |_, _, _| {},
    )
}

/// All that is kept of a file, but its number.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    mode: u32,
    owner: (u32, u32),
    links: u64,
    device: u64,
    modified: (i64, i64),
    content: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first of the names that it has.
    first: PathBuf,
}

fn seen(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut found = BTreeMap::new();
    let mut firsts = BTreeMap::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(path) = waiting.pop() {
        let full = if path.as_os_str().is_empty() {
            root.to_owned()
        } else {
            root.join(&path)
        };
        let metadata = full.symlink_metadata().unwrap();
        let mut content = Vec::new();
        if metadata.is_dir() {
            let mut names: Vec<_> = fs::read_dir(&full)
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .collect();
            names.sort();
            waiting.extend(names.iter().rev().map(|name| path.join(name)));
        } else if metadata.is_file() {
            content = fs::read(&full).unwrap();
        } else if metadata.is_symlink() {
            content = fs::read_link(&full).unwrap().into_os_string().into_vec();
        }
        let beneath = Root::open(root).unwrap();
        let xattrs = crate::xattrs::read(&beneath, path.as_os_str().as_bytes()).unwrap();
        let first = firsts
            .entry(metadata.ino())
            .or_insert_with(|| path.clone())
            .clone();
        let seen = Seen {
            mode: metadata.mode(),
            owner: (metadata.uid(), metadata.gid()),
            links: if metadata.is_dir() {
                0
            } else {
                metadata.nlink()
            },
            device: metadata.rdev(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            content,
            xattrs,
            first,
        };
        found.insert(path, seen);
    }
    found
}

#[track_caller]
fn assert_equal(copy: &Path, received: &Path) {
    let (expected, found) = (seen(copy), seen(received));
    let names: Vec<_> = expected.keys().collect();
    assert_eq!(found.keys().collect::<Vec<_>>(), names);
    for (path, expected) in &expected {
        assert!(
            found[path] == *expected,
            "{}: {:?}",
            path.display(),
            found[path].mode
        );
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn set_time(path: &Path, ns: i64) {
    let time = Timespec {
        tv_sec: 1_000_000_000,
        tv_nsec: ns,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, flags).unwrap();
}

fn node(path: &Path, kind: FileType, device: u64) {
    let mode = Mode::from_raw_mode(0o640);
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, device).unwrap();
}

/// A tree with everything that a stream carries.
fn grow(lab: &Lab) {
    for dir in ["a", "a/b", "a/b/c", "empty", "moved"] {
        fs::create_dir(lab.top(dir)).unwrap();
    }
    for index in 0..5 {
        fs::write(lab.top(&format!("a/f{index}")), format!("file {index}")).unwrap();
        fs::write(
            lab.top(&format!("moved/m{index}")),
            format!("moved {index}"),
        )
        .unwrap();
    }
    fs::write(lab.top("a/b/c/large"), vec![7; LARGE]).unwrap();
    fs::write(lab.top("none"), b"").unwrap();
    let strange = std::ffi::OsString::from_vec(b"odd\n\xff name".to_vec());
    fs::write(lab.path("top").join(strange), b"odd").unwrap();
    let sparse = File::create(lab.top("sparse")).unwrap();
    sparse.set_len(8 << 20).unwrap();
    sparse.write_all_at(&[1; 5000], 3 << 20).unwrap();
    symlink("../nowhere", lab.top("a/link")).unwrap();
    fs::hard_link(lab.top("a/f0"), lab.top("a/b/again")).unwrap();
    fs::hard_link(lab.top("a/f0"), lab.top("third")).unwrap();
    node(&lab.top("fifo"), FileType::Fifo, 0);
    node(&lab.top("socket"), FileType::Socket, 0);
    if is_root() {
        node(
            &lab.top("device"),
            FileType::CharacterDevice,
            rustix::fs::makedev(7, 300),
        );
        let name = "trusted.a";
        let value = &[0, 255];
        rustix::fs::setxattr(lab.top("a"), name, value, XattrFlags::empty()).unwrap();
        rustix::fs::chown(
            lab.top("a/f1"),
            Some(rustix::fs::Uid::from_raw(1234)),
            Some(rustix::fs::Gid::from_raw(4321)),
        )
        .unwrap();
    }
    let value = vec![b'x'; 1000];
    for path in ["a/f2", "a", ""] {
        rustix::fs::setxattr(lab.top(path), "user.note", &value, XattrFlags::empty()).unwrap();
    }
    fs::set_permissions(lab.top("a/f1"), fs::Permissions::from_mode(0o4755)).unwrap();
    fs::set_permissions(lab.top("a/f3"), fs::Permissions::from_mode(0o400)).unwrap();
    fs::set_permissions(lab.top("a/b/c"), fs::Permissions::from_mode(0o555)).unwrap();
    fs::set_permissions(lab.top("empty"), fs::Permissions::from_mode(0o1777)).unwrap();
    for path in ["a/f0", "a/link", "a/b", "fifo", "a", ""] {
        set_time(&lab.top(path), 123_456_789);
    }
}

/// Changes of all sorts.
fn change(lab: &Lab) {
    fs::write(lab.top("a/f2"), b"other").unwrap();
    rustix::fs::removexattr(lab.top("a/f2"), "user.note").unwrap();
    rustix::fs::setxattr(lab.top("a/f4"), "user.new", b"", XattrFlags::empty()).unwrap();
    fs::remove_file(lab.top("a/f3")).unwrap();
    fs::create_dir(lab.top("a/f3")).unwrap();
    fs::write(lab.top("a/f3/inside"), b"a directory now").unwrap();
    // Directories that change places, and one that goes into a new one.
    fs::rename(lab.top("empty"), lab.top("tmp")).unwrap();
    fs::rename(lab.top("moved"), lab.top("empty")).unwrap();
    fs::rename(lab.top("tmp"), lab.top("moved")).unwrap();
    fs::create_dir(lab.top("new")).unwrap();
    fs::rename(lab.top("empty/m1"), lab.top("new/m1")).unwrap();
    fs::rename(lab.top("a/b"), lab.top("new/b")).unwrap();
    // A file whose name another takes.
    fs::rename(lab.top("empty/m2"), lab.top("tmp")).unwrap();
    fs::rename(lab.top("empty/m3"), lab.top("empty/m2")).unwrap();
    fs::rename(lab.top("tmp"), lab.top("empty/m3")).unwrap();
    // Links: one less, one more, all anew.
    fs::remove_file(lab.top("third")).unwrap();
    fs::hard_link(lab.top("a/f4"), lab.top("new/f4")).unwrap();
    fs::rename(lab.top("a/f0"), lab.top("new/f0")).unwrap();
    fs::remove_file(lab.top("a/link")).unwrap();
    symlink("elsewhere", lab.top("a/link")).unwrap();
    fs::remove_file(lab.top("fifo")).unwrap();
    let large = fs::OpenOptions::new()
        .write(true)
        .open(lab.top("new/b/c/large"))
        .unwrap();
    large.write_all_at(b"changed", 300_000).unwrap();
    let sparse = fs::OpenOptions::new()
        .write(true)
        .open(lab.top("sparse"))
        .unwrap();
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&sparse, flags, 3 << 20, 8192).unwrap();
    sparse.set_len(9 << 20).unwrap();
    fs::set_permissions(lab.top("moved"), fs::Permissions::from_mode(0o700)).unwrap();
    set_time(&lab.top(""), 5);
}

/// Two moments with changes between them.
fn changed() -> (Lab, Moment, Moment) {
    let mut lab = Lab::new();
    grow(&lab);
    let old = lab.moment();
    change(&lab);
    let new = lab.moment();
    (lab, old, new)
}

#[test]
fn a_complete_stream_carries_everything() {
    let mut lab = Lab::new();
    grow(&lab);
    let moment = lab.moment();
    let (stream, sent) = send(None, &moment, None);
    let received = take(&stream, &lab.path("copy")).unwrap();
    assert_equal(&lab.path("top"), &lab.path("copy"));
    assert_eq!(
        (received.bytes, &received.name[..]),
        (sent.bytes, &b"moment"[..])
    );
    let blocks = fs::metadata(lab.path("copy/sparse")).unwrap().blocks();
    assert!(blocks * 512 < 1 << 20, "holes stay: {blocks} blocks");
    assert!(sent.content_bytes < 1 << 20, "holes are not sent: {sent:?}");
}

#[test]
fn an_incremental_stream_carries_changes_alone() {
    let (lab, old, new) = changed();
    let copy = lab.path("copy");
    take(&send(None, &old, None).0, &copy).unwrap();
    assert_equal(&old.copy, &copy);
    let (stream, sent) = send(Some(&old), &new, None);
    take(&stream, &copy).unwrap();
    assert_equal(&lab.path("top"), &copy);
    assert!(sent.content_bytes < 20_000, "changed pages alone: {sent:?}");
    // And back.
    take(&send(Some(&new), &old, None).0, &copy).unwrap();
    assert_equal(&old.copy, &copy);
}

#[test]
fn equal_snapshots_are_a_few_records() {
    let mut lab = Lab::new();
    grow(&lab);
    let (mut old, new) = (lab.moment(), lab.moment());
    // Nothing changed at the time of the snapshot.
    old.created = i64::MAX;
    let (stream, sent) = send(Some(&old), &new, None);
    assert_eq!(sent.steps, 2, "the barrier and the directory itself");
    assert!(stream.len() < 2000, "{} bytes", stream.len());
}

/// Offsets of all records of a stream, and of its end.
fn offsets(stream: &[u8]) -> Vec<usize> {
    let mut at = SEND_HEAD_BYTES;
    let mut offsets = Vec::new();
    while at < stream.len() {
        offsets.push(at);
        let len = u32::from_le_bytes(stream[at + 4..at + 8].try_into().unwrap());
        at += SEND_HEADER_BYTES + len as usize;
    }
    assert_eq!(at, stream.len(), "a whole stream");
    offsets
}

/// Goes on with the stream until it is whole. Returns the number of parts.
fn resumed(base: Option<&Moment>, moment: &Moment, cuts: usize, copy: &Path) -> usize {
    let mut token: Option<SendToken> = None;
    let mut parts = 0;
    loop {
        parts += 1;
        let (stream, _) = send(base, moment, token.as_ref());
        let offsets = offsets(&stream);
        // In the middle of the third record, or in the head of the last.
        let cut = offsets.get(cuts).map_or(stream.len(), |at| at + 10);
        match take(&stream[..cut.min(stream.len())], copy) {
            Ok(_) => return parts,
            Err(SendError::Interrupted { token: text, cause }) => {
                assert!(matches!(*cause, SendError::Truncated { .. }), "{cause}");
                let saved = token_of(copy).unwrap();
                assert_eq!(saved, Some(SendToken::decode(&text).unwrap()));
                assert_ne!(saved, token, "it got on");
                token = saved;
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn streams_that_end_early_are_resumed() {
    let (lab, old, new) = changed();
    let copy = lab.path("copy");
    let parts = resumed(None, &old, 9, &copy);
    assert!(parts > 5, "{parts} parts");
    assert_equal(&old.copy, &copy);
    let parts = resumed(Some(&old), &new, 9, &copy);
    assert!(parts > 5, "{parts} parts");
    assert_equal(&lab.path("top"), &copy);
    assert_eq!(token_of(&copy).unwrap(), None);
}

/// A crash leaves more than the state says: any part is applied again from the last state.
#[test]
fn parts_can_be_applied_again_from_an_older_state() {
    let (lab, old, new) = changed();
    let whole = send(Some(&old), &new, None).0;
    let offsets = offsets(&whole);
    let barrier = offsets.iter().position(|at| whole[*at] == 5).unwrap();
    let first = send(None, &old, None).0;
    for cut in (2..offsets.len()).step_by(3) {
        let copy = lab.path(&format!("copy{cut}"));
        take(&first, &copy).unwrap();
        // The state that is on the medium after a crash.
        let kept = if cut > barrier + 1 { barrier + 1 } else { 2 };
        let state = copy.join(".stitchfs-receive/state");
        take(&whole[..offsets[kept]], &copy).unwrap_err();
        let before = fs::read(&state).unwrap();
        let token = token_of(&copy).unwrap().unwrap();
        let rest = send(Some(&old), &new, Some(&token)).0;
        let more = self::offsets(&rest)[(cut - kept + 1).min(self::offsets(&rest).len() - 1)];
        take(&rest[..more], &copy).unwrap_err();
        fs::write(&state, before).unwrap();
        take(&rest, &copy).unwrap();
        assert_equal(&lab.path("top"), &copy);
    }
}

#[test]
fn damage_to_any_kind_of_record_is_found_and_the_rest_can_follow() {
    let (lab, old, new) = changed();
    let (first, second) = (send(None, &old, None).0, send(Some(&old), &new, None).0);
    let mut kinds = std::collections::BTreeSet::new();
    for (base, moment, stream) in [(None, &old, &first), (Some(&old), &new, &second)] {
        for at in offsets(stream) {
            if !kinds.insert(stream[at]) {
                continue;
            }
            let copy = lab.path(&format!("damaged{}", stream[at]));
            if base.is_some() {
                take(&first, &copy).unwrap();
            }
            let mut damaged = stream.clone();
            damaged[at + SEND_HEADER_BYTES - 1] ^= 4;
            let error = take(&damaged, &copy).unwrap_err();
            assert!(
                error.to_string().contains(&format!("at byte {at}")),
                "{error}"
            );
            let Some(token) = token_of(&copy).ok().flatten() else {
                assert_eq!(at, SEND_HEAD_BYTES, "before anything was done");
                continue;
            };
            take(&send(base, moment, Some(&token)).0, &copy).unwrap();
            assert_equal(&moment.copy, &copy);
        }
    }
    assert!(kinds.len() >= 17, "{kinds:?}");
}

fn refusal(stream: &[u8], dir: &Path) -> String {
    take(stream, dir).unwrap_err().to_string()
}

#[test]
fn streams_that_do_not_fit_are_refused_and_change_nothing() {
    let (lab, old, new) = changed();
    let (first, second) = (send(None, &old, None).0, send(Some(&old), &new, None).0);
    let copy = lab.path("copy");
    fs::create_dir(&copy).unwrap();
    let error = refusal(&second, &copy);
    assert!(error.contains("holds no snapshot"), "{error}");
    fs::write(copy.join("file"), b"mine").unwrap();
    let error = refusal(&first, &copy);
    assert!(error.contains("is not empty"), "{error}");
    assert_eq!(fs::read_dir(&copy).unwrap().count(), 1);
    fs::remove_file(copy.join("file")).unwrap();
    let mut newer = first.clone();
    newer[8] = 9;
    let error = refusal(&newer, &copy);
    assert!(
        error.contains("version 9") && error.contains('1'),
        "{error}"
    );
    assert!(refusal(b"ustar", &copy).contains("ends after"));
    assert!(refusal(&[7; 500], &copy).contains("magic"));
    assert_eq!(fs::read_dir(&copy).unwrap().count(), 0);
    take(&first, &copy).unwrap();
    take(&second, &copy).unwrap();
    let error = refusal(&second, &copy);
    assert!(error.contains("already"), "{error}");
    assert_equal(&lab.path("top"), &copy);
    assert!(refusal(&first, &copy).contains("is not empty"));
}

#[test]
fn another_stream_does_not_go_on_with_a_part() {
    let (lab, old, new) = changed();
    let (first, copy) = (send(None, &old, None).0, lab.path("copy"));
    take(&first[..first.len() / 2], &copy).unwrap_err();
    let error = refusal(&first, &copy);
    assert!(error.contains("send --resume"), "{error}");
    assert!(refusal(&send(None, &new, None).0, &copy).contains("send --resume"));
    let token = token_of(&copy).unwrap().unwrap();
    let progress = &mut |_, _, _| {};
    let mut sender = Sender::new(None, new.side(), progress).unwrap();
    let error = sender.send(&mut Vec::new(), Some(&token)).unwrap_err();
    assert!(error.to_string().contains("another snapshot"), "{error}");
    let rest = send(None, &old, Some(&token)).0;
    let error = refusal(&rest, &lab.path("copy2"));
    assert!(error.contains("No such file"), "{error}");
    take(&rest, &copy).unwrap();
    assert_equal(&old.copy, &copy);
}

#[test]
fn a_directory_that_was_changed_is_named() {
    let (lab, old, new) = changed();
    let copy = lab.path("copy");
    take(&send(None, &old, None).0, &copy).unwrap();
    fs::remove_file(copy.join("a/f3")).unwrap();
    let error = refusal(&send(Some(&old), &new, None).0, &copy);
    assert!(
        error.contains("a/f3") && error.contains("was changed"),
        "{error}"
    );
    fs::write(copy.join("a/f3"), b"").unwrap();
    let token = token_of(&copy).unwrap().unwrap();
    take(&send(Some(&old), &new, Some(&token)).0, &copy).unwrap();
    assert_equal(&lab.path("top"), &copy);
}

#[test]
fn paths_longer_than_a_call_takes_are_carried() {
    let lab = Lab::new();
    let name = "n".repeat(250);
    let mut dir: rustix::fd::OwnedFd = File::open(lab.path("top")).unwrap().into();
    for _ in 0..20 {
        rustix::fs::mkdirat(&dir, &*name, Mode::RWXU).unwrap();
        let flags = rustix::fs::OFlags::DIRECTORY;
        dir = rustix::fs::openat(&dir, &*name, flags, Mode::empty()).unwrap();
    }
    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
    let file = rustix::fs::openat(&dir, "deep", flags, Mode::RWXU).unwrap();
    File::from(file).write_all_at(b"found", 0).unwrap();
    let moment = Moment {
        tree: Tree::read(&lab.path("top"), &TreeOptions::default()).unwrap(),
        number: 1,
        created: 0,
        copy: lab.path("top"),
    };
    let copy = lab.path("copy");
    take(&send(None, &moment, None).0, &copy).unwrap();
    let path = [&*vec![&*name; 20].join("/"), "/deep"].concat();
    let file = Root::open(&copy)
        .unwrap()
        .open_file(path.as_bytes())
        .unwrap();
    let mut bytes = [0; 5];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 5);
    assert_eq!(&bytes, b"found");
}

#[test]
fn an_archive_is_extracted_as_it_was() {
    let mut lab = Lab::new();
    grow(&lab);
    let long = "l".repeat(150);
    fs::write(lab.top(&long), b"a long name").unwrap();
    symlink(&long, lab.top("long")).unwrap();
    fs::remove_file(lab.top("socket")).unwrap();
    set_time(&lab.top(""), 7);
    let moment = lab.moment();
    let mut archive = Vec::new();
    let exported = crate::export(&moment.tree, &mut archive, &mut |_, _| {}).unwrap();
    assert_eq!(exported.entries, moment.tree.count() as u64 + 1);
    assert!(
        archive.len() < 2 << 20,
        "holes stay: {} bytes",
        archive.len()
    );
    fs::write(lab.path("tar"), &archive).unwrap();
    fs::create_dir(lab.path("copy")).unwrap();
    let status = std::process::Command::new("tar")
        .args(["-xp", "--xattrs", "--xattrs-include=*", "--acls", "-f"])
        .args([&lab.path("tar"), Path::new("-C"), &lab.path("copy")])
        .status();
    assert!(status.unwrap().success(), "tar");
    assert_equal(&moment.copy, &lab.path("copy"));
}
