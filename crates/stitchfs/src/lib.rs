//! The stitchfs library and command.
