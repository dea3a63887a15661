//! One life of a store: its changes, and the streams that are sent and received in it.

use super::dir::SimDir;
use crate::files::tree::{self, Node, Tree};
use crate::files::views::ops::{self, ViewOp, ViewWhat};
use crate::files::views::paths::below;
use crate::files::views::{Views, is_refusal};
use crate::files::{LiveFs, What};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use stitch_base::random::Rng;
use stitch_base::sync::Arc;
use stitch_base::sync::atomic::Ordering;
use stitch_fs::{FileKind, FsError};
use stitch_send::{
    Beneath as _, RECEIVED_XATTR, ReceiveOptions, SendError, SendId, SendToken, Sender, Side,
    TreeOptions, receive_at, token_at,
};

/// The directory of which snapshots are sent.
const SOURCE: &str = "src";
/// The directory in which they are received. No other operation changes it.
const TARGET: &str = "in";
/// Where a receiver keeps its state.
const STAGING: &str = ".stitchfs-receive";
/// Share of the steps of a stream after which another operation runs.
const BESIDE_ONE_IN: u64 = 6;
/// Most bytes of a stream between two states of the receiver.
const CHECKPOINT_BYTES_MAX: u64 = 40_000;

/// A snapshot, and what it must stay.
pub(super) struct SentSnapshot {
    name: &'static str,
    id: SendId,
    created_ns: i64,
    tree: Tree,
    /// The stream that was made of it first.
    stream: RefCell<Option<Vec<u8>>>,
}

impl SentSnapshot {
    /// Compares a stream with the first one of the same two snapshots.
    pub(super) fn expect_stream(&self, stream: &[u8]) -> Result<(), String> {
        let mut first = self.stream.borrow_mut();
        let first = first.get_or_insert_with(|| stream.to_vec());
        match first[..] == *stream {
            true => Ok(()),
            false => Err(format!(
                "a stream of {:?} has {} bytes, and had {}, or differs",
                self.name,
                stream.len(),
                first.len()
            )),
        }
    }
}

/// What the directory of the receiver holds.
pub(super) enum TargetState {
    Nothing,
    Part(SendToken),
    /// The snapshot of this index.
    Whole(usize),
}

/// How a receiver is to end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReceiverEnd {
    Whole,
    /// The stream ends before its end.
    Cut,
    /// The receiver is killed after so many calls.
    Killed(u64),
}

/// How a receiver has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiverOutcome {
    Whole,
    Early,
    NoSpace,
}

/// An open store.
pub(super) struct Work {
    live: Arc<LiveFs>,
    rng: RefCell<Rng>,
    at: Cell<u64>,
    ops: Cell<u64>,
    /// Operations beside a stream that failed.
    failure: RefCell<Option<String>>,
}

fn text(error: FsError) -> String {
    error.to_string()
}

impl Work {
    pub(super) fn new(live: LiveFs, rng: Rng, at: u64) -> Self {
        Self {
            live: Arc::new(live),
            rng: RefCell::new(rng),
            at: Cell::new(at),
            ops: Cell::new(0),
            failure: RefCell::default(),
        }
    }

    pub(super) fn live(&self) -> &LiveFs {
        &self.live
    }

    pub(super) fn ops(&self) -> u64 {
        self.ops.get()
    }

    pub(super) fn at(&self) -> u64 {
        self.at.get()
    }

    /// # Panics
    /// If a directory is still open.
    pub(super) fn into_live(self) -> LiveFs {
        let live = Arc::into_inner(self.live);
        live.expect("senders and receivers have closed their directories")
    }

    /// The next second of the clock.
    fn tick(&self) -> u64 {
        let at = self.at.get() + 1;
        self.at.set(at);
        self.live.clock.seconds.store(at, Ordering::SeqCst);
        at
    }

    /// Does one operation, unless it is refused.
    fn run(&self, what: ViewWhat) -> Result<(), String> {
        let at = self.at.get();
        if what.is_step() {
            return self.step();
        }
        self.ops.set(self.ops.get() + 1);
        let op = ViewOp { at, what };
        let mut held = Vec::new();
        let done = ops::run(&self.live.fs, &op, &mut held);
        held.into_iter()
            .for_each(|ino| self.live.fs.close_handle(ino));
        match done {
            Err(e) if !is_refusal(&e) && !matches!(e, FsError::NoSpace) => {
                Err(format!("{op:?} failed: {e}"))
            }
            _ => Ok(()),
        }
    }

    fn step(&self) -> Result<(), String> {
        (self.live.step)().map(drop).map_err(|e| e.to_string())
    }

    pub(super) fn make_source(&self) -> Result<(), String> {
        self.tick();
        let path = SOURCE.to_owned();
        self.run(ViewWhat::Main(What::MakeDir { path }))
    }

