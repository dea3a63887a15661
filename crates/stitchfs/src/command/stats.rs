//! `stitchfs stats`: what a daemon has done so far.

use super::live;
use super::output;
use anyhow::{Context, Result};
use clap::Parser;
use std::path::PathBuf;
use stitch_base::calendar::UtcTime;

/// Show the counters of a mounted store, those that are not 0, and how its requests come
#[derive(Debug, Parser)]
pub(super) struct StatsArgs {
    /// Print all of them as JSON, and what else the daemon says
    #[arg(long)]
    json: bool,

    /// Mount point, or the store that is mounted
    #[arg(value_name = "MNT")]
    path: PathBuf,
}

pub(super) fn run(args: &StatsArgs) -> Result<u8> {
    let entry = live::mounted(&args.path)?;
    let document = live::ask(&entry.path)?;
    if args.json {
        output::print_json(&document)?;
        return Ok(0);
    }
    let counters = document["counters"]
        .as_object()
        .context("the daemon's answer has no counters")?;
    let width = counters.keys().map(String::len).max().unwrap_or(0);
    let mut lines: Vec<String> = counters
        .iter()
        .filter(|(_, value)| value.as_u64() != Some(0))
        .map(|(name, value)| format!("{name:width$}  {value}"))
        .collect();
    if let Some(transport) = document["transport"].as_str() {
        lines.push(format!("{:width$}  {transport}", "transport"));
    }
    if let Some(next) = document["next_snapshot_ns"].as_i64() {
        let next = UtcTime::of(next.div_euclid(1_000_000_000));
        lines.push(format!("{:width$}  {next}", "next_snapshot"));
    }
    for name in ["snapshot_policy_error", "history_error"] {
        if let Some(text) = document[name].as_str() {
            lines.push(format!("{name:width$}  {text}"));
        }
    }
    output::print(&lines.join("\n"))?;
    Ok(0)
}
