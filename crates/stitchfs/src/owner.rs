//! The owner of a handle: the instance of an open store that it was had from.

use crate::StoreError;
use std::sync::Weak;
use stitch_base::sync::Arc;
use stitch_vt::VtEngine;

/// Names the engine of an instance without keeping it open.
///
/// Compared by address: the memory of an engine is not used again while an owner names it, so two
/// engines of different lives are never taken for one.
#[derive(Clone, Debug)]
pub(crate) struct Owner(Weak<VtEngine>);

impl Owner {
    pub(crate) fn new(engine: &Arc<VtEngine>) -> Self {
        Self(Arc::downgrade(engine))
    }

    /// Reports whether this is the owner's engine.
    pub(crate) fn is(&self, engine: &Arc<VtEngine>) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(engine))
    }

    /// Refuses a handle that `asked` does not own. `handle` is a noun: `a snapshot`.
    ///
    /// # Errors
    /// [`StoreError::Foreign`], which names both instances.
    pub(crate) fn check(
        &self,
        handle: impl FnOnce() -> String,
        asked: &Arc<VtEngine>,
    ) -> Result<(), StoreError> {
        if self.is(asked) {
            return Ok(());
        }
        Err(self.foreign(handle(), asked))
    }

    #[cold]
    fn foreign(&self, handle: String, asked: &Arc<VtEngine>) -> StoreError {
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

fn name(engine: &VtEngine) -> String {
    let store = engine.volume().device().geometry().name;
    format!("instance {} of {store}", engine.name())
}
