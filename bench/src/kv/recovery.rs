//! Opening a store whose process was killed, by how much was put since it was made.
//!
//! Even steps load and end as if killed; odd ones open what the one before left, check its last
//! synced row, and report the time of opening as their only latency.
//!
//! Paper: Mei et al., "LSM-Tree Managed Storage for Large-Scale Key-Value Store", 2019, figure 17.

use super::Workload;
use crate::context::{Context, Work};
use crate::measure::Op;
use crate::side::Write;
use crate::values::mix;
use anyhow::{Result, ensure};

const ROW_BYTES: u64 = 128;
const VALUE_BYTES: usize = 120;
/// The data of the loads, as parts of a write buffer in percent: what replay costs grows until the
/// log is cut.
const PERCENTS: [u64; 5] = [5, 25, 50, 90, 400];

pub(super) fn workload() -> Workload {
    Workload {
        steps: |_| 2 * PERCENTS.len() as u32,
        is_fresh: |step| step % 2 == 0,
        is_killed: |step| step % 2 == 0,
        ..Workload::new(
            "recovery",
            "time to open after a kill, by bytes put before",
            run,
        )
    }
}

fn run(context: &mut Context<'_>, step: u32) -> Result<()> {
    let percent = PERCENTS[step as usize / 2];
    let bytes = context.scale().write_buffer_bytes() * percent / 100;
    let count = (bytes / ROW_BYTES).max(1);
    context.open(
        PERCENTS[4] * context.scale().write_buffer_bytes() / 100,
        ROW_BYTES,
    )?;
    context.set_live_bytes(count * ROW_BYTES);
    if step % 2 == 1 {
        let name = format!("open-{percent}%");
        let key = mix(count - 1).to_be_bytes();
        let open_time = context.open_time();
        return context.phase(&name, Work::Read, 1, |bench, record| {
            record.took(Op::Open, (1, ROW_BYTES), open_time);
            let found = bench.side.get(&key, &mut |_| ())?;
            ensure!(found, "a synced row is lost");
            Ok(())
        });
    }
    // Without a limit of time: what is opened next must hold all of it.
    context.without_cap();
    context.phase(
        &format!("load-{percent}%"),
        Work::Write,
        count,
        |bench, record| {
            for number in 0..count {
                if record.is_over() {
                    break;
                }
                let key = mix(number).to_be_bytes();
                let writes = [Write::Put(&key, bench.values.value(number, VALUE_BYTES))];
                record.time(Op::Put, (1, ROW_BYTES), || bench.side.write(&writes, false))?;
            }
            Ok(())
        },
    )
}
