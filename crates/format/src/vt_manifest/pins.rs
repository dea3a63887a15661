//! Pins: moments of the store that a version keeps.

use super::pin_ranges::{NarrowedPin, TreeRanges, put_ranges, read_ranges};
use super::{VERSION_PINS, VERSION_SCOPES, VERSION_SHIFTS, counter, list, tree_id};
use crate::FormatError;
use crate::codec::{Reader, put_bytes, put_varint, varint_bytes};
use stitch_base::{PinId, Seqno, TreeId};

/// The most that one hidden tree takes in a base beside its record.
pub const HIDDEN_TREE_BYTES_MAX: u64 = 5 + 10;

/// A pin as a version lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinRecord {
    /// Its number, never reused.
    pub id: PinId,
    /// Its name.
    pub name: String,
    /// The last write that it sees.
    pub seqno: Seqno,
    /// Number of the first tree that it does not see.
    pub next_tree: TreeId,
    /// Bytes of the user.
    pub user: Vec<u8>,
    /// The trees whose moment it holds, in ascending order; `None` for all that it sees.
    pub trees: Option<Vec<TreeId>>,
    /// Those of them of which it holds ranges of keys alone, in ascending order.
    pub ranges: Vec<TreeRanges>,
}

/// What an edit changes of the pins. In the order of the layout:
///
/// | part | layout |
/// |---|---|
/// | last pin | the last number that a pin got; 0 before the first |
/// | dropped pins | count, numbers |
/// | hidden trees | count, of each: tree number, number of the first pin that does not see it |
/// | new pins | count; each: number, name, seqno, first tree that it does not see, user bytes |
/// | altered pins | count, of each: number, bytes of the user |
///
/// From version 6 on the trees of a new pin follow its user bytes: 0 for all that it sees;
/// otherwise their count plus 1, and their numbers in ascending order. From version 7 on its ranges
/// follow these, and narrowed pins follow the altered ones: count, of each see [`NarrowedPin`].
///
/// A hidden tree was dropped while a pin saw it or a branch tree read it. Its tables stay until the
/// edit that drops the last of these drops the tree too. A base lists hidden trees among its new
/// trees as well. From version 4 on the last pin may be 0:
/// then trees may be hidden, and no pins are named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PinChanges {
    /// The last number that a pin got. 0 in stores that never had one: their edits stay readable
    /// for programs that do not know pins.
    pub last: PinId,
    /// Pins that go.
    pub dropped: Vec<PinId>,
    /// Trees that are not listed any more, each with the first pin that does not see it.
    pub hidden: Vec<(TreeId, PinId)>,
    /// Pins that come, in the order of their numbers.
    pub new: Vec<PinRecord>,
    /// Pins that are there and have other bytes of the user from now on.
    pub altered: Vec<(PinId, Vec<u8>)>,
    /// Pins that are there and hold less from now on.
    pub narrowed: Vec<NarrowedPin>,
}

impl PinRecord {
    /// Returns what a base takes to list the pin, in bytes.
    #[must_use]
    pub fn base_bytes(&self) -> u64 {
        self.bytes_with_user(self.user.len())
    }

    /// Returns the most that a base takes to list the pin with so many bytes of the user instead of
    /// its own.
    #[must_use]
    pub fn bytes_with_user(&self, user_len: usize) -> u64 {
        let lens = [self.name.len(), user_len];
        let texts: usize = lens.iter().map(|len| varint_bytes(*len as u64) + len).sum();
        // The numbers of the pin, its last write and its first unseen tree.
        (10 + 10 + 5 + texts) as u64 + self.scope_bytes()
    }

    /// What a base takes to list its trees and ranges, where any pin has some.
    fn scope_bytes(&self) -> u64 {
        let mut out = Vec::new();
        put_trees(&mut out, self.trees.as_deref());
        put_ranges(&mut out, &self.ranges);
        out.len() as u64
    }
}

impl PinChanges {
    /// The most that a base takes for all but the pins and hidden trees themselves: a number and
    /// five counts.
    pub const HEAD_BYTES_MAX: u64 = 10 + 5 * 10;

