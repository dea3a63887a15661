//! Reading blocks of tables: cache, device, checks, decompression.

use super::block::{DataBlock, IndexBlock, Root};
use super::coalesced::CoalescedReads;
use super::compress;
use super::data_iter::DataIter;
use crate::VtError;
use crate::cache::{BlockCache, BlockKey, CachedBlock, Expectation, ReadCount};
use bytes::Bytes;
use std::sync::Arc;
use stitch_base::{Seqno, TableId};
use stitch_format::FormatError;
use stitch_format::block::{HEADER_BYTES, stored_checksum};
use stitch_format::vt_index::{BlockPtr, IndexEntryRef};
use stitch_format::vt_manifest::TableMeta;
use stitch_format::vt_root::{RootIndex, TableRoot};
use stitch_volume::{BlockKind, Volume, Wanted};

/// Which data block, and all that is needed to read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataRef {
    pub(super) block: BlockPtr,
    pub(super) origin: TableId,
    pub(super) raw_bytes: u32,
    pub(super) is_value: bool,
}

impl DataRef {
    pub(super) const fn of(entry: &IndexEntryRef<'_>) -> Self {
        Self {
            block: entry.block,
            origin: entry.origin,
            raw_bytes: entry.raw_bytes,
            is_value: entry.is_value,
        }
    }

    pub(super) const fn key(&self) -> BlockKey {
        BlockKey {
            origin: self.origin,
            addr: self.block.addr,
        }
    }

    /// Reports whether a block that is known by this key is the one that is referenced. A damaged
    /// index may name one place in two ways.
    pub(super) const fn is_of(&self, block: &DataBlock) -> bool {
        self.is_value == block.is_value() && self.raw_bytes as usize == block.payload().len()
    }
}

/// Reads blocks for one table.
#[derive(Clone, Debug)]
pub(crate) struct Loader {
    pub(super) volume: Arc<Volume>,
    pub(super) cache: Arc<BlockCache>,
    /// The table, for messages and for keys of its own blocks.
    pub(super) id: TableId,
    /// What sequence numbers in its blocks are less than they count: see [`TableMeta::shift`].
    pub(super) shift: u64,
}

/// What a decoder says about a block of a table, or (`addr` 0) about a table being made.
pub(super) fn damaged(id: TableId, addr: u64, source: FormatError) -> VtError {
    let context = match addr {
        0 => format!("new table {id}"),
        _ => format!("table {id}, block at byte {addr}"),
    };
    VtError::Format { context, source }
}

/// An error about something that contradicts something else.
pub(super) fn contradiction(field: &'static str, expected: String, found: String) -> FormatError {
    debug_assert_ne!(expected, found, "what is as expected contradicts nothing");
    FormatError::Field {
        record: "table",
        field,
        expected,
        found,
    }
}

/// A checked block's flags and payload, as a part of `buffer`.
struct Content {
    flags: u8,
    payload: Bytes,
}

impl Loader {
    pub(super) fn damaged(&self, addr: u64, source: FormatError) -> VtError {
        damaged(self.id, addr, source)
    }

    /// Checks a block that was read: `buffer` is exactly the block.
    fn check(&self, buffer: Bytes, ptr: &BlockPtr, kind: BlockKind) -> Result<Content, VtError> {
        assert_eq!(buffer.len(), ptr.len_bytes as usize, "exactly the block");
        let (header, payload) = self.volume.check_block(&buffer, ptr.addr, kind)?;
        let (flags, len) = (header.flags, payload.len());
        let found = stored_checksum(&buffer);
        if found != ptr.checksum {
            // A sound block, but not the one that was written here last.
            let error = FormatError::Checksum {
                record: kind.name(),
                expected: ptr.checksum,
                found,
            };
            return Err(self.damaged(ptr.addr, error));
        }
        debug_assert!(
            HEADER_BYTES + len <= buffer.len(),
            "the payload lies in the block"
        );
        let payload = buffer.slice(HEADER_BYTES..HEADER_BYTES + len);
        Ok(Content { flags, payload })
    }

    /// Reads a block that is never compressed.
    pub(super) fn read_plain(&self, ptr: &BlockPtr, kind: BlockKind) -> Result<Bytes, VtError> {
        debug_assert!(ptr.len_bytes > 0, "a block has a length");
        let mut buffer = vec![0; ptr.len_bytes as usize];
        self.volume.read(ptr.addr, &mut buffer)?;
        self.open_plain(buffer.into(), ptr, kind)
    }

