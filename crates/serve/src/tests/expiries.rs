//! Keys that expire.

use super::Desk;

#[test]
fn expired_keys_are_never_seen() {
    let mut desk = Desk::new();
    desk.check(&[
        ("SET a 1 EX 10", "OK"),
        ("SET b 1 PX 10500", "OK"),
        ("SETEX c 10 1", "OK"),
        ("PSETEX d 10000 1", "OK"),
        ("SET e 1 PXAT 1010000", "OK"),
        ("HSET h f v", "(1)"),
        ("EXPIRE h 10", "(1)"),
        ("SET keep 1", "OK"),
        ("TTL a", "(10)"),
        ("PTTL a", "(10000)"),
        ("TTL keep", "(-1)"),
        ("TTL x", "(-2)"),
        ("EXPIRETIME a", "(1010)"),
        ("PEXPIRETIME b", "(1010500)"),
        ("DBSIZE", "(7)"),
    ]);
    desk.advance(10_000);
    desk.check(&[
        ("DBSIZE", "(2)"),
        ("KEYS *", "[b keep]"),
        ("SCAN 0", "[0 [b keep]]"),
        ("EXISTS a c d e h", "(0)"),
        ("GET a", "nil"),
        ("HGETALL h", "[]"),
        ("TTL c", "(-2)"),
        ("SET d 1 NX", "OK"),
        ("TTL d", "(-1)"),
        ("PTTL b", "(500)"),
        ("TTL b", "(1)"),
        ("DBSIZE", "(3)"),
    ]);
    desk.advance(500);
    desk.check(&[("RENAME b z", "!ERR no such key"), ("DBSIZE", "(2)")]);
}

/// More keys than are read by one call.
#[test]
fn a_key_that_is_over_and_named_twice_is_removed_once() {
    let mut desk = Desk::new();
    desk.check(&[
        ("SET over 1 PX 10", "OK"),
        ("SET h 1 PX 10", "OK"),
        ("SET keep 2", "OK"),
        ("MGET over keep over", "[1 2 1]"),
    ]);
    desk.advance(10);
    desk.check(&[
        ("MGET over keep over over", "[nil 2 nil nil]"),
        ("EXISTS h h keep keep h", "(2)"),
        ("DBSIZE", "(1)"),
        ("MGET over keep", "[nil 2]"),
    ]);
    let many = format!("EXISTS{}", " keep over".repeat(400));
    desk.check(&[(&many, "(400)")]);
}

#[test]
fn what_becomes_of_an_expiry() {
    Desk::new().check(&[
        ("SET a 1 EX 10", "OK"),
        ("SET a 2 KEEPTTL", "OK"),
        ("TTL a", "(10)"),
        ("INCR a", "(3)"),
        ("APPEND a 0", "(2)"),
        ("TTL a", "(10)"),
        ("RENAME a b", "OK"),
        ("TTL b", "(10)"),
        ("COPY b c", "(1)"),
        ("TTL c", "(10)"),
        ("SET b 1", "OK"),
        ("TTL b", "(-1)"),
        ("PERSIST c", "(1)"),
        ("PERSIST c", "(0)"),
        ("TTL c", "(-1)"),
        ("GETEX c EX 5", "30"),
        ("TTL c", "(5)"),
        ("GETEX c PERSIST", "30"),
        ("TTL c", "(-1)"),
        ("EXPIRE c 10 XX", "(0)"),
        ("EXPIRE c 10 GT", "(0)"),
        ("EXPIRE c 10 NX", "(1)"),
        ("EXPIRE c 10 NX", "(0)"),
        ("EXPIRE c 5 GT", "(0)"),
        ("EXPIRE c 20 GT", "(1)"),
        ("EXPIRE c 5 LT", "(1)"),
        ("TTL c", "(5)"),
        (
            "EXPIRE c 5 NX XX",
            "!ERR NX and XX, GT or LT options at the same time are not compatible",
        ),
        ("EXPIRE c 5 what", "!ERR Unsupported option what"),
        ("EXPIRE x 5", "(0)"),
        ("EXPIRE c -1", "(1)"),
        ("EXISTS c", "(0)"),
        ("SET c 1", "OK"),
        ("EXPIREAT c 1001", "(1)"),
        ("PTTL c", "(1000)"),
        ("EXPIREAT c 999", "(1)"),
        ("EXISTS c", "(0)"),
        ("SET c 1 EX 0", "!ERR invalid expire time in 'set' command"),
        (
            "SETEX c -1 1",
            "!ERR invalid expire time in 'setex' command",
        ),
        (
            "SET c 1 EX 9223372036854775807",
            "!ERR invalid expire time in 'set' command",
        ),
        (
            "EXPIRE b 9223372036854775807",
            "!ERR invalid expire time in 'expire' command",
        ),
        ("SET c 1 EX 10 KEEPTTL", "!ERR syntax error"),
        ("SET c 1 EX", "!ERR syntax error"),
        ("DBSIZE", "(1)"),
    ]);
}

#[test]
fn the_background_removes_what_has_expired() {
    let mut desk = Desk::new();
    for number in 0..300 {
        let line = format!("SET k{number} v PX {}", 100 + number % 2 * 900);
        assert_eq!(desk.run(&line), "OK");
    }
    desk.check(&[("HSET h f v", "(1)"), ("PEXPIRE h 100", "(1)")]);
    let reclaim = |desk: &mut Desk| {
        desk.service.begin_round();
        desk.service.reclaim();
        desk.service.commit().unwrap();
    };
    reclaim(&mut desk);
    assert_eq!(desk.service.until_expiry_ms(), Some(100));
    desk.advance(100);
    reclaim(&mut desk);
    assert_eq!(desk.service.until_expiry_ms(), Some(900));
    assert_eq!(super::rounds::rows(&desk).len(), 1 + 1 + 2 * 150);
    desk.check(&[("DBSIZE", "(150)")]);
    desk.advance(900);
    reclaim(&mut desk);
    assert_eq!(desk.service.until_expiry_ms(), None);
    assert_eq!(
        super::rounds::rows(&desk).len(),
        2,
        "version and totals alone"
    );
}
