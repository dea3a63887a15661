//! POSIX access control lists: their form as extended attributes, and what they mean.
//!
//! The form is that of the kernel: version 2 (u32), then entries of tag (u16), rights (u16) and id
//! (u32), little-endian, sorted by tag. A list has one entry each for owner, group and others, any
//! number for named users and groups, and a mask where there are any. Named users are in any order,
//! and may be there twice: the first entry counts. So are named groups, of which any entry grants.
//!
//! The owner's entry is the owner's bits of the mode, that of others theirs, and the group's bits
//! are the mask where there is one and the group's entry otherwise. A list that says no more than a
//! mode is not stored.
//!
//! Source: acl(5), POSIX.1e draft 17.

use crate::{Caller, FsError, FsResult};

const VERSION: u32 = 2;
const HEAD_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
const NO_ID: u32 = u32::MAX;
const _: () = assert!(HEAD_BYTES == size_of::<u32>(), "a head is a version");
const _: () = assert!(
    ENTRY_BYTES == 2 * size_of::<u16>() + size_of::<u32>(),
    "tag, rights and id"
);

/// Whom an entry is for. Sorted as lists are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tag {
    Owner,
    User(u32),
    OwningGroup,
    Group(u32),
    Mask,
    Other,
}

impl Tag {
    const fn from_code(code: u16, id: u32) -> Option<Self> {
        Some(match code {
            0x01 => Self::Owner,
            0x02 => Self::User(id),
            0x04 => Self::OwningGroup,
            0x08 => Self::Group(id),
            0x10 => Self::Mask,
            0x20 => Self::Other,
            _ => return None,
        })
    }

    const fn code(self) -> u16 {
        match self {
            Self::Owner => 0x01,
            Self::User(_) => 0x02,
            Self::OwningGroup => 0x04,
            Self::Group(_) => 0x08,
            Self::Mask => 0x10,
            Self::Other => 0x20,
        }
    }

    const fn id(self) -> u32 {
        match self {
            Self::User(id) | Self::Group(id) => id,
            Self::Owner | Self::OwningGroup | Self::Mask | Self::Other => NO_ID,
        }
    }
}

/// A list is sorted by the codes of its tags, and is compared by the tags.
const _: () = {
    let tags = [
        Tag::Owner,
        Tag::User(0),
        Tag::OwningGroup,
        Tag::Group(0),
        Tag::Mask,
        Tag::Other,
    ];
    let mut at = 1;
    while at < tags.len() {
        assert!(
            tags[at - 1].code() < tags[at].code(),
            "tags come in the order of their codes"
        );
        at += 1;
    }
};

/// A valid list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl {
    /// Sorted by kind of tag; rights are three bits.
    entries: Vec<(Tag, u16)>,
}

/// Owner, group and permissions of an inode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rights {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) perm: u16,
}

impl Acl {
    /// The list in an attribute's value.
    ///
    /// # Errors
    /// [`FsError::Invalid`]; a list of another version is [`FsError::Unsupported`].
    pub(crate) fn decode(value: &[u8]) -> FsResult<Self> {
        let invalid = FsError::Invalid("not an access control list");
        let Some((head, rest)) = value.split_first_chunk::<HEAD_BYTES>() else {
            return Err(invalid);
        };
        if u32::from_le_bytes(*head) != VERSION {
            return Err(FsError::Unsupported);
        }
        if rest.len() % ENTRY_BYTES != 0 {
            return Err(invalid);
        }
        let mut entries = Vec::with_capacity(rest.len() / ENTRY_BYTES);
        for entry in rest.chunks_exact(ENTRY_BYTES) {
            let &[t0, t1, r0, r1, i0, i1, i2, i3] = entry else {
                return Err(invalid);
            };
            let id = u32::from_le_bytes([i0, i1, i2, i3]);
            let tag = Tag::from_code(u16::from_le_bytes([t0, t1]), id);
            let rights = u16::from_le_bytes([r0, r1]);
            match tag {
                Some(Tag::User(NO_ID) | Tag::Group(NO_ID)) | None => return Err(invalid),
                Some(_) if rights > 7 => return Err(invalid),
                Some(tag) => {
                    debug_assert_eq!(tag.code().to_le_bytes(), [t0, t1], "a tag has its code");
                    entries.push((tag, rights));
                }
            }
        }
        debug_assert_eq!(
            entries.len() * ENTRY_BYTES,
            rest.len(),
            "all entries were read"
        );
        let acl = Self { entries };
        if acl.is_valid() {
            Ok(acl)
        } else {
            Err(invalid)
        }
    }

    fn is_valid(&self) -> bool {
        let is_sorted = self
            .entries
            .windows(2)
            .all(|pair| match (pair[0].0, pair[1].0) {
                (Tag::User(_), Tag::User(_)) | (Tag::Group(_), Tag::Group(_)) => true,
                (tag, next) => tag < next,
            });
        let needs = [Tag::Owner, Tag::OwningGroup, Tag::Other];
        let is_whole = needs.iter().all(|&tag| self.rights(tag).is_some());
        let is_named = |(tag, _): &(Tag, u16)| matches!(tag, Tag::User(_) | Tag::Group(_));
        let has_named = self.entries.iter().any(is_named);
        is_sorted && is_whole && (!has_named || self.rights(Tag::Mask).is_some())
    }

