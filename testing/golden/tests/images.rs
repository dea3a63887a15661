//! Every stored image opens, passes its checks, and holds what it held.

use std::path::{Path, PathBuf};
use stitch_device::{Device, MemDevice};
use stitch_format::superblock::{FEATURE_SHIFTS, SUPERBLOCK_BYTES, Superblock, VERSION};
use stitch_golden::store::{self, Clean};
use stitch_golden::{image, sample};

/// Largest image that may be checked in, in bytes.
const IMAGE_BYTES_MAX: usize = 20_000;

fn images() -> Vec<PathBuf> {
    images_in("images")
}

fn images_in(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = std::fs::read_dir(folder).expect("the images are checked in");
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("readable").path())
        .collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "img"));
    paths.sort();
    paths
}

/// The stored image of a kind, of the current version.
fn stored(kind: &str) -> MemDevice {
    let (major, minor) = VERSION;
    let name = format!("images/{major}.{minor}-{kind}.img");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    let packed = std::fs::read(path).expect("the image is checked in");
    image::unpack(&packed).expect("the image is whole")
}

#[test]
fn every_image_opens_and_holds_what_it_held() {
    assert!(!images().is_empty());
    for path in images() {
        let packed = std::fs::read(&path).unwrap();
        assert!(
            packed.len() <= IMAGE_BYTES_MAX,
            "{} is too large",
            path.display()
        );
        let device = image::unpack(&packed).unwrap();
        let tree = store::exercise(&device).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let expected = std::fs::read_to_string(path.with_extension("tree")).unwrap();
        assert_eq!(store::text(&tree), expected, "{}", path.display());
    }
}

/// Format 1.0 ended before anything was released: its log does not say what is durable. A store of
/// it is refused by its version, untouched, and never taken for a damaged one.
#[test]
fn what_is_too_old_is_refused_by_its_version() {
    let paths = images_in("images/refused");
    assert_eq!(paths.len(), 2, "one closed, one killed");
    for path in paths {
        let device = image::unpack(&std::fs::read(&path).unwrap()).unwrap();
        let before = device.counters().writes;
        let refused = store::exercise(&device).unwrap_err().to_string();
        let names_both = refused.contains("format 2.0 or later") && refused.contains("1.0");
        assert!(names_both, "{}: {refused}", path.display());
        assert_eq!(device.counters().writes, before, "nothing is written");
    }
}

#[test]
fn the_current_version_has_its_images() {
    let (major, minor) = VERSION;
    let kinds = [
        "",
        "handles-",
        "instances-",
        "allocated-",
        "shared-",
        "pins-",
        "branches-",
        "scopes-",
        "shifts-",
        "clones-",
    ]
    .map(|kind| ["closed", "killed"].map(|end| format!("{kind}{end}")));
    let killed = ["rollback-killed", "rollback-in-clone-killed"].map(str::to_owned);
    for kind in kinds.iter().flatten().chain(&killed) {
        let name = format!("{major}.{minor}-{kind}.img");
        let is_there = images().iter().any(|path| path.ends_with(&name));
        assert!(
            is_there,
            "{name} is missing: cargo run -p stitch-golden -- images"
        );
    }
}

#[test]
fn a_new_sample_is_as_the_stored_one() {
    for (clean, kind) in [(Clean::Closed, "closed"), (Clean::Killed, "killed")] {
        let tree = store::exercise(&sample::make(clean).unwrap()).unwrap();
        let (major, minor) = VERSION;
        let name = format!("images/{major}.{minor}-{kind}.tree");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        assert_eq!(store::text(&tree), std::fs::read_to_string(path).unwrap());
    }
}

#[test]
fn every_inode_of_an_image_is_found_by_its_number() {
    for path in images() {
        let device = image::unpack(&std::fs::read(&path).unwrap()).unwrap();
        let count =
            store::open_numbers(&device).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let tree = std::fs::read_to_string(path.with_extension("tree")).unwrap();
        assert_eq!(count, tree.lines().count(), "{}", path.display());
    }
}

#[test]
fn a_new_sample_with_back_rows_is_as_the_stored_one() {
    for (clean, kind) in [(Clean::Closed, "closed"), (Clean::Killed, "killed")] {
        let tree = store::exercise(&sample::make_with_back_rows(clean).unwrap()).unwrap();
        let (major, minor) = VERSION;
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("images");
        let stored = folder.join(format!("{major}.{minor}-handles-{kind}.tree"));
        let without = folder.join(format!("{major}.{minor}-{kind}.tree"));
        let stored = std::fs::read_to_string(stored).unwrap();
        assert_eq!(store::text(&tree), stored);
        assert_eq!(stored, std::fs::read_to_string(without).unwrap());
    }
}

