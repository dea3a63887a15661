//! Runs commands and ends rounds: the server without sockets.

use crate::client::ClientState;
use crate::command::{self, AT_ONCE, Call, Cursors, NO_AUTH, READ, Spec, WRITE};
use crate::error::{CommandError, ServeError, store_reply};
use crate::gate::Changes;
use crate::keyspace::Keyspace;
use crate::resp::Reply;
use crate::server::IsReadOnly;
use crate::watch::ClientId;
use crate::{RoundGate, ServerOptions};
use stitch_base::clock::Clock;
use stitch_base::sync::Arc;
use stitch_kv::Engine;

/// When what was replied is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncPolicy {
    /// Before it is replied: it survives a power cut.
    Always,
    /// A second later: it survives a killed process at once.
    #[default]
    EverySecond,
}

/// Keys that one pass of the background removes.
const RECLAIM_COUNT: usize = 256;
/// The command that runs those that wait.
const EXEC: &str = "EXEC";

/// What commands see beside the keys.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) password: Option<Vec<u8>>,
    pub(crate) sync: SyncPolicy,
    pub(crate) cursors: Cursors,
    pub(crate) started_ms: u64,
    /// Clients that are connected.
    pub(crate) clients: u64,
    pub(crate) connections: u64,
    pub(crate) commands: u64,
    /// Batches that were committed.
    pub(crate) rounds: u64,
    pub(crate) expired: u64,
    /// The last commit has failed.
    pub(crate) has_failed: bool,
}

/// What a command's reply depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyKind {
    /// There is no reply.
    None,
    /// The connection alone.
    Connection,
    /// Keys: it is void if the round's commit fails.
    Keys,
}

/// The keys of a store and the rules of the protocol.
pub(crate) struct Service {
    keys: Keyspace,
    shared: Shared,
    clock: Arc<dyn Clock>,
    gate: Arc<RoundGate>,
    read_only: Option<IsReadOnly>,
    /// Whether keys are read-only in this round, once that was asked.
    is_read_only: Option<bool>,
    /// What others have changed and could not be followed yet.
    unfollowed: Option<Changes>,
    /// What a command of this round met in the store: the round must not be committed.
    failure: Option<ServeError>,
    last_client: u64,
}

impl Service {
    /// # Errors
    /// As [`Keyspace::open`].
    pub(crate) fn open(
        engine: Arc<dyn Engine>,
        options: &ServerOptions,
    ) -> Result<Self, ServeError> {
        let now_ms = now_ms(&*options.clock);
        let mut keys = Keyspace::open(engine, options.branch, options.recent_bytes)?;
        keys.begin_round(now_ms);
        let shared = Shared {
            password: options.password.clone(),
            sync: options.sync,
            cursors: Cursors::default(),
            started_ms: now_ms,
            clients: 0,
            connections: 0,
            commands: 0,
            rounds: 0,
            expired: 0,
            has_failed: false,
        };
        Ok(Self {
            keys,
            shared,
            clock: Arc::clone(&options.clock),
            gate: Arc::clone(&options.gate),
            read_only: options.read_only.clone(),
            is_read_only: None,
            unfollowed: None,
            failure: None,
            last_client: 0,
        })
    }

    /// Admits a client.
    pub(crate) const fn connect(&mut self) -> ClientState {
        self.last_client += 1;
        self.shared.clients += 1;
        self.shared.connections += 1;
        ClientState::new(ClientId(self.last_client), self.shared.password.is_none())
    }

    /// Forgets a client.
    pub(crate) fn disconnect(&mut self, client: &ClientState) {
        debug_assert!(self.shared.clients > 0, "the client is one of them");
        self.shared.clients -= 1;
        self.keys.watches.unwatch(client.id);
    }

