//! A mounted file system that goes away with its test.

use std::path::{Path, PathBuf};
use std::time::Duration;

use stitch_base::clock::{Clock, SystemClock};
use stitch_base::sync::Arc;
use stitch_fuse::wire::opcode::Opcode;
use stitch_fuse::{CountsSnapshot, MountOptions, RunningSession, Session, SessionConfig};

use crate::memfs::{MemFs, MemOptions, SOON};

/// Says why a test was left out.
pub(crate) fn can_mount() -> bool {
    let reason = if !Path::new("/dev/fuse").exists() {
        "/dev/fuse is missing"
    } else if !rustix::process::geteuid().is_root() {
        "not root"
    } else {
        return true;
    };
    #[expect(clippy::print_stderr, reason = "whoever runs the tests is to know")]
    {
        eprintln!("SKIP: {reason}");
    }
    false
}

pub(crate) struct Mounted {
    // Dropped first: the directory can go only when nothing is mounted on it.
    pub(crate) session: RunningSession,
    pub(crate) fs: Arc<MemFs>,
    dir: tempfile::TempDir,
}

impl Mounted {
    pub(crate) fn new(options: MemOptions, config: &SessionConfig) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let fs = Arc::new(MemFs::new(options));
        let mount = MountOptions::shared("memfs");
        let session = Session::mount(fs.clone(), dir.path(), &mount, config).unwrap();
        let session = session.spawn().unwrap();
        Some(Self { session, fs, dir })
    }

    pub(crate) fn plain() -> Option<Self> {
        Self::new(MemOptions::default(), &SessionConfig::default())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// What the kernel sends while `body` runs, and until it is quiet after it; without what it
    /// forgets, which depends on the machine's memory and on nobody's waiting.
    pub(crate) fn requests_of(&self, body: impl FnOnce()) -> CountsSnapshot {
        let before = self.quiet();
        body();
        let sent = self.quiet().since(&before);
        sent.without(Opcode::Forget).without(Opcode::BatchForget)
    }

    /// Waits until the kernel has sent nothing for a while: RELEASE and FORGET come late.
    fn quiet(&self) -> CountsSnapshot {
        let clock = SystemClock::default();
        let mut last = self.session.counts();
        loop {
            clock.sleep(Duration::from_millis(30));
            let now = self.session.counts();
            if now == last {
                return now;
            }
            last = now;
        }
    }
}

/// Waits for something that happens in another thread or process.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let clock = SystemClock::default();
    while !is_so() {
        assert!(clock.monotonic() < SOON, "waited in vain for: {what}");
        clock.sleep(Duration::from_millis(5));
    }
}