    /// The list as an attribute's value.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD_BYTES + ENTRY_BYTES * self.entries.len());
        out.extend_from_slice(&VERSION.to_le_bytes());
        for (tag, rights) in &self.entries {
            debug_assert_eq!(
                Tag::from_code(tag.code(), tag.id()),
                Some(*tag),
                "a code leads back"
            );
            out.extend_from_slice(&tag.code().to_le_bytes());
            out.extend_from_slice(&rights.to_le_bytes());
            out.extend_from_slice(&tag.id().to_le_bytes());
        }
        debug_assert_eq!(
            out.len(),
            HEAD_BYTES + ENTRY_BYTES * self.entries.len(),
            "all entries are there"
        );
        out
    }

    /// The list as an attribute's value that is about to be stored.
    pub(crate) fn to_store(&self) -> Vec<u8> {
        let value = self.encode();
        debug_assert!(
            Self::decode(&value).is_ok_and(|read| read == *self),
            "a reader takes the list"
        );
        value
    }

    fn rights(&self, tag: Tag) -> Option<u16> {
        let found = self.entries.iter().find(|(t, _)| *t == tag);
        found.map(|(_, rights)| *rights)
    }

    fn set(&mut self, tag: Tag, rights: u16) {
        debug_assert!(rights <= 7, "three bits");
        debug_assert!(self.rights(tag).is_some(), "a list has the entry");
        for (t, r) in &mut self.entries {
            if *t == tag {
                *r = rights;
            }
        }
    }

    /// The entry that the group's bits of a mode stand for.
    fn group_class(&self) -> Tag {
        if self.rights(Tag::Mask).is_some() {
            Tag::Mask
        } else {
            Tag::OwningGroup
        }
    }

    /// The nine bits of a mode that go with the list.
    pub(crate) fn mode_bits(&self) -> u16 {
        debug_assert!(
            self.rights(self.group_class()).is_some(),
            "a list has the entry"
        );
        let rights = |tag| self.rights(tag).unwrap_or(0);
        let bits = rights(Tag::Owner) << 6 | rights(self.group_class()) << 3 | rights(Tag::Other);
        debug_assert!(bits <= 0o777, "rights are three bits each");
        bits
    }

    /// Reports whether a mode says the same.
    pub(crate) fn is_minimal(&self) -> bool {
        self.entries.len() == 3
    }

    /// Takes over the bits of a mode, as `chmod` does.
    pub(crate) fn set_mode(&mut self, perm: u16) {
        self.set(Tag::Owner, perm >> 6 & 7);
        self.set(self.group_class(), perm >> 3 & 7);
        self.set(Tag::Other, perm & 7);
        debug_assert_eq!(self.mode_bits(), perm & 0o777, "the list follows the mode");
    }

    /// What a new inode gets from this default list: its access list (none if a mode says the
    /// same), and its permissions: those asked for, as far as the list grants them.
    pub(crate) fn for_new_inode(&self, perm: u16) -> (Option<Self>, u16) {
        let perm = perm & (self.mode_bits() | !0o777);
        let mut acl = self.clone();
        acl.set_mode(perm);
        debug_assert_eq!(perm & 0o777, acl.mode_bits(), "the mode follows the list");
        debug_assert!(acl.is_valid(), "a list of a valid one is valid");
        ((!acl.is_minimal()).then_some(acl), perm)
    }
}

