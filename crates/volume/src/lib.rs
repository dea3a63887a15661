//! One formatted device: superblock, version log, backup log, zones, space.
