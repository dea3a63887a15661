//! For tests: a file system in an engine in memory.

use crate::{FileSystem, FsOptions, register_upserts};
use stitch_base::sync::Arc;
use stitch_kv::{Engine, ModelEngine, UpsertRegistry};

/// Returns an engine with a new file system.
pub(crate) fn formatted(options: &FsOptions) -> Arc<ModelEngine> {
    let mut registry = UpsertRegistry::default();
    register_upserts(&mut registry);
    let engine = Arc::new(ModelEngine::new(registry));
    let shared: Arc<dyn Engine> = Arc::clone(&engine) as _;
    FileSystem::format(&shared, options, (0, 0)).expect("formats");
    engine
}
