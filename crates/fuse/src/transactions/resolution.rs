//! Requests about conflicts of a transaction, and about its rebase.

use std::io;
use std::os::fd::AsFd;

use stitch_fs::{RecordKey, Side};

use super::{
    ASK, BASE, CONFLICTS, CommitOutcome, REBASE, RECORD_KINDS, REFUSED, RESOLVE, RESOLVE_RECORD,
    RecordConflict, nonsense, number_in, number_of, parse_outcome, parse_record, record_word,
    text_of, words,
};
use crate::report;

const OURS: &str = "ours";
const THEIRS: &str = "theirs";
const OPEN: &str = "open";

pub(crate) const fn side_word(side: Option<Side>) -> &'static str {
    match side {
        Some(Side::Ours) => OURS,
        Some(Side::Theirs) => THEIRS,
        None => OPEN,
    }
}

pub(crate) fn parse_side(word: &str) -> Option<Side> {
    match word {
        OURS => Some(Side::Ours),
        THEIRS => Some(Side::Theirs),
        _ => None,
    }
}

/// A conflict of a transaction with mainline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedConflict {
    /// What both sides have changed, or the transaction has read.
    pub kind: String,
    /// Path from the root of the file system, without a slash at either end. Empty for a record.
    pub path: Vec<u8>,
    /// The record, if it is about one.
    pub record: Option<RecordConflict>,
    /// The side that wins, if that was said and holds.
    pub side: Option<Side>,
}

/// Tells what a transaction and mainline have both changed, in the order of paths.
///
/// # Errors
/// As of [`commit`](super::commit).
pub fn conflicts(dir: impl AsFd, name: &str) -> io::Result<Vec<ListedConflict>> {
    let mut all = Vec::new();
    loop {
        let reply = report::ask::<ASK>(&dir, &[CONFLICTS, name, &all.len().to_string()])?;
        let words = words(&reply);
        let count: Option<usize> = words.first().and_then(|word| number_of(word));
        let count = count.ok_or_else(nonsense)?;
        let before = all.len();
        for entry in words[1..].chunks(3) {
            all.push(parse_conflict(entry).ok_or_else(nonsense)?);
        }
        if all.len() >= count {
            return Ok(all);
        }
        if all.len() == before {
            return Err(nonsense());
        }
    }
}

fn parse_conflict(entry: &[&[u8]]) -> Option<ListedConflict> {
    let [kind, side, path] = entry else {
        return None;
    };
    let side = match std::str::from_utf8(side).ok()? {
        OPEN => None,
        word => Some(parse_side(word)?),
    };
    let kind = text_of(kind)?;
    let is_record = RECORD_KINDS.contains(&&*kind);
    let record = is_record.then(|| parse_record(&kind, path));
    Some(ListedConflict {
        path: if is_record { Vec::new() } else { path.to_vec() },
        record: match record {
            Some(record) => Some(record?),
            None => None,
        },
        kind,
        side,
    })
}

/// Sets which side wins in the conflicts at a path and below it, and returns their number. The path
/// is from the root of the file system, without a slash at either end. Why it cannot be is the
/// outcome.
///
/// # Errors
/// As of [`commit`](super::commit).
pub fn resolve(
    dir: impl AsFd,
    name: &str,
    side: Side,
    path: &[u8],
) -> io::Result<Result<usize, CommitOutcome>> {
    let side = side_word(Some(side)).as_bytes();
    // No word is empty.
    let path = if path.is_empty() { b"." } else { path };
    ask_to_resolve(dir, &[RESOLVE.as_bytes(), name.as_bytes(), side, path])
}

/// Sets which side wins in the conflict about a record, as [`resolve`] does for files.
///
/// # Errors
/// As of [`commit`](super::commit).
pub fn resolve_record(
    dir: impl AsFd,
    name: &str,
    side: Side,
    record: &RecordKey,
) -> io::Result<Result<usize, CommitOutcome>> {
    let side = side_word(Some(side)).as_bytes();
    let record = record_word(&record.tree, &record.key);
    let verb = RESOLVE_RECORD.as_bytes();
    ask_to_resolve(dir, &[verb, name.as_bytes(), side, &record])
}

fn ask_to_resolve(dir: impl AsFd, asked: &[&[u8]]) -> io::Result<Result<usize, CommitOutcome>> {
    let reply = report::ask::<ASK>(dir, asked)?;
    let words = words(&reply);
    if words.first() == Some(&REFUSED.as_bytes()) {
        return parse_outcome(&words).map(Err).ok_or_else(nonsense);
    }
    let count = words.first().and_then(|word| number_of(word));
    count.map(Ok).ok_or_else(nonsense)
}

/// Begins to bring a transaction to the present state of mainline, and returns its number, for
/// [`outcome`](super::outcome). What is open in it is `ESTALE` afterwards.
///
/// # Errors
/// `EINVAL` for a run; others as of [`commit`](super::commit).
pub fn rebase(dir: impl AsFd, name: &str) -> io::Result<u64> {
    number_in(&report::ask::<ASK>(dir, &[REBASE, name])?)
}

/// Returns the contents of a regular file as they were when a transaction began.
///
/// # Errors
/// `ENOENT` if there was none; `EISDIR`, `EINVAL` if it was something else; others as of
/// [`commit`](super::commit).
pub fn base_contents(dir: impl AsFd, name: &str, path: &[u8]) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    loop {
        let offset = contents.len().to_string();
        let words = [BASE.as_bytes(), name.as_bytes(), offset.as_bytes(), path];
        let bytes = report::ask::<ASK>(&dir, &words)?;
        if bytes.is_empty() {
            return Ok(contents);
        }
        contents.extend_from_slice(&bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflicts_are_read() {
        let entry = [&b"name"[..], b"ours", b"a/\xff"];
        let conflict = parse_conflict(&entry).unwrap();
        assert_eq!((&*conflict.kind, conflict.side), ("name", Some(Side::Ours)));
        assert_eq!(conflict.path, b"a/\xff");
        let word = record_word("stock", b"a\0");
        let record = parse_conflict(&[b"record", b"theirs", &word]).unwrap();
        let found = record.record.unwrap();
        assert_eq!((&*found.tree, &*found.key), ("stock", &b"a\0"[..]));
        assert!(record.path.is_empty() && record.side == Some(Side::Theirs));
        assert_eq!(parse_conflict(&[b"record", b"open", b"61"]), None);
        let open = parse_conflict(&[b"name", b"open", b""]).unwrap();
        assert_eq!(open.side, None);
        assert_eq!(parse_conflict(&[b"name", b"both", b""]), None);
        assert_eq!(parse_conflict(&entry[1..]), None);
        for side in [Side::Ours, Side::Theirs] {
            assert_eq!(parse_side(side_word(Some(side))), Some(side));
        }
    }
}
