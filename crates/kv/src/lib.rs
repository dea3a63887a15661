//! The engine contract: trees, batches, snapshots, cursors, upserts; a model engine; the conformance suite.
