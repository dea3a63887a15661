//! Walks: `SCAN`, `HSCAN`, `ZSCAN`, `KEYS`.
//!
//! A walk goes through names in their order, so what is there from its beginning to its end is
//! returned once. A cursor is a number for the last name that was looked at. The server keeps the
//! newest [`CURSORS_MAX`] of them; an older one is an error, never a walk with holes.

use super::{Call, NO_KEYS, ONE_KEY, Outcome, READ, Spec, integer, is_word};
use crate::error::CommandError;
use crate::glob;
use crate::keyspace::KeyFilter;
use crate::number;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use stitch_db::Direction;
use stitch_format::redis::{Collection, FIELD, Kind, MEMBER};

pub(super) const SPECS: &[Spec] = &[
    Spec::new("SCAN", -2, READ, NO_KEYS, scan),
    Spec::new("KEYS", 2, READ, NO_KEYS, keys),
    Spec::new("HSCAN", -3, READ, ONE_KEY, hscan),
    Spec::new("ZSCAN", -3, READ, ONE_KEY, zscan),
];

const CURSORS_MAX: usize = 4096;
/// Names that a step of a walk looks at unless `COUNT` says another number.
const COUNT: usize = 10;

/// Where walks go on.
#[derive(Debug, Default)]
pub(crate) struct Cursors {
    last: u64,
    after: BTreeMap<u64, Vec<u8>>,
}

impl Cursors {
    /// Returns a number for "after this name".
    fn add(&mut self, after: Vec<u8>) -> u64 {
        self.last += 1;
        self.after.insert(self.last, after);
        if self.after.len() > CURSORS_MAX {
            self.after.pop_first();
        }
        self.last
    }

    /// Returns the name after which a walk goes on; `None` for its beginning.
    fn find(&self, cursor: &[u8]) -> Result<Option<Vec<u8>>, CommandError> {
        const INVALID: CommandError = CommandError::text("ERR invalid cursor");
        let number = number::integer(cursor).and_then(|number| u64::try_from(number).ok());
        match number.ok_or(INVALID)? {
            0 => Ok(None),
            number => Ok(Some(self.after.get(&number).cloned().ok_or(INVALID)?)),
        }
    }
}

struct WalkOptions<'a> {
    pattern: Option<&'a [u8]>,
    count: usize,
    /// `Some(None)` is a type that no key has.
    kind: Option<Option<Kind>>,
    without_values: bool,
}

fn options<'a>(words: &[&'a [u8]], is_of_keys: bool) -> Result<WalkOptions<'a>, CommandError> {
    let mut options = WalkOptions {
        pattern: None,
        count: COUNT,
        kind: None,
        without_values: false,
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if is_word(word, "NOVALUES") && !is_of_keys {
            options.without_values = true;
            continue;
        }
        let operand = words.next().ok_or(CommandError::SYNTAX)?;
        if is_word(word, "MATCH") {
            options.pattern = Some(operand);
        } else if is_word(word, "COUNT") {
            let count = usize::try_from(integer(operand)?).unwrap_or(0);
            if count == 0 {
                return Err(CommandError::SYNTAX);
            }
            options.count = count;
        } else if is_word(word, "TYPE") && is_of_keys {
            let kinds = [Kind::String, Kind::Hash, Kind::SortedSet];
            let is_named = |kind: &Kind| is_word(operand, super::keys::kind_name(*kind));
            options.kind = Some(kinds.into_iter().find(is_named));
        } else {
            return Err(CommandError::SYNTAX);
        }
    }
    Ok(options)
}

fn reply_cursor(call: &mut Call<'_, '_>, last: Option<Vec<u8>>) {
    let cursor = last.map_or(0, |last| call.shared.cursors.add(last));
    call.reply.array(2);
    call.reply.bulk(cursor.to_string().as_bytes());
}

