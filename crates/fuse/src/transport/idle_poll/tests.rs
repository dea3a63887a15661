use super::*;

/// Polling on a plain file, which records what was written to it.
fn on_a_file() -> (IdlePolling, tempfile::NamedTempFile) {
    let kept = tempfile::NamedTempFile::new().unwrap();
    let device = File::options().append(true).open(kept.path()).unwrap();
    (IdlePolling::on(device), kept)
}

fn said(kept: &tempfile::NamedTempFile) -> Vec<i32> {
    let bytes = std::fs::read(kept.path()).unwrap();
    let word = |word: &[u8]| {
        let mut known = [POLL, SLEEP].into_iter();
        known.find(|known| bytes_of(*known) == word).unwrap()
    };
    bytes.chunks_exact(4).map(word).collect()
}

/// Notes consecutive requests for a while.
fn note_many(polling: &IdlePolling) {
    let clock = SystemClock::default();
    while clock.monotonic() < Duration::from_millis(2) {
        polling.note();
    }
}

fn comes_true(what: impl Fn() -> bool) -> bool {
    let clock = SystemClock::default();
    (0..500).any(|_| {
        clock.sleep(Duration::from_millis(10));
        what()
    })
}

#[test]
fn requests_in_a_row_keep_processors_awake_and_a_pause_lets_them_sleep() {
    let (polling, kept) = on_a_file();
    polling.note();
    assert!(said(&kept).is_empty(), "one request is no row");
    note_many(&polling);
    assert_eq!(said(&kept).first(), Some(&POLL));
    assert!(comes_true(|| said(&kept).last() == Some(&SLEEP)));
    assert!(comes_true(|| polling.polled() > Duration::ZERO));
    note_many(&polling);
    assert!(comes_true(|| said(&kept).len() >= 4), "and again");
    assert!(comes_true(|| said(&kept).last() == Some(&SLEEP)));
    let turns = said(&kept);
    let expected = [POLL, SLEEP].into_iter().cycle();
    assert!(turns.iter().copied().eq(expected.take(turns.len())));
    polling.end();
}

#[test]
fn the_end_takes_the_wish_back_and_nothing_comes_after_it() {
    let (polling, kept) = on_a_file();
    note_many(&polling);
    polling.end();
    let turns = said(&kept);
    assert_eq!(turns.last(), Some(&SLEEP));
    note_many(&polling);
    assert_eq!(said(&kept), turns);
    polling.end();
}

#[test]
fn many_threads_say_it_once() {
    let (polling, kept) = on_a_file();
    let noting: Vec<_> = (0..4)
        .map(|_| {
            let polling = polling.clone();
            stitch_base::thread::spawn("test", move || note_many(&polling)).unwrap()
        })
        .collect();
    noting.into_iter().for_each(|thread| thread.join().unwrap());
    polling.end();
    let turns = said(&kept);
    let expected = [POLL, SLEEP].into_iter().cycle();
    assert!(turns.len() >= 2 && turns.iter().copied().eq(expected.take(turns.len())));
}

#[test]
fn without_idle_polling_nothing_is_polled() {
    let polling = IdlePolling::new(IdlePollChoice::Never).unwrap();
    note_many(&polling);
    assert_eq!(polling.polled(), Duration::ZERO);
    polling.end();
}

#[test]
fn the_kernel_takes_what_is_said() {
    match IdlePolling::new(IdlePollChoice::Always) {
        Ok(polling) => {
            let wish = polling.0.as_ref().unwrap();
            (&wish.device).write_all(&bytes_of(POLL)).unwrap();
            (&wish.device).write_all(&bytes_of(SLEEP)).unwrap();
        }
        // Not root, or a container without it.
        Err(error) => assert_ne!(error.kind(), io::ErrorKind::InvalidInput),
    }
}
