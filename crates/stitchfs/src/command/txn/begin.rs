//! How transactions begin: isolation, and path locks that are taken first.

use super::super::{output, period};
use super::target::TxnMount;
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stitch_base::clock::{Clock, SystemClock};
use stitch_fuse::adapter::CONTROL_DIR;
use stitch_fuse::transactions::{self, BeginWith, Begun, Isolation, Lifetime};

/// Time between questions whether locks are free: at first, and at most.
const POLL_FIRST: Duration = Duration::from_millis(5);
const POLL_MAX: Duration = Duration::from_millis(100);

/// Options of `run` and `begin`.
#[derive(Debug, Args)]
pub(super) struct TxnHow {
    /// What the commit checks: `si`, that no other commit changed what was
    /// written; `ser`, also what was read: then it is as if all had run at once
    #[arg(long, value_enum, default_value = "si", value_name = "LEVEL")]
    isolation: Level,

    /// Lock a path and all below it until the end, against other transactions
    /// that lock a path which overlaps; can be given several times
    #[arg(long = "lock", value_name = "PATH")]
    locks: Vec<PathBuf>,

    /// Wait for the locks, at most this long if a time is given (90s, 5m, 2h);
    /// without this option locks that others hold are exit code 75
    #[arg(
        long,
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        requires = "locks",
        value_parser = period::parse
    )]
    lock_wait: Option<Option<Duration>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Level {
    Si,
    Ser,
}

impl TxnHow {
    fn isolation(&self) -> Isolation {
        match self.isolation {
            Level::Si => Isolation::Snapshot,
            Level::Ser => Isolation::Serializable,
        }
    }

    /// Reports whether a daemon that is older than these options can be asked.
    fn is_plain(&self) -> bool {
        self.isolation == Level::Si && self.locks.is_empty()
    }
}

/// Begins a transaction. Returns the names of others if they have its locks.
///
/// # Errors
/// It was not begun for another reason.
pub(super) fn begin(
    target: &TxnMount,
    name: &str,
    life: Lifetime,
    how: &TxnHow,
) -> Result<Result<u64, Vec<String>>> {
    let refused = |error| target.refused(missing_of(name, &error), &error);
    if how.is_plain() {
        return Ok(Ok(
            transactions::begin(target.dir(), name, life).map_err(refused)?
        ));
    }
    let locks = how.locks.iter().map(|path| lock_path(target.mount(), path));
    let locks: Vec<Vec<u8>> = locks.collect::<Result<_>>()?;
    let asked = BeginWith {
        name,
        life,
        isolation: how.isolation(),
        locks: &locks,
        waits: false,
    };
    let ask = |waits| {
        let begun = transactions::begin_with(target.dir(), &BeginWith { waits, ..asked });
        begun.map_err(refused)
    };
    let names = match ask(how.lock_wait.is_some())? {
        Begun::Number(number) => return Ok(Ok(number)),
        Begun::Locked(names) => names,
    };
    let Some(limit) = how.lock_wait else {
        return Ok(Err(names));
    };
    output::note(&format!(
        "{name}: waits for path locks of {}",
        names.join(", ")
    ));
    wait(&SystemClock::default(), limit, ask)
}

/// Returns the transaction that an error of a begin is about: the outer one, if that is not open.
fn missing_of<'n>(name: &'n str, error: &io::Error) -> &'n str {
    let outer = name.rsplit_once('/').map(|(outer, _)| outer);
    match Errno::from_io_error(error) {
        Some(Errno::NOENT) => outer.unwrap_or(name),
        _ => name,
    }
}

/// Asks until the locks are free, or the time is over.
fn wait(
    clock: &dyn Clock,
    limit: Option<Duration>,
    ask: impl Fn(bool) -> Result<Begun>,
) -> Result<Result<u64, Vec<String>>> {
    let end = limit.and_then(|limit| clock.monotonic().checked_add(limit));
    let mut pause = POLL_FIRST;
    loop {
        let left = end.map(|end| end.saturating_sub(clock.monotonic()));
        clock.sleep(left.map_or(pause, |left| left.min(pause)));
        pause = (pause * 2).min(POLL_MAX);
        let is_over = left.is_some_and(|left| left.is_zero());
        match ask(!is_over)? {
            Begun::Number(number) => return Ok(Ok(number)),
            Begun::Locked(names) if is_over => return Ok(Err(names)),
            Begun::Locked(_) => {}
        }
    }
}

