//! What `defrag` says, beside what the zones of the store show before and after.

use std::fs;
use std::path::Path;

use stitch_base::random::Rng;
use stitch_device::OpenOptions;
use stitch_kv::UpsertRegistry;
use stitch_volume::Volume;
use stitch_vt::{VtEngine, VtOptions};
use stitchfs::{Batch, Database, StoreOptions, TreeOptions};

use crate::mounted::Mounted;
use crate::place::Place;

const MIB: u64 = 1 << 20;
/// So few that the background leaves the holes alone: less than an eighth of the volume.
const VALUES: u64 = 1600;
const VALUE_BYTES: usize = 4096;

/// What the zones of a store at rest hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Zones {
    hole_bytes: u64,
    free_bytes: u64,
}

impl Zones {
    fn of(path: &Path) -> Self {
        let options = OpenOptions {
            read_only: true,
            ..OpenOptions::default()
        };
        let device = stitch_device::open_path(path, options).unwrap();
        let options = stitch_volume::OpenOptions {
            read_only: true,
            ..stitch_volume::OpenOptions::default()
        };
        let opened = Volume::open(device, &options).unwrap();
        let mut upserts = UpsertRegistry::default();
        stitch_fs::register_upserts(&mut upserts);
        let options = VtOptions {
            upserts,
            background: false,
            ..VtOptions::default()
        };
        let engine = VtEngine::open(opened, options).unwrap();
        let usage = engine.volume().zones().usage();
        Self {
            hole_bytes: usage.free - usage.zones_free_bytes,
            free_bytes: usage.zones_free_bytes,
        }
    }
}

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// Puts values and deletes every second one, so that what is left lies between holes.
fn leave_holes(path: &Path) {
    let db = Database::open(path, &StoreOptions::default()).unwrap();
    let tree = db.create_tree("values", &TreeOptions::default()).unwrap();
    let mut value = vec![0; VALUE_BYTES];
    for number in 0..VALUES {
        Rng::new(number).fill(&mut value);
        let mut batch = Batch::new();
        batch.put(&tree, &key(number), &value);
        db.commit(&batch).unwrap();
    }
    db.quiesce().unwrap();
    let mut batch = Batch::new();
    for number in (1..VALUES).step_by(2) {
        batch.delete(&tree, &key(number));
    }
    db.commit(&batch).unwrap();
    db.quiesce().unwrap();
    db.close().unwrap();
}

/// The sizes in a line of text, in bytes, as precise as they are shown.
fn sizes(text: &str) -> Vec<f64> {
    let words: Vec<&str> = text.split([' ', ',', ';', '\n']).collect();
    let factor = |unit: &str| match unit {
        "B" => Some(1.0),
        "KiB" => Some(1024.0),
        "MiB" => Some(1_048_576.0),
        _ => None,
    };
    let pairs = words.windows(2);
    pairs
        .filter_map(|pair| Some(pair[0].parse::<f64>().ok()? * factor(pair[1])?))
        .collect()
}

#[test]
#[expect(
    clippy::cast_precision_loss,
    reason = "sizes are shown with few digits"
)]
fn what_is_said_is_what_the_zones_show() {
    let place = Place::new();
    place.run(&["mkfs", "--size", "64M", "a"]).code(0);
    leave_holes(&place.path("a"));
    fs::copy(place.path("a"), place.path("b")).unwrap();
    let before = Zones::of(&place.path("a"));
    assert!(before.hole_bytes > 4 * MIB, "{before:?}");

    let done = place.run(&["defrag", "--json", "a"]).code(0).json();
    let after = Zones::of(&place.path("a"));
    let bytes = |name: &str| done[name].as_u64().unwrap();
    assert_eq!(bytes("holes_before_bytes"), before.hole_bytes, "{done}");
    assert_eq!(bytes("holes_after_bytes"), after.hole_bytes, "{done}");
    assert_eq!(bytes("freed_bytes"), after.free_bytes - before.free_bytes);
    assert!(bytes("freed_bytes") > 2 * MIB, "{done}");
    // What was moved was what is left of the zones that are free now, and some of it at least.
    assert!(bytes("moved_bytes") > bytes("freed_bytes") / 4, "{done}");

    let text = place.run(&["defrag", "b"]).code(0).out();
    let shown = sizes(&text);
    let after = Zones::of(&place.path("b"));
    let freed = after.free_bytes - before.free_bytes;
    #[expect(
        clippy::cast_precision_loss,
        reason = "sizes are shown with few digits"
    )]
    let wanted = [freed, after.hole_bytes, before.hole_bytes].map(|bytes| bytes as f64);
    assert_eq!(shown.len(), 4, "{text}");
    assert!(shown[0] > wanted[0] / 4.0, "{text}");
    for (shown, wanted) in shown[1..].iter().zip(wanted) {
        // Shown with one digit behind the point.
        assert!(
            (shown - wanted).abs() <= MIB as f64 / 19.0,
            "{text} {wanted}"
        );
    }
    for store in ["a", "b"] {
        place.run(&["fsck", "-n", store]).code(0);
        let db = Database::open(place.path(store), &StoreOptions::default()).unwrap();
        let tree = db.tree("values").unwrap();
        for number in 0..VALUES {
            let found = tree.get(&key(number)).unwrap();
            assert_eq!(found.is_some(), number % 2 == 0, "{store} {number}");
        }
        db.close().unwrap();
    }
}

#[test]
fn the_counters_of_a_mount_say_what_was_moved() {
    let Some(mut mounted) = Mounted::new(&[]) else {
        return;
    };
    mounted.umount();
    leave_holes(&mounted.place.path("a"));
    mounted.mount(&[]);
    let moved = || {
        let stats = mounted
            .place
            .run(&["stats", "--json", "mnt"])
            .code(0)
            .json();
        let counter = |name: &str| stats["counters"][name].as_u64().unwrap();
        counter("vt.evacuated_bytes") + counter("vt.ordered_bytes")
    };
    let before = moved();
    let done = mounted
        .place
        .run(&["defrag", "--json", "mnt"])
        .code(0)
        .json();
    assert!(done["freed_bytes"].as_u64().unwrap() > 2 * MIB, "{done}");
    assert_eq!(done["moved_bytes"], moved() - before, "{done}");
    mounted.umount();
}
