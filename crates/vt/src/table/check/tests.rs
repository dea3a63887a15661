//! Blocks whose entries are not what their index says, under right checksums.

use super::super::tests::{Bed, numbered, options};
use super::*;
use stitch_device::Device;
use stitch_format::block::{BlockKind, HEADER_BYTES, stored_checksum};
use stitch_format::vt_data::DataLayout;
use stitch_kv::{Compression, TreeOptions};

/// Checks the second block of a table after the last byte of its `number`th key was changed.
fn check_changed(number: usize, byte: u8) -> (IndexEntry, Vec<Violation>) {
    let bed = Bed::new(64 << 20);
    let options = TreeOptions {
        compression: Compression::None,
        ..options(1024)
    };
    let table = bed.table(&numbered(0..60, 40), &options);
    let mut entry = table.index_entries(&[], None).unwrap()[1].clone();
    let addr = entry.block.addr;
    let mut block = vec![0; entry.block.len_bytes as usize];
    bed.device.read_at(addr, &mut block).unwrap();
    let kind = BlockKind::TableData;
    let (_, payload) = bed.volume.check_block(&block, addr, kind).unwrap();
    let payload_len = payload.len();
    let layout = DataLayout::read(payload).unwrap();
    let mut found = layout.entry(payload, layout.restart(payload, 0).unwrap());
    for _ in 0..number {
        found = layout.entry(payload, found.unwrap().next);
    }
    let place = HEADER_BYTES + found.unwrap().suffix.end - 1;
    block[place] = byte;
    bed.volume
        .seal_block_in(&mut block, payload_len, kind, 0, addr);
    bed.device.write_at(addr, &[&block]).unwrap();
    entry.block.checksum = stored_checksum(&block);
    let mut violations = Vec::new();
    let mut reporter = Reporter {
        name: "a table".to_owned(),
        tree: TreeId(3),
        report: &mut |violation| violations.push(violation),
    };
    let (mut last, mut sums) = (None, EntrySums::default());
    let checked = table.check_block(&entry, &mut last, &mut sums, &mut reporter);
    checked.unwrap();
    (entry, violations)
}

fn lost<'a>(violations: &'a [Violation], rule: &str) -> Option<&'a LostKeys> {
    let found = violations.iter().find(|violation| violation.rule == rule);
    found.and_then(|violation| violation.lost.as_ref())
}

/// Without the range, `fsck` could not go around the block.
#[test]
fn keys_of_a_block_out_of_order_are_lost() {
    let (entry, violations) = check_changed(15, b'~');
    let lost = lost(&violations, "table-order").expect("the range is given");
    assert_eq!(lost.first, entry.first);
    assert!(lost.last > entry.last, "{lost:?}");
    assert!(lost.last.ends_with(b"~"), "{lost:?}");
}

#[test]
fn keys_of_a_block_with_another_index_are_lost() {
    let (entry, violations) = check_changed(0, b'!');
    let lost = lost(&violations, "index-keys").expect("the range is given");
    assert!(lost.first < entry.first, "{lost:?}");
    assert!(lost.first.ends_with(b"!"), "{lost:?}");
    assert_eq!(lost.last, entry.last);
}
