//! Paths that a copy needs, against two walks.

use super::walk::{Listing, head};
use super::*;
use crate::TouchedPaths;

fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// Paths by inode.
fn paths_of(listing: &Listing) -> BTreeMap<Ino, BTreeSet<Vec<u8>>> {
    let mut paths: BTreeMap<Ino, BTreeSet<Vec<u8>>> = BTreeMap::new();
    for (name, ino) in &listing.names {
        paths.entry(*ino).or_default().insert(listing.path(name));
    }
    paths
}

/// The inodes with another name, or another head or contents.
fn changed(old: &Listing, new: &Listing) -> BTreeSet<Ino> {
    let mut inodes = BTreeSet::new();
    for (one, other) in [(old, new), (new, old)] {
        let lead_elsewhere = one.names.iter();
        let lead_elsewhere =
            lead_elsewhere.filter(|(name, ino)| other.names.get(name) != Some(ino));
        inodes.extend(lead_elsewhere.map(|(_, ino)| *ino));
    }
    for (ino, before) in old.nodes.iter().filter(|(ino, _)| **ino != old.root) {
        if let Some(after) = new.nodes.get(ino)
            && (head(&before.attr) != head(&after.attr) || before.bytes != after.bytes)
        {
            inodes.insert(*ino);
        }
    }
    inodes
}

/// Checks that the paths are those of both walks, are enough for a copy, and are closed: all names
/// of an inode are there, at both moments, and the directories above.
pub(super) fn check(old: &Listing, new: &Listing, found: &TouchedPaths) {
    let (old_paths, new_paths) = (paths_of(old), paths_of(new));
    let mut listed = BTreeSet::new();
    for (paths, told) in [(&old_paths, &found.old), (&new_paths, &found.new)] {
        let inodes: BTreeMap<&Vec<u8>, Ino> = paths
            .iter()
            .flat_map(|(ino, paths)| paths.iter().map(|path| (path, *ino)))
            .collect();
        for path in told {
            let ino = inodes.get(path);
            listed.insert(*ino.unwrap_or_else(|| panic!("{} is not there", shown(path))));
            if let Some(at) = path.iter().rposition(|byte| *byte == b'/') {
                assert!(told.contains(&path[..at]), "above {}", shown(path));
            }
        }
    }
    let changed = changed(old, new);
    assert!(changed.is_subset(&listed), "{changed:?} of {listed:?}");
    for ino in listed {
        for (paths, told) in [(&old_paths, &found.old), (&new_paths, &found.new)] {
            for path in paths.get(&ino).into_iter().flatten() {
                assert!(told.contains(path), "{ino} has the name {}", shown(path));
            }
        }
    }
}

fn text(paths: &TouchedPaths) -> String {
    let words = |paths: &BTreeSet<Vec<u8>>| {
        let words: Vec<String> = paths.iter().map(|path| shown(path)).collect();
        words.join(" ")
    };
    format!("{} -> {}", words(&paths.old), words(&paths.new))
}

/// The paths that a copy of the last moment needs.
fn touched(changer: &Changer, dir: Ino) -> String {
    let (pin, _) = changer.moments.last().expect("some were kept");
    text(&changer.touched(dir, *pin, None))
}

#[test]
fn a_copy_is_told_both_sides_of_what_changed_and_the_way_to_it() {
    let mut changer = Changer::new(6);
    let dir = changer.make_dir(ROOT, "dir");
    let (a, b) = (changer.make_dir(dir, "a"), changer.make_dir(dir, "b"));
    let file = changer.make_file(a, "x");
    changer.make_file(a, "same");
    changer.make_file(b, "same");
    changer.keep();
    assert_eq!(touched(&changer, dir), " -> ");
    changer.clock.set(2_000);
    changer.write(file, b"written");
    assert_eq!(touched(&changer, dir), "a a/x -> a a/x");
    changer.rename((a, "x"), (b, "y"));
    assert_eq!(touched(&changer, dir), "a a/x b -> a b b/y");
    changer.keep();
    changer.rename((dir, "a"), (b, "a"));
    assert_eq!(touched(&changer, dir), "a b -> b b/a");
    changer.make_file(a, "new");
    assert_eq!(touched(&changer, dir), "a b -> b b/a b/a/new");
}

/// A list for people leaves it out.
#[test]
fn a_directory_with_other_times_alone_is_told_to_a_copy() {
    let mut changer = Changer::new(7);
    let dir = changer.make_dir(ROOT, "dir");
    changer.keep();
    changer.clock.set(2_000);
    changer.make_file(dir, "x");
    changer.fs.unlink(&SUPER, at(dir, "x")).expect("it goes");
    let found = changer.by_rows(ROOT, changer.moments[0].0, None);
    assert_eq!(super::text(&found), "");
    assert_eq!(touched(&changer, ROOT), "dir -> dir");
}

#[test]
fn all_names_of_a_file_are_told_and_attributes_of_the_same_second() {
    let mut changer = Changer::new(8);
    let (a, b) = (changer.make_dir(ROOT, "a"), changer.make_dir(ROOT, "b"));
    let file = changer.make_file(a, "x");
    changer.link(file, b, "x");
    let noted = changer.make_file(b, "noted");
    changer.keep();
    let mode = XattrMode::Set;
    let set = changer
        .fs
        .set_xattr(&SUPER, noted, b"user.x", b"1", mode, false);
    set.expect("it is set");
    assert_eq!(touched(&changer, ROOT), "b b/noted -> b b/noted");
    changer.keep();
    changer.fs.unlink(&SUPER, at(a, "x")).expect("it goes");
    assert_eq!(touched(&changer, ROOT), "a a/x b b/x -> a b b/x");
}

/// A name that came or went, and entries of a directory, change times in the same way.
#[test]
fn attributes_are_told_of_what_was_moved_linked_or_has_new_entries() {
    let mut changer = Changer::new(1);
    let dir = changer.make_dir(ROOT, "dir");
    let moved = changer.make_file(ROOT, "moved");
    let linked = changer.make_file(ROOT, "linked");
    let same = changer.make_file(ROOT, "same");
    changer.keep();
    changer.clock.set(changer.clock.second() + 1);
    let set = |ino| {
        let mode = XattrMode::Set;
        let set = changer
            .fs
            .set_xattr(&SUPER, ino, b"user.x", b"1", mode, false);
        set.expect("it is set");
    };
    for ino in [ROOT, dir, moved, linked] {
        set(ino);
    }
    changer.make_file(dir, "new");
    changer.rename((ROOT, "moved"), (dir, "moved"));
    changer.link(linked, ROOT, "name");
    changer.rename((ROOT, "same"), (dir, "same"));
    assert_eq!(changer.fs.get_attr(same).expect("it is known").nlink, 1);
    let changes = changer.by_rows(ROOT, changer.moments[0].0, None);
    let expected = "M Mdir moved>dir/moved Mdir/moved +dir/new same>dir/same Mlinked +name";
    assert_eq!(super::text(&changes), expected);
    changer.compare(0, None);
}
