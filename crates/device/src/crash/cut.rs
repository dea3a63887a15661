//! Draws the changes since the last sync that survive a power cut.
//!
//! Each draw follows one pattern: nothing arrived, everything arrived, a prefix, all but one, about
//! every n-th. A fair coin per change would almost never leave out a single one of many.

use super::{Change, JUNK};
use crate::SECTOR_BYTES;
use crate::pages::Pages;
use stitch_base::random::Rng;

/// Applies some of `pending` to `pages`, in some order, some of it torn.
pub(super) fn apply(pages: &mut Pages, pending: &[Change], rng: &mut Rng) {
    let mut chosen = choose(pending.len(), rng);
    if rng.one_in(4) {
        shuffle(&mut chosen, rng);
    }
    // The torn change is often the last one to arrive; sometimes any, or several.
    let torn_one_in = [0, 2, 8][below(3, rng)];
    let tear_last = rng.one_in(2);
    for (order, &index) in chosen.iter().enumerate() {
        let is_last = order + 1 == chosen.len();
        let is_torn = (tear_last && is_last) || (torn_one_in > 0 && rng.one_in(torn_one_in));
        match &pending[index] {
            Change::Write { at, bytes } if is_torn => write_torn(pages, *at, bytes, rng),
            Change::Write { at, bytes } => pages.write(*at, bytes),
            Change::Discard { at, len_bytes } => {
                pages.fill(*at, *len_bytes, [0, JUNK][below(2, rng)]);
            }
        }
    }
}

/// Draws the subset of `count` changes that arrive, in the order in which they were made.
fn choose(count: usize, rng: &mut Rng) -> Vec<usize> {
    if count == 0 {
        return Vec::new();
    }
    let one = below(count, rng);
    let all = 0..count;
    match rng.below(8) {
        0 => Vec::new(),
        1 => all.collect(),
        2 => (0..=one).collect(),
        3 => all.filter(|&i| i != one).collect(),
        4 => vec![one],
        5 => all.filter(|_| rng.one_in(2)).collect(),
        6 => all.filter(|_| rng.one_in(10)).collect(),
        _ => all.filter(|_| !rng.one_in(10)).collect(),
    }
}

/// Writes some of the sectors that `bytes` touches: the first ones, the last ones, or any.
fn write_torn(pages: &mut Pages, at: u64, bytes: &[u8], rng: &mut Rng) {
    let pieces = sectors(at, bytes);
    let cut = below(pieces.len() + 1, rng);
    let shape = rng.below(4);
    for (index, (sector_at, piece)) in pieces.into_iter().enumerate() {
        let arrives = match shape {
            0 | 1 => index < cut,
            2 => index >= cut,
            _ => rng.one_in(2),
        };
        if arrives {
            pages.write(sector_at, piece);
        }
    }
}

/// `bytes` cut at the sector boundaries of the device.
fn sectors(at: u64, bytes: &[u8]) -> Vec<(u64, &[u8])> {
    let mut out = Vec::new();
    let mut rest = bytes;
    let mut pos = at;
    while !rest.is_empty() {
        let room = usize::try_from(SECTOR_BYTES - pos % SECTOR_BYTES).expect("at most a sector");
        let (piece, tail) = rest.split_at(room.min(rest.len()));
        out.push((pos, piece));
        pos += piece.len() as u64;
        rest = tail;
    }
    out
}

fn shuffle(items: &mut [usize], rng: &mut Rng) {
    for i in (1..items.len()).rev() {
        items.swap(i, below(i + 1, rng));
    }
}

fn below(bound: usize, rng: &mut Rng) -> usize {
    usize::try_from(rng.below(bound as u64)).expect("below a usize")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_are_cut_where_the_device_cuts_them() {
        let bytes = [1u8; 1200];
        let cuts: Vec<(u64, usize)> = sectors(500, &bytes)
            .into_iter()
            .map(|(at, piece)| (at, piece.len()))
            .collect();
        assert_eq!(cuts, [(500, 12), (512, 512), (1024, 512), (1536, 164)]);
    }

    #[test]
    fn a_shuffle_loses_nothing() {
        let mut items: Vec<usize> = (0..50).collect();
        shuffle(&mut items, &mut Rng::new(3));
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
