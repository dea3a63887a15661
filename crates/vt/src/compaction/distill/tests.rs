use super::*;
use crate::entry::RangeDelete;
use crate::key_moments::tests::of_range;
use crate::testing::run_script;
use std::fmt::Write;
use std::sync::Arc;
use stitch_kv::{Folded, UpsertFn};

/// Appends the delta; the delta `!` removes the value. Function 1 joins, function 2 does not.
struct Append(u32);

impl UpsertFn for Append {
    fn id(&self) -> u32 {
        self.0
    }

    fn name(&self) -> &'static str {
        "append"
    }

    fn fold(&self, _key: &[u8], old: Option<&[u8]>, delta: &[u8], out: &mut Vec<u8>) -> Folded {
        if delta == b"!" {
            return Folded::Absent;
        }
        out.extend_from_slice(old.unwrap_or_default());
        out.extend_from_slice(delta);
        Folded::Value
    }

    fn join(&self, older: &[u8], newer: &[u8], out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(older);
        out.extend_from_slice(newer);
        self.0 == 1 && older != b"!" && newer != b"!"
    }
}

/// Entries given in order.
struct Listed {
    entries: Vec<(Vec<u8>, KeyVersion)>,
    at: usize,
}

impl EntryIter for Listed {
    fn seek(&mut self, key: &[u8], _seqno: Seqno) -> Result<(), VtError> {
        self.at = self.entries.partition_point(|(k, _)| k.as_slice() < key);
        Ok(())
    }

    fn seek_before(&mut self, _key: Option<&[u8]>) -> Result<(), VtError> {
        unreachable!("compactions go forward")
    }

    fn next(&mut self) -> Result<(), VtError> {
        self.at += 1;
        Ok(())
    }

    fn prev(&mut self) -> Result<(), VtError> {
        unreachable!("compactions go forward")
    }

    fn current(&self) -> Option<EntryRef<'_>> {
        let (key, version) = self.entries.get(self.at)?;
        let op = match &version.op {
            DistilledOp::Carried(_) => Op::Put(&[]),
            _ => match version.kept(key) {
                Distilled::Entry(entry) => entry.op,
                Distilled::Carried(_) => unreachable!("told apart before"),
            },
        };
        let seqno = version.seqno;
        Some(EntryRef { key, seqno, op })
    }

    fn carried(&self) -> Option<&IndexEntry> {
        match &self.entries.get(self.at)?.1.op {
            DistilledOp::Carried(block) => Some(block),
            _ => None,
        }
    }
}

/// A value block; for these tests, its filter is its value.
fn carried(key: &str, value: &str, seqno: Seqno) -> DistilledOp {
    DistilledOp::Carried(Box::new(IndexEntry {
        first: key.into(),
        last: key.into(),
        is_value: true,
        min_seqno: seqno,
        max_seqno: seqno,
        filter: value.into(),
        ..IndexEntry::default()
    }))
}

fn version(key: &str, op: &str, seqno: &str) -> KeyVersion {
    let seqno = Seqno(seqno.parse().expect("a number"));
    let op = match op.split_once('=') {
        Some(("put", value)) => DistilledOp::Put(value.into()),
        Some(("block", value)) => carried(key, value, seqno),
        Some(("up", delta)) => DistilledOp::Upsert {
            function: 1,
            delta: delta.into(),
        },
        Some(("up3", delta)) => DistilledOp::Upsert {
            function: 3,
            delta: delta.into(),
        },
        Some(("up2", delta)) => DistilledOp::Upsert {
            function: 2,
            delta: delta.into(),
        },
        _ => DistilledOp::Delete,
    };
    KeyVersion { seqno, op }
}

fn print(kept: Distilled<'_>, out: &mut String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let entry = match kept {
        Distilled::Entry(entry) => entry,
        Distilled::Carried(block) => {
            let (key, value) = (text(&block.last), text(&block.filter));
            writeln!(out, "{key} block={value} {}", block.max_seqno).expect("a string takes it");
            return;
        }
    };
    let op = match entry.op {
        Op::Put(value) => format!("put={}", text(value)),
        Op::Delete => "del".to_owned(),
        Op::Upsert { function: 1, delta } => format!("up={}", text(delta)),
        Op::Upsert { function, delta } => format!("up{function}={}", text(delta)),
    };
    writeln!(out, "{} {op} {}", text(entry.key), entry.seqno).expect("a string takes it");
}

