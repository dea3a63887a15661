//! Plain files in memory, which know what a power cut may leave of them: for tests and the
//! simulation.
//!
//! Each file has what was synced, what reads see, and the changes between. A power cut keeps any of
//! these changes, each write whole, or some of its sectors. A name that was not published may be
//! gone, and one that was removed may be back.

mod contents;
mod fault;

pub use fault::{PLAIN_OPS, PlainFault, PlainHit};

use contents::{MemContents, PAGE};

use super::{ExternalError, ExternalFiles, ExternalName, ExternalResult};
use crate::SeekFor;
use crate::data::FILE_BYTES_MAX;
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use stitch_base::random::Rng;
use stitch_base::sync::{Arc, Mutex};
use stitch_base::{ErrorKind, Ino};

/// Where no file is meant.
const NOBODY: ExternalName = ExternalName {
    ino: Ino(0),
    number: 0,
};

/// Plain files in memory. A handle: clones are the same files.
#[derive(Clone, Default)]
pub struct MemFiles {
    state: Arc<Mutex<State>>,
}

impl fmt::Debug for MemFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self
            .state
            .lock()
            .files
            .keys()
            .map(ToString::to_string)
            .collect();
        f.debug_struct("MemFiles").field("names", &names).finish()
    }
}

/// The files of one moment.
#[derive(Clone, Default)]
pub struct MemFilesPoint {
    state: State,
}

impl fmt::Debug for MemFilesPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemFilesPoint").finish_non_exhaustive()
    }
}

#[derive(Clone, Default)]
struct State {
    files: BTreeMap<ExternalName, File>,
    /// Removed, and perhaps still there after a power cut.
    removed: BTreeMap<ExternalName, File>,
    faults: fault::Faults,
    /// Bytes that all files together may have.
    room: Option<u64>,
}

#[derive(Clone, Default)]
struct File {
    current: MemContents,
    durable: MemContents,
    pending: Vec<FileChange>,
    is_published: bool,
    /// Changes so far.
    change_count: u64,
    /// A sync that failed has lost what is still read.
    is_unsure: bool,
}

#[derive(Clone)]
enum FileChange {
    Write {
        at: u64,
        bytes: Arc<[u8]>,
    },
    SetLen(u64),
    /// Changes nothing that is read.
    Allocate,
    Punch {
        at: u64,
        len: u64,
    },
}

impl File {
    fn change(&mut self, change: FileChange) {
        debug_assert!(
            !self.pending.is_empty() || self.durable.len == self.current.len,
            "what was synced is what is read"
        );
        self.current.apply(&change);
        self.pending.push(change);
        self.change_count += 1;
    }

    fn sync(&mut self) {
        for change in self.pending.drain(..) {
            self.durable.apply(&change);
            self.durable.check();
        }
        debug_assert_eq!(
            self.durable.len, self.current.len,
            "what is read is durable"
        );
        debug_assert!(
            self.is_unsure || self.durable.pages.len() == self.current.pages.len(),
            "the holes that are read are durable, unless an earlier sync failed"
        );
    }

    /// What a power cut leaves.
    fn cut(mut self, rng: &mut Rng) -> Self {
        debug_assert!(
            !self.pending.is_empty() || self.durable.len == self.current.len,
            "what was synced is what is read"
        );
        let keeps = rng.below(3);
        for change in std::mem::take(&mut self.pending) {
            let is_kept = match keeps {
                0 => false,
                1 => true,
                _ => rng.one_in(2),
            };
            match change {
                FileChange::Write { at, bytes } if is_kept && rng.one_in(3) => {
                    self.durable.tear(at, &bytes, rng);
                }
                change if is_kept => self.durable.apply(&change),
                _ => {}
            }
        }
        Self {
            current: self.durable.clone(),
            durable: self.durable,
            pending: Vec::new(),
            is_published: true,
            change_count: self.change_count,
            is_unsure: false,
        }
    }
}

