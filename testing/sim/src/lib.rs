//! Simulation: stores run seeded workloads on devices that lose power, fail and rot, and everything
//! that is left is compared with what may be left.
//!
//! A thing under test is a [`System`]; [`crash`] cuts the power, [`fault`] lets calls fail,
//! [`damage`] flips bits and hands over nonsense. The same seed gives the same run, as far as the
//! system under test keeps to one thread. [`liar`] holds the canaries, [`toy`] a store on which the
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
