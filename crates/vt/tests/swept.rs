//! Sweeps across lives: what a crash in a sweep leaves, and when an open sweeps again.
//!
//! A clean close with nothing left to sweep for leaves a mark in the log. The next open trusts it,
//! unless anything was written since.

mod common;

use common::space::{GARBAGE_BYTES, Rows, SWEPT_BYTES, counter, garbage, owned, rows, slack};
use common::{MIB, open};
use std::sync::Arc;
use stitch_base::TreeId;
use stitch_base::random::Rng;
use stitch_device::{CrashDevice, CrashPlan, Device, MemDevice};
use stitch_kv::{Batch, CommitOptions, Engine, TreeOptions};
use stitch_vt::{VtEngine, VtOptions};

/// Rows of the stores of [`marked_image`].
const ROWS: u64 = 900;

/// A store that has two pins over overwritten rows, each seen by its own: the tree, and what the
/// second pin and the present show.
fn pinned_image() -> (MemDevice, TreeId, [Rows; 2]) {
    let device = Arc::new(MemDevice::new(32 * MIB));
    common::format(&*device, None);
    let engine = open(device.clone(), small_options());
    let made = engine.create_tree("tree", &TreeOptions::default());
    let tree = made.expect("it is made");
    let mut rng = Rng::new(1);
    let mut put = |rows: u64| {
        for _ in 0..rows {
            let mut value = vec![0; 600];
            rng.fill(&mut value);
            let mut batch = Batch::new();
            batch.put(tree, &rng.below(150).to_be_bytes(), &value);
            let done = engine.commit(&batch, CommitOptions::default());
            done.expect("there is space");
        }
    };
    put(300);
    engine.create_pin("dropped", b"").expect("it is made");
    put(60);
    engine.quiesce().expect("background work succeeds");
    put(20);
    engine.create_pin("kept", b"").expect("it is made");
    let kept = rows(&engine, tree, None);
    put(60);
    engine.quiesce().expect("background work succeeds");
    let now = rows(&engine, tree, None);
    drop(engine);
    (MemDevice::clone(&device), tree, [kept, now])
}

fn small_options() -> VtOptions {
    VtOptions {
        memory_bytes: 16 * MIB,
        memtable_bytes: Some(32 << 10),
        table_bytes: Some(16 << 10),
        level1_bytes: Some(32 << 10),
        background: false,
        ..VtOptions::default()
    }
}

/// Drops a pin and sweeps, with a crash as planned. Then all must be there that the other pin and
/// the present show, and come back to what it takes without the dropped pin.
fn crash_in_sweep(plan: fn(u64) -> CrashPlan, step: usize) {
    let (image, tree, [kept, now]) = pinned_image();
    let mut rng = Rng::new(3);
    let after = swept_whole(&image);
    for nth in (1..).step_by(step) {
        let device = Arc::new(CrashDevice::from_image(&image, CrashPlan::NEVER));
        let engine = open(device.clone(), small_options());
        device.set_plan(plan(nth));
        let worked = engine.drop_pin("dropped").and_then(|()| engine.quiesce());
        assert!(worked.is_ok() || device.is_stopped(), "{worked:?}");
        let garbage = counter(&engine, GARBAGE_BYTES);
        drop(engine);
        for image in [device.crash_image(&mut rng), device.kill_image()] {
            let engine = open(Arc::new(image), small_options());
            let at = engine.open_pin("kept").expect("it is there");
            assert!(rows(&engine, tree, Some(&at)) == kept, "the pin changed");
            assert!(rows(&engine, tree, None) == now, "the present changed");
            drop(at);
            if engine.open_pin("dropped").is_ok() {
                engine.drop_pin("dropped").expect("it goes");
            }
            let again = owned(&engine);
            assert_eq!(engine.check(&mut |_, _| {}).expect("it goes on"), []);
            assert!(rows(&engine, tree, None) == now, "the present changed");
            let at = engine.open_pin("kept").expect("it is there");
            assert!(rows(&engine, tree, Some(&at)) == kept, "the pin changed");
            assert!(again <= after + slack(after), "{again} of {after}");
        }
        if !device.is_stopped() {
            assert!(garbage > 0, "there was something to be found");
            break;
        }
    }
}