    /// Changes the source, or rolls it back, or lets a transaction change it.
    pub(super) fn change_source(&self) -> Result<(), String> {
        let at = self.tick();
        let views = Views::read(&self.live.fs).map_err(text)?;
        let mut rng = self.rng.borrow_mut();
        let what = match rng.below(12) {
            0 => ops::generate(&views, at, &mut rng),
            1 => ViewWhat::Run {
                ops: (0..3)
                    .map(|_| ops::in_dir(&views.main, SOURCE, at, &mut rng))
                    .collect(),
                commits: true,
            },
            _ => ViewWhat::Main(ops::in_dir(&views.main, SOURCE, at, &mut rng)),
        };
        drop(rng);
        let is_clone = matches!(
            what,
            ViewWhat::Clone { .. } | ViewWhat::CloneSnapshot { .. }
        );
        match is_clone || moves(&what, SOURCE) {
            true => Ok(()),
            false => self.run(what),
        }
    }

    pub(super) fn create_snapshot(&self, name: &'static str) -> Result<SentSnapshot, String> {
        self.tick();
        let fs = &self.live.fs;
        let made = tree::with_path(fs, SOURCE, |ino| fs.snapshots().create(ino, name));
        let created_ns = made.map_err(text)?.created.0;
        let dir = SimDir::past(&self.live, name).map_err(text)?;
        Ok(SentSnapshot {
            name,
            id: SendId::of(name.as_bytes(), 1, created_ns),
            created_ns,
            tree: dir.read().map_err(text)?,
            stream: RefCell::default(),
        })
    }

    /// Compares a snapshot with what it was.
    pub(super) fn expect_past(&self, past: &SentSnapshot) -> Result<(), String> {
        let dir = SimDir::past(&self.live, past.name).map_err(text)?;
        let found = dir.read().map_err(text)?;
        match found == past.tree {
            true => Ok(()),
            false => Err(format!(
                "snapshot {:?} changed: {}",
                past.name,
                tree::difference(&found, &past.tree)
            )),
        }
    }

    /// Runs another operation now and then.
    fn beside(&self) {
        if !self.rng.borrow_mut().one_in(BESIDE_ONE_IN) {
            return;
        }
        if let Err(message) = self.change_beside() {
            self.failure.borrow_mut().get_or_insert(message);
        }
    }

    fn change_beside(&self) -> Result<(), String> {
        let at = self.tick();
        if self.rng.borrow_mut().one_in(4) {
            return self.step();
        }
        let mut views = Views::read(&self.live.fs).map_err(text)?;
        views.hide(TARGET);
        let what = ops::generate(&views, at, &mut self.rng.borrow_mut());
        match moves(&what, TARGET) {
            true => Ok(()),
            false => self.run(what),
        }
    }

    fn done(&self) -> Result<(), String> {
        self.failure.borrow_mut().take().map_or(Ok(()), Err)
    }

    /// Makes a stream of a snapshot, from another one or from nothing.
    pub(super) fn send(
        &self,
        base: Option<&SentSnapshot>,
        past: &SentSnapshot,
        rest: Option<&SendToken>,
    ) -> Result<Vec<u8>, String> {
        let read = |past: &SentSnapshot| -> Result<stitch_send::Tree, String> {
            let dir = SimDir::past(&self.live, past.name).map_err(text)?;
            let tree = stitch_send::Tree::read_at(dir.into_root(), &TreeOptions::default());
            tree.map_err(|e| e.to_string())
        };
        let (old, new) = (base.map(read).transpose()?, read(past)?);
        let mut progress = |_: u64, _: u64, _: u64| self.beside();
        let base = base.zip(old.as_ref()).map(|(past, tree)| side(past, tree));
        let sender = Sender::new(base, side(past, &new), &mut progress);
        let mut out = Vec::new();
        sender
            .and_then(|mut sender| sender.send(&mut out, rest))
            .map_err(|e| format!("send of {:?} failed: {e}", past.name))?;
        self.done()?;
        Ok(out)
    }

    /// Receives a stream.
    pub(super) fn receive(
        &self,
        stream: &[u8],
        end: ReceiverEnd,
    ) -> Result<ReceiverOutcome, String> {
        let options = ReceiveOptions {
            checkpoint_bytes: 1 + self.rng.borrow_mut().below(CHECKPOINT_BYTES_MAX),
            ..ReceiveOptions::default()
        };
        self.tick();
        let mut open = |is_new: bool| {
            if is_new {
                self.make_target();
            }
            let dir = SimDir::live(&self.live, TARGET);
            Ok(match end {
                ReceiverEnd::Killed(calls) => dir.with_calls(calls).into_root(),
                ReceiverEnd::Whole | ReceiverEnd::Cut => dir.into_root(),
            })
        };
        let mut progress = |_: u64, _: u64, _: u64| self.beside();
        let received = receive_at(&mut &stream[..], &mut open, options, &mut progress);
        self.done()?;
        match received {
            Ok(received) if received.left != Default::default() => {
                Err(format!("not received: {:?}", received.left))
            }
            Ok(_) if end == ReceiverEnd::Cut => {
                Err("a stream without its end was received".to_owned())
            }
            Ok(_) => Ok(ReceiverOutcome::Whole),
            Err(e) if has_errno(&e, Errno::NOSPC) => Ok(ReceiverOutcome::NoSpace),
            Err(e) if end == ReceiverEnd::Cut && is_truncated(&e) => Ok(ReceiverOutcome::Early),
            Err(e) if matches!(end, ReceiverEnd::Killed(_)) && has_errno(&e, Errno::IO) => {
                Ok(ReceiverOutcome::Early)
            }
            Err(e) => Err(format!("receive failed: {e}")),
        }
    }

