//! The connection itself.

use super::{AT_ONCE, Call, NO_AUTH, NO_KEYS, Outcome, Spec, is_word, unknown_subcommand};
use crate::error::CommandError;
use crate::resp::Protocol;

pub(super) const SPECS: &[Spec] = &[
    Spec::new("PING", -1, 0, NO_KEYS, ping),
    Spec::new("ECHO", 2, 0, NO_KEYS, echo),
    Spec::new("SELECT", 2, 0, NO_KEYS, select),
    Spec::new("AUTH", -2, NO_AUTH, NO_KEYS, auth),
    Spec::new("HELLO", -1, NO_AUTH, NO_KEYS, hello),
    Spec::new("QUIT", -1, NO_AUTH | AT_ONCE, NO_KEYS, quit),
    Spec::new("RESET", 1, NO_AUTH | AT_ONCE, NO_KEYS, reset),
    Spec::new("CLIENT", -2, 0, NO_KEYS, client),
];

const USER: &[u8] = b"default";
/// What a client may call itself, in bytes.
const NAME_BYTES_MAX: usize = 256;

fn ping(call: &mut Call<'_, '_>) -> Outcome {
    match call.args[1..] {
        [] => call.reply.simple("PONG"),
        [text] => call.reply.bulk(text),
        _ => {
            return Err(CommandError::text(
                "ERR wrong number of arguments for 'ping' command",
            ));
        }
    }
    Ok(())
}

fn echo(call: &mut Call<'_, '_>) -> Outcome {
    call.reply.bulk(call.args[1]);
    Ok(())
}

fn select(call: &mut Call<'_, '_>) -> Outcome {
    match super::integer(call.args[1])? {
        0 => call.reply.ok(),
        _ => return Err(CommandError::text("ERR DB index is out of range")),
    }
    Ok(())
}

fn log_in(call: &mut Call<'_, '_>, user: &[u8], password: &[u8]) -> Outcome {
    let is_right = match &call.shared.password {
        Some(right) => user == USER && is_same(right, password),
        None => user == USER,
    };
    if !is_right {
        return Err(CommandError::text(
            "WRONGPASS invalid username-password pair or user is disabled.",
        ));
    }
    call.client.is_authenticated = true;
    Ok(())
}

/// Compares in a time that does not tell where the difference is.
fn is_same(right: &[u8], given: &[u8]) -> bool {
    let mut difference = right.len() ^ given.len();
    for (index, byte) in given.iter().enumerate() {
        let other = right.get(index % right.len().max(1)).copied().unwrap_or(0);
        difference |= usize::from(byte ^ other);
    }
    difference == 0
}

fn auth(call: &mut Call<'_, '_>) -> Outcome {
    let (user, password) = match call.args[1..] {
        [_] if call.shared.password.is_none() => {
            return Err(CommandError::text(
                "ERR AUTH <password> called without any password configured for the default user. \
                 Are you sure your configuration is correct?",
            ));
        }
        [password] => (USER, password),
        [user, password] => (user, password),
        _ => return Err(CommandError::SYNTAX),
    };
    log_in(call, user, password)?;
    call.reply.ok();
    Ok(())
}

fn hello(call: &mut Call<'_, '_>) -> Outcome {
    let mut protocol = call.client.protocol;
    let mut name = None;
    let mut words = call.args[1..].iter();
    if let Some(version) = words.next() {
        protocol = match *version {
            b"2" => Protocol::Two,
            b"3" => Protocol::Three,
            _ => return Err(CommandError::text("NOPROTO unsupported protocol version")),
        };
    }
    while let Some(word) = words.next() {
        if is_word(word, "AUTH") {
            let (Some(user), Some(password)) = (words.next(), words.next()) else {
                return Err(CommandError::SYNTAX);
            };
            log_in(call, user, password)?;
        } else if is_word(word, "SETNAME") {
            let given = words.next().ok_or(CommandError::SYNTAX)?;
            name = Some(checked_name(given)?);
        } else {
            return Err(CommandError::SYNTAX);
        }
    }
    if !call.client.is_authenticated {
        return Err(CommandError::text(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
             HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and \
             select the RESP protocol version at the same time",
        ));
    }
    if let Some(name) = name {
        call.client.name = name;
    }
    call.client.protocol = protocol;
    call.reply.set_protocol(protocol);
    call.reply.map(7);
    for (name, value) in [
        ("server", "redis"),
        ("version", super::server::REDIS_VERSION),
    ] {
        call.reply.bulk(name.as_bytes());
        call.reply.bulk(value.as_bytes());
    }
    call.reply.bulk(b"proto");
    call.reply.integer(protocol.number());
    call.reply.bulk(b"id");
    call.reply.count(call.client.id.0);
    for (name, value) in [("mode", "standalone"), ("role", "master")] {
        call.reply.bulk(name.as_bytes());
        call.reply.bulk(value.as_bytes());
    }
    call.reply.bulk(b"modules");
    call.reply.array(0);
    Ok(())
}

fn quit(call: &mut Call<'_, '_>) -> Outcome {
    call.client.is_closing = true;
    call.reply.ok();
    Ok(())
}

fn reset(call: &mut Call<'_, '_>) -> Outcome {
    call.keys.watches.unwatch(call.client.id);
    call.client.queue = None;
    call.client.name = Vec::new();
    call.client.protocol = Protocol::Two;
    call.client.is_authenticated = call.shared.password.is_none();
    call.reply.set_protocol(Protocol::Two);
    call.reply.simple("RESET");
    Ok(())
}

fn checked_name(name: &[u8]) -> Result<Vec<u8>, CommandError> {
    let is_plain = name.iter().all(u8::is_ascii_graphic);
    if !is_plain || name.len() > NAME_BYTES_MAX {
        return Err(CommandError::text(
            "ERR Client names cannot contain spaces, newlines or special characters.",
        ));
    }
    Ok(name.to_vec())
}

fn describe(call: &Call<'_, '_>) -> String {
    let client = &call.client;
    let name = String::from_utf8_lossy(&client.name);
    format!(
        "id={} name={name} resp={} db=0\n",
        client.id.0,
        client.protocol.number()
    )
}

fn client(call: &mut Call<'_, '_>) -> Outcome {
    let word = call.args[1];
    match call.args[2..] {
        [] if is_word(word, "ID") => call.reply.count(call.client.id.0),
        [] if is_word(word, "GETNAME") => {
            let name = Some(&call.client.name[..]).filter(|name| !name.is_empty());
            call.reply.bulk_or_null(name);
        }
        [name] if is_word(word, "SETNAME") => {
            call.client.name = checked_name(name)?;
            call.reply.ok();
        }
        [] if is_word(word, "INFO") => {
            let text = describe(call);
            call.reply.bulk(text.as_bytes());
        }
        // Names of libraries are for logs that there are none of.
        [_, _] if is_word(word, "SETINFO") => call.reply.ok(),
        [_] if is_word(word, "NO-EVICT") || is_word(word, "NO-TOUCH") => call.reply.ok(),
        _ => return Err(unknown_subcommand("CLIENT", word)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_right_or_not() {
        assert!(is_same(b"secret", b"secret"));
        for wrong in [&b""[..], b"secre", b"secrett", b"secretsecret", b"Secret"] {
            assert!(!is_same(b"secret", wrong));
        }
        assert!(is_same(b"", b"") && !is_same(b"", b"a"));
    }
}
