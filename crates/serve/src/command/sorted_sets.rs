//! Sorted sets: members with scores, but for ranges of them.

use super::{Call, ONE_KEY, Outcome, READ, Spec, WRITE, float, integer, is_word};
use crate::error::CommandError;
use crate::keyspace::FETCHED_MAX;
use std::ops::ControlFlow;
use stitch_db::Direction;
use stitch_format::redis::{self, Collection, Kind, MEMBER, SCORE};

pub(super) const SPECS: &[Spec] = &[
    Spec::new("ZADD", -4, WRITE, ONE_KEY, zadd),
    Spec::new("ZINCRBY", 4, WRITE, ONE_KEY, zincrby),
    Spec::new("ZREM", -3, WRITE, ONE_KEY, zrem),
    Spec::new("ZCARD", 2, READ, ONE_KEY, zcard),
    Spec::new("ZSCORE", 3, READ, ONE_KEY, zscore),
    Spec::new("ZMSCORE", -3, READ, ONE_KEY, zmscore),
    Spec::new("ZRANK", 3, READ, ONE_KEY, zrank),
    Spec::new("ZREVRANK", 3, READ, ONE_KEY, zrank),
    Spec::new("ZPOPMIN", -2, WRITE, ONE_KEY, zpop),
    Spec::new("ZPOPMAX", -2, WRITE, ONE_KEY, zpop),
];

/// Which members `ZADD` changes, and what it returns.
#[derive(Clone, Copy, Debug, Default)]
struct AddOptions {
    only_new: bool,
    only_old: bool,
    greater: bool,
    less: bool,
    counts_changed: bool,
    increments: bool,
}

impl AddOptions {
    /// Returns the options, and how many words they are.
    fn parse(words: &[&[u8]]) -> Result<(Self, usize), CommandError> {
        let mut options = Self::default();
        let mut count = 0;
        for word in words {
            let flag = match () {
                () if is_word(word, "NX") => &mut options.only_new,
                () if is_word(word, "XX") => &mut options.only_old,
                () if is_word(word, "GT") => &mut options.greater,
                () if is_word(word, "LT") => &mut options.less,
                () if is_word(word, "CH") => &mut options.counts_changed,
                () if is_word(word, "INCR") => &mut options.increments,
                () => break,
            };
            *flag = true;
            count += 1;
        }
        if options.only_new && options.only_old {
            return Err(CommandError::text(
                "ERR XX and NX options at the same time are not compatible",
            ));
        }
        let bounds = [options.greater, options.less, options.only_new];
        if bounds.iter().filter(|is_on| **is_on).count() > 1 {
            return Err(CommandError::text(
                "ERR GT, LT, and/or NX options at the same time are not compatible",
            ));
        }
        Ok((options, count))
    }

    fn allow(self, old: Option<f64>, new: f64) -> bool {
        match old {
            None => !self.only_old,
            Some(old) => {
                !self.only_new && (!self.greater || new > old) && (!self.less || new < old)
            }
        }
    }
}

fn zadd(call: &mut Call<'_, '_>) -> Outcome {
    let (options, count) = AddOptions::parse(&call.args[2..])?;
    let pairs = &call.args[2 + count..];
    if pairs.is_empty() || !pairs.len().is_multiple_of(2) {
        return Err(CommandError::SYNTAX);
    }
    if options.increments && pairs.len() > 2 {
        return Err(CommandError::text(
            "ERR INCR option supports a single increment-element pair",
        ));
    }
    let mut scores = Vec::with_capacity(pairs.len() / 2);
    for pair in pairs.chunks_exact(2) {
        scores.push(float(pair[0])?);
        call.keys.check_name(pair[1])?;
    }
    let key = call.args[1];
    let mut open = call.keys.collection_or_new(key, Kind::SortedSet)?;
    let (mut added, mut changed, mut incremented) = (0, 0, None);
    for (index, (pair, score)) in pairs.chunks_exact(2).zip(scores).enumerate() {
        if index.is_multiple_of(FETCHED_MAX) {
            let rest = pairs[2 * index + 1..].iter().copied();
            let members = rest.step_by(2).take(FETCHED_MAX);
            call.keys.fetch_members(open.collection, MEMBER, members)?;
        }
        let member = pair[1];
        let old = call.keys.score(open.collection, member)?;
        let score = match old {
            Some(old) if options.increments => old + score,
            _ => score,
        };
        if score.is_nan() {
            return Err(CommandError::text(
                "ERR resulting score is not a number (NaN)",
            ));
        }
        if options.allow(old, score) {
            incremented = Some(score);
            added += u64::from(old.is_none());
            changed += u64::from(old != Some(score));
            if old != Some(score) {
                call.keys.set_score(&mut open, member, old, score);
            }
        }
    }
    if changed > 0 {
        call.keys.finish(key, &open)?;
    }
    match (options.increments, incremented) {
        (true, Some(score)) => call.reply.float(score),
        (true, None) => call.reply.null(),
        (false, _) if options.counts_changed => call.reply.count(changed),
        (false, _) => call.reply.count(added),
    }
    Ok(())
}

