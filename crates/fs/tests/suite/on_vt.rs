//! The tests of the suite about atomic writes, transactions and views, on the VT-tree engine.

mod atomic_writes;
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
