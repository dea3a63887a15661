//! Blocks, of which tables are made: a header of 32 bytes, a payload, and zeros to the next
//! multiple of 512 bytes.
//!
//! A block carries its kind, its address and its generation, under one checksum. So a block that
//! was lost, torn, written to the wrong address or left by an earlier store is never taken for the
//! right one.

use crate::FormatError;
use crate::table::{checksum_with_hole, fields};
use stitch_base::Generation;

/// Length of the header, in bytes.
pub const HEADER_BYTES: usize = 32;
/// Blocks start at multiples of this and are padded to it, in bytes.
pub const ALIGN: u64 = 512;
/// Longest payload, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 20;
/// First bytes of a block.
pub const MAGIC: [u8; 4] = *b"StBk";
const VERSION: u8 = 1;

fields! {
    /// Layout of a block's header.
    TABLE = "block", HEADER_BYTES,
        "In zones, at multiples of 512; the payload follows, then zeros to the next.";
    MAGIC_AT: [u8; 4] = 0, "ASCII `StBk`";
    CHECKSUM: u32 = 4, "CRC-32C of the volume's salt, header and payload, this field as zeros";
    ADDRESS: u64 = 8, "offset of the block on the device, in bytes";
    GENERATION: u64 = 16, "generation of the volume that wrote this";
    PAYLOAD_LEN: u32 = 24, "length of the payload in bytes, at most 16 MiB";
    KIND: u8 = 28, "1 table data, 2 table index, 3 table root, 4 table filter, 5 range deletes";
    VERSION_AT: u8 = 29, "version of this record: 1";
    FLAGS: u8 = 30, "belongs to the writer of the payload: how it is compressed";
    RESERVED: u8 = 31, "zero";
}

/// What a block holds. Do not renumber; 0 is never valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockKind {
    /// Keys and values.
    TableData = 1,
    /// Keys and addresses of blocks.
    TableIndex = 2,
    /// The block that a version names: it leads to the rest of the table.
    TableRoot = 3,
    /// A part of a table's filter.
    TableFilter = 4,
    /// Deleted ranges of keys.
    RangeDeletes = 5,
}

impl BlockKind {
    /// All kinds, in order.
    pub const ALL: [Self; 5] = [
        Self::TableData,
        Self::TableIndex,
        Self::TableRoot,
        Self::TableFilter,
        Self::RangeDeletes,
    ];

    /// The name for messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TableData => "table data block",
            Self::TableIndex => "table index block",
            Self::TableRoot => "table root block",
            Self::TableFilter => "table filter block",
            Self::RangeDeletes => "range delete block",
        }
    }

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// Header of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// What the block holds.
    pub kind: BlockKind,
    /// Belongs to the writer of the payload.
    pub flags: u8,
    /// Offset on the device, in bytes.
    pub addr: u64,
    /// Generation that wrote it.
    pub generation: Generation,
    /// Length of the payload in bytes.
    pub payload_len: u32,
}

/// Bytes that a block with this many bytes of payload takes on the device.
#[must_use]
pub const fn block_bytes(payload_len: u64) -> u64 {
    (HEADER_BYTES as u64 + payload_len).next_multiple_of(ALIGN)
}

/// Writes the header of a block into its first [`HEADER_BYTES`] bytes, which the caller left free
/// before the payload. `block` may be padded already.
///
/// # Panics
/// If the block is shorter than its payload, too long, or not padded with zeros.
pub fn seal(block: &mut [u8], salt: u64, header: &BlockHeader) {
    let covered = HEADER_BYTES + header.payload_len as usize;
    assert!(
        header.payload_len as usize <= PAYLOAD_BYTES_MAX,
        "a block is bounded"
    );
    assert!(header.addr.is_multiple_of(ALIGN), "blocks start at sectors");
    assert!(are_zeros(&block[covered..]), "padding is zeros");
    MAGIC_AT.put(block, MAGIC);
    ADDRESS.put(block, header.addr);
    GENERATION.put(block, header.generation.0);
    PAYLOAD_LEN.put(block, header.payload_len);
    KIND.put(block, header.kind as u8);
    VERSION_AT.put(block, VERSION);
    FLAGS.put(block, header.flags);
    RESERVED.put(block, 0);
    let sum = checksum_with_hole(salt, &block[..covered], CHECKSUM.range());
    CHECKSUM.put(block, sum);
}

/// Returns the checksum in the header of a sealed block. A pointer to the block keeps it, so that
/// an older block at the same address is never taken for it.
///
/// # Panics
/// If the block is shorter than a header.
#[must_use]
pub fn stored_checksum(block: &[u8]) -> u32 {
    CHECKSUM.get(block)
}

