//! Parts of the contract that an engine may lack.

/// The optional parts of the contract that an engine has. A call of a part that it lacks fails with
/// [`KvError::Unsupported`](crate::KvError::Unsupported) and changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// [`Engine::create_pin`](crate::Engine::create_pin) and its companions.
    pub pins: bool,
    /// A pin of [`Engine::create_pin_of`](crate::Engine::create_pin_of) holds the trees that were
    /// chosen alone, by an engine that has pins. Without it, such a pin holds more than was asked
    /// for: all trees.
    pub pins_of_trees: bool,
    /// [`Engine::narrow_pin`](crate::Engine::narrow_pin) narrows a pin to ranges of keys, by an
    /// engine that has pins of some trees. Without it, the pin holds what it did.
    pub pins_of_ranges: bool,
    /// [`Engine::commit_guarded`](crate::Engine::commit_guarded) and
    /// [`Engine::changed_keys`](crate::Engine::changed_keys).
    pub guards: bool,
    /// [`Engine::branch_trees`](crate::Engine::branch_trees),
    /// [`Engine::branch_keys`](crate::Engine::branch_keys) and
    /// [`Engine::branch_moment`](crate::Engine::branch_moment).
    pub branches: bool,
    /// [`Engine::absorb`](crate::Engine::absorb), by an engine that has branches.
    pub absorb: bool,
    /// [`Engine::keys_between`](crate::Engine::keys_between).
    pub keys_between: bool,
    /// [`Engine::exclusive_space`](crate::Engine::exclusive_space) and
    /// [`Engine::range_space`](crate::Engine::range_space).
    pub space_shares: bool,
}
