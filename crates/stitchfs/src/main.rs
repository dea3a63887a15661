//! The `stitchfs` command.

mod command;

use std::process::ExitCode;
use stitchfs::allocator::{self, MiMalloc};

// Memory comes back to the system when caches shrink, whichever thread freed it (ADR 0030).
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    allocator::hold_little();
    command::run(std::env::args_os().collect())
}
