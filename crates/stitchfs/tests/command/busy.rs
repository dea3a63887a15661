//! What is told of stores and mounts that are in use, and of the end of a mount.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use stitch_base::clock::{Clock, SystemClock};
use stitch_fuse::mount::{self, Unmount};

use crate::mounted::{Mounted, can_mount, wait_until};
use crate::place::{Place, STITCHFS};

/// Commands that open the store `a`, with their exit codes for one that is in use.
const OPENING: [(&[&str], i32); 7] = [
    (&["mkfs", "--force", "a"], 1),
    (&["fsck", "-n", "a"], 8),
    (&["info", "a"], 1),
    (&["grow", "a", "32M"], 1),
    (&["shrink", "a", "8M"], 1),
    (&["defrag", "a"], 1),
    (&["instance", "create", "a", "b"], 1),
];

/// A process that is killed when the test ends.
struct Helper(Child);

impl Helper {
    /// Starts `sleep` in a directory.
    fn sleeping_in(directory: &Path) -> Self {
        let mut sleep = Command::new("sleep");
        let helper = Self(sleep.arg("60").current_dir(directory).spawn().unwrap());
        let comm = format!("/proc/{}/comm", helper.0.id());
        assert!(wait_until(|| fs::read(&comm).unwrap() == b"sleep\n"));
        helper
    }

