//! The server: `INFO`, `CONFIG`, `COMMAND`, `TIME`.

use super::{Call, NO_KEYS, Outcome, READ, Spec, WRITE, is_word, table, unknown_subcommand};
use crate::error::CommandError;
use crate::glob;
use crate::service::SyncPolicy;
use std::fmt::Write as _;

pub(super) const SPECS: &[Spec] = &[
    Spec::new("INFO", -1, READ, NO_KEYS, info),
    Spec::new("CONFIG", -2, 0, NO_KEYS, config),
    Spec::new("COMMAND", -1, 0, NO_KEYS, command),
    Spec::new("TIME", 1, 0, NO_KEYS, time),
];

/// The version of Redis whose commands and replies these are. Clients ask for it to see what they
/// may use.
pub(super) const REDIS_VERSION: &str = "7.0.15";

fn info(call: &mut Call<'_, '_>) -> Outcome {
    let (keys, expiries) = call.keys.counts()?;
    let shared = &call.shared;
    let uptime_s = call.keys.now_ms().saturating_sub(shared.started_ms) / 1000;
    let sections = [
        (
            "server",
            format!(
                "redis_version:{REDIS_VERSION}\r\nstitchfs_version:{}\r\nredis_mode:standalone\r\n\
                 process_id:{}\r\nuptime_in_seconds:{uptime_s}\r\n",
                env!("CARGO_PKG_VERSION"),
                std::process::id()
            ),
        ),
        (
            "clients",
            format!("connected_clients:{}\r\n", shared.clients),
        ),
        (
            "persistence",
            format!(
                "loading:0\r\naof_enabled:1\r\naof_last_write_status:{}\r\n",
                if shared.has_failed { "err" } else { "ok" }
            ),
        ),
        (
            "stats",
            format!(
                "total_connections_received:{}\r\ntotal_commands_processed:{}\r\nrounds:{}\r\n\
                 expired_keys:{}\r\n",
                shared.connections, shared.commands, shared.rounds, shared.expired
            ),
        ),
        (
            "replication",
            "role:master\r\nconnected_slaves:0\r\n".to_owned(),
        ),
        (
            "keyspace",
            match keys {
                0 => String::new(),
                _ => format!("db0:keys={keys},expires={expiries},avg_ttl=0\r\n"),
            },
        ),
    ];
    let wanted = &call.args[1..];
    let is_all = |word: &&[u8]| {
        ["all", "default", "everything"]
            .iter()
            .any(|all| is_word(word, all))
    };
    let takes_all = wanted.is_empty() || wanted.iter().any(is_all);
    let mut text = String::new();
    for (name, body) in sections {
        if takes_all || wanted.iter().any(|word| is_word(word, name)) {
            let title = name[..1].to_uppercase() + &name[1..];
            let gap = if text.is_empty() { "" } else { "\r\n" };
            write!(text, "{gap}# {title}\r\n{body}").expect("a string takes all text");
        }
    }
    call.reply.bulk(text.as_bytes());
    Ok(())
}

fn config(call: &mut Call<'_, '_>) -> Outcome {
    let word = call.args[1];
    if is_word(word, "RESETSTAT") && call.args.len() == 2 {
        call.reply.ok();
        return Ok(());
    }
    if is_word(word, "SET") && call.args.len() >= 4 {
        return Err(CommandError::text(
            "ERR CONFIG SET is not offered: options are given to `stitchfs serve`",
        ));
    }
    if !is_word(word, "GET") || call.args.len() < 3 {
        return Err(unknown_subcommand("CONFIG", word));
    }
    let sync = match call.shared.sync {
        SyncPolicy::Always => "always",
        SyncPolicy::EverySecond => "everysec",
    };
    let bulk_bytes_max = call.keys.value_bytes_max().to_string();
    let values = [
        ("appendfsync", sync),
        ("appendonly", "yes"),
        ("databases", "1"),
        ("maxmemory", "0"),
        ("maxmemory-policy", "noeviction"),
        ("proto-max-bulk-len", &bulk_bytes_max),
        ("save", ""),
    ];
    let is_wanted = |name: &str| {
        let patterns = &call.args[2..];
        let matches =
            |pattern: &&[u8]| glob::matches(&pattern.to_ascii_lowercase(), name.as_bytes());
        patterns.iter().any(matches)
    };
    let found: Vec<_> = values.iter().filter(|(name, _)| is_wanted(name)).collect();
    call.reply.map(found.len());
    for (name, value) in found {
        call.reply.bulk(name.as_bytes());
        call.reply.bulk(value.as_bytes());
    }
    Ok(())
}

fn command(call: &mut Call<'_, '_>) -> Outcome {
    match call.args[1..] {
        [] => {
            call.reply.array(table().len());
            for spec in table().specs() {
                describe(call, spec);
            }
        }
        [word] if is_word(word, "COUNT") => call.reply.count(table().len() as u64),
        [word] if is_word(word, "LIST") => {
            call.reply.array(table().len());
            for spec in table().specs() {
                call.reply.bulk(spec.name.to_ascii_lowercase().as_bytes());
            }
        }
        [word, ..] if is_word(word, "INFO") => {
            call.reply.array(call.args.len() - 2);
            for name in &call.args[2..] {
                match super::find(name) {
                    Some(spec) => describe(call, spec),
                    None => call.reply.null_array(),
                }
            }
        }
        // Texts for people are in the manual of Redis.
        [word, ..] if is_word(word, "DOCS") => call.reply.map(0),
        [word, ..] => return Err(unknown_subcommand("COMMAND", word)),
    }
    Ok(())
}

fn describe(call: &mut Call<'_, '_>, spec: &Spec) {
    call.reply.array(6);
    call.reply.bulk(spec.name.to_ascii_lowercase().as_bytes());
    call.reply.integer(i64::from(spec.arity));
    let flags = [
        (WRITE, "write"),
        (READ, "readonly"),
        (super::NO_AUTH, "no_auth"),
    ];
    let is_set = |flag: u8| match flag {
        READ => spec.flags & (READ | WRITE) == READ,
        flag => spec.flags & flag != 0,
    };
    let names: Vec<_> = flags.iter().filter(|(flag, _)| is_set(*flag)).collect();
    call.reply.array(names.len());
    for (_, name) in names {
        call.reply.simple(name);
    }
    let (first, last, step) = spec.keys;
    for place in [first, last, step] {
        call.reply.integer(i64::from(place));
    }
}

fn time(call: &mut Call<'_, '_>) -> Outcome {
    let now_ms = call.keys.now_ms();
    call.reply.array(2);
    call.reply.bulk((now_ms / 1000).to_string().as_bytes());
    call.reply
        .bulk((now_ms % 1000 * 1000).to_string().as_bytes());
    Ok(())
}
