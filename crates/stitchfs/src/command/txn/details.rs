//! Isolation and path locks of transactions, for `stitchfs txn list` and `status`.

use super::super::quoted::quoted;
use super::end::path_of;
use super::target::TxnMount;
use anyhow::Result;
use rustix::io::Errno;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use stitch_fuse::transactions::{self, Detail, Isolation, ListedTransaction};
use stitchfs::set_path;

/// What is told of open transactions, by name, and of those that wait for locks.
#[derive(Debug, Default)]
pub(super) struct Details {
    by_name: BTreeMap<String, Vec<Detail>>,
}

impl Details {
    /// Asks the daemon. One that is older knows none.
    ///
    /// # Errors
    /// It refuses.
    pub(super) fn ask(target: &TxnMount) -> Result<Self> {
        match transactions::details(target.dir()) {
            Ok(all) => Ok(Self::of(all)),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => Ok(Self::default()),
            Err(error) => Err(target.refused("", &error)),
        }
    }

    fn of(all: Vec<(String, Detail)>) -> Self {
        let mut details = Self::default();
        for (name, detail) in all {
            details.by_name.entry(name).or_default().push(detail);
        }
        details
    }

    fn of_open(&self, found: &ListedTransaction) -> &[Detail] {
        let details = self.by_name.get(&found.name);
        let open = details.filter(|_| found.committed.is_none());
        open.map_or(&[], Vec::as_slice)
    }

    /// Returns the lines below that of a transaction.
    pub(super) fn lines_of(&self, found: &ListedTransaction) -> Vec<String> {
        let details = self.of_open(found).iter();
        let line = |detail: &Detail| match detail {
            Detail::Isolation(Isolation::Serializable) => Some("    serializable".to_owned()),
            Detail::Holds(path) => Some(format!("    holds {}", quoted(path_of(path)))),
            Detail::Isolation(Isolation::Snapshot) | Detail::Waits(_) => None,
        };
        details.filter_map(line).collect()
    }

    /// Returns the lines of those that wait for locks and have not begun.
    pub(super) fn waiting_lines(&self) -> Vec<String> {
        let waiting = self
            .waiting()
            .map(|(name, path)| format!("{} waits for {}", quoted(name), quoted(path_of(path))));
        waiting.collect()
    }

    fn waiting(&self) -> impl Iterator<Item = (&String, &Vec<u8>)> {
        self.by_name.iter().flat_map(|(name, details)| {
            details.iter().filter_map(move |detail| match detail {
                Detail::Waits(path) => Some((name, path)),
                _ => None,
            })
        })
    }

    /// Adds isolation and locks to what is told of a transaction.
    pub(super) fn with_json(&self, found: &ListedTransaction, mut out: Value) -> Value {
        if found.committed.is_some() {
            return out;
        }
        let (mut isolation, mut locks) = (Isolation::Snapshot, Vec::new());
        for detail in self.of_open(found) {
            match detail {
                Detail::Isolation(of) => isolation = *of,
                Detail::Holds(path) => locks.push(lock_json(path)),
                Detail::Waits(_) => {}
            }
        }
        out["isolation"] = json!(isolation.word());
        out["locks"] = json!(locks);
        out
    }

    /// Returns those that wait for locks, for programs.
    pub(super) fn waiting_json(&self) -> Value {
        let waiting = self.waiting().map(|(name, path)| {
            let mut out = lock_json(path);
            out["name"] = json!(name);
            out
        });
        waiting.collect()
    }
}

fn lock_json(path: &[u8]) -> Value {
    let mut out = json!({});
    set_path(&mut out, "path", &path_of(path));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, committed: Option<i64>) -> ListedTransaction {
        ListedTransaction {
            number: 7,
            name: name.to_owned(),
            owner: 0,
            created: 5,
            is_named: true,
            committed,
            expires: None,
        }
    }

    #[test]
    fn isolation_and_locks_are_those_of_the_open_one() {
        let work = || "work".to_owned();
        let details = Details::of(vec![
            (work(), Detail::Isolation(Isolation::Serializable)),
            (work(), Detail::Holds(b"a/b".to_vec())),
            ("next".to_owned(), Detail::Waits(Vec::new())),
        ]);
        let open = found("work", None);
        assert_eq!(
            details.lines_of(&open),
            ["    serializable", "    holds a/b"]
        );
        assert_eq!(details.waiting_lines(), ["next waits for ."]);
        let told = details.with_json(&open, json!({}));
        let expected = json!({ "isolation": "ser", "locks": [{ "path": "a/b" }] });
        assert_eq!(told, expected);
        let waiting = json!([{ "name": "next", "path": "." }]);
        assert_eq!(details.waiting_json(), waiting);
        // An earlier one of the same name.
        let done = found("work", Some(9));
        assert!(details.lines_of(&done).is_empty());
        assert_eq!(details.with_json(&done, json!({})), json!({}));
        let other = details.with_json(&found("other", None), json!({}));
        assert_eq!(other, json!({ "isolation": "si", "locks": [] }));
    }
}
