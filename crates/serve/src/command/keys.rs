//! Keys of any type.

use super::{ALL_KEYS, Call, NO_KEYS, ONE_KEY, Outcome, READ, Spec, WRITE, is_word};
use crate::error::CommandError;
use crate::keyspace::FETCHED_MAX;
use stitch_format::redis::Kind;

pub(super) const SPECS: &[Spec] = &[
    Spec::new("DEL", -2, WRITE, ALL_KEYS, del),
    Spec::new("UNLINK", -2, WRITE, ALL_KEYS, del),
    Spec::new("EXISTS", -2, READ, ALL_KEYS, exists),
    Spec::new("TOUCH", -2, READ, ALL_KEYS, exists),
    Spec::new("TYPE", 2, READ, ONE_KEY, kind),
    Spec::new("RENAME", 3, WRITE, (1, 2, 1), rename),
    Spec::new("RENAMENX", 3, WRITE, (1, 2, 1), renamenx),
    Spec::new("COPY", -3, WRITE, (1, 2, 1), copy),
    Spec::new("DBSIZE", 1, READ, NO_KEYS, dbsize),
    Spec::new("RANDOMKEY", 1, READ, NO_KEYS, randomkey),
    Spec::new("FLUSHDB", -1, WRITE, NO_KEYS, flush),
    Spec::new("FLUSHALL", -1, WRITE, NO_KEYS, flush),
];

fn del(call: &mut Call<'_, '_>) -> Outcome {
    let mut count = 0;
    for keys in call.args[1..].chunks(FETCHED_MAX) {
        call.keys.fetch_keys(keys.iter().copied())?;
        for key in keys {
            count += u64::from(call.keys.remove(key)?);
        }
    }
    call.reply.count(count);
    Ok(())
}

fn exists(call: &mut Call<'_, '_>) -> Outcome {
    let mut count = 0;
    for keys in call.args[1..].chunks(FETCHED_MAX) {
        call.keys.fetch_keys(keys.iter().copied())?;
        for key in keys {
            count += u64::from(call.keys.value(key)?.is_some());
        }
    }
    call.reply.count(count);
    Ok(())
}

/// The name of a type, as `TYPE` returns it and `SCAN` takes it.
pub(super) const fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::String => "string",
        Kind::Hash => "hash",
        Kind::SortedSet => "zset",
    }
}

fn kind(call: &mut Call<'_, '_>) -> Outcome {
    let value = call.keys.value(call.args[1])?;
    call.reply
        .simple(value.map_or("none", |value| kind_name(value.head.kind)));
    Ok(())
}

fn rename(call: &mut Call<'_, '_>) -> Outcome {
    let (from, to) = (call.args[1], call.args[2]);
    call.keys.fetch_keys([from, to].into_iter())?;
    let value = call.keys.value(from)?.ok_or(CommandError::NO_KEY)?;
    call.keys.rename(from, &value, to)?;
    call.reply.ok();
    Ok(())
}

fn renamenx(call: &mut Call<'_, '_>) -> Outcome {
    let (from, to) = (call.args[1], call.args[2]);
    call.keys.fetch_keys([from, to].into_iter())?;
    let value = call.keys.value(from)?.ok_or(CommandError::NO_KEY)?;
    let is_free = call.keys.value(to)?.is_none();
    if is_free {
        call.keys.rename(from, &value, to)?;
    }
    call.reply.flag(is_free);
    Ok(())
}

fn copy(call: &mut Call<'_, '_>) -> Outcome {
    let (from, to) = (call.args[1], call.args[2]);
    let mut replaces = false;
    let mut words = call.args[3..].iter();
    while let Some(word) = words.next() {
        if is_word(word, "REPLACE") {
            replaces = true;
        } else if is_word(word, "DB") {
            match words.next() {
                Some(number) if *number == b"0" => {}
                Some(_) => return Err(CommandError::text("ERR DB index is out of range")),
                None => return Err(CommandError::SYNTAX),
            }
        } else {
            return Err(CommandError::SYNTAX);
        }
    }
    if from == to {
        return Err(CommandError::text(
            "ERR source and destination objects are the same",
        ));
    }
    call.keys.check_name(to)?;
    call.keys.fetch_keys([from, to].into_iter())?;
    let value = call.keys.value(from)?;
    let is_free = call.keys.value(to)?.is_none();
    let Some(value) = value.filter(|_| is_free || replaces) else {
        call.reply.flag(false);
        return Ok(());
    };
    call.keys.copy_over(&value, to)?;
    call.reply.flag(true);
    Ok(())
}

fn dbsize(call: &mut Call<'_, '_>) -> Outcome {
    let (keys, _) = call.keys.counts()?;
    call.reply.count(keys);
    Ok(())
}

fn randomkey(call: &mut Call<'_, '_>) -> Outcome {
    let key = call.keys.random_key()?;
    call.reply.bulk_or_null(key.as_deref());
    Ok(())
}

fn flush(call: &mut Call<'_, '_>) -> Outcome {
    match call.args[1..] {
        [] => {}
        [word] if is_word(word, "ASYNC") || is_word(word, "SYNC") => {}
        _ => return Err(CommandError::SYNTAX),
    }
    call.keys.flush();
    call.reply.ok();
    Ok(())
}
