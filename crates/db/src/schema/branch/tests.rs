use super::*;
use crate::{Direction, KeyRange, TreeOptions};
use stitch_base::ErrorKind;
use stitch_kv::{Engine, ModelEngine, UpsertRegistry};

fn schema() -> Schema {
    let engine: Arc<dyn Engine> = Arc::new(ModelEngine::new(UpsertRegistry::default()));
    let options = TreeOptions::default;
    let dictionaries = [("meta", options()), ("data", options())];
    Schema::create(engine, "main", &dictionaries).unwrap()
}

fn put(schema: &Schema, dictionary: &str, key: &[u8], value: &[u8]) {
    let mut changes = Changes::new();
    changes.put(schema.dictionary(dictionary).unwrap(), key, value);
    let done = schema.now().commit(&changes, CommitOptions::default());
    done.unwrap();
}

fn value(schema: &Schema, dictionary: &str, key: &[u8]) -> Option<Vec<u8>> {
    let dictionary = schema.dictionary(dictionary).unwrap();
    let value = schema.now().get(dictionary, key).unwrap();
    value.map(|value| value.to_vec())
}

fn names(schema: &Schema) -> Vec<&str> {
    let dictionaries = schema.dictionaries().iter();
    dictionaries.map(|(name, _)| name.as_str()).collect()
}

#[test]
fn a_branch_has_the_same_dictionaries_and_goes_its_own_way() {
    let main = schema();
    put(&main, "meta", b"k", b"1");
    put(&main, "data", b"k", b"1");
    let before = main.engine().snapshot();
    put(&main, "data", b"k", b"2");
    let now = main.branch("now", None).unwrap();
    let past = main.branch("past", Some(&before)).unwrap();
    put(&main, "meta", b"k", b"main");
    put(&now, "meta", b"k", b"now");
    for branch in [&now, &past] {
        assert_eq!(names(branch), ["meta", "data"]);
        assert_ne!(branch.trees(), main.trees());
    }
    let all = |key| {
        let of = |schema| (value(schema, "meta", key), value(schema, "data", key));
        [of(&main), of(&now), of(&past)]
    };
    let some = |value: &[u8]| Some(value.to_vec());
    let expected = [
        (some(b"main"), some(b"2")),
        (some(b"now"), some(b"2")),
        (some(b"1"), some(b"1")),
    ];
    assert_eq!(all(b"k"), expected);
    assert_eq!(now.name(), "now");
    let again = Schema::open(Arc::clone(main.engine()), "past").unwrap();
    assert_eq!(again.dictionaries(), past.dictionaries());
}

#[test]
fn a_branch_is_made_whole_or_not_at_all() {
    let main = schema();
    let of_branch = main.branch("branch", None).unwrap();
    let taken = main.branch("branch", None).unwrap_err();
    assert!(matches!(taken, DbError::SchemaExists(name) if name == "branch"));
    let own = main.branch("main", None).unwrap_err();
    assert_eq!(own.kind(), ErrorKind::Exists);
    let bad = main.branch("a/b", None).unwrap_err();
    assert!(matches!(bad, DbError::BadName(_)));
    let young = main.engine().snapshot();
    let engine = Arc::clone(main.engine());
    engine
        .create_tree("main/new", &TreeOptions::default())
        .unwrap();
    let main = Schema::open(engine, "main").unwrap();
    let count = main.engine().trees().len();
    let refused = main.branch("other", Some(&young)).unwrap_err();
    assert_eq!(
        refused.kind(),
        ErrorKind::NotFound,
        "a dictionary is younger"
    );
    assert_eq!(main.engine().trees().len(), count);
    of_branch.branch("of a branch", None).unwrap();
}

#[test]
fn a_removed_schema_leaves_its_branches_and_its_name() {
    let main = schema();
    put(&main, "data", b"k", b"1");
    let branch = main.branch("branch", None).unwrap();
    let engine = Arc::clone(main.engine());
    let handle = main.clone();
    main.remove().unwrap();
    let gone = Schema::open(Arc::clone(&engine), "main").unwrap_err();
    assert!(matches!(gone, DbError::NoSchema(_)));
    assert!(handle.now().get(handle.dictionaries()[0].1, b"k").is_err());
    assert_eq!(value(&branch, "data", b"k"), Some(b"1".to_vec()));
    let point = branch.branch_point(branch.dictionary("data").unwrap());
    let point = point.unwrap();
    let old = point.moment().get(point.parent(), b"k").unwrap();
    assert_eq!(old.as_deref(), Some(&b"1"[..]));
    branch.branch("main", None).unwrap();
    branch.remove().unwrap();
    let main = Schema::open(engine, "main").unwrap();
    assert_eq!(value(&main, "data", b"k"), Some(b"1".to_vec()));
}

