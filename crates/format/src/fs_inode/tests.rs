use super::*;
use proptest::prelude::*;

fn sample() -> InodeHead {
    InodeHead {
        ino: Ino(0x0807_0605_0403_0201),
        kind: FileKind::Regular,
        perm: 0o644,
        flags: row_flag::INLINE | row_flag::XATTRS,
        uid: 0x1413_1211,
        gid: 0x1817_1615,
        nlink: 0x1c1b_1a19,
        size: 0x2827_2625_2423_2221,
        atime: 0x3837_3635_3433_3231,
        mtime: 0x4847_4645_4443_4241,
        ctime: 0x5857_5655_5453_5251,
        btime: 0x6867_6665_6463_6261,
        rdev: 0x7473_7271,
        iflags: 0x7877_7675,
        chunks: 0x0f0e_0d0c_0b0a_0908,
    }
}

const GOLDEN: [u8; INODE_HEAD_BYTES] = [
    1, 3, 0xa4, 0x81, // kind, flags, mode
    0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, // owner, group
    0x19, 0x1a, 0x1b, 0x1c, // links
    0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, // ino
    0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, // size
    0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38, // atime
    0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, // mtime
    0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, // ctime
    0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, // btime
    0x71, 0x72, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, // rdev, inode flags
    0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f, // chunks
];

#[test]
fn bytes_of_rows_are_pinned() {
    assert_eq!(sample().encode(), GOLDEN);
    let link = encode_link(Ino(0x0102), FileKind::Symlink);
    assert_eq!(link, [2, 10, 2, 1, 0, 0, 0, 0, 0, 0]);
    let row = MetaRow::Link {
        ino: Ino(0x0102),
        kind: FileKind::Symlink,
    };
    assert_eq!(MetaRow::decode(&link), Ok(row));
    let mut bytes = GOLDEN.to_vec();
    bytes.extend_from_slice(b"tail");
    assert_eq!(
        MetaRow::decode(&bytes),
        Ok(MetaRow::Inode(sample(), b"tail"))
    );
}

#[test]
fn bytes_of_deltas_are_pinned() {
    let delta = AttrDelta {
        ino: Ino(7),
        nlink_add: -1,
        size_least: Some(0x11),
        size: Some(0x22),
        atime: Some(3),
        mtime: Some(4),
        ctime: Some(5),
        mode: Some(0o100_644),
        uid: Some(6),
        gid: Some(7),
        flags: Some(1),
        iflags: Some(8),
        chunks: Some(9),
    };
    let mut bytes = Vec::new();
    delta.encode(&mut bytes);
    let golden = [
        7, 0, 0, 0, 0, 0, 0, 0, 0xff, 0x0f, // ino, mask
        0xff, 0xff, 0xff, 0xff, // links
        0x11, 0, 0, 0, 0, 0, 0, 0, 0x22, 0, 0, 0, 0, 0, 0, 0, // sizes
        3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, // times
        0xa4, 0x81, 6, 0, 0, 0, 7, 0, 0, 0, // mode, owner, group
        1, 8, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, // flags, inode flags, chunks
    ];
    assert_eq!(bytes, golden);
    assert_eq!(AttrDelta::decode(&bytes), Ok(delta));
    for cut in 0..bytes.len() {
        assert!(AttrDelta::decode(&bytes[..cut]).is_err(), "cut {cut}");
    }
    for bit in 64..80 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(AttrDelta::decode(&flipped).is_err(), "bit {bit}");
    }
}

#[test]
fn every_cut_is_an_error() {
    for cut in 0..GOLDEN.len() {
        assert!(MetaRow::decode(&GOLDEN[..cut]).is_err(), "cut {cut}");
    }
    let link = encode_link(Ino(1), FileKind::Fifo);
    for cut in 0..link.len() {
        assert!(MetaRow::decode(&link[..cut]).is_err(), "cut {cut}");
    }
}

#[test]
fn flipped_bits_give_an_error_or_another_row() {
    for bit in 0..GOLDEN.len() * 8 {
        let mut bytes = GOLDEN;
        bytes[bit / 8] ^= 1 << (bit % 8);
        let decoded = MetaRow::decode(&bytes);
        assert_ne!(decoded, Ok(MetaRow::Inode(sample(), b"")), "bit {bit}");
        if bit < 8 {
            assert!(decoded.is_err(), "bit {bit} of the kind");
        }
    }
}

#[test]
fn a_delta_for_another_inode_changes_nothing() {
    let mut delta = Vec::new();
    AttrDelta {
        ino: Ino(9),
        nlink_add: 1,
        ..AttrDelta::default()
    }
    .encode(&mut delta);
    let mut out = Vec::new();
    assert!(fold(Some(&GOLDEN), &delta, &mut out));
    assert_eq!(out, GOLDEN);
    out.clear();
    let link = encode_link(Ino(9), FileKind::Fifo);
    assert!(fold(Some(&link), &delta, &mut out));
    assert_eq!(out, link);
    assert!(!fold(None, &delta, &mut Vec::new()));
}

#[test]
fn the_difference_of_two_heads_makes_one_into_the_other() {
    let old = sample();
    let mut new = old;
    new.nlink -= 1;
    new.size = 5;
    new.mtime = -1;
    new.perm = 0o4755;
    new.flags = 0;
    let delta = AttrDelta::between(&old, &new);
    let mut out = old;
    delta.apply(&mut out);
    assert_eq!(out, new);
    assert!(AttrDelta::between(&old, &old).is_empty());
    let back = AttrDelta::between(&new, &old);
    back.apply(&mut out);
    assert_eq!(out, old);
}

fn deltas() -> impl Strategy<Value = AttrDelta> {
    let numbers = (
        -3i32..3,
        proptest::option::of(0u64..9),
        proptest::option::of(0u64..9),
        proptest::option::of(any::<i64>()),
        proptest::option::of(any::<i64>()),
        proptest::option::of(0u16..0o7777),
        proptest::option::of(any::<u32>()),
        proptest::option::of(0u8..64),
    );
    numbers.prop_map(
        |(nlink_add, size_least, size, atime, ctime, perm, uid, flags)| AttrDelta {
            ino: sample().ino,
            nlink_add,
            size_least,
            size,
            atime,
            ctime,
            mode: perm.map(|perm| perm | 0o100_000),
            uid,
            flags,
            ..AttrDelta::default()
        },
    )
}

proptest! {
    #[test]
    fn a_joined_delta_does_what_both_did(a in deltas(), b in deltas(), nlink in 0u32..3) {
        let old = InodeHead { nlink, ..sample() };
        let (mut first, mut second, mut joined) = (Vec::new(), Vec::new(), Vec::new());
        a.encode(&mut first);
        b.encode(&mut second);
        if join(&first, &second, &mut joined) {
            let (mut one, mut two, mut both) = (Vec::new(), Vec::new(), Vec::new());
            fold(Some(&old.encode()), &first, &mut one);
            fold(Some(&one), &second, &mut two);
            fold(Some(&old.encode()), &joined, &mut both);
            prop_assert_eq!(two, both);
        }
    }

    #[test]
    fn any_bytes_decode_or_fail(bytes: Vec<u8>) {
        let _ = MetaRow::decode(&bytes);
        let mut out = Vec::new();
        fold(Some(&bytes), &bytes, &mut out);
        prop_assert_eq!(out, bytes);
    }
}
