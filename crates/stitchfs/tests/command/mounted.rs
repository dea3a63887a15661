//! Stores mounted by the command, in the background as users do it.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use stitch_base::clock::{Clock, SystemClock};
use stitch_fuse::mount::{self, Unmount};

use crate::place::{Place, STITCHFS};

/// A store `a` mounted at `mnt`. Dropped, the mount and its daemon are gone.
pub(crate) struct Mounted {
    pub(crate) place: Place,
    pid: Option<Pid>,
}

impl Mounted {
    /// `None` where nothing can be mounted.
    pub(crate) fn new(options: &[&str]) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        Some(Self::of(
            Place::new(),
            &[&["--create", "64M"], options].concat(),
        ))
    }

    /// Mounts the store `a` of a directory. Things can be mounted here.
    #[track_caller]
    pub(crate) fn of(place: Place, options: &[&str]) -> Self {
        let mut mounted = Self { place, pid: None };
        mounted.mount(options);
        mounted
    }

    #[track_caller]
    pub(crate) fn mount(&mut self, options: &[&str]) {
        self.mount_by(&["env"], options);
    }

    /// Mounts by a program that starts the command, such as `prlimit --nofile=24`.
    #[track_caller]
    pub(crate) fn mount_by(&mut self, program: &[&str], options: &[&str]) {
        let args = [&program[1..], &[STITCHFS, "mount"], options, &["a", "mnt"]].concat();
        let ended = self.place.run_as(Path::new(program[0]), &args);
        ended.code(0);
        assert_eq!(ended.out(), "");
        self.find_daemon();
    }

    /// Asks the daemon of the mount for its number.
    #[track_caller]
    pub(crate) fn find_daemon(&mut self) {
        let stats = self.place.run(&["stats", "--json", "mnt"]).code(0).json();
        let pid = stats["pid"].as_i64().and_then(|p| i32::try_from(p).ok());
        self.pid = pid.and_then(Pid::from_raw);
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid.expect("it was asked for").as_raw_nonzero().get()
    }

    #[track_caller]
    pub(crate) fn umount(&self) {
        self.place.run(&["umount", "mnt"]).code(0);
        assert!(!self.is_mounted());
        assert!(self.has_ended(), "the daemon let go of the store");
        self.place.run(&["fsck", "-n", "a"]).code(0);
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.path("mnt").join(name)
    }

    pub(crate) fn is_mounted(&self) -> bool {
        let entry = mount::mounted_at(&self.place.path("mnt"));
        entry.is_ok_and(|entry| entry.is_some())
    }

    pub(crate) fn has_ended(&self) -> bool {
        let pid = self.pid.expect("it was asked for").as_raw_nonzero();
        // A process that ended may stay listed, as a zombie, until its parent waits for it.
        let stat = PathBuf::from(format!("/proc/{pid}/stat"));
        wait_until(|| fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z ")))
    }

    /// Reports whether the daemon is running at this moment.
    pub(crate) fn is_running(&self) -> bool {
        let pid = self.pid.expect("it was asked for").as_raw_nonzero();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid.expect("it was asked for"), signal).unwrap();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Most tests have unmounted already.
        let _ = mount::unmount(&self.place.path("mnt"), Unmount::Lazy);
        if let Some(pid) = self.pid {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

/// Reports whether this process can mount; prints the reason for skipping a test if not.
pub(crate) fn can_mount() -> bool {
    let reason = if !Path::new("/dev/fuse").exists() {
        "/dev/fuse is missing"
    } else if !rustix::process::geteuid().is_root() {
        "not root"
    } else {
        return true;
    };
    #[expect(
        clippy::print_stderr,
        reason = "the output of a test run shows skipped tests"
    )]
    {
        eprintln!("SKIP: {reason}");
    }
    false
}

pub(crate) fn wait_until(mut is_so: impl FnMut() -> bool) -> bool {
    let clock = SystemClock::default();
    while clock.monotonic() < Duration::from_secs(10) {
        if is_so() {
            return true;
        }
        clock.sleep(Duration::from_millis(5));
    }
    false
}

#[test]
fn the_daemon_keeps_no_descriptor_of_the_shell() {
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    mounted.umount();
    // A reader of the pipe sees its end once all writers have closed it.
    let script = "exec 9>held; \
        { exec \"$0\" mount -o transport=dev a mnt; } 8>&1 >said 2>&1 | cat; cat said";
    let mut shell = Command::new("timeout");
    shell.args(["20", "sh", "-c", script, STITCHFS]);
    shell.current_dir(mounted.place.path("."));
    let ended = shell.output().unwrap();
    assert!(ended.status.success(), "the pipe has an end: {ended:?}");
    assert_eq!(String::from_utf8(ended.stdout).unwrap(), "");
    let stats = mounted.place.run(&["stats", "--json", "mnt"]);
    let pid = stats.code(0).json()["pid"].as_i64().unwrap();
    mounted.pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let held = mounted.place.path("held");
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let target = fs::read_link(entry.unwrap().path()).unwrap_or_default();
        assert_ne!(target, held);
    }
    mounted.umount();
}

