//! Single fields of hashes.

use super::{Call, ONE_KEY, Outcome, READ, Spec, WRITE, float, integer};
use crate::error::CommandError;
use crate::keyspace::FETCHED_MAX;
use crate::number;
use bytes::Bytes;
use stitch_format::redis::{FIELD, Kind};

pub(super) const SPECS: &[Spec] = &[
    Spec::new("HGET", 3, READ, ONE_KEY, hget),
    Spec::new("HMGET", -3, READ, ONE_KEY, hmget),
    Spec::new("HEXISTS", 3, READ, ONE_KEY, hexists),
    Spec::new("HSTRLEN", 3, READ, ONE_KEY, hstrlen),
    Spec::new("HSETNX", 4, WRITE, ONE_KEY, hsetnx),
    Spec::new("HINCRBY", 4, WRITE, ONE_KEY, hincrby),
    Spec::new("HINCRBYFLOAT", 4, WRITE, ONE_KEY, hincrbyfloat),
];

fn field(call: &mut Call<'_, '_>, field: &[u8]) -> Result<Option<Bytes>, CommandError> {
    match call.keys.open_collection(call.args[1], Kind::Hash)? {
        Some(open) => call.keys.field(open.collection, field),
        None => Ok(None),
    }
}

fn hget(call: &mut Call<'_, '_>) -> Outcome {
    let value = field(call, call.args[2])?;
    call.reply.bulk_or_null(value.as_deref());
    Ok(())
}

fn hmget(call: &mut Call<'_, '_>) -> Outcome {
    let open = call.keys.open_collection(call.args[1], Kind::Hash)?;
    call.reply.array(call.args.len() - 2);
    for fields in call.args[2..].chunks(FETCHED_MAX) {
        if let Some(open) = &open {
            let names = fields.iter().copied();
            call.keys.fetch_members(open.collection, FIELD, names)?;
        }
        for field in fields {
            let value = match &open {
                Some(open) => call.keys.field(open.collection, field)?,
                None => None,
            };
            call.reply.bulk_or_null(value.as_deref());
        }
    }
    Ok(())
}

fn hexists(call: &mut Call<'_, '_>) -> Outcome {
    let value = field(call, call.args[2])?;
    call.reply.flag(value.is_some());
    Ok(())
}

fn hstrlen(call: &mut Call<'_, '_>) -> Outcome {
    let value = field(call, call.args[2])?;
    call.reply
        .count(value.map_or(0, |value| value.len() as u64));
    Ok(())
}

fn hsetnx(call: &mut Call<'_, '_>) -> Outcome {
    let [_, key, field, value] = *call.args else {
        return Err(CommandError::SYNTAX);
    };
    call.keys.check_name(field)?;
    call.keys.check_value_len(value.len())?;
    let mut open = call.keys.collection_or_new(key, Kind::Hash)?;
    let is_set = call.keys.field(open.collection, field)?.is_none();
    if is_set {
        call.keys.set_field(&mut open, field, value)?;
        call.keys.finish(key, &open)?;
    }
    call.reply.flag(is_set);
    Ok(())
}

fn hincrby(call: &mut Call<'_, '_>) -> Outcome {
    let amount = integer(call.args[3])?;
    let mut sum = 0;
    change_field(call, |old| {
        let old = match old {
            Some(old) => number::integer(old)
                .ok_or(CommandError::text("ERR hash value is not an integer"))?,
            None => 0,
        };
        sum = old.checked_add(amount).ok_or(CommandError::OVERFLOW)?;
        Ok(sum.to_string())
    })?;
    call.reply.integer(sum);
    Ok(())
}

fn hincrbyfloat(call: &mut Call<'_, '_>) -> Outcome {
    let amount = float(call.args[3])?;
    let text = change_field(call, |old| {
        let old = match old {
            Some(old) => {
                number::float(old).ok_or(CommandError::text("ERR hash value is not a float"))?
            }
            None => 0.0,
        };
        let sum = old + amount;
        if !sum.is_finite() {
            return Err(CommandError::NOT_FINITE);
        }
        Ok(format!("{}", if sum == 0.0 { 0.0 } else { sum }))
    })?;
    call.reply.bulk(text.as_bytes());
    Ok(())
}

/// Sets the field that a command names to what `change` makes of its value.
fn change_field(
    call: &mut Call<'_, '_>,
    change: impl FnOnce(Option<&[u8]>) -> Result<String, CommandError>,
) -> Result<String, CommandError> {
    let (key, field) = (call.args[1], call.args[2]);
    call.keys.check_name(field)?;
    let mut open = call.keys.collection_or_new(key, Kind::Hash)?;
    let old = call.keys.field(open.collection, field)?;
    let text = change(old.as_deref())?;
    call.keys.set_field(&mut open, field, text.as_bytes())?;
    call.keys.finish(key, &open)?;
    Ok(text)
}
