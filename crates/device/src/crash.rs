//! An in-memory device that simulates power cuts.
//!
//! It keeps two images: the durable bytes of the last sync, and the bytes that reads return. The
//! writes since that sync are kept as a list. A power cut may leave the durable image plus any
//! subset of those writes, in any order, each whole or torn at sector boundaries;
//! [`CrashDevice::crash_image`] draws one such image. A killed process leaves everything written:
//! [`CrashDevice::kill_image`].
//!
//! A [`CrashPlan`] stops the device at its n-th write or sync: that call and all later ones fail. A
//! test reaches every crash point of a workload by counting n up. A watcher reaches them all in one
//! run: it may freeze the device as a [`CrashPoint`] at every write and sync.

mod cut;

use crate::counter::{Counters, Request};
use crate::pages::{PAGE_BYTES, Pages};
use crate::window::check_within;
use crate::{Device, DeviceCounters, DeviceError, Geometry, MemDevice, Window};
use rustix::io::Errno;
use std::fmt;
use stitch_base::random::Rng;
use stitch_base::sync::{Arc, Mutex, MutexGuard};

const NAME: &str = "crash device";

/// The byte that reads of a discarded range return. It resembles no valid data.
const JUNK: u8 = 0xdb;

/// The call at which the device stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrashPlan {
    sync: Option<u64>,
    write: Option<u64>,
}

impl CrashPlan {
    /// Never stops.
    pub const NEVER: Self = Self {
        sync: None,
        write: None,
    };

    /// Fails the n-th sync, from 1, and every later call. The writes before it may or may not be
    /// durable.
    #[must_use]
    pub const fn at_sync(n: u64) -> Self {
        Self {
            sync: Some(n),
            write: None,
        }
    }

    /// Fails the n-th write, from 1, and every later call. The write itself may reach the medium,
    /// like any other.
    #[must_use]
    pub const fn at_write(n: u64) -> Self {
        Self {
            sync: None,
            write: Some(n),
        }
    }
}

/// One change since the last sync.
#[derive(Clone, Debug)]
enum Change {
    Write { at: u64, bytes: Arc<[u8]> },
    Discard { at: u64, len_bytes: u64 },
}

/// State of a device at one moment: its durable bytes, and the changes since the last sync.
#[derive(Clone, Debug)]
pub struct CrashPoint {
    len_bytes: u64,
    durable: Pages,
    current: Pages,
    pending: Vec<Change>,
}

impl CrashPoint {
    /// Draws an image that the medium may hold if the power fails now. Other draws give other
    /// images.
    #[must_use]
    pub fn crash_image(&self, rng: &mut Rng) -> MemDevice {
        let mut pages = self.durable.clone();
        cut::apply(&mut pages, &self.pending, rng);
        MemDevice::from_pages(self.len_bytes, pages)
    }

    /// Returns the image that the medium holds if the process is killed now, and the machine keeps
    /// running.
    #[must_use]
    pub fn kill_image(&self) -> MemDevice {
        MemDevice::from_pages(self.len_bytes, self.current.clone())
    }

    /// Returns a running device in this state, as the next process after a kill finds it: changes
    /// that were not durable still are not.
    #[must_use]
    pub fn resume(&self) -> CrashDevice {
        CrashDevice::from_point(self.clone(), CrashPlan::NEVER)
    }

    /// Writes and discards since the last sync.
    #[must_use]
    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Removes everything from `end` on.
    fn cut(&mut self, end: u64) {
        self.len_bytes = self.len_bytes.min(end);
        self.durable.cut(end);
        self.current.cut(end);
        self.pending.retain_mut(|change| match change {
            Change::Write { at, bytes } => {
                let kept = usize::try_from(end.saturating_sub(*at)).unwrap_or(usize::MAX);
                if kept < bytes.len() {
                    *bytes = bytes[..kept].into();
                }
                kept > 0
            }
            Change::Discard { at, len_bytes } => {
                *len_bytes = (*len_bytes).min(end.saturating_sub(*at));
                *len_bytes > 0
            }
        });
    }
}

/// A write that has just been made, or a sync that is about to be made.
pub struct Moment<'a> {
    /// True for a sync, which has made nothing durable yet.
    pub is_sync: bool,
    point: &'a CrashPoint,
}

impl Moment<'_> {
    /// The device as it is now.
    #[must_use]
    pub fn freeze(&self) -> CrashPoint {
        self.point.clone()
    }
}

