//! What sharing prefixes of keys saves and costs: blocks with the keys of a file system, made with
//! keys stored whole every 16th time, as they are, and every time (`ADR 0073`). `cargo test
//! --release -p stitch-vt --lib prefix_cost -- --ignored --nocapture` prints the figures.

use super::block::DataBlock;
use super::data_iter::DataIter;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use stitch_base::Seqno;
use stitch_base::clock::{Clock, SystemClock};
use stitch_base::random::Rng;
use stitch_format::vt_data::{DataBuilder, Op, RESTART_INTERVAL};

const BLOCK_BYTES: usize = 16 << 10;
const ROUNDS: u32 = 40;

type Row = (Vec<u8>, Vec<u8>);
/// Blocks, each with its first key.
type KeyedBlocks = Vec<(Vec<u8>, Arc<DataBlock>)>;

/// Names in directories: parent, order of the name, the name; an inode of about 100 bytes.
fn meta() -> Vec<Row> {
    let mut rng = Rng::new(1);
    let mut rows = Vec::new();
    for dir in 0..400u64 {
        for file in 0..50 {
            let mut key = (1000 + dir * 7).to_be_bytes().to_vec();
            key.extend_from_slice(&rng.next_u64().to_be_bytes());
            key.extend_from_slice(format!("file-{file:03}.rs").as_bytes());
            let mut inode = vec![0; 60];
            rng.fill(&mut inode[..20]);
            rows.push((key, inode));
        }
    }
    rows.sort();
    rows
}

/// Chunks of files: inode and chunk number, 64 bytes of each.
fn data() -> Vec<Row> {
    let row = |n: u64| {
        (
            [(n / 64).to_be_bytes(), (n % 64).to_be_bytes()].concat(),
            vec![7; 64],
        )
    };
    (0..20_000).map(row).collect()
}

/// Extended attributes: inode and name, a short value.
fn xattr() -> Vec<Row> {
    let names = [
        "security.capability",
        "user.checksum.sha256",
        "user.comment",
        "user.mime_type",
    ];
    let row = |n: usize| {
        let mut key = (n as u64 / 4).to_be_bytes().to_vec();
        key.extend_from_slice(names[n % 4].as_bytes());
        (key, vec![7; 12])
    };
    (0..20_000).map(row).collect()
}

fn blocks(rows: &[Row], interval: usize) -> (KeyedBlocks, usize) {
    let mut out = Vec::new();
    let mut bytes = 0;
    let mut builder = DataBuilder::with_interval(interval);
    let mut first = Vec::new();
    let mut cut = |builder: &mut DataBuilder, first: &mut Vec<u8>| {
        let mut payload = Vec::new();
        builder.finish(&mut payload);
        bytes += payload.len();
        let len = payload.len();
        let block = DataBlock::new(Bytes::from(payload), len).expect("a sound block");
        out.push((std::mem::take(first), Arc::new(block)));
    };
    for (n, (key, value)) in rows.iter().enumerate() {
        let op = Op::Put(value);
        let len = builder.len_bytes() + DataBuilder::entry_bytes_max(key, &op);
        if !builder.is_empty() && len > BLOCK_BYTES {
            cut(&mut builder, &mut first);
        }
        if builder.is_empty() {
            first.clone_from(key);
        }
        builder.add(key, Seqno(n as u64), &op);
    }
    cut(&mut builder, &mut first);
    (out, bytes)
}

fn time(work: impl FnOnce()) -> Duration {
    let clock = SystemClock::default();
    work();
    clock.monotonic()
}

fn get_all(blocks: &[(Vec<u8>, Arc<DataBlock>)], rows: &[Row]) {
    for (key, value) in rows.iter().step_by(7) {
        let at = blocks.partition_point(|(first, _)| first <= key) - 1;
        let mut iter = DataIter::new(Arc::clone(&blocks[at].1), 0);
        iter.seek(key, Seqno(u64::MAX)).expect("a sound block");
        let found = iter.current().expect("the key is there");
        assert_eq!((found.key, found.op), (key.as_slice(), Op::Put(value)));
    }
}

fn scan_all(blocks: &[(Vec<u8>, Arc<DataBlock>)], rows: &[Row]) {
    let mut count = 0;
    for (_, block) in blocks {
        let mut iter = DataIter::new(Arc::clone(block), 0);
        iter.seek_first().expect("a sound block");
        while let Some(entry) = iter.current() {
            count += usize::from(!entry.key.is_empty());
            iter.next().expect("a sound block");
        }
    }
    assert_eq!(count, rows.len());
}

#[test]
fn blocks_read_the_same_and_prefixes_save() {
    for rows in [meta(), data(), xattr()] {
        let (shared, shared_bytes) = blocks(&rows, RESTART_INTERVAL);
        let (whole, whole_bytes) = blocks(&rows, 1);
        for blocks in [&shared, &whole] {
            get_all(blocks, &rows);
            scan_all(blocks, &rows);
        }
        assert!(
            shared_bytes < whole_bytes * 93 / 100,
            "{shared_bytes} of {whole_bytes}"
        );
    }
}

#[test]
#[ignore = "prints figures: run it alone, optimised"]
fn figures() {
    for (name, rows) in [("meta", meta()), ("data", data()), ("xattr", xattr())] {
        let both = [RESTART_INTERVAL, 1].map(|interval| blocks(&rows, interval));
        let mut times = [[Duration::MAX; 2]; 2];
        for _ in 0..ROUNDS {
            for (side, (blocks, _)) in both.iter().enumerate() {
                let get = time(|| get_all(blocks, &rows));
                let scan = time(|| scan_all(blocks, &rows));
                times[side] = [times[side][0].min(get), times[side][1].min(scan)];
            }
        }
        let per = |time: Duration, count: usize| time.as_nanos() / count as u128;
        for (side, label) in ["shared", "whole"].iter().enumerate() {
            println!(
                "{name:6} {label:7} {:7} bytes {:3} blocks  get {:4} ns  scan {:3} ns a row",
                both[side].1,
                both[side].0.len(),
                per(times[side][0], rows.len().div_ceil(7)),
                per(times[side][1], rows.len()),
            );
        }
    }
}
