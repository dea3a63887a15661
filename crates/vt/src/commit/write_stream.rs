//! Puts that continue a write stream: their values go to the stream's append extent, one block
//! each.

use super::{DirectWriter, puts};
use crate::VtError;
use crate::direct::{WriteStreamId, WriteStreams};
use crate::table::WrittenBlocks;
use stitch_base::{Seqno, TableId};
use stitch_format::vt_index::{BlockPtr, IndexEntry, value_block_bytes};
use stitch_kv::{SpaceClass, Stretch};
use stitch_volume::Extent;

/// Fills blocks up to a multiple of this length.
const PADDING: [u8; 4096] = [0; 4096];

/// Blocks that follow each other on the device and are written with one request.
#[derive(Default)]
struct Strip<'a> {
    start: u64,
    end: u64,
    pieces: Vec<&'a [u8]>,
}

impl DirectWriter {
    /// Writes the puts of a part of a batch that continue a stream; `first` is the sequence number
    /// of the first. Space is reserved where an append extent ends.
    pub(super) fn write_stream(
        &self,
        streams: &mut WriteStreams,
        stream: WriteStreamId,
        messages: Stretch<'_>,
        (first, class): (Seqno, SpaceClass),
    ) -> Result<WrittenBlocks, VtError> {
        let mut written = WrittenBlocks::new(&self.volume);
        let mut strip = Strip::default();
        for ((key, value), seqno) in puts(messages).zip(first.0..) {
            let len = value_block_bytes(value.len() as u64);
            let new_id = || self.tables.new_id();
            let has_room = |bytes| self.has_room(bytes, class);
            let place = streams.place(&self.volume, stream, len, (&has_room, &new_id))?;
            debug_assert!(
                strip.end <= place.0 || strip.start >= place.0 + len,
                "blocks do not overlap"
            );
            let entry = self.value_entry((key, value), Seqno(seqno), place);
            written.add(entry, Extent { addr: place.0, len });
            if strip.end != place.0 {
                self.write_strip(&std::mem::take(&mut strip))?;
                (strip.start, strip.end) = (place.0, place.0);
            }
            strip.end += len;
            debug_assert!(len >= value.len() as u64, "a block holds its value");
            let padding = usize::try_from(len).expect("a value is bounded") - value.len();
            strip.pieces.extend([value, &PADDING[..padding]]);
        }
        self.write_strip(&strip)?;
        Ok(written)
    }

    fn write_strip(&self, strip: &Strip<'_>) -> Result<(), VtError> {
        if strip.pieces.is_empty() {
            return Ok(());
        }
        debug_assert_eq!(
            strip.pieces.iter().map(|p| p.len() as u64).sum::<u64>(),
            strip.end - strip.start,
            "the blocks follow each other"
        );
        Ok(self.volume.write(strip.start, &strip.pieces)?)
    }

    /// Returns the index entry of a value at its address.
    fn value_entry(
        &self,
        (key, value): (&[u8], &[u8]),
        seqno: Seqno,
        (addr, origin): (u64, TableId),
    ) -> IndexEntry {
        let narrow = |len: u64| u32::try_from(len).expect("a value is bounded");
        let raw_bytes = value.len() as u64;
        debug_assert!(
            value_block_bytes(raw_bytes) >= raw_bytes,
            "a block holds its value"
        );
        let block = BlockPtr {
            addr,
            len_bytes: narrow(value_block_bytes(raw_bytes)),
            checksum: self.volume.value_checksum(addr, value),
        };
        IndexEntry::value(key, seqno, block, origin, narrow(raw_bytes))
    }
}
