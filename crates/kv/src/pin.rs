//! Moments of a store that outlive the process.

use bytes::Bytes;
use stitch_base::{PinId, Seqno};

/// A pin as a store lists it: a moment of the whole store, held in the store itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinInfo {
    /// Its number, never reused. Later pins have larger numbers.
    pub id: PinId,
    /// Its name, unique among the store's pins.
    pub name: String,
    /// The last write that it sees.
    pub seqno: Seqno,
    /// Bytes of the user, which the engine stores and does not read.
    pub user: Bytes,
}
