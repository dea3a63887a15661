//! Asking a daemon to begin, commit or abort a transaction of files, by ioctl(2).
//!
//! ```text
//!   in:   words, each with a zero byte behind
//!   out:  length in bytes (u32), words
//!
//!   begin NAME LIFE      NUMBER
//!   begin-with, details                        see `begin`
//!   commit NAME          NUMBER                begins the commit
//!   outcome NUMBER       running | committed | conflict COUNT (KIND PATH)... | failed ERRNO WHY
//!                        the PATH of a record: its key in hexadecimal digits, a space, its tree
//!   abort NAME
//!   keep NAME                                  the transaction does not end with its process
//!   expire NAME EXPIRES|never
//!   list AFTER           (NUMBER NAME OWNER CREATED LIFE STATE EXPIRES|never)...   of later ones
//!   changes NAME FROM    COUNT (SIGN PATH FROM)...   the changes from the one with this index on
//!   conflicts NAME FROM  COUNT (KIND ours|theirs|open PATH)...   likewise; PATH as of an outcome
//!   resolve NAME ours|theirs PATH   COUNT | failed ERRNO WHY
//!   resolve-record NAME ours|theirs PATH   likewise; PATH as of an outcome
//!   rebase NAME          NUMBER                begins it; its outcome is asked for as a commit's
//!   base NAME OFFSET PATH   contents of a file as the transaction began
//! ```
//!
//! A NAME is that of a transaction that began in what the asked directory is in: mainline, or a
//! transaction. Of one that began in that one it is `outer/inner`. Lists tell of all that are in
//! it, at any depth.
//!
//! A commit runs in a thread of the daemon, since it sends notices to the kernel. Lists that are
//! longer than an answer come in several: the caller asks for the rest. Of conflicts those that fit
//! are told.

mod begin;
mod resolution;

pub(crate) use begin::{BEGUN, BeginArgs, HOLDS, ISOLATION, LOCKED, WAITS};
pub use begin::{BeginWith, Begun, Detail, Isolation, begin_with, details};

use std::io;
use std::os::fd::AsFd;

use rustix::ioctl::{Opcode, opcode};

use stitch_fs::{RecordKey, Side};

use crate::report::{self, ROOM};
use crate::wire::codec::Reader;

/// The command.
pub(crate) const ASK: Opcode = opcode::read_write::<[u8; ROOM]>(b'S', 4);

const BEGIN: &str = "begin";
const COMMIT: &str = "commit";
const OUTCOME: &str = "outcome";
const ABORT: &str = "abort";
const KEEP: &str = "keep";
const EXPIRE: &str = "expire";
const LIST: &str = "list";
const CHANGES: &str = "changes";
const CONFLICTS: &str = "conflicts";
const RESOLVE: &str = "resolve";
const RESOLVE_RECORD: &str = "resolve-record";
const REBASE: &str = "rebase";
const BASE: &str = "base";

pub(crate) const RUNNING: &str = "running";
pub(crate) const COMMITTED: &str = "committed";
pub(crate) const CONFLICT: &str = "conflict";
pub(crate) const REFUSED: &str = "failed";
/// Kinds of conflicts about a record: written by both, and read by a serializable transaction.
const RECORD_KINDS: [&str; 2] = ["record", "read record"];
pub(crate) const REBASED: &str = "rebased";
pub(crate) const NEVER: &str = "never";

pub(crate) use resolution::side_word;
pub use resolution::{ListedConflict, base_contents, conflicts, rebase, resolve, resolve_record};

/// How long a transaction lives if it is not committed or aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Until it is aborted, whatever becomes of the process and the daemon.
    Named,
    /// As long as the process that begins it, and the daemon.
    Run,
    /// As long as the process that begins it, until [`keep`] is called.
    Watched,
}

impl Lifetime {
    const ALL: [(&'static str, Self); 3] = [
        ("named", Self::Named),
        ("run", Self::Run),
        ("watched", Self::Watched),
    ];

    pub(crate) fn word(self) -> &'static str {
        let found = Self::ALL.iter().find(|(_, life)| *life == self);
        found.map_or("", |(word, _)| word)
    }

    fn parse(word: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(name, _)| *name == word);
        found.map(|(_, life)| *life)
    }
}

