//! Joins what a transaction and mainline made of one row.
//!
//! | row | joined |
//! |---|---|
//! | directory | links add up; attributes and times of the side that changed them |
//! | time that both sides changed | the later one |
//! | other inode, where one side changed the time of access alone | the other side's |
//! | counter | both changes add up |
//! | anything else | conflict |

use crate::FsResult;
use stitch_format::fs_inode::{FileKind, InodeHead, MetaRow};
use stitch_format::fs_sys::{FsHeader, decode_number, encode_number};

/// The values of a row at the moment at which the transaction began, in the transaction, and in
/// mainline.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sides<'a> {
    pub(super) base: Option<&'a [u8]>,
    pub(super) ours: Option<&'a [u8]>,
    pub(super) theirs: Option<&'a [u8]>,
}

impl Sides<'_> {
    /// Joins the rows of an inode. `None`: they contradict each other.
    pub(super) fn join_meta(&self) -> FsResult<Option<Vec<u8>>> {
        let (Some(base), Some(ours), Some(theirs)) = (self.base, self.ours, self.theirs) else {
            return Ok(None);
        };
        let rows = (
            MetaRow::decode(base)?,
            MetaRow::decode(ours)?,
            MetaRow::decode(theirs)?,
        );
        let (MetaRow::Inode(b, b_tail), MetaRow::Inode(o, o_tail), MetaRow::Inode(t, t_tail)) =
            rows
        else {
            return Ok(None);
        };
        if b.ino != o.ino || b.ino != t.ino {
            return Ok(None);
        }
        if b.kind == FileKind::Directory {
            return Ok(join_dirs(&b, &o, &t).map(|head| head.encode().to_vec()));
        }
        let atime = join_times(b.atime, o.atime, t.atime);
        let (mut head, tail) = if is_read(&b, &o) && b_tail == o_tail {
            (t, t_tail)
        } else if is_read(&b, &t) && b_tail == t_tail {
            (o, o_tail)
        } else {
            return Ok(None);
        };
        head.atime = atime;
        debug_assert_eq!(head.ino, b.ino, "one inode");
        Ok(Some([&head.encode()[..], tail].concat()))
    }

    /// Joins the rows of a counter.
    pub(super) fn join_counts(&self) -> FsResult<Vec<u8>> {
        let number = |row: Option<&[u8]>| row.map_or(Ok(0), decode_number);
        let (base, ours, theirs) = (number(self.base)?, number(self.ours)?, number(self.theirs)?);
        let added = ours.wrapping_sub(base);
        Ok(encode_number(theirs.wrapping_add(added)).to_vec())
    }

    /// Joins the headers: what one side marked is marked.
    pub(super) fn join_headers(&self) -> FsResult<Option<Vec<u8>>> {
        let (Some(ours), Some(theirs)) = (self.ours, self.theirs) else {
            return Ok(None);
        };
        let (ours, mut header) = (FsHeader::decode(ours)?, FsHeader::decode(theirs)?);
        header.has_external |= ours.has_external;
        header.has_allocated |= ours.has_allocated;
        header.has_shared |= ours.has_shared;
        debug_assert!(
            header.has_back_rows || !ours.has_back_rows,
            "a transaction does not begin to keep back rows"
        );
        Ok(Some(header.encode()))
    }
}

/// Reports whether nothing but the time of access differs.
pub(super) fn is_read(old: &InodeHead, new: &InodeHead) -> bool {
    let atime = new.atime;
    InodeHead { atime, ..*old } == *new
}

/// The head without what names in a directory change.
pub(super) const fn attributes(head: &InodeHead) -> InodeHead {
    InodeHead {
        nlink: 0,
        atime: 0,
        mtime: 0,
        ctime: 0,
        ..*head
    }
}

fn join_dirs(base: &InodeHead, ours: &InodeHead, theirs: &InodeHead) -> Option<InodeHead> {
    debug_assert_eq!(base.ino, ours.ino, "one inode");
    debug_assert_eq!(base.ino, theirs.ino, "one inode");
    let (b, o, t) = (attributes(base), attributes(ours), attributes(theirs));
    let attributes = match (o == b, t == b) {
        (true, _) => t,
        (_, true) => o,
        _ => return None,
    };
    let added = i64::from(ours.nlink) - i64::from(base.nlink);
    let nlink = u32::try_from(i64::from(theirs.nlink) + added).ok()?;
    Some(InodeHead {
        nlink,
        atime: join_times(base.atime, ours.atime, theirs.atime),
        mtime: join_times(base.mtime, ours.mtime, theirs.mtime),
        ctime: join_times(base.ctime, ours.ctime, theirs.ctime),
        ..attributes
    })
}

