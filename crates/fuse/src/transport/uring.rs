//! Requests by `io_uring`: one command sends a reply and waits for the next request.
//!
//! 1. INIT is answered on `/dev/fuse`, with the flag. The kernel then holds back all requests.
//! 2. A thread of its own registers each entry of each processor's queue, pinned to that processor.
//!    When every queue has an entry, requests come by the rings.
//! 3. The kernel gives a request to the entry that was answered last, in the queue of the caller's
//!    processor. So one warm thread, on the caller's processor, serves requests that come one by
//!    one. A thread that waits for the disk blocks no other request: its entry is taken, and the
//!    next one is free. Long replies are made on any processor (`uring/place.rs`).
//! 4. FORGET, INTERRUPT and notices still use `/dev/fuse`.
//!
//! No thread spins, since the thread that it would wait for needs its processor
//! (`docs/adr/0011-fuse-over-io-uring.md`).
//!
//! If the kernel refuses, it falls back to `/dev/fuse` by itself, also for requests that it held
//! back.

mod entry;
mod place;
mod plan;
mod ring;
mod switch;

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno as OsError;
use stitch_base::sync::{Arc, Condvar, Mutex};

pub(crate) use plan::Plan;
pub use switch::{SWITCH_PATH, Switch};

use super::idle_poll::IdlePolling;
use super::{End, Queue, ReplySender};
use crate::dispatch::Dispatcher;
use entry::RingEntry;
use place::Place;
use ring::{Registered, Ring};

/// The reason that `io_uring` is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The kernel is too old, or built without it.
    #[error("this kernel has no FUSE over io_uring; Linux 6.14 and newer have it")]
    Unknown,
    /// It is switched off.
    #[error("FUSE over io_uring is off; root switches it on by: echo 1 > {SWITCH_PATH}")]
    Off,
    /// The kernel gives this process no ring.
    #[error("the kernel gives no io_uring ({source}); see /proc/sys/kernel/io_uring_disabled")]
    NoRing {
        /// Why.
        source: io::Error,
    },
    /// Only the process that read requests from a ring can answer them.
    #[error("a mount that survives its daemon takes requests by /dev/fuse only")]
    Held,
    /// Rings do not support deferred replies.
    #[error("locks that the daemon keeps need the classic device")]
    RemoteLocks,
    /// The kernel did not offer the flag in INIT.
    #[error("the kernel did not offer FUSE over io_uring for this mount")]
    NotOffered,
    /// The kernel refused the entries.
    #[error("the kernel did not take the buffers for FUSE over io_uring ({source})")]
    NotRegistered {
        /// Why.
        source: io::Error,
    },
}

/// Checks whether this machine supports `io_uring` for FUSE.
///
/// # Errors
/// The reason that it does not.
pub(crate) fn probe() -> Result<(), Refusal> {
    match Switch::read() {
        Switch::Missing => Err(Refusal::Unknown),
        Switch::Off => Err(Refusal::Off),
        Switch::On => Ring::new()
            .map(drop)
            .map_err(|source| Refusal::NoRing { source }),
    }
}

/// Makes the kernel abandon a ring that was not completed, so that it uses `/dev/fuse`.
///
/// # Errors
/// If the kernel cannot be told.
pub(crate) fn give_up(device: &OwnedFd) -> io::Result<()> {
    // An entry that does not fit makes the kernel abandon the ring.
    match Ring::new()?.register(device, u16::MAX, RingEntry::new(0)) {
        Err(_) => Ok(()),
        Ok(_) => Err(io::Error::other("an impossible entry was taken")),
    }
}

/// The registrations of all threads, for which the session waits.
#[derive(Debug)]
pub(crate) struct Roll {
    state: Mutex<RollState>,
    changed: Condvar,
}

#[derive(Debug)]
struct RollState {
    missing: usize,
    has_entry: Vec<bool>,
    refused: Option<io::Error>,
}

impl Roll {
    fn new(plan: &Plan) -> Self {
        Self {
            state: Mutex::new(RollState {
                missing: plan.entry_count(),
                has_entry: vec![false; plan.queues.len()],
                refused: None,
            }),
            changed: Condvar::new(),
        }
    }

    fn answer(&self, queue: u16, answer: io::Result<()>) {
        let mut state = self.state.lock();
        debug_assert!(state.missing > 0, "each thread reports once");
        state.missing = state.missing.saturating_sub(1);
        match answer {
            Ok(()) => state.has_entry[usize::from(queue)] = true,
            Err(error) => state.refused = Some(error),
        }
        self.changed.notify_all();
    }

    /// Waits until every thread has registered or failed. Succeeds if every queue has an entry: the
    /// kernel then begins.
    ///
    /// # Errors
    /// The reason that it does not.
    pub(crate) fn wait(&self) -> Result<(), Refusal> {
        let mut state = self.state.lock();
        while state.missing > 0 {
            self.changed.wait(&mut state);
        }
        if state.has_entry.iter().all(|has| *has) {
            return Ok(());
        }
        let source = state.refused.take();
        debug_assert!(
            source.is_some(),
            "each queue has an entry, whose thread has failed"
        );
        let source = source.unwrap_or_else(|| io::ErrorKind::Other.into());
        Err(Refusal::NotRegistered { source })
    }
}

