//! The events in the past of a directory: moments of the history, and undos.
//!
//! An undo keeps the state before it as the snapshot `before-undo-TIME-to-MOMENT`, so its name
//! tells the moment that was restored. The search for the last change goes back from now. Where it
//! comes to an undo whose moment still shows what is there, it goes on before that moment:
//!
//! ```text
//!   written    v1     v2     v3
//!   moments       m1     m2     m3
//!   undos                           U1 to m2   U2 to m1
//!
//!   first undo   m3 is the same, m2 differs: to m2
//!   second       U1 restored m2, the same: goes on before m2; m1 differs: to m1
//!   third        U2 restored m1, the same: goes on before m1
//! ```

use super::Moments;
use crate::command::snapshot;
use anyhow::{Context as _, Result};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

const PREFIX: &str = "before-undo-";
const TO: &str = "-to-";
const NS: i64 = 1_000_000_000;

/// Returns the name of the snapshot of the state before an undo. `time` makes it unique.
pub(super) fn before_name(time: &str, moment: &str) -> String {
    debug_assert!(!moment.contains(TO), "a name that is read back");
    format!("{PREFIX}{time}{TO}{moment}")
}

/// Returns the name of the moment that an undo restored, by the name of the snapshot before it.
fn restored_moment(before: &str) -> Option<&str> {
    let (_, moment) = before.strip_prefix(PREFIX)?.rsplit_once(TO)?;
    Some(moment)
}

/// An undo of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Undo {
    at_ns: i64,
    /// Name of the moment that was restored.
    to: String,
}

/// A point in the past at which the state of the directory is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PastEvent {
    at_ns: i64,
    /// An undo restored the moment then; otherwise the moment was created.
    is_undo: bool,
    /// Index of the moment that shows the state.
    moment: usize,
}

/// The past of a directory.
#[derive(Debug)]
pub(super) struct Past {
    /// In the order of time.
    events: Vec<PastEvent>,
}

impl Past {
    /// Reads the past of a directory from the moments and snapshots of its mount.
    pub(super) fn read(moments: &Moments, dir: &Path) -> Result<Self> {
        let undos = undos_of(&moments.mount, dir)?;
        let created_ns = |moment: &super::Moment| {
            let is_near = |undo: &Undo| undo.at_ns.div_euclid(NS) == moment.second;
            let told = undos.iter().any(is_near).then(|| moments.place(moment));
            let told = told.and_then(|place| snapshot::about(&place)?["created_ns"].as_i64());
            told.unwrap_or(moment.second * NS)
        };
        let each = moments.all.iter();
        let created: Vec<(i64, &str)> = each
            .map(|moment| (created_ns(moment), moment.name.as_str()))
            .collect();
        Ok(Self::of(&created, &undos))
    }

    /// Orders moments and undos. An undo whose moment was dropped is left out.
    fn of(moments: &[(i64, &str)], undos: &[Undo]) -> Self {
        let created = moments.iter().enumerate();
        let created = created.map(|(moment, (at_ns, _))| PastEvent {
            at_ns: *at_ns,
            is_undo: false,
            moment,
        });
        let restored = undos.iter().filter_map(|undo| {
            let moment = moments.iter().position(|(_, name)| *name == undo.to)?;
            Some(PastEvent {
                at_ns: undo.at_ns,
                is_undo: true,
                moment,
            })
        });
        let mut events: Vec<PastEvent> = created.chain(restored).collect();
        events.sort_by_key(|event| (event.at_ns, event.is_undo));
        Self { events }
    }

    /// Returns the index of the last moment that shows the state before the last change, undone
    /// changes left out; `None` if there was no change. `differs` compares a moment with the
    /// present.
    pub(super) fn before_last_change(
        &self,
        mut differs: impl FnMut(usize) -> Result<bool>,
    ) -> Result<Option<usize>> {
        let mut left = self.events.as_slice();
        while let Some((last, earlier)) = left.split_last() {
            if differs(last.moment)? && !is_repeated(last, earlier) {
                return Ok(Some(last.moment));
            }
            left = match last.is_undo {
                true => before_moment(earlier, last.moment),
                false => earlier,
            };
        }
        Ok(None)
    }
}

/// Reports whether an undo restored the moment of the undo before. What is still different then,
/// such as a copy of a file that was moved out, no undo can restore.
fn is_repeated(event: &PastEvent, earlier: &[PastEvent]) -> bool {
    let before = earlier.iter().rev().find(|event| event.is_undo);
    event.is_undo && before.is_some_and(|before| before.moment == event.moment)
}

/// Returns the events before a moment was created.
fn before_moment(events: &[PastEvent], moment: usize) -> &[PastEvent] {
    let is_it = |event: &PastEvent| !event.is_undo && event.moment == moment;
    let end = events.iter().position(is_it).unwrap_or(events.len());
    &events[..end]
}

