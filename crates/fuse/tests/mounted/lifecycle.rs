//! Mounting, unmounting, and the state after failures.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use stitch_base::sync::Arc;
use stitch_fuse::mount::{self, Unmount, mounted_at};
use stitch_fuse::wire::flags::InitFlags;
use stitch_fuse::{Handler, MountError, MountOptions, Session, SessionConfig, SessionError};

use crate::fixture::{Mounted, can_mount, store_handler, wait_until};
use crate::memfs::{MemFs, MemOptions};

const HELPER_PATH: &str = "STITCH_FUSE_TEST_MOUNT";
const HELPER_WRITE_BACK: &str = "STITCH_FUSE_TEST_WRITE_BACK";
const HELPER_STORE: &str = "STITCH_FUSE_TEST_STORE";
const HELPER_ALLOW_OTHER: &str = "STITCH_FUSE_TEST_ALLOW_OTHER";

#[test]
fn the_session_says_what_was_agreed_on() {
    let Some(mounted) = Mounted::plain() else {
        return;
    };
    let negotiated = mounted.session.negotiated();
    assert_eq!(negotiated.max_write, 1 << 20);
    for flag in [
        InitFlags::HANDLE_KILLPRIV_V2,
        InitFlags::DO_READDIRPLUS,
        InitFlags::POSIX_ACL,
    ] {
        assert!(
            negotiated.flags.contains(flag),
            "{flag:?} of {negotiated:?}"
        );
    }
    let entry = mounted_at(&mounted.path(""))
        .unwrap()
        .expect("it is mounted");
    assert!(entry.is_ours(), "{entry:?}");
    assert_eq!(entry.source, "memfs");
}

#[test]
fn a_session_ends_when_it_is_unmounted() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let fs = Arc::new(MemFs::new(MemOptions::default()));
    let options = MountOptions {
        no_atime: true,
        no_dev: true,
        ..MountOptions::shared("memfs")
    };
    let config = SessionConfig::default();
    let session = Session::mount(fs.clone(), dir.path(), &options, &config).unwrap();
    let session = session.spawn().unwrap();
    let entry = mounted_at(dir.path()).unwrap().expect("it is mounted");
    assert!(
        entry.options.contains("noatime") && entry.options.contains("nodev"),
        "{entry:?}"
    );
    let file = File::create(dir.path().join("file")).unwrap();
    let busy = mount::unmount(dir.path(), Unmount::IfIdle).unwrap_err();
    assert!(matches!(busy, MountError::Busy { .. }), "{busy}");
    drop(file);
    wait_until("it is idle", || {
        mount::unmount(dir.path(), Unmount::IfIdle).is_ok()
    });
    session.join().unwrap();
    assert_eq!(fs.destroyed(), 1);
    assert_eq!(mounted_at(dir.path()).unwrap(), None);
    let again = mount::unmount(dir.path(), Unmount::IfIdle).unwrap_err();
    assert!(matches!(again, MountError::NotMounted { .. }), "{again}");
}

#[test]
fn a_busy_session_can_be_stopped() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let fs = Arc::new(MemFs::new(MemOptions::default()));
    let (options, config) = (MountOptions::shared("memfs"), SessionConfig::default());
    let session = Session::mount(fs.clone(), dir.path(), &options, &config).unwrap();
    let session = session.spawn().unwrap();
    let mut file = File::create(dir.path().join("file")).unwrap();
    session.stop().unwrap();
    assert_eq!(mounted_at(dir.path()).unwrap(), None);
    let refused = std::io::Write::write(&mut file, b"x").unwrap_err();
    assert!(
        [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED]
            .contains(&refused.raw_os_error().unwrap())
    );
}

#[test]
fn a_mount_goes_when_its_test_panics() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    let panicked = std::panic::catch_unwind(|| {
        let fs = Arc::new(MemFs::new(MemOptions::default()));
        let (options, config) = (MountOptions::shared("memfs"), SessionConfig::default());
        let session = Session::mount(fs, &path, &options, &config).unwrap();
        let _session = session.spawn().unwrap();
        let _file = File::create(path.join("file")).unwrap();
        panic!("as planned");
    });
    assert!(panicked.is_err());
    assert_eq!(mounted_at(dir.path()).unwrap(), None);
}