    /// Checks a block that is never compressed: `buffer` is exactly the block.
    pub(super) fn open_plain(
        &self,
        buffer: Bytes,
        ptr: &BlockPtr,
        kind: BlockKind,
    ) -> Result<Bytes, VtError> {
        let content = self.check(buffer, ptr, kind)?;
        if content.flags != 0 {
            let found = content.flags.to_string();
            let error = contradiction("block flags", "0".to_owned(), found);
            return Err(self.damaged(ptr.addr, error));
        }
        Ok(content.payload)
    }

    /// What a sequence number of the table's blocks counts.
    #[inline]
    pub(super) const fn shifted(&self, stored: Seqno) -> Seqno {
        // What is damaged may be any number.
        Seqno(stored.0.saturating_add(self.shift))
    }

    /// A cursor over the entries of one of the table's data blocks.
    #[inline]
    pub(super) const fn entries(&self, block: Arc<DataBlock>) -> DataIter {
        DataIter::new(block, self.shift)
    }

    pub(super) fn own_key(&self, addr: u64) -> BlockKey {
        let origin = self.id;
        BlockKey { origin, addr }
    }

    /// The root block. A version knows its place, not its checksum: what is in it says whether it
    /// is the right one.
    pub(super) fn root(&self, meta: &TableMeta) -> Result<Arc<Root>, VtError> {
        if let Some(root) = self.cached_root(meta) {
            return Ok(root);
        }
        self.read_root(meta)
    }

    /// The root block, if it is in the cache.
    pub(super) fn cached_root(&self, meta: &TableMeta) -> Option<Arc<Root>> {
        debug_assert_eq!(meta.id, self.id, "a loader is of one table");
        match self.cache.get(&self.own_key(meta.root_addr)) {
            Some(CachedBlock::Root(root)) => {
                debug_assert_eq!(root.root.id, self.id, "a root is cached for its table");
                Some(root)
            }
            _ => None,
        }
    }

    fn read_root(&self, meta: &TableMeta) -> Result<Arc<Root>, VtError> {
        debug_assert_eq!(meta.id, self.id, "a loader is of one table");
        debug_assert!(meta.root_bytes > 0, "a block has a length");
        let (addr, len_bytes) = (meta.root_addr, meta.root_bytes);
        let kind = BlockKind::TableRoot;
        let block = self.volume.read_block(addr, u64::from(len_bytes), kind)?;
        self.keep_root(addr, &Bytes::from(block.into_payload()))
    }

    /// Checks a root block that was read, and caches it. `buffer` is exactly the block.
    pub(super) fn root_of(&self, meta: &TableMeta, buffer: &Bytes) -> Result<Arc<Root>, VtError> {
        debug_assert_eq!(meta.id, self.id, "a loader is of one table");
        debug_assert_eq!(buffer.len(), meta.root_bytes as usize, "exactly the block");
        let (addr, kind) = (meta.root_addr, BlockKind::TableRoot);
        let (_, payload) = self.volume.check_block(buffer, addr, kind)?;
        self.keep_root(addr, &buffer.slice_ref(payload))
    }

    /// Puts the root into the cache.
    pub(super) fn keep_root(&self, addr: u64, payload: &Bytes) -> Result<Arc<Root>, VtError> {
        let root = self.open_root(addr, payload)?;
        debug_assert_eq!(root.root.id, self.id, "a root is cached for its table");
        let cached = CachedBlock::Root(Arc::clone(&root));
        self.cache
            .insert(self.own_key(addr), cached, Expectation::Often);
        Ok(root)
    }

    pub(super) fn open_root(&self, addr: u64, payload: &Bytes) -> Result<Arc<Root>, VtError> {
        let root = self.decode_root(payload);
        Ok(Arc::new(root.map_err(|e| self.damaged(addr, e))?))
    }

    fn decode_root(&self, payload: &Bytes) -> Result<Root, FormatError> {
        let root = TableRoot::decode(payload)?;
        if root.id != self.id {
            let (expected, found) = (self.id.to_string(), root.id.to_string());
            return Err(contradiction("table number in the root", expected, found));
        }
        let inside = match &root.index {
            RootIndex::Inside(range) => Some(IndexBlock::new(
                payload.slice(range.clone()),
                payload.len(),
            )?),
            RootIndex::None | RootIndex::Leaves(_) => None,
        };
        debug_assert_eq!(
            inside.is_some(),
            matches!(root.index, RootIndex::Inside(_)),
            "an index inside the root is opened with it"
        );
        Ok(Root::new(root, inside))
    }

