use super::*;

const INO: Ino = Ino(7);

fn keys() -> Locator {
    Locator { name_seed: 3 }
}

fn holds(range: &RowRange, key: &RowKey) -> bool {
    range.tree() == key.tree() && range.start() <= &key[..] && &key[..] < range.end()
}

#[test]
fn rows_of_the_sys_tree_are_told_apart() {
    let keys = keys();
    let rows = [
        (keys.header(), SysRow::Header),
        (keys.next_ino(), SysRow::NextIno),
        (keys.inode_count(), SysRow::InodeCount),
        (keys.fixed(), SysRow::Fixed),
        (keys.unwritten(), SysRow::Unwritten),
        (keys.back_progress(), SysRow::BackProgress),
        (keys.rollback(), SysRow::Rollback),
        (keys.orphan(INO), SysRow::Orphan(INO)),
        (keys.external(INO), SysRow::External(INO)),
        (keys.back(INO), SysRow::Back(INO)),
        (keys.next_view(), SysRow::NextView),
        (keys.view(7), SysRow::View(7)),
        (keys.policy(0, INO), SysRow::Policy(0, INO)),
        (keys.policy(7, INO), SysRow::Policy(7, INO)),
        (keys.extent(INO, 9), SysRow::Extent(INO, 9)),
        (keys.transaction(INO), SysRow::Transaction(INO)),
        (keys.reads(INO, 9), SysRow::Reads(INO, 9)),
        (keys.shared(INO), SysRow::Shared(INO)),
        (keys.contents(INO), SysRow::Contents(INO)),
        (
            keys.contents_user(INO, Ino(9)),
            SysRow::ContentsUser(INO, Ino(9)),
        ),
    ];
    for (key, row) in rows {
        assert_eq!((key.tree(), Locator::sys_row(&key)), (Tree::Sys, Some(row)));
        let longer = [&key[..], b"x"].concat();
        assert_eq!(Locator::sys_row(&longer), None, "{row:?}");
    }
    assert_eq!(Locator::sys_row(b""), None);
}

#[test]
fn ranges_hold_the_rows_of_one_inode() {
    let keys = keys();
    let (before, after) = (Ino(INO.0 - 1), Ino(INO.0 + 1));
    type Case = (RowRange, fn(Ino) -> RowKey);
    let cases: [Case; 7] = [
        (keys.dentries(INO), |ino| self::keys().dentry(ino, b"name")),
        (keys.directory(INO), |ino| self::keys().own(ino)),
        (keys.chunks_from(INO, 0), |ino| self::keys().chunk(ino, 0)),
        (keys.xattrs(INO), |ino| self::keys().xattr(ino, b"user.x")),
        (keys.extents_from(INO, 0), |ino| self::keys().extent(ino, 1)),
        (keys.reads_of(INO), |ino| self::keys().reads(ino, u64::MAX)),
        (keys.contents_users(INO), |ino| {
            self::keys().contents_user(ino, Ino(9))
        }),
    ];
    for (range, key_of) in cases {
        assert!(holds(&range, &key_of(INO)), "{range:?}");
        assert!(!holds(&range, &key_of(before)), "{range:?}");
        assert!(!holds(&range, &key_of(after)), "{range:?}");
    }
    assert!(!holds(&keys.dentries(INO), &keys.own(INO)), "only names");
    assert!(!holds(&keys.contents_users(INO), &keys.contents(INO)));
    assert!(holds(&keys.all_contents(), &keys.contents_user(INO, INO)));
    assert!(holds(&keys.all_shared(), &keys.shared(INO)));
}

#[test]
fn ranges_of_numbers_are_half_open() {
    let keys = keys();
    let found = |range: &RowRange, key_of: &dyn Fn(u64) -> RowKey| {
        (0..10).filter(|n| holds(range, &key_of(*n))).collect()
    };
    let chunk = |number| keys.chunk(INO, number);
    let extent = |end| keys.extent(INO, end);
    let chunks: Vec<u64> = found(&keys.chunks(INO, &(2..5)), &chunk);
    assert_eq!(chunks, [2, 3, 4]);
    let chunks: Vec<u64> = found(&keys.chunks_from(INO, 7), &chunk);
    assert_eq!(chunks, [7, 8, 9]);
    let extents: Vec<u64> = found(&keys.extents_ending_in(INO, &(2..5)), &extent);
    assert_eq!(
        extents,
        [3, 4, 5],
        "those that end after 2, and at most at 5"
    );
    let extents: Vec<u64> = found(&keys.extents_ending_in(INO, &(7..u64::MAX)), &extent);
    assert_eq!(extents, [8, 9]);
    let files = |ino| keys.chunk(Ino(ino), 3);
    let files: Vec<u64> = found(&keys.chunks_of(Ino(3), Ino(5)), &files);
    assert_eq!(files, [3, 4]);
}

#[test]
fn a_name_is_at_its_place() {
    let keys = keys();
    let key = keys.dentry(INO, b"name");
    let place = Locator::place_of(&key).expect("a name");
    assert_eq!((place.parent, place.hash), (INO, keys.name_hash(b"name")));
    assert!(holds(&keys.dentries_at(place), &key));
    assert!(holds(&keys.dentries_from(INO, place.hash), &key));
    assert!(!holds(&keys.dentries_from(INO, place.hash + 1), &key));
    assert!(holds(&keys.meta_from(place), &key));
    assert_eq!(Locator::name_of(&key), Some((place.hash, &b"name"[..])));
    assert_eq!(Locator::place_of(&keys.own(INO)), None);
}

#[test]
fn a_key_after_a_chunk_is_that_chunks() {
    let keys = keys();
    let chunk = keys.chunk(INO, 5);
    assert_eq!(Locator::chunk_before(&chunk), Some(5));
    let next = [&chunk[..], &[0]].concat();
    assert_eq!(Locator::chunk_of(&next), None);
    assert_eq!(Locator::chunk_before(&next), Some(5));
    assert_eq!(Locator::chunk_before(&chunk[..15]), None);
}
