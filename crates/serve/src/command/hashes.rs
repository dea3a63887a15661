//! Hashes as a whole: reads, and what changes several fields.

use super::{Call, ONE_KEY, Outcome, READ, Spec, WRITE, is_word};
use crate::error::CommandError;
use crate::keyspace::FETCHED_MAX;
use std::ops::ControlFlow;
use stitch_db::Direction;
use stitch_format::redis::{FIELD, Kind};

pub(super) const SPECS: &[Spec] = &[
    Spec::new("HSET", -4, WRITE, ONE_KEY, hset),
    Spec::new("HMSET", -4, WRITE, ONE_KEY, hset),
    Spec::new("HDEL", -3, WRITE, ONE_KEY, hdel),
    Spec::new("HLEN", 2, READ, ONE_KEY, hlen),
    Spec::new("HGETALL", 2, READ, ONE_KEY, hgetall),
    Spec::new("HKEYS", 2, READ, ONE_KEY, hgetall),
    Spec::new("HVALS", 2, READ, ONE_KEY, hgetall),
];

fn hset(call: &mut Call<'_, '_>) -> Outcome {
    let is_old_form = is_word(call.args[0], "HMSET");
    if !call.args.len().is_multiple_of(2) {
        let name = if is_old_form { "hmset" } else { "hset" };
        let text = format!("ERR wrong number of arguments for '{name}' command");
        return Err(CommandError::Client(text.into()));
    }
    for pair in call.args[2..].chunks_exact(2) {
        call.keys.check_name(pair[0])?;
        call.keys.check_value_len(pair[1].len())?;
    }
    let mut open = call.keys.collection_or_new(call.args[1], Kind::Hash)?;
    let mut added = 0;
    for pairs in call.args[2..].chunks(2 * FETCHED_MAX) {
        let fields = pairs.iter().copied().step_by(2);
        call.keys.fetch_members(open.collection, FIELD, fields)?;
        for pair in pairs.chunks_exact(2) {
            added += u64::from(call.keys.set_field(&mut open, pair[0], pair[1])?);
        }
    }
    call.keys.finish(call.args[1], &open)?;
    if is_old_form {
        call.reply.ok();
    } else {
        call.reply.count(added);
    }
    Ok(())
}

fn hdel(call: &mut Call<'_, '_>) -> Outcome {
    let mut removed = 0;
    if let Some(mut open) = call.keys.open_collection(call.args[1], Kind::Hash)? {
        for fields in call.args[2..].chunks(FETCHED_MAX) {
            let names = fields.iter().copied();
            call.keys.fetch_members(open.collection, FIELD, names)?;
            for field in fields {
                removed += u64::from(call.keys.remove_field(&mut open, field)?);
            }
        }
        if removed > 0 {
            call.keys.finish(call.args[1], &open)?;
        }
    }
    call.reply.count(removed);
    Ok(())
}

fn hlen(call: &mut Call<'_, '_>) -> Outcome {
    let open = call.keys.open_collection(call.args[1], Kind::Hash)?;
    call.reply
        .count(open.map_or(0, |open| open.collection.count));
    Ok(())
}

fn hgetall(call: &mut Call<'_, '_>) -> Outcome {
    let mut fields: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    if let Some(open) = call.keys.open_collection(call.args[1], Kind::Hash)? {
        let (hash, direction) = (open.collection, Direction::Forward);
        call.keys
            .scan_members(hash, FIELD, &[], direction, |field, value| {
                fields.push((field.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            })?;
    }
    let has_names = !is_word(call.args[0], "HVALS");
    let has_values = !is_word(call.args[0], "HKEYS");
    if has_names && has_values {
        call.reply.map(fields.len());
    } else {
        call.reply.array(fields.len());
    }
    for (field, value) in &fields {
        if has_names {
            call.reply.bulk(field);
        }
        if has_values {
            call.reply.bulk(value);
        }
    }
    Ok(())
}
