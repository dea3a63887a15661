//! What each command replies.

use super::Desk;

const WRONG_TYPE: &str = "!WRONGTYPE Operation against a key holding the wrong kind of value";
const NOT_AN_INTEGER: &str = "!ERR value is not an integer or out of range";
const SYNTAX: &str = "!ERR syntax error";

#[test]
fn strings_are_set_and_read() {
    Desk::new().check(&[
        ("GET a", "nil"),
        ("SET a 1", "OK"),
        ("GET a", "1"),
        ("get a", "1"),
        ("SET a \"\\x00\\xff\"", "OK"),
        ("GET a", "\\x00\\xff"),
        ("SET a \"\"", "OK"),
        ("GET a", "\"\""),
        ("SET a 2 NX", "nil"),
        ("SET b 2 XX", "nil"),
        ("SET b 2 NX", "OK"),
        ("SET b 3 XX GET", "2"),
        ("SET c 4 GET", "nil"),
        ("SET c 5 NX GET", "4"),
        ("GET c", "4"),
        ("SET c 5 NX XX", SYNTAX),
        ("SET c 5 what", SYNTAX),
        ("SETNX c 6", "(0)"),
        ("SETNX d 6", "(1)"),
        ("GETSET d 7", "6"),
        ("GETDEL d", "7"),
        ("GETDEL d", "nil"),
        ("MSET a 1 b 2", "OK"),
        (
            "MSET a 1 b",
            "!ERR wrong number of arguments for 'mset' command",
        ),
        ("MGET a x b", "[1 nil 2]"),
        ("MSETNX y 1 a 2", "(0)"),
        ("EXISTS y", "(0)"),
        ("MSETNX y 1 z 2", "(1)"),
        ("GET", "!ERR wrong number of arguments for 'get' command"),
    ]);
}

#[test]
fn strings_are_changed_in_part() {
    Desk::new().check(&[
        ("APPEND a hello", "(5)"),
        ("APPEND a \" world\"", "(11)"),
        ("STRLEN a", "(11)"),
        ("STRLEN x", "(0)"),
        ("GETRANGE a 0 4", "hello"),
        ("GETRANGE a -5 -1", "world"),
        ("GETRANGE a 5 2", "\"\""),
        ("GETRANGE x 0 -1", "\"\""),
        ("SUBSTR a 0 0", "h"),
        ("SETRANGE a 6 redis", "(11)"),
        ("GET a", "hello redis"),
        ("SETRANGE b 3 x", "(4)"),
        ("GET b", "\\x00\\x00\\x00x"),
        ("SETRANGE c 3 \"\"", "(0)"),
        ("EXISTS c", "(0)"),
        ("SETRANGE a -1 x", "!ERR offset is out of range"),
        (
            "SETRANGE a 9000000000 x",
            "!ERR string exceeds maximum allowed size",
        ),
    ]);
}

#[test]
fn numbers_are_counted_up_and_down() {
    Desk::new().check(&[
        ("INCR a", "(1)"),
        ("INCRBY a 10", "(11)"),
        ("DECR a", "(10)"),
        ("DECRBY a 20", "(-10)"),
        ("SET a 9223372036854775807", "OK"),
        ("INCR a", "!ERR increment or decrement would overflow"),
        ("DECRBY a -1", "!ERR increment or decrement would overflow"),
        ("GET a", "9223372036854775807"),
        ("SET a x", "OK"),
        ("INCR a", NOT_AN_INTEGER),
        ("INCRBY b 1.5", NOT_AN_INTEGER),
        ("EXISTS b", "(0)"),
        ("SET f 10.5", "OK"),
        ("INCRBYFLOAT f 0.1", "10.6"),
        ("INCRBYFLOAT f -5", "5.6"),
        ("INCRBYFLOAT f x", "!ERR value is not a valid float"),
        ("INCRBYFLOAT g 5e3", "5000"),
        (
            "INCRBYFLOAT g inf",
            "!ERR increment would produce NaN or Infinity",
        ),
        ("HSET h f 1", "(1)"),
        ("INCR h", WRONG_TYPE),
    ]);
}

