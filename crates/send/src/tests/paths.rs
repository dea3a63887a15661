//! Streams of two trees of which the names were read that lead to something else.

use super::*;
use crate::tree::Node;
use std::collections::BTreeSet;
use stitch_base::random::Rng;

/// The paths that a copy needs, by both trees: names that lead elsewhere, all names of inodes with
/// another time of change, and the directories above, on both sides.
fn touched(old: &Tree, new: &Tree) -> [BTreeSet<Vec<u8>>; 2] {
    let mut inodes: BTreeSet<u64> = BTreeSet::new();
    for (one, other) in [(old, new), (new, old)] {
        let names = one.names.iter();
        let elsewhere = names.filter(|(name, ino)| other.names.get(name) != Some(ino));
        inodes.extend(elsewhere.map(|(_, ino)| *ino));
        let nodes = one.nodes.iter();
        let others = nodes.filter(|(ino, node)| {
            let other = other.nodes.get(ino);
            other.is_none_or(|other| other.changed != node.changed)
        });
        inodes.extend(others.map(|(ino, _)| *ino));
    }
    loop {
        let above = [old, new].map(|tree| {
            let names = tree.names.iter().filter(|(_, ino)| inodes.contains(ino));
            names.map(|(name, _)| name.dir).collect::<BTreeSet<u64>>()
        });
        let count = inodes.len();
        inodes.extend(above.into_iter().flatten());
        if inodes.len() == count {
            break;
        }
    }
    [old, new].map(|tree| {
        let names = tree.names.iter().filter(|(_, ino)| inodes.contains(ino));
        names.map(|(name, _)| tree.path(name)).collect()
    })
}

/// The same moment, with the names that are in some paths.
fn with_paths(moment: &Moment, paths: &BTreeSet<Vec<u8>>) -> Moment {
    let mut tree = moment.tree.with_paths(paths);
    tree.root = Root::open(&moment.copy).unwrap();
    Moment {
        tree,
        number: moment.number,
        created: moment.created,
        copy: moment.copy.clone(),
    }
}

/// Compares the streams of all names, and of those that are needed.
fn compare(old: &Moment, new: &Moment) -> usize {
    let [before, after] = touched(&old.tree, &new.tree);
    let whole = send(Some(old), new, None).0;
    let count = before.len() + after.len();
    let (old, new) = (with_paths(old, &before), with_paths(new, &after));
    let part = send(Some(&old), &new, None).0;
    assert!(whole == part, "{count} paths, {} bytes", whole.len());
    count
}

#[test]
fn the_paths_that_changed_are_enough() {
    let (lab, mut old, new) = changed();
    for index in 0..100 {
        fs::write(lab.top(&format!("{index}")), b"later").unwrap();
    }
    // Nothing changed within a tick of the first moment, and then all.
    for created in [i64::MAX, i64::MIN] {
        old.created = created;
        let count = compare(&old, &new);
        assert!(count < old.tree.count() + new.tree.count(), "{count} paths");
    }
}

#[test]
fn all_paths_make_the_tree_that_a_walk_reads() {
    let lab = Lab::new();
    grow(&lab);
    let options = TreeOptions::default();
    let walked = Tree::read(&lab.path("top"), &options).unwrap();
    let paths: BTreeSet<Vec<u8>> = walked.names.keys().map(|name| walked.path(name)).collect();
    let read = Tree::read_paths(&lab.path("top"), &options, &paths).unwrap();
    assert_eq!(read.names, walked.names);
    assert_eq!(read.nodes.len(), walked.nodes.len());
    for (ino, node) in &walked.nodes {
        // The walk itself has accessed directories.
        let accessed = node.accessed;
        let found = Node {
            accessed,
            ..read.nodes[ino].clone()
        };
        assert_eq!(found, *node);
    }
    assert_eq!(read.root_ino, walked.root_ino);
    let none = Tree::read_paths(&lab.path("top"), &options, &BTreeSet::new()).unwrap();
    assert_eq!((none.count(), none.nodes.len()), (0, 1));
}

#[test]
fn a_path_without_its_directory_is_refused() {
    let lab = Lab::new();
    grow(&lab);
    let paths = BTreeSet::from([b"a/b".to_vec()]);
    let options = TreeOptions::default();
    let refused = Tree::read_paths(&lab.path("top"), &options, &paths).unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("its directory is not listed"), "{text}");
    let paths = BTreeSet::from([b"nowhere".to_vec()]);
    let missing = Tree::read_paths(&lab.path("top"), &options, &paths).unwrap_err();
    assert!(missing.to_string().contains("cannot stat"), "{missing}");
}

/// Changes at random, in directories that move.
#[test]
fn random_changes_make_one_stream_either_way() {
    for seed in 0..6 {
        let (mut lab, mut rng) = (Lab::new(), Rng::new(seed));
        grow(&lab);
        let mut before = lab.moment();
        for round in 0..4 {
            for step in 0..8 {
                step_at_random(&lab, &mut rng, (round, step));
            }
            let after = lab.moment();
            compare(&before, &after);
            before = after;
        }
    }
}

/// One of all names, or a new one in some directory.
fn pick(lab: &Lab, rng: &mut Rng) -> PathBuf {
    let tree = Tree::read(&lab.path("top"), &TreeOptions::default()).unwrap();
    let index = usize::try_from(rng.below(tree.count() as u64)).unwrap();
    let name = tree.names.keys().nth(index).unwrap();
    let path = tree.path(name);
    lab.path("top").join(std::ffi::OsStr::from_bytes(&path))
}

fn step_at_random(lab: &Lab, rng: &mut Rng, (round, step): (u32, u32)) {
    let (one, other) = (pick(lab, rng), pick(lab, rng));
    let new = other.with_file_name(format!("new-{round}-{step}"));
    // Many fail, and change nothing.
    let _ = match rng.below(7) {
        0 => fs::write(&one, [round as u8; 5000]),
        1 => fs::write(&new, b"new"),
        2 => fs::rename(&one, &new),
        3 => fs::rename(&one, &other),
        4 => fs::hard_link(&one, &new),
        5 if one.is_dir() => fs::remove_dir_all(&one),
        5 => fs::remove_file(&one),
        _ => fs::set_permissions(&one, fs::Permissions::from_mode(0o700 + round)),
    };
}
