//! When level 0 is due.

use super::*;
use crate::options::VtOptions;
use crate::testing::text_version;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn sizes(level0_tables_max: usize) -> Sizes {
    let options = VtOptions {
        memtable_bytes: Some(MIB),
        level0_tables_max,
        ..VtOptions::default()
    };
    Sizes::new(&options, 1 << 30, 64 * MIB)
}

#[test]
fn level_0_waits_until_reads_have_paid_for_it() {
    let version = text_version(
        "tree 1
         L0 5 a..z 65536
         L0 4 a..z 65536
         L0 3 a..z 65536
         L0 2 a..z 65536
         L1 1 a..z 262144",
    );
    let debt = Level0Debt::default();
    let cost = 512 * KIB / PROBE_BYTES;
    debt.note_get(LEVEL0_TABLES);
    assert!(!debt.is_due(&version), "few tables cost nothing");
    for _ in 0..cost / 2 - 1 {
        debt.note_get(LEVEL0_TABLES + 2);
    }
    assert!(!debt.is_due(&version));
    debt.note_scan(LEVEL0_TABLES + 1);
    assert!(debt.is_due(&version));
    debt.pay();
    assert!(!debt.is_due(&version), "it begins anew");
}

#[test]
fn level_0_is_due_while_writes_have_paused() {
    let version = text_version("tree 1\nL0 5 a..z 65536");
    let debt = Level0Debt::default();
    assert!(!debt.is_due(&version));
    debt.set_quiet(true);
    assert!(debt.is_due(&version));
    debt.set_quiet(false);
    assert!(!debt.is_due(&version));
}

#[test]
fn level_0_grows_only_where_there_is_space_to_compact_it() {
    let lazy = sizes(16);
    assert_eq!(lazy_tables(&lazy, 1 << 30), 16);
    assert_eq!(lazy_tables(&lazy, 40 * MIB), 10);
    assert_eq!(lazy_tables(&lazy, 0), LEVEL0_TABLES);
    assert_eq!(batch_bytes(&lazy), 36 * MIB);
    let plain = sizes(0);
    assert_eq!(lazy_tables(&plain, 1 << 30), LEVEL0_TABLES);
    assert_eq!(batch_bytes(&plain), 0);
}
