//! The systems that the simulator knows.

use crate::beside::Beside;
use crate::cases::{Case, Size, of_instances, of_plain_files, of_sends, of_short, of_system};
use crate::files::FsSystem;
use crate::files::lengths::STEP_BYTES;
use crate::files::views::ViewsSystem;
use crate::kv::{Host, KvSystem, Shape};
use crate::log_engine::LogHost;
use crate::mini::Mini;
use crate::tiny::Tiny;
use crate::toy::{Toy, ToyBug};
use crate::vt::VtHost;
use stitch_base::sync::Arc;
use stitch_volume::Refusals;

/// How much one seed does.
const SIZE: Size = Size {
    ops_max: 60,
    points: 6,
    faults: 20,
    damages: 20,
};

/// Every case of every system.
#[must_use]
pub fn cases() -> Vec<Case> {
    let mut cases = of_system(Toy { bug: ToyBug::None }, SIZE);
    // The toy has no defence against errors and damage: only its crashes are of use.
    cases.retain(|case| case.name == "toy/crash");
    cases.extend(of_system(Mini::default(), SIZE));
    cases.extend(of_system(log_kv(), SIZE));
    let log = LogHost::new("log", 2 << 20);
    cases.extend(of_system(FsSystem::new(log, "fs-log"), SIZE));
    let small = VtHost::new("vt", SMALL, 16 << 10, 16 << 10);
    cases.extend(of_system(vt_kv(small), SIZE));
    let direct = VtHost::new("vt-direct", SMALL, 8 << 10, 16 << 10).with_direct(1 << 10);
    cases.extend(of_system(vt_kv(direct), SIZE));
    let streams = VtHost::new("vt-streams", SMALL, 8 << 10, 16 << 10).with_direct(6 << 10);
    cases.extend(of_system(in_streams(streams), SIZE));
    let varied = VtHost::new("vt-varied", SMALL, 8 << 10, 16 << 10).with_varied_options();
    cases.extend(of_system(vt_kv(varied), SIZE));
    let tight = VtHost::new("vt-full", TIGHT, 16 << 10, 16 << 10).with_direct(2 << 10);
    cases.extend(of_system(vt_kv(tight), SIZE));
    let threads = VtHost::new("vt-threads", SMALL, 16 << 10, 16 << 10).with_direct(2 << 10);
    let threads = threads.with_threads();
    let mut threads = of_system(vt_kv(threads), SIZE);
    threads.retain(|case| case.name.ends_with("/crash") || case.name.ends_with("/fault"));
    cases.extend(threads);
    let space = VtHost::new("vt-space", SMALL, 16 << 10, 16 << 10).with_direct(2 << 10);
    cases.extend(of_system(worked_on(space), SIZE));
    let tight = VtHost::new("vt-space-full", TIGHT, 16 << 10, 16 << 10).with_direct(2 << 10);
    let mut tight = of_system(worked_on(tight), SIZE);
    tight.retain(|case| case.name.ends_with("/crash") || case.name.ends_with("/fault"));
    cases.extend(tight);
    let streams = VtHost::new("vt-streams-full", TIGHT, 16 << 10, 16 << 10).with_direct(6 << 10);
    let mut streams = of_system(in_streams(streams.with_unsynced(2 << 10)), SIZE);
    streams.retain(|case| case.name.ends_with("/crash") || case.name.ends_with("/fault"));
    cases.extend(streams);
    let threads = VtHost::new("vt-space-threads", SMALL, 16 << 10, 16 << 10).with_direct(2 << 10);
    let mut threads = of_system(worked_on(threads.with_threads()), SIZE);
    threads.retain(|case| case.name.ends_with("/crash"));
    cases.extend(threads);
    cases.extend(of_pins());
    cases.extend(of_branches());
    cases.extend(of_batches());
    cases.extend(of_several_instances());
    let files = VtHost::new("fs", FILES, 64 << 10, 32 << 10).with_direct(8 << 10);
    let files = files.with_discard().with_unsynced(16 << 10);
    let short = files.clone();
    cases.extend(of_system(FsSystem::new(files, "fs"), SIZE));
    cases.push(of_short("fs", SIZE, move |refusals| {
        FsSystem::new(short.clone().with_refusals(refusals), "fs")
    }));
    cases.extend(of_atomic_writes());
    cases.extend(of_lengths());
    cases.extend(of_views());
    cases.extend(of_sends(views("fs-sends"), SIZE));
    cases.extend(beside_the_store());
    cases.extend(short_of_space());
    cases
}

