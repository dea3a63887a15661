//! Names that were missed last: a program that makes a file asks for its name twice.
//!
//! A slot holds one key, whose row is missing until its name is put. So a slot stays right whatever
//! else happens in the directory. Whole keys are compared, not hashes.

use crate::spread::spread_name;
use stitch_base::Ino;
use stitch_base::sync::Mutex;

const SLOTS: usize = 64;
/// Longer keys, of names of more than 64 bytes, are not remembered.
const KEY_BYTES: usize = 80;
const _: () = assert!(KEY_BYTES <= u8::MAX as usize, "a length is a byte");
const _: () = assert!(SLOTS <= 1 << u8::BITS, "a byte chooses a slot");
const _: () = assert!(SLOTS.is_power_of_two(), "names are spread evenly");

#[derive(Clone, Copy, Debug)]
struct KeySlot {
    len: u8,
    key: [u8; KEY_BYTES],
}

/// Empty: no key is that short.
const EMPTY: KeySlot = KeySlot {
    len: 0,
    key: [0; KEY_BYTES],
};

impl KeySlot {
    fn key(&self) -> &[u8] {
        debug_assert!(usize::from(self.len) <= KEY_BYTES, "it fits the slot");
        &self.key[..usize::from(self.len)]
    }
}

#[derive(Debug)]
pub(super) struct Missing {
    slots: [Mutex<KeySlot>; SLOTS],
}

impl Default for Missing {
    fn default() -> Self {
        Self {
            slots: [const { Mutex::new(EMPTY) }; SLOTS],
        }
    }
}

impl Missing {
    /// By directory and hash: so a name that is put needs to look in one slot only.
    fn slot(&self, dir: Ino, hash: u64) -> &Mutex<KeySlot> {
        debug_assert!(hash > 0, "0 is the row of the directory itself");
        let spread = spread_name(dir, hash);
        &self.slots[usize::from(spread.to_be_bytes()[0]) % SLOTS]
    }

    /// Reports whether the name of this key was missed, and not put since.
    pub(super) fn has(&self, dir: Ino, hash: u64, key: &[u8]) -> bool {
        debug_assert!(!key.is_empty(), "a slot without key is empty");
        self.slot(dir, hash).lock().key() == key
    }

    /// The name of this key is missing. The directory is locked.
    pub(super) fn note(&self, dir: Ino, hash: u64, key: &[u8]) {
        debug_assert!(!key.is_empty(), "a slot without key is empty");
        if key.len() > KEY_BYTES {
            return;
        }
        let mut slot = self.slot(dir, hash).lock();
        slot.len = u8::try_from(key.len()).expect("at most 80");
        slot.key[..key.len()].copy_from_slice(key);
        debug_assert_eq!(slot.key(), key, "it is remembered");
    }

    /// A name of this hash is to be put. Forgets whatever is in its slot.
    pub(super) fn clear(&self, dir: Ino, hash: u64) {
        self.slot(dir, hash).lock().len = 0;
    }
}
