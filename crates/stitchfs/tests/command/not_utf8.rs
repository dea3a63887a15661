//! Stores and mount points whose paths are no UTF-8.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use stitch_fuse::mount::{self, Unmount};

use crate::mounted::{can_mount, wait_until};
use crate::place::{Place, STITCHFS};

const BAD: &[u8] = b"b\xff,\\d";
const BAD_TEXT: &str = "b\\xff,\\d";

/// Runs the command, which ends well, in a place; its standard output.
#[track_caller]
fn run(place: &Place, args: &[&OsStr]) -> Vec<u8> {
    let mut command = Command::new(STITCHFS);
    let output = command.args(args).current_dir(place.path("")).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
    output.stdout
}

#[track_caller]
fn json_of(place: &Place, args: &[&OsStr]) -> Value {
    serde_json::from_slice(&run(place, args)).unwrap()
}

fn words<'a>(list: &'a str, paths: &[&'a OsStr]) -> Vec<&'a OsStr> {
    let words = list.split(' ').map(OsStr::new);
    words.chain(paths.iter().copied()).collect()
}

#[test]
fn results_show_such_a_path_escaped_and_as_bytes() {
    let place = Place::new();
    let bad = OsStr::from_bytes(BAD);
    let made = json_of(&place, &words("mkfs --json --size 16M", &[bad]));
    assert_eq!(
        (&made["path"], &made["path_raw"]),
        (&json!(BAD_TEXT), &json!(BAD))
    );
    let full = place.path("").canonicalize().unwrap().join(bad);
    for list in [
        "info --json",
        "instance list --json",
        "defrag --json",
        "fsck --json",
    ] {
        let shown = json_of(&place, &words(list, &[bad]));
        let store = shown["store"].as_str().unwrap();
        assert!(store.ends_with(BAD_TEXT), "{list}: {shown}");
        let raw = &shown["store_raw"];
        let expected = json!(full.as_os_str().as_bytes());
        assert!(raw.is_null() || *raw == expected, "{list}: {shown}");
    }
    let text = String::from_utf8(run(&place, &words("info", &[bad]))).unwrap();
    assert!(text.contains(BAD_TEXT) && !text.contains("_raw"), "{text}");
}

/// Unmounted when the test ends.
struct Mount<'a>(&'a Path);

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let _ = mount::unmount(self.0, Unmount::Lazy);
    }
}

#[test]
fn a_mount_with_such_paths_survives_its_daemon_and_an_upgrade() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let store = OsString::from_vec([BAD, b".st"].concat());
    let mnt = place.path("").canonicalize().unwrap();
    let mnt = mnt.join(OsStr::from_bytes(BAD));
    let mnt_arg = mnt.as_os_str();
    run(
        &place,
        &words("mount --create 64M -o restart", &[&store, mnt_arg]),
    );
    let _mount = Mount(&mnt);
    let entry = mount::mounted_at(&mnt).unwrap().unwrap();
    assert_eq!(
        Path::new(&entry.source).file_name(),
        Some(store.as_os_str())
    );
    fs::write(mnt.join("one"), b"1").unwrap();
    let info = json_of(&place, &words("info --json", &[mnt_arg]));
    assert_eq!(info["mounted_at_raw"], json!(mnt_arg.as_bytes()));
    run(&place, &words("upgrade", &[mnt_arg]));
    fs::write(mnt.join("two"), b"2").unwrap();
    let info = json_of(&place, &words("info --json", &[&store]));
    let pid = info["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    kill_process(Pid::from_raw(pid.unwrap()).unwrap(), Signal::KILL).unwrap();
    fs::write(mnt.join("three"), b"3").unwrap();
    let removed = words("rmtree --json", &[]);
    let tree = mnt.join("tree");
    fs::create_dir(&tree).unwrap();
    let removed = json_of(&place, &[&removed[..], &[tree.as_os_str()]].concat());
    let text = removed["removed"][0].as_str().unwrap();
    assert!(text.ends_with(&format!("{BAD_TEXT}/tree")), "{text}");
    run(&place, &words("umount", &[mnt_arg]));
    let mut fsck = Command::new(STITCHFS);
    fsck.args(words("fsck -n", &[&store]))
        .current_dir(place.path(""));
    assert!(wait_until(|| fsck.output().unwrap().status.success()));
}

