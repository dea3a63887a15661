//! The owner of a handle: the instance of an open store that it was had from.

use crate::StoreError;
use crate::engine::{Instance, WeakInstance};

/// Names the instance that owns a handle, without keeping it open.
#[derive(Clone, Debug)]
pub(crate) struct Owner(WeakInstance);

impl Owner {
    pub(crate) fn new(instance: &Instance) -> Self {
        Self(WeakInstance::of(instance))
    }

    /// Reports whether this is the owner.
    pub(crate) fn is(&self, instance: &Instance) -> bool {
        self.0.is(instance)
    }

    /// Refuses a handle that `asked` does not own. `handle` is a noun: `a snapshot`.
    ///
    /// # Errors
    /// [`StoreError::Foreign`], which names both instances.
    pub(crate) fn check(
        &self,
        handle: impl FnOnce() -> String,
        asked: &Instance,
    ) -> Result<(), StoreError> {
        if self.is(asked) {
            return Ok(());
        }
        Err(self.foreign(handle(), asked))
    }

    #[cold]
    fn foreign(&self, handle: String, asked: &Instance) -> StoreError {
        let asked = name(asked);
        let owner = match self.0.upgrade() {
            None => "a store that is no longer open".to_owned(),
            Some(owner) => match (owner.is_closed(), name(&owner)) {
                (true, name) => format!("closed {name}"),
                (false, name) if name == asked => format!("another store or opening, {name}"),
                (false, name) => name,
            },
        };
        StoreError::Foreign {
            handle,
            owner,
            asked,
        }
    }
}

fn name(instance: &Instance) -> String {
    let store = instance.store_name();
    let of = format!("instance {} of {store}", instance.name());
    match instance.transaction() {
        0 => of,
        number => format!("transaction {number} in {of}"),
    }
}
