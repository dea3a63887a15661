//! Random steps on a file, beside plain bytes in memory.

use super::*;
use proptest::prelude::*;

const SPAN: u64 = 24_000;

#[derive(Clone, Debug)]
enum Step {
    Start,
    Write(u64, usize, u8),
    /// Written back from a mapping.
    WriteBack(u64, usize, u8),
    Resize(u64),
    /// Refused while an atomic write is open.
    Allocate(u64, usize, bool),
    Commit,
    End,
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let long = (0..SPAN, 1..9000_usize, any::<u8>());
    let page = (0..6_u64, any::<u8>()).prop_map(|(page, byte)| (page * 4096, 4096, byte));
    let short = (0..SPAN, 1..50_usize, any::<u8>());
    let range = prop_oneof![1 => long, 3 => page, 3 => short];
    let step = prop_oneof![
        3 => Just(Step::Start),
        9 => range.clone().prop_map(|(at, len, byte)| Step::Write(at, len, byte)),
        2 => range.prop_map(|(at, len, byte)| Step::WriteBack(at, len, byte)),
        2 => (0..SPAN).prop_map(Step::Resize),
        1 => Just(Step::Resize(0)),
        2 => (0..SPAN, 1..9000_usize, any::<bool>())
            .prop_map(|(at, len, keeps)| Step::Allocate(at, len, keeps)),
        3 => Just(Step::Commit),
        2 => Just(Step::End),
        1 => Just(Step::Crash),
    ];
    prop::collection::vec(step, 1..40)
}

/// The atomic write of the twin.
#[derive(Clone)]
struct Open {
    bytes: Vec<u8>,
    is_staged: Vec<bool>,
    kept: usize,
}

struct Twin {
    bytes: Vec<u8>,
    open: Option<Open>,
}

fn put(bytes: &mut Vec<u8>, at: usize, len: usize, byte: u8) {
    bytes.resize(bytes.len().max(at + len), 0);
    bytes[at..at + len].fill(byte);
}

impl Twin {
    fn seen(&self) -> &[u8] {
        self.open.as_ref().map_or(&self.bytes, |open| &open.bytes)
    }

    fn start(&mut self) {
        if self.open.is_none() {
            self.open = Some(Open {
                bytes: self.bytes.clone(),
                is_staged: vec![false; usize::try_from(2 * SPAN).expect("small")],
                kept: self.bytes.len(),
            });
        }
    }

    fn write(&mut self, at: usize, len: usize, byte: u8) {
        match &mut self.open {
            Some(open) => {
                put(&mut open.bytes, at, len, byte);
                open.is_staged[at..at + len].fill(true);
            }
            None => put(&mut self.bytes, at, len, byte),
        }
    }

    fn write_back(&mut self, at: usize, len: usize, byte: u8) {
        let Some(open) = &mut self.open else {
            return put(&mut self.bytes, at, len, byte);
        };
        if at + len > open.kept || open.is_staged[at..at + len].contains(&true) {
            return self.write(at, len, byte);
        }
        put(&mut open.bytes, at, len, byte);
        put(&mut self.bytes, at, len, byte);
    }

    fn resize(&mut self, size: usize) {
        match &mut self.open {
            Some(open) => {
                open.bytes.resize(size, 0);
                open.is_staged[size..].fill(false);
                open.kept = open.kept.min(size);
            }
            None => self.bytes.resize(size, 0),
        }
    }
}

fn step(setup: &mut Setup, ino: &mut Ino, twin: &mut Twin, step: &Step) {
    let place = |at: u64| usize::try_from(at).expect("small");
    match *step {
        Step::Start => {
            start(&setup.fs, *ino);
            twin.start();
        }
        Step::Write(at, len, byte) => {
            write(&setup.fs, OWN, *ino, at, &vec![byte; len]).expect("it writes");
            twin.write(place(at), len, byte);
        }
        Step::WriteBack(at, len, byte) => {
            // The cache has no pages behind the end.
            let len = len.min(twin.seen().len().saturating_sub(place(at)));
            if len > 0 {
                let bytes = vec![byte; len];
                write(&setup.fs, Writer::Cache, *ino, at, &bytes).expect("it writes");
                twin.write_back(place(at), len, byte);
            }
        }
        Step::Resize(size) => {
            match twin.open {
                Some(_) => resize(&setup.fs, *ino, size),
                None => cut(setup, *ino, size).expect("it is resized"),
            }
            twin.resize(place(size));
        }
        Step::Allocate(at, len, keep_size) => {
            let mode = FallocateMode::Allocate { keep_size };
            let done = setup.fs.fallocate(*ino, mode, at, len as u64);
            assert_eq!(is_busy(done), twin.open.is_some());
            let end = place(at) + len;
            if twin.open.is_none() && !keep_size && end > twin.bytes.len() {
                twin.bytes.resize(end, 0);
            }
        }
        Step::Commit => {
            let committed = setup.fs.commit_atomic_write(*ino, WRITER.process);
            assert_eq!(committed.is_ok(), twin.open.is_some());
            if let Some(open) = twin.open.take() {
                twin.bytes = open.bytes;
            }
        }
        Step::End => assert_eq!(end(&setup.fs, *ino), twin.open.take().is_some()),
        Step::Crash => unreachable!("the caller reopens"),
    }
}

fn run(steps: &[Step]) {
    let mut setup = setup();
    let mut ino = file(&setup, "file", &[1; 3000]);
    let mut twin = Twin {
        bytes: vec![1; 3000],
        open: None,
    };
    for taken in steps {
        if matches!(taken, Step::Crash) {
            setup = setup.reopened();
            ino = setup.lookup(ROOT, "file").expect("it is there").ino;
            twin.open = None;
        } else {
            step(&mut setup, &mut ino, &mut twin, taken);
        }
        assert_eq!(setup.attr(ino).size, twin.seen().len() as u64);
        assert!(setup.contents(ino) == twin.seen(), "after {taken:?}");
        assert!(
            setup.read(ino, 5000, 6000)
                == twin
                    .seen()
                    .get(5000..)
                    .map_or(&[][..], |rest| { &rest[..rest.len().min(6000)] })
        );
    }
    setup.check();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_file_is_what_its_twin_is(steps in steps()) {
        run(&steps);
    }
}
