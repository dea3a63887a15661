//! Strings.

use super::{
    ALL_KEYS, Call, ONE_KEY, Outcome, READ, Spec, WRITE, expiry, index_range, integer, is_word,
};
use crate::error::CommandError;
use crate::keyspace::{FETCHED_MAX, Value};

pub(super) const SPECS: &[Spec] = &[
    Spec::new("GET", 2, READ, ONE_KEY, get),
    Spec::new("SET", -3, WRITE, ONE_KEY, set),
    Spec::new("SETNX", 3, WRITE, ONE_KEY, setnx),
    Spec::new("SETEX", 4, WRITE, ONE_KEY, setex),
    Spec::new("PSETEX", 4, WRITE, ONE_KEY, setex),
    Spec::new("GETSET", 3, WRITE, ONE_KEY, getset),
    Spec::new("GETDEL", 2, WRITE, ONE_KEY, getdel),
    Spec::new("GETEX", -2, WRITE, ONE_KEY, getex),
    Spec::new("APPEND", 3, WRITE, ONE_KEY, append),
    Spec::new("STRLEN", 2, READ, ONE_KEY, strlen),
    Spec::new("GETRANGE", 4, READ, ONE_KEY, getrange),
    Spec::new("SUBSTR", 4, READ, ONE_KEY, getrange),
    Spec::new("SETRANGE", 4, WRITE, ONE_KEY, setrange),
    Spec::new("MGET", -2, READ, ALL_KEYS, mget),
    Spec::new("MSET", -3, WRITE, (1, -1, 2), mset),
    Spec::new("MSETNX", -3, WRITE, (1, -1, 2), msetnx),
];

fn get(call: &mut Call<'_, '_>) -> Outcome {
    let value = call.keys.string(call.args[1])?;
    call.reply
        .bulk_or_null(value.as_ref().map(|value| &value.body[..]));
    Ok(())
}

/// When `SET` sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Always,
    IfMissing,
    IfThere,
}

struct SetOptions {
    when: When,
    expiry_ms: u64,
    keeps_expiry: bool,
    returns_old: bool,
}

fn set_options(call: &Call<'_, '_>) -> Result<SetOptions, CommandError> {
    let mut options = SetOptions {
        when: When::Always,
        expiry_ms: 0,
        keeps_expiry: false,
        returns_old: false,
    };
    let mut words = call.args[3..].iter();
    while let Some(word) = words.next() {
        let has_expiry = options.expiry_ms > 0 || options.keeps_expiry;
        if is_word(word, "NX") && options.when != When::IfThere {
            options.when = When::IfMissing;
        } else if is_word(word, "XX") && options.when != When::IfMissing {
            options.when = When::IfThere;
        } else if is_word(word, "GET") {
            options.returns_old = true;
        } else if is_word(word, "KEEPTTL") && !has_expiry {
            options.keeps_expiry = true;
        } else if let Some(unit) = expiry::Unit::of_option(word).filter(|_| !has_expiry) {
            let number = words.next().ok_or(CommandError::SYNTAX)?;
            options.expiry_ms = unit.expiry_ms(integer(number)?, call.keys.now_ms(), "set")?;
        } else {
            return Err(CommandError::SYNTAX);
        }
    }
    Ok(options)
}

fn set(call: &mut Call<'_, '_>) -> Outcome {
    let options = set_options(call)?;
    let (key, string) = (call.args[1], call.args[2]);
    let old = call.keys.value(key)?;
    if options.returns_old && old.as_ref().is_some_and(|old| !is_string(old)) {
        return Err(CommandError::WRONG_TYPE);
    }
    let is_set = match options.when {
        When::Always => true,
        When::IfMissing => old.is_none(),
        When::IfThere => old.is_some(),
    };
    if is_set {
        let kept = old.as_ref().filter(|_| options.keeps_expiry);
        let expiry_ms = kept.map_or(options.expiry_ms, |old| old.head.expiry_ms);
        call.keys.set_string(key, old.as_ref(), string, expiry_ms)?;
    }
    if options.returns_old {
        call.reply
            .bulk_or_null(old.as_ref().map(|old| &old.body[..]));
    } else if is_set {
        call.reply.ok();
    } else {
        call.reply.null();
    }
    Ok(())
}

fn is_string(value: &Value) -> bool {
    value.head.kind == stitch_format::redis::Kind::String
}

fn setnx(call: &mut Call<'_, '_>) -> Outcome {
    let key = call.args[1];
    let is_set = call.keys.value(key)?.is_none();
    if is_set {
        call.keys.set_string(key, None, call.args[2], 0)?;
    }
    call.reply.flag(is_set);
    Ok(())
}

fn setex(call: &mut Call<'_, '_>) -> Outcome {
    let (unit, name) = if is_word(call.args[0], "SETEX") {
        (expiry::Unit::IN_SECONDS, "setex")
    } else {
        (expiry::Unit::IN_MILLIS, "psetex")
    };
    let expiry_ms = unit.expiry_ms(integer(call.args[2])?, call.keys.now_ms(), name)?;
    let key = call.args[1];
    let old = call.keys.value(key)?;
    call.keys
        .set_string(key, old.as_ref(), call.args[3], expiry_ms)?;
    call.reply.ok();
    Ok(())
}

fn getset(call: &mut Call<'_, '_>) -> Outcome {
    let old = call.keys.string(call.args[1])?;
    call.keys
        .set_string(call.args[1], old.as_ref(), call.args[2], 0)?;
    call.reply
        .bulk_or_null(old.as_ref().map(|old| &old.body[..]));
    Ok(())
}

