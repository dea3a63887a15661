//! Counters of a mounted store, as `stitchfs stats --json` gives them.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde_json::Value;

/// Counters by dotted name, such as `fuse.requests.lookup`.
#[derive(Clone, Debug)]
pub(crate) struct Stats(BTreeMap<String, u64>);

impl Stats {
    /// Reads counters from JSON, nested or with dotted names.
    pub(crate) fn parse(json: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(json).context("stats are not JSON")?;
        let mut counters = BTreeMap::new();
        flatten("", &value, &mut counters);
        Ok(Self(counters))
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

fn flatten(prefix: &str, value: &Value, counters: &mut BTreeMap<String, u64>) {
    if let Some(object) = value.as_object() {
        for (key, value) in object {
            let name = if prefix.is_empty() {
                key.clone()
            } else {
                format!("{prefix}.{key}")
            };
            flatten(&name, value, counters);
        }
    } else if let Some(number) = value.as_u64() {
        counters.insert(prefix.to_owned(), number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_and_dotted_names_are_the_same() {
        let nested = Stats::parse(r#"{"fuse":{"requests":{"lookup":7}},"a":"text"}"#).unwrap();
        let dotted = Stats::parse(r#"{"fuse.requests.lookup":9}"#).unwrap();
        assert_eq!(nested.get("fuse.requests.lookup").unwrap(), 7);
        assert_eq!(dotted.since(&nested, "fuse.requests.lookup").unwrap(), 2);
        assert_eq!(dotted.changes(&nested, "fuse.requests.")["lookup"], 2);
        assert!(nested.get("a").is_err());
    }
}