/// Atomic writes of files, with allocated extents and without.
fn of_atomic_writes() -> Vec<Case> {
    let name = "fs-atomic";
    let host = VtHost::new(name, FILES, 64 << 10, 32 << 10).with_direct(8 << 10);
    let short = host.clone();
    let mut cases = of_system(FsSystem::new(host, name).with_atomic_writes(), SIZE);
    cases.retain(|case| case.name.ends_with("/crash") || case.name.ends_with("/fault"));
    cases.push(of_short(name, SIZE, move |refusals| {
        FsSystem::new(short.clone().with_refusals(refusals), name).with_atomic_writes()
    }));
    cases
}

/// Power cuts and errors beside files whose lengths change all the time.
fn of_lengths() -> Vec<Case> {
    let mut cases = of_system(lengths(STEP_BYTES), SIZE);
    cases.retain(|case| case.name.ends_with("/crash") || case.name.ends_with("/fault"));
    cases
}

/// Files whose lengths change all the time, by writes of at most `longest` bytes.
pub(crate) fn lengths(longest: u64) -> FsSystem<VtHost> {
    let name = "fs-lengths";
    let host = VtHost::new(name, FILES, 64 << 10, 32 << 10).with_direct(8 << 10);
    FsSystem::new(host.with_unsynced(16 << 10), name).with_lengths(longest)
}

/// Large files beside the store, which the scenarios of crashes know of, and errors of theirs.
fn beside_the_store() -> Vec<Case> {
    let external = || external_files("fs-external");
    let mut cases = of_system(external(), SIZE);
    cases.retain(|case| case.name.ends_with("/crash") || case.name.contains("/canary"));
    cases.extend(of_plain_files(external().with_many_writes(), SIZE));
    let lent = || external_files("fs-lent").with_lending();
    let mut of_lent = of_system(lent(), SIZE);
    of_lent.retain(|case| case.name.ends_with("/crash"));
    of_lent.extend(of_plain_files(lent().with_many_writes(), SIZE));
    of_lent.retain(|case| !case.is_canary);
    cases.extend(of_lent);
    cases
}

fn external_files(name: &'static str) -> FsSystem<VtHost> {
    let files = VtHost::new(name, FILES, 64 << 10, 32 << 10).with_direct(8 << 10);
    FsSystem::new(files, name).with_external(LARGE_BYTES)
}

/// Pins beside all that changes the store.
fn of_pins() -> Vec<Case> {
    let pins = VtHost::new("vt-pins", SMALL, 8 << 10, 16 << 10).with_direct(2 << 10);
    of_system(with_pins(pins), SIZE)
}

/// Branch trees beside pins and all that changes the store.
fn of_branches() -> Vec<Case> {
    let host = |name| VtHost::new(name, SMALL, 8 << 10, 16 << 10).with_direct(2 << 10);
    let moving = host("vt-branches-moved").with_moved_branches();
    let mut cases = Vec::new();
    for host in [host("vt-branches"), moving] {
        let mut system = with_pins(host);
        system.shape.has_branches = true;
        cases.extend(of_system(system, SIZE));
    }
    cases
}

