//! Rates of sides as bars, one group for each phase.

use super::Row;
use super::html::colour;
use super::plot::escape;
use std::fmt::Write as _;

/// Bars for these rows, which are of one workload. The longest of a phase has the full width.
pub(super) fn bars(out: &mut String, rows: &[&Row]) {
    out.push_str("<div class=\"bars\">");
    let mut last = "";
    for row in rows {
        let same = rows.iter().filter(|other| other.phase == row.phase);
        let most = same.map(|other| other.ops_per_s).fold(0.0, f64::max);
        let share = if most > 0.0 {
            100.0 * row.ops_per_s / most
        } else {
            0.0
        };
        let phase = if row.phase == last { "" } else { &row.phase };
        let _ = write!(
            out,
            "<span>{}</span><span>{}</span><i style=\"width:{share:.1}%;background:{}\"></i>",
            escape(phase),
            escape(&row.side),
            colour(&row.side)
        );
        last = &row.phase;
    }
    out.push_str("</div>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Phase, Run, Suite, summarise};

    fn run(side: &str, ops: u64) -> Run {
        let phase = Phase {
            name: "create".to_owned(),
            ops,
            seconds: 1.0,
            ..Phase::default()
        };
        Run {
            phases: vec![phase],
            ..Run::new("w", side, 0)
        }
    }

    #[test]
    fn the_longest_bar_has_the_full_width() {
        let rows = summarise(Suite::Fs, &[run("ext4", 50), run("xfs", 200)]);
        let mut out = String::new();
        bars(&mut out, &rows.iter().collect::<Vec<_>>());
        assert!(out.contains("width:25.0%"), "{out}");
        assert!(out.contains("width:100.0%"), "{out}");
    }
}
