//! Commands against the replies that Redis gives.

mod branches;
mod commands;
mod connections;
mod expiries;
mod many_keys;
mod merges;
mod random;
mod read_only;
mod rounds;

use crate::ServerOptions;
use crate::client::ClientState;
use crate::resp::{Decoded, Decoder, Limits};
use crate::service::{ReplyKind, Service, SyncPolicy};
use std::time::Duration;
use stitch_base::clock::ManualClock;
use stitch_base::sync::Arc;
use stitch_kv::{Engine, ModelEngine, UpsertRegistry};

/// A service with one client and a clock that stands still.
pub(crate) struct Desk {
    pub(crate) engine: Arc<ModelEngine>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) service: Service,
    pub(crate) client: ClientState,
}

impl Desk {
    pub(crate) fn new() -> Self {
        Self::on(Arc::new(ModelEngine::new(UpsertRegistry::default())))
    }

    pub(crate) fn on(engine: Arc<ModelEngine>) -> Self {
        Self::with_recent(engine, 1 << 20)
    }

    /// With so many bytes of rows in memory.
    pub(crate) fn with_recent(engine: Arc<ModelEngine>, recent_bytes: u64) -> Self {
        let clock = Arc::new(ManualClock::default());
        clock.advance(Duration::from_secs(1000));
        let shared: Arc<dyn Engine> = Arc::clone(&engine) as _;
        let options = ServerOptions {
            sync: SyncPolicy::Always,
            clock: Arc::clone(&clock) as _,
            recent_bytes,
            ..ServerOptions::default()
        };
        let mut service = Service::open(shared, &options).unwrap();
        let client = service.connect();
        Self {
            engine,
            clock,
            service,
            client,
        }
    }

    /// Runs a line as a command of the one client, in a round of its own.
    pub(crate) fn run(&mut self, line: &str) -> String {
        self.service.begin_round();
        let reply = run(&mut self.service, &mut self.client, line);
        self.service.commit().unwrap();
        reply
    }

    /// Runs commands, each with the reply that it is to have.
    pub(crate) fn check(&mut self, lines: &[(&str, &str)]) {
        for (line, expected) in lines {
            assert_eq!(self.run(line), *expected, "{line}");
        }
    }

    pub(crate) fn advance(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }
}

/// Runs a line as a command of a client.
pub(crate) fn run(service: &mut Service, client: &mut ClientState, line: &str) -> String {
    let input = format!("{line}\r\n").into_bytes();
    let mut decoder = Decoder::default();
    let decoded = decoder.decode(&input, Limits::FULL);
    assert_eq!(decoded, Decoded::Command(input.len()), "{line}");
    let args: Vec<&[u8]> = decoder.args(&input).collect();
    let mut out = Vec::new();
    let kind = service.execute(client, &args, &mut out);
    assert_eq!(kind == ReplyKind::None, out.is_empty());
    let mut rest = out.as_slice();
    let shown = show(&mut rest);
    assert!(
        rest.is_empty(),
        "{line}: one reply, and not {}",
        out.escape_ascii()
    );
    shown
}

/// Shows a reply in short: `OK`, `(1)`, `abc`, `nil`, `[a b]`, `{a b}`, `!ERR text`, `~1.5`.
pub(crate) fn show(bytes: &mut &[u8]) -> String {
    let end = bytes.windows(2).position(|two| two == b"\r\n").unwrap();
    let line = String::from_utf8_lossy(&bytes[..end]).into_owned();
    *bytes = &bytes[end + 2..];
    let (kind, rest) = line.split_at(1);
    match (kind, rest) {
        ("+", text) => text.to_owned(),
        ("-", text) => format!("!{text}"),
        (":", number) => format!("({number})"),
        (",", number) => format!("~{number}"),
        ("_", _) | ("$" | "*", "-1") => "nil".to_owned(),
        ("$", len) => {
            let len: usize = len.parse().unwrap();
            let text = bytes[..len].escape_ascii().to_string();
            *bytes = bytes[len..].strip_prefix(b"\r\n").unwrap();
            if text.is_empty() {
                "\"\"".to_owned()
            } else {
                text
            }
        }
        ("*", count) => {
            let count: usize = count.parse().unwrap();
            let parts: Vec<String> = (0..count).map(|_| show(bytes)).collect();
            format!("[{}]", parts.join(" "))
        }
        ("%", count) => {
            let count: usize = count.parse().unwrap();
            let parts: Vec<String> = (0..2 * count).map(|_| show(bytes)).collect();
            format!("{{{}}}", parts.join(" "))
        }
        _ => panic!("no reply begins so: {line}"),
    }
}