    /// A data block, for a point read.
    pub(super) fn data(&self, data: &DataRef) -> Result<Arc<DataBlock>, VtError> {
        debug_assert!(data.block.len_bytes > 0, "a block has a length");
        if let Some(block) = self.cached_data(data) {
            return Ok(block);
        }
        let block = self.read_data(data)?;
        debug_assert!(
            data.is_of(&block),
            "the block is the one that is referenced"
        );
        self.keep_data(data, &block, Expectation::Normal);
        Ok(block)
    }

    /// A data block, if it is in the cache.
    pub(super) fn cached_data(&self, data: &DataRef) -> Option<Arc<DataBlock>> {
        match self.cache.get(&data.key()) {
            Some(CachedBlock::Data(block)) if data.is_of(&block) => Some(block),
            _ => None,
        }
    }

    /// Looks up like [`Self::cached_data`], without a trace, for a caller that reads it once.
    pub(super) fn glance_data(&self, data: &DataRef) -> Option<Arc<DataBlock>> {
        match self.cache.glance(&data.key()) {
            Some(CachedBlock::Data(block)) if data.is_of(&block) => Some(block),
            _ => None,
        }
    }

    /// As [`Self::glance_data`], for the last reader of a block: it leaves the cache if it was
    /// written and not found since.
    pub(super) fn take_data(&self, data: &DataRef) -> Option<Arc<DataBlock>> {
        match self.cache.take_written(&data.key()) {
            Some(CachedBlock::Data(block)) if data.is_of(&block) => Some(block),
            _ => None,
        }
    }

    /// A data block, for a caller that reads it once: from the cache, without a trace, or past it.
    pub(super) fn data_once(&self, data: &DataRef) -> Result<Arc<DataBlock>, VtError> {
        let block = match self.glance_data(data) {
            Some(block) => block,
            None => self.read_data(data)?,
        };
        debug_assert!(
            data.is_of(&block),
            "the block is the one that is referenced"
        );
        Ok(block)
    }

    /// Puts a data block into the cache.
    pub(super) fn keep_data(
        &self,
        data: &DataRef,
        block: &Arc<DataBlock>,
        expectation: Expectation,
    ) {
        debug_assert!(data.is_of(block), "the block is the one that is referenced");
        debug_assert!(
            block.memory_bytes() > block.payload().len(),
            "the cache counts the whole block"
        );
        let cached = CachedBlock::Data(Arc::clone(block));
        self.cache.insert(data.key(), cached, expectation);
    }

    /// Returns a data block that is in the cache or that the device reads without waiting for the
    /// medium. It is in the cache then.
    pub(super) fn resident_data(&self, data: &DataRef) -> Result<Option<Arc<DataBlock>>, VtError> {
        debug_assert!(data.block.len_bytes > 0, "a block has a length");
        if let Some(block) = self.cached_data(data) {
            return Ok(Some(block));
        }
        let mut buffer = vec![0; data.block.len_bytes as usize];
        if !self.volume.read_resident(data.block.addr, &mut buffer) {
            return Ok(None);
        }
        self.cache.counters().add(ReadCount::DataBlocksRead, 1);
        let block = self.open_data(data, buffer.into())?;
        self.keep_data(data, &block, Expectation::Normal);
        Ok(Some(block))
    }

    /// Reads a data block past the cache.
    pub(super) fn read_data(&self, data: &DataRef) -> Result<Arc<DataBlock>, VtError> {
        debug_assert!(data.block.len_bytes > 0, "a block has a length");
        self.cache.counters().add(ReadCount::DataBlocksRead, 1);
        let mut buffer = vec![0; data.block.len_bytes as usize];
        self.volume.read(data.block.addr, &mut buffer)?;
        self.open_data(data, buffer.into())
    }

    /// Checks and unpacks a data block that was read: `buffer` is exactly the block.
    pub(super) fn open_data(
        &self,
        data: &DataRef,
        buffer: Bytes,
    ) -> Result<Arc<DataBlock>, VtError> {
        debug_assert_eq!(
            buffer.len(),
            data.block.len_bytes as usize,
            "exactly the block"
        );
        if data.is_value {
            return self.open_value(data, buffer);
        }
        let content = self.check(buffer, &data.block, BlockKind::TableData)?;
        debug_assert!(
            content.payload.len() < data.block.len_bytes as usize,
            "a header is before the payload"
        );
        let block = self.unpack(data, content)?;
        debug_assert!(
            data.is_of(&block),
            "the block is the one that is referenced"
        );
        Ok(block)
    }