    fn shown(&self) -> String {
        format!("used by process {} (sleep)", self.0.id())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_process_that_has_a_store_is_named() {
    let place = Place::with_store("a");
    let file = File::open(place.path("a")).unwrap();
    file.lock().unwrap();
    let expected = format!("a: is in use by process {} (", std::process::id());
    for (args, code) in OPENING {
        let ended = place.run(args);
        let text = ended.code(code).out() + &ended.err();
        assert!(text.contains(&expected), "{args:?}: {text}");
    }
}

#[test]
fn the_mount_of_a_store_and_its_daemon_are_named() {
    let Some(mounted) = Mounted::new(&["-o", "transport=dev"]) else {
        return;
    };
    let at = mounted.place.path("mnt").canonicalize().unwrap();
    let (at, pid) = (at.display(), mounted.pid());
    let expected = format!("is in use: mounted at {at}, served by process {pid} (stitchfs)");
    for args in [&["fsck", "-n", "a"][..], &["mount", "a", "other"]] {
        mounted.place.run(args).says(&expected);
    }
    mounted.umount();
}

#[test]
fn a_mount_in_another_namespace_is_named_at_once() {
    if !can_mount() {
        return;
    }
    let place = Place::with_store("a");
    // It lets go of the mounts of tests that run beside this one.
    let script = "findmnt -rn -t fuse.stitchfs -o TARGET | while read -r at; do
            umount -i -l \"$at\"
        done 2>/dev/null
        exec \"$0\" mount -o transport=dev a mnt";
    let args = [
        "-m",
        "--propagation",
        "private",
        "sh",
        "-c",
        script,
        STITCHFS,
    ];
    place.run_as(Path::new("unshare"), &args).code(0);
    let clock = SystemClock::default();
    let refused = place.run(&["mount", "a", "other"]);
    let waited = clock.monotonic();
    let err = refused.err();
    let pid = err
        .split("in use by process ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next());
    let pid: i32 = pid.and_then(|pid| pid.parse().ok()).expect(&err);
    kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    let at = place.path("mnt");
    let expected = format!("mounted at {} in its own mount namespace", at.display());
    refused.code(1).says(&expected);
    assert!(waited.as_secs() < 8, "{waited:?}");
    assert!(wait_until(|| place
        .run(&["fsck", "-n", "a"])
        .err()
        .is_empty()));
}

#[test]
fn the_process_that_has_claimed_a_block_device_is_named() {
    if !can_mount() {
        return;
    }
    let place = Place::with_store("a");
    let attached = place.run_as(Path::new("losetup"), &["-f", "--show", "a"]);
    let device = attached.code(0).out();
    let device = device.trim();
    let claimed = File::options()
        .read(true)
        .custom_flags(rustix::fs::OFlags::EXCL.bits().cast_signed())
        .open(device);
    let refused = place.run(&["mkfs", "--force", device]);
    drop(claimed.unwrap());
    place.run_as(Path::new("losetup"), &["-d", device]).code(0);
    let expected = format!("{device}: is in use by process {} (", std::process::id());
    refused.code(1).says(&expected);
}

#[test]
fn umount_of_a_busy_mount_names_the_user_and_the_remedy() {
    let Some(mounted) = Mounted::new(&["-o", "transport=dev"]) else {
        return;
    };
    let place = &mounted.place;
    let user = Helper::sleeping_in(&mounted.path(""));
    let below = mounted.path("below");
    fs::create_dir(&below).unwrap();
    let mount = ["-t", "tmpfs", "none", below.to_str().unwrap()];
    place.run_as(Path::new("mount"), &mount).code(0);
    let refused = place.run(&["umount", "mnt"]);
    place
        .run_as(Path::new("umount"), &[below.to_str().unwrap()])
        .code(0);
    let shown = format!("is busy: mounted at {}, {}", below.display(), user.shown());
    refused.code(1).says(&shown);
    refused.says("stitchfs umount -l");
    drop(user);
    mounted.umount();
}

/// A mount in the foreground. Dropped, it is gone.
struct Foreground {
    place: Place,
    daemon: Helper,
    out: BufReader<std::process::ChildStdout>,
}

impl Foreground {
    /// Starts it and waits for its line; `None` where nothing can be mounted.
    fn start(options: &str) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let place = Place::with_store("a");
        let mut command = Command::new(STITCHFS);
        command.args(["mount", "--foreground", "-o", options, "a", "mnt"]);
        command.current_dir(place.path("")).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut daemon = Helper(command.spawn().unwrap());
        let mut out = BufReader::new(daemon.0.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "mnt: ready\n");
        let started = Self { place, daemon, out };
        assert!(mount::mounted_at(&started.mnt()).unwrap().is_some());
        Some(started)
    }

    fn mnt(&self) -> std::path::PathBuf {
        self.place.path("mnt")
    }

    /// Waits for its end. Returns what it printed since it was ready.
    fn ended(&mut self) -> String {
        assert!(wait_until(|| self.daemon.0.try_wait().unwrap().is_some()));
        assert!(self.daemon.0.wait().unwrap().success());
        let mut out = String::new();
        self.out.read_to_string(&mut out).unwrap();
        assert_eq!(out, "");
        let mut err = String::new();
        let mut stream = self.daemon.0.stderr.take().unwrap();
        stream.read_to_string(&mut err).unwrap();
        self.place.run(&["fsck", "-n", "a"]).code(0);
        err
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        // Most tests have unmounted already.
        let _ = mount::unmount(&self.mnt(), Unmount::Lazy);
    }
}

#[test]
fn a_mount_in_the_foreground_prints_a_line_when_it_serves() {
    for options in ["transport=dev", "transport=dev,restart"] {
        let Some(mut mounted) = Foreground::start(options) else {
            return;
        };
        fs::write(mounted.mnt().join("file"), b"served").unwrap();
        mounted.daemon.signal(Signal::INT);
        assert_eq!(mounted.ended(), "", "{options}");
    }
}

#[test]
fn a_signal_to_a_busy_mount_names_its_users() {
    for options in ["transport=dev", "transport=dev,restart"] {
        let Some(mut mounted) = Foreground::start(options) else {
            return;
        };
        let user = Helper::sleeping_in(&mounted.mnt());
        mounted.daemon.signal(Signal::INT);
        let told = mounted.ended();
        assert!(
            told.contains(&format!("mnt: is busy: {}", user.shown())),
            "{told}"
        );
    }
}

#[test]
fn a_second_signal_closes_the_store_of_a_mount_that_is_held_elsewhere() {
    let Some(mut mounted) = Foreground::start("transport=dev") else {
        return;
    };
    let bind = mounted.place.path("bind");
    fs::create_dir(&bind).unwrap();
    let args = ["--bind", "mnt", "bind"];
    mounted.place.run_as(Path::new("mount"), &args).code(0);
    fs::write(bind.join("file"), b"kept").unwrap();
    mounted.daemon.signal(Signal::INT);
    let mut err = BufReader::new(mounted.daemon.0.stderr.take().unwrap());
    let mut line = String::new();
    err.read_line(&mut line).unwrap();
    let expected = format!("is still mounted at {}", bind.display());
    let is_told = line.contains(&expected) && line.contains("a second signal");
    mounted.daemon.0.stderr = Some(err.into_inner());
    let is_serving = fs::read(bind.join("file")).is_ok();
    mounted.daemon.signal(Signal::INT);
    mounted.ended();
    let error = fs::write(bind.join("new"), b"lost").err();
    mounted.place.run_as(Path::new("umount"), &["bind"]).code(0);
    assert!(is_told, "{line}");
    assert!(is_serving && error.is_some());
}
