//! Random lives of a source and of its clone: what is different between them, against a walk
//! through both.

use super::super::{touched, walk};
use super::*;
use crate::TwinView;
use std::cell::Cell;

/// Number of an inode that the clone alone has, beside its number in its view.
const OWN: u64 = 1 << (VIEW_INO_BITS - 1);

/// Splits what a listing calls an inode: its view, and its number there.
fn split(ino: Ino) -> (u64, Ino) {
    let own = ino.0 & ((1 << VIEW_INO_BITS) - 1);
    (ino.0 >> VIEW_INO_BITS, Ino(own))
}

/// A source, which may have clones in it, its clone, and both at some moments.
struct Twins {
    changer: Changer,
    source: Ino,
    clone: CloneInfo,
    /// The views that were made with the clone, each with the one that it is a clone of.
    pairs: BTreeMap<u64, u64>,
    /// What both had when the clone was made.
    shared: BTreeSet<Ino>,
    moments: Vec<(PinId, Listing, Listing)>,
    /// Comparisons of directories with pairs in them.
    compared_pairs: Cell<usize>,
}

impl Twins {
    /// Some operations, with at most so many clones in the source, and the clone.
    fn new(seed: u64, inner_max: usize) -> Self {
        let mut changer = Changer::new(seed);
        if seed.is_multiple_of(2) {
            BackRowPass::of(&changer.fs)
                .complete()
                .expect("there is room");
        }
        let source = changer.make_dir(ROOT, "source");
        changer.top = source;
        for round in 0..30 {
            changer.step();
            if round % 3 == 0 {
                changer.clone_any(inner_max);
            }
        }
        let clone = changer.clone_dir(source, at(ROOT, "clone"));
        let listing = Listing::read_through(&changer.fs, (0, source));
        Self {
            source,
            pairs: Self::pairs(&changer.fs.clones(), &clone),
            clone,
            shared: listing.nodes.keys().copied().collect(),
            moments: Vec::new(),
            compared_pairs: Cell::new(0),
            changer,
        }
    }

    /// Pairs the views that were made with a clone by the directories that they lie at.
    fn pairs(clones: &[CloneInfo], clone: &CloneInfo) -> BTreeMap<u64, u64> {
        let mut pairs = BTreeMap::from([(clone.number, 0)]);
        let mut made: Vec<_> = clones
            .iter()
            .filter(|one| one.number > clone.number)
            .collect();
        made.sort_by_key(|one| one.number);
        for one in made {
            let home = pairs[&one.home];
            let is_other = |other: &&CloneInfo| (other.home, other.graft) == (home, one.graft);
            let other = clones.iter().find(is_other).expect("it has a source");
            pairs.insert(one.number, other.number);
        }
        pairs
    }

    fn step(&mut self) {
        match self.changer.below(16) {
            0 => self.changer.clone_any(12),
            1 => self.remove_any_clone(),
            _ => {
                let is_in_clone = self.changer.rng.one_in(3);
                let view = match is_in_clone {
                    true => self.clone.number,
                    false => self.changer.any_view(),
                };
                self.changer.within(view, Changer::step);
            }
        }
    }

    /// Removes one of the clones in the source or in its clone.
    fn remove_any_clone(&mut self) {
        let view = self.changer.any_view();
        let Ok(info) = self.changer.fs.clone_of(view) else {
            return;
        };
        if view != self.clone.number {
            let remove = |home: &mut Changer| {
                let listing = Listing::read_with_grafts(&home.fs, home.top);
                let found = listing.names.iter().find(|(_, ino)| **ino == info.graft);
                if let Some(((dir, name), _)) = found {
                    let removed = home
                        .fs
                        .remove_tree(&SUPER, at(*dir, name), Some(info.graft));
                    removed.expect("it lies there");
                }
            };
            self.changer.within(info.home, remove);
        }
    }

    /// The source and the clone as they are.
    fn listings(&mut self) -> (Listing, Listing) {
        let source = Listing::read_through(&self.changer.fs, (0, self.source));
        let view = self.clone.number;
        let read = |clone: &mut Changer| Listing::read_through(&clone.fs, (view, clone.top));
        let clone = self.changer.within(view, read);
        (source, clone.renumbered(|ino| self.in_source(ino)))
    }

    /// The number in the source of what the clone has.
    fn in_source(&self, ino: Ino) -> Ino {
        let (view, own) = split(ino);
        let Some(other) = self.pairs.get(&view) else {
            return ino;
        };
        let there = Ino(other << VIEW_INO_BITS | own.0);
        match self.shared.contains(&there) {
            true => there,
            false => Ino(there.0 | OWN),
        }
    }

    fn keep(&mut self) {
        let (source, clone) = self.listings();
        let name = format!("m{}", self.moments.len());
        let info = self.changer.fs.snapshots().create(ROOT, &name);
        let id = info.expect("it is created").id;
        self.moments.push((id, source, clone));
    }

