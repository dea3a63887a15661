//! Checks and chores of the workspace: `cargo xtask help` lists them.

mod again;
mod check;
mod ci;
mod deny;
mod lanes;
mod semver;
mod sim;
mod source;
mod steps;
mod tidy;
mod tools;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};

const HELP: &str = "\
usage: cargo xtask <command>

  check           what to run before every commit: fmt, clippy, tests, docs, tidy
  tidy            the house rules that no compiler checks; --all lists also what the ratchet
                  allows, --bless moves the ratchet to better numbers of today
  ci              everything: check, simulation, mounted tests; installs what it needs. Mounted
                  suites run side by side, in two lanes, where one does not disturb another
  e2e [ARGS]      mounted tests alone: `cargo xtask e2e list`, `cargo xtask e2e run users`
  sim [ARGS]      crash simulation: --seed N replays one, --seeds N runs many
  deny            licences, bans and sources of dependencies, by deny.toml; installs cargo-deny
  semver REV      what the libraries' public items have lost or changed since a git revision;
                  installs cargo-semver-checks
  install-tools   the programs that the mounted tests need
  hooks           installs a git hook that runs fmt and tidy before each commit
";

/// Returns the root of the workspace.
fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest
        .parent()
        .expect("xtask lies in the root")
        .to_path_buf()
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the command. Returns whether everything passed.
fn run() -> Result<bool> {
    let mut args = std::env::args().skip(1);
    let command = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    let rest_str: Vec<&str> = rest.iter().map(String::as_str).collect();
    let root = root();
    match (command.as_str(), rest_str.as_slice()) {
        ("check", []) => check::run(&root),
        ("tidy", []) => tidy::run(&root, tidy::Mode::Check),
        ("tidy", ["--all"]) => tidy::run(&root, tidy::Mode::All),
        ("tidy", ["--bless"]) => tidy::run(&root, tidy::Mode::Bless),
        ("ci", []) => ci::run(&root),
        ("e2e", args) => ci::run_e2e(&root, args),
        ("sim", args) => sim::run(&root, args),
        ("deny", []) => deny::run(&root),
        ("semver", [baseline]) => semver::run(&root, baseline),
        ("semver", _) => bail!("name the revision to compare with: cargo xtask semver v0.1.0"),
        ("install-tools", []) => tools::install(&root).map(|()| true),
        ("hooks", []) => check::install_hook(&root).map(|()| true),
        ("help" | "--help" | "-h", _) => {
            print!("{HELP}");
            Ok(true)
        }
        _ => bail!("unknown command\n\n{HELP}"),
    }
}
