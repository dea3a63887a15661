//! On which processor a thread serves.
//!
//! A thread is on its queue's processor, its home, where callers are: what is short is handed over there
//! without waking another one. A long answer is mostly one that was asked for ahead. Made and copied at home, it
//! takes the processor from the caller, who could go on with what he has already. So after a long answer
//! the thread is wherever the kernel sees room, until it has given a short one. Who writes waits for each of his requests
//! anyway: their data is where he is.

use rustix::thread::CpuSet;

/// From so many bytes on an answer is long: moving a thread there and back takes less than copying it.
const LONG_BYTES: usize = 256 << 10;

/// Where a thread is.
#[derive(Debug)]
pub(super) struct Place {
    /// `None`: anywhere.
    home: Option<usize>,
    is_anywhere: bool,
}

/// Where a thread should go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    Home(usize),
    Anywhere,
}

impl Place {
    /// This thread's, which is brought home.
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

    /// An answer of so many bytes is about to be handed over.
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

/// Goes there, as far as this thread may be there.
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
    fn who_has_no_home_stays() {
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
