//! Where events of the libraries go: to a file, to the terminal in the foreground, to the system's
//! log in the background (`/dev/log`, or `/dev/kmsg` as root where no daemon serves it). A mount in
//! good health writes nothing.
//!
//! The environment variable `STITCHFS_LOG` chooses what is written: `debug`,
//! `warn,stitch_vt=trace`.

use super::output;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use stitch_base::sync::{Arc, Mutex};
use tracing::Level;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

const FILTER: &str = "STITCHFS_LOG";
const DEFAULT: &str = "warn";
const SYSLOG: &str = "/dev/log";
const KERNEL_LOG: &str = "/dev/kmsg";
/// Facility `daemon` of syslog(3), where severities are added.
const FACILITY_DAEMON: u8 = 3 << 3;

/// Where to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target<'a> {
    /// Appended to this file.
    File(&'a Path),
    /// Standard error.
    Terminal,
    /// The system's log, if there is one.
    System,
}

/// Subscribes to events. To be called once.
///
/// # Errors
/// When the file cannot be opened.
pub(super) fn subscribe(target: Target<'_>) -> Result<()> {
    let filter = parse(std::env::var(FILTER).ok().as_deref()).unwrap_or_else(|error| {
        output::note(&format!("{error:#}; only warnings are logged"));
        EnvFilter::new(DEFAULT)
    });
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false);
    // A second subscriber is refused; the first one serves as well.
    let _ = match target {
        Target::File(path) => {
            let mut options = File::options();
            // It names files that other users cannot see.
            options.append(true).create(true).mode(0o600);
            // A terminal must not become that of the daemon, which leads a session.
            options.custom_flags(libc::O_NOCTTY);
            let file = options.open(path);
            let file = file.with_context(|| format!("cannot write to {}", path.display()))?;
            builder
                .with_writer(SharedFile(Arc::new(Mutex::new(file))))
                .try_init()
        }
        Target::Terminal => builder.with_writer(io::stderr).try_init(),
        Target::System => builder.without_time().with_writer(SystemLog).try_init(),
    };
    Ok(())
}

/// Reads the filter of events.
fn parse(text: Option<&str>) -> Result<EnvFilter> {
    let text = text.unwrap_or(DEFAULT);
    EnvFilter::builder()
        .parse(text)
        .with_context(|| format!("{FILTER}={text} cannot be read"))
}

/// A file that several threads write whole lines to.
#[derive(Clone)]
struct SharedFile(Arc<Mutex<File>>);

impl Write for SharedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().flush()
    }
}

impl<'a> MakeWriter<'a> for SharedFile {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Makes a writer for each event that goes to the system's log.
#[derive(Clone, Copy, Debug)]
struct SystemLog;

impl<'a> MakeWriter<'a> for SystemLog {
    type Writer = SystemLine;

    fn make_writer(&'a self) -> SystemLine {
        SystemLine::new(Level::INFO)
    }

    fn make_writer_for(&'a self, meta: &tracing::Metadata<'_>) -> SystemLine {
        SystemLine::new(*meta.level())
    }
}

/// One event on its way to the system's log: to the daemon behind `/dev/log`, or to the kernel's
/// own log where none runs, which only root may write to.
struct SystemLine {
    priority: u8,
    socket: Option<UnixDatagram>,
}

impl SystemLine {
    fn new(level: Level) -> Self {
        let socket = UnixDatagram::unbound().ok();
        let socket = socket.filter(|s| s.connect(SYSLOG).is_ok());
        Self {
            priority: FACILITY_DAEMON | severity(level),
            socket,
        }
    }
}

/// Returns the severity that syslog(3) has for a level.
const fn severity(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

impl Write for SystemLine {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let head = format!("<{}>stitchfs[{}]: ", self.priority, std::process::id());
        let mut line = head.into_bytes();
        line.extend_from_slice(bytes.trim_ascii_end());
        // A log that takes nothing must not stop a file system.
        let _ = match &self.socket {
            Some(socket) => socket.send(&line).map(drop),
            None => File::options()
                .write(true)
                .open(KERNEL_LOG)
                .and_then(|mut log| log.write_all(&line)),
        };
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_the_numbers_of_syslog() {
        let numbers = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG];
        assert_eq!(numbers.map(severity), [3, 4, 6, 7]);
    }

    #[test]
    fn a_filter_that_cannot_be_read_is_named() {
        assert!(parse(None).is_ok());
        assert!(parse(Some("warn,stitch_vt=trace")).is_ok());
        let error = parse(Some("stitch_vt=loud")).expect_err("there is no such level");
        assert!(error.to_string().contains("stitch_vt=loud"), "{error}");
        let error = parse(Some("wrn!,=")).expect_err("it is no filter");
        assert!(error.to_string().contains(FILTER), "{error}");
    }
}