/// Transactions in temporary branches, whose batches become tables, beside branches, pins and all
/// that changes the store.
fn of_batches() -> Vec<Case> {
    let host = VtHost::new("vt-batches", SMALL, 8 << 10, 16 << 10).with_direct(2 << 10);
    let mut system = with_pins(host.with_table_batches(2 << 10));
    system.shape.has_branches = true;
    system.shape.has_transactions = true;
    of_system(system, SIZE)
}

/// Files with snapshots, clones, rollbacks and transactions. Tables are so small that views have
/// some.
fn of_views() -> Vec<Case> {
    let short = views_host("fs-views");
    let mut cases = of_system(views("fs-views"), SIZE);
    cases.retain(|case| !case.name.ends_with("/damage") && !case.name.ends_with("/nonsense"));
    cases.push(of_short("fs-views", SIZE, move |refusals| {
        let host = short.clone().with_refusals(refusals);
        ViewsSystem::new(host, "fs-views").with_whole_rollbacks()
    }));
    cases
}

fn views_host(name: &'static str) -> VtHost {
    let host = VtHost::new(name, FILES, 32 << 10, 16 << 10).with_direct(8 << 10);
    host.with_discard().with_unsynced(16 << 10)
}

fn views(name: &'static str) -> ViewsSystem<VtHost> {
    ViewsSystem::new(views_host(name), name)
}

/// Files with views, on the engine of the smallest tables.
#[cfg(test)]
pub(crate) fn views_for_tests() -> ViewsSystem<VtHost> {
    ViewsSystem::new(VtHost::new("test", FILES, 32 << 10, 16 << 10), "test")
}

/// Several instances on one volume.
fn of_several_instances() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, shape) in [("vt-beside", SMALL), ("vt-beside-full", TIGHT_BESIDE)] {
        let host = VtHost::new(name, shape, 16 << 10, 16 << 10).with_direct(4 << 10);
        let mut all = of_instances(name, &beside(host), SIZE);
        // The smaller one is soon full.
        all.retain(|case| shape.zones < SMALL.zones || !case.name.ends_with("/full"));
        cases.extend(all);
    }
    let name = "vt-beside-threads";
    let threads = VtHost::new(name, SMALL, 16 << 10, 16 << 10).with_direct(2 << 10);
    let mut threads = of_instances(name, &beside(threads.with_threads()), SIZE);
    threads.retain(|case| case.name.ends_with("/crash"));
    cases.extend(threads);
    cases
}

/// A few instances on a volume that is soon full.
#[cfg(test)]
pub(crate) fn instances_for_tests() -> Beside {
    beside(VtHost::new("test", TIGHT_BESIDE, 16 << 10, 16 << 10).with_direct(4 << 10))
}

/// Engines whose volume refuses space.
fn short_of_space() -> Vec<Case> {
    let plain = VtHost::new("vt", SMALL, 16 << 10, 16 << 10);
    let direct = VtHost::new("vt-direct", SMALL, 8 << 10, 16 << 10).with_direct(1 << 10);
    let varied = VtHost::new("vt-varied", SMALL, 8 << 10, 16 << 10).with_varied_options();
    let tight = VtHost::new("vt-full", TIGHT, 16 << 10, 16 << 10).with_direct(2 << 10);
    let mut cases = Vec::new();
    for host in [plain, direct, varied, tight] {
        cases.push(of_short(host.name(), SIZE, move |refusals| {
            vt_kv(host.clone().with_refusals(refusals))
        }));
    }
    cases.push(of_short("vt-space", SIZE, space));
    cases.push(of_short("vt-streams", SIZE, streams));
    cases.push(of_short("vt-resize", SIZE, resized));
    cases.push(of_short("fs-dense", SIZE, dense_files));
    cases
}

/// An engine with evacuations, discards and changes of the length, whose volume refuses space.
#[must_use]
pub fn space(refusals: Arc<Refusals>) -> KvSystem<VtHost> {
    let host = VtHost::new("vt-space", SMALL, 16 << 10, 16 << 10).with_direct(2 << 10);
    worked_on(host.with_refusals(refusals))
}

