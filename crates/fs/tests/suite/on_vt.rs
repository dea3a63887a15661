//! The tests of the suite about transactions, on the VT-tree engine.

#[expect(
    dead_code,
    reason = "it is shared with the suite, which uses all of it"
)]
mod common;
#[path = "engine_vt.rs"]
mod engine;
mod transactions;