/// Returns the time of the side that changed it, also if that is an earlier one; the later one if
/// both did.
fn join_times(base: i64, ours: i64, theirs: i64) -> i64 {
    let joined = match (ours == base, theirs == base) {
        (true, _) => theirs,
        (_, true) => ours,
        _ => ours.max(theirs),
    };
    debug_assert!(joined == ours || joined == theirs, "the time of a side");
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_base::Ino;

    fn head(kind: FileKind) -> InodeHead {
        InodeHead {
            ino: Ino(40),
            kind,
            perm: 0o755,
            flags: 0,
            uid: 1,
            gid: 1,
            nlink: 3,
            size: 0,
            atime: 10,
            mtime: 10,
            ctime: 10,
            btime: 10,
            rdev: 0,
            iflags: 0,
            chunks: 0,
        }
    }

    fn join(base: &InodeHead, ours: &InodeHead, theirs: &InodeHead) -> Option<InodeHead> {
        let rows = [base.encode(), ours.encode(), theirs.encode()];
        let sides = Sides {
            base: Some(&rows[0]),
            ours: Some(&rows[1]),
            theirs: Some(&rows[2]),
        };
        let joined = sides.join_meta().expect("they decode")?;
        match MetaRow::decode(&joined).expect("it decodes") {
            MetaRow::Inode(head, b"") => Some(head),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn links_of_a_directory_add_up_and_later_times_stay() {
        let base = head(FileKind::Directory);
        let ours = InodeHead {
            nlink: 5,
            mtime: 30,
            ctime: 30,
            ..base
        };
        let theirs = InodeHead {
            nlink: 2,
            mtime: 20,
            ctime: 40,
            perm: 0o700,
            ..base
        };
        let joined = join(&base, &ours, &theirs).expect("they join");
        let expected = InodeHead {
            nlink: 4,
            mtime: 30,
            ..theirs
        };
        assert_eq!(joined, expected);
        assert_eq!(join(&base, &theirs, &ours), Some(expected), "either way");
    }

    #[test]
    fn a_time_that_one_side_has_set_back_stays() {
        let base = head(FileKind::Directory);
        // As `tar` sets it, and a rollback.
        let ours = InodeHead {
            mtime: 3,
            ctime: 20,
            ..base
        };
        let theirs = InodeHead {
            atime: 5,
            ctime: 30,
            perm: 0o700,
            ..base
        };
        let expected = InodeHead { mtime: 3, ..theirs };
        assert_eq!(join(&base, &ours, &theirs), Some(expected));
        assert_eq!(join(&base, &theirs, &ours), Some(expected), "either way");
        let rolled_back = InodeHead { ctime: 2, ..base };
        let added = InodeHead { nlink: 4, ..base };
        let expected = InodeHead { ctime: 2, ..added };
        assert_eq!(join(&base, &added, &rolled_back), Some(expected));
        let file = head(FileKind::Regular);
        let read = InodeHead { atime: 1, ..file };
        let written = InodeHead { size: 9, ..file };
        let expected = InodeHead {
            atime: 1,
            ..written
        };
        assert_eq!(join(&file, &read, &written), Some(expected));
    }

    #[test]
    fn attributes_that_both_changed_contradict() {
        let base = head(FileKind::Directory);
        let (ours, theirs) = (
            InodeHead {
                perm: 0o700,
                ..base
            },
            InodeHead { uid: 7, ..base },
        );
        assert_eq!(join(&base, &ours, &theirs), None);
        let other = InodeHead {
            ino: Ino(41),
            ..base
        };
        assert_eq!(join(&base, &ours, &other), None, "another directory");
    }

    #[test]
    fn a_file_that_one_side_has_read_is_the_other_sides() {
        let base = head(FileKind::Regular);
        let read = InodeHead { atime: 50, ..base };
        let written = InodeHead {
            mtime: 20,
            ctime: 20,
            size: 9,
            ..base
        };
        let expected = InodeHead {
            atime: 50,
            ..written
        };
        assert_eq!(join(&base, &read, &written), Some(expected));
        assert_eq!(join(&base, &written, &read), Some(expected));
        assert_eq!(join(&base, &written, &written), None);
        let linked = InodeHead { nlink: 4, ..base };
        assert_eq!(join(&base, &linked, &written), None, "links of a file");
    }

    #[test]
    fn counts_add_up() {
        let rows = [10, 7, 12].map(encode_number);
        let sides = Sides {
            base: Some(&rows[0]),
            ours: Some(&rows[1]),
            theirs: Some(&rows[2]),
        };
        assert_eq!(sides.join_counts().expect("numbers"), encode_number(9));
        let none = Sides {
            base: None,
            ..sides
        };
        assert_eq!(none.join_counts().expect("numbers"), encode_number(19));
    }
}
