//! Keys in a branch of the rows, as a transaction has them, and mainline beside it.

use super::{Desk, run};
use crate::joined::{is_totals, join_totals};
use crate::service::{Service, SyncPolicy};
use crate::{RoundGate, ServerOptions};
use std::time::Duration;
use stitch_base::TreeId;
use stitch_base::clock::ManualClock;
use stitch_base::sync::Arc;
use stitch_format::redis::{self, Totals};
use stitch_kv::{
    Batch, CommitOptions, Engine, Guards, ModelEngine, NewBranch, TreeInfo, UpsertRegistry,
    WrappedEngine,
};

/// An engine in which the branch goes by the name of its parent.
struct BranchEngine {
    engine: Arc<ModelEngine>,
    branch: TreeId,
}

impl WrappedEngine for BranchEngine {
    fn inner(&self) -> &dyn Engine {
        &*self.engine
    }

    fn trees(&self) -> Vec<TreeInfo> {
        let mut trees = Engine::trees(&*self.engine);
        trees.retain(|tree| tree.id == self.branch);
        trees[0].name = redis::TREE.to_owned();
        trees
    }
}

/// Mainline's keys, and a branch of them.
pub(super) struct Sides {
    pub(super) engine: Arc<ModelEngine>,
    clock: Arc<ManualClock>,
    gate: Arc<RoundGate>,
    pub(super) mainline: Desk,
    pub(super) rows: TreeId,
}

impl Sides {
    pub(super) fn new(lines: &[&str]) -> Self {
        let engine = Arc::new(ModelEngine::new(UpsertRegistry::default()));
        let clock = Arc::new(ManualClock::default());
        clock.advance(Duration::from_secs(1000));
        let gate = Arc::new(RoundGate::default());
        let mut mainline = desk(&engine, &clock, Arc::clone(&engine) as _, None, &gate);
        for line in lines {
            mainline.run(line);
        }
        let rows = Engine::trees(&*engine)[0].id;
        Self {
            engine,
            clock,
            gate,
            mainline,
            rows,
        }
    }

    fn branch(&self, name: &str) -> (Desk, TreeId) {
        let branch = self.branch_tree(name);
        (self.desk_of(branch), branch)
    }

    pub(super) fn branch_tree(&self, name: &str) -> TreeId {
        let new = [NewBranch::new(self.rows, name)];
        self.engine.branch_trees(&new, None).unwrap()[0]
    }

    pub(super) fn desk_of(&self, branch: TreeId) -> Desk {
        let engine = BranchEngine {
            engine: Arc::clone(&self.engine),
            branch,
        };
        let gate = Arc::default();
        desk(
            &self.engine,
            &self.clock,
            Arc::new(engine),
            Some(branch),
            &gate,
        )
    }

    /// What the commit of a transaction does.
    pub(super) fn absorb(&self, branch: TreeId) {
        let keys = self.engine.branch_keys(branch, None, 1000).unwrap();
        let moment = self.engine.branch_moment(branch).unwrap();
        let mut pause = self.gate.pause();
        let mut batch = Batch::new();
        if keys.iter().any(|key| is_totals(redis::TREE, key)) {
            let key = redis::totals_key();
            let base = self.engine.get(self.rows, &key, Some(&moment)).unwrap();
            let ours = self.engine.get(branch, &key, None).unwrap();
            let theirs = self.engine.get(self.rows, &key, None).unwrap();
            let sides = [base.as_deref(), ours.as_deref(), theirs.as_deref()];
            match join_totals(sides).unwrap() {
                Some(row) => batch.put(self.rows, &key, &row),
                None => batch.delete(self.rows, &key),
            }
        }
        let mut guards = Guards::since(&moment);
        let others = keys.iter().filter(|key| !is_totals(redis::TREE, key));
        others.for_each(|key| guards.key(self.rows, key));
        let options = CommitOptions::default();
        self.engine
            .absorb(&[branch], &batch, &guards, options)
            .unwrap();
        pause.changed(&keys);
    }
}

fn desk(
    engine: &Arc<ModelEngine>,
    clock: &Arc<ManualClock>,
    served: Arc<dyn Engine>,
    branch: Option<TreeId>,
    gate: &Arc<RoundGate>,
) -> Desk {
    let options = ServerOptions {
        sync: SyncPolicy::Always,
        clock: Arc::clone(clock) as _,
        branch,
        gate: Arc::clone(gate),
        // Mainline has rows in memory, which are to follow the commits.
        recent_bytes: if branch.is_none() { 1 << 20 } else { 0 },
        ..ServerOptions::default()
    };
    let mut service = Service::open(served, &options).unwrap();
    let client = service.connect();
    Desk {
        engine: Arc::clone(engine),
        clock: Arc::clone(clock),
        service,
        client,
    }
}

