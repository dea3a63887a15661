//! The tests of the suite about transactions and views, on the VT-tree engine.

#[expect(
    dead_code,
    reason = "it is shared with the suite, which uses all of it"
)]
mod common;
mod engine_vt;
mod transactions;
#[expect(
    dead_code,
    reason = "it is shared with the suite, which uses all of it"
)]
mod twin;
mod views;

use engine_vt as engine;
