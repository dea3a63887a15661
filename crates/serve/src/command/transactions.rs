//! `MULTI`, `EXEC`, `DISCARD`, `WATCH`, `UNWATCH`.
//!
//! Commands run one after the other, and a batch ends between two commands only. So what `EXEC`
//! runs is isolated, and is in the store whole or not at all.

use super::{ALL_KEYS, AT_ONCE, Call, NO_KEYS, Outcome, READ, Spec, WRITE};
use crate::error::CommandError;
use crate::keyspace::FETCHED_MAX;

pub(super) const SPECS: &[Spec] = &[
    Spec::new("MULTI", 1, AT_ONCE, NO_KEYS, multi),
    Spec::new("EXEC", 1, AT_ONCE | READ | WRITE, NO_KEYS, exec),
    Spec::new("DISCARD", 1, AT_ONCE, NO_KEYS, discard),
    Spec::new("WATCH", -2, AT_ONCE, ALL_KEYS, watch),
    Spec::new("UNWATCH", 1, 0, NO_KEYS, unwatch),
];

/// Bytes of commands that may wait for `EXEC`.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// What a queued argument costs beyond its bytes.
const ARG_OVERHEAD_BYTES: usize = 32;
/// Keys that one client may watch.
const WATCHED_MAX: usize = 64 << 10;

/// The commands of a transaction that wait for `EXEC`.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    commands: Vec<Vec<Vec<u8>>>,
    bytes: usize,
    /// One of them changes keys.
    writes: bool,
    /// A command was refused: `EXEC` runs none.
    has_failed: bool,
}

impl Queue {
    /// Adds a command. Returns whether there is room for it.
    pub(crate) fn push(&mut self, args: &[&[u8]], writes: bool) -> bool {
        let bytes: usize = args.iter().map(|arg| arg.len() + ARG_OVERHEAD_BYTES).sum();
        if self.bytes + bytes > QUEUE_BYTES_MAX {
            self.has_failed = true;
            return false;
        }
        self.bytes += bytes;
        self.writes |= writes;
        self.commands
            .push(args.iter().map(|arg| arg.to_vec()).collect());
        true
    }

    pub(crate) const fn fail(&mut self) {
        self.has_failed = true;
    }

    /// Reports whether a command in it changes keys.
    pub(crate) const fn writes(&self) -> bool {
        self.writes
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }
}

fn multi(call: &mut Call<'_, '_>) -> Outcome {
    if call.client.queue.is_some() {
        return Err(CommandError::text("ERR MULTI calls can not be nested"));
    }
    call.client.queue = Some(Queue::default());
    call.reply.ok();
    Ok(())
}

fn exec(call: &mut Call<'_, '_>) -> Outcome {
    let queue = call.client.queue.take();
    let queue = queue.ok_or(CommandError::text("ERR EXEC without MULTI"))?;
    let client = call.client.id;
    if queue.has_failed {
        call.keys.watches.unwatch(client);
        return Err(CommandError::text(
            "EXECABORT Transaction discarded because of previous errors.",
        ));
    }
    // A watched key that has expired has changed: looking at it removes it.
    let watched = call.keys.watches.keys(client);
    for keys in watched.chunks(FETCHED_MAX) {
        call.keys.fetch_keys(keys.iter().map(Vec::as_slice))?;
        for key in keys {
            call.keys.value(key)?;
        }
    }
    let has_changed = call.keys.watches.has_changed(client);
    call.keys.watches.unwatch(client);
    if has_changed {
        call.reply.null_array();
        return Ok(());
    }
    call.reply.array(queue.commands.len());
    for command in &queue.commands {
        let args: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        run_queued(call, &args)?;
    }
    Ok(())
}

/// Runs a command of a transaction. Its own error is its reply; the store's ends the transaction.
fn run_queued(call: &mut Call<'_, '_>, args: &[&[u8]]) -> Outcome {
    let spec = super::find(args[0]).expect("a command is looked up before it is queued");
    let position = call.reply.position();
    let mut inner = Call {
        args,
        keys: call.keys,
        client: call.client,
        shared: call.shared,
        reply: call.reply,
    };
    match (spec.run)(&mut inner) {
        Err(error @ CommandError::Client(_)) => {
            call.reply.rewind(position);
            call.reply.error(&error.reply());
            Ok(())
        }
        other => other,
    }
}

fn discard(call: &mut Call<'_, '_>) -> Outcome {
    if call.client.queue.take().is_none() {
        return Err(CommandError::text("ERR DISCARD without MULTI"));
    }
    call.keys.watches.unwatch(call.client.id);
    call.reply.ok();
    Ok(())
}

fn watch(call: &mut Call<'_, '_>) -> Outcome {
    if call.client.queue.is_some() {
        return Err(CommandError::text("ERR WATCH inside MULTI is not allowed"));
    }
    let client = call.client.id;
    if call.keys.watches.count(client) + call.args.len() > WATCHED_MAX {
        return Err(CommandError::text("ERR too many watched keys"));
    }
    for keys in call.args[1..].chunks(FETCHED_MAX) {
        call.keys.fetch_keys(keys.iter().copied())?;
        for key in keys {
            // One that has expired already is missing from the beginning.
            call.keys.remove_over(key)?;
            call.keys.watches.watch(client, key);
        }
    }
    call.reply.ok();
    Ok(())
}

fn unwatch(call: &mut Call<'_, '_>) -> Outcome {
    call.keys.watches.unwatch(call.client.id);
    call.reply.ok();
    Ok(())
}