impl Rights {
    /// Reports whether a caller who is not privileged has all the rights wanted.
    pub(crate) fn allow(&self, acl: Option<&Acl>, caller: &Caller<'_>, wanted: u16) -> bool {
        debug_assert!(wanted <= 7, "three bits");
        let has = |rights: u16| rights & wanted == wanted;
        if caller.uid == self.uid {
            return has(self.perm >> 6 & 7);
        }
        let Some(acl) = acl else {
            let is_in_group = caller.is_in_group(self.gid);
            return has(self.perm >> if is_in_group { 3 } else { 0 } & 7);
        };
        let mask = acl.rights(Tag::Mask).unwrap_or(7);
        if let Some(rights) = acl.rights(Tag::User(caller.uid)) {
            return has(rights & mask);
        }
        let mut is_in_any = false;
        for &(tag, rights) in &acl.entries {
            let is_in = match tag {
                Tag::OwningGroup => caller.is_in_group(self.gid),
                Tag::Group(gid) => caller.is_in_group(gid),
                Tag::Owner | Tag::User(_) | Tag::Mask | Tag::Other => false,
            };
            if is_in && has(rights & mask) {
                return true;
            }
            is_in_any |= is_in;
        }
        !is_in_any && has(self.perm & 7)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn acl(entries: &[(Tag, u16)]) -> Acl {
        Acl {
            entries: entries.to_vec(),
        }
    }

    fn named() -> Acl {
        acl(&[
            (Tag::Owner, 7),
            (Tag::User(5), 6),
            (Tag::OwningGroup, 4),
            (Tag::Group(9), 3),
            (Tag::Mask, 5),
            (Tag::Other, 1),
        ])
    }

    #[test]
    fn bytes_are_the_kernels() {
        let minimal = acl(&[(Tag::Owner, 6), (Tag::OwningGroup, 4), (Tag::Other, 0)]);
        let none = [0xff; 4];
        let mut golden = vec![2, 0, 0, 0];
        for (tag, rights) in [(1, 6), (4, 4), (0x20, 0)] {
            golden.extend([tag, 0, rights, 0]);
            golden.extend(none);
        }
        assert_eq!(minimal.encode(), golden);
        assert_eq!(Acl::decode(&golden).unwrap(), minimal);
        assert_eq!(Acl::decode(&named().encode()).unwrap(), named());
        assert!(minimal.is_minimal() && !named().is_minimal());
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let good = named().encode();
        for cut in 0..good.len() {
            assert!(Acl::decode(&good[..cut]).is_err(), "cut {cut}");
        }
        let others = [
            acl(&[(Tag::Owner, 6), (Tag::Other, 0)]),
            acl(&[(Tag::Owner, 6), (Tag::OwningGroup, 8), (Tag::Other, 0)]),
            acl(&[(Tag::OwningGroup, 6), (Tag::Owner, 6), (Tag::Other, 0)]),
            acl(&[
                (Tag::Owner, 6),
                (Tag::User(1), 6),
                (Tag::OwningGroup, 6),
                (Tag::Other, 0),
            ]),
            acl(&[
                (Tag::Owner, 6),
                (Tag::Owner, 6),
                (Tag::OwningGroup, 6),
                (Tag::Other, 0),
            ]),
        ];
        for bad in others {
            assert!(
                matches!(Acl::decode(&bad.encode()), Err(FsError::Invalid(_))),
                "{bad:?}"
            );
        }
        let mut newer = good;
        newer[0] = 3;
        assert!(matches!(Acl::decode(&newer), Err(FsError::Unsupported)));
    }

    #[test]
    fn named_entries_come_in_any_order_and_twice() {
        let list = acl(&[
            (Tag::Owner, 6),
            (Tag::User(9), 4),
            (Tag::User(3), 6),
            (Tag::User(9), 6),
            (Tag::OwningGroup, 4),
            (Tag::Group(8), 1),
            (Tag::Group(8), 4),
            (Tag::Group(7), 1),
            (Tag::Mask, 7),
            (Tag::Other, 0),
        ]);
        assert_eq!(Acl::decode(&list.encode()).unwrap(), list);
        let inode = Rights {
            uid: 1,
            gid: 2,
            perm: 0o670,
        };
        let allow = |uid, gid, wanted| {
            let groups = &[];
            inode.allow(Some(&list), &Caller { uid, gid, groups }, wanted)
        };
        assert!(allow(9, 0, 4) && !allow(9, 0, 2), "the first entry counts");
        assert!(allow(3, 0, 6));
        assert!(allow(5, 8, 1) && allow(5, 8, 4), "any entry grants");
    }

    #[test]
    fn a_mode_and_a_list_follow_each_other() {
        assert_eq!(named().mode_bits(), 0o751);
        let mut changed = named();
        changed.set_mode(0o640);
        assert_eq!(changed.mode_bits(), 0o640);
        assert_eq!(changed.rights(Tag::Mask), Some(4));
        assert_eq!(changed.rights(Tag::OwningGroup), Some(4));
        let (access, perm) = named().for_new_inode(0o2666);
        assert_eq!(perm, 0o2640);
        assert_eq!(access.map(|acl| acl.mode_bits()), Some(0o640));
    }

    #[test]
    fn rights_are_granted_by_the_first_class_that_fits() {
        let inode = Rights {
            uid: 1,
            gid: 2,
            perm: 0o751,
        };
        let caller = |uid, gid, groups| Caller { uid, gid, groups };
        let named = named();
        let allow = |caller: Caller<'_>, wanted| inode.allow(Some(&named), &caller, wanted);
        assert!(allow(caller(1, 0, &[]), 7));
        assert!(allow(caller(5, 0, &[]), 4) && !allow(caller(5, 0, &[]), 2));
        assert!(allow(caller(6, 2, &[]), 4) && !allow(caller(6, 2, &[]), 1));
        assert!(allow(caller(6, 2, &[9]), 1) && !allow(caller(6, 2, &[9]), 5));
        assert!(allow(caller(6, 7, &[]), 1) && !allow(caller(6, 7, &[]), 4));
        assert!(inode.allow(None, &caller(6, 2, &[]), 5));
        assert!(!inode.allow(None, &caller(6, 7, &[]), 5));
    }
}
