//! Locks on paths that transactions take before they begin.
//!
//! A lock is on a path and all below it. It is advisory: it keeps out other transactions that ask
//! for a lock that overlaps, and nothing else. Mainline never waits.
//!
//! ```text
//! request "first"  /srv/a  ---> held until its transaction ends
//! request "second" /srv         waits for "first"
//! request "third"  /srv/b       waits for "second": requests that overlap go in their order
//! request "fourth" /home   ---> held
//! ```
//!
//! A transaction takes all of its locks at once, before it begins. It holds none while it waits, so
//! there is no deadlock, and wound-wait has nothing to end. What the holders before it have
//! committed is in what it starts with.
//!
//! One that begins in others does not wait for what these hold, nor for requests that wait for it:
//! these cannot be granted before it has ended. Its locks are its outer transaction's when it is
//! committed.
//!
//! Invariants:
//! - two paths that are held by requests of different transactions do not overlap, but where one
//!   of the transactions is in the other;
//! - of requests that overlap, the earlier one is granted first, but where it waits for a
//!   transaction that the later one is in.
//!
//! Paths are names, not inodes: a directory that is renamed takes no lock along.

use crate::{FsError, FsResult};
use stitch_base::Ino;
use stitch_base::sync::Mutex;

/// Most paths of one request.
pub const LOCKED_PATHS_MAX: usize = 64;
/// Most requests, held or waiting.
const REQUESTS_MAX: usize = 1024;

/// A request for locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockTicket(u64);

/// Locks of a transaction, held or waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathLock {
    /// Name of the transaction; `outer/inner` of one that began in another one.
    pub name: String,
    /// Paths from the root, without a slash at either end; empty for the root.
    pub paths: Vec<Vec<u8>>,
    /// True once they are held.
    pub is_held: bool,
}

#[derive(Debug)]
struct LockRequest {
    ticket: LockTicket,
    lock: PathLock,
    /// The transaction that holds them; `None` before it has begun.
    holder: Option<Ino>,
    /// The transactions that it is to begin in.
    within: Vec<Ino>,
}

impl LockRequest {
    fn is_held_by(&self, holders: &[Ino]) -> bool {
        self.holder.is_some_and(|holder| holders.contains(&holder))
    }

    /// Reports whether a transaction holds both, or one that begins in it holds the other.
    fn is_related(&self, other: &Self) -> bool {
        let is_one = self.holder.is_some() && self.holder == other.holder;
        is_one || self.is_held_by(&other.within) || other.is_held_by(&self.within)
    }
}

#[derive(Debug, Default)]
struct LockQueue {
    last: u64,
    /// In the order in which they came.
    requests: Vec<LockRequest>,
}

impl LockQueue {
    /// Checks the bound and the order of requests, and that a transaction has what it holds alone.
    fn check(&self) {
        debug_assert!(self.requests.len() <= REQUESTS_MAX, "requests have a bound");
        let tickets = self.requests.iter().map(|request| request.ticket.0);
        debug_assert!(
            tickets.is_sorted_by(|one, next| one < next),
            "they are in their order"
        );
        for request in &self.requests {
            debug_assert!(request.ticket.0 <= self.last, "tickets are given in order");
            debug_assert!(!request.lock.paths.is_empty(), "some path is locked");
            debug_assert!(
                request.lock.paths.len() <= LOCKED_PATHS_MAX,
                "paths have a bound"
            );
            debug_assert!(
                request.holder.is_none() || request.lock.is_held,
                "a holder has its locks"
            );
        }
        let mut held = self.requests.iter().filter(|request| request.lock.is_held);
        while let Some(one) = held.next() {
            debug_assert!(
                held.clone()
                    .all(|other| !one.lock.overlaps(&other.lock) || one.is_related(other)),
                "paths that overlap are held by transactions that are in each other"
            );
        }
    }

