//! Crashes of a life whose transactions are larger than their memory, at every sync and at many
//! writes: of each transaction the store has all or nothing, and no branch tree is left. Parts of
//! them are taken back to savepoints.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stitch_base::TreeId;
use stitch_base::random::{Rng, bytes16};
use stitch_db::{
    CommitOptions, DbError, Direction, Isolation, KeyRange, Savepoint, Transaction,
    TransactionOptions, Transactions, TreeOptions, drop_abandoned,
};
use stitch_device::{CrashDevice, CrashPlan, Device, MemDevice};
use stitch_kv::Engine;
use stitch_volume::{FormatOptions, OpenOptions, Volume};
use stitch_vt::{VtEngine, VtOptions};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;
/// The rows of each tree, by its name.
type State = BTreeMap<String, Rows>;

const LEN_BYTES: u64 = 32 << 20;
const NAMES: [&str; 2] = ["one", "two"];

fn open(device: Arc<dyn Device>) -> Arc<VtEngine> {
    let opened = Volume::open(device, &OpenOptions::default()).expect("the volume opens");
    let options = VtOptions {
        memory_bytes: 16 << 20,
        memtable_bytes: Some(32 << 10),
        table_bytes: Some(16 << 10),
        level1_bytes: Some(32 << 10),
        background: false,
        level0_tables_max: 4,
        batch_table_bytes_min: 1000,
        ..VtOptions::default()
    };
    VtEngine::open(opened, options).expect("the store opens")
}

fn state(engine: &VtEngine) -> State {
    let mut state = State::new();
    for info in engine.trees() {
        let scan = engine.scan(info.id, KeyRange::all(), Direction::Forward, None);
        let mut scan = scan.expect("a scan begins");
        let mut rows = Rows::new();
        while let Some((key, value)) = scan.next().expect("it reads") {
            rows.insert(key.to_vec(), value.to_vec());
        }
        state.insert(info.name, rows);
    }
    state
}

/// A store with two trees, killed.
fn image() -> MemDevice {
    let device = Arc::new(MemDevice::new(LEN_BYTES));
    let options = FormatOptions {
        uuid: bytes16().expect("the system has randomness"),
        ..FormatOptions::default()
    };
    Volume::format(&*device, &options, &mut |_, _| {}).expect("the device is large enough");
    let engine = open(device.clone());
    for name in NAMES {
        let made = engine.create_tree(name, &TreeOptions::default());
        made.expect("it is made");
    }
    engine.sync().expect("the device syncs");
    drop(engine);
    MemDevice::clone(&device)
}

/// Writes to a transaction, and takes parts back. `rows` are those that it sees. Returns the most
/// bytes that were moved out of memory.
fn fill(
    transaction: &mut Transaction,
    (trees, rows): (&BTreeMap<String, TreeId>, &mut State),
    rng: &mut Rng,
) -> Result<u64, DbError> {
    let mut savepoints: Vec<(Savepoint, State)> = Vec::new();
    let mut most_bytes = 0;
    for _ in 0..36 {
        match rng.below(12) {
            0 | 1 => savepoints.push((transaction.savepoint(), rows.clone())),
            2 if !savepoints.is_empty() => {
                let last = savepoints.len() as u64 - 1;
                savepoints.truncate(usize::try_from(rng.below(last + 1)).expect("few") + 1);
                let (savepoint, then) = savepoints.last().expect("one is left");
                transaction.rollback_to(savepoint)?;
                rows.clone_from(then);
            }
            3 if !savepoints.is_empty() => {
                let (savepoint, _) = savepoints.pop().expect("there is one");
                transaction.release(savepoint)?;
            }
            _ => change(transaction, (trees, rows), rng)?,
        }
        most_bytes = most_bytes.max(transaction.spilled_bytes());
    }
    Ok(most_bytes)
}

/// Puts a key, and now and then deletes a range.
fn change(
    transaction: &mut Transaction,
    (trees, rows): (&BTreeMap<String, TreeId>, &mut State),
    rng: &mut Rng,
) -> Result<(), DbError> {
    let name = NAMES[usize::from(rng.below(2) > 0)];
    let rows = rows.get_mut(name).expect("there are two trees");
    let mut value = vec![0; 600];
    rng.fill(&mut value);
    let key = rng.below(40).to_be_bytes();
    transaction.put(trees[name], &key, &value)?;
    rows.insert(key.to_vec(), value);
    if rng.below(8) == 0 {
        let end = (rng.below(40) + 3).to_be_bytes();
        transaction.delete_range(trees[name], &key, &end)?;
        rows.retain(|at, _| at[..] < key[..] || at[..] >= end[..]);
    }
    Ok(())
}

