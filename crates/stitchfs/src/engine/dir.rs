//! What a directory with a store in it says of itself.

use crate::StoreError;
use std::path::Path;
use stitch_device::Folder;
use stitch_format::store_identity::{FILE_NAME, IDENTITY_BYTES, Identity};

/// Reports whether there is a store in the directory at `path`, finished or not.
pub(super) fn is_store(path: &Path) -> bool {
    path.join(FILE_NAME).is_file()
}

/// Returns the identity of the store in a directory, without locking it.
///
/// # Errors
/// [`StoreError::Device`] if it cannot be read, [`StoreError::Identity`] if it is damaged or of a
/// newer program.
pub(crate) fn read(dir: &Path) -> Result<Identity, StoreError> {
    let mut bytes = Vec::new();
    let folder = Folder::open(dir, true)?;
    folder.read_at(FILE_NAME, 0, IDENTITY_BYTES + 1, &mut bytes)?;
    Identity::decode(&bytes).map_err(|source| StoreError::Identity {
        path: dir.join(FILE_NAME),
        source,
    })
}