    /// Begins a round: its commands see this moment. Waits while others write the rows.
    pub(crate) fn begin_round(&mut self) {
        let changes = self.gate.enter();
        self.is_read_only = None;
        let changes = match self.unfollowed.take() {
            // Also what could not be read at an earlier round.
            Some(_) => Some(Changes::All),
            None => changes,
        };
        if let Some(changes) = changes
            && let Err(error) = self.keys.follow(&changes)
        {
            // No command may go by what was known before.
            self.failure.get_or_insert(error);
            self.unfollowed = Some(changes);
        }
        self.keys.begin_round(now_ms(&*self.clock));
    }

    /// Reports whether the round should end before a command of so many bytes runs.
    pub(crate) fn is_round_full(&self, client: &ClientState, command_bytes: usize) -> bool {
        let queued = client.queue.as_ref().map_or(0, |queue| queue.bytes());
        self.failure.is_some() || self.keys.is_round_full(command_bytes + queued)
    }

    /// Runs a command, or queues it, and appends its reply.
    pub(crate) fn execute(
        &mut self,
        client: &mut ClientState,
        args: &[&[u8]],
        out: &mut Vec<u8>,
    ) -> ReplyKind {
        let Some(name) = args.first() else {
            return ReplyKind::None;
        };
        self.shared.commands += 1;
        let mut reply = Reply::new(out, client.protocol);
        let admitted = Self::admit(client, name, args);
        let admitted = admitted.and_then(|spec| self.check_mode(client, spec));
        let spec = match admitted.and_then(|spec| self.check_lengths(client, spec, args)) {
            Ok(spec) => spec,
            Err(error) => {
                if let Some(queue) = &mut client.queue {
                    queue.fail();
                }
                reply.error(&error.reply());
                return ReplyKind::Connection;
            }
        };
        if let Some(queue) = client.queue.as_mut().filter(|_| spec.flags & AT_ONCE == 0) {
            if queue.push(args, spec.flags & WRITE != 0) {
                reply.simple("QUEUED");
            } else {
                reply.error("ERR the transaction is too long");
            }
            return ReplyKind::Connection;
        }
        self.run(spec, client, args, &mut reply)
    }

