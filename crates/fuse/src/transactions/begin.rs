//! Beginning a transaction with isolation and path locks, and what is told of open ones.
//!
//! ```text
//!   begin-with NAME LIFE ISOLATION WAITS PATH...   begun NUMBER | locked NAME...
//!   details FROM                                   COUNT (NAME KIND VALUE)...
//! ```
//!
//! Names of those that hold or wait for locks are names from mainline on (`outer/inner`).
//!
//! `ISOLATION` is `si` or `ser`. A `PATH` begins with a slash, which is the root of the file
//! system. `WAITS` is `wait` or `refuse`: what to do if other transactions have locks that overlap.
//! A caller that waits asks again and keeps its place meanwhile, until it asks to refuse, or ends.

use std::io;
use std::os::fd::AsFd;

use super::{ASK, Lifetime, nonsense, number_of, text_of, words};
use crate::report;
use crate::wire::codec::Reader;

pub(super) const BEGIN_WITH: &str = "begin-with";
pub(super) const DETAILS: &str = "details";
pub(crate) const BEGUN: &str = "begun";
pub(crate) const LOCKED: &str = "locked";
pub(crate) const ISOLATION: &str = "isolation";
pub(crate) const HOLDS: &str = "holds";
pub(crate) const WAITS: &str = "waits";
const WAIT: &str = "wait";
const REFUSE: &str = "refuse";

/// What a commit checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// What was written.
    #[default]
    Snapshot,
    /// What was read, too.
    Serializable,
}

impl Isolation {
    /// Returns the word of requests and commands: `si` or `ser`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Snapshot => "si",
            Self::Serializable => "ser",
        }
    }

    fn parse(word: &str) -> Option<Self> {
        let all = [Self::Snapshot, Self::Serializable];
        all.into_iter().find(|isolation| isolation.word() == word)
    }
}

/// How a transaction begins.
#[derive(Clone, Copy, Debug)]
pub struct BeginWith<'a> {
    /// Name, unique among open ones that began in the same one.
    pub name: &'a str,
    /// How long it lives.
    pub life: Lifetime,
    /// What its commit checks.
    pub isolation: Isolation,
    /// Paths from the root of the file system, without a slash at either end, that are locked
    /// before it begins.
    pub locks: &'a [Vec<u8>],
    /// True to wait in line for the locks, and to ask again.
    pub waits: bool,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It has this number.
    Number(u64),
    /// Others have locks that overlap: their names, in the order in which they came.
    Locked(Vec<String>),
}

/// The request as the daemon reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BeginArgs<'a> {
    pub(crate) name: &'a str,
    pub(crate) life: Lifetime,
    pub(crate) isolation: Isolation,
    pub(crate) locks: Vec<Vec<u8>>,
    pub(crate) waits: bool,
    /// The answer is the number alone.
    pub(crate) is_plain: bool,
}

impl<'a> BeginArgs<'a> {
    /// One with snapshot isolation and without locks.
    pub(crate) const fn plain(name: &'a str, life: Lifetime) -> Self {
        Self {
            name,
            life,
            isolation: Isolation::Snapshot,
            locks: Vec::new(),
            waits: false,
            is_plain: true,
        }
    }

    /// The same for another name.
    pub(crate) fn named<'n>(&self, name: &'n str) -> BeginArgs<'n> {
        BeginArgs {
            name,
            locks: self.locks.clone(),
            ..*self
        }
    }

    pub(super) fn parse(name: &'a str, input: &mut Reader<'a>) -> Option<Self> {
        let mut word = || std::str::from_utf8(input.name().ok()?).ok();
        let life = Lifetime::parse(word()?)?;
        let isolation = Isolation::parse(word()?)?;
        let waits = match word()? {
            WAIT => true,
            REFUSE => false,
            _ => return None,
        };
        let mut locks = Vec::new();
        while let Ok(path) = input.name() {
            locks.push(path.strip_prefix(b"/")?.to_vec());
        }
        Some(Self {
            name,
            life,
            isolation,
            locks,
            waits,
            is_plain: false,
        })
    }
}

/// A detail of an open transaction, or of one that waits for locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Detail {
    /// What its commit checks.
    Isolation(Isolation),
    /// It holds a lock on this path.
    Holds(Vec<u8>),
    /// It waits for a lock on this path.
    Waits(Vec<u8>),
}

/// Begins a transaction of a mount of ours. `dir` is any directory of the mount.
///
/// # Errors
/// As of [`super::begin()`]; `EINVAL` also for what is no path, and of a daemon that is older than
/// this; `E2BIG` if the paths do not fit a request.
///
/// # Durability
/// On the medium when this returns a number. Locks are in the memory of the daemon.
pub fn begin_with(dir: impl AsFd, begin: &BeginWith<'_>) -> io::Result<Begun> {
    let waits = if begin.waits { WAIT } else { REFUSE };
    let (life, isolation) = (begin.life.word(), begin.isolation.word());
    let paths = begin.locks.iter().map(|path| [b"/", &path[..]].concat());
    let paths: Vec<Vec<u8>> = paths.collect();
    let mut asked: Vec<&[u8]> = [BEGIN_WITH, begin.name, life, isolation, waits]
        .iter()
        .map(|word| word.as_bytes())
        .collect();
    asked.extend(paths.iter().map(Vec::as_slice));
    let reply = report::ask::<ASK>(dir, &asked)?;
    parse_begun(&words(&reply)).ok_or_else(nonsense)
}

