//! The report as one page that needs nothing else.

use super::plot::escape;
use super::table::{columns, legend};
use super::{Report, Row, Suite, bars, figures};
use crate::fs;
use crate::side::NAMES;
use std::fmt::Write as _;

/// One colour for each side of a suite, in the order of its names: no two sides look alike.
pub(super) const COLOURS: [&str; 25] = [
    "#d9480f", "#1c7ed6", "#2b8a3e", "#862e9c", "#868e96", "#f08c00", "#0b7285", "#5c940d",
    "#e64980", "#846358", "#5f3dc4", "#087f5b", "#a61e4d", "#364fc7", "#15aabf", "#be4bdb",
    "#c92a2a", "#66a80f", "#ff8787", "#74c0fc", "#8ce99a", "#b197fc", "#ffd43b", "#63e6be",
    "#f783ac",
];
const _: () = assert!(NAMES.len() <= COLOURS.len() && fs::side::NAMES.len() <= COLOURS.len());
/// For a side without a name here, as in a report of an older version.
const OTHER_COLOUR: &str = "#212529";

const STYLE: &str = "
:root { color-scheme: light dark; --line: #8884; }
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
.wide { overflow-x: auto; }
th, td { padding: .15rem .6rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2), td:last-child {
  text-align: left;
}
tr.first td { border-top: 1px solid var(--line); }
tr.ours td { font-weight: 600; }
.plots { display: flex; flex-wrap: wrap; gap: 1rem; margin-top: 1rem; }
.plots svg { width: 36rem; max-width: 100%; }
svg text { fill: currentColor; } svg .a { font-size: 10.5px; } svg .t { font-size: 12.5px; \
 font-weight: 600; }
svg .g { stroke: var(--line); stroke-width: 1; }
svg .m { stroke: currentColor; stroke-width: 1; stroke-dasharray: 8 4; opacity: .6; }
.bars { display: grid; grid-template-columns: max-content max-content 1fr; gap: 1px .8rem; \
 font-size: 12px; max-width: 44rem; margin-bottom: 1rem; }
.bars i { display: block; height: .7rem; margin-top: .25rem; }
.key span { display: inline-block; margin-right: 1.2rem; }
.key i { display: inline-block; width: 1rem; height: .25rem; margin-right: .35rem; \
 vertical-align: middle; }
";

/// The page.
pub(crate) fn html(report: &Report) -> String {
    let mut out = String::from("<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">");
    let _ = write!(
        out,
        "<meta name=\"viewport\" content=\"width=device-width\"><title>stitch-bench {}</title>\
         <style>{STYLE}</style><h1>{}, side by side</h1>",
        report.suite.name(),
        match report.suite {
            Suite::Kv => "Key-value stores",
            Suite::Fs => "File systems",
        }
    );
    head(&mut out, report);
    let mut workloads: Vec<&str> = Vec::new();
    for row in &report.summary {
        if !workloads.contains(&row.workload.as_str()) {
            workloads.push(&row.workload);
        }
    }
    for workload in workloads {
        let _ = write!(out, "<h2 id=\"{0}\">{0}</h2>", escape(workload));
        let rows = report.summary.iter().filter(|row| row.workload == workload);
        let rows: Vec<&Row> = rows.collect();
        if report.suite == Suite::Fs {
            bars::bars(&mut out, &rows);
        }
        rows_table(&mut out, report.suite, &rows);
        out.push_str("<div class=\"plots\">");
        figures::figures(&mut out, report, workload);
        out.push_str("</div>");
    }
    out.push_str("</html>\n");
    out
}

fn head(out: &mut String, report: &Report) {
    let (machine, scale) = (&report.machine, &report.scale);
    let mib = |bytes: u64| bytes >> 20;
    let counted = if scale.is_on_disks {
        "by a disk of its own"
    } else {
        "for its process"
    };
    let memory = if scale.cgroup {
        "by control group"
    } else {
        "by each side's own options"
    };
    let _ = write!(
        out,
        "<p>{} processors{}, {} MiB of memory, kernel {}, file system {}; load {} before and {} \
         after. Traffic counted {counted}. Memory per side {} MiB ({memory}), data {} MiB, of \
         small rows {} MiB, {} put(s) a batch, {} repetition(s), {:.0} s in all.</p><p>{}</p>",
        machine.cpus,
        escape(&parenthesised(&machine.processor)),
        mib(machine.memory_bytes),
        escape(&machine.kernel),
        escape(&machine.file_system),
        escape(&machine.load_before),
        escape(&machine.load_after),
        mib(scale.memory_bytes),
        mib(scale.bytes),
        mib(scale.small_bytes),
        scale.batch,
        scale.repeat,
        report.seconds,
        legend(report.suite),
    );
    if !report.arguments.is_empty() {
        let _ = write!(
            out,
            "<p><code>stitch-bench {}</code></p>",
            escape(&report.arguments.join(" "))
        );
    }
    out.push_str("<p class=\"key\">");
    let names = NAMES.iter().chain(&fs::side::NAMES);
    for name in names.filter(|name| report.runs.iter().any(|run| run.side == **name)) {
        let colour = colour(name);
        let _ = write!(
            out,
            "<span><i style=\"background:{colour}\"></i>{name}</span>"
        );
    }
    out.push_str("</p>");
    let failed = report.runs.iter().filter_map(|run| {
        let error = run.error.as_ref()?;
        Some(format!("FAILED {} on {}: {error}", run.workload, run.side))
    });
    let skipped = report
        .skipped
        .iter()
        .map(|s| format!("SKIP {}: {}", s.what, s.why));
    for line in failed.chain(skipped) {
        let _ = write!(out, "<p>{}</p>", escape(&line));
    }
}

/// After a space and in brackets, if it is known.
fn parenthesised(name: &str) -> String {
    if name.is_empty() {
        return String::new();
    }
    format!(" ({name})")
}

fn rows_table(out: &mut String, suite: Suite, rows: &[&Row]) {
    out.push_str("<div class=\"wide\"><table><tr>");
    for column in columns(suite) {
        let _ = write!(out, "<th>{}</th>", column.head);
    }
    out.push_str("</tr>");
    let mut last = "";
    for row in rows {
        let is_first = row.phase != last;
        let first = if is_first { "first" } else { "" };
        let is_ours = row.side == NAMES[0] || row.side.starts_with("stitchfs-");
        let ours = if is_ours { "ours" } else { "" };
        let _ = write!(out, "<tr class=\"{first} {ours}\">");
        for (index, column) in columns(suite).iter().enumerate() {
            let cell = (column.cell)(row);
            let shown = if index == 0 && !is_first { "" } else { &cell };
            let _ = write!(out, "<td>{}</td>", escape(shown));
        }
        out.push_str("</tr>");
        last = &row.phase;
    }
    out.push_str("</table></div>");
}

pub(super) fn colour(side: &str) -> &'static str {
    let place = |names: &[&str]| names.iter().position(|name| *name == side);
    let index = place(&NAMES).or_else(|| place(&fs::side::NAMES));
    index.map_or(OTHER_COLOUR, |index| COLOURS[index])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_side_of_a_suite_has_a_colour_of_its_own() {
        for names in [&NAMES[..], &fs::side::NAMES] {
            let mut colours: HashSet<_> = names.iter().map(|name| colour(name)).collect();
            assert_eq!(colours.len(), names.len());
            assert!(colours.insert(colour("unknown")));
        }
    }
}