#[test]
fn keys_are_removed_renamed_and_copied() {
    Desk::new().check(&[
        ("MSET a 1 b 2 c 3", "OK"),
        ("DBSIZE", "(3)"),
        ("EXISTS a b x a", "(3)"),
        ("DEL a x", "(1)"),
        ("UNLINK b", "(1)"),
        ("DBSIZE", "(1)"),
        ("TYPE c", "string"),
        ("TYPE x", "none"),
        ("RENAME c d", "OK"),
        ("RENAME c d", "!ERR no such key"),
        ("GET d", "3"),
        ("HSET h f v g w", "(2)"),
        ("TYPE h", "hash"),
        ("RENAME h d", "OK"),
        ("HGETALL d", "[f v g w]"),
        ("DBSIZE", "(1)"),
        ("RENAME d d", "OK"),
        ("HLEN d", "(2)"),
        ("COPY d e", "(1)"),
        ("COPY d e", "(0)"),
        ("HSET e f other", "(0)"),
        ("HGET d f", "v"),
        ("COPY d e REPLACE", "(1)"),
        ("HGETALL e", "[f v g w]"),
        (
            "COPY d d",
            "!ERR source and destination objects are the same",
        ),
        ("COPY x y", "(0)"),
        ("SET s 1", "OK"),
        ("COPY s e REPLACE DB 0", "(1)"),
        ("GET e", "1"),
        ("HGETALL d", "[f v g w]"),
        ("RENAMENX s d", "(0)"),
        ("RENAMENX s t", "(1)"),
        ("DBSIZE", "(3)"),
        ("FLUSHDB", "OK"),
        ("DBSIZE", "(0)"),
        ("RANDOMKEY", "nil"),
        ("HGETALL d", "[]"),
        ("SET only 1", "OK"),
        ("RANDOMKEY", "only"),
        ("FLUSHALL ASYNC", "OK"),
        ("FLUSHDB what", SYNTAX),
    ]);
}

#[test]
fn hashes_have_fields() {
    Desk::new().check(&[
        ("HSET h a 1 b 2", "(2)"),
        ("HSET h a 3 c 4", "(1)"),
        ("HMSET h d 5", "OK"),
        (
            "HSET h a",
            "!ERR wrong number of arguments for 'hset' command",
        ),
        (
            "HSET h a 1 b",
            "!ERR wrong number of arguments for 'hset' command",
        ),
        ("HGET h a", "3"),
        ("HGET h x", "nil"),
        ("HMGET h a x d", "[3 nil 5]"),
        ("HMGET x a", "[nil]"),
        ("HLEN h", "(4)"),
        ("HKEYS h", "[a b c d]"),
        ("HVALS h", "[3 2 4 5]"),
        ("HEXISTS h a", "(1)"),
        ("HSTRLEN h a", "(1)"),
        ("HSETNX h a 9", "(0)"),
        ("HSETNX h e 9", "(1)"),
        ("HINCRBY h e 1", "(10)"),
        ("HINCRBY h n -1", "(-1)"),
        ("HINCRBYFLOAT h e 0.5", "10.5"),
        ("HINCRBY h e 1", "!ERR hash value is not an integer"),
        ("HDEL h a b x", "(2)"),
        ("HDEL h c d e n", "(4)"),
        ("EXISTS h", "(0)"),
        ("DBSIZE", "(0)"),
        ("SET s 1", "OK"),
        ("HGET s a", WRONG_TYPE),
        ("HSET s a 1", WRONG_TYPE),
        ("HINCRBY h n x", NOT_AN_INTEGER),
        ("EXISTS h", "(0)"),
    ]);
}

