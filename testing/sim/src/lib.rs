//! Tests of the whole: sim.
