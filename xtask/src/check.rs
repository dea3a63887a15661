//! `check`: what to run before every commit.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::again;
use crate::steps::{Counts, Outcome, Steps, counting, libtest_counts};
use crate::tidy;
use crate::tools::has_rocksdb;

/// Runs all checks. Returns whether they passed.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let mut steps = Steps::new();
    add_lints(&mut steps, root);
    add_tests(&mut steps, root);
    add_interleavings(&mut steps, root);
    add_docs(&mut steps, root);
    Ok(steps.finish())
}

/// Returns a command that runs `cargo` in the root of the workspace.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

/// The features of the RocksDB engine. Their tests load RocksDB's library; a build does not need it
/// (ADR 0205).
const ROCKSDB_FEATURES: &str = "stitch-rocks/rocksdb,stitch-fs/rocksdb,stitchfs/rocksdb";

/// Adds tidy, formatting and clippy.
pub(crate) fn add_lints(steps: &mut Steps, root: &Path) {
    steps.run("tidy", || {
        Ok(Outcome::Ran(Counts::one(tidy::run(
            root,
            tidy::Mode::Check,
        )?)))
    });
    steps.command("fmt", cargo(root).args(["fmt", "--all", "--check"]));
    add_clippy(steps, root);
}

/// Adds clippy for everything, with RocksDB's features, and then for the library `stitchfs` without
/// them.
fn add_clippy(steps: &mut Steps, root: &Path) {
    let without = ["--workspace", "--test", "rocksdb"];
    let all = [
        "--workspace",
        "--all-targets",
        "--features",
        ROCKSDB_FEATURES,
    ];
    steps.command("clippy", &mut clippy(root, &all));
    steps.command("clippy without RocksDB", &mut clippy(root, &without));
}

/// Returns clippy with these arguments for cargo.
fn clippy(root: &Path, arguments: &[&str]) -> Command {
    let mut command = cargo(root);
    command.args(["clippy", "--quiet"]).args(arguments);
    command.args(["--", "-D", "warnings"]);
    command
}

/// Seed of the property tests in `check` and `ci`: their inputs must not differ from run to run. A
/// plain `cargo test` draws new ones.
const PROPERTY_SEED: &str = "20261126";

/// Returns `cargo test` with the fixed seed of property tests.
fn cargo_test(root: &Path) -> Command {
    let mut command = cargo(root);
    command.arg("test").env("PROPTEST_RNG_SEED", PROPERTY_SEED);
    command
}

/// Adds the unit and integration tests of the workspace. Where RocksDB's library is installed,
/// they include those of the engine, of the file system on it and of stores that use it (ADRs
/// 0153, 0162), and the tests of a program without the engine are a step of their own.
pub(crate) fn add_tests(steps: &mut Steps, root: &Path) {
    let all = ["--quiet", "--workspace", "--no-fail-fast"];
    if !has_rocksdb() {
        steps.run("tests", || again::run(|| cargo_test(root), &all));
        steps.run("tests with RocksDB", || Ok(without_rocksdb()));
        return;
    }
    let arguments = [&all[..], &["--features", ROCKSDB_FEATURES]].concat();
    steps.run("tests", || again::run(|| cargo_test(root), &arguments));
    // The whole workspace is named: its dependencies are built with the same features as above.
    let mut without = cargo_test(root);
    without.args(["--quiet", "--workspace", "--test", "rocksdb"]);
    steps.run("tests without RocksDB", || {
        counting(&mut without, libtest_counts)
    });
}

/// Adds the tests of thread interleavings (ADR 0072).
pub(crate) fn add_interleavings(steps: &mut Steps, root: &Path) {
    let features = ["--features", "stitch-vt/shuttle,stitch-fs/shuttle"];
    let mut command = cargo_test(root);
    command.args(["--quiet", "-p", "stitch-vt", "-p", "stitch-fs"]);
    command.args(features).args(["--lib", "interleavings"]);
    steps.run("interleavings", || counting(&mut command, libtest_counts));
}

/// Returns the outcome of a step that needs RocksDB's library where it is missing.
fn without_rocksdb() -> Outcome {
    Outcome::Skipped("librocksdb7.8 or librocksdb-dev is not installed".to_owned())
}

/// Adds a build of the documentation, without warnings.
pub(crate) fn add_docs(steps: &mut Steps, root: &Path) {
    let mut command = cargo(root);
    command.args([
        "doc",
        "--quiet",
        "--workspace",
        "--no-deps",
        "--document-private-items",
    ]);
    steps.command("docs", command.env("RUSTDOCFLAGS", "-D warnings"));
}

/// Installs a hook that runs fmt and tidy before each commit.
pub(crate) fn install_hook(root: &Path) -> Result<()> {
    let output = Command::new("git")
        .current_dir(root)
        .args(["rev-parse", "--git-path", "hooks/pre-commit"])
        .output()?;
    anyhow::ensure!(output.status.success(), "not a git repository");
    let hook = root.join(String::from_utf8(output.stdout)?.trim_end());
    fs::create_dir_all(hook.parent().expect("a file lies in a folder"))?;
    fs::write(
        &hook,
        "#!/bin/sh\nset -e\ncargo fmt --all --check\ncargo xtask tidy\n",
    )?;
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755))?;
    println!("installed {}", hook.display());
    Ok(())
}
