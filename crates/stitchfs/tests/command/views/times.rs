//! Times in JSON: nanoseconds since 1970, under a name that ends with `_ns`.

use std::fs;

use serde_json::Value;

use super::{moment, mounted};

/// Nanoseconds, and seconds, of some decades.
const NANOSECONDS: std::ops::Range<u64> = 978_000_000_000_000_000..4_134_000_000_000_000_000;
const SECONDS: std::ops::Range<u64> = 1_700_000_000..2_500_000_000;

/// Counts the times in a document.
#[track_caller]
fn count(name: &str, value: &Value) -> usize {
    match value {
        Value::Object(fields) => fields.iter().map(|(name, value)| count(name, value)).sum(),
        Value::Array(items) => items.iter().map(|item| count(name, item)).sum(),
        Value::Number(number) => {
            let number = number.as_u64().unwrap_or_default();
            let is_time = NANOSECONDS.contains(&number);
            assert_eq!(is_time, name.ends_with("_ns"), "{name} {number}");
            let is_measure = name.contains("bytes") || name.contains("seed");
            assert!(is_measure || !SECONDS.contains(&number), "{name} {number}");
            usize::from(is_time)
        }
        _ => 0,
    }
}

#[test]
fn all_times_have_one_unit_and_tell_it() {
    let Some(mounted) = mounted(&["-o", "history=10m"]) else {
        return;
    };
    let place = &mounted.place;
    moment(&mounted);
    let every = ["snapshot", "create", "--every", "1d", "mnt/d"];
    place.run(&every).code(0);
    for (args, least) in [
        (&["snapshot", "create", "--json", "mnt/d", "mon"][..], 1),
        (&["snapshot", "list", "--json", "mnt"], 1),
        (&["snapshot", "policy", "list", "--json", "mnt"], 1),
        (&["clone", "--json", "mnt/d", "mnt/clone"], 1),
        (
            &["txn", "begin", "--json", "--expires", "1h", "work", "mnt"],
            0,
        ),
        (
            &["txn", "keep", "--json", "--expires", "2h", "work", "mnt"],
            1,
        ),
        (&["txn", "list", "--json", "mnt"], 2),
        (&["txn", "abort", "--json", "work", "mnt"], 0),
        (&["info", "--json", "mnt"], 3),
        (&["history", "--json", "mnt"], 1),
    ] {
        let told = place.run(args).code(0).json();
        assert!(count("", &told) >= least, "{args:?}: {told}");
    }
    fs::write(mounted.path("d/f"), b"later").unwrap();
    let restore = ["restore", "--json", "--force", "--at", "0 s ago", "mnt/d"];
    let told = place.run(&restore).code(0).json();
    assert_eq!(count("", &told), 1, "{told}");
    // People are shown dates.
    let info = place.run(&["info", "mnt"]).code(0).out();
    assert!(
        info.contains("next_snapshot ") && info.contains(" 20"),
        "{info}"
    );
    // Names have one form, which files can have everywhere.
    let before = told["snapshot"].as_str().unwrap();
    let (_, name) = before.rsplit_once("before-rollback-").unwrap();
    assert!(name.ends_with('Z') && !name.contains(':'), "{before}");
    mounted.umount();
}
