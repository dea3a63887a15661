use super::*;
use proptest::prelude::*;
use stitch_base::sync::Arc;
use stitch_db::{Schema, TreeOptions};
use stitch_kv::{ModelEngine, UpsertRegistry};

/// With more or less of them in memory, or none.
fn rows_with(recent_bytes: u64) -> PendingRows {
    let engine = Arc::new(ModelEngine::new(UpsertRegistry::default()));
    let schema = Schema::create(engine, "redis", &[("rows", TreeOptions::default())]).unwrap();
    PendingRows::new(
        schema.now(),
        schema.dictionary("rows").unwrap(),
        recent_bytes,
    )
}

/// The row of a key.
fn row(key: u8) -> Vec<u8> {
    stitch_format::redis::key_row(&[key])
}

fn rows() -> PendingRows {
    rows_with(1 << 20)
}

fn all(rows: &PendingRows, direction: Direction) -> Vec<(Vec<u8>, Vec<u8>)> {
    let range = RowRange {
        start: vec![],
        end: vec![255],
    };
    let mut found = Vec::new();
    rows.scan(&range, direction, |key, value| {
        found.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })
    .unwrap();
    found
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, u8),
    Delete(u8),
    /// The rows from 16 times this on, 16 of them; or all of them.
    Clear(Option<u8>),
    Commit,
    Discard,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..64, any::<u8>()).prop_map(|(key, value)| Step::Put(key, value)),
        3 => (0u8..64).prop_map(Step::Delete),
        1 => prop::option::of(0u8..4).prop_map(Step::Clear),
        1 => Just(Step::Commit),
        1 => Just(Step::Discard),
    ]
}

proptest! {
    #[test]
    fn reads_see_all_changes_and_commits_keep_them(
        steps in prop::collection::vec(step(), 0..60),
        recent_bytes in prop::sample::select(vec![0, 800, 1 << 20]),
    ) {
        let mut rows = rows_with(recent_bytes);
        let mut expected: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut committed = expected.clone();
        for step in steps {
            match step {
                Step::Put(key, value) => {
                    rows.put(row(key), vec![value]);
                    expected.insert(row(key), vec![value]);
                }
                Step::Delete(key) => {
                    rows.delete(row(key));
                    expected.remove(&row(key));
                }
                Step::Clear(part) => {
                    let (start, end) = part.map_or((0, 64), |part| (16 * part, 16 * part + 16));
                    let (start, end) = (row(start), row(end));
                    expected.retain(|key, _| !(&start..&end).contains(&key));
                    rows.clear(RowRange { start, end });
                }
                Step::Commit => {
                    rows.commit(false).unwrap();
                    committed.clone_from(&expected);
                }
                Step::Discard => {
                    rows.discard();
                    expected.clone_from(&committed);
                }
            }
            let mut wanted: Vec<_> = expected.clone().into_iter().collect();
            prop_assert_eq!(&all(&rows, Direction::Forward), &wanted);
            wanted.reverse();
            prop_assert_eq!(&all(&rows, Direction::Backward), &wanted);
            // Before the single reads, which leave rows in memory; one of them is named twice.
            let keys: Vec<Vec<u8>> = (0..64).rev().step_by(3).chain([60]).map(row).collect();
            rows.fetch(keys.clone()).unwrap();
            for key in &keys {
                let value = rows.get(key).unwrap();
                prop_assert_eq!(value.as_deref(), expected.get(key).map(Vec::as_slice));
            }
            for key in 0..64 {
                let value = rows.get(&row(key)).unwrap();
                prop_assert_eq!(value.as_deref(), expected.get(&row(key)).map(Vec::as_slice));
            }
        }
        rows.commit(false).unwrap();
        prop_assert_eq!(rows.bytes(), 0);
    }
}

#[test]
fn the_bytes_of_a_row_that_is_put_twice_count_once() {
    let mut rows = rows();
    rows.put(b"a".to_vec(), vec![0; 100]);
    let once = rows.bytes();
    rows.put(b"a".to_vec(), vec![0; 100]);
    assert_eq!(rows.bytes(), once);
    rows.clear(RowRange::of_prefix(b"a"));
    assert!(rows.bytes() < 100 && !rows.is_empty());
}

#[test]
fn what_gives_space_back_may_use_the_reserve() {
    let mut rows = rows();
    assert_eq!(rows.space_class(), SpaceClass::Normal);
    rows.delete(b"a".to_vec());
    rows.put(b"c".to_vec(), vec![0; 24]);
    assert_eq!(rows.space_class(), SpaceClass::Reserve);
    rows.put(b"d".to_vec(), vec![0; 100]);
    assert_eq!(rows.space_class(), SpaceClass::Normal);
}
