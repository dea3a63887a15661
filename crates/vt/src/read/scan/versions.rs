//! The versions of one key, as a scan gathers them.

use crate::VtError;
use crate::entry::{EntryIter, EntryRef, Op};
use crate::fold;
use stitch_base::Seqno;
use stitch_kv::UpsertRegistry;

/// The versions of a key that matter, newest first.
#[derive(Default)]
pub(super) struct Chain {
    pub(super) upserts: Vec<(u32, Vec<u8>)>,
    base: Option<Option<Vec<u8>>>,
}

impl Chain {
    /// Takes the next older version. Returns false when nothing older matters.
    pub(super) fn push(&mut self, op: Op<'_>) -> bool {
        debug_assert!(self.base.is_none(), "nothing older than a base matters");
        match op {
            Op::Put(value) => self.base = Some(Some(value.to_vec())),
            Op::Delete => self.base = Some(None),
            Op::Upsert { function, delta } => {
                self.upserts.push((function, delta.to_vec()));
                return true;
            }
        }
        false
    }

    pub(super) fn fold(
        self,
        upserts: &UpsertRegistry,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>, VtError> {
        let base = self.base.flatten();
        if self.upserts.is_empty() {
            return Ok(base);
        }
        let deltas = self.upserts.iter().rev();
        let deltas = deltas.map(|(function, delta)| (*function, delta.as_slice()));
        fold::fold(upserts, key, base.as_deref(), deltas)
    }
}

/// A copied operation.
pub(super) enum OwnedOp {
    Put(Vec<u8>),
    Delete,
    Upsert(u32, Vec<u8>),
}

impl OwnedOp {
    fn of(op: Op<'_>) -> Self {
        let copy = match op {
            Op::Put(value) => Self::Put(value.to_vec()),
            Op::Delete => Self::Delete,
            Op::Upsert { function, delta } => Self::Upsert(function, delta.to_vec()),
        };
        debug_assert_eq!(copy.op(), op, "a copy does what its original does");
        copy
    }

    pub(super) fn op(&self) -> Op<'_> {
        match self {
            Self::Put(value) => Op::Put(value),
            Self::Delete => Op::Delete,
            Self::Upsert(function, delta) => Op::Upsert {
                function: *function,
                delta,
            },
        }
    }
}

/// Steps back over the versions of a key. Those that a reader of `seqno` sees, oldest first; none
/// before the newest put or delete.
pub(super) fn versions_backward(
    entries: &mut dyn EntryIter,
    key: &[u8],
    seqno: Seqno,
) -> Result<Vec<(Seqno, OwnedOp)>, VtError> {
    let mut out = Vec::new();
    while let Some(EntryRef {
        key: at,
        seqno: written,
        op,
    }) = entries.current()
        && at == key
    {
        if written <= seqno {
            if !matches!(op, Op::Upsert { .. }) {
                out.clear();
            }
            out.push((written, OwnedOp::of(op)));
        }
        entries.prev()?;
    }
    debug_assert!(
        out.iter()
            .skip(1)
            .all(|(_, op)| matches!(op, OwnedOp::Upsert(..))),
        "nothing older than a base matters"
    );
    Ok(out)
}