fn zincrby(call: &mut Call<'_, '_>) -> Outcome {
    let amount = float(call.args[2])?;
    let (key, member) = (call.args[1], call.args[3]);
    call.keys.check_name(member)?;
    let mut open = call.keys.collection_or_new(key, Kind::SortedSet)?;
    let old = call.keys.score(open.collection, member)?;
    let score = old.unwrap_or(0.0) + amount;
    if score.is_nan() {
        return Err(CommandError::text(
            "ERR resulting score is not a number (NaN)",
        ));
    }
    if old != Some(score) {
        call.keys.set_score(&mut open, member, old, score);
        call.keys.finish(key, &open)?;
    }
    call.reply.float(score);
    Ok(())
}

fn zrem(call: &mut Call<'_, '_>) -> Outcome {
    let mut removed = 0;
    if let Some(mut open) = call.keys.open_collection(call.args[1], Kind::SortedSet)? {
        for members in call.args[2..].chunks(FETCHED_MAX) {
            let names = members.iter().copied();
            call.keys.fetch_members(open.collection, MEMBER, names)?;
            for member in members {
                if let Some(score) = call.keys.score(open.collection, member)? {
                    call.keys.remove_member(&mut open, member, score);
                    removed += 1;
                }
            }
        }
        if removed > 0 {
            call.keys.finish(call.args[1], &open)?;
        }
    }
    call.reply.count(removed);
    Ok(())
}

fn zcard(call: &mut Call<'_, '_>) -> Outcome {
    let open = call.keys.open_collection(call.args[1], Kind::SortedSet)?;
    call.reply
        .count(open.map_or(0, |open| open.collection.count));
    Ok(())
}

fn zscore(call: &mut Call<'_, '_>) -> Outcome {
    let score = match call.keys.open_collection(call.args[1], Kind::SortedSet)? {
        Some(open) => call.keys.score(open.collection, call.args[2])?,
        None => None,
    };
    match score {
        Some(score) => call.reply.float(score),
        None => call.reply.null(),
    }
    Ok(())
}

fn zmscore(call: &mut Call<'_, '_>) -> Outcome {
    let open = call.keys.open_collection(call.args[1], Kind::SortedSet)?;
    call.reply.array(call.args.len() - 2);
    for members in call.args[2..].chunks(FETCHED_MAX) {
        if let Some(open) = &open {
            let names = members.iter().copied();
            call.keys.fetch_members(open.collection, MEMBER, names)?;
        }
        for member in members {
            let score = match &open {
                Some(open) => call.keys.score(open.collection, member)?,
                None => None,
            };
            match score {
                Some(score) => call.reply.float(score),
                None => call.reply.null(),
            }
        }
    }
    Ok(())
}

/// The place of a member in the order of scores. Reads all members before it.
fn zrank(call: &mut Call<'_, '_>) -> Outcome {
    let open = call.keys.open_collection(call.args[1], Kind::SortedSet)?;
    let member = call.args[2];
    let Some(set) = open.map(|open| open.collection) else {
        call.reply.null();
        return Ok(());
    };
    if call.keys.score(set, member)?.is_none() {
        call.reply.null();
        return Ok(());
    }
    let direction = if is_word(call.args[0], "ZRANK") {
        Direction::Forward
    } else {
        Direction::Backward
    };
    let mut rank = 0;
    call.keys
        .scan_members(set, SCORE, &[], direction, |rest, _| {
            if redis::score_of_rest(rest).is_some_and(|(_, other)| other == member) {
                return ControlFlow::Break(());
            }
            rank += 1;
            ControlFlow::Continue(())
        })?;
    call.reply.count(rank);
    Ok(())
}

fn zpop(call: &mut Call<'_, '_>) -> Outcome {
    let count = match call.args.get(2) {
        Some(count) => usize::try_from(integer(count)?)
            .map_err(|_| CommandError::text("ERR value is out of range, must be positive"))?,
        None => 1,
    };
    if call.args.len() > 3 {
        return Err(CommandError::SYNTAX);
    }
    let direction = if is_word(call.args[0], "ZPOPMIN") {
        Direction::Forward
    } else {
        Direction::Backward
    };
    let mut popped = Vec::new();
    if let Some(mut open) = call.keys.open_collection(call.args[1], Kind::SortedSet)? {
        popped = first_members(call, open.collection, direction, count)?;
        for (score, member) in &popped {
            call.keys.remove_member(&mut open, member, *score);
        }
        if !popped.is_empty() {
            call.keys.finish(call.args[1], &open)?;
        }
    }
    call.reply.array(2 * popped.len());
    for (score, member) in &popped {
        call.reply.bulk(member);
        call.reply.float(*score);
    }
    Ok(())
}

fn first_members(
    call: &Call<'_, '_>,
    set: Collection,
    direction: Direction,
    count: usize,
) -> Result<Vec<(f64, Vec<u8>)>, CommandError> {
    let mut found = Vec::new();
    call.keys
        .scan_members(set, SCORE, &[], direction, |rest, _| {
            if found.len() == count {
                return ControlFlow::Break(());
            }
            found
                .extend(redis::score_of_rest(rest).map(|(score, member)| (score, member.to_vec())));
            ControlFlow::Continue(())
        })?;
    Ok(found)
}