#[test]
fn sorted_sets_have_scores() {
    Desk::new().check(&[
        ("ZADD z 1 a 2 b 3 c", "(3)"),
        ("ZADD z 4 a", "(0)"),
        ("ZADD z CH 5 a 2 b", "(1)"),
        ("ZADD z NX 9 a 0 d", "(1)"),
        ("ZADD z XX 9 e", "(0)"),
        ("ZADD z GT CH 1 a 7 b", "(1)"),
        ("ZADD z LT CH 1 a 8 b", "(1)"),
        ("ZADD z INCR 1.5 a", "2.5"),
        ("ZADD z NX INCR 1 a", "nil"),
        (
            "ZADD z NX XX 1 a",
            "!ERR XX and NX options at the same time are not compatible",
        ),
        ("ZADD z x a", "!ERR value is not a valid float"),
        (
            "ZADD z 1",
            "!ERR wrong number of arguments for 'zadd' command",
        ),
        ("ZADD z 1 a 2", SYNTAX),
        ("ZRANGE z 0 -1 WITHSCORES", "[d 0 a 2.5 c 3 b 7]"),
        ("ZCARD z", "(4)"),
        ("ZSCORE z a", "2.5"),
        ("ZSCORE z x", "nil"),
        ("ZMSCORE z a x", "[2.5 nil]"),
        ("ZINCRBY z -3 a", "-0.5"),
        ("ZRANK z a", "(0)"),
        ("ZREVRANK z a", "(3)"),
        ("ZRANK z x", "nil"),
        ("ZREM z a x", "(1)"),
        ("ZPOPMIN z", "[d 0]"),
        ("ZPOPMAX z 5", "[b 7 c 3]"),
        ("EXISTS z", "(0)"),
        ("ZADD z inf a -inf b", "(2)"),
        (
            "ZINCRBY z -inf a",
            "!ERR resulting score is not a number (NaN)",
        ),
        ("ZRANGE z 0 -1 WITHSCORES", "[b -inf a inf]"),
        ("GET z", WRONG_TYPE),
        ("ZADD x XX 1 a", "(0)"),
        ("EXISTS x", "(0)"),
    ]);
}

#[test]
fn sorted_sets_have_ranges() {
    Desk::new().check(&[
        ("ZADD z 1 a 2 b 3 c 4 d", "(4)"),
        ("ZRANGE z 1 2", "[b c]"),
        ("ZRANGE z 0 1 REV", "[d c]"),
        ("ZREVRANGE z 0 0 WITHSCORES", "[d 4]"),
        ("ZRANGE z 2 1", "[]"),
        ("ZRANGEBYSCORE z 2 3", "[b c]"),
        ("ZRANGEBYSCORE z (2 +inf", "[c d]"),
        ("ZRANGEBYSCORE z -inf (3", "[a b]"),
        ("ZRANGEBYSCORE z -inf +inf LIMIT 1 2", "[b c]"),
        ("ZRANGEBYSCORE z -inf +inf LIMIT 1 -1", "[b c d]"),
        ("ZRANGE z 3 2 BYSCORE REV", "[c b]"),
        ("ZREVRANGEBYSCORE z (4 2 WITHSCORES", "[c 3 b 2]"),
        ("ZRANGE z 0 1 LIMIT 0 1",
         "!ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX"),
        ("ZRANGEBYSCORE z x 1", "!ERR min or max is not a float"),
        ("ZCOUNT z 2 (4", "(2)"),
        ("ZREMRANGEBYRANK z 0 0", "(1)"),
        ("ZREMRANGEBYSCORE z 4 9", "(1)"),
        ("ZRANGE z 0 -1", "[b c]"),
        ("DEL z", "(1)"),
        ("ZADD z 0 a 0 b 0 c 0 d", "(4)"),
        ("ZRANGEBYLEX z [b (d", "[b c]"),
        ("ZRANGEBYLEX z - +", "[a b c d]"),
        ("ZREVRANGEBYLEX z + (b", "[d c]"),
        ("ZLEXCOUNT z (a +", "(3)"),
        ("ZRANGEBYLEX z b d", "!ERR min or max not valid string range item"),
        ("ZREMRANGEBYLEX z - [b", "(2)"),
        ("ZRANGE z 0 -1", "[c d]"),
    ]);
}