#[test]
fn a_sample_of_allocated_extents_has_their_blocks() {
    for (clean, kind) in [(Clean::Closed, "closed"), (Clean::Killed, "killed")] {
        let new = sample::make_allocated(clean).expect("the sample is made");
        let stored = stored(&format!("allocated-{kind}"));
        for device in [new, stored] {
            // Of the second, blocks 0 to 40, without four of a hole.
            let expected = [100 * 8, 37 * 8];
            let blocks = || store::blocks(&device, &["log", "table"]).expect("it opens");
            assert_eq!(blocks(), expected);
            store::exercise(&device).expect("it passes its checks");
            assert_eq!(blocks(), expected, "after another life");
        }
    }
}

#[test]
fn a_new_sample_of_shared_contents_is_as_the_stored_one() {
    for (clean, kind) in [(Clean::Closed, "closed"), (Clean::Killed, "killed")] {
        let tree = store::exercise(&sample::make_shared(clean).unwrap()).unwrap();
        let (major, minor) = VERSION;
        let name = format!("images/{major}.{minor}-shared-{kind}.tree");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        assert_eq!(store::text(&tree), std::fs::read_to_string(path).unwrap());
    }
}

#[test]
fn a_new_sample_of_instances_is_as_the_stored_one() {
    for (clean, kind) in [(Clean::Closed, "closed"), (Clean::Killed, "killed")] {
        let tree = store::exercise(&sample::make_instances(clean).unwrap()).unwrap();
        assert!(tree.contains_key("mail:mail") && tree.contains_key("main"));
        let (major, minor) = VERSION;
        let name = format!("images/{major}.{minor}-instances-{kind}.tree");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        assert_eq!(store::text(&tree), std::fs::read_to_string(path).unwrap());
    }
}

#[test]
fn a_sample_of_pins_has_what_they_saw() {
    for (clean, kind) in [(Clean::Closed, "closed"), (Clean::Killed, "killed")] {
        let new = sample::make_pins(clean).expect("the sample is made");
        let stored = stored(&format!("pins-{kind}"));
        let expected = store::pins(&new).expect("it opens");
        let names = [
            "empty of extras first ",
            "with extras altered ",
            "after third ",
        ];
        for (pin, name) in expected.iter().zip(names) {
            assert!(pin.starts_with(name), "{pin}");
        }
        assert!(expected[1].contains("Some(9)") && !expected[2].contains("Some(9)"));
        assert_eq!(expected.len(), 3);
        for device in [new, stored] {
            assert_eq!(store::pins(&device).expect("it opens"), expected);
            store::exercise(&device).expect("it passes its checks");
            assert_eq!(store::pins(&device).expect("it opens"), expected);
        }
    }
}

#[test]
fn a_sample_of_pins_of_some_trees_has_what_they_saw() {
    for (clean, kind) in [(Clean::Closed, "closed"), (Clean::Killed, "killed")] {
        let new = sample::make_scopes(clean).expect("the sample is made");
        let stored = stored(&format!("scopes-{kind}"));
        let expected = store::pins(&new).expect("it opens");
        let sees = [
            (
                "of one altered [None, None, None, None, ",
                "Some(9), None, ",
            ),
            (
                "of both second [None, None, None, None, ",
                "Some(12), Some(12), ",
            ),
            ("of files third [Some(", "None, None, "),
        ];
        assert_eq!(expected.len(), sees.len(), "{expected:?}");
        for (pin, (start, end)) in expected.iter().zip(sees) {
            assert!(pin.starts_with(start) && pin.contains(end), "{pin}");
        }
        for device in [new, stored] {
            assert_eq!(store::pins(&device).expect("it opens"), expected);
            store::exercise(&device).expect("it passes its checks");
            assert_eq!(store::pins(&device).expect("it opens"), expected);
        }
    }
}

#[test]
fn a_sample_of_pins_of_key_ranges_has_what_they_saw() {
    for (clean, kind) in [(Clean::Closed, "closed"), (Clean::Killed, "killed")] {
        let new = sample::make_ranges(clean).expect("the sample is made");
        let stored = stored(&format!("ranges-{kind}"));
        let expected = store::pins(&new).expect("it opens");
        let sees = [
            ("of one altered [None, ", ": [3, 2]"),
            ("of both second [Some(", " 5: [] 6: [2]"),
        ];
        assert_eq!(expected.len(), sees.len(), "{expected:?}");
        for (pin, (start, end)) in expected.iter().zip(sees) {
            assert!(pin.starts_with(start) && pin.ends_with(end), "{pin}");
        }
        for device in [new, stored] {
            assert_eq!(store::pins(&device).expect("it opens"), expected);
            store::exercise(&device).expect("it passes its checks");
            assert_eq!(store::pins(&device).expect("it opens"), expected);
        }
    }
}