impl MemFilesPoint {
    /// What is there if the process is killed now, and the machine lives on. What was not durable
    /// still is not.
    #[must_use]
    pub fn kill(&self) -> MemFiles {
        debug_assert!(
            self.state.faults.planned.is_empty(),
            "faults end with the process"
        );
        let state = Arc::new(Mutex::new(self.state.clone()));
        MemFiles { state }
    }

    /// What is there if the power goes now. Other draws leave other things.
    #[must_use]
    pub fn cut(&self, rng: &mut Rng) -> MemFiles {
        let mut left = State::default();
        for (name, file) in &self.state.files {
            if file.is_published || rng.one_in(2) {
                left.files.insert(*name, file.clone().cut(rng));
            }
        }
        for (name, file) in &self.state.removed {
            if !left.files.contains_key(name) && rng.one_in(2) {
                left.files.insert(*name, file.clone().cut(rng));
            }
        }
        debug_assert!(
            left.files.len() <= self.state.files.len() + self.state.removed.len(),
            "no file comes from nowhere"
        );
        let mut published = self
            .state
            .files
            .iter()
            .filter(|(_, file)| file.is_published);
        debug_assert!(
            published.all(|(name, _)| left.files.contains_key(name)),
            "a name that was published outlives a power cut"
        );
        debug_assert!(
            left.files.values().all(|file| file.pending.is_empty()),
            "what a power cut leaves is durable"
        );
        let state = Arc::new(Mutex::new(left));
        MemFiles { state }
    }
}

impl MemFiles {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The files as they are now, without the errors that are planned.
    #[must_use]
    pub fn freeze(&self) -> MemFilesPoint {
        let mut state = self.state.lock().clone();
        state.faults = fault::Faults::default();
        MemFilesPoint { state }
    }

    /// From now on an operation of [`PLAIN_OPS`] fails and does nothing; with `None` no more.
    pub fn fail(&self, op: &'static str, kind: Option<ErrorKind>) {
        debug_assert!(PLAIN_OPS.contains(&op), "it is one of the list");
        let failing = &mut self.state.lock().faults.failing;
        match kind {
            Some(kind) => failing.insert(op, kind),
            None => failing.remove(op),
        };
    }

    /// Plans a fault. Its calls are counted from the first one on.
    pub fn add_fault(&self, fault: PlainFault) {
        assert!(fault.nth > 0, "calls are counted from 1");
        assert!(fault.count > 0, "some call fails");
        debug_assert!(
            fault.op.is_none_or(|op| PLAIN_OPS.contains(&op)),
            "it is one of the list"
        );
        self.state.lock().faults.planned.push(fault);
    }

    /// Forgets the faults that are planned.
    pub fn clear_faults(&self) {
        self.state.lock().faults.planned.clear();
    }

    /// Until it is ended, no call counts or fails by a fault.
    pub fn pause_faults(&self, is_paused: bool) {
        self.state.lock().faults.is_paused = is_paused;
    }

