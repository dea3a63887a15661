use super::*;
use crate::DirName;
use crate::inode::{Inode, Location};
use crate::testing::head;
use stitch_format::fs_inode::FileKind;

const KNOWN: Ino = Ino(20);
const UNKNOWN: Ino = Ino(21);

fn inode(ino: Ino) -> Inode {
    Inode {
        head: head(ino, FileKind::Regular),
        location: Location::Own,
        chain: 0,
        is_temp: false,
    }
}

fn linked(dir: Ino, name: &'static str) -> Event<'static> {
    Event::Linked {
        at: DirName::new(dir, name.as_bytes()),
        hash: 5,
        ino: Ino(30),
        is_only_name: true,
    }
}

fn unlinked(dir: Ino, name: &'static str) -> Event<'static> {
    let at = DirName::new(dir, name.as_bytes());
    Event::Unlinked { at, hash: 5 }
}

/// Names, inodes and attributes of the notices, as text.
fn told(events: &[Event<'_>]) -> String {
    let notices = Notices::of(events, |ino| ino == KNOWN);
    let mut out = Vec::new();
    for (dir, name) in &notices.names {
        out.push(format!("name {dir}/{}", name.escape_ascii()));
    }
    for (dir, names) in &notices.removed_dirs {
        let names = names.iter().map(|name| format!(" {}", name.escape_ascii()));
        out.push(format!("removed {dir}{}", names.collect::<String>()));
    }
    out.extend(notices.inodes.iter().map(|ino| format!("inode {ino}")));
    out.extend(notices.attrs.iter().map(|ino| format!("attrs {ino}")));
    assert_eq!(notices.is_empty(), out.is_empty());
    out.join(", ")
}

#[test]
fn each_event_has_the_notices_of_the_table() {
    let both = || vec![KNOWN, UNKNOWN];
    for (event, expected) in [
        (linked(KNOWN, "a"), "name 20/a"),
        (unlinked(KNOWN, "a"), "name 20/a"),
        (linked(UNKNOWN, "a"), ""),
        (unlinked(UNKNOWN, "a"), ""),
        (Event::EntriesReplaced(KNOWN), "inode 20"),
        (Event::EntriesReplaced(UNKNOWN), ""),
        (Event::ContentsReplaced(both()), "inode 20"),
        (Event::Changed(inode(KNOWN)), "attrs 20"),
        (Event::Changed(inode(UNKNOWN)), ""),
        (Event::Made(inode(KNOWN)), ""),
        (Event::DirRemoved(KNOWN), "removed 20"),
        (Event::DirRemoved(UNKNOWN), ""),
        (Event::DirDetached(KNOWN), "inode 20"),
        (Event::DirDetached(UNKNOWN), ""),
        (Event::Orphaned, ""),
        (Event::ExtentsChanged(KNOWN, None), ""),
        (Event::ChunkCounted(KNOWN, 1), ""),
        (Event::CutBeside(1), ""),
        (Event::ContentsLeft(KNOWN), ""),
        (Event::Fixed, ""),
    ] {
        let shown = format!("{event:?}");
        assert_eq!(told(&[event]), expected, "{shown}");
    }
}

#[test]
fn a_name_or_inode_that_changes_twice_has_one_notice() {
    let events = [
        unlinked(KNOWN, "a"),
        linked(KNOWN, "a"),
        Event::Changed(inode(KNOWN)),
        Event::ContentsReplaced(vec![KNOWN]),
        Event::Changed(inode(KNOWN)),
    ];
    assert_eq!(told(&events), "name 20/a, inode 20");
}

#[test]
fn names_in_a_removed_directory_are_told_with_it() {
    let mut events = vec![
        unlinked(KNOWN, "a"),
        Event::Changed(inode(KNOWN)),
        Event::ContentsReplaced(vec![KNOWN]),
        unlinked(UNKNOWN, "c"),
    ];
    assert_eq!(told(&events), "name 20/a, inode 20");
    events.push(Event::DirRemoved(KNOWN));
    events.push(Event::DirRemoved(UNKNOWN));
    events.push(unlinked(KNOWN, "b"));
    assert_eq!(told(&events), "removed 20 a b");
}

#[test]
fn notices_of_a_directory_that_is_removed_later_go_with_it() {
    let is_known = |ino| ino == KNOWN;
    let names = [unlinked(KNOWN, "a"), Event::Changed(inode(KNOWN))];
    let removal = [unlinked(KNOWN, "b"), Event::DirRemoved(KNOWN)];
    let whole = BTreeMap::from([(KNOWN, BTreeSet::from([b"a"[..].into(), b"b"[..].into()]))]);
    let whole = Notices {
        removed_dirs: whole,
        ..Notices::default()
    };
    let mut later = Notices::of(&names, is_known);
    later.extend(Notices::of(&removal, is_known));
    assert_eq!(later, whole);
    let mut earlier = Notices::of(&removal, is_known);
    earlier.extend(Notices::of(&names, is_known));
    assert_eq!(earlier, whole, "a name that is told late");
}

#[test]
fn later_notices_are_added_once() {
    let is_known = |ino| ino == KNOWN;
    let mut all = Notices::of(&[Event::Changed(inode(KNOWN))], is_known);
    assert_eq!(all.attrs.len(), 1);
    all.extend(Notices::of(&[Event::EntriesReplaced(KNOWN)], is_known));
    assert_eq!((all.inodes.len(), all.attrs.len()), (1, 0));
    all.extend(Notices::of(&[Event::Changed(inode(KNOWN))], is_known));
    assert_eq!((all.inodes.len(), all.attrs.len()), (1, 0));
}