#[test]
fn mainline_follows_what_two_branches_add() {
    let mut sides = Sides::new(&["SET a 1", "HSET h f 1", "SET gone 1 EX 100"]);
    let (mut one, first) = sides.branch("one");
    let (mut two, second) = sides.branch("two");
    one.check(&[
        ("SET b 1", "OK"),
        ("DEL gone", "(1)"),
        ("HSET new x 1", "(1)"),
    ]);
    two.check(&[
        ("SET c 1 EX 50", "OK"),
        ("HSET other y 1", "(1)"),
        ("DBSIZE", "(5)"),
    ]);
    sides
        .mainline
        .check(&[("DBSIZE", "(3)"), ("HSET third z 1", "(1)")]);
    sides.absorb(first);
    sides
        .mainline
        .check(&[("DBSIZE", "(5)"), ("GET b", "1"), ("HGETALL new", "[x 1]")]);
    sides.absorb(second);
    sides.mainline.check(&[
        ("DBSIZE", "(7)"),
        ("HGETALL third", "[z 1]"),
        ("HGETALL new", "[x 1]"),
        ("HGETALL other", "[y 1]"),
        ("HSET last w 1", "(1)"),
        ("HGETALL new", "[x 1]"),
        ("HGETALL other", "[y 1]"),
    ]);
    // The expiry that came along is kept.
    sides.mainline.advance(50_000);
    sides.mainline.service.begin_round();
    sides.mainline.service.reclaim();
    sides.mainline.service.commit().unwrap();
    sides
        .mainline
        .check(&[("EXISTS c", "(0)"), ("DBSIZE", "(7)")]);
    let totals = sides.engine.get(sides.rows, &redis::totals_key(), None);
    let totals = Totals::decode(&totals.unwrap().unwrap()).unwrap();
    assert_eq!((totals.keys, totals.expiries), (7, 0));
    assert!(totals.next_collection < 1 << 32, "mainline's own numbers");
}

#[test]
fn mainline_reads_again_what_a_transaction_changed() {
    let mut sides = Sides::new(&["SET a 1", "SET gone 1", "HSET h f 1"]);
    let (mut one, first) = sides.branch("one");
    one.check(&[("SET a 2", "OK"), ("SET new 1", "OK"), ("DEL gone", "(1)")]);
    one.check(&[("HSET h g 2", "(1)")]);
    let before = [("GET a", "1"), ("GET new", "nil"), ("GET gone", "1")];
    sides.mainline.check(&before);
    sides.absorb(first);
    let after = [("GET a", "2"), ("GET new", "1"), ("GET gone", "nil")];
    sides.mainline.check(&after);
    sides
        .mainline
        .check(&[("HLEN h", "(2)"), ("HGETALL h", "[f 1 g 2]")]);
}

#[test]
fn a_watched_key_that_a_transaction_changed_makes_exec_fail() {
    let mut sides = Sides::new(&["SET a 1", "SET b 1"]);
    let (mut one, first) = sides.branch("one");
    one.check(&[("SET a 2", "OK")]);
    let mainline = &mut sides.mainline;
    mainline.check(&[("WATCH b", "OK"), ("MULTI", "OK"), ("GET b", "QUEUED")]);
    let mut other = mainline.service.connect();
    for line in ["WATCH a", "MULTI", "SET a 3"] {
        mainline.service.begin_round();
        run(&mut mainline.service, &mut other, line);
        mainline.service.commit().unwrap();
    }
    sides.absorb(first);
    let mainline = &mut sides.mainline;
    mainline.service.begin_round();
    assert_eq!(run(&mut mainline.service, &mut other, "EXEC"), "nil");
    mainline.service.commit().unwrap();
    mainline.check(&[("EXEC", "[1]"), ("GET a", "2")]);
}

#[test]
fn a_key_whose_time_is_over_is_missing_in_a_branch_and_no_change_of_it() {
    let mut sides = Sides::new(&["SET a 1 EX 10", "HSET h f 1", "EXPIRE h 10", "SET keep 1"]);
    let (mut one, first) = sides.branch("one");
    one.check(&[
        ("DBSIZE", "(3)"),
        ("WATCH a", "OK"),
        ("MULTI", "OK"),
        ("PING", "QUEUED"),
    ]);
    one.advance(10_000);
    one.check(&[
        ("EXEC", "nil"),
        ("GET a", "nil"),
        ("DBSIZE", "(1)"),
        ("DEL a", "(0)"),
        ("KEYS *", "[keep]"),
        ("WATCH a", "OK"),
        ("MULTI", "OK"),
        ("PING", "QUEUED"),
        ("EXEC", "[PONG]"),
    ]);
    one.service.begin_round();
    one.service.reclaim();
    one.service.commit().unwrap();
    // WATCH of a key that is over removes it, so that it can be seen to come back.
    assert_eq!(one.engine.branch_keys(first, None, 9).unwrap().len(), 3);
    one.check(&[
        ("HSET h g 2", "(1)"),
        ("HGETALL h", "[g 2]"),
        ("TTL h", "(-1)"),
        ("DBSIZE", "(2)"),
    ]);
    sides.absorb(first);
    sides
        .mainline
        .check(&[("DBSIZE", "(2)"), ("HGETALL h", "[g 2]"), ("GET a", "nil")]);
}

#[test]
fn a_branch_that_is_read_alone_writes_nothing() {
    let sides = Sides::new(&["SET a 1", "SET b 1 EX 10"]);
    let (mut one, first) = sides.branch("one");
    one.advance(20_000);
    one.check(&[
        ("GET a", "1"),
        ("GET b", "nil"),
        ("DBSIZE", "(1)"),
        ("SCAN 0", "[0 [a]]"),
    ]);
    assert_eq!(
        one.engine.branch_keys(first, None, 9).unwrap(),
        Vec::<Vec<u8>>::new()
    );
    assert_eq!(one.service.until_expiry_ms(), None);
}

#[test]
fn a_branch_that_was_flushed_counts_on_with_its_own_numbers() {
    let mut sides = Sides::new(&["HSET h f 1", "SET a 1"]);
    let (mut one, first) = sides.branch("one");
    one.check(&[("HSET n f 1", "(1)"), ("FLUSHALL", "OK"), ("DBSIZE", "(0)")]);
    one.check(&[("HSET m f 1", "(1)"), ("DBSIZE", "(1)")]);
    sides.absorb(first);
    sides.mainline.check(&[
        ("KEYS *", "[m]"),
        ("DBSIZE", "(1)"),
        ("HSET n g 2", "(1)"),
        ("HGETALL m", "[f 1]"),
        ("HGETALL n", "[g 2]"),
    ]);
}
