//! Commands that are started under odd limits, masks, signals and descriptors.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use stitch_base::clock::{Clock, SystemClock};
use stitch_fuse::mount::{self, Unmount};

use crate::mounted::{Mounted, can_mount, wait_until};
use crate::place::{Ended, Place, STITCHFS};

const FILE_LIMIT: &str = "RLIMIT_FSIZE";

/// Runs the command by another program, for at most 20 seconds.
fn run_by(place: &Place, program: &[&str], args: &[&str]) -> Ended {
    let all = [&["20"], program, &[STITCHFS], args].concat();
    place.run_as(Path::new("timeout"), &all)
}

/// A mount in the foreground. Dropped, it is gone.
struct Foreground {
    place: Place,
    child: Child,
}

impl Foreground {
    /// Starts it by another program; `None` where nothing can be mounted.
    fn start(program: &[&str]) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let place = Place::with_store("a");
        fs::create_dir(place.path("mnt")).unwrap();
        let child = Command::new(program[0])
            .args(&program[1..])
            .args([STITCHFS, "mount", "--foreground", "a", "mnt"])
            .current_dir(place.path(""))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let started = Self { place, child };
        let mnt = started.place.path("mnt");
        assert!(wait_until(|| {
            mount::mounted_at(&mnt).is_ok_and(|entry| entry.is_some()) && fs::read_dir(&mnt).is_ok()
        }));
        Some(started)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn has_ended(&mut self) -> bool {
        wait_until(|| self.child.try_wait().unwrap().is_some())
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        // Most tests have unmounted already.
        let _ = mount::unmount(&self.place.path("mnt"), Unmount::Lazy);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_store_longer_than_files_may_be_is_refused_with_the_limit() {
    let place = Place::with_store("a");
    fs::create_dir(place.path("mnt")).unwrap();
    let limit = ["prlimit", "--fsize=8388608"];
    let mount = ["mount", "-o", "transport=dev", "a", "mnt"];
    for (args, code) in [
        (&["mkfs", "--size", "16M", "b"][..], 1),
        (&["mount", "--create", "16M", "b", "mnt"], 1),
        (&mount, 1),
        (&["fsck", "-y", "a"], 8),
    ] {
        run_by(&place, &limit, args).code(code).says(FILE_LIMIT);
    }
    assert!(!place.path("b").exists());
    run_by(&place, &limit, &["fsck", "-n", "a"]).code(0);
    let limit = ["prlimit", "--fsize=16777216"];
    let grown = run_by(&place, &limit, &["grow", "a", "32M"]);
    grown.code(1).says(FILE_LIMIT);
    place.run(&["fsck", "-n", "a"]).code(0);
}

#[test]
fn mount_8_gets_its_exit_code_for_a_limit() {
    let place = Place::with_store("a");
    let helper = place.named("mount.stitchfs");
    let helper = helper.to_str().unwrap();
    let args = ["--fsize=8388608", helper, "a", "mnt"];
    let ended = place.run_as(Path::new("prlimit"), &args);
    ended.code(32).says(FILE_LIMIT);
}

#[test]
fn soft_limits_do_not_bind_a_daemon() {
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    mounted.umount();
    let limits = [
        "--fsize=1048576:",
        "--nofile=10:",
        "--cpu=1:",
        "--as=200000000:",
    ];
    mounted.mount_by(&[&["prlimit"], &limits[..]].concat(), &[]);
    let content: Vec<u8> = (0..8 << 20).map(|n: u32| n.to_le_bytes()[2]).collect();
    fs::write(mounted.path("file"), &content).unwrap();
    assert!(fs::read(mounted.path("file")).unwrap() == content);
    let text = fs::read_to_string(format!("/proc/{}/limits", mounted.pid())).unwrap();
    for name in [
        "Max file size",
        "Max open files",
        "Max cpu time",
        "Max address space",
    ] {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        let values: Vec<_> = line[name.len()..].split_whitespace().take(2).collect();
        assert_eq!(values[0], values[1], "{line}");
    }
    mounted.umount();
}

#[test]
fn too_few_open_files_are_refused_and_few_are_enough() {
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    mounted.umount();
    let mount = ["mount", "a", "mnt"];
    let refused = run_by(&mounted.place, &["prlimit", "--nofile=10"], &mount);
    refused.code(1).says("ulimit -n");
    assert!(!mounted.is_mounted());
    for options in ["transport=dev", "transport=dev,restart"] {
        let options = format!("{options},large_files=external:16K");
        mounted.mount_by(&["prlimit", "--nofile=24"], &["-o", &options]);
        for number in 0..30 {
            fs::write(mounted.path(&number.to_string()), vec![number; 40 << 10]).unwrap();
        }
        for number in 0..30 {
            let read = fs::read(mounted.path(&number.to_string())).unwrap();
            assert!(read == vec![number; 40 << 10], "{number}");
        }
        mounted.umount();
    }
}

#[test]
fn too_small_a_stack_is_refused_and_a_small_one_is_enough() {
    let place = Place::new();
    let made = ["mkfs", "--size", "16M", "a"];
    let refused = run_by(&place, &["prlimit", "--stack=131072"], &made);
    refused.code(1).says("ulimit -s");
    assert!(!place.path("a").exists());
    // What is soft is raised.
    run_by(&place, &["prlimit", "--stack=131072:8388608"], &made).code(0);
    let checked = run_by(&place, &["prlimit", "--stack=131072"], &["fsck", "a"]);
    checked.code(8).says("ulimit -s");
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    mounted.umount();
    mounted.mount_by(&["prlimit", "--stack=524288"], &["-o", "transport=dev"]);
    fs::write(mounted.path("file"), b"contents").unwrap();
    mounted.umount();
}

#[test]
fn a_mask_takes_no_right_from_the_owner() {
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    mounted.umount();
    fs::remove_file(mounted.place.path("a")).unwrap();
    let shell = ["sh", "-c", "umask 777; exec \"$0\" \"$@\""];
    let options = [
        "--create",
        "64M",
        "--log",
        "log",
        "-o",
        "large_files=external:16K",
    ];
    mounted.mount_by(&shell, &options);
    fs::write(mounted.path("large"), vec![7; 1 << 20]).unwrap();
    let root = fs::metadata(mounted.path("")).unwrap();
    assert_eq!(root.permissions().mode() & 0o7777, 0o755);
    mounted.umount();
    for (name, expected) in [("a", 0o600), ("log", 0o600), ("a.files", 0o700)] {
        let mode = fs::metadata(mounted.place.path(name)).unwrap();
        assert_eq!(mode.permissions().mode() & 0o7777, expected, "{name}");
    }
}

#[test]
fn signals_that_were_blocked_or_ignored_end_a_mount() {
    for state in ["--block-signal=TERM", "--ignore-signal=TERM,INT"] {
        let Some(mut mounted) = Foreground::start(&["env", state]) else {
            return;
        };
        mounted.signal(Signal::TERM);
        assert!(mounted.has_ended(), "{state}");
        mounted.place.run(&["fsck", "-n", "a"]).code(0);
    }
}

#[test]
fn nohup_keeps_a_mount_in_the_foreground() {
    let Some(mut mounted) = Foreground::start(&["env", "--ignore-signal=HUP"]) else {
        return;
    };
    mounted.signal(Signal::HUP);
    SystemClock::default().sleep(Duration::from_millis(300));
    assert!(mounted.child.try_wait().unwrap().is_none());
    fs::write(mounted.place.path("mnt").join("file"), b"kept").unwrap();
    mounted.signal(Signal::TERM);
    assert!(mounted.has_ended());
}

#[test]
fn a_failure_in_the_background_is_told_where_children_are_ignored() {
    let place = Place::new();
    let state = ["env", "--ignore-signal=CHLD"];
    let ended = run_by(&place, &state, &["mount", "missing", "mnt"]);
    ended.code(1).says("missing: does not exist");
    assert_eq!(ended.err().lines().count(), 1, "{}", ended.err());
}

#[test]
fn nice_value_and_oom_score_stay() {
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    mounted.umount();
    let script = "echo 321 >/proc/self/oom_score_adj; exec nice -n 7 \"$0\" \"$@\"";
    mounted.mount_by(&["sh", "-c", script], &[]);
    let pid = mounted.pid();
    let score = fs::read_to_string(format!("/proc/{pid}/oom_score_adj"));
    assert_eq!(score.unwrap(), "321\n");
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name in brackets is the second field, the nice value the 19th.
    let fields: Vec<_> = stat[stat.rfind(')').unwrap()..].split(' ').collect();
    assert_eq!(fields[17], "7", "{stat}");
    mounted.umount();
}

#[test]
fn a_mount_keeps_no_directory_busy() {
    let Some(mounted) = Foreground::start(&["env"]) else {
        return;
    };
    let directory = format!("/proc/{}/cwd", mounted.child.id());
    let is_left = || fs::read_link(&directory).unwrap() == Path::new("/");
    assert!(wait_until(is_left));
}

#[test]
fn descriptors_that_are_closed_and_a_directory_that_is_gone_do_no_harm() {
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    mounted.umount();
    let script = "mkdir gone; cd gone; rmdir ../gone; exec \"$0\" \"$@\" <&- >&- 2>&-";
    let [store, mnt] = ["a", "mnt"].map(|name| mounted.place.path(name));
    let [store, mnt] = [&store, &mnt].map(|path| path.to_str().unwrap());
    let args = ["-c", script, STITCHFS, "mount", store, mnt];
    mounted.place.run_as(Path::new("sh"), &args).code(0);
    mounted.find_daemon();
    for number in 0..3 {
        let target = fs::read_link(format!("/proc/{}/fd/{number}", mounted.pid()));
        assert_eq!(target.unwrap(), Path::new("/dev/null"), "{number}");
    }
    mounted.umount();
}
