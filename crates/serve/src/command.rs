//! The commands: one file for each group, one function for each command or family.
//!
//! A command reads and changes keys through [`Keyspace`], and writes one reply. It checks its
//! arguments before it changes anything, so that one with an error changes nothing.

mod connection;
mod counters;
mod expiry;
mod hash_fields;
mod hashes;
mod keys;
mod scanning;
mod server;
mod sorted_ranges;
mod sorted_sets;
mod strings;
mod transactions;

pub(crate) use scanning::Cursors;
pub(crate) use transactions::Queue;

use crate::client::ClientState;
use crate::error::CommandError;
use crate::keyspace::Keyspace;
use crate::number;
use crate::resp::Reply;
use crate::service::Shared;
use std::sync::OnceLock;

/// What a command has to say, if it is no reply.
pub(crate) type Outcome = Result<(), CommandError>;

/// A command that runs.
pub(crate) struct Call<'a, 'o> {
    /// Name and arguments.
    pub(crate) args: &'a [&'a [u8]],
    pub(crate) keys: &'a mut Keyspace,
    pub(crate) client: &'a mut ClientState,
    pub(crate) shared: &'a mut Shared,
    pub(crate) reply: &'a mut Reply<'o>,
}

/// Reads keys.
pub(crate) const READ: u8 = 1;
/// Changes keys.
pub(crate) const WRITE: u8 = 2;
/// Runs without a password.
pub(crate) const NO_AUTH: u8 = 4;
/// Runs at once between `MULTI` and `EXEC`.
pub(crate) const AT_ONCE: u8 = 8;

/// Where a command's keys are among its arguments: first, last (from the end if negative), step.
type KeyPlaces = (i8, i8, i8);
const NO_KEYS: KeyPlaces = (0, 0, 0);
const ONE_KEY: KeyPlaces = (1, 1, 1);
const ALL_KEYS: KeyPlaces = (1, -1, 1);

/// A command of the table.
pub(crate) struct Spec {
    pub(crate) name: &'static str,
    /// Number of arguments with the name; at least so many if negative.
    arity: i8,
    pub(crate) flags: u8,
    keys: KeyPlaces,
    pub(crate) run: fn(&mut Call<'_, '_>) -> Outcome,
}

impl Spec {
    const fn new(
        name: &'static str,
        arity: i8,
        flags: u8,
        keys: KeyPlaces,
        run: fn(&mut Call<'_, '_>) -> Outcome,
    ) -> Self {
        Self {
            name,
            arity,
            flags,
            keys,
            run,
        }
    }

    pub(crate) fn takes(&self, count: usize) -> bool {
        let wanted = usize::from(self.arity.unsigned_abs());
        count == wanted || (self.arity < 0 && count > wanted)
    }

    /// Returns the keys among the arguments of a command. Their number is right.
    pub(crate) fn keys_of<'a>(&self, args: &'a [&'a [u8]]) -> impl Iterator<Item = &'a [u8]> {
        debug_assert!(self.takes(args.len()), "a command that was admitted");
        let (first, last, step) = self.keys;
        let at = |place: i8| match place < 0 {
            true => args.len() - usize::from(place.unsigned_abs()),
            false => usize::from(place.unsigned_abs()),
        };
        let keys = (first > 0).then(|| &args[at(first)..=at(last)]);
        let step = usize::from(step.unsigned_abs()).max(1);
        keys.into_iter()
            .flat_map(move |keys| keys.iter().step_by(step).copied())
    }
}

const GROUPS: [&[Spec]; 10] = [
    strings::SPECS,
    counters::SPECS,
    keys::SPECS,
    expiry::SPECS,
    scanning::SPECS,
    hashes::SPECS,
    sorted_sets::SPECS,
    transactions::SPECS,
    connection::SPECS,
    server::SPECS,
];
/// Longest name of a command.
const NAME_BYTES_MAX: usize = 24;

/// All commands, by the lengths of their names: names that a search compares are of one length, and
/// few. Invariant: those of a length are in the order of their names.
struct Table {
    by_len: [Vec<&'static Spec>; NAME_BYTES_MAX + 1],
}

impl Table {
    fn new() -> Self {
        let further = [hash_fields::SPECS, sorted_ranges::SPECS];
        let mut by_len = std::array::from_fn(|_| Vec::new());
        for spec in GROUPS.into_iter().chain(further).flatten() {
            assert!(spec.name.len() <= NAME_BYTES_MAX, "{}", spec.name);
            by_len[spec.name.len()].push(spec);
        }
        for specs in &mut by_len {
            specs.sort_unstable_by_key(|spec: &&Spec| spec.name);
        }
        Self { by_len }
    }