/// Lines `<key> put=<v>|block=<v>|del|up=<d>|up2=<d>|up3=<d> <seqno>` (function 3 is unknown),
/// `snapshot N`, `delete a b N`, `bottom`.
fn run(text: &str) -> String {
    let mut upserts = UpsertRegistry::default();
    upserts.register(Arc::new(Append(1)));
    upserts.register(Arc::new(Append(2)));
    let mut entries = Vec::new();
    let (mut snapshots, mut ranged) = (Vec::new(), Vec::new());
    let mut deletes = Vec::new();
    let mut bottom = false;
    for line in text.lines() {
        match line.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["bottom"] => bottom = true,
            ["snapshot", at] => snapshots.push(Seqno(at.parse().expect("a number"))),
            ["snapshot", at, start, end] => ranged.push(of_range(at, (start, end))),
            ["delete", start, end, at] => deletes.push(RangeDelete {
                start: start.as_bytes().to_vec(),
                end: end.as_bytes().to_vec(),
                seqno: Seqno(at.parse().expect("a number")),
            }),
            [key, op, seqno] => entries.push((key.as_bytes().to_vec(), version(key, op, seqno))),
            other => panic!("no such line: {other:?}"),
        }
    }
    let moments = KeyMoments::new(snapshots, ranged);
    let rules = DistillRules {
        moments: &moments,
        range_deletes: &Fragments::new(&deletes, &moments),
        is_bottom: &|_| bottom,
        upserts: &upserts,
        load: &|block| Ok(Some(Bytes::from(block.filter.clone()))),
    };
    let mut out = String::new();
    distill(&mut Listed { entries, at: 0 }, &rules, &mut |entry| {
        print(entry, &mut out);
        Ok(())
    })
    .expect("nothing fails");
    out
}

#[test]
fn what_is_left_is_as_written() {
    run_script("distill.txt", run);
}

#[test]
fn upserts_of_a_busy_key_are_joined_as_they_come() {
    let mut upserts = UpsertRegistry::default();
    upserts.register(Arc::new(Append(1)));
    let moments = KeyMoments::of_every_key(&[Seqno(500)]);
    let rules = DistillRules {
        moments: &moments,
        range_deletes: &Fragments::new(
            &[RangeDelete {
                start: b"a".to_vec(),
                end: b"b".to_vec(),
                seqno: Seqno(200),
            }],
            &moments,
        ),
        is_bottom: &|_| false,
        upserts: &upserts,
        load: &|_| Ok(None),
    };
    let mut group = Group::new(&rules);
    let entry = |seqno: u64| EntryRef {
        key: b"a",
        seqno: Seqno(seqno),
        op: Op::Upsert {
            function: 1,
            delta: b".",
        },
    };
    group.begin(&entry(1000), None);
    for seqno in (1..1000).rev() {
        group.add(&entry(seqno), None).unwrap();
    }
    // One on each side of the snapshot; what the range delete hides is gone.
    let kept = |v: &KeyVersion| match &v.op {
        DistilledOp::Upsert { delta, .. } => (v.seqno.0, delta.len()),
        other => panic!("{other:?}"),
    };
    let kept: Vec<_> = group.versions.iter().map(kept).collect();
    assert_eq!(kept, [(1000, 500), (500, 300)]);
}

/// A damaged block under a right checksum: what was made of it would be out of order, too.
#[test]
fn entries_out_of_order_are_an_error() {
    let rules = DistillRules {
        moments: &KeyMoments::default(),
        range_deletes: &Fragments::new(&[], &KeyMoments::default()),
        is_bottom: &|_| false,
        upserts: &UpsertRegistry::default(),
        load: &|_| Ok(None),
    };
    let distilled = |keys: &[(&str, u64)]| {
        let version = |seqno: &u64| KeyVersion {
            seqno: Seqno(*seqno),
            op: DistilledOp::Delete,
        };
        let keys = keys.iter();
        let mut source = Listed {
            entries: keys
                .map(|(key, seqno)| (key.as_bytes().to_vec(), version(seqno)))
                .collect(),
            at: 0,
        };
        distill(&mut source, &rules, &mut |_| Ok(()))
    };
    assert!(distilled(&[("a", 5), ("a", 4), ("b", 9)]).is_ok());
    for wrong in [
        [("a", 4), ("a", 4), ("b", 9)],
        [("a", 4), ("a", 5), ("b", 9)],
        [("a", 5), ("c", 4), ("b", 9)],
    ] {
        let found = distilled(&wrong);
        assert!(matches!(found, Err(VtError::Version { .. })), "{wrong:?}");
    }
}

#[test]
fn of_many_stripes_only_those_with_something_are_looked_at() {
    let snapshots: Vec<Seqno> = (1..=100_000).map(|n| Seqno(n * 10)).collect();
    let deletes = [RangeDelete {
        start: b"a".to_vec(),
        end: b"b".to_vec(),
        seqno: Seqno(500_001),
    }];
    let moments = KeyMoments::of_every_key(&snapshots);
    let rules = DistillRules {
        moments: &moments,
        range_deletes: &Fragments::new(&deletes, &moments),
        is_bottom: &|_| false,
        upserts: &UpsertRegistry::default(),
        load: &|_| Ok(None),
    };
    let group = Group::new(&rules);
    let version = |seqno| KeyVersion {
        seqno: Seqno(seqno),
        op: DistilledOp::Delete,
    };
    // Newest first, as a group has them.
    let mut versions = vec![version(2_000_000), version(999_991), version(5)];
    let mut visited = Vec::new();
    let mut from = 0;
    while let Some(stripe) = group.next_stripe(from, &versions, 100_000) {
        visited.push(stripe);
        while versions
            .pop_if(|v| group.stripe(v.seqno) == stripe)
            .is_some()
        {}
        from = stripe + 1;
    }
    assert_eq!(visited, [0, 50_000, 99_999, 100_000]);
}
