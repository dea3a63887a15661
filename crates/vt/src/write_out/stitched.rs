//! The write-out of a memtable to which runs belong: what overlaps is merged, the other blocks of
//! the runs are stitched in.
//!
//! For the plan, the memtable's keys are cut into chunks that overlap the same blocks, each of
//! them.
//!
//! A run that cannot be read cannot be merged with what overlaps it. Then the write-out makes
//! several tables, as layers: what is newer than the run, the run alone, what is older.

use crate::VtError;
use crate::compaction::{BlockInfo, DistillRules, Piece, Step, StitchRules, distill, plan_steps};
use crate::direct::DirectRun;
use crate::entry::{BoxIter, EntryIter, EntryRef, RangeDelete};
use crate::iter::MergeIter;
use crate::memtable::Memtable;
use crate::output::Outputs;
use crate::table::Carry;
use std::ops::RangeInclusive;
use std::sync::Arc;
use stitch_base::{Seqno, TreeId};
use stitch_format::vt_index::IndexEntry;

/// Keys of the memtable that follow each other and overlap the same blocks. Invariant: keys and
/// numbers are in order.
struct KeyChunk {
    first: Vec<u8>,
    last: Vec<u8>,
    min_seqno: Seqno,
    max_seqno: Seqno,
}

/// What a write-out has of a tree, between two sequence numbers.
#[derive(Clone)]
pub(super) struct WriteOutLayer {
    pub(super) memtable: Arc<Memtable>,
    pub(super) tree: TreeId,
    /// Newest first.
    pub(super) runs: Vec<Arc<DirectRun>>,
    /// Older entries of the memtable are not in it.
    pub(super) from: Seqno,
    /// Newer ones are not in it.
    pub(super) to: Seqno,
    /// Range deletes that the memtable does not have; only of a layer that is all of it.
    pub(super) emptied: Arc<[RangeDelete]>,
}

impl WriteOutLayer {
    /// The layers, newest first, in which each run that `is_bad` is alone.
    pub(super) fn apart(&self, is_bad: impl Fn(&DirectRun) -> bool) -> Vec<Self> {
        debug_assert!(self.from <= self.to, "a layer is a range of numbers");
        let whole = Self {
            emptied: Arc::default(),
            ..self.clone()
        };
        let mut layers = Vec::new();
        let mut rest = Self {
            runs: Vec::new(),
            ..whole.clone()
        };
        for run in &self.runs {
            if !is_bad(run) {
                rest.runs.push(Arc::clone(run));
                continue;
            }
            let older = Self {
                runs: Vec::new(),
                to: run.min_seqno,
                ..whole.clone()
            };
            rest.from = run.min_seqno;
            layers.push(std::mem::replace(&mut rest, older));
            layers.push(Self {
                runs: vec![Arc::clone(run)],
                from: run.min_seqno,
                to: run.min_seqno,
                ..whole.clone()
            });
        }
        layers.push(rest);
        debug_assert_eq!(
            layers.iter().map(|layer| layer.runs.len()).sum::<usize>(),
            self.runs.len(),
            "each run is in one layer"
        );
        debug_assert!(
            layers.is_sorted_by(|newer, older| newer.from >= older.to),
            "layers come newest first"
        );
        layers
    }

    fn entries(&self) -> BoxIter {
        debug_assert!(self.from <= self.to, "a layer is a range of numbers");
        Box::new(Forward {
            inner: self.memtable.iter(self.tree),
            first: Vec::new(),
            last: None,
            seqnos: self.from..=self.to,
        })
    }
}

/// Writes a layer in the order of keys.
pub(super) fn write(
    layer: &WriteOutLayer,
    rules: &DistillRules<'_>,
    outputs: &mut Outputs<'_>,
) -> Result<(), VtError> {
    let runs = &layer.runs;
    if runs.is_empty() {
        let mut source = layer.entries();
        source.seek(&[], Seqno(u64::MAX))?;
        return distill(&mut source, rules, &mut |kept| outputs.keep(kept));
    }
    let chunks = chunks(layer)?;
    let mut infos = vec![chunks.iter().map(chunk_info).collect()];
    infos.extend(
        runs.iter()
            .map(|run| run.blocks.entries().iter().map(BlockInfo::of).collect()),
    );
    let steps = plan_steps(
        &infos,
        &StitchRules {
            // Nothing is written twice.
            threshold: &|_| 0,
            moments: rules.moments,
            range_deletes: rules.range_deletes,
            is_bottom: &|_, _| false,
        },
    );
    for step in &steps {
        match step {
            Step::Drop(_) => {}
            Step::Stitch(piece) => {
                debug_assert!(piece.input > 0, "the memtable has no blocks to stitch");
                let run = &runs[piece.input - 1];
                outputs.stitch(&run.blocks.entries()[piece.blocks.clone()])?;
            }
            Step::Merge(pieces) => {
                let mut source = source(layer, &chunks, pieces);
                source.seek(&[], Seqno(u64::MAX))?;
                distill(&mut source, rules, &mut |kept| outputs.keep(kept))?;
            }
        }
    }
    Ok(())
}

