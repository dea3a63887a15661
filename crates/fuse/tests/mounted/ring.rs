//! FUSE over `io_uring`: when it is used, when it is not, and what it must not cost.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use stitch_base::clock::{Clock, SystemClock};
use stitch_base::sync::Arc;
use stitch_fuse::mount::mounted_at;
use stitch_fuse::{MountOptions, Session, SessionConfig, SessionError, Transport, TransportChoice};

use crate::fixture::{Mounted, can_mount};
use crate::memfs::{MemFs, MemOptions};
use crate::switch::Turned;

fn with(choice: TransportChoice) -> SessionConfig {
    SessionConfig {
        transport: choice,
        ..SessionConfig::default()
    }
}

fn mount_with(config: &SessionConfig) -> Result<(tempfile::TempDir, Session), SessionError> {
    let dir = tempfile::tempdir().unwrap();
    let fs = Arc::new(MemFs::new(MemOptions::default()));
    let options = MountOptions::shared("memfs");
    let session = Session::mount(fs, dir.path(), &options, config);
    if session.is_err() {
        assert!(mounted_at(dir.path()).unwrap().is_none(), "nothing is left");
    }
    Ok((dir, session?))
}

#[test]
fn where_it_is_off_the_device_serves_and_the_reason_is_told() {
    if !can_mount() {
        return;
    }
    let Some(_off) = Turned::to(false) else {
        return;
    };
    let (dir, session) = mount_with(&with(TransportChoice::Auto)).unwrap();
    let session = session.spawn().unwrap();
    assert_eq!(session.transport(), Transport::Dev);
    let reason = session.refusal().expect("it was wanted").to_string();
    assert!(reason.contains("echo 1 >"), "{reason}");
    fs::write(dir.path().join("file"), b"x").unwrap();
    session.stop().unwrap();
}

#[test]
fn where_it_is_off_and_nothing_else_will_do_nothing_is_mounted() {
    if !can_mount() {
        return;
    }
    let Some(_off) = Turned::to(false) else {
        return;
    };
    let wanted = with(TransportChoice::Only(Transport::Uring));
    let error = mount_with(&wanted).unwrap_err();
    assert!(matches!(error, SessionError::NoRing(_)), "{error}");
}

#[test]
fn where_it_is_on_the_ring_serves_unless_the_device_is_wanted() {
    if !can_mount() {
        return;
    }
    let Some(_on) = Turned::to(true) else {
        return;
    };
    let served_by = |config: &SessionConfig| {
        let (dir, session) = mount_with(config).unwrap();
        let session = session.spawn().unwrap();
        fs::write(dir.path().join("file"), b"x").unwrap();
        let transport = session.transport();
        assert_eq!(session.refusal().is_none(), !config.remote_flock);
        session.stop().unwrap();
        transport
    };
    let auto = with(TransportChoice::Auto);
    assert_eq!(served_by(&auto), Transport::Uring);
    let dev = with(TransportChoice::Only(Transport::Dev));
    assert_eq!(served_by(&dev), Transport::Dev);
    // A lock may be waited for indefinitely, and its reply is deferred.
    let remote = SessionConfig {
        remote_flock: true,
        ..auto
    };
    assert_eq!(served_by(&remote), Transport::Dev);
}

#[test]
fn an_idle_ring_takes_no_time() {
    let Some(mounted) = Mounted::ring(MemOptions::default()) else {
        return;
    };
    fs::write(mounted.path("file"), b"x").unwrap();
    let clock = SystemClock::default();
    let ring_ticks = || -> u64 {
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        let of_ring = tasks.filter_map(|task| {
            let path = task.unwrap().path();
            let name = fs::read_to_string(path.join("comm")).ok()?;
            let stat = fs::read_to_string(path.join("stat")).ok()?;
            let (_, fields) = stat.rsplit_once(')')?;
            // User and system time, in ticks of 10 ms.
            let ticks = fields.split_whitespace().skip(11).take(2);
            name.starts_with("fuse-")
                .then(|| ticks.filter_map(|t| t.parse::<u64>().ok()).sum::<u64>())
        });
        of_ring.sum()
    };
    // Other tests in this process also have rings, which may be busy: all are quiet at some time.
    let is_quiet = (0..20).any(|_| {
        let before = ring_ticks();
        clock.sleep(Duration::from_millis(500));
        ring_ticks() <= before
    });
    assert!(is_quiet, "its threads use the processor for nothing");
}

#[test]
fn large_and_small_requests_bring_the_same_bytes() {
    let Some(mounted) = Mounted::ring(MemOptions::default()) else {
        return;
    };
    let path = mounted.path("file");
    let bytes: Vec<u8> = (0..9_000_001u32).map(|i| (i % 251) as u8).collect();
    fs::File::create(&path).unwrap().write_all(&bytes).unwrap();
    let file = fs::File::open(&path).unwrap();
    // Again from the daemon, not from the kernel's pages.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    assert!(fs::read(&path).unwrap() == bytes);
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut piece = [0; 777];
    file.read_exact_at(&mut piece, 5_000_003).unwrap();
    assert_eq!(piece, bytes[5_000_003..][..777]);
}

#[test]
fn a_request_that_waits_holds_up_no_other() {
    let Some(mounted) = Mounted::ring(MemOptions {
        waits: true,
        ..MemOptions::default()
    }) else {
        return;
    };
    fs::create_dir(mounted.path("slow")).unwrap();
    // As many as the plan for this machine provides for.
    let cpus = std::thread::available_parallelism().unwrap().get();
    let count = if cpus <= 8 { 7 } else { 1 };
    // All on one processor, and thus in one queue. Threads inherit it from the thread that starts
    // them.
    let mut one = rustix::thread::CpuSet::new();
    let all = rustix::thread::sched_getaffinity(None).unwrap();
    let cpu = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu));
    one.set(cpu.unwrap());
    rustix::thread::sched_setaffinity(None, &one).unwrap();
    let waiting: Vec<_> = (0..count)
        .map(|number| {
            let path = mounted.path(&format!("slow/wait-{number}"));
            stitch_base::thread::spawn("waiter", move || path.exists()).unwrap()
        })
        .collect();
    crate::fixture::wait_until("they wait", || mounted.memory().waiting_count() == count);
    for number in 0..100 {
        fs::write(mounted.path(&format!("other-{number}")), b"y").unwrap();
    }
    assert_eq!(mounted.memory().waiting_count(), count, "they wait still");
    mounted.memory().end_waits();
    for waiter in waiting {
        assert!(!waiter.join().unwrap());
    }
}

#[test]
fn a_busy_ring_can_be_stopped() {
    let Some(mounted) = Mounted::ring(MemOptions::default()) else {
        return;
    };
    let mut file = fs::File::create(mounted.path("file")).unwrap();
    mounted.session.stopper().stop().unwrap();
    assert!(file.write_all(b"x").is_err(), "the connection is gone");
    let Mounted { session, .. } = mounted;
    session.join().unwrap();
}

#[test]
fn a_panic_by_a_ring_is_answered_and_ends_the_session() {
    let Some(mounted) = Mounted::ring(MemOptions {
        panics: true,
        ..MemOptions::default()
    }) else {
        return;
    };
    let error = fs::metadata(mounted.path("panic")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    let Mounted { session, .. } = mounted;
    assert!(matches!(session.join(), Err(SessionError::Panicked)));
}
