use super::*;
use crate::page_buffers::KEPT_BYTES;
use stitch_base::TableId;
use stitch_format::vt_index::BlockPtr;

const KIB: usize = 1 << 10;

fn data(addr: usize, len: usize) -> DataRef {
    DataRef {
        block: BlockPtr {
            addr: addr as u64,
            len_bytes: u32::try_from(len).expect("short"),
            checksum: 0,
        },
        origin: TableId(1),
        raw_bytes: 0,
        is_value: false,
    }
}

/// A byte of the device.
fn byte_at(offset: u64) -> u8 {
    (offset / 512 % 251) as u8
}

/// Reads blocks, and checks what each is given. Answers how many requests that took.
fn read(blocks: &[DataRef], buffers: &PageBuffers) -> usize {
    let mut pieces = CoalescedReads::of(blocks, buffers);
    let mut wanted = pieces.wanted();
    let count = wanted.len();
    for piece in &mut wanted {
        assert!(piece.out.as_ptr().addr().is_multiple_of(PAGE_BYTES));
        for (at, byte) in piece.out.iter_mut().enumerate() {
            *byte = byte_at(piece.offset + at as u64);
        }
    }
    let read = pieces.read();
    for data in blocks {
        let bytes = read.block(data);
        assert_eq!(bytes.len(), data.block.len_bytes as usize);
        let offsets = data.block.addr..;
        assert!(bytes.iter().zip(offsets).all(|(b, at)| *b == byte_at(at)));
    }
    count
}

#[test]
fn short_pieces_share_buffers_that_are_used_again() {
    let buffers = PageBuffers::within(32 << 20);
    // 230 pieces of 9.5 KiB, as windows have them: in the order of keys, not of places.
    let place = |n: usize| (n * 37 % 230) * 64 * KIB;
    let blocks: Vec<DataRef> = (0..230)
        .flat_map(|n| {
            let at = place(n);
            [data(at, 4 * KIB), data(at + 4 * KIB, 5 * KIB + 512)]
        })
        .collect();
    // A piece is one request, but for one that is cut where a buffer ends.
    assert_eq!(read(&blocks, &buffers), 231);
    // 12 KiB each: 2.7 MiB, and the last of three buffers is long enough to be kept.
    assert_eq!(buffers.counts(), (3, 0));
    assert_eq!(read(&blocks, &buffers), 231);
    assert_eq!(buffers.counts(), (3, 0), "no other memory");
}

#[test]
fn a_window_of_a_row_is_one_piece_even_if_it_is_a_block_too_long() {
    let buffers = PageBuffers::default();
    let count = KEPT_BYTES / (12 * KIB) + 1;
    let row: Vec<DataRef> = (0..count).map(|n| data(n * 12 * KIB, 12 * KIB)).collect();
    assert!(count * 12 * KIB > KEPT_BYTES);
    assert_eq!(read(&row, &buffers), 1);
    assert_eq!(buffers.counts(), (1, 0));
}

#[test]
fn a_long_row_is_cut_between_blocks() {
    let buffers = PageBuffers::within(32 << 20);
    let row: Vec<DataRef> = (0..400).map(|n| data(n * 9728, 9728)).collect();
    assert_eq!(read(&row, &buffers), 4);
    // The last buffer is short where little is left.
    assert_eq!(buffers.counts(), (4, 0));
    let long = [data(0, 4 << 20), data(4 << 20, 512), data(9 << 20, 2 << 20)];
    assert_eq!(read(&long, &buffers), 3, "a block is never cut");
    assert_eq!(buffers.counts(), (4, 0), "and a longer one not kept");
    assert_eq!(read(&[], &buffers), 0);
}