fn parse_begun(words: &[&[u8]]) -> Option<Begun> {
    let (state, rest) = words.split_first()?;
    match std::str::from_utf8(state).ok()? {
        BEGUN => Some(Begun::Number(number_of(rest.first()?)?)),
        LOCKED => {
            let names = rest.iter().map(|name| text_of(name));
            Some(Begun::Locked(names.collect::<Option<_>>()?))
        }
        _ => None,
    }
}

/// Tells of the isolation and the path locks of open transactions, by name, in no certain order.
///
/// # Errors
/// As of [`super::list`]; `EINVAL` of a daemon that is older than this.
pub fn details(dir: impl AsFd) -> io::Result<Vec<(String, Detail)>> {
    let mut all = Vec::new();
    loop {
        let from = all.len().to_string();
        let reply = report::ask::<ASK>(&dir, &[DETAILS.as_bytes(), from.as_bytes()])?;
        let words = words(&reply);
        let count: usize = words
            .first()
            .and_then(|word| number_of(word))
            .ok_or_else(nonsense)?;
        let before = all.len();
        for entry in words[1..].chunks(3) {
            all.push(parse_detail(entry).ok_or_else(nonsense)?);
        }
        if all.len() >= count {
            return Ok(all);
        }
        if all.len() == before {
            return Err(nonsense());
        }
    }
}

fn parse_detail(entry: &[&[u8]]) -> Option<(String, Detail)> {
    let [name, kind, value] = entry else {
        return None;
    };
    let path = || value.strip_prefix(b"/").map(<[u8]>::to_vec);
    let detail = match std::str::from_utf8(kind).ok()? {
        ISOLATION => Detail::Isolation(Isolation::parse(std::str::from_utf8(value).ok()?)?),
        HOLDS => Detail::Holds(path()?),
        WAITS => Detail::Waits(path()?),
        _ => return None,
    };
    Some((text_of(name)?, detail))
}

#[cfg(test)]
mod tests {
    use super::super::TransactionRequest;
    use super::*;

    #[test]
    fn requests_come_back_and_nonsense_is_none() {
        fn parsed(words: &[u8]) -> Option<BeginArgs<'_>> {
            match TransactionRequest::parse(words)? {
                TransactionRequest::Begin(args) => Some(args),
                _ => None,
            }
        }
        let plain = BeginArgs::plain("a b", Lifetime::Run);
        assert_eq!(parsed(b"begin\0a b\0run\0\0\0"), Some(plain.clone()));
        let with = BeginArgs {
            is_plain: false,
            ..plain
        };
        assert_eq!(
            parsed(b"begin-with\0a b\0run\0si\0refuse\0\0"),
            Some(with.clone())
        );
        let full = BeginArgs {
            isolation: Isolation::Serializable,
            locks: vec![b"x/\xff".to_vec(), Vec::new()],
            waits: true,
            ..with
        };
        let words = b"begin-with\0a b\0run\0ser\0wait\0/x/\xff\0/\0\0";
        assert_eq!(parsed(words), Some(full));
        for nonsense in [
            &b"begin-with\0a\0run\0ser\0"[..],
            b"begin-with\0a\0run\0rr\0wait\0",
            b"begin-with\0a\0run\0si\0often\0",
            b"begin-with\0a\0run\0si\0wait\0x\0",
        ] {
            assert_eq!(parsed(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn replies_are_read() {
        let begun = |reply: &[u8]| parse_begun(&words(reply));
        assert_eq!(begun(b"begun\x007\0"), Some(Begun::Number(7)));
        let names = vec!["a".to_owned(), "b c".to_owned()];
        assert_eq!(begun(b"locked\0a\0b c\0"), Some(Begun::Locked(names)));
        assert_eq!((begun(b""), begun(b"begun\0x\0")), (None, None));
        let detail = |entry: &[u8]| parse_detail(&words(entry));
        let of = |detail| Some(("a".to_owned(), detail));
        let serializable = Detail::Isolation(Isolation::Serializable);
        assert_eq!(detail(b"a\0isolation\0ser\0"), of(serializable));
        assert_eq!(detail(b"a\0holds\0/x\0"), of(Detail::Holds(b"x".to_vec())));
        assert_eq!(detail(b"a\0waits\0/\0"), of(Detail::Waits(Vec::new())));
        assert_eq!(detail(b"a\0holds\0x\0"), None);
        assert_eq!(detail(b"a\0likes\0/x\0"), None);
    }
}