    fn get(&self, upper: &[u8]) -> Option<&'static Spec> {
        let specs = self.by_len.get(upper.len())?;
        let at = specs.binary_search_by_key(&upper, |spec| spec.name.as_bytes());
        at.ok().map(|at| specs[at])
    }

    fn specs(&self) -> impl Iterator<Item = &'static Spec> {
        self.by_len.iter().flatten().copied()
    }

    fn len(&self) -> usize {
        self.by_len.iter().map(Vec::len).sum()
    }
}

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(Table::new)
}

/// Returns the command of a name, in letters of any case.
pub(crate) fn find(name: &[u8]) -> Option<&'static Spec> {
    let mut upper = [0; NAME_BYTES_MAX];
    let upper = upper.get_mut(..name.len())?;
    upper.copy_from_slice(name);
    upper.make_ascii_uppercase();
    table().get(upper)
}

/// True if a word of a command is this keyword, given in capitals.
fn is_word(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

/// Parses an integer argument.
fn integer(arg: &[u8]) -> Result<i64, CommandError> {
    number::integer(arg).ok_or(CommandError::NOT_AN_INTEGER)
}

/// Parses an argument that is a floating-point number.
fn float(arg: &[u8]) -> Result<f64, CommandError> {
    number::float(arg).ok_or(CommandError::NOT_A_FLOAT)
}

/// Returns `[start, end)` of what two indexes with both ends included mean in a sequence of `len`;
/// negative ones count from its end.
fn index_range(start: i64, stop: i64, len: u64) -> std::ops::Range<usize> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let from_end = |index: i64| {
        if index < 0 {
            len.saturating_add(index)
        } else {
            index
        }
    };
    let start = from_end(start).max(0);
    let end = from_end(stop).saturating_add(1).min(len);
    let size = |index: i64| usize::try_from(index).unwrap_or(0);
    if start >= end {
        0..0
    } else {
        size(start)..size(end)
    }
}

/// What a subcommand that is not known gets.
fn unknown_subcommand(command: &str, word: &[u8]) -> CommandError {
    let word = String::from_utf8_lossy(&word[..word.len().min(64)]).into_owned();
    CommandError::Client(
        format!("ERR unknown subcommand '{word}'. Try COMMAND COUNT for what {command} has").into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_once() {
        let count: usize = GROUPS.iter().map(|group| group.len()).sum();
        let count = count + hash_fields::SPECS.len() + sorted_ranges::SPECS.len();
        assert_eq!(table().len(), count);
        assert!(find(b"gEt").is_some_and(|spec| spec.name == "GET"));
        assert!(find(&[b'a'; 30]).is_none());
        for spec in table().specs() {
            let found = find(spec.name.to_ascii_lowercase().as_bytes());
            assert!(found.is_some_and(|found| found.name == spec.name));
        }
    }

    #[test]
    fn indexes_count_from_both_ends() {
        assert_eq!(index_range(0, -1, 5), 0..5);
        assert_eq!(index_range(-3, -2, 5), 2..4);
        assert_eq!(index_range(-100, 100, 5), 0..5);
        assert_eq!(index_range(3, 1, 5), 0..0);
        assert_eq!(index_range(0, -1, 0), 0..0);
        assert_eq!(index_range(i64::MIN, i64::MAX, 5), 0..5);
    }
}