/// Message that others have the locks.
pub(super) fn locked_text(name: &str, holders: &[String]) -> String {
    debug_assert!(!holders.is_empty(), "a locked path has holders");
    format!(
        "{name}: others have locks on its paths: {}; nothing was begun; wait with --lock-wait, or \
         try again later",
        holders.join(", ")
    )
}

/// The same for programs.
pub(super) fn locked_json(name: &str, holders: &[String]) -> Value {
    json!({ "name": name, "outcome": "locked", "holders": holders })
}

/// Returns a path from the mount point on, without a slash at either end. What is not there is what
/// its directory and name say.
fn lock_path(mount: &Path, given: &Path) -> Result<Vec<u8>> {
    let shown = given.display();
    let whole = given.canonicalize().or_else(|_| {
        let dir = match given.parent() {
            Some(dir) if dir != Path::new("") => dir,
            _ => Path::new("."),
        };
        let dir = dir
            .canonicalize()
            .with_context(|| format!("{shown}: its directory"))?;
        let name = given.file_name();
        let name = name.with_context(|| format!("{shown}: is no path to lock"))?;
        anyhow::Ok(dir.join(name))
    })?;
    let Ok(path) = whole.strip_prefix(mount) else {
        bail!(
            "{shown}: is not in {}, whose paths are locked",
            mount.display()
        );
    };
    ensure!(
        !path.starts_with(CONTROL_DIR),
        "{shown}: is a view; lock the path that it has in the file system"
    );
    Ok(path.as_os_str().as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use stitch_base::clock::ManualClock;

    #[test]
    fn an_outer_transaction_that_is_not_open_is_named() {
        let about = |name, errno: Errno| missing_of(name, &errno.into()).to_owned();
        assert_eq!(about("a/b/c", Errno::NOENT), "a/b");
        assert_eq!(about("a", Errno::NOENT), "a");
        assert_eq!(about("a/b", Errno::EXIST), "a/b");
    }

    #[test]
    fn paths_are_from_the_mount_point_on() {
        let dir = tempfile::tempdir().unwrap();
        let mount = dir.path().canonicalize().unwrap();
        std::fs::create_dir(mount.join("a")).unwrap();
        let path = |name: &str| lock_path(&mount, &mount.join(name));
        assert_eq!(path("").unwrap(), b"");
        assert_eq!(path("a").unwrap(), b"a");
        assert_eq!(path("a/../a/new").unwrap(), b"a/new");
        assert!(path("new/new").is_err(), "its directory is not there");
        assert!(
            path(".stitchfs")
                .unwrap_err()
                .to_string()
                .contains("is a view")
        );
        let outside = lock_path(&mount.join("a"), &mount).unwrap_err();
        assert!(outside.to_string().contains("is not in"), "{outside}");
    }

    #[test]
    fn the_line_is_left_when_the_time_is_over() {
        let clock = ManualClock::default();
        let asked = Cell::new(0);
        let ask = |free_at: u32| {
            let asked = &asked;
            let clock = &clock;
            move |waits: bool| {
                asked.set(asked.get() + 1);
                clock.advance(Duration::from_secs(1));
                let is_free = asked.get() == free_at;
                assert!(is_free || waits || asked.get() > 3, "it stays in the line");
                Ok(match is_free {
                    true => Begun::Number(7),
                    false => Begun::Locked(vec!["first".to_owned()]),
                })
            }
        };
        let limit = Some(Duration::from_secs(3));
        let holders = wait(&clock, limit, ask(0)).unwrap().unwrap_err();
        assert_eq!((holders, asked.get()), (vec!["first".to_owned()], 4));
        asked.set(0);
        assert_eq!(wait(&clock, None, ask(2)).unwrap().unwrap(), 7);
    }

    #[test]
    fn holders_are_named() {
        let holders = ["a".to_owned(), "b".to_owned()];
        let text = locked_text("work", &holders);
        assert!(text.contains("a, b; nothing was begun"), "{text}");
        let expected = json!({ "name": "work", "outcome": "locked", "holders": ["a", "b"] });
        assert_eq!(locked_json("work", &holders), expected);
    }
}