#[test]
fn a_session_that_is_never_served_is_unmounted() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let fs = Arc::new(MemFs::new(MemOptions::default()));
    let (options, config) = (MountOptions::shared("memfs"), SessionConfig::default());
    drop(Session::mount(fs, dir.path(), &options, &config).unwrap());
    assert_eq!(mounted_at(dir.path()).unwrap(), None);
}

#[test]
fn a_request_that_panics_ends_the_session() {
    let options = MemOptions {
        panics: true,
        ..MemOptions::default()
    };
    let Some(mounted) = Mounted::new(options, &SessionConfig::default()) else {
        return;
    };
    let refused = fs::metadata(mounted.path("panic")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EIO));
    let fs = Arc::clone(mounted.memory());
    let ended = mounted.session.join().unwrap_err();
    assert!(matches!(ended, SessionError::Panicked), "{ended}");
    assert_eq!(fs.destroyed(), 1);
}

#[test]
fn what_cannot_be_mounted_on_is_named() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let try_at = |path: &Path| {
        let fs = Arc::new(MemFs::new(MemOptions::default()));
        let (options, config) = (MountOptions::shared("memfs"), SessionConfig::default());
        match Session::mount(fs, path, &options, &config) {
            Err(SessionError::Mount(error)) => error,
            other => panic!("{other:?}"),
        }
    };
    let missing = dir.path().join("missing");
    assert!(matches!(try_at(&missing), MountError::NoMountPoint { .. }));
    assert!(matches!(
        try_at(&missing.join("deeper")),
        MountError::NoMountPoint { .. }
    ));
    let file = dir.path().join("file");
    fs::write(&file, b"x").unwrap();
    assert!(matches!(try_at(&file), MountError::NotADirectory { .. }));
}

/// Not a test: the child process of the tests below.
#[test]
fn helper_serves_until_it_is_killed() {
    let Some(path) = std::env::var_os(HELPER_PATH) else {
        return;
    };
    let fs: Arc<dyn Handler> = match std::env::var_os(HELPER_STORE) {
        Some(_) => store_handler(stitch_fs::FsOptions::default()).0,
        None => Arc::new(MemFs::new(MemOptions::default())),
    };
    let allow_other = std::env::var_os(HELPER_ALLOW_OTHER).is_some();
    let options = MountOptions {
        allow_other,
        ..MountOptions::default()
    };
    let config = SessionConfig {
        writeback_cache: std::env::var_os(HELPER_WRITE_BACK).is_some(),
        ..SessionConfig::default()
    };
    match Session::mount(fs, Path::new(&path), &options, &config) {
        Ok(session) => {
            let session = session.spawn().unwrap();
            announce("READY");
            session.join().unwrap();
            announce("ENDED");
        }
        Err(error) => announce(&format!("REFUSED {error}")),
    }
}

#[expect(clippy::print_stdout, reason = "the parent process reads it")]
fn announce(line: &str) {
    println!("\n{line}");
}

