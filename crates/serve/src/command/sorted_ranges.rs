//! Ranges of sorted sets: by rank, by score, by name.
//!
//! All forms (`ZRANGE` with its options, `ZREVRANGE`, `ZRANGEBYSCORE`, `ZCOUNT`, `ZREMRANGEBYRANK`,
//! ...) become one [`MemberRange`], which one walk goes through. A range by score begins at its
//! first member; one by rank reads what is before it.

use super::{Call, ONE_KEY, Outcome, READ, Spec, WRITE, index_range, integer, is_word};
use crate::error::CommandError;
use crate::number;
use std::ops::ControlFlow;
use stitch_db::Direction;
use stitch_format::redis::{self, Collection, Kind, SCORE};

pub(super) const SPECS: &[Spec] = &[
    Spec::new("ZRANGE", -4, READ, ONE_KEY, zrange),
    Spec::new("ZREVRANGE", -4, READ, ONE_KEY, zrange),
    Spec::new("ZRANGEBYSCORE", -4, READ, ONE_KEY, zrange),
    Spec::new("ZREVRANGEBYSCORE", -4, READ, ONE_KEY, zrange),
    Spec::new("ZRANGEBYLEX", -4, READ, ONE_KEY, zrange),
    Spec::new("ZREVRANGEBYLEX", -4, READ, ONE_KEY, zrange),
    Spec::new("ZCOUNT", 4, READ, ONE_KEY, zcount),
    Spec::new("ZLEXCOUNT", 4, READ, ONE_KEY, zcount),
    Spec::new("ZREMRANGEBYRANK", 4, WRITE, ONE_KEY, zremrange),
    Spec::new("ZREMRANGEBYSCORE", 4, WRITE, ONE_KEY, zremrange),
    Spec::new("ZREMRANGEBYLEX", 4, WRITE, ONE_KEY, zremrange),
];

/// By what a range is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Rank,
    Score,
    Name,
}

/// An end of a range by score: `1`, or `(1` for one that is not part of it.
#[derive(Clone, Copy, Debug)]
struct ScoreEnd {
    score: f64,
    is_open: bool,
}

impl ScoreEnd {
    fn parse(arg: &[u8]) -> Result<Self, CommandError> {
        let (text, is_open) = match arg.strip_prefix(b"(") {
            Some(rest) => (rest, true),
            None => (arg, false),
        };
        let score = number::float(text);
        let score = score.ok_or(CommandError::text("ERR min or max is not a float"))?;
        Ok(Self { score, is_open })
    }
}

/// An end of a range by name: `-`, `+`, `[name`, or `(name` for one that is not part of it.
#[derive(Clone, Debug)]
enum NameEnd {
    First,
    Last,
    At { name: Vec<u8>, is_open: bool },
}

impl NameEnd {
    fn parse(arg: &[u8]) -> Result<Self, CommandError> {
        match arg.split_first() {
            Some((b'-', [])) => Ok(Self::First),
            Some((b'+', [])) => Ok(Self::Last),
            Some((mark @ (b'[' | b'('), name)) => Ok(Self::At {
                name: name.to_vec(),
                is_open: *mark == b'(',
            }),
            _ => Err(CommandError::text(
                "ERR min or max not valid string range item",
            )),
        }
    }
}

/// The members of a range.
#[derive(Clone, Debug)]
enum MemberRange {
    Rank(i64, i64),
    Score(ScoreEnd, ScoreEnd),
    Name(NameEnd, NameEnd),
}

impl MemberRange {
    /// `first` and `second` as the command has them: the largest first in a reversed range.
    fn parse(
        order: Order,
        first: &[u8],
        second: &[u8],
        is_reversed: bool,
    ) -> Result<Self, CommandError> {
        let (min, max) = match is_reversed {
            true if order != Order::Rank => (second, first),
            _ => (first, second),
        };
        Ok(match order {
            Order::Rank => Self::Rank(integer(min)?, integer(max)?),
            Order::Score => Self::Score(ScoreEnd::parse(min)?, ScoreEnd::parse(max)?),
            Order::Name => Self::Name(NameEnd::parse(min)?, NameEnd::parse(max)?),
        })
    }

    /// Whether a member is before the range (in order of scores), in it, or behind it.
    fn place(&self, score: f64, member: &[u8]) -> std::cmp::Ordering {
        use std::cmp::Ordering::{Equal, Greater, Less};
        match self {
            Self::Rank(..) => Equal,
            Self::Score(min, max) => {
                if score < min.score || (min.is_open && score <= min.score) {
                    Less
                } else if score > max.score || (max.is_open && score >= max.score) {
                    Greater
                } else {
                    Equal
                }
            }
            Self::Name(min, max) => {
                let is_before = match min {
                    NameEnd::First => false,
                    NameEnd::Last => true,
                    NameEnd::At { name, is_open } => {
                        member < name.as_slice() || (*is_open && member == name.as_slice())
                    }
                };
                let is_behind = match max {
                    NameEnd::First => true,
                    NameEnd::Last => false,
                    NameEnd::At { name, is_open } => {
                        member > name.as_slice() || (*is_open && member == name.as_slice())
                    }
                };
                match (is_before, is_behind) {
                    (true, _) => Less,
                    (_, true) => Greater,
                    _ => Equal,
                }
            }
        }
    }
}