/// Decodes a block of `kind` at `addr`: returns its header and payload. `block` is its full padded
/// length from the device.
///
/// # Errors
/// [`FormatError`] with what is wrong.
pub fn open(
    block: &[u8],
    salt: u64,
    kind: BlockKind,
    addr: u64,
) -> Result<(BlockHeader, &[u8]), FormatError> {
    if block.len() < HEADER_BYTES {
        return Err(truncated(block.len(), HEADER_BYTES, block.len()));
    }
    if MAGIC_AT.get(block) != MAGIC {
        return Err(TABLE.wrong("magic", "StBk", format!("{:02x?}", MAGIC_AT.get(block))));
    }
    let payload_len = PAYLOAD_LEN.get(block);
    let covered = HEADER_BYTES + payload_len as usize;
    if covered > block.len() {
        let left = block.len() - HEADER_BYTES;
        return Err(truncated(HEADER_BYTES, payload_len as usize, left));
    }
    let expected = checksum_with_hole(salt, &block[..covered], CHECKSUM.range());
    let found = CHECKSUM.get(block);
    if expected != found {
        let record = TABLE.name;
        return Err(FormatError::Checksum {
            record,
            expected,
            found,
        });
    }
    let header = checked_header(block, kind, addr)?;
    if block.len() as u64 != block_bytes(u64::from(payload_len)) {
        return Err(TABLE.wrong(
            "payload_len",
            &format!("a block of {}", block.len()),
            payload_len,
        ));
    }
    if !are_zeros(&block[covered..]) {
        return Err(TABLE.wrong("padding", "zeros", "other bytes"));
    }
    Ok((header, &block[HEADER_BYTES..covered]))
}

fn checked_header(block: &[u8], kind: BlockKind, addr: u64) -> Result<BlockHeader, FormatError> {
    let version = VERSION_AT.get(block);
    if version > VERSION {
        return Err(FormatError::Newer {
            record: TABLE.name,
            found: u32::from(version),
            supported: u32::from(VERSION),
        });
    }
    if version != VERSION || RESERVED.get(block) != 0 {
        return Err(TABLE.wrong("version", "1, and zero reserved", version));
    }
    let number = KIND.get(block);
    if BlockKind::from_number(number) != Some(kind) {
        let expected = format!("{} ({})", kind as u8, kind.name());
        return Err(TABLE.wrong("kind", &expected, number));
    }
    if ADDRESS.get(block) != addr {
        return Err(TABLE.wrong("address", &addr.to_string(), ADDRESS.get(block)));
    }
    if PAYLOAD_LEN.get(block) as usize > PAYLOAD_BYTES_MAX {
        return Err(TABLE.wrong("payload_len", "at most 16 MiB", PAYLOAD_LEN.get(block)));
    }
    Ok(BlockHeader {
        kind,
        flags: FLAGS.get(block),
        addr,
        generation: Generation(GENERATION.get(block)),
        payload_len: PAYLOAD_LEN.get(block),
    })
}

/// Checks all bytes without an early exit, so that many are compared at a time.
fn are_zeros(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |all, byte| all | byte) == 0
}

fn truncated(at: usize, needed: usize, left: usize) -> FormatError {
    FormatError::Truncated {
        record: TABLE.name,
        at,
        needed,
        left,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::testing::{dump, refuses_damage};

    const SALT: u64 = 7;
    const ADDR: u64 = 0x0807_0605_0403_0200;

    fn sample() -> (BlockHeader, Vec<u8>) {
        let header = BlockHeader {
            kind: BlockKind::TableIndex,
            flags: 0x42,
            addr: ADDR,
            generation: Generation(0x1817_1615_1413_1211),
            payload_len: 3,
        };
        let mut block = vec![0; 512];
        block[HEADER_BYTES..HEADER_BYTES + 3].copy_from_slice(b"abc");
        seal(&mut block, SALT, &header);
        (header, block)
    }

    #[test]
    fn bytes_are_pinned() {
        let golden = "\
magic_at 5374426b
checksum dc4000fb
address 0002030405060708
generation 1112131415161718
payload_len 03000000
kind 02
version_at 01
flags 42
reserved 00
";
        assert_eq!(dump(&TABLE, &sample().1), golden);
    }

    #[test]
    fn it_comes_back_and_damage_is_refused() {
        let (header, block) = sample();
        let decoded = open(&block, SALT, BlockKind::TableIndex, ADDR);
        assert_eq!(decoded, Ok((header, &b"abc"[..])));
        refuses_damage(&block, |block| {
            open(block, SALT, BlockKind::TableIndex, ADDR).is_ok()
        });
        for kind in BlockKind::ALL {
            let is_right = open(&block, SALT, kind, ADDR).is_ok();
            assert_eq!(is_right, kind == BlockKind::TableIndex);
        }
        assert!(open(&block, SALT, BlockKind::TableIndex, ADDR + 512).is_err());
        assert!(open(&block, SALT + 1, BlockKind::TableIndex, ADDR).is_err());
        let longer = [&block[..], &[0; 512]].concat();
        assert!(open(&longer, SALT, BlockKind::TableIndex, ADDR).is_err());
    }

    #[test]
    fn numbers_of_kinds_are_pinned() {
        let numbers = BlockKind::ALL.map(|kind| kind as u8);
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
    }
}