struct Helper {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Helper {
    fn start(path: &Path, uid: u32, allow_other: bool) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let name = "lifecycle::helper_serves_until_it_is_killed";
        command
            .args(["--exact", name, "--nocapture"])
            .env(HELPER_PATH, path);
        if allow_other {
            command.env(HELPER_ALLOW_OTHER, "1");
        }
        if uid != 0 {
            std::os::unix::process::CommandExt::uid(&mut command, uid);
            std::os::unix::process::CommandExt::gid(&mut command, uid);
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The next line that the helper announces.
    fn heard(&mut self) -> String {
        let words = ["READY", "ENDED", "REFUSED"];
        let mut line = String::new();
        loop {
            line.clear();
            assert!(
                self.lines.read_line(&mut line).unwrap() > 0,
                "the helper ended early"
            );
            if words.iter().any(|word| line.starts_with(word)) {
                return line.trim_end().to_owned();
            }
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Unmounts what a failed test would leave mounted.
struct Guard<'a>(&'a Path);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if mounted_at(self.0).is_ok_and(|entry| entry.is_some()) {
            mount::unmount(self.0, Unmount::Lazy).ok();
        }
    }
}

#[test]
fn a_mount_whose_daemon_was_killed_is_recognised_and_detached() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let _guard = Guard(dir.path());
    let mut helper = Helper::start(dir.path(), 0, false);
    assert_eq!(helper.heard(), "READY");
    fs::write(dir.path().join("file"), b"x").unwrap();
    assert!(!mount::is_dead(dir.path()).unwrap());
    helper.child.kill().unwrap();
    helper.child.wait().unwrap();
    assert!(mount::is_dead(dir.path()).unwrap());
    let fs = Arc::new(MemFs::new(MemOptions::default()));
    let (options, config) = (MountOptions::shared("memfs"), SessionConfig::default());
    let refused = Session::mount(fs, dir.path(), &options, &config).unwrap_err();
    assert!(
        matches!(refused, SessionError::Mount(MountError::Dead { .. })),
        "{refused}"
    );
    assert_eq!(mount::detach_dead(dir.path()).unwrap(), 1);
    assert_eq!(mounted_at(dir.path()).unwrap(), None);
    assert_eq!(mount::detach_dead(dir.path()).unwrap(), 0);
}

/// Reports whether users can run this program and mount.
fn users_can_mount() -> bool {
    let exe = std::env::current_exe().unwrap();
    let mut command = Command::new("test");
    std::os::unix::process::CommandExt::uid(&mut command, 65534);
    let can_run = command
        .arg("-x")
        .arg(exe)
        .status()
        .is_ok_and(|status| status.success());
    let has_helper = Command::new("fusermount3").arg("-V").output().is_ok();
    let is_open =
        fs::metadata("/dev/fuse").is_ok_and(|device| device.permissions().mode() & 6 == 6);
    let all = can_run && has_helper && is_open;
    if !all {
        #[expect(
            clippy::print_stderr,
            reason = "the output of a test run shows skipped tests"
        )]
        {
            eprintln!(
                "SKIP: can users run this program? {can_run}; is fusermount3 there? {has_helper}; \
                 can users open /dev/fuse? {is_open}"
            );
        }
    }
    all
}

fn user_directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(dir.path(), Some(65534), Some(65534)).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

#[test]
fn a_user_mounts_by_the_helper_program() {
    if !can_mount() || !users_can_mount() {
        return;
    }
    let dir = user_directory();
    let _guard = Guard(dir.path());
    let mut helper = Helper::start(dir.path(), 65534, false);
    assert_eq!(helper.heard(), "READY");
    let entry = mounted_at(dir.path()).unwrap().expect("it is mounted");
    assert!(
        entry.is_ours() && entry.super_options.contains("user_id=65534"),
        "{entry:?}"
    );
    let refused = fs::read_dir(dir.path()).unwrap_err();
    assert_eq!(
        refused.raw_os_error(),
        Some(libc::EACCES),
        "not even root is let in"
    );
    let mut touch = Command::new("sh");
    std::os::unix::process::CommandExt::uid(&mut touch, 65534);
    let script = "fusermount3 -u \"$1\"";
    assert!(
        touch
            .args(["-c", script, "sh"])
            .arg(dir.path())
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(helper.heard(), "ENDED");
}

#[test]
fn a_user_is_told_what_to_change_to_let_others_in() {
    let allowed = fs::read_to_string("/etc/fuse.conf")
        .is_ok_and(|conf| conf.lines().any(|line| line.trim() == "user_allow_other"));
    if !can_mount() || !users_can_mount() || allowed {
        return;
    }
    let dir = user_directory();
    let _guard = Guard(dir.path());
    let mut helper = Helper::start(dir.path(), 65534, true);
    let heard = helper.heard();
    assert!(
        heard.contains("user_allow_other") && heard.contains("/etc/fuse.conf"),
        "{heard}"
    );
    assert_eq!(mounted_at(dir.path()).unwrap(), None);
}
