//! Counters of a mounted store, as `stitchfs stats --json` gives them.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde_json::Value;

/// Counters by dotted name, such as `fuse.requests.lookup`.
#[derive(Clone, Debug)]
pub(crate) struct Stats(BTreeMap<String, u64>);

impl Stats {
    /// Reads the flat object under `counters`.
    pub(crate) fn parse(json: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(json).context("stats are not JSON")?;
        let counters = value["counters"].as_object().context("no counters")?;
        let numbers = counters.iter().filter_map(|(name, value)| {
            let number = value.as_u64()?;
            Some((name.clone(), number))
        });
        Ok(Self(numbers.collect()))
    }

    /// A counter that must exist.
    pub(crate) fn get(&self, name: &str) -> Result<u64> {
        self.0.get(name).copied().with_context(|| {
            let names: Vec<&str> = self.0.keys().map(String::as_str).collect();
            format!("no counter `{name}` among {names:?}")
        })
    }

    /// How far a counter went since `before`.
    pub(crate) fn since(&self, before: &Self, name: &str) -> Result<u64> {
        Ok(self.get(name)? - before.0.get(name).copied().unwrap_or(0))
    }

    /// All counters under a prefix that changed since `before`, by the rest of their name.
    pub(crate) fn changes(&self, before: &Self, prefix: &str) -> BTreeMap<String, u64> {
        let mut changes = BTreeMap::new();
        for (name, value) in &self.0 {
            let change = value - before.0.get(name).copied().unwrap_or(0).min(*value);
            if let (Some(rest), true) = (name.strip_prefix(prefix), change > 0) {
                changes.insert(rest.to_owned(), change);
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_a_flat_object() {
        let parse = |json| Stats::parse(json).unwrap();
        let before = parse(r#"{"counters":{"fuse.requests.lookup":7,"a":"text"},"pid":1}"#);
        let after = parse(r#"{"counters":{"fuse.requests.lookup":9}}"#);
        assert_eq!(before.get("fuse.requests.lookup").unwrap(), 7);
        assert_eq!(after.since(&before, "fuse.requests.lookup").unwrap(), 2);
        assert_eq!(after.changes(&before, "fuse.requests.")["lookup"], 2);
        assert!(before.get("a").is_err() && before.get("pid").is_err());
    }
}