    pub(super) fn put(&self, out: &mut Vec<u8>, version: u8) {
        put_varint(out, self.last.0);
        put_varint(out, self.dropped.len() as u64);
        for pin in &self.dropped {
            put_varint(out, pin.0);
        }
        put_varint(out, self.hidden.len() as u64);
        for (tree, pin) in &self.hidden {
            put_varint(out, u64::from(tree.0));
            put_varint(out, pin.0);
        }
        put_varint(out, self.new.len() as u64);
        for pin in &self.new {
            put_varint(out, pin.id.0);
            put_bytes(out, pin.name.as_bytes());
            put_varint(out, pin.seqno.0);
            put_varint(out, u64::from(pin.next_tree.0));
            put_bytes(out, &pin.user);
            if version > VERSION_SHIFTS {
                put_trees(out, pin.trees.as_deref());
            }
            if version > VERSION_SCOPES {
                put_ranges(out, &pin.ranges);
            }
        }
        put_varint(out, self.altered.len() as u64);
        for (pin, user) in &self.altered {
            put_varint(out, pin.0);
            put_bytes(out, user);
        }
        if version > VERSION_SCOPES {
            put_varint(out, self.narrowed.len() as u64);
            self.narrowed.iter().for_each(|pin| pin.put(out));
        }
    }

    /// Reports whether it is of a store that never had a pin.
    pub(super) fn is_without_pins(&self) -> bool {
        let changed = self.altered.len() + self.narrowed.len();
        let names_any = self.dropped.len() + self.new.len() + changed > 0;
        self.last == PinId(0) && !names_any
    }

    pub(super) fn read(r: &mut Reader<'_>, version: u8) -> Result<Self, FormatError> {
        let changes = Self {
            last: pin_id(r)?,
            dropped: list(r, pin_id)?,
            hidden: list(r, |r| Ok((tree_id(r)?, pin_id(r)?)))?,
            new: list(r, |r| read_pin(r, version))?,
            altered: list(r, |r| Ok((pin_id(r)?, r.bytes()?.to_vec())))?,
            narrowed: match version > VERSION_SCOPES {
                true => list(r, NarrowedPin::read)?,
                false => Vec::new(),
            },
        };
        let may_lack_pins = version > VERSION_PINS && changes.is_without_pins();
        match changes.last {
            PinId(0) if !may_lack_pins => Err(r.field("last pin", "above 0", "0".to_owned())),
            _ => Ok(changes),
        }
    }
}

pub(super) fn pin_id(r: &mut Reader<'_>) -> Result<PinId, FormatError> {
    Ok(PinId(counter(r)?))
}

pub(super) fn put_trees(out: &mut Vec<u8>, trees: Option<&[TreeId]>) {
    let Some(trees) = trees else {
        return put_varint(out, 0);
    };
    debug_assert!(trees.is_sorted(), "trees are in order");
    put_varint(out, 1 + trees.len() as u64);
    for tree in trees {
        put_varint(out, u64::from(tree.0));
    }
}

/// Reads the trees of a pin, which sees those before `next_tree`. The count is not trusted.
pub(super) fn read_trees(
    r: &mut Reader<'_>,
    next_tree: TreeId,
) -> Result<Option<Vec<TreeId>>, FormatError> {
    let Some(count) = r.varint()?.checked_sub(1) else {
        return Ok(None);
    };
    let mut trees = Vec::new();
    for _ in 0..count {
        let tree = tree_id(r)?;
        let after = trees.last().copied().unwrap_or_default();
        if tree <= after || tree >= next_tree {
            let expected = "in ascending order, seen by their pin";
            return Err(r.field("trees of a pin", expected, tree.to_string()));
        }
        trees.push(tree);
    }
    Ok(Some(trees))
}

fn read_pin(r: &mut Reader<'_>, version: u8) -> Result<PinRecord, FormatError> {
    let id = pin_id(r)?;
    if id.0 == 0 {
        return Err(r.field("pin", "above 0", "0".to_owned()));
    }
    let name = std::str::from_utf8(r.bytes()?);
    let name = name.map_err(|e| r.field("name", "UTF-8", e.to_string()))?;
    let mut record = PinRecord {
        id,
        name: name.to_owned(),
        seqno: Seqno(counter(r)?),
        next_tree: tree_id(r)?,
        user: r.bytes()?.to_vec(),
        trees: None,
        ranges: Vec::new(),
    };
    if version > VERSION_SHIFTS {
        record.trees = read_trees(r, record.next_tree)?;
    }
    if version > VERSION_SCOPES {
        record.ranges = read_ranges(r, record.trees.as_deref())?;
    }
    Ok(record)
}

#[cfg(test)]
#[path = "pins/tests.rs"]
mod tests;
