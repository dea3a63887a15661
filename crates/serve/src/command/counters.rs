//! Strings that are numbers.

use super::{Call, ONE_KEY, Outcome, Spec, WRITE, float, integer, is_word};
use crate::error::CommandError;
use crate::number;

pub(super) const SPECS: &[Spec] = &[
    Spec::new("INCR", 2, WRITE, ONE_KEY, increment),
    Spec::new("DECR", 2, WRITE, ONE_KEY, increment),
    Spec::new("INCRBY", 3, WRITE, ONE_KEY, increment),
    Spec::new("DECRBY", 3, WRITE, ONE_KEY, increment),
    Spec::new("INCRBYFLOAT", 3, WRITE, ONE_KEY, increment_by_float),
];

fn increment(call: &mut Call<'_, '_>) -> Outcome {
    let amount = match call.args.get(2) {
        Some(amount) => integer(amount)?,
        None => 1,
    };
    let is_down = is_word(&call.args[0][..4], "DECR");
    let old = call.keys.string(call.args[1])?;
    let number = match &old {
        Some(old) => integer(&old.body)?,
        None => 0,
    };
    let sum = if is_down {
        number.checked_sub(amount)
    } else {
        number.checked_add(amount)
    };
    let sum = sum.ok_or(CommandError::OVERFLOW)?;
    let expiry_ms = old.as_ref().map_or(0, |old| old.head.expiry_ms);
    let mut text = Vec::new();
    number::push_integer(&mut text, sum);
    call.keys
        .set_string(call.args[1], old.as_ref(), &text, expiry_ms)?;
    call.reply.integer(sum);
    Ok(())
}

fn increment_by_float(call: &mut Call<'_, '_>) -> Outcome {
    let amount = float(call.args[2])?;
    let old = call.keys.string(call.args[1])?;
    let number = match &old {
        Some(old) => float(&old.body)?,
        None => 0.0,
    };
    let sum = number + amount;
    if !sum.is_finite() {
        return Err(CommandError::NOT_FINITE);
    }
    let expiry_ms = old.as_ref().map_or(0, |old| old.head.expiry_ms);
    // Without an exponent, so that every client reads it.
    let text = format!("{}", if sum == 0.0 { 0.0 } else { sum });
    call.keys
        .set_string(call.args[1], old.as_ref(), text.as_bytes(), expiry_ms)?;
    call.reply.bulk(text.as_bytes());
    Ok(())
}