/// The same with puts that follow each other.
#[must_use]
pub fn streams(refusals: Arc<Refusals>) -> KvSystem<VtHost> {
    let host = VtHost::new("vt-streams", SMALL, 8 << 10, 16 << 10).with_direct(6 << 10);
    in_streams(host.with_refusals(refusals))
}

/// An engine whose length changes all the time, and whose volume refuses space.
#[must_use]
pub fn resized(refusals: Arc<Refusals>) -> KvSystem<VtHost> {
    let host = VtHost::new("vt-resize", SMALL, 16 << 10, 16 << 10).with_direct(2 << 10);
    let mut system = worked_on(host.with_refusals(refusals));
    system.shape.chores = Some(3);
    system
}

/// Files that are written so much that their engine asks for space all the time, and is refused
/// some.
#[must_use]
pub fn dense_files(refusals: Arc<Refusals>) -> FsSystem<VtHost> {
    let host = VtHost::new("fs-dense", FILES, 16 << 10, 16 << 10).with_direct(8 << 10);
    let host = host.with_discard().with_refusals(refusals);
    FsSystem::new(host, "fs-dense").with_many_writes()
}

/// The contract of engines on the plainest of them.
fn log_kv() -> KvSystem<LogHost> {
    let shape = Shape {
        keys: 200,
        value_bytes_max: 3000,
        messages_max: 12,
        chores: None,
        has_streams: false,
        has_pins: false,
        has_branches: false,
        has_transactions: false,
    };
    KvSystem {
        host: LogHost::new("log", 1 << 20),
        shape,
    }
}

/// A volume on which both logs wrap and zones are evacuated within one life.
const SMALL: Tiny = Tiny {
    version_log_bytes: 128 << 10,
    backup_log_bytes: 256 << 10,
    zone_bytes: 64 << 10,
    zones: 64,
};

/// A volume whose log takes the writes of a file in one record.
const FILES: Tiny = Tiny {
    backup_log_bytes: 512 << 10,
    ..SMALL
};

/// Files of a few pages are large.
const LARGE_BYTES: u64 = 6000;

/// A volume that is soon full.
const TIGHT: Tiny = Tiny { zones: 20, ..SMALL };

/// A volume that is soon full with a few instances.
const TIGHT_BESIDE: Tiny = Tiny { zones: 44, ..SMALL };

/// For tests: workloads of several instances on a volume of the usual length.
#[must_use]
pub fn several_instances() -> Beside {
    beside(VtHost::new("vt-beside", SMALL, 16 << 10, 16 << 10).with_direct(4 << 10))
}

fn beside(host: VtHost) -> Beside {
    let shape = Shape {
        keys: 200,
        value_bytes_max: 3000,
        messages_max: 12,
        chores: None,
        has_streams: true,
        has_pins: false,
        has_branches: false,
        has_transactions: false,
    };
    Beside::new(host.with_discard(), shape, 2 * SIZE.ops_max, SIZE.points)
}

fn vt_kv(host: VtHost) -> KvSystem<VtHost> {
    let shape = Shape {
        keys: 300,
        value_bytes_max: 3000,
        messages_max: 12,
        chores: None,
        has_streams: false,
        has_pins: false,
        has_branches: false,
        has_transactions: false,
    };
    KvSystem { host, shape }
}

/// With pins, which see trees that are dropped later.
fn with_pins(host: VtHost) -> KvSystem<VtHost> {
    let mut system = worked_on(host);
    system.shape.has_pins = true;
    system
}

/// Puts that follow each other, commit after commit, among others, and with what [`worked_on`]
/// does.
fn in_streams(host: VtHost) -> KvSystem<VtHost> {
    let mut system = worked_on(host);
    system.shape.has_streams = true;
    system
}

/// With evacuations, discards, and changes of the length.
fn worked_on(host: VtHost) -> KvSystem<VtHost> {
    let mut system = vt_kv(host.with_discard());
    system.shape.chores = Some(8);
    system
}
