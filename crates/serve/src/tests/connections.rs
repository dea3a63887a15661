//! What concerns the connection and the server.

use super::{Desk, run};
use crate::ServerOptions;
use crate::service::{Service, SyncPolicy};
use stitch_base::clock::ManualClock;
use stitch_base::sync::Arc;
use stitch_kv::{ModelEngine, UpsertRegistry};

#[test]
fn a_client_introduces_itself() {
    let mut desk = Desk::new();
    desk.check(&[
        ("PING", "PONG"),
        ("PING hello", "hello"),
        ("ECHO hello", "hello"),
        ("SELECT 0", "OK"),
        ("SELECT 1", "!ERR DB index is out of range"),
        ("CLIENT ID", "(1)"),
        ("CLIENT GETNAME", "nil"),
        ("CLIENT SETNAME me", "OK"),
        ("CLIENT GETNAME", "me"),
        ("CLIENT SETINFO lib-name x", "OK"),
        ("CLIENT INFO", "id=1 name=me resp=2 db=0\\n"),
        (
            "CLIENT what",
            "!ERR unknown subcommand 'what'. Try COMMAND COUNT for what CLIENT has",
        ),
        ("HELLO 4", "!NOPROTO unsupported protocol version"),
        (
            "HELLO 3 SETNAME you",
            "{server redis version 7.0.15 proto (3) id (1) mode standalone role master modules []}",
        ),
        ("CLIENT GETNAME", "you"),
        ("HSET h f v", "(1)"),
        ("HGETALL h", "{f v}"),
        ("ZADD z 1.5 m", "(1)"),
        ("ZSCORE z m", "~1.5"),
        ("ZRANGE z 0 -1 WITHSCORES", "[[m ~1.5]]"),
        ("GET x", "nil"),
        ("RESET", "RESET"),
        ("HGETALL h", "[f v]"),
        (
            "AUTH secret",
            "!ERR AUTH <password> called without any password configured for the default \
          user. Are you sure your configuration is correct?",
        ),
        ("AUTH default anything", "OK"),
    ]);
    assert!(!desk.client.is_closing);
    desk.check(&[("QUIT", "OK")]);
    assert!(desk.client.is_closing);
}

#[test]
fn unknown_commands_are_named() {
    Desk::new().check(&[
        (
            "WHAT a b",
            "!ERR unknown command 'WHAT', with args beginning with: 'a' 'b' ",
        ),
        (
            "COMMAND COUNT x",
            "!ERR unknown subcommand 'COUNT'. Try COMMAND COUNT for what COMMAND has",
        ),
    ]);
}

#[test]
fn the_server_describes_itself() {
    let mut desk = Desk::new();
    desk.check(&[
        ("CONFIG GET save", "[save \"\"]"),
        ("CONFIG GET append*", "[appendfsync always appendonly yes]"),
        ("CONFIG GET x y", "[]"),
        ("CONFIG RESETSTAT", "OK"),
        ("TIME", "[1000 0]"),
        (
            "COMMAND INFO get what",
            "[[get (2) [readonly] (1) (1) (1)] nil]",
        ),
        ("COMMAND DOCS get", "[]"),
        ("SET a 1 EX 10", "OK"),
    ]);
    let info = desk.run("INFO");
    assert!(info.contains("db0:keys=1,expires=1,avg_ttl=0"), "{info}");
    assert!(info.contains("connected_clients:1"), "{info}");
    let keyspace = desk.run("INFO keyspace");
    assert_eq!(
        keyspace,
        "# Keyspace\\r\\ndb0:keys=1,expires=1,avg_ttl=0\\r\\n"
    );
    let count = desk.run("COMMAND COUNT");
    let all = desk.run("COMMAND LIST");
    assert_eq!(count, format!("({})", all.split(' ').count()));
}