type Watcher = Box<dyn FnMut(&Moment<'_>) + Send>;

struct CrashState {
    point: CrashPoint,
    watcher: Option<Watcher>,
    plan: CrashPlan,
    writes: u64,
    syncs: u64,
    is_stopped: bool,
}

impl fmt::Debug for CrashState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CrashState")
            .field("plan", &self.plan)
            .field("writes", &self.writes)
            .field("syncs", &self.syncs)
            .field("is_stopped", &self.is_stopped)
            .finish_non_exhaustive()
    }
}

/// An in-memory device that simulates power cuts. See the module.
#[derive(Debug)]
pub struct CrashDevice {
    shared: Arc<Shared>,
}

/// State that a device and its windows share.
#[derive(Debug)]
struct Shared {
    state: Mutex<CrashState>,
    counters: Counters,
}

impl CrashDevice {
    /// A device of zeros.
    ///
    /// # Panics
    /// If `len_bytes` is not a multiple of 4 KiB.
    #[must_use]
    pub fn new(len_bytes: u64, plan: CrashPlan) -> Self {
        Self::from_image(&MemDevice::new(len_bytes), plan)
    }

    /// A device whose durable bytes are those of `image`.
    #[must_use]
    pub fn from_image(image: &MemDevice, plan: CrashPlan) -> Self {
        let pages = image.pages();
        let point = CrashPoint {
            len_bytes: image.geometry().len_bytes,
            durable: pages.clone(),
            current: pages,
            pending: Vec::new(),
        };
        Self::from_point(point, plan)
    }

    fn from_point(point: CrashPoint, plan: CrashPlan) -> Self {
        let state = CrashState {
            point,
            watcher: None,
            plan,
            writes: 0,
            syncs: 0,
            is_stopped: false,
        };
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                counters: Counters::default(),
            }),
        }
    }

    /// The device as it is now.
    #[must_use]
    pub fn freeze(&self) -> CrashPoint {
        self.shared.state.lock().point.clone()
    }

    /// Draws an image as [`CrashPoint::crash_image`] does, of the current state.
    #[must_use]
    pub fn crash_image(&self, rng: &mut Rng) -> MemDevice {
        self.freeze().crash_image(rng)
    }

    /// Returns an image as [`CrashPoint::kill_image`] does, of the current state.
    #[must_use]
    pub fn kill_image(&self) -> MemDevice {
        self.freeze().kill_image()
    }

    /// Writes and discards since the last sync.
    #[must_use]
    pub fn pending_count(&self) -> usize {
        self.shared.state.lock().point.pending_count()
    }

    /// Calls `watcher` after every write and before every sync. The device does not change during
    /// the call.
    pub fn watch(&self, watcher: impl FnMut(&Moment<'_>) + Send + 'static) {
        self.shared.state.lock().watcher = Some(Box::new(watcher));
    }

    /// Ends [`Self::watch`].
    pub fn unwatch(&self) {
        self.shared.state.lock().watcher = None;
    }

    /// Stops the device now: every later call fails.
    pub fn stop(&self) {
        self.shared.state.lock().is_stopped = true;
    }

    /// True once the plan's point is reached, or after [`Self::stop`].
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.shared.state.lock().is_stopped
    }

    /// A new plan, counting from here.
    pub fn set_plan(&self, plan: CrashPlan) {
        let mut state = self.shared.state.lock();
        state.plan = plan;
        state.writes = 0;
        state.syncs = 0;
    }
}

impl Shared {
    /// Locks the state, after checking that the device runs and that `request` lies within it.
    fn running(&self, request: Request) -> Result<MutexGuard<'_, CrashState>, DeviceError> {
        let state = self.state.lock();
        request.check(NAME, state.point.len_bytes)?;
        state.check_running(request)?;
        Ok(state)
    }
}

/// A window of the device. A write to it counts as one write of all pages that it touches, as a
/// page cache writes them out. It is not a call of the device, so counters leave it out.
#[derive(Debug)]
struct CrashWindow {
    shared: Arc<Shared>,
    offset: u64,
    len_bytes: usize,
}

impl Window for CrashWindow {
    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        check_within(self.len_bytes, at, bytes.len());
        let begin = at - at % PAGE_BYTES;
        let end = (at + bytes.len()).next_multiple_of(PAGE_BYTES);
        let mut pages = vec![0; end - begin];
        let offset = self.offset + begin as u64;
        let request = Request::write(offset, &[&pages]);
        let mut state = self.shared.running(request)?;
        state.point.current.read(offset, &mut pages);
        pages[at - begin..][..bytes.len()].copy_from_slice(bytes);
        state.write_counted(offset, &[&pages], request)
    }

    fn read(&self, at: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        check_within(self.len_bytes, at, out.len());
        let request = Request::read(self.offset + at as u64, out);
        let state = self.shared.running(request)?;
        state.point.current.read(request.at, out);
        Ok(())
    }
}

