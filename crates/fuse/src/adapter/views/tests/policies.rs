//! Policies, and mkdir(2) and rmdir(2) of snapshots, without a kernel.

use super::*;
use std::sync::mpsc;
use std::time::Duration;
use stitch_kv::{KvError, PinInfo, WrappedEngine};

/// Longest time that a test waits for what is to come at once.
const PATIENCE: Duration = Duration::from_secs(20);

/// An engine whose next list of pins waits for something else.
struct Stopping {
    inner: ModelEngine,
    next: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl WrappedEngine for Stopping {
    fn inner(&self) -> &dyn Engine {
        &self.inner
    }

    fn pins(&self) -> Result<Vec<PinInfo>, KvError> {
        let body = self.next.lock().take();
        if let Some(body) = body {
            body();
        }
        self.inner.pins()
    }
}

impl Setup {
    fn snapshots_of(&self, dir: Ino) -> Answer<Ino> {
        let control = self
            .lookup(dir, CONTROL_DIR.as_bytes())?
            .ok_or(Errno::ENOENT)?;
        let snap = self.lookup(control.ino, SNAPSHOTS_DIR.as_bytes())?;
        Ok(snap.ok_or(Errno::ENOENT)?.ino)
    }

    fn rmdir(&self, uid: u32, parent: Ino, name: &[u8]) -> Answer<()> {
        self.views.rmdir(&context(uid), parent, name)
    }
}

#[test]
fn a_policy_is_set_by_the_owner_and_its_snapshots_are_dropped_from_the_cache() {
    let setup = setup();
    let dir = setup.dir(b"d");
    let set = |uid, words: &str| setup.ask(uid, dir, "policy", words);
    assert_eq!(set(OTHER, "auto\x0060 last=1"), Err(Errno::EPERM));
    assert_eq!(set(0, "auto\x000 last=1"), Err(Errno::EINVAL));
    assert_eq!(set(0, "auto\x0060 never=1"), Err(Errno::EINVAL));
    assert_eq!(setup.ask(0, dir, "no policy", "-"), Err(Errno::ENOENT));
    set(0, "auto\x0060 last=1").unwrap();
    let mut round = setup.fs.policies().run().unwrap();
    let created = round.created.remove(0);
    let root = setup.enter(created.name.as_bytes()).unwrap().ino;
    assert_eq!(setup.open_snapshots(), 1);
    setup.fs.snapshots().delete(&created.name).unwrap();
    round.deleted.push(created);
    let kernel = Arc::new(Kernel::default());
    let notifier = crate::notify::Notifier::new(Arc::clone(&kernel) as _, 45);
    setup.views.policy_runner(&notifier).tell(&round);
    assert_eq!(setup.open_snapshots(), 0, "its space is free");
    assert_eq!(setup.list(root), Err(Errno::ESTALE));
    for list in [ControlDir::Snapshots, ControlDir::SnapshotsOf(dir)] {
        let number = list.number().0.to_le_bytes();
        let taken = kernel.taken.lock();
        assert!(taken.iter().any(|message| holds_bytes(message, &number)));
    }
    setup.ask(0, dir, "no policy", "-").unwrap();
    assert!(setup.fs.policies().list().unwrap().is_empty());
}

/// Sends what a request in a thread of its own returns.
fn beside(
    setup: &Arc<Setup>,
    request: impl FnOnce(&Setup) -> Answer<()> + Send + 'static,
) -> mpsc::Receiver<Answer<()>> {
    let (sender, receiver) = mpsc::channel();
    let setup = Arc::clone(setup);
    let thread = stitch_base::thread::spawn("test", move || sender.send(request(&setup)).ok());
    drop(thread.expect("a thread starts"));
    receiver
}

/// Regression: a policy that was set kept others from snapshots until a round had compared all
/// directories of policies.
#[test]
fn snapshots_are_created_while_a_policy_waits_for_a_round() {
    const SOON: Duration = Duration::from_millis(100);
    let engine = Arc::new(Stopping {
        inner: model(),
        next: Mutex::default(),
    });
    let setup = setup_on(Arc::clone(&engine) as _, FsOptions::default());
    let setup = Arc::new(setup);
    let dir = setup.dir(b"d");
    let set = move |setup: &Setup| setup.ask(0, dir, "policy", "auto\x0060 last=1");
    set(&setup).unwrap();
    let (sender, receiver) = mpsc::channel();
    let in_round = Arc::clone(&setup);
    *engine.next.lock() = Some(Box::new(move || {
        let is_set = beside(&in_round, set);
        assert!(is_set.recv_timeout(SOON).is_err(), "the round is not over");
        let created = beside(&in_round, move |setup| setup.create(0, dir, "mon"));
        let created = created.recv_timeout(PATIENCE);
        sender.send((is_set, created)).expect("the test listens");
    }));
    setup.fs.policies().run().unwrap();
    let (is_set, created) = receiver.try_recv().expect("the pins were listed");
    assert_eq!(created, Ok(Ok(())));
    assert_eq!(is_set.recv_timeout(PATIENCE), Ok(Ok(())));
}

#[test]
fn mkdir_creates_a_snapshot_of_the_directory_and_rmdir_deletes_it() {
    let setup = setup();
    let (dir, other) = (setup.dir(b"d"), setup.dir(b"other"));
    let file = setup.file(dir, b"f", b"one");
    let snap = setup.snapshots_of(dir).unwrap();
    let made = setup.mkdir(0, snap, b"mon").unwrap();
    assert_eq!(setup.fs.snapshots().get("mon").unwrap().root, dir);
    setup
        .fs
        .write(file, 0, b"two", WriteOptions::default())
        .unwrap();
    let then = setup.lookup(made.ino, b"f").unwrap().unwrap().ino;
    assert_eq!(setup.read(then).unwrap(), b"one");
    assert!(holds(&setup.list(snap).unwrap(), "mon"));
    // The other directory has it not; the root's list has all.
    let elsewhere = setup.snapshots_of(other).unwrap();
    assert!(!holds(&setup.list(elsewhere).unwrap(), "mon"));
    assert_eq!(setup.lookup(elsewhere, b"mon"), Err(Errno::ENOENT));
    assert_eq!(setup.mkdir(0, elsewhere, b"mon"), Err(Errno::EEXIST));
    assert_eq!(setup.rmdir(0, elsewhere, b"mon"), Err(Errno::ENOENT));
    let all = setup.snapshots_of(ROOT).unwrap();
    assert_eq!(all, ControlDir::Snapshots.number());
    assert!(holds(&setup.list(all).unwrap(), "mon"));
    assert_eq!(
        setup.mkdir(0, all, b"root").unwrap().attr.ino.0 & 0xff,
        ROOT.0
    );
    assert_eq!(setup.fs.snapshots().get("root").unwrap().root, ROOT);
    assert_eq!(setup.rmdir(0, all, b"mon"), Ok(()));
    assert_eq!(setup.list(made.ino), Err(Errno::ESTALE));
    assert_eq!(setup.lookup(snap, b"mon"), Err(Errno::ENOENT));
}

#[test]
fn mkdir_and_rmdir_have_the_rights_and_errors_of_the_command() {
    let setup = setup();
    let dir = setup.dir(b"d");
    let owner = SetAttr {
        uid: Some(OTHER),
        ..SetAttr::default()
    };
    let mine = setup.dir(b"mine");
    setup.fs.set_attr(&SUPER, mine, &owner).unwrap();
    let (snap, own) = (
        setup.snapshots_of(dir).unwrap(),
        setup.snapshots_of(mine).unwrap(),
    );
    assert_eq!(setup.mkdir(OTHER, snap, b"a"), Err(Errno::EPERM));
    assert!(setup.mkdir(OTHER, own, b"a").is_ok());
    assert!(setup.mkdir(0, snap, b"b").is_ok());
    assert_eq!(setup.rmdir(OTHER, snap, b"b"), Err(Errno::EPERM));
    setup.hold(0, "hold", "b").unwrap();
    assert_eq!(setup.rmdir(0, snap, b"b"), Err(Errno::EBUSY));
    setup.hold(0, "release", "b").unwrap();
    assert_eq!(setup.rmdir(0, snap, b"b"), Ok(()));
    assert_eq!(setup.rmdir(0, snap, b"b"), Err(Errno::ENOENT));
    assert_eq!(setup.mkdir(0, snap, b"\xff"), Err(Errno::EINVAL));
    // No other place of `.stitchfs` takes directories, and no past has one.
    let control = setup
        .lookup(dir, CONTROL_DIR.as_bytes())
        .unwrap()
        .unwrap()
        .ino;
    assert_eq!(setup.mkdir(0, control, b"x"), Err(Errno::EROFS));
    let then = setup.mkdir(0, snap, b"c").unwrap().ino;
    assert_eq!(setup.lookup(then, CONTROL_DIR.as_bytes()), Ok(None));
    // A directory may have a file of that name from before.
    assert_eq!(
        setup.mkdir(0, dir, CONTROL_DIR.as_bytes()),
        Err(Errno::EEXIST)
    );
    let real = setup.file(dir, CONTROL_DIR.as_bytes(), b"");
    let found = setup.lookup(dir, CONTROL_DIR.as_bytes()).unwrap().unwrap();
    assert_eq!(found.ino, real);
}
