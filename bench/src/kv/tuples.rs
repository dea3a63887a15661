//! Tuples of the VT-tree paper: an 8-byte key and a value, 64 B or 4 KiB together. A load, and
//! after it a full scan and random point reads of known keys, both from a cold start.
//!
//! Paper: Shetty et al., VT-Trees, FAST 2013, sections 4.1 and 4.3.

use super::walk::walk;
use crate::context::{Bench, Context, Work};
use crate::measure::{Op, Recorder};
use crate::side::Write;
use anyhow::{Result, ensure};
use stitch_base::random::Rng;

const KEY_BYTES: u64 = 8;

/// The order in which keys come.
pub(crate) trait Pattern {
    /// The next key to insert. None comes twice.
    fn next(&mut self) -> u64;
    /// Any of the keys inserted.
    fn known(&self, rng: &mut Rng) -> u64;
}

/// Tuples of one size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuples {
    /// Key and value.
    pub(crate) tuple_bytes: u64,
}

impl Tuples {
    /// 4 KiB.
    pub(crate) const LARGE: Self = Self { tuple_bytes: 4096 };
    /// 64 B.
    pub(crate) const SMALL: Self = Self { tuple_bytes: 64 };

    /// How many the scale asks for.
    pub(crate) fn count(self, context: &Context<'_>) -> u64 {
        let scale = context.scale();
        let bytes = if self.tuple_bytes < 1024 {
            scale.small_bytes
        } else {
            scale.bytes
        };
        (bytes / self.tuple_bytes).max(1)
    }

    pub(crate) fn value_bytes(self) -> usize {
        usize::try_from(self.tuple_bytes - KEY_BYTES).expect("small")
    }

    /// The whole workload on a fresh store.
    pub(crate) fn run(self, context: &mut Context<'_>, pattern: &mut dyn Pattern) -> Result<()> {
        let count = self.count(context);
        context.open(count * self.tuple_bytes, self.tuple_bytes)?;
        self.load_and_read(context, pattern, "")
    }

    /// The workload on an open, empty store. `suffix` is added to the names of the phases.
    pub(crate) fn load_and_read(
        self,
        context: &mut Context<'_>,
        pattern: &mut dyn Pattern,
        suffix: &str,
    ) -> Result<()> {
        let loaded = self.load_and_scan(context, pattern, suffix)?;
        context.reopen_cold()?;
        let gets = context.scale().gets.min(loaded);
        let mut rng = Rng::new(context.seed() ^ 1);
        context.phase(
            &format!("get{suffix}"),
            Work::Read,
            gets,
            |bench, record| {
                for _ in 0..gets {
                    if record.is_over() {
                        break;
                    }
                    self.get(bench, record, pattern.known(&mut rng))?;
                }
                Ok(())
            },
        )
    }

    /// The load, and the scan of it from a cold start; how many were loaded.
    pub(crate) fn load_and_scan(
        self,
        context: &mut Context<'_>,
        pattern: &mut dyn Pattern,
        suffix: &str,
    ) -> Result<u64> {
        let loaded = self.load_all(context, pattern, suffix)?;
        context.reopen_cold()?;
        self.scan_all(context, &format!("scan{suffix}"), loaded)?;
        Ok(loaded)
    }

    /// The load; how many were loaded.
    pub(crate) fn load_all(
        self,
        context: &mut Context<'_>,
        pattern: &mut dyn Pattern,
        suffix: &str,
    ) -> Result<u64> {
        let count = self.count(context);
        context.set_live_bytes(count * self.tuple_bytes);
        let loaded = context.phase(
            &format!("load{suffix}"),
            Work::Load,
            count,
            |bench, record| self.load(bench, record, pattern, count),
        )?;
        context.set_live_bytes(loaded * self.tuple_bytes);
        context.last().live_bytes = loaded * self.tuple_bytes;
        Ok(loaded)
    }

    /// A phase that walks everything.
    pub(crate) fn scan_all(self, context: &mut Context<'_>, name: &str, count: u64) -> Result<()> {
        context.phase(name, Work::Read, count, |bench, record| {
            self.scan(bench, record, count)
        })
    }

    /// Inserts up to `count` tuples in batches. Returns their number.
    fn load(
        self,
        bench: &Bench<'_>,
        record: &mut Recorder<'_>,
        pattern: &mut dyn Pattern,
        count: u64,
    ) -> Result<u64> {
        let mut loaded = 0;
        while loaded < count && !record.is_over() {
            let batch = bench.batch.min(count - loaded);
            let ids: Vec<u64> = (0..batch).map(|_| pattern.next()).collect();
            let keys: Vec<[u8; 8]> = ids.iter().map(|id| id.to_be_bytes()).collect();
            let pairs = keys
                .iter()
                .zip(&ids)
                .map(|(key, id)| Write::Put(key, bench.values.value(*id, self.value_bytes())));
            let writes: Vec<Write<'_>> = pairs.collect();
            let size = (batch, batch * self.tuple_bytes);
            record.time(Op::Put, size, || bench.side.write(&writes, false))?;
            loaded += batch;
        }
        Ok(loaded)
    }

    /// Walks everything and checks what it sees.
    fn scan(self, bench: &Bench<'_>, record: &mut Recorder<'_>, count: u64) -> Result<()> {
        let is_right = |key: &[u8], value: &[u8]| {
            let id = key.try_into().map(u64::from_be_bytes).unwrap_or(0);
            bench.values.is_value(id, self.value_bytes(), value)
        };
        walk(
            record,
            (count, self.tuple_bytes),
            |rows| bench.side.scan(&[], rows),
            is_right,
        )
    }

    fn get(self, bench: &Bench<'_>, record: &mut Recorder<'_>, id: u64) -> Result<()> {
        let mut is_right = false;
        let found = record.time(Op::Get, (1, self.tuple_bytes), || {
            let key = id.to_be_bytes();
            bench.side.get(&key, &mut |value| {
                is_right = bench.values.is_value(id, self.value_bytes(), value);
            })
        })?;
        ensure!(found, "key {id:#018x} is lost");
        ensure!(is_right, "key {id:#018x} has a wrong value");
        Ok(())
    }
}