#[test]
fn a_branch_knows_where_it_begins_and_what_was_written_to_it() {
    let main = schema();
    put(&main, "meta", b"k", b"1");
    let branch = main.branch("branch", None).unwrap();
    put(&main, "meta", b"k", b"2");
    put(&branch, "meta", b"b", b"1");
    put(&branch, "meta", b"a", b"1");
    let [meta, of_main] = [&branch, &main].map(|schema| schema.dictionary("meta").unwrap());
    let point = branch.branch_point(meta).unwrap();
    assert_eq!(point.parent(), of_main);
    let moment = point.moment();
    assert_eq!(
        moment.get(of_main, b"k").unwrap().as_deref(),
        Some(&b"1"[..])
    );
    let mut scan = moment
        .scan(of_main, KeyRange::all(), Direction::Forward)
        .unwrap();
    assert!(scan.next().unwrap().is_some() && scan.next().unwrap().is_none());
    drop(scan);
    let keys = |after, count| branch.written_keys(meta, after, count).unwrap();
    assert_eq!(keys(None, 9), [b"a", b"b"]);
    assert_eq!(keys(Some(b"a"), 9), [b"b"]);
    assert_eq!(keys(None, 1), [b"a"]);
    for (schema, dictionary) in [(&main, of_main), (&main, meta), (&branch, of_main)] {
        let none = schema.branch_point(dictionary).unwrap_err();
        assert!(matches!(&none, DbError::NoBranch { schema: of } if of == schema.name()));
        let none = schema.written_keys(dictionary, None, 1).unwrap_err();
        assert_eq!(none.kind(), ErrorKind::NotFound);
    }
}

#[test]
fn an_absorbed_branch_is_one_commit_that_others_may_prevent() {
    let main = schema();
    put(&main, "meta", b"k", b"1");
    let (first, second) = (
        main.branch("first", None).unwrap(),
        main.branch("second", None).unwrap(),
    );
    for branch in [&first, &second] {
        put(branch, "meta", b"k", branch.name().as_bytes());
        put(branch, "data", branch.name().as_bytes(), b"v");
    }
    let mut changes = Changes::new();
    changes.put(main.dictionary("data").unwrap(), b"note", b"absorbed");
    let absorb = |branch: &Schema| {
        let guards = branch.guards_on_written().unwrap();
        assert_eq!(guards.count(), 2);
        branch.absorb(&changes, &guards, CommitOptions::default())
    };
    absorb(&first).unwrap();
    assert_eq!(value(&main, "meta", b"k"), Some(b"first".to_vec()));
    assert_eq!(value(&main, "data", b"first"), Some(b"v".to_vec()));
    assert_eq!(value(&main, "data", b"note"), Some(b"absorbed".to_vec()));
    assert!(Schema::open(Arc::clone(main.engine()), "first").is_err());
    let refused = absorb(&second).unwrap_err();
    let tree = main.dictionary("meta").unwrap().tree();
    let key = b"k".to_vec();
    assert!(matches!(refused, DbError::Conflict { keys } if keys == [ChangedKey { tree, key }]));
    assert_eq!(value(&main, "data", b"second"), None);
    assert_eq!(value(&second, "meta", b"k"), Some(b"second".to_vec()));
    let none = Guards::since(&main.engine().snapshot());
    let done = second.absorb(&Changes::new(), &none, CommitOptions::default());
    done.unwrap();
    assert_eq!(value(&main, "meta", b"k"), Some(b"second".to_vec()));
    let of_none = main.guards_on_written().unwrap_err();
    assert!(matches!(of_none, DbError::NoBranch { .. }));
}

#[test]
fn what_others_put_into_a_deleted_range_is_guarded() {
    let main = schema();
    let branch = main.branch("branch", None).unwrap();
    let mut changes = Changes::new();
    changes.delete_range(branch.dictionary("meta").unwrap(), b"a", b"m");
    let now = branch.now();
    now.commit(&changes, CommitOptions::default()).unwrap();
    put(&main, "meta", b"k", b"new");
    let guards = branch.guards_on_written().unwrap();
    let refused = branch.absorb(&Changes::new(), &guards, CommitOptions::default());
    let tree = main.dictionary("meta").unwrap().tree();
    let key = b"k".to_vec();
    let refused = refused.unwrap_err();
    assert!(matches!(refused, DbError::Conflict { keys } if keys == [ChangedKey { tree, key }]));
    assert_eq!(value(&main, "meta", b"k"), Some(b"new".to_vec()));
}

#[test]
fn a_guard_on_a_long_branch_covers_all_of_its_keys() {
    let main = schema();
    let (branch, calm) = (
        main.branch("branch", None).unwrap(),
        main.branch("calm", None).unwrap(),
    );
    for schema in [&branch, &calm] {
        let mut changes = Changes::new();
        let meta = schema.dictionary("meta").unwrap();
        let of_calm = u64::from(schema.name() == "calm") << 32;
        (0..1500).for_each(|n: u64| changes.put(meta, &(n | of_calm).to_be_bytes(), b"v"));
        schema
            .now()
            .commit(&changes, CommitOptions::default())
            .unwrap();
    }
    let last = 1499_u64.to_be_bytes();
    put(&main, "meta", &last, b"other");
    let absorb = |branch: &Schema| {
        let guards = branch.guards_on_written().unwrap();
        assert_eq!(guards.count(), 1, "the keys are not listed");
        branch.absorb(&Changes::new(), &guards, CommitOptions::default())
    };
    let refused = absorb(&branch).unwrap_err();
    let (tree, key) = (main.dictionary("meta").unwrap().tree(), last.to_vec());
    assert!(matches!(refused, DbError::Conflict { keys } if keys == [ChangedKey { tree, key }]));
    absorb(&calm).unwrap();
    assert_eq!(value(&main, "meta", &last), Some(b"other".to_vec()));
    let of_calm = (1499 | 1_u64 << 32).to_be_bytes();
    assert_eq!(value(&main, "meta", &of_calm), Some(b"v".to_vec()));
}
