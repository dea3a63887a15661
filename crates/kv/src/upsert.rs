//! Upserts: blind read-modify-writes. A message carries a delta; a registered pure function folds
//! it over the old value when a reader reads the key or a compaction meets both.
//!
//! Paper: Jannen et al., BetrFS, ToS 2015, section 2.2 (upserts on a B-epsilon-tree).

use std::collections::BTreeMap;
use std::sync::Arc;

/// The first number for functions of programs.
const NUMBER_MIN: u32 = 1024;

/// What a fold leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folded {
    /// The new value, which the function has put into `out`.
    Value,
    /// No value: the key is absent afterwards.
    Absent,
}

/// A pure function of an old value and a delta. Must give the same result for ever for the same
/// bytes, since it runs again at every read until a compaction has folded it in; must accept any
/// bytes without panicking.
pub trait UpsertFn: Send + Sync {
    /// Its stored number. Never 0, never given to another function.
    fn id(&self) -> u32;

    /// What it is called in errors and in `info`.
    fn name(&self) -> &'static str;

    /// Folds `delta` over `old`. `out` comes empty and takes the new value.
    fn fold(&self, key: &[u8], old: Option<&[u8]>, delta: &[u8], out: &mut Vec<u8>) -> Folded;

    /// Reports whether the order of two deltas never matters: folded one after the other, in either
    /// order and over any value, they give the same. Transactions that fold such deltas into one
    /// key do not conflict.
    fn commutes(&self) -> bool {
        false
    }

    /// Joins two deltas of the same key, `older` before `newer`, into one with the effect of both.
    /// Answers false where it cannot; then both are kept.
    fn join(&self, _older: &[u8], _newer: &[u8], _out: &mut Vec<u8>) -> bool {
        false
    }
}

/// An upsert function of a closure: of key, old value and delta it makes the new value, or
/// `None` to
/// remove the key. See [`UpsertFn`] for what it must keep to. Programs take numbers from 1024 on;
/// those below are kept.
///
/// # Panics
/// If the number is kept.
pub fn upsert_fn<F>(id: u32, name: &'static str, fold: F) -> Arc<dyn UpsertFn>
where
    F: Fn(&[u8], Option<&[u8]>, &[u8]) -> Option<Vec<u8>> + Send + Sync + 'static,
{
    assert!(
        id >= NUMBER_MIN,
        "upsert functions below {NUMBER_MIN} are kept"
    );
    Arc::new(OfClosure { id, name, fold })
}

struct OfClosure<F> {
    id: u32,
    name: &'static str,
    fold: F,
}

impl<F> UpsertFn for OfClosure<F>
where
    F: Fn(&[u8], Option<&[u8]>, &[u8]) -> Option<Vec<u8>> + Send + Sync,
{
    fn id(&self) -> u32 {
        self.id
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn fold(&self, key: &[u8], old: Option<&[u8]>, delta: &[u8], out: &mut Vec<u8>) -> Folded {
        match (self.fold)(key, old, delta) {
            Some(value) => {
                *out = value;
                Folded::Value
            }
            None => Folded::Absent,
        }
    }
}

/// The functions that a store knows. Given to an engine when it opens a store.
#[derive(Clone, Default)]
pub struct UpsertRegistry {
    functions: BTreeMap<u32, Arc<dyn UpsertFn>>,
}

impl std::fmt::Debug for UpsertRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.functions.keys()).finish()
    }
}

impl UpsertRegistry {
    /// A registry without functions.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            functions: BTreeMap::new(),
        }
    }

    /// Adds a function.
    ///
    /// # Panics
    /// If its number is 0 or taken.
    pub fn register(&mut self, function: Arc<dyn UpsertFn>) {
        assert!(function.id() != 0, "upsert function 0 is never valid");
        let taken = self.functions.insert(function.id(), function);
        assert!(taken.is_none(), "upsert function numbers are unique");
    }

    /// Adds all functions of another registry.
    ///
    /// # Panics
    /// If one of their numbers is taken.
    pub fn register_all(&mut self, other: &Self) {
        for function in other.functions.values() {
            self.register(Arc::clone(function));
        }
    }

    /// The function of this number.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&Arc<dyn UpsertFn>> {
        self.functions.get(&id)
    }
}
