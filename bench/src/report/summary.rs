//! Medians over the repetitions, and ratios between sides.

use super::{Latency, Phase, Row, Run, Suite};
use crate::fs;
use crate::side::{OURS, OURS_RESP};
use std::collections::BTreeMap;

/// Every phase of every workload on every side, in the order in which they were first run; sides
/// of one phase together.
pub(crate) fn summarise(suite: Suite, runs: &[Run]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut keys: Vec<(&str, &str)> = Vec::new();
    for run in runs {
        for phase in &run.phases {
            let key = (run.workload.as_str(), phase.name.as_str());
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
    }
    let mut sides: Vec<&str> = Vec::new();
    for run in runs {
        if !sides.contains(&run.side.as_str()) {
            sides.push(&run.side);
        }
    }
    for (workload, phase) in keys {
        let first = rows.len();
        rows.extend(
            sides
                .iter()
                .filter_map(|side| row(runs, workload, phase, side)),
        );
        match suite {
            Suite::Kv => compare(&mut rows[first..]),
            Suite::Fs => compare_mounts(runs, &mut rows[first..]),
        }
    }
    rows
}

/// Whether a row is of the side that others are compared with.
fn is_ours(row: &Row) -> bool {
    [OURS, OURS_RESP].contains(&row.side.as_str())
}

fn compare(rows: &mut [Row]) {
    let ours = rows
        .iter()
        .find(|row| is_ours(row))
        .map(|row| row.ops_per_s);
    for row in rows.iter_mut().filter(|row| !is_ours(row)) {
        let ours = ours.filter(|ours| *ours > 0.0 && row.ops_per_s > 0.0);
        row.ours_over = ours.map(|ours| ours / row.ops_per_s);
    }
}

/// What each side is of ext4, and each mount of its floor and of a passthrough on ext4.
fn compare_mounts(runs: &[Run], rows: &mut [Row]) {
    for row in rows {
        let over = |other: &str| ratios(runs, row, other);
        let of_ext4 = over("ext4").filter(|_| row.side != "ext4");
        let of_floor = fs::side::floor_of(&row.side).and_then(over);
        let of_passthrough = fs::side::passthrough_of(&row.side).and_then(over);
        let middle = |ratios: Vec<f64>| median(ratios.into_iter());
        row.of_ext4_quartiles = of_ext4.as_deref().map(quartiles);
        row.of_ext4 = of_ext4.map(middle);
        row.of_floor = of_floor.map(middle);
        row.of_passthrough = of_passthrough.map(middle);
    }
}

/// A side's rate over another's, in each repetition that both have: what the machine does otherwise
/// changes slowly, and hits both. `None` without any.
fn ratios(runs: &[Run], row: &Row, other: &str) -> Option<Vec<f64>> {
    let rate = |side: &str, repeat: u32| {
        let mut of_side = runs.iter().filter(|run| {
            (run.workload.as_str(), run.side.as_str(), run.repeat) == (&row.workload, side, repeat)
        });
        let phases = &of_side.next()?.phases;
        let phase = phases.iter().find(|phase| phase.name == row.phase)?;
        Some(per_second(phase, phase.ops)).filter(|rate| *rate > 0.0)
    };
    let repeats = runs.iter().map(|run| run.repeat).max()?;
    let ratio = |repeat| Some(rate(&row.side, repeat)? / rate(other, repeat)?);
    let found: Vec<f64> = (0..=repeats).filter_map(ratio).collect();
    (!found.is_empty()).then_some(found)
}

/// What a quarter of the figures is at most, and what a quarter is at least.
fn quartiles(figures: &[f64]) -> [f64; 2] {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let quarter = sorted.len() / 4;
    [sorted[quarter], sorted[sorted.len() - 1 - quarter]]
}

fn row(runs: &[Run], workload: &str, phase: &str, side: &str) -> Option<Row> {
    let of_side = runs
        .iter()
        .filter(|run| run.workload == workload && run.side == side);
    let found: Vec<(&Run, &Phase)> = of_side
        .filter_map(|run| Some((run, run.phases.iter().find(|p| p.name == phase)?)))
        .collect();
    let of = |figure: &dyn Fn(&Phase) -> f64| median(found.iter().map(|(_, p)| figure(p)));
    let has_written = found.first()?.1.space_bytes.is_some();
    let rates: Vec<f64> = found.iter().map(|(_, p)| per_second(p, p.ops)).collect();
    let ops_per_s = median(rates.iter().copied());
    let widest = rates.iter().copied().fold(0.0, f64::max)
        - rates.iter().copied().fold(f64::INFINITY, f64::min);
    let has_user_bytes = found.iter().all(|(_, p)| p.user_bytes > 0);
    let is_live = found.iter().all(|(_, p)| p.live_bytes > 0);
    Some(Row {
        workload: workload.to_owned(),
        phase: phase.to_owned(),
        side: side.to_owned(),
        runs: found.len() as u64,
        ops_per_s,
        spread: if ops_per_s > 0.0 {
            widest / ops_per_s
        } else {
            0.0
        },
        mb_per_s: of(&|p| per_second(p, p.user_bytes) / 1e6),
        ours_over: None,
        of_ext4: None,
        of_ext4_quartiles: None,
        of_floor: None,
        of_passthrough: None,
        write_amplification: (has_written && has_user_bytes)
            .then(|| of(&|p| ratio(p.device_write_bytes, p.user_bytes))),
        read_amplification: of(&|p| ratio(p.device_read_bytes, p.user_bytes)),
        space_amplification: (has_written && is_live)
            .then(|| of(&|p| ratio(p.space_bytes.unwrap_or(0), p.live_bytes))),
        latency: latency(&found),
        settle_s: of(&|p| p.settle_s),
        values: values(&found),
        peak_rss_bytes: found.iter().map(|(run, _)| run.peak_rss_bytes).max()?,
        daemon_peak_bytes: found
            .iter()
            .filter_map(|(run, _)| run.daemon_peak_bytes)
            .max(),
        is_cut: found.iter().any(|(_, p)| p.is_cut),
    })
}

/// Medians of the workload's own figures.
fn values(found: &[(&Run, &Phase)]) -> BTreeMap<String, f64> {
    let names = found.iter().flat_map(|(_, p)| p.values.keys());
    let mid = |name: &String| {
        median(
            found
                .iter()
                .filter_map(|(_, p)| p.values.get(name).copied()),
        )
    };
    names.map(|name| (name.clone(), mid(name))).collect()
}

/// Medians of the latencies of the operation that was done most.
fn latency(found: &[(&Run, &Phase)]) -> Option<Latency> {
    let most = found
        .first()?
        .1
        .latencies
        .iter()
        .max_by_key(|(_, l)| l.count)?;
    let of: Vec<&Latency> = found
        .iter()
        .filter_map(|(_, p)| p.latencies.get(most.0))
        .collect();
    let mid = |figure: fn(&Latency) -> f64| median(of.iter().map(|l| figure(l)));
    Some(Latency {
        count: most.1.count,
        mean_us: mid(|l| l.mean_us),
        p50_us: mid(|l| l.p50_us),
        p99_us: mid(|l| l.p99_us),
        p999_us: mid(|l| l.p999_us),
        max_us: mid(|l| l.max_us),
    })
}

#[expect(clippy::cast_precision_loss, reason = "rates for people")]
fn per_second(phase: &Phase, count: u64) -> f64 {
    if phase.seconds > 0.0 {
        count as f64 / phase.seconds
    } else {
        0.0
    }
}

#[expect(clippy::cast_precision_loss, reason = "ratios for people")]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    part as f64 / whole as f64
}

