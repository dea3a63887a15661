//! Keys of the file system's trees. Numbers are big-endian, so that byte order is their order.
//!
//! | tree | key | row |
//! |---|---|---|
//! | meta | parent ino (8), name hash (8), name (1 to 255) | inode or link, see `fs_inode` |
//! | meta | ino (8) | inode with several links, orphan, root |
//! | data | ino (8), chunk number (8) | up to 4 KiB of contents |
//! | xattr | ino (8), name (1 to 255) | value |
//! | sys | `h` | header |
//! | sys | `i` | first inode number that was never handed out (u64) |
//! | sys | `n` | number of inodes that have a name (u64) |
//! | sys | `o`, ino (8) | nothing: the inode is an orphan |
//! | sys | `a`, ino (8), chunk number (8) | allocated extent that ends before it, see `fs_sys` |
//! | sys | `u` | number of chunks in unwritten extents (u64) |
//! | sys | `x`, ino (8) | the plain file that has the inode's contents, see `fs_sys` |
//! | sys | `b` | how far the back rows are complete, see `fs_back` |
//! | sys | `b`, ino (8) | back row: the place of the inode's row in meta, see `fs_back` |
//! | sys | `v` | number of the next writable view (u64) |
//! | sys | `v`, number (8) | writable view, see `fs_view` |
//! | sys | `t`, number (8) | transaction, see `fs_transaction` |
//! | sys | `s`, number (8), part (8) | what that transaction has read, see `fs_reads` |
//! | sys | `p`, ino (8) | policy of snapshots of a directory, see `fs_policy` |
//! | sys | `p`, view (8), ino (8) | policy of snapshots of a directory in a clone |
//! | sys | `c`, ino (8) | where the contents of an inode are that shares them, see `fs_shared` |
//! | sys | `k`, contents number (8) | shared contents: end of their chunk numbers (u64) |
//! | sys | `k`, contents number (8), ino (8) | nothing: the inode uses them |
//!
//! The hash of a name gives directories an order that does not depend on their other names. So 63
//! bits identify a position in a directory for ever: see [`name_hash`].

use crate::fs_view::VIEW_NUMBER_MAX;
use stitch_base::Ino;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes of contents in a row of the data tree.
pub const CHUNK_BYTES: u64 = 4096;
/// Largest inode number. Rows with larger ones are damaged: no store counts up to it.
pub const INO_MAX: u64 = (1 << 63) - 1;
/// Largest hash of a name.
pub const NAME_HASH_MAX: u64 = (1 << 59) - 2;
/// Key of the header in the sys tree.
pub const SYS_HEADER: &[u8] = b"h";
/// Key of the first number never handed out in the sys tree.
pub const SYS_NEXT_INO: &[u8] = b"i";
/// Key of the count of named inodes in the sys tree.
pub const SYS_INODE_COUNT: &[u8] = b"n";
/// Key of the mark in the sys tree that some inode was immutable or append-only: the number 1.
pub const SYS_FIXED: &[u8] = b"f";
/// Key of the count of chunks in unwritten extents in the sys tree.
pub const SYS_UNWRITTEN: &[u8] = b"u";
/// Sys: the rollback that is under way.
pub const SYS_ROLLBACK: &[u8] = b"r";
/// First byte of the keys of allocated extents in the sys tree.
pub const SYS_ALLOCATED: u8 = b'a';
/// First byte of the keys of orphans in the sys tree.
pub const SYS_ORPHAN: u8 = b'o';
/// Key of the progress of the back rows in the sys tree.
pub const SYS_BACK_PROGRESS: &[u8] = b"b";
/// First byte of the keys of back rows in the sys tree.
pub const SYS_BACK: u8 = b'b';
/// First byte of the keys of external files in the sys tree.
pub const SYS_EXTERNAL: u8 = b'x';
/// First byte of the keys of transactions in the sys tree.
pub const SYS_TRANSACTION: u8 = b't';
/// First byte of the keys of reads of transactions in the sys tree.
pub const SYS_READS: u8 = b's';
/// First byte of the keys of policies of snapshots in the sys tree.
pub const SYS_POLICY: u8 = b'p';
/// First byte of the keys of inodes that share contents in the sys tree.
pub const SYS_SHARED: u8 = b'c';
/// First byte of the keys of shared contents, and of their users, in the sys tree.
pub const SYS_CONTENTS: u8 = b'k';

/// Key of the number of the next writable view in the sys tree.
pub const SYS_NEXT_VIEW: &[u8] = b"v";
/// First byte of the keys of writable views in the sys tree.
pub const SYS_VIEW: u8 = b'v';

