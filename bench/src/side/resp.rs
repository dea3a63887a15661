//! Servers of the Redis protocol: `stitchfs serve` and `redis-server`, each with its store in the
//! side's folder, and `redis-benchmark` as their client, over a socket.
//!
//! A server ends when this process does, however that ends (`setpriv --pdeathsig`).

use super::{OURS_RESP, OpenOptions, Rows, Side, View, store_path};
use crate::disk::output;
use crate::fs::{command, tool};
use crate::process;
use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use stitch_base::clock::{Clock as _, SystemClock};
use stitch_base::sync::Mutex;

/// A server that does not answer after so long has failed.
const START_MAX: Duration = Duration::from_secs(20);
/// The server's socket, in its directory: a path of a socket has at most 107 bytes.
const SOCKET: &str = "kv.sock";
/// Time between two attempts to reach a server that starts.
const START_PAUSE: Duration = Duration::from_millis(5);

/// The least that `stitchfs serve` takes.
const MEMORY_BYTES_MIN: u64 = 64 << 20;

/// Why a side of servers cannot be run; `None` if it can.
pub(super) fn why_not(name: &str) -> Option<String> {
    let server = match name {
        OURS_RESP => tool::why_missing(),
        _ => command::why_missing("redis-server"),
    };
    server
        .or_else(|| command::why_missing("redis-benchmark"))
        .or_else(|| command::why_missing("setpriv"))
}

/// What `redis-benchmark` sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// `SET` or `GET`, in lower case.
    pub(crate) command: &'static str,
    /// Connections.
    pub(crate) clients: u64,
    /// Commands that a connection sends before it waits for the first reply.
    pub(crate) pipeline: u64,
    /// Commands of all connections.
    pub(crate) count: u64,
    /// Keys, of which each command names one at random.
    pub(crate) keys: u64,
    /// Bytes of a value.
    pub(crate) value_bytes: usize,
}

/// A server that runs.
pub(crate) struct RespServer {
    server: Mutex<Child>,
    dir: PathBuf,
}

impl RespServer {
    /// Starts a server and waits until it answers.
    pub(crate) fn open(name: &str, options: &OpenOptions) -> Result<Self> {
        let dir = store_path(&options.dir, name);
        fs::create_dir_all(&dir)?;
        let mut start = match name {
            OURS_RESP => ours(&dir, options)?,
            _ => redis(options),
        };
        let log = fs::File::create(dir.join("log"))?;
        let server = start
            .current_dir(&dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start the server of {name}"))?;
        let side = Self {
            server: Mutex::new(server),
            dir,
        };
        side.wait_until_it_answers()?;
        Ok(side)
    }

    fn wait_until_it_answers(&self) -> Result<()> {
        let clock = SystemClock::default();
        // The path of the folder may be too long for a socket.
        let folder = fs::File::open(&self.dir)?;
        let number = std::os::fd::AsRawFd::as_raw_fd(&folder);
        let path = Path::new("/proc/self/fd").join(number.to_string());
        while UnixStream::connect(path.join(SOCKET)).is_err() {
            if let Some(status) = self.server.lock().try_wait()? {
                bail!("the server ended: {status}: {}", self.log());
            }
            ensure!(clock.monotonic() < START_MAX, "no answer: {}", self.log());
            clock.sleep(START_PAUSE);
        }
        Ok(())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }
}

/// Returns the command that serves a new store of ours.
fn ours(dir: &Path, options: &OpenOptions) -> Result<Command> {
    let size = options.volume_bytes.to_string();
    let mkfs = ["mkfs", "--size", &size, "store.stitch"];
    output(tool::stitchfs(&mkfs).current_dir(dir))?;
    let memory = options.scale.memory_bytes.max(MEMORY_BYTES_MIN).to_string();
    let mut run = ended_with_us(tool::stitchfs(&[]).get_program());
    run.args(["serve", "--socket", SOCKET, "--memory", &memory]);
    run.args(["--appendfsync", when(options), "store.stitch"]);
    Ok(run)
}

/// Returns the command that serves an empty folder with Redis: all commands in its append-only
/// file, no snapshots beside it.
fn redis(options: &OpenOptions) -> Command {
    let mut run = ended_with_us("redis-server".as_ref());
    run.args(["--port", "0", "--unixsocket", SOCKET, "--save", ""]);
    run.args(["--appendonly", "yes", "--appendfsync", when(options)]);
    run
}

/// Returns the value of `appendfsync`.
const fn when(options: &OpenOptions) -> &'static str {
    match options.is_synced {
        true => "always",
        false => "everysec",
    }
}

