//! Commands of several keys, fields or members: what they ask the store for, and names that come
//! twice.

use super::{Desk, run};
use crate::ServerOptions;
use crate::client::ClientState;
use crate::service::Service;
use bytes::Bytes;
use stitch_base::TreeId;
use stitch_base::sync::Arc;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_kv::{
    Batch, CommitOptions, Engine, KvError, ModelEngine, Snapshot, UpsertRegistry, WrappedEngine,
};

/// Counts calls of the store. Reads of totals at the beginning of a round are not among them.
#[derive(Default)]
struct Calls {
    reads: AtomicU64,
    commits: AtomicU64,
}

struct CountingEngine {
    engine: ModelEngine,
    calls: Arc<Calls>,
}

impl WrappedEngine for CountingEngine {
    fn inner(&self) -> &dyn Engine {
        &self.engine
    }

    fn get(
        &self,
        tree: TreeId,
        key: &[u8],
        at: Option<&Snapshot>,
    ) -> Result<Option<Bytes>, KvError> {
        self.calls.reads.fetch_add(1, Ordering::Relaxed);
        self.engine.get(tree, key, at)
    }

    fn get_many(
        &self,
        tree: TreeId,
        keys: &[&[u8]],
        at: Option<&Snapshot>,
    ) -> Result<Vec<Option<Bytes>>, KvError> {
        self.calls.reads.fetch_add(1, Ordering::Relaxed);
        self.engine.get_many(tree, keys, at)
    }

    fn commit(&self, batch: &Batch, options: CommitOptions) -> Result<stitch_base::Seqno, KvError> {
        self.calls.commits.fetch_add(1, Ordering::Relaxed);
        self.engine.commit(batch, options)
    }
}

/// A service without rows in memory, over an engine that counts.
struct Counted {
    service: Service,
    client: ClientState,
    calls: Arc<Calls>,
}

impl Counted {
    fn new() -> Self {
        let calls = Arc::new(Calls::default());
        let engine = CountingEngine {
            engine: ModelEngine::new(UpsertRegistry::default()),
            calls: Arc::clone(&calls),
        };
        let options = ServerOptions {
            recent_bytes: 0,
            ..ServerOptions::default()
        };
        let mut service = Service::open(Arc::new(engine), &options).unwrap();
        let client = service.connect();
        Self {
            service,
            client,
            calls,
        }
    }

    /// Runs a command in a round of its own. Returns its reply, and its reads and commits.
    fn run(&mut self, line: &str) -> (String, u64, u64) {
        let count = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        self.service.begin_round();
        let _ = (count(&self.calls.reads), count(&self.calls.commits));
        let reply = run(&mut self.service, &mut self.client, line);
        self.service.commit().unwrap();
        let (reads, commits) = (count(&self.calls.reads), count(&self.calls.commits));
        (reply, reads, commits)
    }
}

/// A command with arguments that are made of the numbers below `count`.
fn command(head: &str, count: usize, args: impl Fn(usize) -> String) -> String {
    let args: Vec<String> = (0..count).map(args).collect();
    format!("{head} {}", args.join(" "))
}

#[test]
fn several_names_are_one_read_and_one_commit() {
    let mut counted = Counted::new();
    let names = |head: &str| command(head, 100, |number| format!("n{number}"));
    let pairs = |head: &str| command(head, 100, |number| format!("n{number} v{number}"));
    let scores = |head: &str| command(head, 100, |number| format!("{number} n{number}"));
    // A row of a collection's key is one more read.
    let cases = [
        (pairs("MSET"), "OK", 1, 1),
        (pairs("MSET"), "OK", 1, 1),
        (pairs("MSETNX"), "(0)", 1, 0),
        (names("EXISTS"), "(100)", 1, 0),
        (names("WATCH"), "OK", 1, 0),
        (names("DEL"), "(100)", 1, 1),
        (pairs("MSETNX"), "(1)", 1, 1),
        (names("UNLINK"), "(100)", 1, 1),
        (pairs("HSET h"), "(100)", 2, 1),
        (pairs("HSET h"), "(0)", 2, 1),
        (names("HDEL h"), "(100)", 2, 1),
        (scores("ZADD z"), "(100)", 2, 1),
        (scores("ZADD z"), "(0)", 2, 0),
        (names("ZREM z"), "(100)", 2, 1),
    ];
    for (line, reply, reads, commits) in cases {
        let name = line.split(' ').next().unwrap();
        assert_eq!(
            counted.run(&line),
            (reply.to_owned(), reads, commits),
            "{name}"
        );
    }
    assert_eq!(counted.run("DBSIZE").0, "(0)", "all is gone");
    for head in ["MGET", "HMGET h", "ZMSCORE z"] {
        let (reply, reads, _) = counted.run(&names(head));
        assert_eq!(reply, format!("[{}]", vec!["nil"; 100].join(" ")));
        assert_eq!(
            reads, 1,
            "{head}: of keys, or of the collection that is missing"
        );
    }
}