    /// Names of the transactions that the request at a place waits for.
    fn before(&self, at: usize) -> Vec<String> {
        debug_assert!(at < self.requests.len(), "a request in the queue");
        debug_assert!(
            !self.requests[at].lock.is_held,
            "who has its locks waits for none"
        );
        let asked = &self.requests[at];
        let own = self.requests.iter();
        let own = own.filter(|one| one.is_held_by(&asked.within));
        let own: Vec<&LockRequest> = own.collect();
        let waits_for_own = |other: &LockRequest| {
            !other.lock.is_held && own.iter().any(|one| one.lock.overlaps(&other.lock))
        };
        let is_before = |(place, other): &(usize, &LockRequest)| {
            let is_first = *place < at || *place > at && other.lock.is_held;
            is_first && other.lock.overlaps(&asked.lock)
        };
        let others = self.requests.iter().enumerate().filter(is_before);
        let others = others.filter(|(_, other)| !other.is_held_by(&asked.within));
        let others = others.filter(|(_, other)| !waits_for_own(other));
        others.map(|(_, other)| other.lock.name.clone()).collect()
    }
}

/// The path locks of a file system.
#[derive(Debug, Default)]
pub struct PathLocks {
    queue: Mutex<LockQueue>,
}

/// Reports whether one of two paths is the other one, or below it.
fn overlap(one: &[u8], other: &[u8]) -> bool {
    let (short, long) = match one.len() < other.len() {
        true => (one, other),
        false => (other, one),
    };
    debug_assert!(short.len() <= long.len(), "the shorter one is above");
    let Some(rest) = long.strip_prefix(short) else {
        return false;
    };
    short.is_empty() || rest.is_empty() || rest[0] == b'/'
}

impl PathLock {
    fn overlaps(&self, other: &Self) -> bool {
        let any = |path: &Vec<u8>| other.paths.iter().any(|others| overlap(path, others));
        self.paths.iter().any(any)
    }
}

fn check_paths(paths: &[Vec<u8>]) -> FsResult<()> {
    if paths.is_empty() || paths.len() > LOCKED_PATHS_MAX {
        return Err(FsError::Invalid("1 to 64 paths are locked at once"));
    }
    let is_part = |name: &[u8]| !matches!(name, b"" | b"." | b"..") && !name.contains(&0);
    let is_path = |path: &Vec<u8>| path.is_empty() || path.split(|&byte| byte == b'/').all(is_part);
    match paths.iter().all(is_path) {
        true => Ok(()),
        false => Err(FsError::Invalid("a path from the root, of names alone")),
    }
}

impl PathLocks {
    /// Asks for locks on paths, for a transaction that is to have this name. Paths are from the
    /// root, without a slash at either end; the empty one is the root.
    ///
    /// The request waits until [`Self::try_lock`] finds it granted, and counts as waiting for all
    /// that come later. What is not used to begin a transaction must be cancelled.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for what is no path, or more than [`LOCKED_PATHS_MAX`];
    /// [`FsError::TooBig`] if there are too many requests.
    pub fn request(&self, name: &str, paths: &[Vec<u8>]) -> FsResult<LockTicket> {
        self.request_within(name, paths, &[])
    }

    /// As [`Self::request`], for a transaction that is to begin in others, whose numbers are given.
    ///
    /// # Errors
    /// As of [`Self::request`].
    pub fn request_within(
        &self,
        name: &str,
        paths: &[Vec<u8>],
        within: &[u64],
    ) -> FsResult<LockTicket> {
        check_paths(paths)?;
        let mut queue = self.queue.lock();
        if queue.requests.len() >= REQUESTS_MAX {
            return Err(FsError::TooBig);
        }
        queue.last += 1;
        let ticket = LockTicket(queue.last);
        debug_assert!(
            queue
                .requests
                .last()
                .is_none_or(|last| last.ticket < ticket),
            "tickets are given in order"
        );
        queue.requests.push(LockRequest {
            ticket,
            lock: PathLock {
                name: name.to_owned(),
                paths: paths.to_vec(),
                is_held: false,
            },
            holder: None,
            within: within.iter().copied().map(Ino).collect(),
        });
        queue.check();
        Ok(ticket)
    }