/// Bytes that a whole sweep leaves.
fn swept_whole(image: &MemDevice) -> u64 {
    let device = Arc::new(CrashDevice::from_image(image, CrashPlan::NEVER));
    let engine = open(device, small_options());
    engine.drop_pin("dropped").expect("it goes");
    owned(&engine)
}

#[test]
fn a_crash_at_every_sync_of_a_sweep_loses_nothing() {
    crash_in_sweep(CrashPlan::at_sync, 1);
}

#[test]
fn a_crash_at_many_writes_of_a_sweep_loses_nothing() {
    crash_in_sweep(CrashPlan::at_write, 3);
}

/// Puts every row of a store of [`marked_image`] anew, or one in so many.
fn overwrite(engine: &VtEngine, tree: TreeId, rng: &mut Rng, step: usize) {
    for key in (0..ROWS).step_by(step) {
        let mut value = vec![0; 600];
        rng.fill(&mut value);
        let mut batch = Batch::new();
        batch.put(tree, &key.to_be_bytes(), &value);
        let done = engine.commit(&batch, CommitOptions::default());
        done.expect("there is space");
    }
    engine.quiesce().expect("background work succeeds");
}

/// A store whose pin was dropped and swept for before a clean close, and its tree.
fn marked_image() -> (MemDevice, TreeId) {
    let device = Arc::new(MemDevice::new(32 * MIB));
    common::format(&*device, None);
    let engine = open(device.clone(), small_options());
    let made = engine.create_tree("tree", &TreeOptions::default());
    let tree = made.expect("it is made");
    leave_garbage(&engine, tree, &mut Rng::new(1));
    owned(&engine);
    assert!(counter(&engine, SWEPT_BYTES) > 0, "there was garbage");
    engine.close().expect("it closes");
    drop(engine);
    (MemDevice::clone(&device), tree)
}

/// Makes garbage of what a pin sees: it has yet to be dropped.
fn prepare_garbage(engine: &VtEngine, tree: TreeId, rng: &mut Rng) {
    overwrite(engine, tree, rng, 1);
    engine.create_pin("pin", b"").expect("it is made");
    overwrite(engine, tree, rng, 3);
}

/// Leaves what a dropped pin saw as garbage.
fn leave_garbage(engine: &VtEngine, tree: TreeId, rng: &mut Rng) {
    prepare_garbage(engine, tree, rng);
    engine.drop_pin("pin").expect("it goes");
}

fn opened(image: &MemDevice) -> (Arc<CrashDevice>, Arc<VtEngine>) {
    let device = Arc::new(CrashDevice::from_image(image, CrashPlan::NEVER));
    let engine = open(Arc::clone(&device) as Arc<dyn Device>, small_options());
    (device, engine)
}

/// The bytes that an open of an image sweeps, and the garbage that stays.
fn swept(image: &MemDevice) -> (u64, u64) {
    let (_, engine) = opened(image);
    engine.quiesce().expect("background work succeeds");
    (counter(&engine, SWEPT_BYTES), garbage(&engine))
}

#[test]
fn a_store_that_was_swept_before_its_close_is_not_swept_after_it() {
    let (mut image, _) = marked_image();
    let mut used = Vec::new();
    for _ in 0..5 {
        let (device, engine) = opened(&image);
        engine.quiesce().expect("background work succeeds");
        assert_eq!(counter(&engine, SWEPT_BYTES), 0, "nothing was left");
        engine.close().expect("it closes");
        let log = engine.volume().log().used_bytes();
        used.push(log.expect("the log is known"));
        image = device.kill_image();
    }
    assert!(used.iter().all(|bytes| *bytes == used[0]), "{used:?}");
}

#[test]
fn what_was_left_at_a_close_is_swept_for_after_it() {
    let (image, tree) = marked_image();
    let (device, engine) = opened(&image);
    leave_garbage(&engine, tree, &mut Rng::new(2));
    engine.close().expect("it closes");
    let left = garbage(&engine);
    assert!(left > slack(0), "{left} bytes of garbage");
    let image = device.kill_image();
    let (bytes, left) = swept(&image);
    assert!(bytes > 0, "an open sweeps for it");
    assert!(left <= slack(0), "{left} bytes of garbage");
}