    /// Calls so far of each operation.
    #[must_use]
    pub fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.state.lock().faults.calls.clone()
    }

    /// Files of which something is read that is not durable, and that a further sync does not make
    /// durable: those of syncs that failed.
    #[must_use]
    pub fn unsure(&self) -> Vec<ExternalName> {
        let state = self.state.lock();
        let unsure = state.files.iter().filter(|(_, file)| file.is_unsure);
        unsure.map(|(name, _)| *name).collect()
    }

    /// Calls that a fault has hit, in their order.
    #[must_use]
    pub fn hits(&self) -> Vec<PlainHit> {
        let state = self.state.lock();
        debug_assert!(
            state.faults.hits.len() as u64 <= state.faults.calls.values().sum(),
            "each hit is a call"
        );
        state.faults.hits.clone()
    }

    /// All files together may have so many bytes.
    pub fn set_room(&self, bytes: Option<u64>) {
        self.state.lock().room = bytes;
    }

    /// Does `body`; where the call is to fail, `partly`.
    fn with<T>(
        &self,
        op: &'static str,
        name: ExternalName,
        partly: impl FnOnce(&mut State, &mut Rng),
        body: impl FnOnce(&mut State) -> Option<T>,
    ) -> ExternalResult<T>
    where
        T: Default,
    {
        debug_assert_ne!(name, NOBODY, "a file is meant");
        let mut state = self.state.lock();
        if let Some(failing) = state.faults.enter(op, Some(name)) {
            debug_assert!(
                !failing.is_hidden || failing.rng.is_some(),
                "planned faults alone are hidden"
            );
            if let Some(mut rng) = failing.rng {
                partly(&mut state, &mut rng);
            }
            return match failing.is_hidden {
                true => Ok(T::default()),
                false => Err(failed(op, name, failing.kind)),
            };
        }
        body(&mut state).ok_or_else(|| failed(op, name, ErrorKind::NotFound))
    }

    /// As [`Self::with`], of a file that is only looked at.
    fn of<T: Default>(
        &self,
        op: &'static str,
        name: ExternalName,
        body: impl FnOnce(&mut File) -> T,
    ) -> ExternalResult<T> {
        let of_file = |state: &mut State| state.files.get_mut(&name).map(body);
        self.with(op, name, |_, _| {}, of_file)
    }

    fn change(
        &self,
        op: &'static str,
        name: ExternalName,
        change: FileChange,
    ) -> ExternalResult<()> {
        let part = change.clone();
        self.with(
            op,
            name,
            |state, rng| state.change_partly(name, part, rng),
            |state| state.files.get_mut(&name).map(|file| file.change(change)),
        )
    }

    fn sync_with(&self, name: ExternalName, body: impl FnOnce(&mut File)) -> ExternalResult<()> {
        self.with(
            "sync",
            name,
            |state, rng| {
                if let Some(file) = state.files.get_mut(&name) {
                    file.sync_partly(rng);
                }
            },
            |state| state.files.get_mut(&name).map(body),
        )
    }
}

fn failed(op: &'static str, name: ExternalName, kind: ErrorKind) -> ExternalError {
    debug_assert!(PLAIN_OPS.contains(&op), "it is one of the list");
    ExternalError {
        path: name.to_string(),
        op,
        reason: kind.to_string(),
        kind,
    }
}

impl ExternalFiles for MemFiles {
    fn create(&self, name: ExternalName) -> ExternalResult<()> {
        debug_assert!(name.number > 0, "0 is the number of no plain file");
        let make = |state: &mut State| {
            let is_there = state.files.contains_key(&name);
            state.files.entry(name).or_default();
            is_there
        };
        let partly = |state: &mut State, rng: &mut Rng| {
            if rng.one_in(2) {
                make(state);
            }
        };
        let is_there = self.with("create", name, partly, |state| Some(make(state)))?;
        match is_there {
            false => Ok(()),
            true => Err(failed("create", name, ErrorKind::Exists)),
        }
    }

