//! Rounds that stand still while others change the rows that are served.
//!
//! The server keeps totals, expiries and watched keys in memory, and decides within a round by what
//! it has read. So nothing else may write `redis/rows` during a round. A writer that has to, such
//! as the commit of a transaction of files and records, pauses the rounds and reports what has
//! changed:
//!
//! ```text
//! server   | round | round |  (waits)                  | reads totals again | round |
//! commit                   | pause | commit | changed  |
//! ```

use std::fmt;
use stitch_base::sync::{Arc, Condvar, Mutex};
use stitch_format::redis;

/// Keys that are told one by one; of more, all count as changed.
const TOLD_MAX: usize = 64 << 10;

#[derive(Debug, Default)]
struct GateState {
    is_in_round: bool,
    pauses: usize,
    changes: Option<Changes>,
}

/// Which keys were changed from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Changes {
    Keys(Vec<Vec<u8>>),
    All,
}

/// Excludes rounds of a server from changes by others. Shared by both.
#[derive(Default)]
pub struct RoundGate {
    state: Mutex<GateState>,
    changed: Condvar,
}

impl fmt::Debug for RoundGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoundGate").finish_non_exhaustive()
    }
}

impl RoundGate {
    /// Waits until the round that runs has ended, and holds the next one back until the answer is
    /// dropped. Not to be called by what a round waits for.
    pub fn pause(self: &Arc<Self>) -> RoundPause {
        let mut state = self.state.lock();
        state.pauses += 1;
        while state.is_in_round {
            self.changed.wait(&mut state);
        }
        debug_assert!(state.pauses > 0, "this one at least");
        RoundPause {
            gate: Arc::clone(self),
        }
    }

    /// Begins a round. Returns what was changed since the last one.
    pub(crate) fn enter(&self) -> Option<Changes> {
        let mut state = self.state.lock();
        while state.pauses > 0 {
            self.changed.wait(&mut state);
        }
        state.is_in_round = true;
        state.changes.take()
    }

    /// Ends a round, if one runs.
    pub(crate) fn leave(&self) {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.is_in_round) {
            self.changed.notify_all();
        }
    }
}

/// Holds rounds back until it is dropped.
#[derive(Debug)]
pub struct RoundPause {
    gate: Arc<RoundGate>,
}

impl RoundPause {
    /// Tells the server that these rows of `redis/rows` may have changed.
    pub fn changed(&mut self, rows: &[Vec<u8>]) {
        let mut state = self.gate.state.lock();
        let before = state.changes.take();
        state.changes = Some(match before {
            Some(Changes::All) => Changes::All,
            _ if rows.len() > TOLD_MAX => Changes::All,
            Some(Changes::Keys(mut keys)) if keys.len() < TOLD_MAX => {
                keys.extend(user_keys(rows));
                Changes::Keys(keys)
            }
            Some(Changes::Keys(_)) => Changes::All,
            None => Changes::Keys(user_keys(rows).collect()),
        });
    }
}

impl Drop for RoundPause {
    fn drop(&mut self) {
        self.gate.state.lock().pauses -= 1;
        self.gate.changed.notify_all();
    }
}

/// The users' keys among rows.
fn user_keys(rows: &[Vec<u8>]) -> impl Iterator<Item = Vec<u8>> {
    let keys = rows.iter().filter_map(|row| redis::user_key(row));
    keys.map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_format::redis::key_row;

    #[test]
    fn a_pause_waits_for_the_round_and_the_next_round_for_the_pause() {
        let gate = Arc::new(RoundGate::default());
        assert_eq!(gate.enter(), None);
        let other = Arc::clone(&gate);
        let pausing = stitch_base::thread::spawn("pause", move || {
            let mut pause = other.pause();
            pause.changed(&[key_row(b"a"), b"m\0other".to_vec()]);
            pause.changed(&[key_row(b"b")]);
        });
        while gate.state.lock().pauses == 0 {
            std::thread::yield_now();
        }
        assert_eq!(gate.state.lock().changes, None, "it waits");
        gate.leave();
        // Waits for the pause to end.
        let changes = gate.enter();
        let keys = vec![b"a".to_vec(), b"b".to_vec()];
        assert_eq!(changes, Some(Changes::Keys(keys)));
        pausing.unwrap().join().unwrap();
        gate.leave();
        gate.leave();
        assert_eq!(gate.enter(), None, "told once");
    }

    #[test]
    fn of_very_many_keys_all_count_as_changed() {
        let gate = Arc::new(RoundGate::default());
        gate.pause().changed(&vec![key_row(b"a"); TOLD_MAX + 1]);
        gate.pause().changed(&[key_row(b"a")]);
        assert_eq!(gate.enter(), Some(Changes::All));
    }
}