const KEY_BYTES_MAX: usize = 16 + NAME_BYTES_MAX;

/// A key, built in place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FsKey {
    bytes: [u8; KEY_BYTES_MAX],
    len: u16,
}

impl FsKey {
    fn new(parts: &[&[u8]]) -> Self {
        let mut bytes = [0; KEY_BYTES_MAX];
        let mut at = 0;
        for part in parts {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        let len = u16::try_from(at).expect("at most 271 bytes");
        Self { bytes, len }
    }
}

impl std::ops::Deref for FsKey {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for FsKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.escape_ascii())
    }
}

/// Returns the position of a name in its directory's order: XXH3-64 under the file system's secret
/// seed, cut to 59 bits, never 0. Four further bits distinguish names of one hash in a directory
/// position.
#[must_use]
pub fn name_hash(seed: u64, name: &[u8]) -> u64 {
    (xxh3_64_with_seed(name, seed) >> 5).clamp(1, NAME_HASH_MAX)
}

/// Meta: a name in a directory.
///
/// # Panics
/// If the name is empty or longer than [`NAME_BYTES_MAX`].
#[must_use]
pub fn dentry(seed: u64, parent: Ino, name: &[u8]) -> FsKey {
    assert!(!name.is_empty(), "a dentry has a name");
    assert!(name.len() <= NAME_BYTES_MAX, "names are checked before");
    let hash = name_hash(seed, name);
    FsKey::new(&[&parent.0.to_be_bytes(), &hash.to_be_bytes(), name])
}

/// Meta: first key that a name of this hash can have, after the directory's own row.
#[must_use]
pub fn dentry_start(parent: Ino, hash: u64) -> FsKey {
    FsKey::new(&[&parent.0.to_be_bytes(), &hash.to_be_bytes()])
}

/// Meta: an inode under its own number. Sorts before the names in that directory.
#[must_use]
pub fn own(ino: Ino) -> FsKey {
    FsKey::new(&[&ino.0.to_be_bytes()])
}

/// Data: a chunk.
#[must_use]
pub fn chunk(ino: Ino, number: u64) -> FsKey {
    FsKey::new(&[&ino.0.to_be_bytes(), &number.to_be_bytes()])
}

/// Xattr: an attribute.
///
/// # Panics
/// If the name is longer than [`NAME_BYTES_MAX`].
#[must_use]
pub fn xattr(ino: Ino, name: &[u8]) -> FsKey {
    assert!(name.len() <= NAME_BYTES_MAX, "names are checked before");
    FsKey::new(&[&ino.0.to_be_bytes(), name])
}

/// Sys: a row that exists once, such as [`SYS_HEADER`]; or the start of all keys of one kind.
///
/// # Panics
/// If the key is longer than the longest name.
#[must_use]
pub fn single(key: &[u8]) -> FsKey {
    assert!(key.len() <= NAME_BYTES_MAX, "such keys are short");
    FsKey::new(&[key])
}

/// Sys: an orphan.
#[must_use]
pub fn orphan(ino: Ino) -> FsKey {
    FsKey::new(&[&[SYS_ORPHAN], &ino.0.to_be_bytes()])
}

/// Sys: an inode's external file.
#[must_use]
pub fn external(ino: Ino) -> FsKey {
    FsKey::new(&[&[SYS_EXTERNAL], &ino.0.to_be_bytes()])
}

/// Sys: an inode's back row.
#[must_use]
pub fn back(ino: Ino) -> FsKey {
    FsKey::new(&[&[SYS_BACK], &ino.0.to_be_bytes()])
}

/// Sys: a writable view.
#[must_use]
pub fn view(number: u64) -> FsKey {
    FsKey::new(&[&[SYS_VIEW], &number.to_be_bytes()])
}

/// Sys: a transaction.
#[must_use]
pub fn transaction(number: Ino) -> FsKey {
    FsKey::new(&[&[SYS_TRANSACTION], &number.0.to_be_bytes()])
}

/// Sys: a part of what a transaction has read.
#[must_use]
pub fn reads(number: Ino, part: u64) -> FsKey {
    let (number, part) = (number.0.to_be_bytes(), part.to_be_bytes());
    FsKey::new(&[&[SYS_READS], &number, &part])
}

/// Sys: a policy of snapshots of a directory.
#[must_use]
pub fn policy(dir: Ino) -> FsKey {
    FsKey::new(&[&[SYS_POLICY], &dir.0.to_be_bytes()])
}

