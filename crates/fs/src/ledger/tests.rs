use super::record::Place;
use super::*;

fn known_after(records: &[Record<'_>]) -> Vec<LedgerInode> {
    let mut bytes = Vec::new();
    records.iter().for_each(|record| record.encode(&mut bytes));
    let mut known = HashMap::new();
    let mut rest = bytes.as_slice();
    for expected in records {
        let (record, after) = Record::decode(rest).unwrap();
        assert_eq!(&record, expected);
        record.apply(&mut known);
        rest = after;
    }
    assert_eq!(Record::decode(rest), None);
    known.into_values().collect()
}

fn at(name: &[u8]) -> Record<'_> {
    Record::At {
        ino: Ino(20),
        lookups: 3,
        is_temp: true,
        place: entry(name),
    }
}

fn entry(name: &[u8]) -> Place<'_> {
    let parent = Ino(7);
    Place::Entry { parent, name }
}

#[test]
fn records_are_read_as_they_were_written_and_the_last_two_places_count() {
    let ino = Ino(20);
    let may = |name| Record::May {
        ino,
        place: entry(name),
    };
    let count = Record::Count { ino, lookups: 9 };
    let known = known_after(&[at(b"a"), may(b"b"), at(b"b"), may(b"c"), count]);
    assert_eq!(known.len(), 1);
    assert_eq!((known[0].lookups, known[0].is_temp), (9, true));
    let places = [b"b", b"c"].map(|name| Location::entry(Ino(7), name));
    assert_eq!(known[0].places, places);
}

#[test]
fn what_is_gone_is_not_known_and_a_new_place_takes_the_memory_away() {
    let row = [1, 2, 3].as_slice().into();
    let ino = Ino(20);
    let place = Place::Memory { row };
    let may = Record::May { ino, place };
    assert!(known_after(&[at(b"a"), may.clone(), Record::Gone { ino }]).is_empty());
    assert_eq!(known_after(&[may, at(b"a")])[0].in_memory, None);
}

#[test]
fn a_record_that_is_cut_is_none() {
    let mut bytes = Vec::new();
    at(b"name").encode(&mut bytes);
    for len in 0..bytes.len() {
        assert_eq!(Record::decode(&bytes[..len]), None, "{len}");
    }
    let mut longer = bytes.clone();
    longer[0] += 1;
    longer.push(0);
    assert_eq!(Record::decode(&longer), None, "more than the record has");
}