    fn make_target(&self) {
        match SimDir::live(&self.live, TARGET).make_dir(b"") {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => drop(self.failure.borrow_mut().get_or_insert(errno.to_string())),
        }
    }

    /// Reads what the directory of the receiver holds.
    pub(super) fn held(&self, pasts: &[SentSnapshot]) -> Result<TargetState, String> {
        let dir = SimDir::live(&self.live, TARGET);
        let root = dir.clone().into_root();
        if root.stat(b"") == Err(Errno::NOENT) {
            return Ok(TargetState::Nothing);
        }
        let token = token_at(&root).map_err(|e| format!("no token: {e}"))?;
        if let Some(token) = token {
            return Ok(TargetState::Part(token));
        }
        match root.xattr(b"", RECEIVED_XATTR.as_bytes()) {
            Ok(id) => {
                let is_it = |past: &SentSnapshot| past.id.to_string().as_bytes() == id;
                let index = pasts.iter().position(is_it);
                index
                    .map(TargetState::Whole)
                    .ok_or("of no snapshot".to_owned())
            }
            Err(Errno::NODATA) => {
                let mut tree = dir.read().map_err(text)?;
                tree.retain(|path, _| !path.is_empty() && below(path, STAGING).is_none());
                match tree.into_keys().next() {
                    None => Ok(TargetState::Nothing),
                    Some(path) => Err(format!("without a state there is {path:?}")),
                }
            }
            Err(errno) => Err(format!("no identity: {errno}")),
        }
    }

    /// Compares the directory of the receiver with a snapshot. `is_new`: it was received just now.
    pub(super) fn expect_received(&self, past: &SentSnapshot, is_new: bool) -> Result<(), String> {
        let found = SimDir::live(&self.live, TARGET).read().map_err(text)?;
        let (mut found, mut wanted) = (sent_of(&found), sent_of(&past.tree));
        // A receiver comes and goes with a directory.
        let has_staging = !is_new && found.contains_key(STAGING);
        found.retain(|path, _| is_new || below(path, STAGING).is_none());
        for tree in [&mut found, &mut wanted] {
            let root = tree.get_mut("").expect("it has a root");
            root.xattrs.remove(RECEIVED_XATTR.as_bytes());
            if !is_new {
                root.attr.mtime = Default::default();
            }
        }
        let root = found.get_mut("").expect("it has a root");
        root.attr.nlink -= u32::from(has_staging);
        match found == wanted {
            true => Ok(()),
            false => Err(format!(
                "{:?} was received, and is not the same: {}",
                past.name,
                tree::difference(&found, &wanted)
            )),
        }
    }
}

fn side<'a>(past: &SentSnapshot, tree: &'a stitch_send::Tree) -> Side<'a> {
    Side {
        tree,
        name: past.name.as_bytes(),
        id: past.id,
        created_ns: past.created_ns,
        since_ns: past.created_ns,
    }
}

/// Reports whether an operation renames or removes a directory, or rolls one above it back.
fn moves(what: &ViewWhat, dir: &str) -> bool {
    match what {
        ViewWhat::RollBack { of, dir: back, .. } => {
            of.is_empty() && back != dir && below(dir, back).is_some()
        }
        ViewWhat::Main(what) => names(what, dir),
        ViewWhat::InTransaction { what, .. } => names(what, dir),
        ViewWhat::Run { ops, .. } => ops.iter().any(|what| names(what, dir)),
        _ => false,
    }
}

fn names(what: &What, dir: &str) -> bool {
    match what {
        What::Rename { source, target, .. } => source == dir || target == dir,
        What::RemoveDir { path } => path == dir,
        _ => false,
    }
}

fn has_errno(error: &SendError, errno: Errno) -> bool {
    match error {
        SendError::Io { source, .. } => source.raw_os_error() == Some(errno.raw_os_error()),
        SendError::Interrupted { cause, .. } => has_errno(cause, errno),
        _ => false,
    }
}

fn is_truncated(error: &SendError) -> bool {
    match error {
        SendError::Truncated { .. } => true,
        SendError::Interrupted { cause, .. } => is_truncated(cause),
        _ => false,
    }
}

/// What a stream carries of a tree.
fn sent_of(tree: &Tree) -> Tree {
    let sent = |node: &Node| {
        let mut node = node.clone();
        let attr = &mut node.attr;
        (attr.ctime, attr.btime, attr.iflags) = (Default::default(), Default::default(), 0);
        match attr.kind {
            FileKind::Directory => attr.size = 0,
            // Names may be outside of the directory. `first` tells which are of one file.
            _ => attr.nlink = 1,
        }
        if attr.kind == FileKind::Symlink {
            // No call of the kernel sets the mode of a symbolic link.
            attr.perm = 0o777;
        }
        node
    };
    tree.iter()
        .map(|(path, node)| (path.clone(), sent(node)))
        .collect()
}