/// A thread's duty to report its registration. Dropping it reports a failure.
#[derive(Debug)]
struct Ticket {
    roll: Arc<Roll>,
    queue: u16,
    is_used: bool,
}

impl Ticket {
    fn answer(&mut self, answer: io::Result<()>) {
        if !std::mem::replace(&mut self.is_used, true) {
            self.roll.answer(self.queue, answer);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.answer(Err(io::Error::other("a thread ended early")));
    }
}

/// One entry of one queue, for one thread.
#[derive(Debug)]
pub(crate) struct RingQueue {
    device: Arc<OwnedFd>,
    cpu: Option<usize>,
    payload_max: usize,
    ticket: Ticket,
    idle_polling: IdlePolling,
}

/// Creates all entries of a plan.
pub(crate) fn queues(
    plan: &Plan,
    device: &Arc<OwnedFd>,
    payload_max: usize,
    idle_polling: &IdlePolling,
) -> (Vec<RingQueue>, Arc<Roll>) {
    let roll = Arc::new(Roll::new(plan));
    let mut queues = Vec::with_capacity(plan.entry_count());
    for queue in &plan.queues {
        for _ in 0..queue.entries {
            queues.push(RingQueue {
                device: Arc::clone(device),
                cpu: queue.cpu,
                payload_max,
                ticket: Ticket {
                    roll: Arc::clone(&roll),
                    queue: queue.id,
                    is_used: false,
                },
                idle_polling: idle_polling.clone(),
            });
        }
    }
    debug_assert_eq!(
        queues.len(),
        plan.entry_count(),
        "a thread for each that is waited for"
    );
    (queues, roll)
}

impl RingQueue {
    fn register(&self) -> io::Result<Registered> {
        let entry = RingEntry::new(self.payload_max);
        Ring::new()?.register(&self.device, self.ticket.queue, entry)
    }
}

impl Queue for RingQueue {
    fn serve(&mut self, dispatcher: &Dispatcher) -> io::Result<End> {
        let mut place = Place::of_thread(self.cpu);
        let mut ring = match self.register() {
            Ok(ring) => ring,
            Err(error) => {
                // The others may work without this one; if not, the session handles it.
                self.ticket.answer(Err(error));
                return Ok(End::Unmounted);
            }
        };
        self.ticket.answer(Ok(()));
        let sender: Arc<dyn ReplySender> = Arc::new(NoLateAnswers);
        loop {
            if let Err(error) = ring.wait() {
                return end_of(error);
            }
            let served = ring.entry().serve(dispatcher, &sender)?;
            self.idle_polling.note();
            place.note(served.answer_bytes);
            ring.commit(served.commit_id);
            if served.is_poisoned {
                ring.submit()?;
                return Ok(End::Poisoned);
            }
        }
    }
}

/// Converts the error that entries get when the mount ends.
fn end_of(error: io::Error) -> io::Result<End> {
    let gone = [
        OsError::NOTCONN,
        OsError::NODEV,
        OsError::CONNABORTED,
        OsError::CANCELED,
    ];
    match OsError::from_io_error(&error) {
        Some(os) if gone.contains(&os) => Ok(End::Unmounted),
        _ => Err(error),
    }
}

/// Refuses deferred replies: no request by a ring has one.
#[derive(Debug)]
struct NoLateAnswers;

impl ReplySender for NoLateAnswers {
    fn send(&self, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_roll_waits_for_all_and_one_entry_a_queue_will_do() {
        let plan = Plan::of_machine(32).unwrap();
        let roll = Roll::new(&plan);
        for queue in &plan.queues {
            for entry in 1..queue.entries {
                roll.answer(queue.id, Err(io::Error::other(format!("no {entry}"))));
            }
            roll.answer(queue.id, Ok(()));
        }
        roll.wait().unwrap();
    }

    #[test]
    fn a_queue_without_an_entry_is_a_refusal_also_if_its_threads_just_end() {
        let plan = Plan::of_machine(32).unwrap();
        let device = Arc::new(std::fs::File::open("/dev/null").unwrap().into());
        let (queues, roll) = queues(&plan, &device, 1 << 17, &IdlePolling::default());
        for mut queue in queues {
            if queue.ticket.queue != 0 {
                queue.ticket.answer(Ok(()));
            }
        }
        let refusal = roll.wait().unwrap_err();
        assert!(refusal.to_string().contains("ended early"), "{refusal}");
    }

    #[test]
    fn a_file_that_is_no_mount_is_refused_without_harm() {
        let device = std::fs::File::open("/dev/null").unwrap().into();
        match Ring::new() {
            Ok(ring) => assert!(ring.register(&device, 0, RingEntry::new(1 << 17)).is_err()),
            // A sandbox without `io_uring`.
            Err(error) => assert!(end_of(error).is_err()),
        }
    }

    #[test]
    fn only_the_end_of_the_mount_is_a_good_end() {
        let end = |errno: OsError| end_of(io::Error::from(errno));
        assert_eq!(end(OsError::NOTCONN).unwrap(), End::Unmounted);
        assert_eq!(end(OsError::CONNABORTED).unwrap(), End::Unmounted);
        assert!(end(OsError::NOENT).is_err());
        assert!(end(OsError::FAULT).is_err());
    }
}