#[test]
fn walks_return_every_key_once() {
    let mut desk = Desk::new();
    for number in 0..25 {
        assert_eq!(desk.run(&format!("SET k{number:02} v")), "OK");
    }
    desk.check(&[
        ("HSET h f v", "(1)"),
        ("KEYS k1[0-3]", "[k10 k11 k12 k13]"),
        ("KEYS h", "[h]"),
        ("SCAN 0 COUNT 3", "[1 [h k00 k01]]"),
        ("SCAN 1 COUNT 2", "[2 [k02 k03]]"),
        ("SCAN 1 COUNT 2", "[3 [k02 k03]]"),
        ("SCAN 2 MATCH *5 COUNT 100", "[0 [k05 k15]]"),
        ("SCAN 0 TYPE hash COUNT 100", "[0 [h]]"),
        ("SCAN 0 TYPE list COUNT 100", "[0 []]"),
        ("SCAN 99", "!ERR invalid cursor"),
        ("SCAN x", "!ERR invalid cursor"),
        ("SCAN 0 COUNT 0", SYNTAX),
        ("SCAN 0 COUNT", SYNTAX),
        ("SCAN 0 MATCH k24", "[0 [k24]]"),
        ("HSET g a 1 b 2 c 3", "(3)"),
        ("HSCAN g 0 COUNT 2", "[4 [a 1 b 2]]"),
        ("HSCAN g 4", "[0 [c 3]]"),
        ("HSCAN g 0 MATCH b", "[0 [b 2]]"),
        ("HSCAN g 0 NOVALUES", "[0 [a b c]]"),
        ("HSCAN x 0", "[0 []]"),
        ("ZADD z 1.5 m", "(1)"),
        ("ZSCAN z 0", "[0 [m 1.5]]"),
        ("ZSCAN g 0", WRONG_TYPE),
    ]);
}

#[test]
fn names_and_values_have_a_largest_size() {
    let mut desk = Desk::new();
    let long = "k".repeat(5000);
    let too_long = "!ERR key, field or member exceeds maximum allowed size";
    for line in [
        format!("SET {long} v"),
        format!("HSET h {long} v"),
        format!("ZADD z 1 {long}"),
        format!("MSET a 1 {long} v"),
    ] {
        assert_eq!(desk.run(&line), too_long);
    }
    assert_eq!(desk.run(&format!("GET {long}")), "nil");
    assert_eq!(desk.run("DBSIZE"), "(0)");
    let longest = "k".repeat(4 * 1024 - 19);
    assert_eq!(desk.run(&format!("SET {longest} v EX 10")), "OK");
    assert_eq!(desk.run(&format!("ZADD z 1 {longest}")), "(1)");
    assert_eq!(desk.run(&format!("HSET h {longest} v")), "(1)");
    assert_eq!(desk.run("DBSIZE"), "(3)");
}

/// The other commands would run without them.
#[test]
fn a_transaction_with_a_key_or_value_that_is_too_long_changes_nothing() {
    let mut desk = Desk::new();
    let (key, value) = ("k".repeat(5000), "v".repeat(2 << 20));
    let words: [&[&str]; 4] = [
        &["SET", &key, "v"],
        &["MSET", "b", "1", &key, "v"],
        &["SET", "b", &value],
        &["HSET", "h", "f", &value],
    ];
    for words in words {
        desk.check(&[("MULTI", "OK"), ("SET a 1", "QUEUED")]);
        let args: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let mut out = Vec::new();
        desk.service.execute(&mut desk.client, &args, &mut out);
        let said = String::from_utf8_lossy(&out);
        assert!(
            said.starts_with("-ERR") && said.contains("exceeds maximum"),
            "{said}"
        );
        let discarded = "!EXECABORT Transaction discarded because of previous errors.";
        desk.check(&[("EXEC", discarded), ("DBSIZE", "(0)")]);
    }
    let (read, longest) = (format!("GET {key}"), "k".repeat(4 * 1024 - 19));
    desk.check(&[("MULTI", "OK"), (&read, "QUEUED")]);
    desk.check(&[(&format!("SET {longest} {key}"), "QUEUED")]);
    desk.check(&[("EXEC", "[nil OK]"), ("DBSIZE", "(1)")]);
}
