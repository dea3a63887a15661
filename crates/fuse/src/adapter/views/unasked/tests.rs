use super::*;
use std::collections::BTreeMap;

const BASE: u64 = 5 << stitch_fs::VIEW_INO_BITS;

fn of_files() -> Notices {
    Notices {
        names: BTreeSet::from([(Ino(20), Box::from(&b"a"[..]))]),
        removed_dirs: removed(Ino(23)),
        inodes: BTreeSet::from([Ino(20), Ino(21)]),
        attrs: BTreeSet::from([Ino(22)]),
    }
}

/// A removed directory, with a name that was in it.
fn removed(dir: Ino) -> BTreeMap<Ino, BTreeSet<Box<[u8]>>> {
    BTreeMap::from([(dir, BTreeSet::from([Box::from(&b"b"[..])]))])
}

fn files(base: u64) -> UnaskedChange {
    let notices = of_files();
    UnaskedChange::Files { base, notices }
}

fn ended(outer: Option<Slot>) -> UnaskedChange {
    let name = "work".to_owned();
    UnaskedChange::TransactionEnded { outer, name }
}

fn lists(dirs: &[u64]) -> UnaskedChange {
    UnaskedChange::SnapshotLists(dirs.iter().copied().map(Ino).collect())
}

/// Names, inodes and inodes for their attributes alone, by numbers of the mount.
type Told = (Vec<(Ino, &'static [u8])>, Vec<Ino>, Vec<Ino>);

fn inodes(inodes: &[Ino]) -> Told {
    (Vec::new(), inodes.to_vec(), Vec::new())
}

#[test]
fn each_change_has_the_notices_of_the_table() {
    let within = |ino: u64| Ino(BASE | ino);
    let (slot, snapshots) = (Slot::of_transaction(7), ControlDir::Snapshots.number());
    let of_dir = ControlDir::SnapshotsOf(Ino(20)).number();
    let work = |dir: Ino| (vec![(dir, &b"work"[..])], Vec::new(), Vec::new());
    let table: [(UnaskedChange, Told); 9] = [
        (
            files(0),
            (vec![(Ino(20), b"a")], vec![Ino(20), Ino(21)], vec![Ino(22)]),
        ),
        (
            files(BASE),
            (
                vec![(within(20), b"a")],
                vec![within(20), within(21)],
                vec![within(22)],
            ),
        ),
        (
            UnaskedChange::View(vec![within(2), within(1), within(2)]),
            inodes(&[within(1), within(2)]),
        ),
        (ended(None), work(ControlDir::Transactions.number())),
        (
            ended(Some(slot)),
            work(ControlDir::TransactionsIn(slot).number()),
        ),
        (UnaskedChange::WriteRefused(within(3)), inodes(&[within(3)])),
        (lists(&[1]), inodes(&[snapshots])),
        (lists(&[20]), inodes(&[of_dir, snapshots])),
        (
            UnaskedChange::History,
            inodes(&[ControlDir::History.number()]),
        ),
    ];
    for (change, expected) in table {
        let shown = format!("{change:?}");
        let base = match &change {
            UnaskedChange::Files { base, .. } => Some(*base),
            _ => None,
        };
        let notices = change.notices();
        let names = expected.0.into_iter();
        let names = names.map(|(dir, name)| (dir, Box::from(name))).collect();
        let expected = Notices {
            names,
            removed_dirs: base.map(|base| removed(Ino(base | 23))).unwrap_or_default(),
            inodes: expected.1.into_iter().collect(),
            attrs: expected.2.into_iter().collect(),
        };
        assert_eq!(notices, expected, "{shown}");
    }
}
