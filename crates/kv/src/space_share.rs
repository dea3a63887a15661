//! Shares of the space of a store: of pins, branch trees, ranges of keys.
//!
//! ```text
//! key k:          put@3        put@7        put@9
//! pin a at 5        |- a -|
//! pin b at 8                     |- b -|
//! needed by       a alone      b alone      the present
//!
//! key m:          put@2                     put@9
//! needed by       a and b                   the present
//! ```
//!
//! What one holder alone needs is *exclusive*: dropping it gives that back. What several need is
//! shared, and comes back with the last of them. So the exclusive bytes of two pins do not add up
//! to what dropping both gives back.

use crate::KvError;
use std::collections::BTreeSet;
use stitch_base::TreeId;

/// Something in a store that can be dropped, and keeps data until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder<'a> {
    /// The pin of this name.
    Pin(&'a str),
    /// The pins of these names, which are dropped together, such as the moments of a history.
    Pins(&'a [&'a str]),
    /// Living trees that are dropped together, such as the branch trees of a clone.
    Trees(&'a [TreeId]),
    /// Nothing: versions that nothing needs any more. They come back as background work meets
    /// them, whatever is dropped. Of what a drop has made garbage, some may wait for that too.
    Garbage,
}

/// Space that the rows in some ranges of keys take, in bytes of the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceShare {
    /// What all of them take.
    pub referenced_bytes: u64,
    /// Of these, what no pin and no branch tree needs: deleting the rows gives it back.
    pub exclusive_bytes: u64,
}

impl SpaceShare {
    /// Returns what is needed by others too.
    #[must_use]
    pub const fn shared_bytes(&self) -> u64 {
        self.referenced_bytes - self.exclusive_bytes
    }

    /// Adds rows of which no part is counted yet.
    pub const fn add(&mut self, other: Self) {
        debug_assert!(other.exclusive_bytes <= other.referenced_bytes, "a part");
        self.referenced_bytes += other.referenced_bytes;
        self.exclusive_bytes += other.exclusive_bytes;
    }
}

/// Refuses holders of which two have a pin or a tree in common.
///
/// # Errors
/// [`KvError::Invalid`].
pub fn check_holders(holders: &[Holder<'_>]) -> Result<(), KvError> {
    let (mut pins, mut trees) = (BTreeSet::new(), BTreeSet::new());
    let mut has_garbage = false;
    for holder in holders {
        let twice = match holder {
            Holder::Pin(name) => (!pins.insert(*name)).then(|| format!("pin {name:?}")),
            Holder::Pins(list) => {
                let twice = list.iter().find(|name| !pins.insert(**name));
                twice.map(|name| format!("pin {name:?}"))
            }
            Holder::Trees(list) => {
                let twice = list.iter().find(|tree| !trees.insert(**tree));
                twice.map(|tree| format!("tree {tree}"))
            }
            Holder::Garbage => std::mem::replace(&mut has_garbage, true).then(|| "garbage".into()),
        };
        if let Some(what) = twice {
            return Err(KvError::Invalid(format!("{what} is named twice")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_apart() {
        let (one, two) = ([TreeId(1), TreeId(2)], [TreeId(3), TreeId(2)]);
        assert!(check_holders(&[Holder::Pin("a"), Holder::Pin("b"), Holder::Trees(&one)]).is_ok());
        let twice = check_holders(&[Holder::Trees(&one), Holder::Trees(&two)]);
        assert!(matches!(twice, Err(KvError::Invalid(why)) if why.contains("tree 2")));
        let twice = check_holders(&[Holder::Garbage, Holder::Pin("a"), Holder::Garbage]);
        assert!(matches!(twice, Err(KvError::Invalid(why)) if why.contains("garbage")));
        let twice = check_holders(&[Holder::Pin("a"), Holder::Pin("a")]);
        assert!(matches!(twice, Err(KvError::Invalid(why)) if why.contains("pin \"a\"")));
        assert!(check_holders(&[Holder::Pins(&["a", "b"]), Holder::Pin("c")]).is_ok());
        let twice = check_holders(&[Holder::Pin("b"), Holder::Pins(&["a", "b"])]);
        assert!(matches!(twice, Err(KvError::Invalid(why)) if why.contains("pin \"b\"")));
    }

    #[test]
    fn shares_add_up() {
        let mut sum = SpaceShare::default();
        for referenced_bytes in [5, 7] {
            sum.add(SpaceShare {
                referenced_bytes,
                exclusive_bytes: 3,
            });
        }
        assert_eq!((sum.referenced_bytes, sum.exclusive_bytes), (12, 6));
        assert_eq!(sum.shared_bytes(), 6);
    }
}
