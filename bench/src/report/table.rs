//! The summary as text.

use super::{Report, Row, Suite};
use std::fmt::Write as _;

/// A column: its head, and what a row has in it.
pub(super) struct Column {
    pub(super) head: &'static str,
    pub(super) cell: fn(&Row) -> String,
}

const fn column(head: &'static str, cell: fn(&Row) -> String) -> Column {
    Column { head, cell }
}

const KV: [Column; 16] = [
    column("phase", |row| row.phase.clone()),
    column("side", |row| row.side.clone()),
    column("ops/s", rate),
    column("MB/s", |row| some(timed(row, row.mb_per_s), 1)),
    column("spread", spread),
    column("ours", |row| times(row.ours_over)),
    column("write x", |row| some(row.write_amplification, 2)),
    column("read x", |row| some(timed(row, row.read_amplification), 2)),
    column("space x", |row| some(row.space_amplification, 2)),
    column("p50", |row| latency(row, |l| l.p50_us)),
    column("p99", |row| latency(row, |l| l.p99_us)),
    column("p99.9", |row| latency(row, |l| l.p999_us)),
    column("max", |row| latency(row, |l| l.max_us)),
    column("settle", |row| format!("{:.1}s", row.settle_s)),
    column("memory", |row| mib(Some(row.peak_rss_bytes))),
    column("more", more),
];

const FS: [Column; 15] = [
    column("phase", |row| row.phase.clone()),
    column("side", |row| row.side.clone()),
    column("ops/s", rate),
    column("MB/s", |row| {
        some(timed(row, row.mb_per_s).filter(|mb| *mb > 0.0), 1)
    }),
    column("spread", spread),
    column("of ext4", |row| times(row.of_ext4)),
    column("quartiles", quartiles),
    column("of floor", |row| times(row.of_floor)),
    column("of pass", |row| times(row.of_passthrough)),
    column("p50", |row| latency(row, |l| l.p50_us)),
    column("p99", |row| latency(row, |l| l.p99_us)),
    column("p99.9", |row| latency(row, |l| l.p999_us)),
    column("max", |row| latency(row, |l| l.max_us)),
    column("daemon", |row| mib(row.daemon_peak_bytes)),
    column("more", more),
];

/// The columns of a suite; the page uses them too. Names are in the first two and the last.
pub(super) const fn columns(suite: Suite) -> &'static [Column] {
    match suite {
        Suite::Kv => &KV,
        Suite::Fs => &FS,
    }
}

fn some(figure: Option<f64>, digits: usize) -> String {
    figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.digits$}"))
}

fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}x"))
}

fn mib(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{}M", bytes >> 20))
}

fn quartiles(row: &Row) -> String {
    let found = row.of_ext4_quartiles.filter(|_| row.runs > 1);
    found.map_or_else(
        || "-".to_owned(),
        |[low, high]| format!("{low:.2}-{high:.2}"),
    )
}

/// Nothing where nothing was timed.
fn timed(row: &Row, figure: f64) -> Option<f64> {
    (row.ops_per_s > 0.0).then_some(figure)
}

fn rate(row: &Row) -> String {
    let cut = if row.is_cut { "*" } else { "" };
    timed(row, row.ops_per_s).map_or_else(|| "-".to_owned(), |rate| count(rate) + cut)
}

fn spread(row: &Row) -> String {
    if row.runs > 1 {
        format!("{:.0}%", row.spread * 100.0)
    } else {
        "-".to_owned()
    }
}

fn latency(row: &Row, figure: fn(&super::Latency) -> f64) -> String {
    let found = row.latency.as_ref().map(figure);
    found.map_or_else(|| "-".to_owned(), micros)
}

/// What the columns mean.
pub(super) const fn legend(suite: Suite) -> &'static str {
    match suite {
        Suite::Kv => {
            "ours: our rate over this side's. write x, read x: bytes to and from storage per user \
             byte, background work included. space x: space in use per live byte. settle: \
             background work after the phase. memory: most that the side's process had resident \
             in the workload. *: cut short."
        }
        Suite::Fs => {
            "of ext4: this side's rate over that of ext4, the median of the ratios of the \
             repetitions, and their quartiles. of floor: a mount's rate over that of the file \
             system that does nothing, of pass: over that of the one that hands on to ext4, by the \
             same transport. daemon: most memory that the mount's daemon had resident in the \
             workload. MB read, written: by the disk. *: cut short."
        }
    }
}

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
        f if f < 10.0 => format!("{f:.2}"),
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
    let columns = columns(report.suite);
    let cells = |row: &Row| -> Vec<String> { columns.iter().map(|c| (c.cell)(row)).collect() };
    let rows: Vec<Vec<String>> = report.summary.iter().map(cells).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].len());
        cells.chain([columns[column].head.len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut out = String::new();
    let mut last = ("", "");
    for (row, cells) in report.summary.iter().zip(&rows) {
        if row.workload != last.0 {
            let _ = writeln!(out, "\n{}", row.workload);
            line(&mut out, &widths, columns.iter().map(|c| c.head));
        }
        let is_same = (row.workload.as_str(), row.phase.as_str()) == last;
        let name = if is_same { "" } else { cells[0].as_str() };
        let rest = cells[1..].iter().map(String::as_str);
        line(&mut out, &widths, [name].into_iter().chain(rest));
        last = (&row.workload, &row.phase);
    }
    let _ = writeln!(out, "\n{}", legend(report.suite));
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
