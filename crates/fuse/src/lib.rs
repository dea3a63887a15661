//! FUSE wire protocol, transports and the adapter to the file system.
