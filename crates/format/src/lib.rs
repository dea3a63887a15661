//! Every persisted record: layout, encode, decode, checksum, version; no I/O, no state.