#[test]
fn without_the_password_nothing_is_done() {
    let engine = Arc::new(ModelEngine::new(UpsertRegistry::default()));
    let options = ServerOptions {
        sync: SyncPolicy::Always,
        password: Some(b"secret".to_vec()),
        clock: Arc::new(ManualClock::default()),
        ..ServerOptions::default()
    };
    let mut service = Service::open(engine, &options).unwrap();
    let mut client = service.connect();
    let mut check = |line: &str, expected: &str| {
        let reply = run(&mut service, &mut client, line);
        assert!(reply.starts_with(expected), "{line}: {reply}");
    };
    check("GET a", "!NOAUTH");
    check("WHAT", "!NOAUTH");
    check("MULTI", "!NOAUTH");
    check("HELLO 3", "!NOAUTH");
    check("AUTH wrong", "!WRONGPASS");
    check("AUTH other secret", "!WRONGPASS");
    check("GET a", "!NOAUTH");
    check("AUTH secret", "OK");
    check("GET a", "nil");
    check("RESET", "RESET");
    check("GET a", "!NOAUTH");
    check("HELLO 2 AUTH default secret", "[server");
    check("GET a", "nil");
}

#[test]
fn a_transaction_runs_as_one() {
    Desk::new().check(&[
        ("EXEC", "!ERR EXEC without MULTI"),
        ("DISCARD", "!ERR DISCARD without MULTI"),
        ("MULTI", "OK"),
        ("MULTI", "!ERR MULTI calls can not be nested"),
        ("WATCH a", "!ERR WATCH inside MULTI is not allowed"),
        ("SET a 1", "QUEUED"),
        ("HSET a f v", "QUEUED"),
        ("INCR a", "QUEUED"),
        ("HSET h f v", "QUEUED"),
        ("HGETALL h", "QUEUED"),
        ("KEYS *", "QUEUED"),
        (
            "EXEC",
            "[OK !WRONGTYPE Operation against a key holding the wrong kind of value (2) (1) [f v] \
             [a h]]",
        ),
        ("GET a", "2"),
        ("MULTI", "OK"),
        ("SET a 9", "QUEUED"),
        ("DISCARD", "OK"),
        ("GET a", "2"),
        ("MULTI", "OK"),
        (
            "WHAT",
            "!ERR unknown command 'WHAT', with args beginning with: ",
        ),
        ("SET a 9", "QUEUED"),
        (
            "EXEC",
            "!EXECABORT Transaction discarded because of previous errors.",
        ),
        ("MULTI", "OK"),
        ("GET", "!ERR wrong number of arguments for 'get' command"),
        (
            "EXEC",
            "!EXECABORT Transaction discarded because of previous errors.",
        ),
        ("GET a", "2"),
        ("MULTI", "OK"),
        ("EXEC", "[]"),
    ]);
}

#[test]
fn a_watched_key_that_changes_ends_the_transaction() {
    let mut desk = Desk::new();
    let mut other = desk.service.connect();
    desk.check(&[("SET a 1", "OK"), ("WATCH a b", "OK")]);
    assert_eq!(run(&mut desk.service, &mut other, "SET c 1"), "OK");
    desk.check(&[("MULTI", "OK"), ("INCR a", "QUEUED"), ("EXEC", "[(2)]")]);
    for change in [
        "SET a 5",
        "DEL a",
        "SET b 1",
        "RENAME b d",
        "FLUSHDB",
        "SET a 1",
    ] {
        desk.check(&[("WATCH a b", "OK")]);
        let reply = run(&mut desk.service, &mut other, change);
        assert!(!reply.starts_with('!'), "{change}: {reply}");
        desk.check(&[("MULTI", "OK"), ("SET x 1", "QUEUED"), ("EXEC", "nil")]);
        desk.check(&[("MULTI", "OK"), ("SET x 1", "QUEUED"), ("EXEC", "[OK]")]);
    }
    desk.check(&[("WATCH a", "OK")]);
    assert_eq!(run(&mut desk.service, &mut other, "SET a 7"), "OK");
    desk.check(&[
        ("UNWATCH", "OK"),
        ("MULTI", "OK"),
        ("GET a", "QUEUED"),
        ("EXEC", "[7]"),
        ("WATCH a", "OK"),
        ("SET a 8", "OK"),
        ("MULTI", "OK"),
        ("GET a", "QUEUED"),
        ("EXEC", "nil"),
        ("SET t 1 PX 50", "OK"),
        ("WATCH t", "OK"),
    ]);
    desk.advance(60);
    desk.check(&[("MULTI", "OK"), ("PING", "QUEUED"), ("EXEC", "nil")]);
    desk.service.disconnect(&other);
}
