//! Extents of shared contents, against sets of chunks.

use super::*;
use proptest::prelude::*;

const CHUNKS: u64 = 24;

fn row(extents: Vec<Range<u64>>) -> SharedRow {
    SharedRow {
        own: Ino(7),
        contents: Some(Ino(5)),
        extents,
    }
}

fn shared_chunks(extents: &[Range<u64>]) -> BTreeSet<u64> {
    extents.iter().cloned().flatten().collect()
}

proptest! {
    #[test]
    fn extents_are_sets_of_chunks(edits: Vec<(bool, u8, u8)>) {
        let (mut extents, mut expected) = (Vec::new(), BTreeSet::new());
        for (is_added, a, b) in edits {
            let (a, b) = (u64::from(a) % CHUNKS, u64::from(b) % CHUNKS);
            let range = a.min(b)..a.max(b);
            if is_added {
                extents = with(&extents, &range);
                expected.extend(range);
            } else {
                extents = without(&extents, &range);
                expected.retain(|chunk| !range.contains(chunk));
            }
            prop_assert_eq!(shared_chunks(&extents), expected.clone());
            let bytes = row(extents.clone()).encode();
            prop_assert_eq!(SharedRow::decode(&bytes), Ok(row(extents.clone())));
        }
    }

    #[test]
    fn pieces_are_the_range_in_order(edits: Vec<(u8, u8)>, a in 0..CHUNKS, b in 0..CHUNKS) {
        let mut extents = Vec::new();
        for (a, b) in edits {
            let (a, b) = (u64::from(a) % CHUNKS, u64::from(b) % CHUNKS);
            extents = with(&extents, &(a.min(b)..a.max(b)));
        }
        let (row, range) = (row(extents), a.min(b)..a.max(b));
        let mut at = range.start;
        for (number, piece) in pieces(&row, &range) {
            prop_assert!(piece.start == at && !piece.is_empty());
            at = piece.end;
            for chunk in piece {
                prop_assert_eq!(number == Ino(5), has(&row, chunk));
            }
        }
        prop_assert_eq!(at, range.end);
    }
}