    fn read_at(
        &self,
        name: ExternalName,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> ExternalResult<usize> {
        self.of("read", name, |file| file.current.read(offset, len, out))
    }

    fn write_at(&self, name: ExternalName, offset: u64, bytes: &[u8]) -> ExternalResult<()> {
        debug_assert!(
            bytes.len() as u64 <= FILE_BYTES_MAX.saturating_sub(offset),
            "the caller has checked the end"
        );
        {
            let state = self.state.lock();
            let used: u64 = state.files.values().map(|file| file.current.len).sum();
            let len = state.files.get(&name).map_or(0, |file| file.current.len);
            debug_assert!(len <= used, "each file is a part of the sum");
            let more = (offset + bytes.len() as u64).saturating_sub(len);
            if state.room.is_some_and(|room| used + more > room) {
                return Err(failed("write", name, ErrorKind::NoSpace));
            }
        }
        let bytes = bytes.into();
        self.change("write", name, FileChange::Write { at: offset, bytes })
    }

    fn set_len(&self, name: ExternalName, len: u64) -> ExternalResult<()> {
        debug_assert!(len <= FILE_BYTES_MAX, "the caller has checked the end");
        self.change("cut", name, FileChange::SetLen(len))
    }

    fn punch(&self, name: ExternalName, offset: u64, len: u64) -> ExternalResult<()> {
        debug_assert!(len > 0, "a host refuses an empty range");
        debug_assert!(
            len <= FILE_BYTES_MAX.saturating_sub(offset),
            "the range is within the file"
        );
        self.change("punch", name, FileChange::Punch { at: offset, len })
    }

    fn allocate(&self, name: ExternalName, offset: u64, len: u64) -> ExternalResult<()> {
        debug_assert!(len > 0, "a host refuses an empty range");
        debug_assert!(offset.checked_add(len).is_some(), "a range of bytes");
        self.change("allocate", name, FileChange::Allocate)
    }

    fn seek(&self, name: ExternalName, offset: u64, what: SeekFor) -> ExternalResult<Option<u64>> {
        self.of("seek", name, |file| {
            let contents = &file.current;
            let is_data = |page: u64| contents.pages.contains_key(&page);
            let last = contents.len.div_ceil(PAGE);
            let wanted = matches!(what, SeekFor::Data);
            let mut pages = offset / PAGE..last;
            let found = match what {
                SeekFor::Data => contents.pages.range(pages).next().map(|(page, _)| *page),
                SeekFor::Hole => pages.find(|&page| is_data(page) == wanted),
            };
            let found = found.map(|page| (page * PAGE).max(offset));
            let found = match what {
                SeekFor::Data => found.filter(|&at| at < contents.len),
                SeekFor::Hole => Some(found.unwrap_or(contents.len).min(contents.len)),
            };
            debug_assert!(
                found.is_none_or(|at| at >= offset.min(contents.len)),
                "nothing before the offset is found"
            );
            found
        })
    }

    fn len(&self, name: ExternalName) -> ExternalResult<u64> {
        self.of("open", name, |file| file.current.len)
    }

    fn sync(&self, name: ExternalName) -> ExternalResult<()> {
        self.sync_with(name, File::sync)
    }

    fn publish(&self, name: ExternalName) -> ExternalResult<()> {
        self.sync_with(name, |file| {
            file.sync();
            file.is_published = true;
        })
    }

    fn remove(&self, name: ExternalName) -> ExternalResult<()> {
        let go = |state: &mut State| {
            if let Some(file) = state.files.remove(&name) {
                state.removed.insert(name, file);
            }
        };
        let partly = |state: &mut State, rng: &mut Rng| {
            if rng.one_in(2) {
                go(state);
            }
        };
        self.with("remove", name, partly, |state| {
            go(state);
            Some(())
        })
    }

    fn set_aside(&self, name: ExternalName) -> ExternalResult<String> {
        self.remove(name).map(|()| format!("lost+found/{name}"))
    }

    fn list(&self) -> ExternalResult<Vec<(ExternalName, u64)>> {
        let mut state = self.state.lock();
        if let Some(failing) = state.faults.enter("list", None) {
            return Err(failed("list", NOBODY, failing.kind));
        }
        let all = state.files.iter();
        Ok(all.map(|(name, file)| (*name, file.current.len)).collect())
    }

    fn path(&self, name: ExternalName) -> String {
        name.to_string()
    }

    fn free_bytes(&self) -> ExternalResult<u64> {
        let mut state = self.state.lock();
        if let Some(failing) = state.faults.enter("space", None) {
            return Err(failed("space", NOBODY, failing.kind));
        }
        let used: u64 = state.files.values().map(|file| file.current.len).sum();
        Ok(state.room.unwrap_or(1 << 40).saturating_sub(used))
    }

    fn modified(&self, name: ExternalName) -> ExternalResult<u64> {
        self.of("open", name, |file| file.change_count)
    }

    fn host_file(&self, name: ExternalName) -> ExternalResult<OwnedFd> {
        Err(failed("open", name, ErrorKind::Unsupported))
    }

    fn sample(&self) -> ExternalResult<OwnedFd> {
        self.host_file(NOBODY)
    }
}