fn source(layer: &WriteOutLayer, chunks: &[KeyChunk], pieces: &[Piece]) -> MergeIter {
    let mut sources: Vec<BoxIter> = Vec::new();
    debug_assert!(!pieces.is_empty(), "a step merges something");
    for piece in pieces {
        let blocks = piece.blocks.clone();
        debug_assert!(!blocks.is_empty(), "a piece has blocks");
        let Some(run) = piece.input.checked_sub(1) else {
            sources.push(Box::new(Forward {
                inner: layer.memtable.iter(layer.tree),
                first: chunks[blocks.start].first.clone(),
                last: Some(chunks[blocks.end - 1].last.clone()),
                seqnos: layer.from..=layer.to,
            }));
            continue;
        };
        let run = &layer.runs[run].blocks;
        let carry = Carry::Values {
            out_of: Arc::default(),
        };
        sources.push(run.blocks_iter(run.entries()[blocks].to_vec(), carry));
    }
    MergeIter::new(sources)
}

/// Cuts the memtable's keys where a block of the runs begins or ends.
fn chunks(layer: &WriteOutLayer) -> Result<Vec<KeyChunk>, VtError> {
    let blocks = || layer.runs.iter().flat_map(|run| run.blocks.entries());
    let mut firsts: Vec<&[u8]> = blocks().map(|block| block.first.as_slice()).collect();
    let mut lasts: Vec<&[u8]> = blocks().map(|block| block.last.as_slice()).collect();
    firsts.sort_unstable();
    lasts.sort_unstable();
    // Keys with the same number of beginnings and ends before them overlap the same blocks.
    let (mut begun, mut ended) = (0, 0);
    let mut out: Vec<KeyChunk> = Vec::new();
    let mut source = layer.entries();
    source.seek(&[], Seqno(u64::MAX))?;
    while let Some(entry) = source.current() {
        let before = (begun, ended);
        while firsts.get(begun).is_some_and(|first| *first <= entry.key) {
            begun += 1;
        }
        while lasts.get(ended).is_some_and(|last| *last < entry.key) {
            ended += 1;
        }
        debug_assert!(ended <= begun, "a block begins before it ends");
        match out.last_mut() {
            Some(chunk) if before == (begun, ended) => chunk.add(&entry),
            _ => out.push(KeyChunk::of(&entry)),
        }
        source.next()?;
    }
    debug_assert!(
        out.is_sorted_by(|chunk, next| chunk.last < next.first),
        "versions of a key are in one chunk"
    );
    Ok(out)
}

impl KeyChunk {
    fn holds(&self) -> bool {
        self.first <= self.last && self.min_seqno <= self.max_seqno
    }

    fn of(entry: &EntryRef<'_>) -> Self {
        Self {
            first: entry.key.to_vec(),
            last: entry.key.to_vec(),
            min_seqno: entry.seqno,
            max_seqno: entry.seqno,
        }
    }

    fn add(&mut self, entry: &EntryRef<'_>) {
        debug_assert!(self.last.as_slice() <= entry.key, "keys come in order");
        if self.last != entry.key {
            self.last.clear();
            self.last.extend_from_slice(entry.key);
        }
        self.min_seqno = self.min_seqno.min(entry.seqno);
        self.max_seqno = self.max_seqno.max(entry.seqno);
        debug_assert!(self.holds());
    }
}

fn chunk_info(chunk: &KeyChunk) -> BlockInfo<'_> {
    debug_assert!(chunk.holds());
    BlockInfo {
        first: &chunk.first,
        last: &chunk.last,
        addr: 0,
        len_bytes: 0,
        min_seqno: chunk.min_seqno,
        max_seqno: chunk.max_seqno,
        has_deletes: false,
        has_versions: false,
        // There is no block that could be stitched.
        is_cut: true,
    }
}

/// A cursor over the keys from `first` to `last`, both included, and the versions with these
/// sequence numbers. It goes forward only.
struct Forward {
    inner: BoxIter,
    first: Vec<u8>,
    last: Option<Vec<u8>>,
    seqnos: RangeInclusive<Seqno>,
}

impl Forward {
    fn skip(&mut self) -> Result<(), VtError> {
        while let Some(entry) = self.inner.current()
            && !self.seqnos.contains(&entry.seqno)
        {
            self.inner.next()?;
        }
        debug_assert!(
            self.inner
                .current()
                .is_none_or(|entry| self.seqnos.contains(&entry.seqno)),
            "it stands on a version of the layer"
        );
        Ok(())
    }
}

impl EntryIter for Forward {
    fn seek(&mut self, key: &[u8], seqno: Seqno) -> Result<(), VtError> {
        if key < self.first.as_slice() {
            self.inner.seek(&self.first, Seqno(u64::MAX))?;
        } else {
            self.inner.seek(key, seqno)?;
        }
        self.skip()?;
        debug_assert!(
            self.current()
                .is_none_or(|entry| entry.key >= self.first.as_slice()),
            "it goes to no key before the first one"
        );
        Ok(())
    }

    fn seek_before(&mut self, _key: Option<&[u8]>) -> Result<(), VtError> {
        unreachable!("a write-out goes forward");
    }

    fn next(&mut self) -> Result<(), VtError> {
        debug_assert!(self.inner.is_on(), "it stands on an entry");
        self.inner.next()?;
        self.skip()
    }

    fn prev(&mut self) -> Result<(), VtError> {
        unreachable!("a write-out goes forward");
    }

    fn current(&self) -> Option<EntryRef<'_>> {
        let entry = self.inner.current()?;
        debug_assert!(
            entry.key >= self.first.as_slice(),
            "it goes forward from the first key"
        );
        let is_in = self.last.as_deref().is_none_or(|last| entry.key <= last);
        is_in.then_some(entry)
    }

    fn carried(&self) -> Option<&IndexEntry> {
        self.current()?;
        let carried = self.inner.carried();
        debug_assert!(
            carried.is_none_or(|block| self.seqnos.contains(&block.max_seqno)),
            "the block is of the layer"
        );
        carried
    }
}
