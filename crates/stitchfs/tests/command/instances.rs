//! Several instances in one store.

use crate::mounted::can_mount;
use crate::place::Place;
use serde_json::json;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use stitchfs::{Database, MakeOptions, StoreOptions, TreeOptions};

fn store() -> Place {
    let place = Place::new();
    place.run(&["mkfs", "--size", "32M", "a"]).code(0);
    place
}

#[test]
fn instances_are_created_listed_and_removed() {
    let place = store();
    assert_eq!(
        place.run(&["instance", "list", "a"]).code(0).out(),
        "main\n"
    );
    let made = place.run(&["instance", "create", "--fs", "a", "mail"]);
    assert!(made.code(0).out().contains("created instance mail"));
    let args = [
        "instance",
        "create",
        "--json",
        "--log-size",
        "4M",
        "a",
        "cache",
    ];
    let made = place.run(&args).code(0).json();
    assert_eq!(made["instances"], json!(["main", "cache", "mail"]));
    let list = place
        .run(&["instance", "list", "--json", "a"])
        .code(0)
        .json();
    assert_eq!(list["instances"], json!(["main", "cache", "mail"]));
    let info = place.run(&["info", "--json", "a"]).code(0).json();
    assert_eq!(info["instances"], list["instances"]);
    let info = place.run(&["info", "a"]).code(0).out();
    assert!(info.contains("main, cache, mail"), "{info}");
    place.run(&["fsck", "-n", "a"]).code(0);
    // What is empty goes without more ado; a file system does not.
    place.run(&["instance", "remove", "a", "cache"]).code(0);
    let kept = place.run(&["instance", "remove", "a", "mail"]);
    kept.code(1).says("--force");
    let args = ["instance", "remove", "--force", "--json", "a", "mail"];
    let removed = place.run(&args).code(0).json();
    assert_eq!(removed["instances"], json!(["main"]));
    let info = place.run(&["info", "--json", "a"]).code(0).json();
    assert!(
        info.get("instances").is_none(),
        "as a store that never had any"
    );
    place.run(&["fsck", "-n", "a"]).code(0);
}

#[test]
fn what_cannot_be_is_refused_and_says_what_could() {
    let place = store();
    place.run(&["instance"]).code(2);
    place.run(&["instance", "create", "a"]).code(2).says("NAME");
    place
        .run(&["instance", "create", "a", "x/y"])
        .code(1)
        .says("letters");
    place
        .run(&["instance", "create", "a", "main"])
        .code(1)
        .says("exists");
    place
        .run(&["instance", "remove", "a", "main"])
        .code(1)
        .says("every store has");
    place
        .run(&["instance", "remove", "a", "b"])
        .code(1)
        .says("instance list");
    place.run(&["instance", "create", "a", "b"]).code(0);
    place
        .run(&["instance", "create", "a", "b"])
        .code(1)
        .says("another name");
    let large = ["instance", "create", "--log-size", "64M", "a", "c"];
    place.run(&large).code(1).says("no space left");
    place
        .run(&["instance", "list", "missing"])
        .code(1)
        .says("missing");
}

#[test]
fn an_instance_without_a_file_system_says_so_when_it_is_mounted() {
    let place = store();
    place.run(&["instance", "create", "a", "b"]).code(0);
    let mounted = place.run(&["mount", "-o", "instance=b", "a", "mnt"]);
    mounted.code(1).says("--fs");
    let mounted = place.run(&["mount", "-o", "instance=c", "a", "mnt"]);
    mounted.code(1).says("no instance c");
}

