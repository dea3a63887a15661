use super::*;

fn ranges(files: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let listing = Listing {
        files: files.to_vec(),
        ..Listing::default()
    };
    let ranges = listing.ranges().into_iter();
    ranges.map(|range| (range.start, range.end)).collect()
}

#[test]
fn ranges_are_short_and_leave_out_what_lies_elsewhere() {
    let kib = |count: u64| count << 10;
    // In any order, with numbers between that are directories' or short files'.
    let files = vec![(12, kib(8)), (10, kib(8)), (15, kib(8))];
    assert_eq!(ranges(&files), [(10, 16)]);
    let files = vec![(10, kib(8)), (500, kib(8))];
    assert_eq!(ranges(&files), [(10, 11), (500, 501)]);
    let files: Vec<_> = (0..8).map(|ino| (ino, kib(400))).collect();
    assert_eq!(ranges(&files), [(0, 2), (2, 4), (4, 6), (6, 8)]);
    let files: Vec<_> = (0..1000).map(|ino| (ino * 100, kib(8))).collect();
    assert_eq!(ranges(&files).len(), RANGES_MAX);
}

/// Regression: two rows of one inode number subtracted with overflow.
#[test]
fn rows_of_one_number_are_one_range() {
    let files = vec![(10, 8 << 10), (10, 8 << 10), (11, 8 << 10)];
    assert_eq!(ranges(&files), [(10, 12)]);
}

#[test]
fn hashes_and_numbers_at_their_end_do_not_overflow() {
    let listing = Listing {
        files: vec![(1, 5), (u64::MAX - 1, 5)],
        bytes: 10,
        hashes: vec![u64::MAX],
        is_part: true,
    };
    assert_eq!(listing.limits(), (u64::MAX, u64::MAX));
    assert!(listing.beyond().is_some());
}