/// What a daemon is asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TransactionRequest<'a> {
    Begin(BeginArgs<'a>),
    Commit(&'a str),
    Outcome(u64),
    Abort(&'a str),
    Keep(&'a str),
    Expire(&'a str, Option<i64>),
    List(u64),
    Changes(&'a str, usize),
    Details(usize),
    Conflicts(&'a str, usize),
    Resolve(&'a str, Side, &'a [u8]),
    ResolveRecord(&'a str, Side, RecordKey),
    Rebase(&'a str),
    Base(&'a str, u64, &'a [u8]),
}

impl<'a> TransactionRequest<'a> {
    /// Reports whether a mount that is read-only at the moment refuses it.
    pub(crate) const fn is_refused_read_only(&self) -> bool {
        match self {
            Self::Outcome(_)
            | Self::List(_)
            | Self::Changes(..)
            | Self::Details(_)
            | Self::Conflicts(..)
            | Self::Base(..) => false,
            Self::Begin(_)
            | Self::Commit(_)
            | Self::Abort(_)
            | Self::Keep(_)
            | Self::Expire(..)
            | Self::Resolve(..)
            | Self::ResolveRecord(..)
            | Self::Rebase(_) => true,
        }
    }

    /// Returns what `input` asks for; `None` if that makes no sense.
    pub(crate) fn parse(input: &'a [u8]) -> Option<Self> {
        let mut input = Reader::new(input);
        let mut word = || std::str::from_utf8(input.name().ok()?).ok();
        let (verb, first) = (word()?, word()?);
        match verb {
            BEGIN => {
                let life = Lifetime::parse(word()?)?;
                Some(Self::Begin(BeginArgs::plain(first, life)))
            }
            begin::BEGIN_WITH => BeginArgs::parse(first, &mut input).map(Self::Begin),
            begin::DETAILS => Some(Self::Details(first.parse().ok()?)),
            COMMIT => Some(Self::Commit(first)),
            OUTCOME => Some(Self::Outcome(first.parse().ok()?)),
            ABORT => Some(Self::Abort(first)),
            KEEP => Some(Self::Keep(first)),
            EXPIRE => Some(Self::Expire(first, parse_expiry(word()?)?)),
            LIST => Some(Self::List(first.parse().ok()?)),
            CHANGES => Some(Self::Changes(first, word()?.parse().ok()?)),
            CONFLICTS => Some(Self::Conflicts(first, word()?.parse().ok()?)),
            RESOLVE => {
                let side = resolution::parse_side(word()?)?;
                // No word is empty: the root is `.`.
                let path = match input.name().ok()? {
                    b"." => b"",
                    path => path,
                };
                Some(Self::Resolve(first, side, path))
            }
            RESOLVE_RECORD => {
                let side = resolution::parse_side(word()?)?;
                let record = parse_record_word(input.name().ok()?)?;
                Some(Self::ResolveRecord(first, side, record))
            }
            REBASE => Some(Self::Rebase(first)),
            BASE => {
                let offset = word()?.parse().ok()?;
                Some(Self::Base(first, offset, input.name().ok()?))
            }
            _ => None,
        }
    }
}

/// Returns a time, or `None` for never; `None` outside if it is neither.
fn parse_expiry(word: &str) -> Option<Option<i64>> {
    match word {
        "" | NEVER => Some(None),
        _ => word.parse().ok().map(Some),
    }
}

pub(crate) fn expiry_word(expires: Option<i64>) -> String {
    let word = expires.map_or_else(|| NEVER.to_owned(), |at| at.to_string());
    debug_assert_eq!(
        parse_expiry(&word),
        Some(expires),
        "the asker reads the same time"
    );
    word
}

/// What came of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// It is under way.
    Running,
    /// It is on the medium, and the kernel has dropped what it had cached.
    Committed,
    /// A rebase is on the medium.
    Rebased,
    /// The transaction and mainline have changed the same.
    Conflict {
        /// Number of conflicts.
        count: usize,
        /// Kind and path of those that were told.
        told: Vec<(String, Vec<u8>)>,
        /// Records of those that were told.
        records: Vec<RecordConflict>,
    },
    /// Nothing was committed.
    Refused {
        /// Number of the error.
        errno: i32,
        /// What the daemon says about it.
        why: String,
    },
}

/// A record that mainline has written, and a transaction has written or read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordConflict {
    /// `record` if both have written it, `read record` if the transaction has read it.
    pub kind: String,
    /// Name of the tree.
    pub tree: String,
    /// Its key.
    pub key: Vec<u8>,
}

/// Returns the word for a record, which has no zero byte.
pub(crate) fn record_word(tree: &str, key: &[u8]) -> Vec<u8> {
    let mut word: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    word.push(' ');
    word.push_str(&tree.replace('\0', "\\0"));
    let word = word.into_bytes();
    debug_assert!(
        parse_record_word(&word).is_some_and(|read| read.key == key),
        "the asker reads the same key"
    );
    word
}

fn parse_record(kind: &str, word: &[u8]) -> Option<RecordConflict> {
    let RecordKey { tree, key } = parse_record_word(word)?;
    let kind = kind.to_owned();
    Some(RecordConflict { kind, tree, key })
}

fn parse_record_word(word: &[u8]) -> Option<RecordKey> {
    let (digits, tree) = std::str::from_utf8(word).ok()?.split_once(' ')?;
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let key: Option<Vec<u8>> = digits.as_bytes().chunks(2).map(byte).collect();
    let key = key.filter(|_| digits.len().is_multiple_of(2))?;
    let tree = tree.to_owned();
    Some(RecordKey { tree, key })
}

/// A transaction as a daemon lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedTransaction {
    /// Number, never used again.
    pub number: u64,
    /// Name, unique among open ones; `outer/inner` of one that began in another one.
    pub name: String,
    /// User that it belongs to.
    pub owner: u32,
    /// When it began, in nanoseconds since 1970.
    pub created: i64,
    /// True if it does not end with a process.
    pub is_named: bool,
    /// When it was committed, in nanoseconds since 1970; `None` while it is open.
    pub committed: Option<i64>,
    /// When it is aborted if it is open then, in nanoseconds since 1970; `None` for never.
    pub expires: Option<i64>,
}

/// A change of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedChange {
    /// `M`, `+`, `-` or `R`.
    pub sign: String,
    /// Path from the root of the file system, without a slash at either end.
    pub path: Vec<u8>,
    /// Path before, if the name changed.
    pub from: Vec<u8>,
}

/// Begins a transaction of a mount of ours with snapshot isolation, and returns its number. `dir`
/// is any directory of the mount, as of all calls here.
///
/// # Errors
/// `EEXIST` if an open transaction has the name; `ENAMETOOLONG`, `EINVAL` for what is no name;
/// `EOPNOTSUPP` if the store has no transactions, or `dir` is in another view; `ESRCH` if the
/// daemon cannot see this process; `EOVERFLOW` if inode numbers are too large; `EMFILE` if too many
/// are open, `EDQUOT` if the user has too many; `ELOOP` if too many are in each other; `EROFS`,
/// `ENOSPC`; `ENOTTY` of a daemon that is older than this.
///
/// # Durability
/// On the medium when this returns.
pub fn begin(dir: impl AsFd, name: &str, life: Lifetime) -> io::Result<u64> {
    number_in(&report::ask::<ASK>(dir, &[BEGIN, name, life.word()])?)
}

/// Begins to commit a transaction, and returns its number, for [`outcome`].
///
/// # Errors
/// `ENOENT` if no open one has the name; `EPERM` if the caller is not root, the user of the daemon
/// or the one who began it; `EBUSY` while it is committed; others as of [`begin()`].
pub fn commit(dir: impl AsFd, name: &str) -> io::Result<u64> {
    number_in(&report::ask::<ASK>(dir, &[COMMIT, name])?)
}

/// Tells what came of a commit.
///
/// # Errors
/// `ENOENT` if the daemon knows of no such commit.
pub fn outcome(dir: impl AsFd, number: u64) -> io::Result<CommitOutcome> {
    let reply = report::ask::<ASK>(dir, &[OUTCOME, &number.to_string()])?;
    parse_outcome(&words(&reply)).ok_or_else(nonsense)
}

/// Aborts a transaction: nothing of it is left. What is open in it is `ESTALE`.
///
/// # Errors
/// As of [`commit`].
pub fn abort(dir: impl AsFd, name: &str) -> io::Result<()> {
    report::ask::<ASK>(dir, &[ABORT, name]).map(drop)
}

/// Lets a transaction live on when the process that began it has ended. It began as
/// [`Lifetime::Watched`].
///
/// # Errors
/// `EINVAL` if it did not; others as of [`commit`].
pub fn keep(dir: impl AsFd, name: &str) -> io::Result<()> {
    report::ask::<ASK>(dir, &[KEEP, name]).map(drop)
}

/// Changes when an open transaction is aborted unasked, in nanoseconds since 1970; `None` for
/// never.
///
/// # Errors
/// As of [`commit`].
pub fn expire(dir: impl AsFd, name: &str, expires: Option<i64>) -> io::Result<()> {
    report::ask::<ASK>(dir, &[EXPIRE, name, &expiry_word(expires)]).map(drop)
}

/// Lists the transactions that are open, and those that were committed last.
///
/// # Errors
/// As of [`begin()`].
pub fn list(dir: impl AsFd) -> io::Result<Vec<ListedTransaction>> {
    let mut all: Vec<ListedTransaction> = Vec::new();
    loop {
        let after = all.last().map_or(0, |last| last.number);
        let reply = report::ask::<ASK>(&dir, &[LIST, &after.to_string()])?;
        let words = words(&reply);
        if words.is_empty() {
            return Ok(all);
        }
        for entry in words.chunks(7) {
            let listed = parse_listed(entry).ok_or_else(nonsense)?;
            if listed.number <= after {
                return Err(nonsense());
            }
            all.push(listed);
        }
    }
}

/// Tells what a transaction has changed since it began, in the order of paths.
///
/// # Errors
/// As of [`commit`].
pub fn changes(dir: impl AsFd, name: &str) -> io::Result<Vec<ListedChange>> {
    let mut all = Vec::new();
    loop {
        let reply = report::ask::<ASK>(&dir, &[CHANGES, name, &all.len().to_string()])?;
        let words = words(&reply);
        let count = words.first().and_then(|word| number_of(word));
        let count = count.ok_or_else(nonsense)?;
        let before = all.len();
        for entry in words[1..].chunks(3) {
            all.push(parse_change(entry).ok_or_else(nonsense)?);
        }
        if u64::try_from(all.len()).unwrap_or(u64::MAX) >= count {
            return Ok(all);
        }
        if all.len() == before {
            return Err(nonsense());
        }
    }
}

fn nonsense() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// Returns the words of an answer.
pub(crate) fn words(reply: &[u8]) -> Vec<&[u8]> {
    let whole = reply.strip_suffix(&[0]);
    whole.map_or(Vec::new(), |whole| whole.split(|byte| *byte == 0).collect())
}

fn text_of(word: &[u8]) -> Option<String> {
    String::from_utf8(word.to_vec()).ok()
}

pub(crate) fn number_of<N: std::str::FromStr>(word: &[u8]) -> Option<N> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

fn number_in(reply: &[u8]) -> io::Result<u64> {
    let words = words(reply);
    let number = words.first().and_then(|word| number_of(word));
    number.ok_or_else(nonsense)
}

fn parse_outcome(words: &[&[u8]]) -> Option<CommitOutcome> {
    let (state, rest) = words.split_first()?;
    match std::str::from_utf8(state).ok()? {
        RUNNING => Some(CommitOutcome::Running),
        COMMITTED => Some(CommitOutcome::Committed),
        REBASED => Some(CommitOutcome::Rebased),
        CONFLICT => {
            let (count, rest) = rest.split_first()?;
            let (mut told, mut records) = (Vec::new(), Vec::new());
            for entry in rest.chunks(2) {
                match entry {
                    [kind, word] => match text_of(kind)? {
                        kind if RECORD_KINDS.contains(&&*kind) => {
                            records.push(parse_record(&kind, word)?);
                        }
                        kind => told.push((kind, word.to_vec())),
                    },
                    _ => return None,
                }
            }
            Some(CommitOutcome::Conflict {
                count: number_of(count)?,
                told,
                records,
            })
        }
        REFUSED => match rest {
            [errno, why] => Some(CommitOutcome::Refused {
                errno: number_of(errno)?,
                why: text_of(why)?,
            }),
            _ => None,
        },
        _ => None,
    }
}

fn parse_listed(entry: &[&[u8]]) -> Option<ListedTransaction> {
    let [number, name, owner, created, life, state, expires] = entry else {
        return None;
    };
    Some(ListedTransaction {
        number: number_of(number)?,
        name: text_of(name)?,
        owner: number_of(owner)?,
        created: number_of(created)?,
        is_named: *life == Lifetime::Named.word().as_bytes(),
        committed: number_of(state),
        expires: parse_expiry(std::str::from_utf8(expires).ok()?)?,
    })
}

pub(crate) fn parse_change(entry: &[&[u8]]) -> Option<ListedChange> {
    let [sign, path, from] = entry else {
        return None;
    };
    Some(ListedChange {
        sign: text_of(sign)?,
        path: path.to_vec(),
        from: from.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::request;
    use rustix::io::Errno as OsError;

    #[test]
    fn the_command_has_its_number_for_ever() {
        assert_eq!(ASK, 0xfffc_5304);
    }

    #[test]
    fn requests_come_back_and_nonsense_is_none() {
        use TransactionRequest as Asked;
        let parsed = |words: &[&str], expected: Asked<'_>| {
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            let room = request(&words).unwrap();
            assert_eq!(Asked::parse(&room), Some(expected));
        };
        for (_, life) in Lifetime::ALL {
            let args = BeginArgs::plain("a b", life);
            parsed(&[BEGIN, "a b", life.word()], Asked::Begin(args));
        }
        parsed(&[COMMIT, "\u{e9}"], Asked::Commit("\u{e9}"));
        parsed(&[OUTCOME, "17"], Asked::Outcome(17));
        parsed(&[ABORT, "a"], Asked::Abort("a"));
        parsed(&[KEEP, "a"], Asked::Keep("a"));
        parsed(&[LIST, "0"], Asked::List(0));
        parsed(&[CHANGES, "a", "9"], Asked::Changes("a", 9));
        parsed(&[EXPIRE, "a", NEVER], Asked::Expire("a", None));
        parsed(&[EXPIRE, "a", "7"], Asked::Expire("a", Some(7)));
        parsed(&[CONFLICTS, "a", "9"], Asked::Conflicts("a", 9));
        parsed(&[REBASE, "a"], Asked::Rebase("a"));
        let resolve = Asked::Resolve("a", Side::Ours, b"x/y");
        parsed(&[RESOLVE, "a", "ours", "x/y"], resolve);
        let whole = Asked::Resolve("a", Side::Ours, b"");
        parsed(&[RESOLVE, "a", "ours", "."], whole);
        parsed(&[BASE, "a", "9", "x"], Asked::Base("a", 9, b"x"));
        for nonsense in [
            &b""[..],
            b"begin\0a\0",
            b"begin\0a\0forever\0",
            b"resolve\0a\0both\0x\0",
            b"outcome\0x\0",
            b"list\0-1\0",
            b"make\0a\0",
            b"commit\0\xff\0",
        ] {
            assert_eq!(Asked::parse(nonsense), None, "{nonsense:?}");
        }
        parsed(&["details", "0"], Asked::Details(0));
        assert!(request(&[&b"abort"[..], b"a\0"]).is_err());
        assert!(request(&[&b"abort"[..], &[b'x'; ROOM]]).is_err());
        let root = std::fs::File::open("/").unwrap();
        let elsewhere = abort(&root, "x").unwrap_err();
        assert_eq!(OsError::from_io_error(&elsewhere), Some(OsError::NOTTY));
    }

    #[test]
    fn outcomes_are_read() {
        let outcome = |reply: &[u8]| parse_outcome(&words(reply));
        assert_eq!(outcome(b"running\0"), Some(CommitOutcome::Running));
        assert_eq!(outcome(b"committed\0"), Some(CommitOutcome::Committed));
        let conflict = CommitOutcome::Conflict {
            count: 2,
            told: vec![("name".to_owned(), b"a/\xff".to_vec())],
            records: vec![RecordConflict {
                kind: "read record".to_owned(),
                tree: "my stock".to_owned(),
                key: b"\0k".to_vec(),
            }],
        };
        let words = [
            &b"conflict\x002\0name\0a/\xff\0read record\0"[..],
            &record_word("my stock", b"\0k"),
            b"\0",
        ];
        assert_eq!(outcome(&words.concat()), Some(conflict));
        let failed = CommitOutcome::Refused {
            errno: 28,
            why: "no room".to_owned(),
        };
        assert_eq!(outcome(b"failed\x0028\0no room\0"), Some(failed));
        for nonsense in [
            &b""[..],
            b"so\0",
            b"conflict\x002\0name\0",
            b"conflict\x001\0record\0xx stock\0",
            b"conflict\x001\0record\0abc stock\0",
            b"conflict\x001\0record\0ab\0",
            b"failed\0x\0y\0",
        ] {
            assert_eq!(outcome(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn lists_are_read() {
        let entry = words(b"7\0work\x001000\x005\0named\0open\0never\0");
        let listed = parse_listed(&entry).unwrap();
        assert_eq!((listed.number, &*listed.name), (7, "work"));
        assert_eq!((listed.owner, listed.created), (1000, 5));
        assert_eq!((listed.is_named, listed.committed), (true, None));
        assert_eq!(listed.expires, None);
        let entry = words(b"7\0work\x001000\x005\0run\x009\x0077\0");
        let listed = parse_listed(&entry).unwrap();
        assert_eq!((listed.is_named, listed.committed), (false, Some(9)));
        assert_eq!(listed.expires, Some(77));
        assert_eq!(parse_listed(&entry[1..]), None);
        let entry = words(b"+\0a/b\0\0");
        let change = parse_change(&entry).unwrap();
        assert_eq!((&*change.sign, &*change.path), ("+", &b"a/b"[..]));
        assert_eq!(change.from, b"");
    }
}