/// The middle one, or the mean of the middle two; 0 of nothing.
fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = figures.collect();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        len if len % 2 == 1 => sorted[half],
        _ => f64::midpoint(sorted[half - 1], sorted[half]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(side: &str, repeat: u32, ops: u64) -> Run {
        Run {
            workload: "w".to_owned(),
            side: side.to_owned(),
            repeat,
            phases: vec![Phase {
                name: "load".to_owned(),
                ops,
                user_bytes: 1000,
                seconds: 1.0,
                device_write_bytes: 2000,
                space_bytes: Some(1500),
                live_bytes: 1000,
                ..Phase::default()
            }],
            peak_rss_bytes: 7,
            daemon_peak_bytes: Some(ops << 20),
            error: None,
        }
    }

    #[test]
    fn rows_are_medians_and_ratios_are_of_ours() {
        let runs = [
            run("stitch", 0, 100),
            run("lmdb", 0, 50),
            run("stitch", 1, 300),
            run("stitch", 2, 200),
        ];
        let rows = summarise(Suite::Kv, &runs);
        assert_eq!(rows.len(), 2);
        assert!((rows[0].ops_per_s - 200.0).abs() < 1e-9);
        assert!((rows[0].spread - 1.0).abs() < 1e-9);
        assert_eq!((rows[0].runs, rows[0].ours_over), (3, None));
        assert_eq!(rows[0].daemon_peak_bytes, Some(300 << 20));
        assert_eq!(rows[1].ours_over, Some(4.0));
        assert_eq!(rows[1].write_amplification, Some(2.0));
        assert_eq!(rows[1].space_amplification, Some(1.5));
    }

    #[test]
    fn mounts_are_compared_with_ext4_and_with_their_floor() {
        let runs = [
            run("stitchfs-uring", 0, 60),
            run("null-uring", 0, 80),
            run("ext4", 0, 120),
            run("passthrough-uring", 0, 40),
            run("passthrough-dev", 0, 20),
        ];
        let rows = summarise(Suite::Fs, &runs);
        assert_eq!((rows[0].of_ext4, rows[0].of_floor), (Some(0.5), Some(0.75)));
        assert_eq!(rows[0].of_passthrough, Some(1.5));
        assert_eq!(rows[1].of_floor, None);
        assert_eq!((rows[2].of_ext4, rows[2].ours_over), (None, None));
        assert_eq!(
            (rows[3].of_floor, rows[3].of_passthrough),
            (Some(0.5), None)
        );
    }

    #[test]
    fn ratios_are_of_one_repetition() {
        let mut runs = Vec::new();
        // A machine that is ten times slower half of the time.
        for (repeat, ext4, ours) in [(0, 1000, 500), (1, 100, 60), (2, 1000, 400), (3, 100, 50)] {
            runs.extend([run("ext4", repeat, ext4), run("null-dev", repeat, ours)]);
        }
        runs.push(run("null-dev", 4, 1));
        let rows = summarise(Suite::Fs, &runs);
        assert_eq!(rows[1].of_ext4, Some(0.5));
        assert_eq!(rows[1].of_ext4_quartiles, Some([0.5, 0.5]));
        assert_eq!(quartiles(&[3.0, 1.0, 2.0]), [1.0, 3.0]);
    }

    #[test]
    fn a_median_is_in_the_middle() {
        assert!((median([3.0, 1.0, 2.0].into_iter()) - 2.0).abs() < 1e-9);
        assert!((median([4.0, 1.0].into_iter()) - 2.5).abs() < 1e-9);
        assert!(median(std::iter::empty()).abs() < 1e-9);
    }
}
