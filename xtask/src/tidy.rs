//! `tidy`: the house rules that no compiler checks.
//!
//! Each rule is a function from the loaded files to findings, so that its test can plant a
//! violation. Sizes are held by a ratchet: today's exceptions stand in `xtask/ratchet.txt`.

mod circles;
mod docs;
mod edges;
mod imports;
mod links;
mod sizes;
mod words;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::source::{self, Source};

const RATCHET: &str = "xtask/ratchet.txt";

/// A broken rule and where.
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

/// Runs every rule over the workspace and prints what it finds; whether nothing was found.
pub(crate) fn run(root: &Path, bless: bool) -> Result<bool> {
    let sources = source::load(root)?;
    let ratchet_path = root.join(RATCHET);
    let ratchet = fs::read_to_string(&ratchet_path).unwrap_or_default();
    let measured = sizes::measure(&sources);
    if bless {
        fs::write(&ratchet_path, sizes::bless(&measured, &ratchet)).context(RATCHET)?;
    }

    let mut findings = sizes::check(&measured, &ratchet);
    findings.extend(circles::check(&sources));
    findings.extend(edges::check(&sources)?);
    findings.extend(words::check(&sources));
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
