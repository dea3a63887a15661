//! The engine that the tests run on: the model.

use std::sync::Arc;
use stitch_kv::{Engine, ModelEngine};

pub(crate) type TestEngine = ModelEngine;

/// Of so many pairs of changes one is tried.
pub(crate) const PAIRS_STEP: usize = 1;

pub(crate) fn dynamic(engine: &Arc<TestEngine>) -> Arc<dyn Engine> {
    Arc::clone(engine) as Arc<dyn Engine>
}
