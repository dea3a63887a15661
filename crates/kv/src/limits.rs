//! What an engine can take, and the checks that every engine makes alike.

use crate::{Batch, Guards, KeyRanges, KvError, Message, UpsertRegistry};
use stitch_base::TreeId;

/// What an engine can take. Layers above keep within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest key, in bytes.
    pub key_bytes_max: u64,
    /// Longest value or delta, in bytes.
    pub value_bytes_max: u64,
    /// Largest batch as encoded, in bytes.
    pub batch_bytes_max: u64,
}

impl Limits {
    /// Refuses a batch that is too long.
    ///
    /// # Errors
    /// [`KvError::TooLarge`].
    pub const fn check_batch(&self, batch: &Batch<'_>) -> Result<(), KvError> {
        within("batch", batch.len_bytes() as u64, self.batch_bytes_max)
    }

    /// Refuses a list of guards that is longer than a batch may be.
    ///
    /// # Errors
    /// [`KvError::TooLarge`].
    pub const fn check_guards(&self, guards: &Guards) -> Result<(), KvError> {
        within("guards", guards.len_bytes() as u64, self.batch_bytes_max)
    }

    /// Refuses a message with a key, value or delta that is too long, or an upsert of a function
    /// that is not registered.
    ///
    /// # Errors
    /// [`KvError::TooLarge`], [`KvError::Invalid`].
    pub fn check_message(
        &self,
        message: Message<'_>,
        upserts: &UpsertRegistry,
    ) -> Result<(), KvError> {
        within("key", message.key().len() as u64, self.key_bytes_max)?;
        let (what, limit_bytes) = match message {
            Message::Put { .. } => ("value", self.value_bytes_max),
            Message::Delete { .. } | Message::DeleteRange { .. } => ("key", self.key_bytes_max),
            Message::Upsert { function, .. } if upserts.get(function).is_none() => {
                let what = format!("no upsert function has number {function}");
                return Err(KvError::Invalid(what));
            }
            Message::Upsert { .. } => ("delta", self.value_bytes_max),
        };
        within(what, message.operand().len() as u64, limit_bytes)
    }
}

const fn within(what: &'static str, len_bytes: u64, limit_bytes: u64) -> Result<(), KvError> {
    if len_bytes <= limit_bytes {
        return Ok(());
    }
    Err(KvError::TooLarge {
        what,
        len_bytes,
        limit_bytes,
    })
}

/// Refuses a request that needs more bytes than are free for it.
///
/// # Errors
/// [`KvError::NoSpace`].
pub const fn check_free(needed_bytes: u64, free_bytes: u64) -> Result<(), KvError> {
    if needed_bytes <= free_bytes {
        return Ok(());
    }
    Err(KvError::NoSpace {
        needed_bytes,
        free_bytes,
    })
}

/// Longest name of a tree, in bytes. Trees that older programs made may have longer ones: these can
/// be used, altered and dropped.
pub const TREE_NAME_BYTES_MAX: usize = 255;

/// Refuses a name that no new tree may have.
///
/// # Errors
/// [`KvError::Invalid`] for a name that is too long.
pub fn check_tree_name(name: &str) -> Result<(), KvError> {
    if name.len() <= TREE_NAME_BYTES_MAX {
        return Ok(());
    }
    Err(KvError::Invalid(format!(
        "a tree's name has at most {TREE_NAME_BYTES_MAX} bytes; this one has {}",
        name.len()
    )))
}

/// Longest name of a pin, in bytes.
pub const PIN_NAME_BYTES_MAX: usize = 255;
/// Most bytes of the user that a pin carries.
pub const PIN_USER_BYTES_MAX: usize = 4096;

/// Refuses a name that no pin may have.
///
/// # Errors
/// [`KvError::Invalid`] for a name that is empty or too long.
pub fn check_pin_name(name: &str) -> Result<(), KvError> {
    if (1..=PIN_NAME_BYTES_MAX).contains(&name.len()) {
        return Ok(());
    }
    Err(KvError::Invalid(format!(
        "a pin's name has 1 to {PIN_NAME_BYTES_MAX} bytes; this one has {}",
        name.len()
    )))
}

/// Refuses more bytes of the user than a pin carries.
///
/// # Errors
/// [`KvError::TooLarge`].
pub const fn check_pin_user(user: &[u8]) -> Result<(), KvError> {
    let (len_bytes, limit_bytes) = (user.len() as u64, PIN_USER_BYTES_MAX as u64);
    within("user bytes of a pin", len_bytes, limit_bytes)
}

/// Most ranges of keys that a pin holds of one tree.
pub const PIN_RANGES_MAX: usize = 256;
/// Most bytes that the bounds of these ranges have together.
pub const PIN_RANGES_BYTES_MAX: usize = 64 << 10;

/// Refuses ranges of a tree that a pin cannot be narrowed to. `before` has those that it holds, if
/// it does not hold all keys.
///
/// # Errors
/// [`KvError::TooLarge`] for bounds that are too long together; [`KvError::Invalid`] for too many
/// ranges, or a key that the pin does not hold.
pub fn check_pin_ranges(
    tree: TreeId,
    before: Option<&KeyRanges>,
    ranges: &KeyRanges,
) -> Result<(), KvError> {
    if ranges.count() > PIN_RANGES_MAX {
        return Err(KvError::Invalid(format!(
            "a pin has at most {PIN_RANGES_MAX} ranges of a tree; these are {} of tree {tree}",
            ranges.count()
        )));
    }
    let bounds = ranges.iter().map(|range| {
        let end_bytes = range.end.map_or(0, <[u8]>::len);
        (range.start.len() + end_bytes) as u64
    });
    let limit_bytes = PIN_RANGES_BYTES_MAX as u64;
    within("bounds of the ranges of a pin", bounds.sum(), limit_bytes)?;
    if before.is_none_or(|before| ranges.is_within(before)) {
        return Ok(());
    }
    let what = format!("a pin is narrowed to keys that it holds; it lacks some of tree {tree}");
    Err(KvError::Invalid(what))
}