#[test]
fn what_is_written_is_there_after_unmounting_and_mounting() {
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    fs::create_dir(mounted.path("dir")).unwrap();
    fs::write(mounted.path("dir/file"), vec![7; 100_000]).unwrap();
    mounted.umount();
    assert!(!mounted.path("dir").exists());
    mounted.mount(&[]);
    assert!(fs::read(mounted.path("dir/file")).unwrap() == vec![7; 100_000]);
    mounted.umount();
}

#[test]
fn sigterm_writes_everything_out() {
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    fs::write(mounted.path("file"), b"kept").unwrap();
    mounted.signal(Signal::TERM);
    assert!(mounted.has_ended());
    assert!(!mounted.is_mounted());
    mounted.mount(&[]);
    assert_eq!(fs::read(mounted.path("file")).unwrap(), b"kept");
    mounted.umount();
}

#[test]
fn a_killed_daemon_loses_nothing_and_the_next_mount_cleans_up() {
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    fs::write(mounted.path("file"), b"acknowledged").unwrap();
    mounted.signal(Signal::KILL);
    assert!(mounted.has_ended());
    let dead = mounted.place.run(&["stats", "mnt"]);
    dead.code(1).says("lost its daemon");
    let args = ["mount", "a", "mnt"];
    mounted.place.run(&args).code(0).says("cleared");
    assert_eq!(fs::read(mounted.path("file")).unwrap(), b"acknowledged");
    mounted.place.run(&["umount", "mnt"]).code(0);
    assert!(!mounted.is_mounted(), "nothing is left below");
    mounted.mount(&[]);
    mounted.signal(Signal::KILL);
    assert!(mounted.has_ended());
    mounted
        .place
        .run(&["umount", "mnt"])
        .code(0)
        .says("cleared");
    assert!(!mounted.is_mounted());
    mounted.place.run(&["fsck", "-n", "a"]).code(0);
}

#[test]
fn a_daemon_that_is_killed_while_it_is_asked_is_found_dead() {
    let Some(mounted) = Mounted::new(&[]) else {
        return;
    };
    mounted.signal(Signal::STOP);
    std::thread::scope(|scope| {
        let ended = scope.spawn(|| mounted.place.run(&["umount", "mnt"]));
        // The question waits for an answer by now; if not, the test is only easier.
        SystemClock::default().sleep(Duration::from_millis(300));
        mounted.signal(Signal::KILL);
        ended.join().unwrap().code(0).says("cleared");
    });
    assert!(!mounted.is_mounted());
}

#[test]
fn a_daemon_tells_what_it_is_and_has_done() {
    let Some(mounted) = Mounted::new(&["--memory", "80M", "-o", "noatime"]) else {
        return;
    };
    fs::write(mounted.path("file"), vec![1; 50_000]).unwrap();
    let stats = mounted
        .place
        .run(&["stats", "--json", "mnt"])
        .code(0)
        .json();
    let counters = &stats["counters"];
    for name in [
        "device.write_bytes",
        "kv.put_messages",
        "fuse.requests.write",
    ] {
        assert!(counters[name].as_u64().unwrap() > 0, "{name}: {counters}");
    }
    assert_eq!(stats["memory_budget_bytes"], 80 << 20);
    let text = mounted.place.run(&["stats", "a"]).code(0).out();
    assert!(text.contains("fuse.requests.write "), "{text}");
    for path in ["mnt", "a"] {
        let info = mounted.place.run(&["info", "--json", path]).code(0).json();
        let at = mounted.place.path("mnt").canonicalize().unwrap();
        assert_eq!(info["mounted_at"], at.to_str().unwrap());
        assert_eq!(info["uuid"], stats["uuid"]);
    }
    mounted.umount();
}

#[test]
fn a_mounted_store_is_left_alone() {
    let Some(mounted) = Mounted::new(&[]) else {
        return;
    };
    let place = &mounted.place;
    place
        .run(&["mount", "a", "other"])
        .code(1)
        .says("mounted at");
    place
        .run(&["mount", "a", "mnt"])
        .code(1)
        .says("mounted there already");
    place
        .run(&["mount", "-o", "instance=main", "a", "other"])
        .code(1)
        .says("mounted at");
    place.run(&["mkfs", "--force", "a"]).code(1).says("in use");
    place.run(&["fsck", "-n", "a"]).code(8).says("in use");
    assert!(!place.path("other").exists());
    fs::write(mounted.path("file"), b"still here").unwrap();
    mounted.umount();
}

