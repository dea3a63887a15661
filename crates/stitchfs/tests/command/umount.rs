//! Unmounting file systems that are in use elsewhere, or whose store has moved.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::mounted::{Mounted, wait_until};
use crate::place::{Ended, Place, STITCHFS};

/// Runs `stitchfs umount` for at most 20 seconds.
fn umount(place: &Place, args: &[&str]) -> Ended {
    let args = [&["20", STITCHFS, "umount"], args].concat();
    place.run_as(Path::new("timeout"), &args)
}

fn system(place: &Place, program: &str, args: &[&str]) {
    place.run_as(Path::new(program), args).code(0);
}

/// A process that is killed when the test ends.
struct Helper(Child);

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_store_that_was_renamed_is_closed_when_umount_returns() {
    let Some(mounted) = Mounted::new(&[]) else {
        return;
    };
    fs::write(mounted.path("file"), vec![7; 40 << 20]).unwrap();
    let place = &mounted.place;
    fs::rename(place.path("a"), place.path("b")).unwrap();
    umount(place, &["mnt"]).code(0);
    assert!(!mounted.is_running());
    place.run(&["fsck", "-n", "b"]).code(0);
}

#[test]
fn a_bind_mount_is_named_and_not_waited_for() {
    let Some(mounted) = Mounted::new(&[]) else {
        return;
    };
    fs::write(mounted.path("file"), b"kept").unwrap();
    let place = &mounted.place;
    let bind = place.path("bind");
    fs::create_dir(&bind).unwrap();
    system(place, "mount", &["--bind", "mnt", "bind"]);
    let ended = umount(place, &["mnt"]);
    let file = fs::read(bind.join("file"));
    system(place, "umount", &["bind"]);
    let shown = format!("still mounted at {}", bind.display());
    ended.code(3).says(&shown);
    assert!(!mounted.is_mounted());
    assert_eq!(file.unwrap(), b"kept");
    assert!(mounted.has_ended());
}

#[test]
fn a_mount_namespace_is_named_and_not_waited_for() {
    let Some(mounted) = Mounted::new(&[]) else {
        return;
    };
    let place = &mounted.place;
    // It lets go of the mounts of tests that run beside this one.
    let script = "findmnt -rn -t fuse.stitchfs -o TARGET | while read -r at; do
            [ \"$at\" = \"$0\" ] || umount -i -l \"$at\"
        done 2>/dev/null
        echo
        read _";
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", script]);
    command.arg(place.path("mnt")).stdin(Stdio::piped());
    let mut other = Helper(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut out = other.0.stdout.take().unwrap();
    std::io::Read::read_exact(&mut out, &mut [0]).unwrap();
    let ended = umount(place, &["mnt"]);
    let pid = other.0.id();
    ended.code(3);
    ended.says(&format!("in the mount namespace of process {pid} (sh)"));
    assert!(mounted.is_running());
    drop(other);
    assert!(mounted.has_ended());
}

#[test]
fn a_lazy_unmount_waits_for_the_daemon_unless_a_process_is_in_it() {
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    fs::write(mounted.path("file"), vec![7; 40 << 20]).unwrap();
    umount(&mounted.place, &["-l", "mnt"]).code(0);
    assert!(!mounted.is_running());
    mounted.mount(&[]);
    let file = File::open(mounted.path("file")).unwrap();
    let mut command = Command::new("sleep");
    let helper = Helper(command.arg("60").stdin(file).spawn().unwrap());
    // It has a copy of the file, too.
    drop(command);
    let user = format!("used by process {} (sleep)", helper.0.id());
    // The new process has the file, but may not have started its program yet.
    let comm = format!("/proc/{}/comm", helper.0.id());
    assert!(wait_until(|| fs::read(&comm).unwrap() == b"sleep\n"));
    umount(&mounted.place, &["-l", "mnt"]).code(0).says(&user);
    assert!(mounted.is_running());
    drop(helper);
    assert!(mounted.has_ended());
}

#[test]
fn the_helper_of_umount_8_waits_for_the_daemon_and_takes_its_options() {
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    let helper = mounted.place.named("umount.fuse.stitchfs");
    fs::write(mounted.path("file"), vec![7; 40 << 20]).unwrap();
    mounted.place.run_as(&helper, &["mnt", "-n", "-v"]).code(0);
    assert!(!mounted.is_running());
    for option in ["-l", "-f"] {
        mounted.mount(&[]);
        mounted.place.run_as(&helper, &["mnt", option]).code(0);
        assert!(!mounted.is_mounted() && mounted.has_ended());
    }

    mounted.mount(&[]);
    let file = File::open(mounted.path("file")).unwrap();
    let busy = mounted.place.run_as(&helper, &["mnt"]);
    busy.code(32).says("busy");
    mounted.place.run_as(&helper, &["mnt", "-r"]).code(0);
    let refused = fs::write(mounted.path("file"), b"new").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    drop(file);

    let place = &mounted.place;
    fs::create_dir(place.path("bind")).unwrap();
    system(place, "mount", &["--bind", "mnt", "bind"]);
    let held = place.run_as(&helper, &["mnt"]);
    place.run_as(&helper, &["bind"]).code(0);
    held.code(0).says("still mounted at");
    assert!(mounted.has_ended());
}
