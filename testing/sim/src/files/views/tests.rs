//! What the state of views shows, and what it would not forgive.

use super::*;
use crate::files::What;
use crate::log_engine::LogHost;
use crate::systems;

fn create(path: &str) -> What {
    What::Create {
        path: path.to_owned(),
        perm: 0o644,
    }
}

fn make_dir(path: &str) -> What {
    What::MakeDir {
        path: path.to_owned(),
    }
}

/// A model after these operations.
fn after<H: Host>(system: &ViewsSystem<H>, ops: Vec<ViewWhat>) -> ViewsModel {
    let mut model = system.model();
    for (at, what) in (1..).zip(ops) {
        system.apply(&mut model, &ViewOp { at, what });
    }
    model
}

#[test]
fn a_state_has_every_view() {
    let system = systems::views_for_tests();
    let home = vec!["d/c".to_owned()];
    let clone = |of: &[String], dir: &str, home: &[String], target: &str| ViewWhat::Clone {
        of: of.to_vec(),
        dir: dir.to_owned(),
        home: home.to_vec(),
        target: target.to_owned(),
    };
    let model = after(
        &system,
        vec![
            ViewWhat::Main(make_dir("d")),
            ViewWhat::CreateSnapshot {
                name: "mon".to_owned(),
                of: Vec::new(),
                dir: "d".to_owned(),
            },
            clone(&[], "d", &[], "d/c"),
            clone(&[], "", &home, "d/inner"),
            ViewWhat::Begin {
                name: "one".to_owned(),
            },
            ViewWhat::InTransaction {
                name: "one".to_owned(),
                what: create("d/f"),
            },
            ViewWhat::Begin {
                name: "one/two".to_owned(),
            },
            ViewWhat::InTransaction {
                name: "one/two".to_owned(),
                what: create("d/g"),
            },
        ],
    );
    let views = &model.views;
    assert_eq!(views.snapshots["mon"].path, "d");
    let chains: Vec<Vec<String>> = views.clones.keys().cloned().collect();
    let inner = vec!["d/c".to_owned(), "d/inner".to_owned()];
    // A clone lies in the source of the second one.
    let innermost = [&inner[..], &home].concat();
    assert_eq!(chains, [home, inner.clone(), innermost.clone()]);
    assert_eq!(&*views.clones[&inner].root, "");
    assert_eq!(&*views.clones[&innermost].root, "d");
    assert!(!views.main.contains_key("d/f"));
    let (outer, inner) = (&views.transactions["one"], &views.transactions["one/two"]);
    assert!(outer.tree.contains_key("d/f") && !outer.tree.contains_key("d/g"));
    assert!(inner.tree.contains_key("d/f") && inner.tree.contains_key("d/g"));
    assert!(outer.clones.keys().eq(&chains), "it shows the clones");
    assert_eq!(inner.clones, outer.clones);
}

#[test]
fn a_run_is_whole_and_a_tree_without_an_owner_is_found() {
    let system = systems::views_for_tests();
    let run = |commits| ViewWhat::Run {
        ops: vec![make_dir("d"), create("d/f")],
        commits,
    };
    let model = after(&system, vec![run(false)]);
    assert_eq!(model.views.main.len(), 1, "an aborted run leaves nothing");
    let model = after(&system, vec![run(true)]);
    assert!(model.views.main.contains_key("d/f"));
    let loose = state::loose_trees(&model.fs).unwrap();
    assert_eq!(loose, Vec::<String>::new());
    let engine = model.fs.engine();
    let options = stitch_kv::TreeOptions::default();
    engine.create_tree("txn~99/meta", &options).unwrap();
    let loose = state::loose_trees(&model.fs).unwrap();
    assert_eq!(loose, ["loose-tree: txn~99/meta"]);
}

#[test]
fn a_view_that_differs_is_named() {
    let system = ViewsSystem::new(LogHost::new("log", 2 << 20), "test");
    let one = after(&system, vec![ViewWhat::Main(create("f"))]).views;
    let other = after(&system, vec![ViewWhat::Main(create("g"))]).views;
    assert!(one != other);
    let said = one.difference(&other);
    assert!(said.starts_with("in mainline: \"g\" is missing"), "{said}");
}
