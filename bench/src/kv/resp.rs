//! Clients of a server that speaks the Redis protocol: `SET` and `GET` by one connection, by 50,
//! and by 50 that each send 16 commands at once; with every command on the medium before its reply,
//! and with a sync each second. The client is `redis-benchmark`.

use super::Workload;
use crate::context::{Context, Work};
use crate::measure::Op;
use crate::side::Load;
use anyhow::Result;

const VALUE_BYTES: usize = 100;
const KEY_BYTES: u64 = 16;
const ROW_BYTES: u64 = KEY_BYTES + VALUE_BYTES as u64;
/// Names of phases, connections, and commands that each sends at once.
const CLIENTS: [(&str, u64, u64); 3] = [("c1", 1, 1), ("c50", 50, 1), ("c50-p16", 50, 16)];
/// A phase that waits for the medium sends one of so many commands, and one of so many if it has
/// one connection.
const SYNCED_SHARE: u64 = 8;
const ALONE_SHARE: u64 = 4;
/// When commands are durable, by steps: before they are replied to, and each second.
const IS_SYNCED: [(&str, bool); 2] = [("always", true), ("everysec", false)];

pub(super) fn workload() -> Workload {
    Workload {
        is_of_servers: true,
        steps: |_| 2,
        ..Workload::new(
            "resp",
            "SET and GET of 100 B by redis-benchmark: 1 and 50 connections, 16 commands at once",
            run,
        )
    }
}

fn run(context: &mut Context<'_>, step: u32) -> Result<()> {
    let (when, is_synced) = IS_SYNCED[step as usize];
    let keys = (context.scale().small_bytes / ROW_BYTES).max(1);
    let mut options = context.options(8 * keys * ROW_BYTES, ROW_BYTES);
    options.is_synced = is_synced;
    context.open_with(options)?;
    context.set_live_bytes(keys * ROW_BYTES);
    context.without_cap();
    for (name, clients, pipeline) in CLIENTS {
        for command in ["set", "get"] {
            let is_waiting = is_synced && command == "set";
            let share = match (is_waiting, clients) {
                (false, 1) => ALONE_SHARE,
                (false, _) => 1,
                (true, 1) => SYNCED_SHARE * ALONE_SHARE,
                (true, _) => SYNCED_SHARE,
            };
            let load = Load {
                command,
                clients,
                pipeline,
                count: (keys / share).max(clients * pipeline),
                keys,
                value_bytes: VALUE_BYTES,
            };
            run_load(context, &format!("{command}-{when}-{name}"), &load)?;
        }
    }
    Ok(())
}

fn run_load(context: &mut Context<'_>, name: &str, load: &Load) -> Result<()> {
    let (work, op) = match load.command {
        "set" => (Work::Write, Op::Put),
        _ => (Work::Read, Op::Get),
    };
    let figures = context.phase(name, work, load.count, |bench, record| {
        let size = (load.count, load.count * ROW_BYTES);
        record.time(op, size, || bench.side.load(load))
    })?;
    context.last().values.extend(figures);
    Ok(())
}