fn scan(call: &mut Call<'_, '_>) -> Outcome {
    let options = options(&call.args[2..], true)?;
    let after = call.shared.cursors.find(call.args[1])?;
    let filter = KeyFilter {
        pattern: options.pattern,
        kind: options.kind.flatten(),
    };
    let mut page = call
        .keys
        .keys_after(after.as_deref(), options.count, filter)?;
    if options.kind == Some(None) {
        page.keys.clear();
    }
    reply_cursor(call, page.last);
    call.reply.array(page.keys.len());
    for key in &page.keys {
        call.reply.bulk(key);
    }
    Ok(())
}

fn keys(call: &mut Call<'_, '_>) -> Outcome {
    let filter = KeyFilter {
        pattern: Some(call.args[1]),
        kind: None,
    };
    let page = call.keys.keys_after(None, usize::MAX, filter)?;
    call.reply.array(page.keys.len());
    for key in &page.keys {
        call.reply.bulk(key);
    }
    Ok(())
}

fn hscan(call: &mut Call<'_, '_>) -> Outcome {
    walk_members(call, Kind::Hash, FIELD)
}

fn zscan(call: &mut Call<'_, '_>) -> Outcome {
    walk_members(call, Kind::SortedSet, MEMBER)
}

/// Part of a walk through a collection: names with values, and the last name that was looked at.
struct MemberPage {
    entries: Vec<(Vec<u8>, Vec<u8>)>,
    last: Option<Vec<u8>>,
}

fn member_page(
    call: &Call<'_, '_>,
    (collection, mark): (Collection, u8),
    after: Option<&[u8]>,
    options: &WalkOptions<'_>,
) -> Result<MemberPage, CommandError> {
    let mut start = after.unwrap_or_default().to_vec();
    if after.is_some() {
        start.push(0);
    }
    let mut page = MemberPage {
        entries: Vec::new(),
        last: None,
    };
    let (mut seen, mut is_over) = (0, true);
    call.keys.scan_members(
        collection,
        mark,
        &start,
        Direction::Forward,
        |name, value| {
            if seen == options.count {
                is_over = false;
                return ControlFlow::Break(());
            }
            seen += 1;
            page.last = Some(name.to_vec());
            if options
                .pattern
                .is_none_or(|pattern| glob::matches(pattern, name))
            {
                page.entries.push((name.to_vec(), value.to_vec()));
            }
            ControlFlow::Continue(())
        },
    )?;
    if is_over {
        page.last = None;
    }
    Ok(page)
}

fn walk_members(call: &mut Call<'_, '_>, kind: Kind, mark: u8) -> Outcome {
    let options = options(&call.args[3..], false)?;
    let after = call.shared.cursors.find(call.args[2])?;
    let page = match call.keys.open_collection(call.args[1], kind)? {
        Some(open) => member_page(call, (open.collection, mark), after.as_deref(), &options)?,
        None => MemberPage {
            entries: Vec::new(),
            last: None,
        },
    };
    reply_cursor(call, page.last);
    let each = if options.without_values { 1 } else { 2 };
    call.reply.array(each * page.entries.len());
    for (name, value) in &page.entries {
        call.reply.bulk(name);
        match kind {
            _ if options.without_values => {}
            Kind::SortedSet => {
                let bits = value.as_slice().try_into().map_or(0, u64::from_le_bytes);
                call.reply
                    .bulk(number::float_text(f64::from_bits(bits)).as_bytes());
            }
            Kind::String | Kind::Hash => call.reply.bulk(value),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_cursors_are_refused_and_never_wrong() {
        let mut cursors = Cursors::default();
        let first = cursors.add(b"0".to_vec()).to_string();
        assert!(matches!(cursors.find(b"0"), Ok(None)));
        for number in 1..CURSORS_MAX {
            cursors.add(number.to_string().into_bytes());
        }
        assert_eq!(
            cursors.find(first.as_bytes()).ok(),
            Some(Some(b"0".to_vec()))
        );
        let newest = cursors.add(b"new".to_vec()).to_string();
        assert!(cursors.find(first.as_bytes()).is_err());
        assert_eq!(
            cursors.find(newest.as_bytes()).ok(),
            Some(Some(b"new".to_vec()))
        );
        assert!(cursors.find(b"-1").is_err() && cursors.find(b"x").is_err());
    }
}