    /// Takes the locks of a request if nothing earlier overlaps them. Otherwise returns the names
    /// of the transactions that it waits for.
    ///
    /// # Errors
    /// The names; none if the request was cancelled.
    pub fn try_lock(&self, ticket: LockTicket) -> Result<(), Vec<String>> {
        let mut queue = self.queue.lock();
        let at = queue
            .requests
            .iter()
            .position(|request| request.ticket == ticket);
        let at = at.ok_or_else(Vec::new)?;
        if queue.requests[at].lock.is_held {
            return Ok(());
        }
        let names = queue.before(at);
        let asked = &mut queue.requests[at].lock;
        asked.is_held = names.is_empty();
        let is_held = asked.is_held;
        debug_assert!(
            is_held || !names.is_empty(),
            "it is held, or waits for others"
        );
        queue.check();
        match is_held {
            true => Ok(()),
            false => Err(names),
        }
    }

    /// Takes back a request whose transaction has not begun.
    pub fn cancel(&self, ticket: LockTicket) {
        let mut queue = self.queue.lock();
        let is_it = |request: &LockRequest| request.ticket == ticket && request.holder.is_none();
        queue.requests.retain(|request| !is_it(request));
        queue.check();
    }

    /// Returns what is held and waited for, in the order of the requests.
    #[must_use]
    pub fn list(&self) -> Vec<PathLock> {
        let queue = self.queue.lock();
        queue
            .requests
            .iter()
            .map(|request| request.lock.clone())
            .collect()
    }

    /// Reports whether the locks of a request are held, and no transaction has them yet.
    pub(super) fn is_ready(&self, ticket: LockTicket) -> bool {
        let queue = self.queue.lock();
        let mut requests = queue.requests.iter();
        let found = requests.find(|request| request.ticket == ticket);
        found.is_some_and(|found| found.lock.is_held && found.holder.is_none())
    }

    /// Gives locks that are held to the transaction that has begun.
    pub(super) fn give(&self, ticket: LockTicket, number: Ino) {
        debug_assert!(number.0 > 0, "0 is no number");
        let mut queue = self.queue.lock();
        let mut requests = queue.requests.iter_mut();
        let found = requests.find(|request| request.ticket == ticket);
        debug_assert!(
            found.as_ref().is_none_or(|found| found.lock.is_held),
            "they were taken before it began"
        );
        if let Some(found) = found {
            found.holder = Some(number);
        }
        queue.check();
    }

    /// Passes locks on: to the number under which a transaction goes on, or to the outer
    /// transaction of one that is committed.
    pub(super) fn pass_on(&self, from: Ino, to: Ino, name: &str) {
        debug_assert!(from != to, "another transaction");
        debug_assert!(to.0 > 0, "0 is no number");
        let mut queue = self.queue.lock();
        for request in &mut queue.requests {
            // One that is to begin in it does not wait for it.
            let within = request.within.iter_mut();
            within
                .filter(|number| **number == from)
                .for_each(|number| *number = to);
            if request.holder == Some(from) {
                request.holder = Some(to);
                name.clone_into(&mut request.lock.name);
            }
        }
        queue.check();
    }

