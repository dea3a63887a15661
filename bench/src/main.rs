//! `stitch-bench`: measures our stores beside others.
//!
//! Every step of a workload runs in a process of its own ([`child`]); the parent ([`drive`])
//! alternates sides, repeats, and makes one report of everything. See `docs/bench.md`.

mod args;
mod cgroup;
mod child;
mod context;
mod disk;
mod drive;
mod fs;
mod kv;
mod measure;
mod names;
mod place;
mod process;
mod report;
mod runs;
mod shares;
mod side;
mod values;

use anyhow::{Context as _, Result, ensure};
use args::{Cli, Command};
use clap::Parser as _;
use std::path::Path;
use std::process::ExitCode;

// As the `stitchfs` command has it (ADR 0030): our mounts are served by this program.
#[global_allocator]
static ALLOCATOR: stitchfs::allocator::MiMalloc = stitchfs::allocator::MiMalloc;

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Kv(args) => drive::run(&args),
        Command::Fs(args) => fs::drive::run(&args),
        Command::List => {
            list();
            Ok(true)
        }
        Command::Report { file } => render(&file).map(|()| true),
        Command::Child => child::run().map(|()| true),
        Command::Serve => fs::serve::run().map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("stitch-bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn list() {
    println!("workloads of kv:");
    for workload in kv::all() {
        let ours = match (workload.is_ours_only, workload.is_of_servers) {
            (true, _) => " (ours only)",
            (_, true) => " (servers only)",
            _ => "",
        };
        println!("  {:<16} {}{ours}", workload.name, workload.about);
    }
    println!("sides of kv:");
    for name in side::NAMES {
        let why = side::why_not(name).unwrap_or_else(|| "built in".to_owned());
        println!("  {name:<16} {why}");
    }
    println!("workloads of fs:");
    for workload in fs::all() {
        let asked = match workload.is_default {
            true => "",
            false => " (when asked for)",
        };
        println!("  {:<16} {}{asked}", workload.name, workload.about);
    }
    println!("sides of fs:");
    for name in fs::side::NAMES {
        println!("  {name:<16} {}", fs::side::about(name));
    }
}

/// Makes table and page from a stored result.
fn render(file: &Path) -> Result<()> {
    let name = || file.display().to_string();
    let text = std::fs::read_to_string(file).with_context(name)?;
    let report: report::Report = serde_json::from_str(&text).with_context(name)?;
    let format = report.format;
    ensure!(format == report::FORMAT, "{} has format {format}", name());
    let html = file.with_extension("html");
    std::fs::write(&html, report::html(&report)).with_context(|| html.display().to_string())?;
    print!("{}", report::table(&report));
    println!("{}", html.display());
    Ok(())
}
