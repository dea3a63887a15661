//! The allocator of a program that should hold little more than its budget: mimalloc, told to give
//! memory back soon (ADR 0030, ADR 0088). A program chooses it for itself:
//!
//! ```no_run
//! #[global_allocator]
//! static ALLOCATOR: stitchfs::allocator::MiMalloc = stitchfs::allocator::MiMalloc;
//!
//! fn main() {
//!     stitchfs::allocator::hold_little();
//! }
//! ```

use libmimalloc_sys::{mi_option_get, mi_option_set};
pub use mimalloc::MiMalloc;
use std::ffi::{c_int, c_long};

/// mimalloc's number for the time after which it gives free memory back, in milliseconds.
const PURGE_DELAY: c_int = 15;
/// A compaction frees megabytes at a time: the next one has them again soon, or not at all.
const PURGE_DELAY_MS: c_long = 100;

/// Has memory that is free given back to the system after a tenth of a second, not after a second.
/// For the whole process. To be called first of all, by programs that allocate with [`MiMalloc`].
pub fn hold_little() {
    set(PURGE_DELAY, PURGE_DELAY_MS);
}

#[expect(unsafe_code, reason = "mimalloc's options have no wrapper")]
fn set(option: c_int, value: c_long) {
    // SAFETY: takes any number, and may be called at any time by any thread.
    unsafe { mi_option_set(option, value) };
    debug_assert_eq!(get(option), value, "an option is what it was set to");
}

#[expect(unsafe_code, reason = "mimalloc's options have no wrapper")]
fn get(option: c_int) -> c_long {
    // SAFETY: as above.
    unsafe { mi_option_get(option) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_that_is_set_is_the_one_that_is_meant() {
        assert_eq!(get(PURGE_DELAY), 1000, "what mimalloc 3 begins with");
        hold_little();
        assert_eq!(get(PURGE_DELAY), PURGE_DELAY_MS);
    }
}
