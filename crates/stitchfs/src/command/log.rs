//! Where events of the libraries go: to a file, to the terminal in the foreground, to the system's
//! log in the background. A mount in good health writes nothing.
//!
//! The environment variable `STITCHFS_LOG` chooses what is written: `debug`, `warn,stitch_vt=trace`.

use anyhow::{Context, Result};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use stitch_base::sync::{Arc, Mutex};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

const FILTER: &str = "STITCHFS_LOG";
const SYSLOG: &str = "/dev/log";
/// Facility `daemon`, severity `warning`.
const PRIORITY: &str = "<28>";

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
    let filter = EnvFilter::try_from_env(FILTER).unwrap_or_else(|_| EnvFilter::new("warn"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false);
    // A second subscriber is refused; the first one serves as well.
    let _ = match target {
        Target::File(path) => {
            let mut options = File::options();
            // It names files that other users cannot see.
            options.append(true).create(true).mode(0o600);
            let file = options.open(path);
            let file = file.with_context(|| format!("cannot write to {}", path.display()))?;
            builder
                .with_writer(SharedFile(Arc::new(Mutex::new(file))))
                .try_init()
        }
        Target::Terminal => builder.with_writer(io::stderr).try_init(),
        Target::System => builder
            .without_time()
            .with_writer(SystemLog::connect)
            .try_init(),
    };
    Ok(())
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

/// One event on its way to the system's log.
struct SystemLog {
    socket: Option<UnixDatagram>,
}

impl SystemLog {
    fn connect() -> Self {
        let socket = UnixDatagram::unbound().ok();
        let socket = socket.filter(|s| s.connect(SYSLOG).is_ok());
        Self { socket }
    }
}

impl Write for SystemLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(socket) = &self.socket {
            let mut line = format!("{PRIORITY}stitchfs[{}]: ", std::process::id()).into_bytes();
            line.extend_from_slice(bytes.trim_ascii_end());
            // A log that takes nothing must not stop a file system.
            let _ = socket.send(&line);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