/// Sys: a policy of snapshots of a directory in a clone.
#[must_use]
pub fn clone_policy(view: u64, dir: Ino) -> FsKey {
    FsKey::new(&[&[SYS_POLICY], &view.to_be_bytes(), &dir.0.to_be_bytes()])
}

/// Sys: an inode that shares contents.
#[must_use]
pub fn shared(ino: Ino) -> FsKey {
    FsKey::new(&[&[SYS_SHARED], &ino.0.to_be_bytes()])
}

/// Sys: shared contents. Sorts before their users.
#[must_use]
pub fn contents(number: Ino) -> FsKey {
    FsKey::new(&[&[SYS_CONTENTS], &number.0.to_be_bytes()])
}

/// Sys: a user of shared contents.
#[must_use]
pub fn contents_user(number: Ino, ino: Ino) -> FsKey {
    let (number, ino) = (number.0.to_be_bytes(), ino.0.to_be_bytes());
    FsKey::new(&[&[SYS_CONTENTS], &number, &ino])
}

/// Sys: an allocated extent of an inode that ends before this chunk.
#[must_use]
pub fn allocated(ino: Ino, end: u64) -> FsKey {
    FsKey::new(&[&[SYS_ALLOCATED], &ino.0.to_be_bytes(), &end.to_be_bytes()])
}

/// Sys: first key after all allocated extents of an inode whose number is at most [`INO_MAX`].
#[must_use]
pub fn after_allocated(ino: Ino) -> FsKey {
    let next = ino.0.saturating_add(1);
    FsKey::new(&[&[SYS_ALLOCATED], &next.to_be_bytes()])
}

/// Any tree but sys: first key after all keys of an inode whose number is at most [`INO_MAX`].
#[must_use]
pub fn after(ino: Ino) -> FsKey {
    own(Ino(ino.0.saturating_add(1)))
}

/// Returns the number at the start of a key of any tree but sys; `None` if no inode can have it.
#[must_use]
pub fn ino_of(key: &[u8]) -> Option<Ino> {
    let bytes = key.first_chunk::<8>()?;
    valid_ino(u64::from_be_bytes(*bytes))
}

fn valid_ino(number: u64) -> Option<Ino> {
    (number <= INO_MAX).then_some(Ino(number))
}

/// Hash and name of a key of the meta tree; `None` for an inode's own row and for what is no key.
#[must_use]
pub fn name_of(key: &[u8]) -> Option<(u64, &[u8])> {
    let hash = key.get(8..16)?.first_chunk::<8>()?;
    let name = key.get(16..)?;
    let fits = !name.is_empty() && name.len() <= NAME_BYTES_MAX;
    fits.then(|| (u64::from_be_bytes(*hash), name))
}

/// Number of a chunk, from its key.
#[must_use]
pub fn chunk_of(key: &[u8]) -> Option<u64> {
    let bytes: [u8; 8] = key.get(8..)?.try_into().ok()?;
    Some(u64::from_be_bytes(bytes))
}

/// The number in an orphan's key.
#[must_use]
pub fn orphan_of(key: &[u8]) -> Option<Ino> {
    sys_ino(SYS_ORPHAN, key)
}

/// The number in the key of an external file.
#[must_use]
pub fn external_of(key: &[u8]) -> Option<Ino> {
    sys_ino(SYS_EXTERNAL, key)
}

/// The inode and the end in the key of an allocated extent.
#[must_use]
pub fn allocated_of(key: &[u8]) -> Option<(Ino, u64)> {
    let (head, end) = key.split_at_checked(9)?;
    let end: [u8; 8] = end.try_into().ok()?;
    Some((sys_ino(SYS_ALLOCATED, head)?, u64::from_be_bytes(end)))
}

/// The number in the key of a back row.
#[must_use]
pub fn back_of(key: &[u8]) -> Option<Ino> {
    sys_ino(SYS_BACK, key)
}

/// The number in the key of a writable view, 1 to [`VIEW_NUMBER_MAX`].
#[must_use]
pub fn view_of(key: &[u8]) -> Option<u64> {
    let (&first, rest) = key.split_first()?;
    let number = u64::from_be_bytes(rest.try_into().ok()?);
    (first == SYS_VIEW && (1..=VIEW_NUMBER_MAX).contains(&number)).then_some(number)
}

/// The number in the key of a transaction, which is one of inodes.
#[must_use]
pub fn transaction_of(key: &[u8]) -> Option<Ino> {
    sys_ino(SYS_TRANSACTION, key)
}

