//! Block storage: raw devices, preallocated files, memory, and fault injection.
