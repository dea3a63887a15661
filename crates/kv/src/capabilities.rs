//! Parts of the contract that an engine may lack.

/// The optional parts of the contract that an engine has. A call of a part that it lacks fails with
/// [`KvError::Unsupported`](crate::KvError::Unsupported) and changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// [`Engine::create_pin`](crate::Engine::create_pin) and its companions.
    pub pins: bool,
    /// Batches that name what must hold: a commit fails with
    /// [`KvError::Conflict`](crate::KvError::Conflict) where another writer changed it.
    pub guards: bool,
}
