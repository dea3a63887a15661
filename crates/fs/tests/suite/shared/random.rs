//! Random changes of files that are copied again and again, beside byte arrays.

use super::*;
use std::collections::BTreeMap;
use stitch_base::random::Rng;

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

struct Files {
    setup: Setup,
    rng: Rng,
    /// Contents, and the number of the file while it is known.
    twins: BTreeMap<&'static str, (Ino, Vec<u8>)>,
    log: Vec<String>,
}

impl Files {
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.rng.below(bound as u64)).expect("small")
    }

    fn name(&mut self) -> &'static str {
        NAMES[self.below(NAMES.len())]
    }

    /// An offset, often that of a chunk.
    fn offset(&mut self) -> usize {
        let chunk = self.below(60) * 4096;
        match self.rng.one_in(2) {
            true => chunk,
            false => chunk + self.below(4096),
        }
    }

    fn step(&mut self) {
        self.setup.tick();
        let name = self.name();
        let Some((ino, mut data)) = self.twins.get(name).cloned() else {
            let ino = self.setup.file(ROOT, name).ino;
            self.twins.insert(name, (ino, Vec::new()));
            return;
        };
        let (offset, len) = (self.offset(), self.offset() / 3 + 1);
        let kind = self.below(12);
        self.log.push(format!("{name} {kind} {offset} {len}"));
        match kind {
            0..4 => {
                let mut bytes = vec![0; if self.rng.one_in(2) { len } else { 10 }];
                self.rng.fill(&mut bytes);
                self.setup.write(ino, offset as u64, &bytes);
                let end = offset + bytes.len();
                data.resize(data.len().max(end), 0);
                data[offset..end].copy_from_slice(&bytes);
            }
            4 => {
                let size = if self.rng.one_in(4) { 0 } else { offset };
                cut(&self.setup, ino, size as u64).expect("cuts");
                data.resize(size, 0);
            }
            5 => self.fallocate(ino, &mut data, offset, len),
            6..9 => return self.copy(name, ino, &data),
            9 => {
                remove(&self.setup, ino, name);
                self.twins.remove(name);
                return;
            }
            10 if self.rng.one_in(3) => return self.reopen(),
            _ => {
                let read = contents_of(&self.setup.fs, ino);
                assert!(read == data, "{:#?}", self.log);
                return;
            }
        }
        self.twins.insert(name, (ino, data));
    }

    fn fallocate(&mut self, ino: Ino, data: &mut Vec<u8>, offset: usize, len: usize) {
        let keep_size = self.rng.one_in(2);
        let mode = match self.below(6) {
            0 => FallocateMode::Allocate { keep_size },
            1 => FallocateMode::ZeroRange { keep_size },
            _ => FallocateMode::PunchHole,
        };
        let done = self
            .setup
            .fs
            .fallocate(ino, mode, offset as u64, len as u64);
        done.expect("there is room");
        if !keep_size && mode != FallocateMode::PunchHole {
            data.resize(data.len().max(offset + len), 0);
        }
        let (start, end) = (offset.min(data.len()), (offset + len).min(data.len()));
        if !matches!(mode, FallocateMode::Allocate { .. }) {
            data[start..end].fill(0);
        }
    }

    /// Copies a file to a new or an empty one, whole or in ranges.
    fn copy(&mut self, from: &'static str, ino: Ino, data: &[u8]) {
        let to = self.name();
        if to == from {
            return;
        }
        let target = match self.twins.get(to) {
            Some((target, _)) => *target,
            None => self.setup.file(ROOT, to).ino,
        };
        cut(&self.setup, target, 0).expect("cuts");
        self.log.push(format!("copy {from} to {to}"));
        let mut at = 0;
        let step = match self.rng.one_in(2) {
            true => 1 << 30,
            false => 4096 * (1 + self.below(40)),
        };
        while at < data.len() {
            let place = at as u64;
            let copied = self
                .setup
                .fs
                .copy_range((ino, place), (target, place), step as u64);
            at += usize::try_from(copied.expect("copies")).expect("small");
        }
        self.twins.insert(to, (target, data.to_vec()));
    }

    fn reopen(&mut self) {
        self.log.push("reopen".to_owned());
        let old = std::mem::replace(&mut self.setup, setup());
        self.setup = old.reopened();
        for (name, (ino, _)) in &mut self.twins {
            *ino = self.setup.lookup(ROOT, name).expect("it is there").ino;
        }
    }

    fn check(&self) {
        for (name, (ino, data)) in &self.twins {
            let read = contents_of(&self.setup.fs, *ino);
            assert!(read == *data, "{name} {:#?}", self.log);
        }
        assert_eq!(self.setup.issues(), [], "{:#?}", self.log);
    }
}

#[test]
fn copies_change_apart() {
    for seed in 0..150 {
        let mut files = Files {
            setup: setup(),
            rng: Rng::new(seed),
            twins: BTreeMap::new(),
            log: vec![format!("seed {seed}")],
        };
        let empty = files.setup.rows("sys");
        for step in 0..150 {
            files.step();
            if step % 10 == 0 {
                files.check();
            }
        }
        files.check();
        for (name, (ino, _)) in std::mem::take(&mut files.twins) {
            remove(&files.setup, ino, name);
        }
        files.check();
        assert_eq!(files.setup.rows("data"), 0, "{:#?}", files.log);
        // A count of unwritten chunks stays.
        assert!(files.setup.rows("sys") <= empty + 1, "{:#?}", files.log);
    }
}