/// Returns the undos of a directory.
fn undos_of(mount: &Path, dir: &Path) -> Result<Vec<Undo>> {
    let number = dir.metadata().with_context(|| snapshot::shown(dir))?.ino();
    let list = snapshot::snapshots_dir(mount);
    let mut undos = Vec::new();
    for entry in std::fs::read_dir(&list).with_context(|| snapshot::shown(&list))? {
        let entry = entry.with_context(|| snapshot::shown(&list))?;
        let name = entry.file_name();
        let Some(to) = name.to_str().and_then(restored_moment) else {
            continue;
        };
        // One that was deleted meanwhile is left out.
        let info = snapshot::about(&entry.path()).filter(|info| info["root"] == number);
        if let Some(at_ns) = info.and_then(|info| info["created_ns"].as_i64()) {
            let to = to.to_owned();
            undos.push(Undo { at_ns, to });
        }
    }
    Ok(undos)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENTS: [&str; 8] = ["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7"];

    /// A directory with contents that are numbers, and a history of it.
    #[derive(Default)]
    struct Model {
        now: u32,
        clock_ns: i64,
        /// Each with what it shows.
        moments: Vec<(i64, &'static str, u32)>,
        undos: Vec<Undo>,
        /// What an undo leaves different.
        left_by_undo: u32,
    }

    impl Model {
        fn write(&mut self, now: u32) {
            self.now = now;
        }

        fn keep(&mut self) {
            self.clock_ns += 1;
            let name = MOMENTS[self.moments.len()];
            self.moments.push((self.clock_ns, name, self.now));
        }

        /// Undoes, and returns what is there then.
        fn undo(&mut self) -> Option<u32> {
            let moments = self.moments.iter().map(|(at, name, _)| (*at, *name));
            let past = Past::of(&moments.collect::<Vec<_>>(), &self.undos);
            let found = past
                .before_last_change(|moment| Ok(self.moments[moment].2 != self.now))
                .unwrap()?;
            self.clock_ns += 1;
            let (at_ns, (_, name, shown)) = (self.clock_ns, self.moments[found]);
            let before = before_name("2026-11-26T15:04:05Z", name);
            let to = restored_moment(&before).unwrap().to_owned();
            self.undos.push(Undo { at_ns, to });
            self.now = shown + self.left_by_undo;
            Some(self.now)
        }

        fn with(written: &[u32]) -> Self {
            let mut model = Self::default();
            for state in written {
                model.write(*state);
                model.keep();
            }
            model
        }
    }

    #[test]
    fn undos_in_a_row_go_back_further() {
        let mut model = Model::with(&[1, 2, 3]);
        assert_eq!(model.undo(), Some(2));
        assert_eq!(model.undo(), Some(1));
        assert_eq!(model.undo(), None);
        let mut model = Model::with(&[1, 2, 3]);
        assert_eq!(model.undo(), Some(2));
        model.keep();
        assert_eq!(model.undo(), Some(1));
        model.keep();
        assert_eq!(model.undo(), None, "with moments between");
    }

    #[test]
    fn an_edit_between_two_undos_is_undone_first() {
        for is_kept in [false, true] {
            let mut model = Model::with(&[1, 2, 3]);
            assert_eq!(model.undo(), Some(2));
            if is_kept {
                model.keep();
            }
            model.write(4);
            model.keep();
            assert_eq!(model.undo(), Some(2), "not what was undone");
            assert_eq!(model.undo(), Some(1), "before the edit and the undo");
            assert_eq!(model.undo(), None);
        }
    }

    #[test]
    fn a_rollback_to_the_state_before_an_undo_can_be_undone() {
        let mut model = Model::with(&[1, 2, 3]);
        assert_eq!(model.undo(), Some(2));
        model.write(3);
        assert_eq!(model.undo(), Some(2));
        assert_eq!(model.undo(), Some(1));
    }

    #[test]
    fn what_no_undo_restores_does_not_stop_it() {
        let mut model = Model::with(&[10, 20, 30]);
        model.left_by_undo = 1;
        assert_eq!(model.undo(), Some(21));
        assert_eq!(model.undo(), Some(21), "it may be an edit");
        assert_eq!(model.undo(), Some(11));
    }

    #[test]
    fn an_undo_is_passed_over_once_its_moment_was_dropped() {
        let mut model = Model::with(&[1, 2, 3]);
        assert_eq!(model.undo(), Some(2));
        model.moments.remove(1);
        assert_eq!(model.undo(), Some(3));
    }

    #[test]
    fn a_clock_that_was_set_back_ends_the_search() {
        let moments = [(1, "m0"), (9, "m1")];
        let undo = Undo {
            at_ns: 5,
            to: "m1".to_owned(),
        };
        let past = Past::of(&moments, &[undo]);
        assert_eq!(past.before_last_change(|_| Ok(false)).unwrap(), None);
        let found = past.before_last_change(|moment| Ok(moment == 0)).unwrap();
        assert_eq!(found, Some(0));
    }

    #[test]
    fn names_of_other_snapshots_tell_of_no_undo() {
        let before = before_name("2026-11-26T15:04:05Z-2", "2026-11-26T15-03-00Z");
        assert_eq!(restored_moment(&before), Some("2026-11-26T15-03-00Z"));
        for other in [
            "monday",
            "before-rollback-2026-11-26T15:04:05Z",
            "before-undo-x",
        ] {
            assert_eq!(restored_moment(other), None, "{other}");
        }
    }
}