    /// Releases the locks of a transaction that has ended.
    pub(super) fn release(&self, number: Ino) {
        let mut queue = self.queue.lock();
        queue
            .requests
            .retain(|request| request.holder != Some(number));
        queue.check();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(paths: &[&str]) -> Vec<Vec<u8>> {
        paths.iter().map(|path| path.as_bytes().to_vec()).collect()
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_path_overlaps_what_is_above_and_below_it() {
        for (one, other, expected) in [
            ("a", "a", true),
            ("a", "a/b", true),
            ("", "a/b", true),
            ("", "", true),
            ("a", "ab", false),
            ("a/b", "a/c", false),
            ("a/b", "a/bc/d", false),
        ] {
            assert_eq!(
                overlap(one.as_bytes(), other.as_bytes()),
                expected,
                "{one} {other}"
            );
            assert_eq!(
                overlap(other.as_bytes(), one.as_bytes()),
                expected,
                "{other} {one}"
            );
        }
    }

    #[test]
    fn requests_that_overlap_go_in_their_order_and_others_at_once() {
        let locks = PathLocks::default();
        let request = |name, of: &[&str]| locks.request(name, &paths(of)).expect("they are paths");
        let first = request("first", &["srv/a"]);
        let second = request("second", &["home/x", "srv"]);
        let third = request("third", &["srv/b"]);
        let fourth = request("fourth", &["home/y"]);
        assert_eq!(
            locks.try_lock(third),
            Err(names(&["second"])),
            "it came later"
        );
        assert_eq!(locks.try_lock(first), Ok(()));
        assert_eq!(locks.try_lock(second), Err(names(&["first"])));
        assert_eq!(locks.try_lock(fourth), Ok(()));
        locks.give(first, Ino(40));
        locks.cancel(first);
        assert_eq!(
            locks.try_lock(second),
            Err(names(&["first"])),
            "its transaction has it"
        );
        locks.release(Ino(40));
        assert_eq!(locks.try_lock(second), Ok(()));
        assert_eq!(locks.try_lock(third), Err(names(&["second"])));
        locks.cancel(second);
        assert_eq!(locks.try_lock(third), Ok(()));
        assert_eq!(locks.try_lock(second), Err(Vec::new()), "it was cancelled");
        let held: Vec<String> = locks.list().into_iter().map(|lock| lock.name).collect();
        assert_eq!(held, names(&["third", "fourth"]));
    }

    #[test]
    fn a_request_in_a_transaction_that_is_rebased_does_not_wait_for_it() {
        let locks = PathLocks::default();
        let outer = locks.request("outer", &paths(&["a"])).expect("a path");
        assert_eq!(locks.try_lock(outer), Ok(()));
        locks.give(outer, Ino(40));
        let inner = locks.request_within("outer/inner", &paths(&["a/b"]), &[40]);
        let inner = inner.expect("a path");
        locks.pass_on(Ino(40), Ino(50), "outer");
        assert_eq!(locks.try_lock(inner), Ok(()));
    }

    #[test]
    fn what_is_no_path_is_refused() {
        let locks = PathLocks::default();
        for wrong in [
            &[][..],
            &["/a"],
            &["a/"],
            &["a//b"],
            &["a/../b"],
            &["."],
            &["a\0"],
        ] {
            let refused = locks.request("x", &paths(wrong));
            assert!(matches!(refused, Err(FsError::Invalid(_))), "{wrong:?}");
        }
        let many = vec![b"a".to_vec(); LOCKED_PATHS_MAX + 1];
        assert!(locks.request("x", &many).is_err());
        assert!(locks.request("x", &many[1..]).is_ok());
    }

    /// Random requests: what is held never overlaps, and each is granted once all is given back.
    #[test]
    fn every_request_is_granted_in_the_end() {
        let locks = PathLocks::default();
        let mut random = 7_u64;
        let mut below = |end: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) % end
        };
        let all = ["", "a", "a/b", "a/b/c", "d", "d/e", "f"];
        let mut waiting = Vec::new();
        let (mut held, mut granted): (Vec<Ino>, u64) = (Vec::new(), 0);
        for number in 1..1000 {
            if number < 500 {
                let of: Vec<&str> = (0..=below(2))
                    .map(|_| all[usize::try_from(below(7)).expect("small")])
                    .collect();
                waiting.push(locks.request("x", &paths(&of)).expect("they are paths"));
            }
            waiting.retain(|ticket| {
                let is_held = locks.try_lock(*ticket).is_ok();
                if is_held {
                    granted += 1;
                    locks.give(*ticket, Ino(granted));
                    held.push(Ino(granted));
                }
                !is_held
            });
            let list = locks.list();
            let taken: Vec<&PathLock> = list.iter().filter(|lock| lock.is_held).collect();
            for (index, lock) in taken.iter().enumerate() {
                assert!(!taken[..index].iter().any(|other| other.overlaps(lock)));
            }
            while !held.is_empty() && (number >= 500 || below(2) == 0) {
                locks.release(held.remove(0));
            }
        }
        assert_eq!((granted, waiting.len(), locks.list().len()), (499, 0, 0));
    }
}
