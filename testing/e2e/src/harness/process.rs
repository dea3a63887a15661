//! Runs other programs, so that what they say is seen when they fail, and nothing outlives us.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use super::guardian;

/// Runs a program to its end and gives what it printed, whatever its exit code.
pub(crate) fn output(command: &mut Command) -> Result<Output> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {command:?}"))?;
    guardian::watch_process(child.id())?;
    Ok(child.wait_with_output()?)
}

/// Runs a program that must succeed and gives its standard output.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output = output(command)?;
    ensure!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        tail(&output.stdout),
        tail(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A program and its arguments.
pub(crate) fn command(program: impl AsRef<Path>, args: &[&str]) -> Command {
    let mut command = Command::new(program.as_ref());
    command.args(args);
    command
}

/// Runs a script of the shell in `dir`; it must succeed.
pub(crate) fn shell(dir: &Path, script: &str) -> Result<String> {
    let mut command = Command::new("bash");
    run(command
        .current_dir(dir)
        .args(["-euo", "pipefail", "-c", script]))
}

/// The last lines of what a program printed.
pub(crate) fn tail(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(40);
    lines[from..]
        .iter()
        .map(|line| format!("    {line}\n"))
        .collect()
}

/// Most memory that a process ever had resident, in bytes.
pub(crate) fn peak_resident_bytes(id: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let Some(kib) = line.and_then(|line| line.trim().strip_suffix(" kB")) else {
        bail!("no VmHWM in /proc/{id}/status");
    };
    Ok(kib.trim().parse::<u64>()? * 1024)
}

/// Returns a path as an argument.
pub(crate) fn text(path: &Path) -> String {
    path.display().to_string()
}
