//! The states that a store went through, and which of them a crash may leave behind.

use crate::System;
use std::fmt;
use stitch_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Operations in order, and the state after each: `states[p]` is what a prefix of `p` leaves.
pub(crate) struct Timeline<S: System> {
    /// `None` for an operation that was refused.
    ops: Vec<Option<S::Op>>,
    states: Vec<S::State>,
    model: S::Model,
}

impl<S: System> Timeline<S> {
    pub(crate) fn new(system: &S) -> Self {
        let model = system.model();
        Self {
            ops: Vec::new(),
            states: vec![system.model_state(&model)],
            model,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }

    pub(crate) fn model(&self) -> &S::Model {
        &self.model
    }

    pub(crate) fn last(&self) -> &S::State {
        self.states
            .last()
            .expect("there is a state before the first operation")
    }

    pub(crate) fn state(&self, prefix: usize) -> &S::State {
        &self.states[prefix]
    }

    /// `op` was done, or refused without effect.
    pub(crate) fn push(&mut self, system: &S, op: S::Op, is_refused: bool) {
        if is_refused {
            self.ops.push(None);
            self.states.push(self.last().clone());
            return;
        }
        system.apply(&mut self.model, &op);
        self.ops.push(Some(op));
        self.states.push(system.model_state(&self.model));
    }

    fn repeat(&mut self, system: &S, op: Option<&S::Op>) {
        match op {
            Some(op) => self.push(system, op.clone(), false),
            None => {
                self.ops.push(None);
                self.states.push(self.last().clone());
            }
        }
    }

    /// The same history, ending after `prefix` operations.
    pub(crate) fn cut(&self, system: &S, prefix: usize) -> Self {
        if system.ties_states() {
            let mut anew = Self::new(system);
            for op in &self.ops[..prefix] {
                anew.repeat(system, op.as_ref());
            }
            return anew;
        }
        let ops = self.ops[..prefix].to_vec();
        Self {
            model: replay(system, &ops),
            ops,
            states: self.states[..=prefix].to_vec(),
        }
    }

    /// The longest prefix within `span` that leaves `state`.
    pub(crate) fn find(&self, state: &S::State, low: usize, high: usize) -> Option<usize> {
        (low..=high)
            .rev()
            .find(|&prefix| self.states[prefix] == *state)
    }

    /// Why `state` is none that `[low, high]` allows.
    pub(crate) fn explain(&self, system: &S, state: &S::State, low: usize, high: usize) -> String {
        if let Some(prefix) = self.find(state, 0, low) {
            let lost = &self.ops[prefix..low];
            let shown: Vec<String> = lost.iter().flatten().take(3).map(cut_text).collect();
            return format!(
                "lost {} operations that must be there: state is that after {prefix}, allowed \
                 {low} to {high}; lost {}",
                lost.len(),
                shown.join(", ")
            );
        }
        let differences = (low..=high).map(|at| (system.difference(state, &self.states[at]), at));
        let nearest = differences.min_by_key(|(text, _)| text.len());
        let (difference, at) = nearest.expect("the span has a state");
        format!(
            "state is none that ever was (allowed: after {low} to {high} operations); against that \
             after {at}: {difference}; the last operations:{}",
            self.tail((self.ops.len() - low + 4).max(12)),
        )
    }

    /// The last operations, for a person.
    pub(crate) fn tail(&self, count: usize) -> String {
        let from = self.ops.len().saturating_sub(count);
        let mut out = String::new();
        for (index, op) in self.ops.iter().enumerate().skip(from) {
            let text = op.as_ref().map_or("refused".to_owned(), cut_text);
            out.push_str(&format!("\n  {}: {text}", index + 1));
        }
        out
    }
}

fn replay<S: System>(system: &S, ops: &[Option<S::Op>]) -> S::Model {
    let mut model = system.model();
    for op in ops.iter().flatten() {
        system.apply(&mut model, op);
    }
    model
}

fn cut_text(value: &impl fmt::Debug) -> String {
    let text = format!("{value:?}");
    match text.char_indices().nth(300) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// How far a run has come, in operations. Read by the device's watcher at any moment.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    synced: AtomicUsize,
    acked: AtomicUsize,
    started: AtomicUsize,
    is_recovery: AtomicBool,
}

impl Progress {
    pub(crate) fn set(&self, span: Span) {
        self.synced.store(span.synced, Ordering::SeqCst);
        self.acked.store(span.acked, Ordering::SeqCst);
        self.started.store(span.started, Ordering::SeqCst);
        self.is_recovery.store(span.is_recovery, Ordering::SeqCst);
    }

    pub(crate) fn start(&self) {
        self.started.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn ack(&self, is_durable: bool) {
        let started = self.started.load(Ordering::SeqCst);
        self.acked.store(started, Ordering::SeqCst);
        if is_durable {
            self.synced.store(started, Ordering::SeqCst);
        }
    }

    pub(crate) fn span(&self) -> Span {
        let synced = self.synced.load(Ordering::SeqCst);
        let acked = self.acked.load(Ordering::SeqCst);
        let started = self.started.load(Ordering::SeqCst);
        assert!(synced <= acked, "what is durable was acknowledged");
        assert!(acked <= started, "what was acknowledged had begun");
        let is_recovery = self.is_recovery.load(Ordering::SeqCst);
        Span {
            synced,
            acked,
            started,
            is_recovery,
        }
    }
}

/// Prefixes that matter at one moment: what a power cut must leave, what a kill must leave, and
/// what either may leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) synced: usize,
    pub(crate) acked: usize,
    pub(crate) started: usize,
    /// The prefixes are those of the life before.
    pub(crate) is_recovery: bool,
}

impl Span {
    /// All at one prefix.
    pub(crate) const fn at(prefix: usize) -> Self {
        Self::between(prefix, prefix)
    }

    /// Anything from `low` to `high`, whatever happens.
    pub(crate) const fn between(low: usize, high: usize) -> Self {
        Self {
            synced: low,
            acked: low,
            started: high,
            is_recovery: false,
        }
    }
}