#[test]
fn work_on_the_space_is_for_all_instances() {
    let place = store();
    place.run(&["instance", "create", "a", "b"]).code(0);
    let options = StoreOptions {
        instance: Some("b".to_owned()),
        ..StoreOptions::default()
    };
    let path = place.path("a");
    let db = Database::open(&path, &options).unwrap();
    let tree = db.create_tree("rows", &TreeOptions::default()).unwrap();
    for number in 0..2000u32 {
        tree.put(&number.to_be_bytes(), &[7; 1000]).unwrap();
    }
    db.close().unwrap();
    drop((tree, db));
    place.run(&["defrag", "a"]).code(0);
    place.run(&["trim", "a"]).code(0);
    place.run(&["grow", "a", "48M"]).code(0);
    place.run(&["shrink", "a", "24M"]).code(0);
    place.run(&["fsck", "-n", "a"]).code(0);
    let db = Database::open(&path, &options).unwrap();
    let tree = db.tree("rows").unwrap();
    for number in 0..2000u32 {
        let value = tree.get(&number.to_be_bytes()).unwrap();
        assert_eq!(value.as_deref(), Some(&[7; 1000][..]));
    }
}

#[test]
fn damage_names_the_instance_that_has_it() {
    let place = store();
    place.run(&["instance", "create", "a", "b"]).code(0);
    let path = place.path("a");
    let options = StoreOptions {
        instance: Some("b".to_owned()),
        ..StoreOptions::default()
    };
    let db = Database::open(&path, &options).unwrap();
    let tree = db.create_tree("rows", &TreeOptions::default()).unwrap();
    tree.put(b"key", b"a needle in the store").unwrap();
    db.close().unwrap();
    drop((tree, db));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let mut bytes = vec![0; 32 << 20];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let needle = b"a needle";
    let places = bytes.windows(needle.len()).enumerate();
    let found: Vec<u64> = places
        .filter(|(_, window)| window == needle)
        .map(|(at, _)| at as u64)
        .collect();
    // In the log, which is not needed any more, and in the table.
    assert!(!found.is_empty());
    for at in found {
        file.write_all_at(b"X", at).unwrap();
    }
    let checked = place.run(&["fsck", "-n", "a"]);
    let out = checked.code(4).out();
    assert!(out.contains("instance b: "), "{out}");
}

/// A store with records only is no failed `mkfs`: nothing may say that it is to be made anew.
#[test]
fn a_database_is_checked_and_gets_a_file_system_without_a_loss() {
    let place = Place::new();
    let path = place.path("a");
    let make = MakeOptions {
        len_bytes: Some(32 << 20),
        ..MakeOptions::default()
    };
    let db = Database::create(&path, &make, &StoreOptions::default()).unwrap();
    let tree = db.create_tree("words", &TreeOptions::default()).unwrap();
    tree.put(b"key", b"value").unwrap();
    db.close().unwrap();
    drop((tree, db));
    let ways = [
        &["fsck", "-n", "a"][..],
        &["fsck", "-y", "a"],
        &["fsck", "-a", "a"],
    ];
    for args in ways {
        let ended = place.run(args);
        ended.code(0);
        for words in [
            "a database without a file system",
            "instance create --fs",
            "a NAME",
        ] {
            assert!(ended.out().contains(words), "{args:?}: {}", ended.out());
        }
        assert!(!ended.out().contains("force"), "{}", ended.out());
    }
    let refused = place.run(&["mount", "a", "mnt"]);
    refused
        .code(1)
        .says("a database without a file system")
        .says("instance create --fs");
    assert!(!refused.err().contains("force"), "{}", refused.err());

    place
        .run(&["instance", "create", "--fs", "a", "files"])
        .code(0);
    let ended = place.run(&["fsck", "-n", "a"]);
    assert!(!ended.code(0).out().contains("without"), "{}", ended.out());
    place
        .run(&["mount", "a", "mnt"])
        .code(1)
        .says("instance files has a file system");
    if can_mount() {
        place
            .run(&["mount", "-o", "instance=files", "a", "mnt"])
            .code(0);
        std::fs::write(place.path("mnt/file"), b"contents").unwrap();
        place.run(&["umount", "mnt"]).code(0);
    }
    let db = Database::open(&path, &StoreOptions::default()).unwrap();
    let value = db.tree("words").unwrap().get(b"key").unwrap();
    assert_eq!(value.as_deref(), Some(&b"value"[..]));
}
