//! Folding of upserts, shared by reads and compactions.

use crate::VtError;
use stitch_kv::{Folded, UpsertRegistry};

/// Folds deltas, oldest first, over an old value. `None` is no value.
///
/// # Errors
/// [`VtError::UnknownUpsert`].
pub(crate) fn fold<'a>(
    upserts: &UpsertRegistry,
    key: &[u8],
    old: Option<&[u8]>,
    deltas: impl Iterator<Item = (u32, &'a [u8])>,
) -> Result<Option<Vec<u8>>, VtError> {
    let mut value = old.map(<[u8]>::to_vec);
    let mut out = Vec::new();
    for (function, delta) in deltas {
        let function = upserts
            .get(function)
            .ok_or(VtError::UnknownUpsert { function })?;
        out.clear();
        match function.fold(key, value.as_deref(), delta, &mut out) {
            Folded::Value => std::mem::swap(value.get_or_insert_default(), &mut out),
            Folded::Absent => value = None,
        }
    }
    Ok(value)
}