/// Snapshots, clones, history and transactions of directories, and what they tell of files.
#[test]
fn commands_of_views_take_such_paths() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let mnt = place.path("").canonicalize().unwrap().join("mnt");
    let bad = OsStr::from_bytes(BAD);
    let mnt_arg = mnt.as_os_str();
    let store = OsStr::new("store");
    let options = "mount --create 64M -o history=1h,kv";
    run(&place, &words(options, &[store, mnt_arg]));
    let _mount = Mount(&mnt);
    let dir = mnt.join(bad);
    fs::create_dir(&dir).unwrap();
    let file = dir.join(bad);
    fs::write(&file, b"one").unwrap();
    let dir_arg = dir.as_os_str();
    let inner = [BAD, b"/", BAD].concat();

    let made = json_of(
        &place,
        &words("snapshot create --json", &[dir_arg, OsStr::new("s")]),
    );
    assert_eq!(made["path_raw"], json!(BAD), "{made}");
    fs::write(&file, b"two").unwrap();
    let snap = mnt.join(".stitchfs/snap/s");
    let changes = json_of(&place, &words("diff --json", &[snap.as_os_str()]));
    assert_eq!(changes["changes"][0]["path_raw"], json!(BAD), "{changes}");
    let listed = json_of(&place, &words("snapshot list --json", &[mnt_arg]));
    assert_eq!(listed["snapshots"][0]["path_raw"], json!(BAD), "{listed}");
    let rule = "snapshot create --every 1h --keep hourly=2 --json";
    let set = json_of(&place, &words(rule, &[dir_arg]));
    assert_eq!(set["dir_raw"], json!(dir_arg.as_bytes()), "{set}");
    let policies = json_of(&place, &words("snapshot policy list --json", &[mnt_arg]));
    assert_eq!(
        policies["policies"][0]["path_raw"],
        json!(BAD),
        "{policies}"
    );

    let clone = mnt.join(OsStr::from_bytes(b"clone\xff"));
    let clone_arg = clone.as_os_str();
    let made = json_of(&place, &words("clone --json", &[dir_arg, clone_arg]));
    assert_eq!(made["clone_raw"], json!(clone_arg.as_bytes()), "{made}");
    let usage = json_of(&place, &words("usage --json", &[mnt_arg]));
    let rows = usage["usage"][0]["rows"].as_array().unwrap();
    let has_path = rows.iter().any(|row| row["path_raw"] == json!(BAD));
    assert!(has_path, "{usage}");
    let gone = json_of(&place, &words("destroy --json", &[clone_arg]));
    assert_eq!(gone["destroyed_raw"], json!(clone_arg.as_bytes()), "{gone}");

    run(&place, &words("txn begin t", &[mnt_arg]));
    let other = mnt.join(".stitchfs/txn/t/root").join(bad).join(bad);
    fs::write(&other, b"three").unwrap();
    let differs = json_of(&place, &words("txn diff --json t", &[mnt_arg]));
    let path = &differs["changes"][0]["path_raw"];
    assert_eq!(*path, json!(inner), "{differs}");
    fs::write(&file, b"four").unwrap();
    let mut listed = Command::new(STITCHFS);
    listed.args(words("txn conflicts --json t", &[mnt_arg]));
    let listed = listed.output().unwrap();
    assert_eq!(listed.status.code(), Some(75), "a side is to be chosen");
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let path = &listed["conflicts"][0]["path_raw"];
    assert_eq!(*path, json!(inner), "{listed}");
    let path = OsStr::from_bytes(&inner);
    let resolved = words("txn resolve --ours --json t", &[path, mnt_arg]);
    let resolved = json_of(&place, &resolved);
    assert_eq!(resolved["path_raw"], json!(inner), "{resolved}");
    run(&place, &words("txn commit t", &[mnt_arg]));
    assert_eq!(fs::read(&file).unwrap(), b"three");

    let rolled = words("rollback --yes --json", &[snap.as_os_str(), dir_arg]);
    let rolled = json_of(&place, &rolled);
    assert_eq!(rolled["dir_raw"], json!(dir_arg.as_bytes()), "{rolled}");
    assert_eq!(fs::read(&file).unwrap(), b"one");
    let removed = json_of(&place, &words("rmtree --json", &[dir_arg]));
    assert_eq!(
        removed["removed_raw"],
        json!([dir_arg.as_bytes()]),
        "{removed}"
    );
    run(&place, &words("umount", &[mnt_arg]));
}