/// The number and the part in the key of what a transaction has read.
#[must_use]
pub fn reads_of(key: &[u8]) -> Option<(Ino, u64)> {
    let (head, part) = key.split_at_checked(9)?;
    let part: [u8; 8] = part.try_into().ok()?;
    Some((sys_ino(SYS_READS, head)?, u64::from_be_bytes(part)))
}

/// The directory in the key of a policy of snapshots.
#[must_use]
pub fn policy_of(key: &[u8]) -> Option<Ino> {
    sys_ino(SYS_POLICY, key)
}

/// The clone, and the directory in it, in the key of a policy of snapshots.
#[must_use]
pub fn clone_policy_of(key: &[u8]) -> Option<(u64, Ino)> {
    let (head, dir) = key.split_at_checked(9)?;
    let view = u64::from_be_bytes(head.get(1..)?.try_into().ok()?);
    let dir = u64::from_be_bytes(dir.try_into().ok()?);
    let is_known = head[0] == SYS_POLICY && (1..=VIEW_NUMBER_MAX).contains(&view);
    (is_known && (1..=INO_MAX).contains(&dir)).then_some((view, Ino(dir)))
}

/// The inode in the key of one that shares contents.
#[must_use]
pub fn shared_of(key: &[u8]) -> Option<Ino> {
    sys_ino(SYS_SHARED, key)
}

/// The number in the key of shared contents.
#[must_use]
pub fn contents_of(key: &[u8]) -> Option<Ino> {
    sys_ino(SYS_CONTENTS, key)
}

/// The contents and the inode in the key of a user of shared contents.
#[must_use]
pub fn contents_user_of(key: &[u8]) -> Option<(Ino, Ino)> {
    let (head, ino) = key.split_at_checked(9)?;
    let ino: [u8; 8] = ino.try_into().ok()?;
    let ino = valid_ino(u64::from_be_bytes(ino))?;
    Some((sys_ino(SYS_CONTENTS, head)?, ino))
}

/// Directory and hash of the key of a name in the meta tree; `None` for any other key.
#[must_use]
pub fn place_of(key: &[u8]) -> Option<(Ino, u64)> {
    let (hash, _) = name_of(key)?;
    Some((ino_of(key)?, hash))
}

