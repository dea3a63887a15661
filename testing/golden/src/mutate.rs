//! Seeded changes to valid records: what a fuzzer without coverage does.

use stitch_base::random::Rng;

/// Numbers at which decoders go wrong.
const EDGES: [u64; 10] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    u64::MAX,
];

/// Changes `bytes` in one to four places.
pub fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..1 + rng.below(4) {
        once(bytes, rng);
    }
}

fn once(bytes: &mut Vec<u8>, rng: &mut Rng) {
    let at = below(bytes.len() + 1, rng);
    match rng.below(8) {
        0 => bytes.truncate(at),
        1 => {
            let mut more = vec![0; below(64, rng)];
            rng.fill(&mut more);
            bytes.splice(at..at, more);
        }
        2 => {
            let end = (at + below(16, rng)).min(bytes.len());
            bytes.drain(at..end);
        }
        3 => {
            let width = 1 << rng.below(4);
            let edge = EDGES[below(EDGES.len(), rng)].to_le_bytes();
            let end = (at + width).min(bytes.len());
            bytes[at..end].copy_from_slice(&edge[..end - at]);
        }
        4 => {
            let end = (at + below(32, rng)).min(bytes.len());
            rng.fill(&mut bytes[at..end]);
        }
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << rng.below(8);
            }
        }
    }
}

fn below(bound: usize, rng: &mut Rng) -> usize {
    usize::try_from(rng.below(bound as u64)).expect("below a usize")
}