/// Runs transactions one after the other. `states` gets the state after each that was committed.
fn work(engine: &Arc<VtEngine>, states: &mut Vec<State>) -> Result<(), DbError> {
    let transactions = Transactions::new(engine.clone());
    let trees: BTreeMap<String, TreeId> =
        engine.trees().into_iter().map(|t| (t.name, t.id)).collect();
    let all = [
        Isolation::Snapshot,
        Isolation::Serializable,
        Isolation::Locking,
        Isolation::Snapshot,
    ];
    for (round, isolation) in (0u64..).zip(all) {
        let mut rng = Rng::new(round);
        let mut transaction = transactions.begin(&TransactionOptions {
            spill_bytes: 4000,
            ..TransactionOptions::new(isolation)
        });
        let mut seen = state(engine);
        let spilled_bytes = fill(&mut transaction, (&trees, &mut seen), &mut rng)?;
        assert!(spilled_bytes > 0, "it is larger than its memory");
        if round == 2 {
            transaction.abort();
            continue;
        }
        transaction.commit(CommitOptions {
            sync: true,
            ..CommitOptions::default()
        })?;
        let found = state(engine);
        assert!(found == seen, "the store has what the transaction saw");
        states.push(found);
        engine.quiesce()?;
    }
    Ok(())
}

/// Opens what a crash left. Returns its state.
fn check(image: MemDevice, possible: &[State]) -> State {
    let device = Arc::new(image);
    let engine = open(device.clone());
    drop_abandoned(engine.as_ref()).expect("they go");
    let found = state(&engine);
    let names: Vec<&String> = found.keys().collect();
    assert!(possible.contains(&found), "{names:?} hold something else");
    assert_eq!(engine.check(&mut |_, _| {}).expect("it goes on"), []);
    drop(engine);
    let engine = open(device);
    assert_eq!(drop_abandoned(engine.as_ref()).expect("none is left"), 0);
    assert!(state(&engine) == found, "the next life sees the same");
    found
}

/// Returns how many states crashes left, how many there are, and in how many crashes a
/// transaction had branch trees.
fn crash(plan: fn(u64) -> CrashPlan, step: usize) -> (usize, usize, usize) {
    let image = image();
    let device = Arc::new(CrashDevice::from_image(&image, CrashPlan::NEVER));
    let engine = open(device);
    let mut all = vec![state(&engine)];
    work(&engine, &mut all).expect("nothing fails");
    drop(engine);
    let mut rng = Rng::new(3);
    let (mut met, mut spilled) = (BTreeSet::new(), 0);
    for nth in (1..).step_by(step) {
        let device = Arc::new(CrashDevice::from_image(&image, CrashPlan::NEVER));
        let engine = open(device.clone());
        let mut states = vec![state(&engine)];
        device.set_plan(plan(nth));
        let worked = work(&engine, &mut states);
        assert!(worked.is_ok() || device.is_stopped(), "{worked:?}");
        let done = states.len() - 1;
        assert!(states == all[..=done], "each life does the same");
        spilled += usize::from(engine.trees().len() > NAMES.len());
        // A commit that was begun and did not return may have come about.
        let possible = &all[done..(done + 2).min(all.len())];
        drop(engine);
        for image in [device.crash_image(&mut rng), device.kill_image()] {
            let found = check(image, possible);
            met.extend(all.iter().position(|state| *state == found));
        }
        if !device.is_stopped() {
            break;
        }
    }
    (met.len(), all.len(), spilled)
}

#[test]
fn at_every_sync() {
    let (met, all, spilled) = crash(CrashPlan::at_sync, 1);
    assert_eq!(met, all, "a crash left each of the states");
    // What is written to them needs no syncs.
    assert!(spilled > 2, "{spilled} crashes met branch trees");
}

#[test]
fn at_many_writes() {
    let (met, all, spilled) = crash(CrashPlan::at_write, 2);
    assert!(met > all / 2, "{met} of {all} states");
    assert!(spilled > 5, "{spilled} crashes met branch trees");
}
