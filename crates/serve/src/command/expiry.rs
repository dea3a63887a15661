//! When keys expire.

use super::{Call, ONE_KEY, Outcome, READ, Spec, WRITE, integer, is_word};
use crate::error::CommandError;

pub(super) const SPECS: &[Spec] = &[
    Spec::new("EXPIRE", -3, WRITE, ONE_KEY, expire),
    Spec::new("PEXPIRE", -3, WRITE, ONE_KEY, expire),
    Spec::new("EXPIREAT", -3, WRITE, ONE_KEY, expire),
    Spec::new("PEXPIREAT", -3, WRITE, ONE_KEY, expire),
    Spec::new("TTL", 2, READ, ONE_KEY, ttl),
    Spec::new("PTTL", 2, READ, ONE_KEY, ttl),
    Spec::new("EXPIRETIME", 2, READ, ONE_KEY, ttl),
    Spec::new("PEXPIRETIME", 2, READ, ONE_KEY, ttl),
    Spec::new("PERSIST", 2, WRITE, ONE_KEY, persist),
];

/// How a time is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    millis: i64,
    /// Counted from 1970, not from now.
    is_absolute: bool,
}

impl Unit {
    pub(super) const IN_SECONDS: Self = Self::new(1000, false);
    pub(super) const IN_MILLIS: Self = Self::new(1, false);
    const AT_SECONDS: Self = Self::new(1000, true);
    const AT_MILLIS: Self = Self::new(1, true);

    const fn new(millis: i64, is_absolute: bool) -> Self {
        Self {
            millis,
            is_absolute,
        }
    }

    /// The unit of an option of `SET` and `GETEX`.
    pub(super) fn of_option(word: &[u8]) -> Option<Self> {
        let units = [
            ("EX", Self::IN_SECONDS),
            ("PX", Self::IN_MILLIS),
            ("EXAT", Self::AT_SECONDS),
            ("PXAT", Self::AT_MILLIS),
        ];
        let found = units.iter().find(|(name, _)| is_word(word, name));
        found.map(|(_, unit)| *unit)
    }

    /// The unit of `EXPIRE` and its kin, and of `TTL` and its kin.
    fn of_command(name: &[u8]) -> Self {
        let is_absolute = ["EXPIREAT", "PEXPIREAT", "EXPIRETIME", "PEXPIRETIME"]
            .iter()
            .any(|absolute| is_word(name, absolute));
        match name.first() {
            Some(b'P' | b'p') => Self::new(1, is_absolute),
            _ => Self::new(1000, is_absolute),
        }
    }

    /// Milliseconds since 1970; perhaps in the past.
    fn millis(self, number: i64, now_ms: u64) -> Option<i64> {
        let millis = number.checked_mul(self.millis)?;
        if self.is_absolute {
            return Some(millis);
        }
        i64::try_from(now_ms).ok()?.checked_add(millis)
    }

    /// Milliseconds since 1970, of a number that must be positive.
    pub(super) fn expiry_ms(
        self,
        number: i64,
        now_ms: u64,
        command: &str,
    ) -> Result<u64, CommandError> {
        let millis = self.millis(number, now_ms).filter(|_| number > 0);
        let millis = millis.and_then(|millis| u64::try_from(millis).ok());
        millis.ok_or_else(|| wrong_time(command))
    }
}

fn wrong_time(command: &str) -> CommandError {
    CommandError::Client(format!("ERR invalid expire time in '{command}' command").into())
}

/// Conditions of `EXPIRE`.
#[derive(Clone, Copy, Debug, Default)]
struct Conditions {
    without: bool,
    with: bool,
    later: bool,
    earlier: bool,
}

impl Conditions {
    fn parse(words: &[&[u8]]) -> Result<Self, CommandError> {
        let mut all = Self::default();
        for word in words {
            if is_word(word, "NX") {
                all.without = true;
            } else if is_word(word, "XX") {
                all.with = true;
            } else if is_word(word, "GT") {
                all.later = true;
            } else if is_word(word, "LT") {
                all.earlier = true;
            } else {
                let word = String::from_utf8_lossy(&word[..word.len().min(64)]).into_owned();
                return Err(CommandError::Client(
                    format!("ERR Unsupported option {word}").into(),
                ));
            }
        }
        if all.without && (all.with || all.later || all.earlier) {
            return Err(CommandError::text(
                "ERR NX and XX, GT or LT options at the same time are not compatible",
            ));
        }
        if all.later && all.earlier {
            return Err(CommandError::text(
                "ERR GT and LT options at the same time are not compatible",
            ));
        }
        Ok(all)
    }

    /// `old_ms` is 0 for a key that never expires.
    const fn allow(self, old_ms: u64, new_ms: i64) -> bool {
        let has = old_ms > 0;
        let is_later = has && new_ms > old_ms.cast_signed();
        let is_earlier = !has || new_ms < old_ms.cast_signed();
        (!self.without || !has)
            && (!self.with || has)
            && (!self.later || is_later)
            && (!self.earlier || is_earlier)
    }
}

fn expire(call: &mut Call<'_, '_>) -> Outcome {
    let key = call.args[1];
    let conditions = Conditions::parse(&call.args[3..])?;
    let unit = Unit::of_command(call.args[0]);
    let new_ms = unit.millis(integer(call.args[2])?, call.keys.now_ms());
    let name = String::from_utf8_lossy(call.args[0]).to_lowercase();
    let new_ms = new_ms.ok_or_else(|| wrong_time(&name))?;
    let Some(value) = call.keys.value(key)? else {
        call.reply.flag(false);
        return Ok(());
    };
    if !conditions.allow(value.head.expiry_ms, new_ms) {
        call.reply.flag(false);
        return Ok(());
    }
    match u64::try_from(new_ms) {
        Ok(new_ms) if new_ms > call.keys.now_ms() => call.keys.set_expiry(key, &value, new_ms)?,
        _ => call.keys.remove_value(key, &value)?,
    }
    call.reply.flag(true);
    Ok(())
}

/// Remaining time or moment: -1 for a key that never expires, -2 for no key.
fn ttl(call: &mut Call<'_, '_>) -> Outcome {
    let unit = Unit::of_command(call.args[0]);
    let now_ms = call.keys.now_ms();
    let value = call.keys.value(call.args[1])?;
    let expiry_ms = value.map(|value| value.head.expiry_ms);
    let answer = match expiry_ms {
        None => -2,
        Some(0) => -1,
        Some(expiry_ms) => {
            let base_ms = if unit.is_absolute { 0 } else { now_ms };
            let millis = i64::try_from(expiry_ms.saturating_sub(base_ms)).unwrap_or(i64::MAX);
            let rounding = if unit.is_absolute { 0 } else { unit.millis / 2 };
            millis.saturating_add(rounding) / unit.millis
        }
    };
    call.reply.integer(answer);
    Ok(())
}

fn persist(call: &mut Call<'_, '_>) -> Outcome {
    let key = call.args[1];
    let value = call
        .keys
        .value(key)?
        .filter(|value| value.head.expiry_ms > 0);
    if let Some(value) = &value {
        call.keys.set_expiry(key, value, 0)?;
    }
    call.reply.flag(value.is_some());
    Ok(())
}