fn getdel(call: &mut Call<'_, '_>) -> Outcome {
    let old = call.keys.string(call.args[1])?;
    if let Some(old) = &old {
        call.keys.remove_value(call.args[1], old)?;
    }
    call.reply
        .bulk_or_null(old.as_ref().map(|old| &old.body[..]));
    Ok(())
}

fn getex(call: &mut Call<'_, '_>) -> Outcome {
    let new = match call.args[2..] {
        [] => None,
        [word] if is_word(word, "PERSIST") => Some(0),
        [word, number] => {
            let unit = expiry::Unit::of_option(word).ok_or(CommandError::SYNTAX)?;
            Some(unit.expiry_ms(integer(number)?, call.keys.now_ms(), "getex")?)
        }
        _ => return Err(CommandError::SYNTAX),
    };
    let value = call.keys.string(call.args[1])?;
    if let (Some(value), Some(expiry_ms)) = (&value, new)
        && value.head.expiry_ms != expiry_ms
    {
        call.keys.set_expiry(call.args[1], value, expiry_ms)?;
    }
    call.reply
        .bulk_or_null(value.as_ref().map(|value| &value.body[..]));
    Ok(())
}

fn append(call: &mut Call<'_, '_>) -> Outcome {
    let old = call.keys.string(call.args[1])?;
    let (body, expiry_ms) = match &old {
        Some(old) => (&old.body[..], old.head.expiry_ms),
        None => (&[][..], 0),
    };
    call.keys.check_value_len(body.len() + call.args[2].len())?;
    let string = [body, call.args[2]].concat();
    call.keys
        .set_string(call.args[1], old.as_ref(), &string, expiry_ms)?;
    call.reply.count(string.len() as u64);
    Ok(())
}

fn strlen(call: &mut Call<'_, '_>) -> Outcome {
    let value = call.keys.string(call.args[1])?;
    call.reply
        .count(value.map_or(0, |value| value.body.len() as u64));
    Ok(())
}

fn getrange(call: &mut Call<'_, '_>) -> Outcome {
    let (start, stop) = (integer(call.args[2])?, integer(call.args[3])?);
    let value = call.keys.string(call.args[1])?;
    let body = value.as_ref().map_or(&[][..], |value| &value.body[..]);
    call.reply
        .bulk(&body[index_range(start, stop, body.len() as u64)]);
    Ok(())
}

fn setrange(call: &mut Call<'_, '_>) -> Outcome {
    let offset = usize::try_from(integer(call.args[2])?)
        .map_err(|_| CommandError::text("ERR offset is out of range"))?;
    let patch = call.args[3];
    let old = call.keys.string(call.args[1])?;
    let (body, expiry_ms) = match &old {
        Some(old) => (&old.body[..], old.head.expiry_ms),
        None => (&[][..], 0),
    };
    if patch.is_empty() {
        call.reply.count(body.len() as u64);
        return Ok(());
    }
    let end = offset.saturating_add(patch.len());
    call.keys.check_value_len(end)?;
    let mut string = body.to_vec();
    string.resize(string.len().max(end), 0);
    string[offset..end].copy_from_slice(patch);
    call.keys
        .set_string(call.args[1], old.as_ref(), &string, expiry_ms)?;
    call.reply.count(string.len() as u64);
    Ok(())
}

fn mget(call: &mut Call<'_, '_>) -> Outcome {
    call.reply.array(call.args.len() - 1);
    for keys in call.args[1..].chunks(FETCHED_MAX) {
        call.keys.fetch_keys(keys.iter().copied())?;
        for key in keys {
            let value = call.keys.value(key)?.filter(is_string);
            call.reply
                .bulk_or_null(value.as_ref().map(|value| &value.body[..]));
        }
    }
    Ok(())
}

/// Checks the pairs of `MSET` before any of them is set.
fn check_pairs(call: &Call<'_, '_>, name: &str) -> Outcome {
    if call.args.len().is_multiple_of(2) {
        let text = format!("ERR wrong number of arguments for '{name}' command");
        return Err(CommandError::Client(text.into()));
    }
    for pair in call.args[1..].chunks_exact(2) {
        call.keys.check_name(pair[0])?;
        call.keys.check_value_len(pair[1].len())?;
    }
    Ok(())
}

fn set_pairs(call: &mut Call<'_, '_>) -> Outcome {
    for pairs in call.args[1..].chunks(2 * FETCHED_MAX) {
        call.keys.fetch_keys(pairs.iter().copied().step_by(2))?;
        for pair in pairs.chunks_exact(2) {
            let old = call.keys.value(pair[0])?;
            call.keys.set_string(pair[0], old.as_ref(), pair[1], 0)?;
        }
    }
    Ok(())
}

fn mset(call: &mut Call<'_, '_>) -> Outcome {
    check_pairs(call, "mset")?;
    set_pairs(call)?;
    call.reply.ok();
    Ok(())
}

fn msetnx(call: &mut Call<'_, '_>) -> Outcome {
    check_pairs(call, "msetnx")?;
    for pairs in call.args[1..].chunks(2 * FETCHED_MAX) {
        call.keys.fetch_keys(pairs.iter().copied().step_by(2))?;
        for pair in pairs.chunks_exact(2) {
            if call.keys.value(pair[0])?.is_some() {
                call.reply.flag(false);
                return Ok(());
            }
        }
    }
    set_pairs(call)?;
    call.reply.flag(true);
    Ok(())
}
