//! The processor on which a thread serves.
//!
//! A thread runs on its queue's processor, its home, where callers are: a short reply is delivered
//! without waking another processor. A long reply is mostly read-ahead. Made at home, it takes the
//! processor from the caller, which could work on data that it has. So after a long reply the
//! thread may run anywhere, until it has sent a short one. Writers wait for each request anyway, so
//! their requests are served at home.

use rustix::thread::CpuSet;

/// Length from which a reply is long: moving a thread twice takes less time than copying it.
const LONG_BYTES: usize = 256 << 10;

/// The processor of a thread.
#[derive(Debug)]
pub(super) struct Place {
    /// The home; `None` if the thread may run anywhere.
    home: Option<usize>,
    is_anywhere: bool,
}

/// A move of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    Home(usize),
    Anywhere,
}

impl Place {
    /// Creates the state of this thread, and moves it home.
    pub(super) fn of_thread(home: Option<usize>) -> Self {
        let home = home.filter(|cpu| *cpu < CpuSet::MAX_CPU);
        if let Some(cpu) = home {
            go(Move::Home(cpu));
        }
        Self {
            home,
            is_anywhere: false,
        }
    }

    /// Moves the thread before a reply of this length is delivered.
    pub(super) fn note(&mut self, answer_bytes: usize) {
        if let Some(to) = self.next(answer_bytes) {
            go(to);
        }
    }

    fn next(&mut self, answer_bytes: usize) -> Option<Move> {
        let home = self.home?;
        let is_long = answer_bytes >= LONG_BYTES;
        if is_long == self.is_anywhere {
            return None;
        }
        self.is_anywhere = is_long;
        Some(match is_long {
            true => Move::Anywhere,
            false => Move::Home(home),
        })
    }
}

/// Moves this thread, as far as its affinity permits.
fn go(to: Move) {
    let mut set = CpuSet::new();
    match to {
        Move::Home(cpu) => set.set(cpu),
        Move::Anywhere => (0..CpuSet::MAX_CPU).for_each(|cpu| set.set(cpu)),
    }
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::debug!(?to, %error, "not moved");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(home: Option<usize>) -> Place {
        Place {
            home,
            is_anywhere: false,
        }
    }

    #[test]
    fn a_thread_is_anywhere_while_answers_are_long() {
        let mut place = place(Some(3));
        assert_eq!(place.next(0), None);
        assert_eq!(place.next(LONG_BYTES - 1), None);
        assert_eq!(place.next(LONG_BYTES), Some(Move::Anywhere));
        assert_eq!(place.next(1 << 20), None);
        assert_eq!(place.next(4096), Some(Move::Home(3)));
        assert_eq!(place.next(0), None);
    }

    #[test]
    fn a_thread_without_a_home_stays() {
        let mut place = place(None);
        assert_eq!(place.next(1 << 20), None);
        assert_eq!(place.next(0), None);
    }

    #[test]
    fn threads_move_as_far_as_they_may() {
        let own = rustix::thread::sched_getaffinity(None).unwrap();
        let mine: Vec<usize> = (0..CpuSet::MAX_CPU)
            .filter(|cpu| own.is_set(*cpu))
            .collect();
        let moving = stitch_base::thread::spawn("moving", move || {
            let now = || rustix::thread::sched_getaffinity(None).unwrap();
            let mut place = Place::of_thread(Some(mine[0]));
            assert_eq!((now().count(), now().is_set(mine[0])), (1, true));
            place.note(LONG_BYTES);
            assert!(mine.iter().all(|cpu| now().is_set(*cpu)), "anywhere");
            place.note(0);
            assert_eq!((now().count(), now().is_set(mine[0])), (1, true));
        });
        moving.unwrap().join().unwrap();
    }
}
