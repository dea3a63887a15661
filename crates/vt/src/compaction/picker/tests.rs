use super::*;
use crate::testing::{run_script, text_version};
use stitch_base::{Seqno, TableId};

/// `pick <shape|idle|order|low|space> [snap N]... [old TABLE VERSIONS]... [max N] [cost N] [avoid
/// N]... [bad N]... [part N]... [plans N]` as the last line of a version. `plans N` picks N plans,
/// one after the other, that can run at the same time.
fn run(input: &str) -> String {
    let (version, command) = input.rsplit_once('\n').expect("a version and a command");
    let version = text_version(version);
    let mut words = command.split_whitespace();
    assert_eq!(words.next(), Some("pick"));
    let pressure = match words.next() {
        Some("shape") => Pressure::Shape,
        Some("idle") => Pressure::Idle,
        Some("order") => Pressure::Order,
        Some("low") => Pressure::Low,
        Some("space") => Pressure::Space,
        other => panic!("no such pressure: {other:?}"),
    };
    let mut input_bytes_max = 2500;
    let mut cost_max = u64::MAX;
    let mut snapshots = Vec::new();
    let mut exclusions = Exclusions::default();
    let mut released = BTreeMap::new();
    let mut count = 1;
    while let Some(word) = words.next() {
        let number: u64 = words.next().expect("a number").parse().expect("a number");
        match word {
            "max" => input_bytes_max = number,
            "cost" => cost_max = number,
            "snap" => snapshots.push(Seqno(number)),
            "old" => {
                let count = words.next().expect("a number").parse();
                released.insert(TableId(number), count.expect("a number"));
            }
            "avoid" => drop(exclusions.avoided.insert(TableId(number))),
            "bad" => drop(exclusions.detours.add_table(TableId(number))),
            "plans" => count = usize::try_from(number).expect("a few"),
            "part" => drop(exclusions.detours.part_later(TableId(number))),
            other => panic!("no such word: {other}"),
        }
    }
    let options = PickOptions {
        level0_tables: 4,
        level0_batch: 2 * 4,
        cost_max,
        level1_bytes: 1000,
        fanout: 8,
        table_bytes: 200,
        input_bytes_max,
    };
    let held = HeldSeqnos::of_store(&snapshots);
    let mut plans = Vec::new();
    for slot in 0..count {
        let input = PickInput {
            version: &version,
            moments: Moments {
                held: &held,
                released: &released,
            },
            pressure,
            rules: PickRules::new(&options, &exclusions),
        };
        let Some(plan) = pick(&input) else {
            plans.push("nothing".to_owned());
            break;
        };
        exclusions.claims.add(slot, &plan);
        plans.push(plan.to_string());
    }
    plans.join("\n")
}

#[test]
fn plans_are_as_written() {
    run_script("picker.txt", run);
}

#[test]
fn plans_around_unreadable_data_are_as_written() {
    run_script("detours.txt", run);
}
