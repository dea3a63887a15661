//! The VT-tree engine: an LSM-tree that stitches.
