//! File handles in views that show one directory: LOOKUP of `.` in a number.

use super::super::node::Node;
use super::*;

impl Setup {
    /// The number of an inode of mainline in the view that another number is in.
    fn number_beside(&self, view: Ino, ino: Ino) -> Ino {
        match self.views.node(view) {
            Node::Live(slot, _) | Node::Past(slot, _) => slot.number(ino),
            _ => panic!("{view} is in a view"),
        }
    }

    fn opened(&self, view: Ino, ino: Ino) -> Answer<Ino> {
        let number = self.number_beside(view, ino);
        let found = self.lookup(number, b".")?.expect("it is no name");
        assert_eq!(found.ino, number);
        self.views.forget(number, 1);
        Ok(number)
    }

    fn link(&self, file: Ino, dir: Ino, name: &[u8]) {
        let at = DirName::new(dir, name);
        self.fs.link(&SUPER, file, at).expect("succeeds");
    }
}

struct Sample {
    source: Ino,
    inside: [Ino; 2],
    outside: Vec<Ino>,
}

/// A directory with a file and with a second name of another one, and files outside of it, one of
/// them with two names.
fn sample(setup: &Setup) -> Sample {
    let (source, other) = (setup.dir(b"src"), setup.dir(b"other"));
    let bytes = vec![7; 20_000];
    let far = setup.file(other, b"far", &bytes);
    let inner = setup.file(source, b"f", &bytes);
    let linked = setup.file(other, b"linked", &bytes);
    setup.link(linked, source, b"second");
    let apart = setup.file(other, b"apart", &bytes);
    setup.link(apart, other, b"again");
    // The first one that is not known has all back rows put: a snapshot has those of its moment.
    setup.fs.forget(inner, 1);
    setup.fs.look_up_number(inner).unwrap();
    Sample {
        source,
        inside: [inner, linked],
        outside: vec![far, apart, other, ROOT],
    }
}

fn narrow(setup: &Setup) {
    while setup.fs.snapshots().narrow_ahead().unwrap() {}
    let pins = setup.fs.engine().pins().unwrap();
    assert!(pins.iter().all(|pin| !pin.ranges.is_empty()));
}

#[track_caller]
fn assert_reached(setup: &Setup, view: Ino, sample: &Sample) {
    for ino in sample.inside {
        let number = setup.opened(view, ino).expect("it is below the directory");
        let found = setup.lookup(number, b".").unwrap().expect("it is there");
        assert_eq!(setup.read(found.ino).unwrap(), [7; 4096]);
        setup.views.forget(found.ino, 1);
    }
    assert!(setup.opened(view, sample.source).is_ok());
    for &ino in &sample.outside {
        assert_eq!(setup.opened(view, ino), Err(Errno::ESTALE), "inode {ino}");
    }
}

#[test]
fn a_handle_in_a_narrowed_snapshot_and_its_clone_leads_to_no_file_outside() {
    let setup = setup();
    let sample = sample(&setup);
    setup.create(0, sample.source, "mon").unwrap();
    narrow(&setup);
    for &file in sample.inside.iter().chain(&sample.outside[..2]) {
        let written = setup.fs.write(file, 0, b"AFTER", WriteOptions::default());
        written.unwrap();
    }
    let past = setup.enter(b"mon").unwrap().ino;
    assert_reached(&setup, past, &sample);
    let copy = setup.clone_to(past, ROOT, b"copy").unwrap().ino;
    assert_reached(&setup, copy, &sample);
    let nested = setup.clone_to(copy, ROOT, b"nested").unwrap().ino;
    assert_reached(&setup, nested, &sample);
    let inner = setup.clone_to(copy, copy, b"inner").unwrap().ino;
    assert_reached(&setup, inner, &sample);
}

#[test]
fn a_handle_in_a_clone_of_a_living_directory_leads_to_no_directory_outside() {
    let setup = setup();
    let mut sample = sample(&setup);
    let copy = setup.clone_to(sample.source, ROOT, b"copy").unwrap().ino;
    // One with several names has its contents there, and is found by its number alone.
    let apart = sample.outside.remove(1);
    assert_reached(&setup, copy, &sample);
    assert!(setup.opened(copy, apart).is_ok());
}