#[test]
fn a_sample_of_branches_of_key_ranges_has_what_they_hold() {
    for (clean, kind) in [(Clean::Closed, "closed"), (Clean::Killed, "killed")] {
        let new = sample::make_narrowed(clean).expect("the sample is made");
        let stored = stored(&format!("narrowed-{kind}"));
        let expected = store::branches(&new).expect("it opens");
        // 2, 3, 4, 7 and 8 of the parent; 5 and 6 were written to the second.
        let sees = [
            ("first of ", ": 5"),
            ("second of ", ": 7"),
            ("of the second of ", ": 7"),
        ];
        assert_eq!(expected.len(), sees.len(), "{expected:?}");
        for (line, (start, end)) in expected.iter().zip(sees) {
            assert!(line.starts_with(start) && line.ends_with(end), "{line}");
        }
        for device in [new, stored] {
            assert_eq!(store::branches(&device).expect("it opens"), expected);
            store::exercise(&device).expect("it passes its checks");
            assert_eq!(store::branches(&device).expect("it opens"), expected);
        }
    }
}

#[test]
fn a_sample_of_branches_has_what_they_hold() {
    for (clean, kind) in [(Clean::Closed, "closed"), (Clean::Killed, "killed")] {
        let new = sample::make_branches(clean).expect("the sample is made");
        let stored = stored(&format!("branches-{kind}"));
        let expected = store::branches(&new).expect("it opens");
        assert_eq!(expected.len(), 2, "{expected:?}");
        let ends = |line: &str, end: &str| line.ends_with(end);
        assert!(expected[0].starts_with("second of ") && ends(&expected[0], ": 6"));
        assert!(expected[1].starts_with("of the first of ") && ends(&expected[1], ": 9"));
        for device in [new, stored] {
            assert_eq!(store::branches(&device).expect("it opens"), expected);
            store::exercise(&device).expect("it passes its checks");
            assert_eq!(store::branches(&device).expect("it opens"), expected);
        }
    }
}

#[test]
fn a_sample_of_moved_tables_has_the_rows_of_all() {
    for (clean, kind) in [(Clean::Closed, "closed"), (Clean::Killed, "killed")] {
        let new = sample::make_shifts(clean).expect("the sample is made");
        let stored = stored(&format!("shifts-{kind}"));
        let rows =
            |device: &MemDevice| store::rows(device, sample::SHIFTED_TREE).expect("it opens");
        let value = |key: u8| match key {
            5 | 7 | 8 | 10 | 12 | 13 => None,
            18 => Some("the parent's last"),
            6 | 9 => Some("first"),
            11..25 => Some("second"),
            25 | 26 => Some("meanwhile"),
            _ => Some("the parent's first"),
        };
        let expected = (0..30u8).filter_map(|key| Some(format!("{:?} {}", [key], value(key)?)));
        let expected: Vec<String> = expected.collect();
        for device in [new, stored] {
            let mut bytes = [0; SUPERBLOCK_BYTES];
            device.read_at(0, &mut bytes).expect("it is in memory");
            let superblock = Superblock::decode(&bytes, 0).expect("it is valid");
            let features = superblock.expect("there is one").incompatible;
            assert_ne!(features & FEATURE_SHIFTS, 0, "tables have shifts");
            assert_eq!(rows(&device), expected);
            store::exercise(&device).expect("it passes its checks");
            assert_eq!(rows(&device), expected);
        }
    }
}

#[test]
fn a_sample_of_a_rollback_is_one_in_the_middle_and_is_finished() {
    let was = b"What was".to_vec();
    let changed = b"xxxxxxxx".to_vec();
    let interrupted = "the rollback of directory";
    for (in_clone, kind) in [(false, ""), (true, "in-clone-")] {
        let new = sample::make_rollback(in_clone).expect("the sample is made");
        let stored = stored(&format!("rollback-{kind}killed"));
        for device in [new, stored] {
            let issues = store::issues(&device).expect("it can be read");
            let is_of_clone = |line: &String| line.starts_with("clone 1: ");
            let found: Vec<_> = issues.iter().filter(|l| l.contains(interrupted)).collect();
            assert!(
                matches!(found[..], [one] if is_of_clone(one) == in_clone),
                "{issues:?}"
            );
            let restored = match in_clone {
                true => [was.clone(), changed.clone()],
                false => [changed.clone(), was.clone()],
            };
            for name in ["a", "b", "c", "d"] {
                let found = store::begins(&device, "directory", name).expect("it opens");
                assert_eq!(found, restored, "{name} {in_clone}");
            }
            store::exercise(&device).expect("it passes its checks");
        }
    }
}
