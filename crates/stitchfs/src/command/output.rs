//! What goes to the terminal: results to standard output, everything else to standard error.

use super::quoted::harmless;
use super::{advice, busy};
use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead as _, IsTerminal, Write};
use std::os::fd::AsFd as _;

/// The text in front of the number of an error of the operating system.
const OS_NUMBER: &str = " (os error ";

/// Prints a result. A reader that has gone away is no failure of ours.
pub(super) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    let written = out
        .write_all(text.as_bytes())
        .and_then(|()| out.write_all(b"\n"))
        .and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write the result"),
    }
}

/// Returns standard output without a buffer. That of the standard library writes up to the last end
/// of a line, and the rest later: a stream of bytes would be cut into odd pieces.
pub(super) fn unbuffered() -> Result<File> {
    let out = io::stdout().as_fd().try_clone_to_owned();
    Ok(File::from(out.context("standard output")?))
}

/// Prints bytes as they are. A reader that has gone away is no failure of ours.
pub(super) fn print_bytes(bytes: &[u8]) -> Result<()> {
    let mut out = unbuffered()?;
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write the result"),
    }
}

/// Prints a result for programs.
pub(super) fn print_json(value: &Value) -> Result<()> {
    print(&serde_json::to_string_pretty(value).context("cannot write JSON")?)
}

/// Returns whether there is a terminal to ask.
pub(super) fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks the terminal a question. Returns whether the answer is yes.
pub(super) fn ask(question: &str) -> Result<bool> {
    debug_assert!(can_ask(), "a terminal is asked");
    let mut terminal = io::stderr().lock();
    write!(terminal, "{question} [y/N] ")
        .and_then(|()| terminal.flush())
        .context("cannot ask")?;
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.context("cannot read the answer")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Tells the user something that is no result. Names in it move no cursor of the terminal, and no
/// number of the operating system stands behind the text that it has for an error.
pub(super) fn note(text: &str) {
    let text = harmless(&without_os_numbers(text));
    // If standard error is closed, the note is dropped.
    let _ = writeln!(io::stderr().lock(), "stitchfs: {text}");
}

/// Returns a text without the ` (os error N)` that the standard library puts behind an error.
fn without_os_numbers(text: &str) -> String {
    let mut parts = text.split(OS_NUMBER);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(')').unwrap_or(0);
        let (number, rest) = part.split_at(end);
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        match is_number {
            true => out.push_str(&rest[1..]),
            false => out.extend([OS_NUMBER, part]),
        }
    }
    out
}

/// A value on the command line that makes no sense, which has the exit code of a wrong one.
#[derive(Debug)]
struct BadArgument(String);

impl std::fmt::Display for BadArgument {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadArgument {}

/// Returns the error for a value on the command line that only the command itself can judge.
pub(super) fn bad_argument(text: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(BadArgument(text.into()))
}

/// Reports whether an error is about a value on the command line.
pub(super) fn is_bad_argument(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<BadArgument>())
}

/// An error with its causes on one line, each said once, and what the user can do about it.
pub(super) fn explain(error: &anyhow::Error) -> String {
    if let Some(text) = busy::explain(error) {
        return text;
    }
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            // Writing to a string cannot fail.
            let _ = write!(text, ": {cause}");
        }
    }
    if let Some(advice) = advice::of(error) {
        let _ = write!(text, "; {advice}");
    }
    text
}

/// A progress bar in bytes: on a terminal only, and only if it takes a while.
pub(super) fn progress(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(0).with_message(what);
    if !io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    let template =
        "{msg} {wide_bar} {percent:>3}%  {binary_bytes} of {binary_total_bytes}  {eta} left";
    let style = ProgressStyle::with_template(template);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// The look of a bar in steps instead of bytes.
pub(super) fn steps_style() -> ProgressStyle {
    let template = "{msg} {wide_bar} {percent:>3}%  {human_pos} of {human_len}  {eta} left";
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Shows a count that grows to an unknown end, on a terminal only.
pub(super) fn spinner(what: &'static str) -> ProgressBar {
    let bar = progress(what);
    let style = ProgressStyle::with_template("{spinner} {msg} {human_pos}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
}

/// Moves a count.
pub(super) fn advance_count(bar: &ProgressBar, count: u64) {
    bar.set_position(count);
    bar.tick();
}

/// Moves a bar.
pub(super) fn advance(bar: &ProgressBar, done: u64, total: u64) {
    bar.set_length(total.max(1));
    bar.set_position(done);
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn errors_have_no_numbers() {
        let missing = io::Error::from_raw_os_error(2);
        let text = format!("a: {missing}; b: {missing}, see c");
        let expected = "a: No such file or directory; b: No such file or directory, see c";
        assert_eq!(without_os_numbers(&text), expected);
        for kept in [
            "a (os error x)",
            "a (os error ",
            "a (os error )",
            "a (2)",
            "",
        ] {
            assert_eq!(without_os_numbers(kept), kept);
        }
    }

    #[test]
    fn causes_are_said_once() {
        let inner = io::Error::other("no such thing");
        let error = anyhow::Error::new(inner)
            .context("reading failed: no such thing")
            .context("a.stitch");
        assert_eq!(explain(&error), "a.stitch: reading failed: no such thing");
        assert_eq!(explain(&anyhow!("alone")), "alone");
    }
}
