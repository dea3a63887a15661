//! Simulation: stores run seeded workloads on devices that lose power, fail and decay, and every
//! resulting state is compared with the allowed ones.
//!
//! A store under test is a [`System`]. [`crash`] cuts the power, [`fault`] fails calls, [`damage`]
//! flips bits and offers media without a store. The same seed gives the same run, as far as the
//! system under test uses one thread. [`liar`] holds the canaries, [`toy`] a store on which the
//! simulation itself is tested; [`campaign`] runs many seeds of many [`cases`].

pub mod args;
mod audit;
pub mod beside;
pub mod campaign;
pub mod cases;
pub mod crash;
pub mod damage;
pub mod fault;
pub mod files;
pub mod kv;
pub mod liar;
pub mod log_engine;
pub mod mini;
pub mod nospace;
mod system;
pub mod systems;
mod timeline;
pub mod tiny;
pub mod toy;
pub mod vt;

pub use system::{Ack, System, SystemError};
