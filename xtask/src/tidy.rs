//! `tidy`: the house rules that no compiler checks.
//!
//! Each rule is a function from the loaded files to findings, so that its test can plant a
//! violation. A [ratchet] holds numbers that are not good yet, such as sizes.

mod actors;
mod assertions;
mod circles;
mod docs;
mod edges;
mod glossary;
mod imports;
mod links;
mod ratchet;
mod sizes;
mod style;
mod words;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use self::ratchet::{Measure, Ratchet};
use crate::source::{self, Source};

const RATCHET: &str = "xtask/ratchet.txt";

/// A broken rule and its line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    path: String,
    line: usize,
    what: String,
}

impl Finding {
    fn new(source: &Source, at: usize, what: impl Into<String>) -> Self {
        Self {
            path: source.path.clone(),
            line: source.line_of(at),
            what: what.into(),
        }
    }
}

/// The task of `tidy` beside its checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// No further task.
    Check,
    /// Moves the ratchet to the current numbers, where they are better.
    Bless,
    /// Also lists the breaches of style that the ratchet allows.
    All,
}

/// Runs every rule over the workspace and prints what it finds. Returns whether nothing was found.
pub(crate) fn run(root: &Path, mode: Mode) -> Result<bool> {
    let sources = source::load(root)?;
    let breaches = style::find(&sources);
    let measures: Vec<Measure> = [
        sizes::measure(&sources),
        style::measure(&breaches),
        assertions::measure(&sources),
    ]
    .concat();
    let ratchet = load_ratchet(&root.join(RATCHET), &measures, mode)?;

    let mut findings = ratchet.check(&measures);
    let shown = |breach: &style::Breach| mode == Mode::All || breach.is_unexpected(&ratchet);
    findings.extend(
        breaches
            .into_iter()
            .filter(shown)
            .map(|breach| breach.finding),
    );
    findings.extend(circles::check(&sources));
    findings.extend(edges::check(&sources)?);
    findings.extend(words::check(&sources));
    findings.extend(glossary::check(&sources));
    findings.extend(imports::check(&sources)?);
    findings.extend(docs::check(&sources));
    findings.extend(links::check(&sources, &|path| root.join(path).exists()));
    findings.sort();
    for finding in &findings {
        println!("{}:{}: {}", finding.path, finding.line, finding.what);
    }
    println!("tidy: {} files, {} findings", sources.len(), findings.len());
    Ok(findings.is_empty())
}

/// Reads the ratchet, and moves it first if the mode says so.
fn load_ratchet(path: &Path, measures: &[Measure], mode: Mode) -> Result<Ratchet> {
    let ratchet = Ratchet::parse(&fs::read_to_string(path).unwrap_or_default());
    if mode != Mode::Bless {
        return Ok(ratchet);
    }
    let blessed = ratchet.bless(measures);
    fs::write(path, &blessed).context(RATCHET)?;
    Ok(Ratchet::parse(&blessed))
}