    /// Compares each directory that both have, both ways.
    fn compare(&self, source: (Option<PinId>, &Listing), clone: (Option<PinId>, &Listing)) {
        let is_dir = |ino: &&Ino| {
            let nodes = (source.1.nodes.get(ino), clone.1.nodes.get(ino));
            let is_dir = |node: &walk::Node| node.attr.kind == FileKind::Directory;
            nodes.0.is_some_and(is_dir) && nodes.1.is_some_and(is_dir)
        };
        for dir in self.shared.iter().filter(is_dir).copied() {
            let (view, number) = split(dir);
            let at = |view, pin| DirAt {
                view,
                dir: number,
                pin,
            };
            let mut pairs = self.pairs.iter();
            let (twin, _) = pairs.find(|(_, other)| **other == view).expect("a pair");
            let (one, other) = (at(view, source.0), at(*twin, clone.0));
            let all = (source.1.below(dir), clone.1.below(dir));
            let views: BTreeSet<u64> = all.0.views();
            let views = views.intersection(&all.1.views()).copied().collect();
            let below = (
                all.0.clone().in_views(&views),
                all.1.clone().in_views(&views),
            );
            let count = self.compared_pairs.get() + views.len() - 1;
            self.compared_pairs.set(count);
            self.check((one, &below.0), (other, &below.1));
            self.check((other, &below.1), (one, &below.0));
            self.check_pairs((one, other), &views);
            self.check_touched((one, &all.0), (other, &all.1));
            self.check_touched((other, &all.1), (one, &all.0));
        }
    }

    fn check(&self, old: (DirAt, &Listing), new: (DirAt, &Listing)) {
        let asked = Asked {
            names_min: 0,
            ..Asked::new(old.0, new.0, None)
        };
        let found = self.changer.fs.comparer().differences(&asked);
        if matches!(found, Err(FsError::Unsupported)) && self.has_removed() {
            return;
        }
        let expected = walk::differences(old.1, new.1);
        assert_eq!(found.expect("it is read"), expected, "{asked:?}");
    }

    /// The paths that a copy needs are those of both walks, and the twins tell which inodes are the
    /// same.
    fn check_touched(&self, old: (DirAt, &Listing), new: (DirAt, &Listing)) {
        let sides = (old.0, new.0);
        let paths = match self.changer.fs.touched_paths(sides, None) {
            Err(FsError::Unsupported) if self.has_removed() => return,
            paths => paths.expect("they are read"),
        };
        touched::check(old.1, new.1, &paths);
        let twins = self.changer.fs.twin_views(sides).expect("they are read");
        for ino in old.1.nodes.keys().chain(new.1.nodes.keys()) {
            let (view, own) = split(*ino);
            let is_of = |twin: &&TwinView| twin.old == view || twin.new == view;
            let Some(twin) = twins.iter().find(is_of) else {
                continue;
            };
            let is_renumbered = own.0 & OWN > 0;
            assert!(!is_renumbered || own.0 & !OWN >= twin.first_own.0, "{ino}");
            let is_in_both = old.1.nodes.contains_key(ino) && new.1.nodes.contains_key(ino);
            assert!(!is_in_both || own < twin.first_own, "{ino} in {twins:?}");
        }
    }

    /// The clones that both sides show are pairs, and no others are.
    fn check_pairs(&self, sides: (DirAt, DirAt), shown: &BTreeSet<u64>) {
        let pairs = match self.changer.fs.clone_pairs(sides) {
            Err(FsError::Unsupported) if self.has_removed() => return,
            pairs => pairs.expect("they are read"),
        };
        let is_one = |(old, new): &(u64, u64)| self.pairs.get(new) == Some(old);
        assert!(pairs.iter().all(is_one), "{pairs:?}");
        let inner = shown.iter().filter(|view| **view != sides.0.view);
        for view in inner {
            assert!(
                pairs.iter().any(|(old, _)| old == view),
                "{view} in {pairs:?}"
            );
        }
    }

    /// Reports whether one of the pairs has lost a clone.
    fn has_removed(&self) -> bool {
        let is_removed = |view: &u64| *view > 0 && self.changer.fs.clone_of(*view).is_err();
        self.pairs.keys().chain(self.pairs.values()).any(is_removed)
    }

    /// Compares both at some moment of each, and as they are.
    fn compare_some(&mut self) {
        let count = self.moments.len();
        let (one, other) = (self.changer.below(count), self.changer.below(count));
        let now = self.listings();
        let (then, source, _) = &self.moments[one];
        let (later, _, clone) = &self.moments[other];
        self.compare((Some(*then), source), (Some(*later), clone));
        self.compare((Some(*then), source), (None, &now.1));
        self.compare((None, &now.0), (Some(*later), clone));
        self.compare((None, &now.0), (None, &now.1));
    }
}

/// Random lives of a source and its clone, compared at moments of both.
#[test]
fn rows_since_a_clone_was_made_tell_what_a_walk_finds() {
    for seed in 0..16 {
        let mut twins = Twins::new(2_000 + seed, 0);
        for _ in 0..6 {
            twins.keep();
            for _ in 0..12 {
                twins.step();
            }
            twins.compare_some();
        }
    }
}

/// The same of a source with clones in it, and in them.
#[test]
fn rows_of_clones_in_both_tell_what_a_walk_finds() {
    let mut pairs = 0;
    for seed in 0..10 {
        let mut twins = Twins::new(3_000 + seed, 4);
        for _ in 0..4 {
            twins.keep();
            for _ in 0..12 {
                twins.step();
            }
            twins.compare_some();
        }
        pairs += twins.compared_pairs.get();
    }
    assert!(pairs > 100, "{pairs} pairs of clones were compared");
}