#[test]
fn what_a_reader_kept_until_the_close_is_swept_for_after_it() {
    let (image, tree) = marked_image();
    let (device, engine) = opened(&image);
    let reader = engine.snapshot();
    overwrite(&engine, tree, &mut Rng::new(2), 3);
    engine.close().expect("it closes");
    drop(reader);
    let (bytes, left) = swept(&device.kill_image());
    assert!(bytes > 0, "an open sweeps for it");
    assert!(left <= slack(0), "{left} bytes of garbage");
}

#[test]
fn a_reader_for_which_nothing_was_kept_does_not_hinder_the_mark() {
    let (image, _) = marked_image();
    let (device, engine) = opened(&image);
    let reader = engine.snapshot();
    engine.close().expect("it closes");
    drop(reader);
    assert_eq!(swept(&device.kill_image()).0, 0, "nothing was left");
}

#[test]
fn a_pin_of_an_earlier_life_is_swept_for_when_it_is_dropped() {
    let (image, _, [_, now]) = pinned_image();
    let after = swept_whole(&image);
    let (device, engine) = opened(&image);
    let before = owned(&engine);
    engine.close().expect("it closes");
    drop(engine);
    let image = device.kill_image();
    let (_, engine) = opened(&image);
    // Nothing is written between the open and the drop.
    assert_eq!((owned(&engine), counter(&engine, SWEPT_BYTES)), (before, 0));
    engine.drop_pin("dropped").expect("it goes");
    let left = owned(&engine);
    assert!(counter(&engine, SWEPT_BYTES) > 0, "there is garbage");
    assert!(left <= after + slack(after) / 4, "{left} of {after}");
    assert!(left < before, "{left} of {before}");
    let tree = engine.trees()[0].id;
    assert!(rows(&engine, tree, None) == now, "the present changed");
}

/// A store that was closed with a mark, and has a pin that keeps replaced rows.
fn marked_image_with_pin() -> MemDevice {
    let (image, tree) = marked_image();
    let (device, engine) = opened(&image);
    prepare_garbage(&engine, tree, &mut Rng::new(4));
    engine.close().expect("it closes");
    let image = device.kill_image();
    assert_eq!(swept(&image).0, 0, "nothing was left");
    image
}

#[test]
fn a_program_that_closes_without_a_mark_takes_it_back() {
    let (device, engine) = opened(&marked_image_with_pin());
    engine.drop_pin("pin").expect("it goes");
    // As programs before the mark do. The mark of the life before is the last record of the log.
    engine.volume().close().expect("it closes");
    let (bytes, left) = swept(&device.kill_image());
    assert!(bytes > 0, "an open sweeps for it");
    assert!(left <= slack(0), "{left} bytes of garbage");
}

/// Ends lives that follow a mark, drop a pin and close, with a crash as planned. They write nothing
/// else: the mark stays the last record of the log. Whatever is on the medium then, the next life
/// sweeps for what was left.
fn crash_after_mark(plan: fn(u64) -> CrashPlan) {
    let image = marked_image_with_pin();
    let mut rng = Rng::new(3);
    let mut swept_count = 0;
    for nth in 1.. {
        let (device, engine) = opened(&image);
        device.set_plan(plan(nth));
        let ended = engine.drop_pin("pin").and_then(|()| engine.close());
        assert!(ended.is_ok() || device.is_stopped(), "{ended:?}");
        drop(engine);
        for image in [device.crash_image(&mut rng), device.kill_image()] {
            let (_, engine) = opened(&image);
            let is_dropped = engine.drop_pin("pin").is_err();
            engine.quiesce().expect("background work succeeds");
            let left = garbage(&engine);
            assert!(left <= slack(0), "{left} bytes of garbage at {nth}");
            swept_count += u64::from(is_dropped && counter(&engine, SWEPT_BYTES) > 0);
        }
        if !device.is_stopped() {
            break;
        }
    }
    assert!(swept_count > 2, "crashes left garbage");
}

#[test]
fn a_crash_at_every_sync_of_a_life_takes_the_mark_back() {
    crash_after_mark(CrashPlan::at_sync);
}

#[test]
fn a_crash_at_every_write_of_a_life_takes_the_mark_back() {
    crash_after_mark(CrashPlan::at_write);
}