#[test]
fn more_names_than_are_read_together_are_read_in_groups() {
    let mut counted = Counted::new();
    let pairs = |head: &str| command(head, 600, |number| format!("n{number} {number}"));
    let names = |head: &str| command(head, 600, |number| format!("n{number}"));
    let all: Vec<String> = (0..600).map(|number| number.to_string()).collect();
    let all = format!("[{}]", all.join(" "));
    assert_eq!(counted.run(&pairs("MSET")), ("OK".to_owned(), 3, 1));
    assert_eq!(counted.run(&names("MGET")), (all.clone(), 3, 0));
    assert_eq!(counted.run(&names("DEL")), ("(600)".to_owned(), 3, 1));
    assert_eq!(counted.run(&pairs("HSET h")), ("(600)".to_owned(), 4, 1));
    assert_eq!(counted.run(&names("HMGET h")), (all, 4, 0));
    assert_eq!(counted.run(&names("HDEL h")), ("(600)".to_owned(), 4, 1));
    let scores = command("ZADD z", 600, |number| format!("{number} n{number}"));
    assert_eq!(counted.run(&scores), ("(600)".to_owned(), 4, 1));
    assert_eq!(counted.run(&names("ZREM z")), ("(600)".to_owned(), 4, 1));
}

#[test]
fn a_name_that_comes_twice_is_seen_as_the_first_has_left_it() {
    for recent_bytes in [0, 1 << 20] {
        let engine = Arc::new(ModelEngine::new(UpsertRegistry::default()));
        let mut desk = Desk::with_recent(engine, recent_bytes);
        desk.check(&[
            ("MSET a 1 a 2 b 3", "OK"),
            ("MGET a a b", "[2 2 3]"),
            ("EXISTS a a c", "(2)"),
            ("DBSIZE", "(2)"),
            ("DEL a c a", "(1)"),
            ("MSETNX a 1 a 2", "(1)"),
            ("GET a", "2"),
            ("HSET h f 1 f 2 g 3", "(2)"),
            ("HMGET h f g f", "[2 3 2]"),
            ("HDEL h f f", "(1)"),
            ("HLEN h", "(1)"),
            ("ZADD z 1 m 2 m 3 n", "(2)"),
            ("ZMSCORE z m n m", "[2 3 2]"),
            ("ZREM z m m", "(1)"),
            ("ZCARD z", "(1)"),
            ("SET t 1 PX 5", "OK"),
            ("RENAME b b", "OK"),
            ("RENAMENX b h", "(0)"),
            ("COPY b z REPLACE", "(1)"),
            ("GET z", "3"),
        ]);
        desk.advance(10);
        desk.check(&[
            ("MGET t a t", "[nil 2 nil]"),
            ("DBSIZE", "(4)"),
            ("DEL t a b h z t", "(4)"),
            ("DBSIZE", "(0)"),
        ]);
    }
}

#[test]
fn what_was_fetched_is_not_seen_by_later_commands() {
    let engine = Arc::new(ModelEngine::new(UpsertRegistry::default()));
    let mut desk = Desk::with_recent(engine, 0);
    desk.check(&[("MSET a 1 b 2", "OK"), ("MGET a b", "[1 2]")]);
    // In one round, with changes by single names between.
    desk.service.begin_round();
    for (line, expected) in [
        ("MGET a b", "[1 2]"),
        ("SET a 3", "OK"),
        ("DEL b", "(1)"),
        ("MGET a b", "[3 nil]"),
        ("FLUSHDB", "OK"),
        ("MGET a b", "[nil nil]"),
        ("MSET b 4 a 5", "OK"),
    ] {
        let reply = run(&mut desk.service, &mut desk.client, line);
        assert_eq!(reply, expected, "{line}");
    }
    assert_eq!(desk.service.commit(), Ok(true));
    desk.check(&[("GET a", "5"), ("GET b", "4")]);
}