/// Returns a command that the kernel kills when this process ends.
fn ended_with_us(program: &std::ffi::OsStr) -> Command {
    let mut run = Command::new("setpriv");
    run.args(["--pdeathsig", "KILL", "--"]).arg(program);
    run
}

impl Side for RespServer {
    fn load(&self, load: &Load) -> Result<BTreeMap<String, f64>> {
        let text = |number: u64| number.to_string();
        let mut run = Command::new("redis-benchmark");
        run.current_dir(&self.dir).args(["-s", SOCKET]);
        run.args(["-t", load.command, "--csv"]);
        run.args(["-c", &text(load.clients), "-P", &text(load.pipeline)]);
        run.args(["-n", &text(load.count), "-r", &text(load.keys)]);
        run.args(["-d", &text(load.value_bytes as u64)]);
        let printed = output(&mut run)?;
        let mut figures = figures_of(&printed)
            .with_context(|| format!("redis-benchmark printed {printed:?}: {}", self.log()))?;
        let peak = process::peak_rss_bytes_of(self.server.lock().id());
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        figures.insert("server_peak_bytes".to_owned(), peak as f64);
        Ok(figures)
    }

    fn write(&self, _writes: &[super::Write<'_>], _sync: bool) -> Result<()> {
        bail!("this side is reached by a client")
    }

    /// The server syncs.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn get(&self, _key: &[u8], _see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        bail!("this side is reached by a client")
    }

    fn scan(&self, _start: &[u8], _rows: &mut Rows<'_>) -> Result<()> {
        bail!("this side is reached by a client")
    }

    fn snapshot(&self) -> Result<Box<dyn View + '_>> {
        bail!("this side is reached by a client")
    }

    fn space_bytes(&self) -> Result<u64> {
        process::allocated_bytes(&self.dir)
    }

    fn close(&self) -> Result<()> {
        let mut server = self.server.lock();
        kill_process(Pid::from_child(&server), Signal::TERM)?;
        let status = server.wait()?;
        ensure!(status.success(), "the server: {status}: {}", self.log());
        Ok(())
    }
}

impl Drop for RespServer {
    fn drop(&mut self) {
        // An error says that it has ended, as after `close`.
        let mut server = self.server.lock();
        let _ = server.kill();
        let _ = server.wait();
    }
}

/// Returns what `redis-benchmark --csv` printed for its one test: a line of names, then a line of
/// figures, each in quotation marks.
fn figures_of(printed: &str) -> Option<BTreeMap<String, f64>> {
    let words = |line: &str| -> Vec<String> {
        let words = line.split(',');
        words
            .map(|word| word.trim_matches('"').to_owned())
            .collect()
    };
    let mut lines = printed.lines().filter(|line| line.starts_with('"'));
    let (names, figures) = (words(lines.next()?), words(lines.next()?));
    let pairs = names.into_iter().zip(figures).skip(1);
    let figures: BTreeMap<String, f64> = pairs
        .map(|(name, figure)| Some((name, figure.parse().ok()?)))
        .collect::<Option<_>>()?;
    figures.contains_key("rps").then_some(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_by_name() {
        let printed = "\"test\",\"rps\",\"avg_latency_ms\",\"p50_latency_ms\"\n\
                       \"SET\",\"1000.50\",\"0.9\",\"0.7\"\n";
        let figures = figures_of(printed).unwrap();
        assert!((figures["rps"] - 1000.5).abs() < 1e-9);
        assert_eq!(figures.len(), 3);
        assert_eq!(figures_of("ERR unknown command\n"), None);
        assert_eq!(figures_of("\"test\",\"rps\"\n\"SET\",\"fast\"\n"), None);
    }
}
