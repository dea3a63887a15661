//! A small engine on a volume, to test the volume alone: a map in four shards. Puts go to the
//! backup log; a checkpoint of a shard writes it as one block and commits where it stands.

use std::collections::BTreeMap;
use stitch_base::Lsn;
use stitch_base::sync::Arc;
use stitch_device::Device;
use stitch_format::block::HEADER_BYTES;
use stitch_volume::{BlockKind, Class, Extent, OpenOptions, Stream, Volume, VolumeError};

pub(super) const SHARDS: usize = 4;

pub(super) type MiniMap = BTreeMap<u8, Arc<[u8]>>;

#[derive(Debug)]
pub(super) struct Engine {
    volume: Arc<Volume>,
    map: MiniMap,
    tables: [Option<Extent>; SHARDS],
    /// Position of the first record that a shard's table lacks.
    dirty_from: [Option<Lsn>; SHARDS],
    log_end: Lsn,
}

pub(super) fn shard_of(key: u8) -> usize {
    usize::from(key) % SHARDS
}

fn corrupt(what: &str, at: u64) -> VolumeError {
    VolumeError::Corrupt {
        what: what.to_owned(),
        at,
        expected: "what the engine wrote".to_owned(),
        found: "other bytes".to_owned(),
    }
}

/// `key, length (4), bytes`, one after the other; length `u32::MAX` removes.
pub(super) fn encode(entries: &[(u8, Option<Arc<[u8]>>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (key, value) in entries {
        out.push(*key);
        let len = value
            .as_ref()
            .map_or(u32::MAX, |v| u32::try_from(v.len()).expect("short"));
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(value.as_deref().unwrap_or_default());
    }
    out
}

fn decode(bytes: &[u8], map: &mut MiniMap) -> Option<()> {
    let mut rest = bytes;
    while let Some((&key, tail)) = rest.split_first() {
        let (len, tail) = tail.split_first_chunk::<4>()?;
        let len = u32::from_le_bytes(*len);
        if len == u32::MAX {
            map.remove(&key);
            rest = tail;
            continue;
        }
        let (value, tail) = tail.split_at_checked(len as usize)?;
        map.insert(key, value.into());
        rest = tail;
    }
    Some(())
}

/// Length of one table's place in a version, in bytes.
const EDIT_BYTES: usize = 25;

/// `shard, address (8), length (8), log end (8)`; length 0 for no table. The table holds what the
/// log held up to its end: a log that ends earlier would take it back in part.
fn edit(shard: usize, table: Option<Extent>, log_end: Lsn) -> [u8; EDIT_BYTES] {
    let mut out = [0; EDIT_BYTES];
    out[0] = u8::try_from(shard).expect("four shards");
    let extent = table.unwrap_or(Extent { addr: 0, len: 0 });
    out[1..9].copy_from_slice(&extent.addr.to_le_bytes());
    out[9..17].copy_from_slice(&extent.len.to_le_bytes());
    out[17..].copy_from_slice(&log_end.0.to_le_bytes());
    out
}

impl Engine {
    pub(super) fn open(device: Arc<dyn Device>) -> Result<Self, VolumeError> {
        let opened = Volume::open(device, &OpenOptions::default())?;
        let mut engine = Self {
            volume: opened.volume,
            map: MiniMap::new(),
            tables: [None; SHARDS],
            dirty_from: [None; SHARDS],
            log_end: opened.log_start,
        };
        for payload in &opened.versions {
            for edit in payload.chunks(EDIT_BYTES) {
                engine.apply(edit).ok_or_else(|| corrupt("version", 0))?;
            }
        }
        let extents: Vec<Extent> = engine.tables.iter().flatten().copied().collect();
        engine.volume.zones().adopt(&extents)?;
        for extent in extents {
            let map = engine.read(extent)?;
            engine.map.extend(map);
        }
        let volume = Arc::clone(&engine.volume);
        let mut before = opened.log_start;
        let end =
            volume
                .log()
                .replay::<VolumeError, ()>(opened.log_start, &mut |end, payload| {
                    engine
                        .replay(before, payload)
                        .ok_or_else(|| corrupt("record", before.0))?;
                    before = end;
                    Ok(())
                })?;
        if end < engine.log_end {
            return Err(corrupt("backup log", end.0));
        }
        engine.log_end = end;
        Ok(engine)
    }

    fn apply(&mut self, edit: &[u8]) -> Option<()> {
        let shard = usize::from(*edit.first()?);
        let addr = u64::from_le_bytes(edit.get(1..9)?.try_into().ok()?);
        let len = u64::from_le_bytes(edit.get(9..17)?.try_into().ok()?);
        let log_end = u64::from_le_bytes(edit.get(17..EDIT_BYTES)?.try_into().ok()?);
        self.log_end = self.log_end.max(Lsn(log_end));
        *self.tables.get_mut(shard)? = (len > 0).then_some(Extent { addr, len });
        Some(())
    }

    fn replay(&mut self, at: Lsn, payload: &[u8]) -> Option<()> {
        // A record's keys make their shards dirty from where the record stands.
        let mut touched = MiniMap::new();
        let mut rest = payload;
        while let Some((&key, tail)) = rest.split_first() {
            touched.insert(key, Arc::from([]));
            let len = u32::from_le_bytes(*tail.first_chunk::<4>()?);
            let skip = if len == u32::MAX { 0 } else { len as usize };
            rest = tail.get(4 + skip..)?;
        }
        decode(payload, &mut self.map)?;
        for key in touched.keys() {
            self.dirty_from[shard_of(*key)].get_or_insert(at);
        }
        Some(())
    }

    fn read(&self, extent: Extent) -> Result<MiniMap, VolumeError> {
        let block = self
            .volume
            .read_block(extent.addr, extent.len, BlockKind::TableData)?;
        let mut map = MiniMap::new();
        decode(block.payload(), &mut map).ok_or_else(|| corrupt("table", extent.addr))?;
        Ok(map)
    }

    pub(super) fn map(&self) -> &MiniMap {
        &self.map
    }

    pub(super) fn commit(
        &mut self,
        entries: &[(u8, Option<Arc<[u8]>>)],
    ) -> Result<(), VolumeError> {
        let payload = encode(entries);
        let end = match self.volume.log().append(&[&payload]) {
            Err(VolumeError::LogFull { .. }) => {
                self.checkpoint_all()?;
                self.volume.log().append(&[&payload])?
            }
            other => other?,
        };
        let at = self.log_end;
        self.log_end = end;
        self.replay(at, &payload).expect("just encoded");
        Ok(())
    }

    pub(super) fn sync(&self) -> Result<(), VolumeError> {
        self.volume.log().sync(self.log_end)
    }

    pub(super) fn barrier(&self) -> Result<(), VolumeError> {
        self.volume.sync()
    }

    pub(super) fn checkpoint_all(&mut self) -> Result<(), VolumeError> {
        (0..SHARDS).try_for_each(|shard| self.checkpoint(shard))
    }

    pub(super) fn close(&mut self) -> Result<(), VolumeError> {
        self.checkpoint_all()?;
        self.volume.close()
    }

    /// Writes one shard out.
    pub(super) fn checkpoint(&mut self, shard: usize) -> Result<(), VolumeError> {
        let entries: Vec<_> = self
            .map
            .iter()
            .filter(|(key, _)| shard_of(**key) == shard)
            .map(|(key, value)| (*key, Some(Arc::clone(value))))
            .collect();
        let table = if entries.is_empty() {
            None
        } else {
            Some(self.write(shard, &entries)?)
        };
        let old = std::mem::replace(&mut self.tables[shard], table);
        let dirty = self.dirty_from[shard].take();
        let result = self.install(shard);
        match (&result, old) {
            (Ok(()), Some(old)) => self.volume.zones().free(&[old]),
            (Err(_), _) => {
                self.tables[shard] = old;
                self.dirty_from[shard] = dirty;
            }
            (Ok(()), None) => {}
        }
        result
    }

    fn write(
        &self,
        shard: usize,
        entries: &[(u8, Option<Arc<[u8]>>)],
    ) -> Result<Extent, VolumeError> {
        let mut buffer = vec![0; HEADER_BYTES];
        buffer.extend_from_slice(&encode(entries));
        let bytes = (buffer.len() as u64).next_multiple_of(512);
        let mut room = self.volume.space().reserve(bytes, Class::Internal)?;
        let stream = Stream(u8::try_from(shard % 2).expect("two streams"));
        let extent = self.volume.zones().allocate(bytes, bytes, stream)?;
        room.release(bytes);
        self.volume
            .seal_block(&mut buffer, BlockKind::TableData, 0, extent.addr);
        self.volume.write(extent.addr, &[&buffer])?;
        Ok(extent)
    }

    fn install(&self, shard: usize) -> Result<(), VolumeError> {
        let start = self
            .dirty_from
            .iter()
            .flatten()
            .min()
            .copied()
            .unwrap_or(self.log_end);
        if !self.volume.version_log_wants_base() {
            let delta = edit(shard, self.tables[shard], self.log_end);
            match self.volume.commit_delta(&delta, start) {
                Err(VolumeError::VersionLogFull { .. }) => {}
                other => return other,
            }
        }
        let base: Vec<u8> = (0..SHARDS)
            .flat_map(|s| edit(s, self.tables[s], self.log_end))
            .collect();
        self.volume.commit_base(&base, start)
    }

    /// Reads every table again; every live byte has an owner.
    pub(super) fn check(&self) -> Result<Vec<String>, VolumeError> {
        let zones = self.volume.zones();
        zones.check();
        let mut broken = Vec::new();
        let mut owned = 0;
        for extent in self.tables.iter().flatten() {
            if let Err(error) = self.read(*extent) {
                broken.push(error.to_string());
            }
            if !zones.is_live(*extent) {
                broken.push(format!("the table at {} is not live", extent.addr));
            }
            owned += extent.len;
        }
        let live = zones.usage().live;
        if live != owned {
            broken.push(format!("{live} bytes are live, {owned} are owned"));
        }
        Ok(broken)
    }
}