#[test]
fn a_read_only_mount_changes_nothing() {
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    fs::write(mounted.path("file"), b"content").unwrap();
    // Killed, so that there is a log to be replayed.
    mounted.signal(Signal::KILL);
    assert!(mounted.has_ended());
    mounted.place.run(&["umount", "mnt"]).code(0);
    let before = fs::read(mounted.place.path("a")).unwrap();
    mounted.mount(&["-o", "ro"]);
    assert_eq!(fs::read(mounted.path("file")).unwrap(), b"content");
    let refused = fs::write(mounted.path("file"), b"new").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    mounted.umount();
    assert!(fs::read(mounted.place.path("a")).unwrap() == before);
}

#[test]
fn a_store_that_one_may_only_read_is_answered_with_the_option() {
    if !can_mount() {
        return;
    }
    let place = Place::with_store("a");
    fs::set_permissions(place.path("a"), fs::Permissions::from_mode(0o400)).unwrap();
    // Root without a capability has the rights of an owner.
    let args = ["--bounding-set=-all", STITCHFS, "mount", "a", "mnt"];
    let refused = place.run_as(Path::new("setpriv"), &args);
    refused.code(1).says("mount it with -o ro");
    let mounted = Mounted::of(place, &["-o", "ro"]);
    mounted.umount();
}

#[test]
fn remount_changes_the_flags_of_a_writable_store_only() {
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    let read_only = |mounted: &Mounted, name: &str| {
        let written = fs::write(mounted.path(name), b"content");
        written.is_err_and(|error| error.kind() == ErrorKind::ReadOnlyFilesystem)
    };
    let remount = |mounted: &Mounted, options| {
        let args = ["mount", "-o", options, "a", "mnt"];
        mounted.place.run(&args)
    };
    remount(&mounted, "remount,ro").code(0);
    assert!(read_only(&mounted, "file"));
    remount(&mounted, "remount,rw").code(0);
    assert!(!read_only(&mounted, "file"));
    mounted.umount();

    mounted.mount(&["-o", "ro"]);
    for options in ["remount,rw", "remount,noexec"] {
        let refused = remount(&mounted, options);
        refused.code(1).says("unmount it and mount it again");
    }
    let helper = mounted.place.named("mount.stitchfs");
    let args = ["a", "mnt", "-o", "remount,rw"];
    let refused = mounted.place.run_as(&helper, &args);
    refused.code(32).says("open for reading only");
    remount(&mounted, "remount,ro,noexec").code(0);
    assert!(read_only(&mounted, "file"));
    mounted.umount();
}

#[test]
fn a_busy_mount_stays_unless_lazy() {
    let Some(mounted) = Mounted::new(&[]) else {
        return;
    };
    fs::write(mounted.path("file"), b"before").unwrap();
    let file = File::options()
        .append(true)
        .open(mounted.path("file"))
        .unwrap();
    mounted.place.run(&["umount", "mnt"]).code(1).says("busy");
    assert!(mounted.is_mounted());
    mounted.place.run(&["umount", "--lazy", "mnt"]).code(0);
    assert!(!mounted.is_mounted());
    drop(file);
    assert!(mounted.has_ended());
    mounted.place.run(&["fsck", "-n", "a"]).code(0);
}

#[test]
fn the_root_directory_of_a_new_store_has_the_owner_asked_for() {
    let Some(mounted) = Mounted::new(&["-o", "uid=12,gid=34,umask=027"]) else {
        return;
    };
    let root = fs::metadata(mounted.path("")).unwrap();
    assert_eq!((root.uid(), root.gid()), (12, 34));
    assert_eq!(root.permissions().mode() & 0o7777, 0o750);
    mounted.umount();
    let again = ["mount", "-o", "uid=1", "a", "mnt"];
    mounted.place.run(&again).code(0).says("new stores only");
    assert_eq!(fs::metadata(mounted.path("")).unwrap().uid(), 12);
    mounted.place.run(&["umount", "mnt"]).code(0);
}

#[test]
fn umount_of_the_system_and_mount_follow_each_other() {
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    for round in 0..5u8 {
        fs::write(mounted.path("file"), vec![round; 3 << 20]).unwrap();
        // Returns before the daemon has written everything out.
        mount::unmount(&mounted.place.path("mnt"), Unmount::IfIdle).unwrap();
        mounted.mount(&[]);
        assert!(fs::read(mounted.path("file")).unwrap() == vec![round; 3 << 20]);
    }
    mounted.umount();
}

#[test]
fn mounting_with_create_again_keeps_the_store() {
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    fs::write(mounted.path("file"), b"kept").unwrap();
    mounted.umount();
    mounted.mount(&["--create", "64M"]);
    assert_eq!(fs::read(mounted.path("file")).unwrap(), b"kept");
    mounted.umount();
}