fn sys_ino(kind: u8, key: &[u8]) -> Option<Ino> {
    let (&first, rest) = key.split_first()?;
    let bytes: [u8; 8] = rest.try_into().ok()?;
    valid_ino(u64::from_be_bytes(bytes)).filter(|_| first == kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_are_pinned() {
        let ino = Ino(0x0102_0304_0506_0708);
        let number = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(&own(ino)[..], number);
        assert_eq!(&after(ino)[..], [1, 2, 3, 4, 5, 6, 7, 9]);
        assert_eq!(
            &chunk(Ino(9), 0x0a0b)[..],
            [0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0x0a, 0x0b]
        );
        assert_eq!(&xattr(Ino(2), b"user.a")[7..], b"\x02user.a");
        assert_eq!(&single(SYS_HEADER)[..], b"h");
        assert_eq!(&orphan(ino)[..], [b'o', 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(&external(ino)[..], [b'x', 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(external_of(&external(ino)), Some(ino));
        assert_eq!(external_of(&orphan(ino)), None);
        let extent = allocated(ino, 0x0a0b);
        assert_eq!(extent[..9], [b'a', 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(extent[9..], [0, 0, 0, 0, 0, 0, 0x0a, 0x0b]);
        assert_eq!(allocated_of(&extent), Some((ino, 0x0a0b)));
        assert_eq!(allocated_of(&extent[..16]), None);
        assert_eq!(after_allocated(ino)[..], [b'a', 1, 2, 3, 4, 5, 6, 7, 9]);
        assert_eq!(&view(0x0a0b)[..], [b'v', 0, 0, 0, 0, 0, 0, 0x0a, 0x0b]);
        assert_eq!(view_of(&view(0x0a0b)), Some(0x0a0b));
        assert_eq!(view_of(&view(0)), None);
        assert_eq!(view_of(&view(VIEW_NUMBER_MAX)), Some(VIEW_NUMBER_MAX));
        assert_eq!(view_of(&view(VIEW_NUMBER_MAX + 1)), None);
        assert_eq!(view_of(&view(u64::MAX)), None);
        assert_eq!(view_of(&back(ino)), None);
        assert_eq!(view_of(SYS_NEXT_VIEW), None);
        assert_eq!(&back(ino)[..], [b'b', 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(back_of(&back(ino)), Some(ino));
        assert_eq!(back_of(SYS_BACK_PROGRESS), None);
        assert_eq!(&transaction(ino)[..], [b't', 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(transaction_of(&transaction(ino)), Some(ino));
        assert_eq!(transaction_of(&back(ino)), None);
        let part = reads(ino, 0x0a0b);
        assert_eq!(part[..9], [b's', 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(part[9..], [0, 0, 0, 0, 0, 0, 0x0a, 0x0b]);
        assert_eq!(
            (reads_of(&part), reads_of(&part[..16])),
            (Some((ino, 0x0a0b)), None)
        );
        assert_eq!(&policy(ino)[..], [b'p', 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(policy_of(&policy(ino)), Some(ino));
        assert_eq!(policy_of(&back(ino)), None);
        let in_clone = clone_policy(0x0a0b, ino);
        assert_eq!(in_clone[..9], [b'p', 0, 0, 0, 0, 0, 0, 0x0a, 0x0b]);
        assert_eq!(in_clone[9..], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(clone_policy_of(&in_clone), Some((0x0a0b, ino)));
        assert_eq!(policy_of(&in_clone), None);
        let none = [clone_policy(0, ino), clone_policy(1, Ino(0)), policy(ino)];
        assert!(none.iter().all(|key| clone_policy_of(key).is_none()));
        assert_eq!(&shared(ino)[..], [b'c', 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(&contents(ino)[..], [b'k', 1, 2, 3, 4, 5, 6, 7, 8]);
        let user = contents_user(ino, Ino(0x0a0b));
        assert_eq!(user[..9], [b'k', 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(user[9..], [0, 0, 0, 0, 0, 0, 0x0a, 0x0b]);
        assert_eq!(shared_of(&shared(ino)), Some(ino));
        assert_eq!(contents_of(&contents(ino)), Some(ino));
        assert_eq!(
            (contents_of(&user), contents_of(&shared(ino))),
            (None, None)
        );
        assert_eq!(contents_user_of(&user), Some((ino, Ino(0x0a0b))));
        assert_eq!(contents_user_of(&user[..16]), None);
        assert_eq!(contents_user_of(&contents(ino)), None);
        assert_eq!(name_hash(0, b"name"), 0x0061_aa76_6e12_53be);
        let key = dentry(0, ino, b"name");
        assert_eq!(key[..8], number);
        assert_eq!(&key[16..], b"name");
    }

    #[test]
    fn parts_come_back() {
        let key = dentry(7, Ino(5), b"x");
        assert_eq!(ino_of(&key), Some(Ino(5)));
        assert_eq!(name_of(&key), Some((name_hash(7, b"x"), &b"x"[..])));
        assert_eq!(name_of(&own(Ino(5))), None);
        assert_eq!(place_of(&key), Some((Ino(5), name_hash(7, b"x"))));
        assert_eq!(place_of(&own(Ino(5))), None);
        assert_eq!(chunk_of(&chunk(Ino(5), 6)), Some(6));
        assert_eq!(orphan_of(&orphan(Ino(3))), Some(Ino(3)));
        assert_eq!(ino_of(&own(Ino(INO_MAX))), Some(Ino(INO_MAX)));
        for ino in [Ino(INO_MAX + 1), Ino(u64::MAX)] {
            assert_eq!((ino_of(&own(ino)), orphan_of(&orphan(ino))), (None, None));
            assert!(
                after(ino) >= own(ino),
                "the end of a range is not before its start"
            );
        }
        for cut in 0..17 {
            assert_eq!(name_of(&key[..cut.min(16)]), None);
            assert_eq!(ino_of(&key[..cut]).is_some(), cut >= 8);
        }
    }

    proptest! {
        #[test]
        fn chunks_sort_by_inode_and_number(a: (u64, u64), b: (u64, u64)) {
            let (left, right) = (chunk(Ino(a.0), a.1), chunk(Ino(b.0), b.1));
            prop_assert_eq!(left[..].cmp(&right[..]), a.cmp(&b));
        }

        #[test]
        fn a_directory_is_one_range(
            parent in 1..u64::MAX,
            name in proptest::collection::vec(1u8.., 1..255),
        ) {
            let key = dentry(3, Ino(parent), &name);
            prop_assert!(own(Ino(parent))[..] < key[..]);
            prop_assert!(dentry_start(Ino(parent), 1)[..] < key[..]);
            prop_assert!(key[..] < after(Ino(parent))[..]);
        }
    }
}
