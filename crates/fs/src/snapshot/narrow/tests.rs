//! Snapshots and clones that are made while a snapshot is narrowed.

use crate::testing::formatted;
use crate::{Caller, CloneSource, DirName, FileSystem, FsOptions, NewNode};
use std::sync::mpsc;
use std::time::Duration;
use stitch_base::Ino;
use stitch_base::sync::{Arc, Mutex};
use stitch_kv::{
    Direction, Engine, KeyRange, KvError, ModelEngine, PinInfo, PinRanges, Scan, Snapshot,
    WrappedEngine,
};

const SUPER: Caller<'static> = Caller::ROOT;
/// Longest time that a test waits for what is to come at once.
const PATIENCE: Duration = Duration::from_secs(20);

/// A call of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Scan,
    NarrowPin,
}

type Body = Box<dyn FnOnce() + Send>;

/// An engine whose next call of a kind waits for something else.
struct Stopping {
    inner: Arc<ModelEngine>,
    next: Mutex<Option<(Call, Body)>>,
}

impl Stopping {
    fn stop_at(&self, call: Call) {
        let mut next = self.next.lock();
        if next.as_ref().is_none_or(|(wanted, _)| *wanted != call) {
            return;
        }
        let body = next.take();
        drop(next);
        if let Some((_, body)) = body {
            body();
        }
    }
}

impl WrappedEngine for Stopping {
    fn inner(&self) -> &dyn Engine {
        &*self.inner
    }

    fn scan(
        &self,
        tree: stitch_base::TreeId,
        range: KeyRange<'_>,
        direction: Direction,
        at: Option<&Snapshot>,
    ) -> Result<Box<dyn Scan + '_>, KvError> {
        if at.is_some() {
            self.stop_at(Call::Scan);
        }
        self.inner.scan(tree, range, direction, at)
    }

    fn narrow_pin(&self, name: &str, ranges: &PinRanges) -> Result<PinInfo, KvError> {
        self.stop_at(Call::NarrowPin);
        self.inner.narrow_pin(name, ranges)
    }
}

const fn at(name: &str) -> DirName<'_> {
    DirName::new(Ino::ROOT, name.as_bytes())
}

/// Creates a snapshot and a clone of a directory.
fn make_both(fs: &FileSystem, dir: Ino) {
    let created = fs.snapshots().create(dir, "later");
    created.expect("it is created");
    let source = CloneSource {
        fs,
        dir,
        snapshot: None,
    };
    let made = fs.make_clone(&SUPER, &source, at("clone"));
    made.expect("it is made");
}

/// A round of the walk, or the edit at its end, is stopped: no command waits for it.
#[test]
fn snapshots_and_clones_are_made_while_a_snapshot_is_narrowed() {
    for call in [Call::Scan, Call::NarrowPin] {
        let options = FsOptions::default();
        let engine = Arc::new(Stopping {
            inner: formatted(&options),
            next: Mutex::default(),
        });
        let fs = FileSystem::open(Arc::clone(&engine) as _, options).expect("it opens");
        let fs = Arc::new(fs);
        let dir = fs.make_dir(&SUPER, at("d"), &NewNode::default());
        let dir = dir.expect("it is made").ino;
        fs.snapshots().create(dir, "first").expect("it is created");
        let (sender, receiver) = mpsc::channel();
        let beside = Arc::clone(&fs);
        let body = move || {
            let (done, is_done) = mpsc::channel();
            let thread = stitch_base::thread::spawn("test", move || {
                make_both(&beside, dir);
                done.send(()).ok();
            });
            drop(thread.expect("a thread starts"));
            let came = is_done.recv_timeout(PATIENCE);
            sender.send(came).expect("the test listens");
        };
        *engine.next.lock() = Some((call, Box::new(body)));
        while fs.snapshots().narrow_ahead().expect("it can be walked") {}
        let came = receiver.try_recv().expect("the call was made");
        assert_eq!(came, Ok(()), "{call:?}");
    }
}