#[test]
fn in_the_foreground_it_ends_well_by_a_signal() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let mut child = Command::new(STITCHFS)
        .args(["mount", "--foreground", "--create", "64M", "a", "mnt"])
        .current_dir(place.path(""))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mnt = place.path("mnt");
    let is_up = wait_until(|| mount::mounted_at(&mnt).is_ok_and(|entry| entry.is_some()));
    let pid = Pid::from_child(&child);
    let file = fs::write(mnt.join("file"), b"kept");
    kill_process(pid, Signal::INT).unwrap();
    let status = child.wait().unwrap();
    assert!(is_up);
    file.unwrap();
    assert!(status.success(), "{status}");
    place.run(&["fsck", "-n", "a"]).code(0);
}

#[test]
fn the_log_goes_to_a_file() {
    let Some(mounted) = Mounted::new(&["--log", "log"]) else {
        return;
    };
    mounted.umount();
    let log = fs::read_to_string(mounted.place.path("log")).unwrap();
    assert_eq!(log, "", "a mount in good health writes nothing");
}

/// Bytes of the mounted store that are in use, once all of it is written out.
fn used_bytes(mounted: &mut Mounted, options: &[&str]) -> u64 {
    mounted.umount();
    mounted.mount(options);
    let stat = rustix::fs::statvfs(mounted.place.path("mnt")).unwrap();
    (stat.f_blocks - stat.f_bfree) * stat.f_frsize
}

#[test]
fn contents_are_compressed_where_a_mount_said_so_and_it_pays() {
    const MIB: u64 = 1 << 20;
    let Some(mut mounted) = Mounted::new(&["-o", "compress=zstd"]) else {
        return;
    };
    let text: Vec<u8> = (0..)
        .flat_map(|n: u32| format!("line {n}\n").into_bytes())
        .take(8 << 20)
        .collect();
    let mut noise = vec![0; 4 << 20];
    stitch_base::random::Rng::new(7).fill(&mut noise);
    fs::write(mounted.path("text"), &text).unwrap();
    let first = used_bytes(&mut mounted, &[]);
    assert!(first < 4 * MIB, "{first} bytes for 8 MiB of text");
    fs::write(mounted.path("more text"), &text).unwrap();
    let kept = used_bytes(&mut mounted, &[]);
    assert!(
        kept < 2 * first,
        "a mount keeps what an earlier one said: {kept} bytes"
    );
    fs::write(mounted.path("noise"), &noise).unwrap();
    let incompressible = used_bytes(&mut mounted, &["-o", "compress=none"]) - kept;
    assert!(
        (4 * MIB..4 * MIB + MIB / 4).contains(&incompressible),
        "{incompressible}"
    );
    fs::write(mounted.path("plain text"), &text).unwrap();
    let plain = used_bytes(&mut mounted, &["-o", "compress=lz4"]) - kept - incompressible;
    assert!(
        (8 * MIB..9 * MIB).contains(&plain),
        "{plain} bytes for 8 MiB"
    );
    for name in ["text", "more text", "plain text"] {
        assert!(fs::read(mounted.path(name)).unwrap() == text, "{name}");
    }
    assert!(fs::read(mounted.path("noise")).unwrap() == noise);
    mounted.umount();
}

#[test]
fn an_instance_is_mounted_by_its_name() {
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    fs::write(mounted.path("of-main"), b"main").unwrap();
    let busy = mounted
        .place
        .run(&["instance", "create", "--fs", "a", "mail"]);
    busy.code(1).says("unmount");
    let list = mounted
        .place
        .run(&["instance", "list", "mnt"])
        .code(0)
        .out();
    assert_eq!(list, "main\n");
    mounted.umount();
    let create = ["instance", "create", "--fs", "a", "mail"];
    mounted.place.run(&create).code(0);
    mounted.mount(&["-o", "instance=mail"]);
    assert!(!mounted.path("of-main").exists());
    fs::write(mounted.path("of-mail"), vec![7; 1 << 20]).unwrap();
    let info = mounted.place.run(&["info", "--json", "mnt"]).code(0).json();
    assert_eq!(info["instance"], "mail");
    let list = mounted.place.run(&["instance", "list", "a"]).code(0).out();
    assert_eq!(list, "main\nmail\n");
    mounted.place.run(&["shrink", "mnt", "48M"]).code(0);
    mounted.place.run(&["defrag", "mnt"]).code(0);
    mounted.umount();
    mounted.mount(&[]);
    assert_eq!(fs::read(mounted.path("of-main")).unwrap(), b"main");
    assert!(!mounted.path("of-mail").exists());
    mounted.umount();
    mounted.mount(&["-o", "instance=mail"]);
    assert_eq!(fs::read(mounted.path("of-mail")).unwrap(), vec![7; 1 << 20]);
    mounted.umount();
}
