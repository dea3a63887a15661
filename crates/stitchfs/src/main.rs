//! The `stitchfs` command.
fn main() {}
