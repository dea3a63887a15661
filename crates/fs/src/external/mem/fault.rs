//! Errors of plain files in memory, at calls that are chosen: what the fault device is to devices.
//!
//! A call that fails may have done a part, as on a host: a write its beginning, a sync any of the
//! changes. What a failed sync does not keep stays to be synced, or is lost at once, or is read
//! until the power goes.

use super::{ExternalName, File, FileChange, MemContents, State};
use std::collections::BTreeMap;
use stitch_base::ErrorKind;
use stitch_base::random::Rng;

/// What faults of plain files go by. Lengths and times are `open`.
pub const PLAIN_OPS: [&str; 12] = [
    "create", "read", "write", "cut", "punch", "allocate", "seek", "open", "sync", "remove",
    "list", "space",
];

/// Calls that fail.
#[derive(Clone, Copy, Debug)]
pub struct PlainFault {
    /// Which calls count, of [`PLAIN_OPS`]; `None` for all.
    pub op: Option<&'static str>,
    /// The first one that fails, from 1.
    pub nth: u64,
    /// How many fail, one after the other.
    pub count: u64,
    /// As what.
    pub kind: ErrorKind,
    /// Decides what is done of a call that fails.
    pub seed: u64,
    /// The call says that it was done. For tests of tests.
    pub is_hidden: bool,
}

/// A call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainHit {
    /// What it was to do.
    pub op: &'static str,
    /// With which file, if with one.
    pub name: Option<ExternalName>,
}

/// Faults that are planned, and what was met.
#[derive(Clone, Default)]
pub(super) struct Faults {
    /// Operations that fail, without having done anything.
    pub(super) failing: BTreeMap<&'static str, ErrorKind>,
    pub(super) planned: Vec<PlainFault>,
    pub(super) calls: BTreeMap<&'static str, u64>,
    pub(super) hits: Vec<PlainHit>,
    pub(super) is_paused: bool,
}

/// How a call fails.
pub(super) struct Failing {
    pub(super) kind: ErrorKind,
    /// For what is done of it, if anything is.
    pub(super) rng: Option<Rng>,
    pub(super) is_hidden: bool,
}

impl Faults {
    /// Counts a call, which fails if that is planned.
    pub(super) fn enter(
        &mut self,
        op: &'static str,
        name: Option<ExternalName>,
    ) -> Option<Failing> {
        debug_assert!(PLAIN_OPS.contains(&op), "it is one of the list");
        if self.is_paused {
            return None;
        }
        let of_op = self.calls.entry(op).or_default();
        *of_op += 1;
        let of_op = *of_op;
        let of_all: u64 = self.calls.values().sum();
        debug_assert!(of_op <= of_all, "each call is one of all");
        if let Some(kind) = self.failing.get(op) {
            return Some(Failing {
                kind: *kind,
                rng: None,
                is_hidden: false,
            });
        }
        let is_hit = |fault: &&PlainFault| {
            let now = if fault.op.is_some() { of_op } else { of_all };
            let counts = fault.op.is_none_or(|wanted| wanted == op);
            counts && now >= fault.nth && now - fault.nth < fault.count
        };
        let fault = self.planned.iter().find(is_hit)?;
        debug_assert!(fault.nth > 0, "some call is to fail");
        debug_assert!(fault.count > 0, "some call is to fail");
        debug_assert!(!self.is_paused, "a pause has no faults");
        self.hits.push(PlainHit { op, name });
        Some(Failing {
            kind: fault.kind,
            rng: Some(Rng::new(fault.seed ^ of_op)),
            is_hidden: fault.is_hidden,
        })
    }
}

impl State {
    /// What is done of a change that fails: nothing, or a part, or all.
    pub(super) fn change_partly(&mut self, name: ExternalName, change: FileChange, rng: &mut Rng) {
        let Some(file) = self.files.get_mut(&name) else {
            return;
        };
        match change {
            FileChange::Write { at, bytes } => {
                let len = usize::try_from(rng.below(bytes.len() as u64 + 1)).expect("of a slice");
                let bytes = bytes[..len].into();
                file.change(FileChange::Write { at, bytes });
            }
            FileChange::Punch { at, len } => {
                let len = rng.below(len + 1);
                debug_assert!(at.checked_add(len).is_some(), "a range of bytes");
                file.change(FileChange::Punch { at, len });
            }
            FileChange::SetLen(_) if rng.one_in(2) => file.change(change),
            FileChange::SetLen(_) | FileChange::Allocate => {}
        }
    }
}

impl File {
    /// A sync that fails has made any of the changes durable. The length that reads see stays.
    pub(super) fn sync_partly(&mut self, rng: &mut Rng) {
        let fate = rng.below(3);
        if fate == 0 {
            // All of it stays to be synced.
            return;
        }
        for change in std::mem::take(&mut self.pending) {
            match change {
                FileChange::Write { at, bytes } if rng.one_in(3) => {
                    self.durable.tear(at, &bytes, rng)
                }
                change if rng.one_in(2) => self.durable.apply(&change),
                _ => {}
            }
        }
        let len = self.current.len;
        if fate == 1 {
            self.current = MemContents::clone(&self.durable);
            self.current.set_len(len);
        }
        debug_assert_eq!(self.current.len, len, "the length that reads see stays");
        // Otherwise reads still return it, but no later sync makes it durable.
        self.is_unsure |= fate == 2;
        self.pending.push(FileChange::SetLen(len));
    }
}
