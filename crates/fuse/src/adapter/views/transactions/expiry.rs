//! The thread that aborts transactions when they expire.

use std::time::Duration;

use stitch_base::clock::{Clock as _, SystemClock, Timestamp};
use stitch_fs::{FsResult, TransactionInfo};

use crate::adapter::alarm::Alarm;

/// Longest sleep: the clock may be set meanwhile.
const SLEEP_MAX: Duration = Duration::from_secs(600);
/// Time until the next attempt, if one fails.
const AGAIN: Duration = Duration::from_secs(10);

/// The transactions that are due at a time, and the time until the next one is.
fn due(all: &[TransactionInfo], now: Timestamp) -> (Vec<u64>, Option<Duration>) {
    let open = all.iter().filter(|info| info.is_open());
    let dated = open.filter_map(|info| Some((info.number, info.expires?)));
    let (mut numbers, mut next) = (Vec::new(), None);
    for (number, at) in dated {
        let left = at.0.saturating_sub(now.0);
        match u64::try_from(left) {
            Ok(left @ 1..) => {
                let left = Duration::from_nanos(left);
                next = Some(next.map_or(left, |next: Duration| next.min(left)));
            }
            _ => numbers.push(number),
        }
    }
    (numbers, next)
}

/// Starts the thread. `list` tells of all transactions; `abort` aborts one, if it is open. The
/// thread looks at the times again on request.
pub(super) fn start(
    list: impl Fn() -> FsResult<Vec<TransactionInfo>> + Send + 'static,
    abort: impl Fn(u64) + Send + 'static,
) -> Alarm {
    let alarm = Alarm::new("fuse-expiry");
    let clock = SystemClock::default();
    alarm.start(move || round(&list, &abort, clock.now()));
    alarm
}

/// Aborts what is due. Returns the time until the next look; `None` if nothing expires.
fn round(
    list: &impl Fn() -> FsResult<Vec<TransactionInfo>>,
    abort: &impl Fn(u64),
    now: Timestamp,
) -> Option<Duration> {
    let next = match list() {
        Ok(all) => {
            let (numbers, next) = due(&all, now);
            numbers.iter().for_each(|number| abort(*number));
            // One that could not be aborted is tried again.
            match numbers.is_empty() {
                true => next,
                false => Some(next.unwrap_or(AGAIN).min(AGAIN)),
            }
        }
        Err(error) => {
            tracing::warn!(%error, "cannot tell which transactions have expired");
            Some(AGAIN)
        }
    };
    next.map(|next| next.min(SLEEP_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use stitch_base::sync::{Arc, Mutex};
    use stitch_fs::{TransactionIsolation, TransactionLife, TransactionState};

    fn info(number: u64, expires: Option<i64>) -> TransactionInfo {
        TransactionInfo {
            number,
            name: "work".to_owned(),
            life: TransactionLife::Named,
            owner: 0,
            created: Timestamp(0),
            expires: expires.map(Timestamp),
            state: TransactionState::Open,
            isolation: TransactionIsolation::Snapshot,
            outer: None,
        }
    }

    #[test]
    fn those_that_are_due_are_found_and_the_next_one() {
        let ended = TransactionInfo {
            state: TransactionState::Committed(4),
            ..info(1, Some(5))
        };
        let all = [ended, info(2, None), info(3, Some(70)), info(4, Some(90))];
        let in_ns = |ns| Some(Duration::from_nanos(ns));
        assert_eq!(due(&all, Timestamp(10)), (vec![], in_ns(60)));
        assert_eq!(due(&all, Timestamp(70)), (vec![3], in_ns(20)));
        assert_eq!(due(&all, Timestamp(99)), (vec![3, 4], None));
        assert_eq!(due(&all[..2], Timestamp(99)), (vec![], None));
    }

    #[test]
    fn the_thread_aborts_what_is_due_once_it_is_told() {
        let (sender, receiver) = mpsc::channel();
        let all = Arc::new(Mutex::new(vec![info(3, None)]));
        let watch = {
            let all = Arc::clone(&all);
            let taken = Arc::clone(&all);
            let abort = move |number| {
                taken.lock().clear();
                sender.send(number).unwrap();
            };
            start(move || Ok(all.lock().clone()), abort)
        };
        all.lock().push(info(4, Some(1)));
        watch.note();
        assert_eq!(receiver.recv(), Ok(4));
        watch.stop();
        assert!(receiver.try_recv().is_err());
    }
}
