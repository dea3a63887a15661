//! Rounds with a model of the kernel's write-back.

use std::collections::VecDeque;

use stitch_base::clock::ManualClock;

use super::*;

/// Requests in the queue from which on the kernel leaves out files.
const CONGESTED: usize = 48;

#[derive(Clone, Copy, Debug, Default)]
struct Page {
    content: u32,
    stored: u32,
    is_dirty: bool,
    in_flight: bool,
}

/// A kernel whose files have a page each, and a daemon.
#[derive(Debug, Default)]
struct Model {
    pages: Vec<Page>,
    /// WRITEs in the queue: the page and its content.
    queue: VecDeque<(usize, u32)>,
    begun: u64,
    /// WRITEs that are served between two looks.
    speed: usize,
    /// WRITEs of other programs that come between two looks.
    foreign: u64,
    /// A worker is always seen with a WRITE.
    is_saturated: bool,
    knows_others: bool,
    /// The next WRITE fails.
    fails: bool,
    error: Option<OsError>,
    syncs: u32,
}

impl Model {
    fn new(pages: usize, speed: usize, knows_others: bool) -> Self {
        Self {
            pages: vec![Page::default(); pages],
            speed,
            knows_others,
            ..Self::default()
        }
    }

    fn store(&mut self, content: u32) {
        for page in &mut self.pages {
            (page.content, page.is_dirty) = (content, true);
        }
    }

    fn serve(&mut self) {
        for _ in 0..self.speed {
            let Some((at, content)) = self.queue.pop_front() else {
                break;
            };
            self.begun += 1;
            self.pages[at].in_flight = false;
            match std::mem::take(&mut self.fails) {
                true => self.error = Some(OsError::NOSPC),
                false => self.pages[at].stored = content,
            }
        }
        self.begun += self.foreign;
    }

    fn has_all(&self, content: u32) -> bool {
        self.pages.iter().all(|page| page.stored == content)
    }

    fn write_back(&mut self) -> (io::Result<()>, Duration) {
        let clock = ManualClock::default();
        let before = self.look().unwrap();
        let ended = run(self, before, &clock);
        (ended, clock.monotonic())
    }
}

impl Kernel for Model {
    fn sync(&mut self) -> io::Result<()> {
        self.syncs += 1;
        for (at, page) in self.pages.iter_mut().enumerate() {
            if self.queue.len() < CONGESTED && page.is_dirty && !page.in_flight {
                (page.is_dirty, page.in_flight) = (false, true);
                self.queue.push_back((at, page.content));
            }
        }
        self.error.take().map_or(Ok(()), |error| Err(error.into()))
    }

    fn look(&mut self) -> io::Result<Look> {
        self.serve();
        let queued = u64::try_from(self.queue.len()).unwrap();
        let is_busy = queued > 0 || self.is_saturated;
        self.begun = self.begun.max(u64::from(is_busy));
        Ok(Look {
            begun: self.begun,
            busy: u64::from(is_busy),
            others: self.knows_others.then_some(queued),
        })
    }
}

#[test]
fn a_clean_mount_takes_two_rounds_and_with_fusectl_no_time() {
    let mut model = Model::new(1, 1, true);
    let (ended, took) = model.write_back();
    ended.unwrap();
    assert_eq!((model.syncs, took), (2, Duration::ZERO));
    let mut model = Model::new(1, 1, false);
    let (ended, took) = model.write_back();
    ended.unwrap();
    assert_eq!((model.syncs, took), (2, Duration::from_millis(40)));
}

#[test]
fn files_that_the_kernel_leaves_out_are_sent_by_later_rounds() {
    for knows_others in [true, false] {
        for speed in [1, 7, 100] {
            let mut model = Model::new(300, speed, knows_others);
            model.store(1);
            model.sync().unwrap();
            assert_eq!(model.queue.len(), CONGESTED, "the others are left out");
            let (ended, _) = model.write_back();
            ended.unwrap();
            assert!(model.has_all(1), "{speed} {knows_others}");
        }
    }
}

#[test]
fn a_page_that_was_on_its_way_is_sent_with_what_was_stored_meanwhile() {
    for knows_others in [true, false] {
        let mut model = Model::new(5, 1, knows_others);
        model.store(1);
        model.sync().unwrap();
        model.store(2);
        let (ended, _) = model.write_back();
        ended.unwrap();
        assert!(model.has_all(2), "{knows_others}");
    }
}

#[test]
fn an_error_of_the_last_write_is_returned() {
    let mut model = Model::new(1, 1, true);
    model.store(1);
    model.fails = true;
    let (ended, _) = model.write_back();
    assert_eq!(
        OsError::from_io_error(&ended.unwrap_err()),
        Some(OsError::NOSPC)
    );
}

#[test]
fn a_daemon_that_does_not_come_on_is_given_up() {
    let mut model = Model::new(1, 0, true);
    model.store(1);
    let (ended, took) = model.write_back();
    assert_eq!(
        OsError::from_io_error(&ended.unwrap_err()),
        Some(OsError::TIMEDOUT)
    );
    assert_eq!(took.as_secs(), 10);
}

#[test]
fn other_programs_that_write_all_the_time_are_no_queue() {
    let mut model = Model::new(300, 7, false);
    model.store(1);
    model.foreign = 5;
    let (ended, took) = model.write_back();
    ended.unwrap();
    assert!(model.has_all(1));
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn success_is_not_claimed_when_no_worker_is_ever_seen_idle() {
    let mut model = Model::new(1, 1, false);
    model.foreign = 5;
    model.is_saturated = true;
    let (ended, took) = model.write_back();
    assert_eq!(
        OsError::from_io_error(&ended.unwrap_err()),
        Some(OsError::TIMEDOUT)
    );
    assert_eq!(took, TIME_MAX);
}