/// Finds the members of a range, in the order of the walk, but for `skip` of them, and at most
/// `count`.
fn find(
    call: &Call<'_, '_>,
    set: Collection,
    range: &MemberRange,
    is_reversed: bool,
    (skip, count): (usize, usize),
) -> Result<Vec<(f64, Vec<u8>)>, CommandError> {
    let (skip, count) = match range {
        MemberRange::Rank(start, stop) => {
            let ranks = index_range(*start, *stop, set.count);
            (ranks.start, ranks.len())
        }
        _ => (skip, count),
    };
    let (direction, end) = if is_reversed {
        (Direction::Backward, std::cmp::Ordering::Less)
    } else {
        (Direction::Forward, std::cmp::Ordering::Greater)
    };
    let start = match range {
        MemberRange::Score(min, _) if !is_reversed => score_start(set, min.score),
        _ => Vec::new(),
    };
    let (mut found, mut skipped) = (Vec::new(), 0);
    call.keys
        .scan_members(set, SCORE, &start, direction, |rest, _| {
            let Some((score, member)) = redis::score_of_rest(rest) else {
                return ControlFlow::Continue(());
            };
            let place = range.place(score, member);
            if found.len() == count || place == end {
                return ControlFlow::Break(());
            }
            if place == std::cmp::Ordering::Equal {
                if skipped < skip {
                    skipped += 1;
                } else {
                    found.push((score, member.to_vec()));
                }
            }
            ControlFlow::Continue(())
        })?;
    Ok(found)
}

/// What follows the mark in the first row of a score.
fn score_start(set: Collection, score: f64) -> Vec<u8> {
    let row = redis::score_row(set.number, score, &[]);
    row[redis::member_prefix(set.number, SCORE).len()..].to_vec()
}

struct RangeOptions {
    order: Order,
    is_reversed: bool,
    with_scores: bool,
    skip: usize,
    count: usize,
    has_limit: bool,
}

impl RangeOptions {
    /// What a command's name says.
    fn of_command(name: &[u8]) -> Self {
        let upper = name.to_ascii_uppercase();
        let ends = |end: &str| upper.ends_with(end.as_bytes());
        let order = if ends("BYSCORE") || ends("ZCOUNT") {
            Order::Score
        } else if ends("BYLEX") || ends("LEXCOUNT") {
            Order::Name
        } else {
            Order::Rank
        };
        Self {
            order,
            is_reversed: upper.starts_with(b"ZREV"),
            with_scores: false,
            skip: 0,
            count: usize::MAX,
            has_limit: false,
        }
    }

    fn parse(args: &[&[u8]]) -> Result<Self, CommandError> {
        let mut options = Self::of_command(args[0]);
        let is_general = is_word(args[0], "ZRANGE");
        let mut words = args[4..].iter();
        while let Some(word) = words.next() {
            if is_word(word, "WITHSCORES") {
                options.with_scores = true;
            } else if is_word(word, "LIMIT") {
                let (Some(skip), Some(count)) = (words.next(), words.next()) else {
                    return Err(CommandError::SYNTAX);
                };
                // A negative offset returns nothing, a negative count all.
                options.skip = usize::try_from(integer(skip)?).unwrap_or(usize::MAX);
                options.count = usize::try_from(integer(count)?).unwrap_or(usize::MAX);
                options.has_limit = true;
            } else if is_general && is_word(word, "REV") {
                options.is_reversed = true;
            } else if is_general && is_word(word, "BYSCORE") {
                options.order = Order::Score;
            } else if is_general && is_word(word, "BYLEX") {
                options.order = Order::Name;
            } else {
                return Err(CommandError::SYNTAX);
            }
        }
        if options.has_limit && options.order == Order::Rank {
            return Err(CommandError::text(
                "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or \
                 BYLEX",
            ));
        }
        if options.with_scores && options.order == Order::Name {
            return Err(CommandError::text(
                "ERR syntax error, WITHSCORES not supported in combination with BYLEX",
            ));
        }
        Ok(options)
    }
}

fn zrange(call: &mut Call<'_, '_>) -> Outcome {
    let options = RangeOptions::parse(call.args)?;
    let is_reversed = options.is_reversed;
    let range = MemberRange::parse(options.order, call.args[2], call.args[3], is_reversed)?;
    let found = match call.keys.open_collection(call.args[1], Kind::SortedSet)? {
        Some(open) => {
            let limit = (options.skip, options.count);
            find(call, open.collection, &range, is_reversed, limit)?
        }
        None => Vec::new(),
    };
    let is_paired = options.with_scores && call.reply.protocol() == crate::resp::Protocol::Three;
    let each = if options.with_scores && !is_paired {
        2
    } else {
        1
    };
    call.reply.array(each * found.len());
    for (score, member) in &found {
        if is_paired {
            call.reply.array(2);
        }
        call.reply.bulk(member);
        if options.with_scores {
            call.reply.float(*score);
        }
    }
    Ok(())
}

/// The members of a range that a command without options gives.
fn find_plain(call: &mut Call<'_, '_>) -> Result<Vec<(f64, Vec<u8>)>, CommandError> {
    let order = RangeOptions::of_command(call.args[0]).order;
    let range = MemberRange::parse(order, call.args[2], call.args[3], false)?;
    match call.keys.open_collection(call.args[1], Kind::SortedSet)? {
        Some(open) => find(call, open.collection, &range, false, (0, usize::MAX)),
        None => Ok(Vec::new()),
    }
}

fn zcount(call: &mut Call<'_, '_>) -> Outcome {
    let found = find_plain(call)?;
    call.reply.count(found.len() as u64);
    Ok(())
}

fn zremrange(call: &mut Call<'_, '_>) -> Outcome {
    let found = find_plain(call)?;
    if !found.is_empty()
        && let Some(mut open) = call.keys.open_collection(call.args[1], Kind::SortedSet)?
    {
        for (score, member) in &found {
            call.keys.remove_member(&mut open, member, *score);
        }
        call.keys.finish(call.args[1], &open)?;
    }
    call.reply.count(found.len() as u64);
    Ok(())
}
