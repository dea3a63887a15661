//! The `stitchfs` command.

mod command;

use std::process::ExitCode;

// Memory comes back to the system when caches shrink, whichever thread freed it (ADR 0030).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    command::run(std::env::args_os().collect())
}