impl CrashState {
    fn check_running(&self, request: Request) -> Result<(), DeviceError> {
        if self.is_stopped {
            return Err(request.failed(NAME, Errno::IO));
        }
        Ok(())
    }

    /// Performs a write that a plan counts.
    fn write_counted(
        &mut self,
        at: u64,
        pieces: &[&[u8]],
        request: Request,
    ) -> Result<(), DeviceError> {
        self.write(at, pieces);
        self.writes += 1;
        self.is_stopped = self.plan.write == Some(self.writes);
        self.check_running(request)
    }

    fn write(&mut self, at: u64, pieces: &[&[u8]]) {
        let bytes: Arc<[u8]> = pieces.concat().into();
        self.point.current.write(at, &bytes);
        self.point.pending.push(Change::Write { at, bytes });
        self.show(false);
    }

    fn sync(&mut self) {
        for change in self.point.pending.drain(..) {
            match change {
                Change::Write { at, bytes } => self.point.durable.write(at, &bytes),
                Change::Discard { at, len_bytes } => self.point.durable.fill(at, len_bytes, JUNK),
            }
        }
    }

    fn show(&mut self, is_sync: bool) {
        if let Some(watcher) = &mut self.watcher {
            watcher(&Moment {
                is_sync,
                point: &self.point,
            });
        }
    }
}

impl Device for CrashDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            len_bytes: self.shared.state.lock().point.len_bytes,
            name: NAME.to_owned(),
            path: None,
            is_block_device: false,
        }
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let request = Request::read(offset, out);
        let state = self.shared.running(request)?;
        state.point.current.read(offset, out);
        self.shared.counters.read(request.len_bytes);
        Ok(())
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]]) -> Result<(), DeviceError> {
        let request = Request::write(offset, pieces);
        let mut state = self.shared.running(request)?;
        self.shared.counters.write(request.len_bytes);
        state.write_counted(offset, pieces, request)
    }

    fn prepare(&self, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        let request = Request::new("prepare", offset, len_bytes);
        let mut state = self.shared.running(request)?;
        let zeros = vec![0; usize::try_from(len_bytes).unwrap_or(usize::MAX)];
        self.shared.counters.prepared(len_bytes);
        state.write_counted(offset, &[&zeros], request)
    }

    fn open_window(
        &self,
        offset: u64,
        len_bytes: usize,
        first: &[u8],
    ) -> Result<Option<Box<dyn Window>>, DeviceError> {
        let mut bytes = first.to_vec();
        bytes.resize(len_bytes, 0);
        self.write_at(offset, &[&bytes])?;
        self.shared.counters.window();
        let shared = Arc::clone(&self.shared);
        Ok(Some(Box::new(CrashWindow {
            shared,
            offset,
            len_bytes,
        })))
    }

    fn sync(&self) -> Result<(), DeviceError> {
        let mut state = self.shared.state.lock();
        state.check_running(Request::sync())?;
        self.shared.counters.sync();
        state.syncs += 1;
        state.show(true);
        state.is_stopped = state.plan.sync == Some(state.syncs);
        state.check_running(Request::sync())?;
        state.sync();
        Ok(())
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<bool, DeviceError> {
        let request = Request::new("discard", offset, len_bytes);
        let mut state = self.shared.running(request)?;
        state.point.current.fill(offset, len_bytes, JUNK);
        state.point.pending.push(Change::Discard {
            at: offset,
            len_bytes,
        });
        self.shared.counters.discard(len_bytes);
        Ok(true)
    }

    fn grow(&self, _from: u64, to: u64) -> Result<(), DeviceError> {
        crate::open::check_len(NAME, to)?;
        let mut state = self.shared.state.lock();
        state.check_running(Request::new("grow", to, 0))?;
        state.point.len_bytes = state.point.len_bytes.max(to);
        Ok(())
    }

    /// The cut-off end is lost at once: no caller may rely on a delayed cut.
    fn shrink(&self, to: u64) -> Result<(), DeviceError> {
        crate::open::check_len(NAME, to)?;
        let mut state = self.shared.state.lock();
        state.check_running(Request::new("shrink", to, 0))?;
        state.point.cut(to);
        Ok(())
    }

    fn counters(&self) -> DeviceCounters {
        self.shared.counters.load()
    }
}

#[cfg(test)]
mod tests;
