//! Reads of several keys at one moment.
//!
//! The keys are looked up in their order, each once: neighbours lie in one data block. Blocks that
//! are not in the cache are read in rounds, those of many keys by one request: see
//! [`crate::table::BatchReads`].

use crate::VtError;
use crate::read::ReadPath;
use crate::table::{BatchReads, ROUNDS_KEPT, Unfinished};
use crate::view::View;
use bytes::Bytes;
use std::collections::VecDeque;
use stitch_base::{Seqno, TreeId};

/// A lookup that waits longer reads its blocks itself. It has lost blocks that the batch has let
/// go, and would wait again and again in a cache that keeps nothing.
const WAITS_MAX: usize = ROUNDS_KEPT;

/// A key of a batch that has no value yet.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// Its place in the batch.
    at: usize,
    /// Rounds that it has waited for.
    waits: usize,
}

/// Keys of a batch that have no value yet, in key order.
struct Keys {
    /// Looked up before.
    waiting: VecDeque<Waiting>,
    /// All behind those.
    fresh: VecDeque<usize>,
}

impl Keys {
    fn next(&mut self) -> Option<Waiting> {
        let fresh = |at| Waiting { at, waits: 0 };
        let waiting = self.waiting.pop_front();
        waiting.or_else(|| self.fresh.pop_front().map(fresh))
    }

    fn clear(&mut self) {
        self.waiting.clear();
        self.fresh.clear();
    }
}

impl ReadPath {
    /// Returns the values of keys in a view, as of `seqno`, in the order of `keys`. The tree is in
    /// the view.
    ///
    /// # Errors
    /// That of the first key, in key order, that a single read fails for.
    ///
    /// # Cost
    /// Blocks that are not in the cache are read once, by a request for up to 64 of them.
    pub(crate) fn get_many_in(
        &self,
        view: &View,
        tree: TreeId,
        keys: &[&[u8]],
        seqno: Seqno,
    ) -> Result<Vec<Option<Bytes>>, VtError> {
        if let [key] = keys {
            return Ok(vec![self.get_in(view, tree, key, seqno)?]);
        }
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_unstable_by_key(|at| keys[*at]);
        let mut values: Vec<Option<Bytes>> = vec![None; keys.len()];
        let each_once = order.chunk_by(|a, b| keys[*a] == keys[*b]);
        let look_up =
            |at: usize, reads: &mut BatchReads| self.look_up(view, tree, (keys[at], seqno), reads);
        let firsts = each_once.clone().map(|same| same[0]).collect();
        read_in_rounds(firsts, look_up, &mut values)?;
        for same in each_once {
            for at in &same[1..] {
                values[*at] = values[same[0]].clone();
            }
        }
        debug_assert_eq!(values.len(), keys.len(), "one value for each key");
        Ok(values)
    }
}

/// Looks up the keys at these places of a batch, which are in key order, and puts their values
/// there.
fn read_in_rounds(
    fresh: VecDeque<usize>,
    look_up: impl Fn(usize, &mut BatchReads) -> Result<Option<Bytes>, Unfinished>,
    values: &mut [Option<Bytes>],
) -> Result<(), VtError> {
    let mut reads = BatchReads::default();
    let waiting = VecDeque::new();
    let mut keys = Keys { waiting, fresh };
    let mut failed = None;
    loop {
        let mut again = VecDeque::new();
        while !reads.is_full()
            && let Some(Waiting { at, waits }) = keys.next()
        {
            reads.read_alone(waits == WAITS_MAX);
            match look_up(at, &mut reads) {
                Ok(value) => values[at] = value,
                Err(Unfinished::NotRead) => {
                    debug_assert!(waits < WAITS_MAX, "a lookup that reads alone ends");
                    let waits = waits + 1;
                    again.push_back(Waiting { at, waits });
                }
                Err(Unfinished::Failed(error)) => {
                    // Those before it go on: the error is that of the first that fails.
                    failed = Some(error);
                    keys.clear();
                }
            }
        }
        again.append(&mut keys.waiting);
        keys.waiting = again;
        if keys.waiting.is_empty() {
            debug_assert!(keys.fresh.is_empty(), "a pass ends with a full round only");
            return failed.map_or(Ok(()), Err);
        }
        reads.read_round();
    }
}