    fn open_value(&self, data: &DataRef, buffer: Bytes) -> Result<Arc<DataBlock>, VtError> {
        debug_assert!(data.is_value, "a value block");
        let (len, memory_bytes) = (data.raw_bytes as usize, buffer.len());
        assert!(len <= memory_bytes, "the index entry was checked");
        let found = self.volume.value_checksum(data.block.addr, &buffer[..len]);
        if found != data.block.checksum {
            let error = FormatError::Checksum {
                record: "value block",
                expected: data.block.checksum,
                found,
            };
            return Err(self.damaged(data.block.addr, error));
        }
        let value = buffer.slice(..len);
        debug_assert_eq!(value.len(), len, "the whole value");
        Ok(Arc::new(DataBlock::value(value, memory_bytes)))
    }

    /// Reads data blocks, wherever they are, with as few requests as possible, past the cache.
    pub(super) fn read_data_each(&self, all: &[DataRef]) -> Result<Vec<Arc<DataBlock>>, VtError> {
        debug_assert!(!all.is_empty(), "some blocks are read");
        self.cache
            .counters()
            .add(ReadCount::DataBlocksRead, all.len() as u64);
        // Each block gets a buffer of its own, so that one does not keep all alive.
        let buffer = |data: &DataRef| vec![0; data.block.len_bytes as usize];
        let mut buffers: Vec<Vec<u8>> = all.iter().map(buffer).collect();
        let wanted = all.iter().zip(&mut buffers).map(|(data, out)| Wanted {
            offset: data.block.addr,
            out,
        });
        self.volume.read_each(&mut wanted.collect::<Vec<_>>())?;
        let mut out = Vec::with_capacity(all.len());
        for (data, buffer) in all.iter().zip(buffers) {
            out.push(self.open_data(data, buffer.into())?);
        }
        debug_assert_eq!(out.len(), all.len(), "each block is read");
        Ok(out)
    }

    /// Reads data blocks that are wanted once, in order: those that lie one after the other with
    /// one request. They share a few buffers from then on ([`super::coalesced`]).
    pub(super) fn read_data_once(&self, all: &[DataRef]) -> Result<Vec<Arc<DataBlock>>, VtError> {
        self.cache
            .counters()
            .add(ReadCount::DataBlocksRead, all.len() as u64);
        let mut pieces = CoalescedReads::of(all, self.cache.buffers());
        self.volume.read_once(&mut pieces.wanted())?;
        let pieces = pieces.read();
        let open = |data: &DataRef| self.open_data(data, pieces.block(data));
        all.iter().map(open).collect()
    }

    /// Puts a data block into the cache if it has room, in a buffer of its own.
    pub(super) fn keep_if_room(&self, data: &DataRef, block: &Arc<DataBlock>) {
        debug_assert!(data.is_of(block), "the block is the one that is referenced");
        if self.cache.has_room(&data.key(), block.memory_bytes()) {
            self.keep_data(data, &Arc::new(block.detached()), Expectation::Scan);
        }
    }

    fn unpack(&self, data: &DataRef, content: Content) -> Result<Arc<DataBlock>, VtError> {
        debug_assert!(!data.is_value, "a value block has no header");
        let stored_bytes = data.block.len_bytes as usize;
        let block = match content.flags {
            0 => check_raw(content.payload, data, stored_bytes),
            flags => decompress(flags, &content.payload, data),
        };
        block
            .map(Arc::new)
            .map_err(|e| self.damaged(data.block.addr, e))
    }
}

fn check_raw(
    payload: Bytes,
    data: &DataRef,
    memory_bytes: usize,
) -> Result<DataBlock, FormatError> {
    if payload.len() != data.raw_bytes as usize {
        let (expected, found) = (data.raw_bytes.to_string(), payload.len().to_string());
        return Err(contradiction("block length", expected, found));
    }
    debug_assert!(
        payload.len() < memory_bytes,
        "a header is before the payload"
    );
    DataBlock::new(payload, memory_bytes)
}

fn decompress(flags: u8, payload: &[u8], data: &DataRef) -> Result<DataBlock, FormatError> {
    let expected = data.raw_bytes as usize;
    debug_assert!(flags != 0, "the block is compressed");
    let out = compress::unpack(flags, payload, expected)?;
    assert_eq!(out.len(), expected, "unpacked to the length in the index");
    DataBlock::new(Bytes::from(out), expected)
}
