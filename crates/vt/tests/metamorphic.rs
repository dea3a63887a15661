//! The same operations on stores with different options must give the same answers.
//!
//! Each run is compared with the model at every step, and the runs with each other by a digest of
//! all that was read. `VT_SEEDS=from..to` runs other seeds.

mod common;

use common::{MIB, Setup, Store};
use stitch_base::random::Rng;
use stitch_kv::UpsertRegistry;
use stitch_kv::conformance::random::{Params, run};
use stitch_kv::conformance::{Factory, Subject};
use stitch_vt::{StitchByKey, VtOptions};

const KIB: u64 = 1 << 10;
/// Stores that do the same operations.
const STORES: u64 = 4;

fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("VT_SEEDS") else {
        return 0..6;
    };
    let (from, to) = text.split_once("..").expect("from..to");
    from.parse().expect("a number")..to.parse().expect("a number")
}

fn pick<T: Copy>(rng: &mut Rng, choices: &[T]) -> T {
    let count = u64::try_from(choices.len()).expect("a few choices");
    choices[usize::try_from(rng.below(count)).expect("a small number")]
}

/// Everything that a store can be told, at random.
struct Varied {
    setup: Setup,
    len_bytes: u64,
    log_bytes: u64,
}

impl Varied {
    fn new(rng: &mut Rng) -> Self {
        let table = pick(rng, &[16, 32, 128, 512]) * KIB;
        let options = VtOptions {
            memory_bytes: pick(rng, &[4, 8, 64]) * MIB,
            background: rng.one_in(2),
            direct_bytes_min: pick(rng, &[300, 2 * KIB, 64 * KIB, u64::MAX]),
            unsynced_bytes_min: pick(rng, &[0, 8 * KIB, 256 * KIB]),
            memtable_bytes: pick(rng, &[Some(8 * KIB), Some(32 * KIB), Some(256 * KIB), None]),
            table_bytes: Some(table),
            level1_bytes: Some(pick(rng, &[1, 4, 10]) * table),
            fanout: pick(rng, &[2, 4, 8, 16]),
            compactors: pick(rng, &[1, 2]),
            stitch_by_key: rng.one_in(3).then(|| {
                let salt = rng.next_u64();
                StitchByKey::new(move |_, key| {
                    let number = key
                        .iter()
                        .fold(salt, |sum, b| sum.wrapping_mul(31) ^ u64::from(*b));
                    [None, Some(0), Some(4 * KIB), Some(u64::MAX)]
                        .get(usize::try_from(number % 4).ok()?)
                        .copied()?
                })
            }),
            is_paranoid: true,
            ..VtOptions::default()
        };
        Self {
            setup: Setup {
                options,
                version_log_bytes: None,
            },
            len_bytes: pick(rng, &[64, 96, 256]) * MIB,
            log_bytes: pick(rng, &[2, 8, 16]) * MIB,
        }
    }
}

impl Factory for Varied {
    fn create(&self, registry: UpsertRegistry) -> Box<dyn Subject> {
        let log_bytes = Some(self.log_bytes);
        Box::new(Store::new(&self.setup, self.len_bytes, log_bytes, registry))
    }
}

#[test]
fn options_make_no_difference() {
    for seed in seeds() {
        let mut rng = Rng::new(seed ^ 0x0b5e55ed);
        let shape = Params {
            ops: 2000,
            keys: pick(&mut rng, &[40, 400, 4000]),
            value_bytes: pick(&mut rng, &[60, 600, 3000]),
            ..Params::new(seed)
        };
        let digests: Vec<u64> = (0..STORES)
            .map(|store| {
                let params = Params {
                    tuning_seed: seed * STORES + store,
                    settle_one_in: pick(&mut rng, &[50, 150, 1000]),
                    reopen_one_in: pick(&mut rng, &[100, 300, 2000]),
                    alter_one_in: pick(&mut rng, &[30, 200, 2000]),
                    ..shape
                };
                run(&Varied::new(&mut rng), params)
            })
            .collect();
        let is_same = digests.windows(2).all(|pair| pair[0] == pair[1]);
        assert!(is_same, "seed {seed}: {digests:x?}");
        assert_ne!(digests[0], 0, "something was read");
    }
}

#[test]
fn other_operations_give_other_answers() {
    let digest = |seed| {
        let params = Params {
            ops: 300,
            ..Params::new(seed)
        };
        run(&Setup::default(), params)
    };
    assert_ne!(digest(1), digest(2));
    assert_eq!(digest(1), digest(1));
}
