//! The summary as text.

use super::{Report, Row};
use std::fmt::Write as _;

/// Heads of the columns; the page uses them too.
pub(super) const HEADS: [&str; 15] = [
    "phase", "side", "ops/s", "MB/s", "spread", "ours", "write x", "read x", "space x", "p50",
    "p99", "p99.9", "max", "settle", "more",
];

/// The cells of a row, in the order of [`HEADS`].
pub(super) fn cells(row: &Row) -> [String; 15] {
    let some = |figure: Option<f64>, digits: usize| match figure {
        Some(figure) => format!("{figure:.digits$}"),
        None => "-".to_owned(),
    };
    let latency = |figure: fn(&super::Latency) -> f64| {
        let found = row.latency.as_ref().map(figure);
        found.map_or_else(|| "-".to_owned(), micros)
    };
    let is_timed = row.ops_per_s > 0.0;
    [
        row.phase.clone(),
        row.side.clone(),
        if is_timed {
            count(row.ops_per_s) + if row.is_cut { "*" } else { "" }
        } else {
            "-".to_owned()
        },
        if is_timed {
            format!("{:.1}", row.mb_per_s)
        } else {
            "-".to_owned()
        },
        if row.runs > 1 {
            format!("{:.0}%", row.spread * 100.0)
        } else {
            "-".to_owned()
        },
        row.ours_over
            .map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}x")),
        some(row.write_amplification, 2),
        if is_timed {
            format!("{:.2}", row.read_amplification)
        } else {
            "-".to_owned()
        },
        some(row.space_amplification, 2),
        latency(|l| l.p50_us),
        latency(|l| l.p99_us),
        latency(|l| l.p999_us),
        latency(|l| l.max_us),
        format!("{:.1}s", row.settle_s),
        more(row),
    ]
}

/// What the columns mean.
pub(super) const LEGEND: &str = "ours: our rate over this side's. write x, read x: bytes to and \
    from storage per user byte, background work included. space x: space in use per live byte. \
    settle: background work after the phase. *: cut short.";

/// The workload's own figures.
fn more(row: &Row) -> String {
    let own = row
        .values
        .iter()
        .filter(|(name, _)| *name != "open_s" && *name != "f_bytes");
    let shown: Vec<String> = own
        .map(|(name, value)| format!("{name} {value:.2}"))
        .collect();
    shown.join(", ")
}

fn count(figure: f64) -> String {
    match figure {
        f if f >= 1e6 => format!("{:.2}M", f / 1e6),
        f if f >= 1e4 => format!("{:.1}k", f / 1e3),
        f => format!("{f:.0}"),
    }
}

/// A time in microseconds, in the unit that fits.
pub(super) fn micros(figure: f64) -> String {
    match figure {
        f if f >= 1e6 => format!("{:.2}s", f / 1e6),
        f if f >= 1e4 => format!("{:.0}ms", f / 1e3),
        f if f >= 1e3 => format!("{:.1}ms", f / 1e3),
        f if f >= 10.0 => format!("{f:.0}us"),
        f => format!("{f:.1}us"),
    }
}

/// The summary, one block per workload.
pub(crate) fn table(report: &Report) -> String {
    let rows: Vec<[String; 15]> = report.summary.iter().map(cells).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].len());
        cells.chain([HEADS[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..HEADS.len()).map(width).collect();
    let mut out = String::new();
    let mut last = ("", "");
    for (row, cells) in report.summary.iter().zip(&rows) {
        if row.workload != last.0 {
            let _ = writeln!(out, "\n{}", row.workload);
            line(&mut out, &widths, HEADS.iter().copied());
        }
        let is_same = (row.workload.as_str(), row.phase.as_str()) == last;
        let name = if is_same { "" } else { cells[0].as_str() };
        let rest = cells[1..].iter().map(String::as_str);
        line(&mut out, &widths, [name].into_iter().chain(rest));
        last = (&row.workload, &row.phase);
    }
    let _ = writeln!(out, "\n{LEGEND}");
    for run in report.runs.iter().filter(|run| run.error.is_some()) {
        let why = run.error.as_deref().unwrap_or_default();
        let _ = writeln!(out, "FAILED {} on {}: {why}", run.workload, run.side);
    }
    for skipped in &report.skipped {
        let _ = writeln!(out, "SKIP {}: {}", skipped.what, skipped.why);
    }
    let machine = &report.machine;
    let _ = writeln!(
        out,
        "{:.0} s; {} processors, kernel {}, load {} before and {} after",
        report.seconds, machine.cpus, machine.kernel, machine.load_before, machine.load_after
    );
    out
}

/// Names to the left, figures to the right.
fn line<'a>(out: &mut String, widths: &[usize], cells: impl Iterator<Item = &'a str>) {
    let mut text = String::from("  ");
    for (column, cell) in cells.enumerate() {
        let width = widths[column];
        let _ = if column < 2 || column == widths.len() - 1 {
            write!(text, "{cell:<width$}  ")
        } else {
            write!(text, "{cell:>width$}  ")
        };
    }
    let _ = writeln!(out, "{}", text.trim_end());
}
