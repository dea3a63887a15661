//! What is judged of names that went with a removed tree.

use super::*;
use crate::log_engine::LogHost;

type TestSystem = FsSystem<LogHost>;

/// Does operations in the store and in the model; those that are not for the store, in the model
/// only.
fn run(ops: Vec<(What, bool)>) -> (Tree, Tree) {
    let system = TestSystem::new(LogHost::new("log", 2 << 20), "test");
    let device = Arc::new(system.image());
    let (mut live, mut model) = (system.open(device).unwrap(), system.model());
    for (at, (what, is_in_store)) in (1..).zip(ops) {
        let op = FsOp { at, what };
        if is_in_store {
            system.run(&mut live, &op, &model).unwrap();
        }
        system.apply(&mut model, &op);
    }
    (system.state(&live).unwrap(), system.model_state(&model))
}

/// A directory with a file, which has another name beside it.
fn linked() -> Vec<(What, bool)> {
    let (dir, file, other) = ("d".to_owned(), "d/f".to_owned(), "g".to_owned());
    let create = What::Create {
        path: file.clone(),
        perm: 0o644,
    };
    let link = What::Link {
        source: file,
        target: other,
    };
    let all = [What::MakeDir { path: dir }, create, link];
    all.into_iter().map(|what| (what, true)).collect()
}

#[test]
fn when_the_names_of_a_removed_tree_go_is_the_stores_affair() {
    let mut ops = linked();
    let path = "d".to_owned();
    ops.push((What::RemoveTree { path }, true));
    // As where the tree cannot be read.
    ops.push((What::Reclaim, false));
    let (found, expected) = run(ops);
    assert_eq!((found["g"].attr.nlink, expected["g"].attr.nlink), (2, 1));
    assert!(found == expected, "{}", tree::difference(&found, &expected));
}

#[test]
fn any_other_link_that_does_not_go_is_found() {
    let mut ops = linked();
    let (path, is_open) = ("d/f".to_owned(), false);
    ops.push((What::Unlink { path, is_open }, true));
    let (mut found, expected) = run(ops);
    assert!(found == expected, "{}", tree::difference(&found, &expected));
    found.get_mut("g").unwrap().attr.nlink = 2;
    assert!(found != expected);
}