    /// Finds a command that the client may run.
    fn admit(
        client: &ClientState,
        name: &[u8],
        args: &[&[u8]],
    ) -> Result<&'static Spec, CommandError> {
        let spec = command::find(name);
        if !client.is_authenticated && spec.is_none_or(|spec| spec.flags & NO_AUTH == 0) {
            return Err(CommandError::text("NOAUTH Authentication required."));
        }
        let spec = spec.ok_or_else(|| unknown_command(name, &args[1..]))?;
        if !spec.takes(args.len()) {
            let name = spec.name.to_ascii_lowercase();
            let text = format!("ERR wrong number of arguments for '{name}' command");
            return Err(CommandError::Client(text.into()));
        }
        Ok(spec)
    }

    /// Refuses a command that changes keys while they are read-only. `EXEC` is not refused, but
    /// runs none of the commands that wait if one of them is.
    fn check_mode(
        &mut self,
        client: &mut ClientState,
        spec: &'static Spec,
    ) -> Result<&'static Spec, CommandError> {
        if spec.flags & WRITE == 0 {
            return Ok(spec);
        }
        if spec.name == EXEC {
            let queue = client.queue.as_mut().filter(|queue| queue.writes());
            if let Some(queue) = queue
                && self.is_read_only()
            {
                queue.fail();
            }
            return Ok(spec);
        }
        match self.is_read_only() {
            true => Err(CommandError::READ_ONLY),
            false => Ok(spec),
        }
    }

    /// Refuses a command of a transaction that names a key, or has a value, longer than any can be:
    /// `EXEC` would run the other commands.
    fn check_lengths(
        &self,
        client: &ClientState,
        spec: &'static Spec,
        args: &[&[u8]],
    ) -> Result<&'static Spec, CommandError> {
        let is_queued = client.queue.is_some() && spec.flags & AT_ONCE == 0;
        if is_queued && spec.flags & WRITE != 0 {
            for key in spec.keys_of(args) {
                self.keys.check_name(key)?;
            }
            for arg in &args[1..] {
                self.keys.check_value_len(arg.len())?;
            }
        }
        Ok(spec)
    }

    /// Reports whether keys are read-only: the same for a whole round.
    fn is_read_only(&mut self) -> bool {
        let Some(read_only) = &self.read_only else {
            return false;
        };
        *self.is_read_only.get_or_insert_with(|| read_only())
    }

    fn run(
        &mut self,
        spec: &Spec,
        client: &mut ClientState,
        args: &[&[u8]],
        reply: &mut Reply<'_>,
    ) -> ReplyKind {
        let position = reply.position();
        let mut call = Call {
            args,
            keys: &mut self.keys,
            client,
            shared: &mut self.shared,
            reply,
        };
        if let Err(error) = (spec.run)(&mut call) {
            reply.rewind(position);
            reply.error(&error.reply());
            if let CommandError::Store(error) = error {
                self.failure.get_or_insert(error);
            }
        }
        self.keys.end_command();
        match spec.flags & (READ | WRITE) {
            0 => ReplyKind::Connection,
            _ => ReplyKind::Keys,
        }
    }

    /// Ends a round: what its commands changed becomes one batch. Returns whether there was one.
    ///
    /// # Errors
    /// The text of the reply that every command of the round gets whose reply depends on keys.
    /// Nothing of the round was changed then.
    ///
    /// # Durability
    /// By [`SyncPolicy`].
    pub(crate) fn commit(&mut self) -> Result<bool, String> {
        let committed = match self.failure.take() {
            Some(error) => {
                self.keys.discard();
                Err(error)
            }
            None if !self.keys.has_changes() => {
                self.gate.leave();
                return Ok(false);
            }
            // Commands were refused: these are keys that have expired.
            None if self.is_read_only() => {
                self.keys.discard();
                self.gate.leave();
                return Ok(false);
            }
            None => self.keys.commit(self.shared.sync == SyncPolicy::Always),
        };
        self.gate.leave();
        self.shared.has_failed = committed.is_err();
        self.shared.rounds += 1;
        committed.map(|()| true).map_err(|error| {
            tracing::warn!(%error, "a batch of commands failed");
            store_reply(&error)
        })
    }

    /// Reports whether expired keys cannot be removed now: the last commit has failed, or keys are
    /// read-only.
    pub(crate) const fn is_reclaim_blocked(&self) -> bool {
        self.shared.has_failed || matches!(self.is_read_only, Some(true))
    }

    /// Milliseconds until a key expires, at least; `None` while none will.
    pub(crate) const fn until_expiry_ms(&self) -> Option<u64> {
        self.keys.until_expiry_ms()
    }

    /// Removes keys whose time is over, not more than a round should. What failed is tried again
    /// later.
    pub(crate) fn reclaim(&mut self) {
        if self.keys.until_expiry_ms() == Some(0) && self.is_read_only() {
            return;
        }
        match self.keys.reclaim(RECLAIM_COUNT) {
            Ok(count) => self.shared.expired += count as u64,
            Err(CommandError::Store(error)) => {
                self.failure.get_or_insert(error);
            }
            Err(CommandError::Client(_)) => {}
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.gate.leave();
    }
}

fn now_ms(clock: &dyn Clock) -> u64 {
    u64::try_from(clock.now().0 / 1_000_000).unwrap_or(0)
}

fn unknown_command(name: &[u8], args: &[&[u8]]) -> CommandError {
    const SHOWN_MAX: usize = 128;
    let shown =
        |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_MAX)]).into_owned();
    let mut text = format!(
        "ERR unknown command '{}', with args beginning with: ",
        shown(name)
    );
    for arg in args {
        if text.len() > 2 * SHOWN_MAX {
            break;
        }
        text.push_str(&format!("'{}' ", shown(arg)));
    }
    CommandError::Client(text.into())
}
