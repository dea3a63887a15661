//! Which transaction a name in a request stands for.
//!
//! ```text
//! the request is sent to a directory of   names are of transactions that began in
//! mainline, `.stitchfs` of the mount      mainline
//! a transaction, `.stitchfs` in it        that transaction
//! ```
//!
//! In both, `a/b` is the transaction `b` that began in `a`.

use stitch_fs::{FileSystem, TransactionInfo};

use crate::adapter::OrErrno as _;
use crate::errno::Errno;
use crate::handler::{Answer, Context};

/// The sender of a request, and where names in it are looked up.
#[derive(Clone, Copy)]
pub(super) struct Asker<'a> {
    pub(super) context: &'a Context<'a>,
    /// Number of the transaction that names are looked up in; `None` for mainline.
    pub(super) scope: Option<u64>,
}

/// The transactions of a file system at a moment.
pub(super) struct Catalog {
    all: Vec<TransactionInfo>,
}

impl Catalog {
    pub(super) fn read(mainline: &FileSystem) -> Answer<Self> {
        Ok(Self::of(mainline.transactions().list().or_errno()?))
    }

    pub(super) fn of(all: Vec<TransactionInfo>) -> Self {
        debug_assert!(all.is_sorted_by_key(|info| info.number), "as listed");
        Self { all }
    }

    /// Returns all, in the order of their numbers.
    pub(super) fn all(&self) -> impl Iterator<Item = &TransactionInfo> {
        self.all.iter()
    }

    /// Returns those that are open.
    pub(super) fn open(&self) -> impl Iterator<Item = &TransactionInfo> {
        self.all.iter().filter(|info| info.is_open())
    }

    fn by_number(&self, number: u64) -> Option<&TransactionInfo> {
        self.all.iter().find(|info| info.number == number)
    }

    /// Returns the open transaction of a name.
    pub(super) fn find(&self, scope: Option<u64>, name: &str) -> Answer<&TransactionInfo> {
        let (outer, last) = self.split(scope, name)?;
        let mut open = self.open();
        let found = open.find(|info| info.outer == outer && info.name == last);
        found.ok_or(Errno::ENOENT)
    }

    /// Returns the transaction that one of this name begins in, and its name there.
    pub(super) fn split<'n>(
        &self,
        scope: Option<u64>,
        name: &'n str,
    ) -> Answer<(Option<u64>, &'n str)> {
        let Some((above, last)) = name.rsplit_once('/') else {
            return Ok((scope, name));
        };
        let outer = self.find(scope, above)?;
        Ok((Some(outer.number), last))
    }

    /// Returns the numbers of the transactions that one is in, and its own, outermost first.
    pub(super) fn path_to(&self, number: Option<u64>) -> Vec<u64> {
        let outer = |number: &u64| self.by_number(*number)?.outer;
        let mut path: Vec<u64> = std::iter::successors(number, outer).collect();
        path.reverse();
        path
    }

    /// Returns the open transactions in one, at any depth.
    pub(super) fn within(&self, number: u64) -> Vec<u64> {
        let is_in = |info: &&TransactionInfo| {
            let outer = info.outer;
            outer.is_some() && self.path_to(outer).contains(&number)
        };
        self.open().filter(is_in).map(|info| info.number).collect()
    }

    /// Returns the name of a transaction as it is asked for in `scope`; `None` if it is not in
    /// that.
    pub(super) fn name_in(&self, scope: Option<u64>, info: &TransactionInfo) -> Option<String> {
        let mut path = self.path_to(info.outer);
        if let Some(scope) = scope {
            let at = path.iter().position(|number| *number == scope)?;
            path.drain(..=at);
        }
        let mut names: Vec<&str> = Vec::new();
        for number in path {
            names.push(&self.by_number(number)?.name);
        }
        names.push(&info.name);
        Some(names.join("/"))
    }

    /// Returns the names from mainline on of a transaction of a name in `scope`.
    pub(super) fn full_name(&self, scope: Option<u64>, name: &str) -> String {
        match self.prefix(scope) {
            Some(prefix) => format!("{prefix}{name}"),
            None => name.to_owned(),
        }
    }

    /// Returns what full names of transactions in `scope` begin with.
    pub(super) fn prefix(&self, scope: Option<u64>) -> Option<String> {
        let info = self.by_number(scope?)?;
        Some(format!("{}/", self.name_in(None, info)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_base::clock::Timestamp;
    use stitch_fs::{TransactionIsolation, TransactionLife, TransactionState};

    fn info(number: u64, outer: Option<u64>, name: &str) -> TransactionInfo {
        TransactionInfo {
            number,
            outer,
            name: name.to_owned(),
            life: TransactionLife::Named,
            isolation: TransactionIsolation::Snapshot,
            owner: 0,
            created: Timestamp(0),
            expires: None,
            state: TransactionState::Open,
        }
    }

    fn catalog() -> Catalog {
        let done = TransactionInfo {
            state: TransactionState::Committed(5),
            ..info(24, Some(21), "done")
        };
        Catalog::of(vec![
            info(20, None, "a"),
            info(21, Some(20), "b"),
            info(22, Some(21), "a"),
            info(23, None, "b"),
            done,
        ])
    }

    #[test]
    fn names_are_looked_up_where_they_are_asked() {
        let all = catalog();
        let found = |scope, name: &str| all.find(scope, name).map(|info| info.number);
        assert_eq!(found(None, "a"), Ok(20));
        assert_eq!(found(None, "b"), Ok(23));
        assert_eq!(found(None, "a/b/a"), Ok(22));
        assert_eq!(found(Some(20), "b"), Ok(21));
        assert_eq!(found(Some(20), "b/a"), Ok(22));
        for (scope, name) in [(Some(20), "a"), (None, "b/a"), (None, "a//b"), (None, "")] {
            assert_eq!(found(scope, name), Err(Errno::ENOENT), "{name}");
        }
        assert_eq!(found(Some(21), "done"), Err(Errno::ENOENT), "not open");
        assert_eq!(all.split(None, "a/b/new"), Ok((Some(21), "new")));
        assert_eq!(all.split(Some(23), "new"), Ok((Some(23), "new")));
        assert_eq!(all.split(None, "x/new"), Err(Errno::ENOENT));
    }

    #[test]
    fn names_are_told_as_they_are_asked_for() {
        let all = catalog();
        let names = |scope| {
            let told = all.all.iter().filter_map(|info| all.name_in(scope, info));
            told.collect::<Vec<_>>()
        };
        assert_eq!(names(None), ["a", "a/b", "a/b/a", "b", "a/b/done"]);
        assert_eq!(names(Some(20)), ["b", "b/a", "b/done"]);
        assert_eq!(names(Some(22)), [""; 0]);
        assert_eq!(all.full_name(Some(21), "new"), "a/b/new");
        assert_eq!(all.full_name(None, "new"), "new");
        assert_eq!(all.within(20), [21, 22]);
        assert_eq!(all.path_to(Some(22)), [20, 21, 22]);
    }
}
