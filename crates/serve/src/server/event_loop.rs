//! The rounds of the server's thread.

use super::connection::{Connection, Ran, is_temporary};
use super::listener::{Listener, Stream};
use super::poll::{Interest, Poll};
use super::syncer::Marker;
use crate::ServeError;
use crate::service::Service;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Number of the socket whose end ends the server.
const STOP: u64 = 0;
/// Bytes that are read from one connection in a round, at most.
const READ_BYTES: usize = 256 << 10;
/// Least time between two passes that remove expired keys.
const RECLAIM_PAUSE_MS: u64 = 20;
/// The same while commits fail.
const FAILED_PAUSE_MS: u64 = 1000;
/// Time after which connections are taken again when the system had no descriptor to give.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// All that the thread has.
pub(super) struct EventLoop {
    service: Service,
    poll: Poll,
    /// Closed by the other side, it ends the loop.
    _stopped: UnixStream,
    /// Numbers from 1 on.
    listeners: Vec<Listener>,
    connections: BTreeMap<u64, Connection>,
    next_number: u64,
    clients_max: usize,
    /// The system had no descriptor for a new connection.
    is_accept_paused: bool,
    marker: Option<Marker>,
    buffer: Vec<u8>,
    /// Connections with replies of the round that runs.
    in_round: BTreeSet<u64>,
    /// Connections with commands that can run although nothing new was read.
    runnable: BTreeSet<u64>,
}

impl EventLoop {
    pub(super) fn new(
        service: Service,
        listeners: Vec<Listener>,
        stopped: UnixStream,
        marker: Option<Marker>,
        clients_max: usize,
    ) -> Result<Self, ServeError> {
        let poll = Poll::new().and_then(|poll| {
            poll.add(&stopped, STOP, Interest::Read)?;
            for (listener, number) in listeners.iter().zip(1..) {
                poll.add(listener, number, Interest::Read)?;
            }
            Ok(poll)
        });
        let poll = poll.map_err(|error| ServeError::host("epoll", error))?;
        Ok(Self {
            service,
            poll,
            _stopped: stopped,
            next_number: listeners.len() as u64 + 1,
            listeners,
            connections: BTreeMap::new(),
            clients_max,
            is_accept_paused: false,
            marker,
            buffer: vec![0; READ_BYTES],
            in_round: BTreeSet::new(),
            runnable: BTreeSet::new(),
        })
    }

    pub(super) fn run(mut self) {
        loop {
            let ready = match self.poll.wait(self.timeout()) {
                Ok(ready) => ready,
                Err(error) => {
                    tracing::error!(%error, "the server cannot wait for its clients, and ends");
                    return;
                }
            };
            if ready.contains(&STOP) {
                return;
            }
            if self.is_accept_paused {
                self.resume_accepting();
            }
            self.round(&ready);
        }
    }

    /// How long to wait at most.
    fn timeout(&self) -> Option<Duration> {
        if !self.runnable.is_empty() {
            return Some(Duration::ZERO);
        }
        let pause_ms = match self.service.is_reclaim_blocked() {
            true => FAILED_PAUSE_MS,
            false => RECLAIM_PAUSE_MS,
        };
        let expiry = self.service.until_expiry_ms();
        let expiry = expiry.map(|ms| Duration::from_millis(ms.max(pause_ms)));
        let accept = self.is_accept_paused.then_some(ACCEPT_PAUSE);
        expiry.into_iter().chain(accept).min()
    }

    fn round(&mut self, ready: &[u64]) {
        debug_assert!(self.in_round.is_empty(), "the last round has ended");
        self.service.begin_round();
        let mut runnable = std::mem::take(&mut self.runnable);
        for &number in ready {
            if number <= self.listeners.len() as u64 {
                self.accept(number);
            } else if let Some(connection) = self.connections.get_mut(&number) {
                match connection.interest {
                    Interest::Read => connection.read(&mut self.buffer),
                    Interest::Write => connection.write(),
                }
                runnable.insert(number);
            }
        }
        for number in runnable {
            self.run_commands(number);
        }
        self.service.reclaim();
        self.end_round();
    }

    fn run_commands(&mut self, number: u64) {
        loop {
            let Some(connection) = self.connections.get_mut(&number) else {
                return;
            };
            self.in_round.insert(number);
            match connection.run(&mut self.service) {
                Ran::All => return,
                Ran::OutputFull => {
                    self.runnable.insert(number);
                    return;
                }
                Ran::RoundFull => {
                    self.end_round();
                    self.service.begin_round();
                }
            }
        }
    }

    /// Commits, then sends the replies.
    fn end_round(&mut self) {
        let committed = self.service.commit();
        if let (Ok(true), Some(marker)) = (&committed, &self.marker) {
            marker.mark();
        }
        for number in std::mem::take(&mut self.in_round) {
            let Some(connection) = self.connections.get_mut(&number) else {
                continue;
            };
            match &committed {
                Ok(_) => connection.accept_round(),
                Err(error) => connection.fail_round(error),
            }
            connection.write();
            self.watch(number);
        }
    }

    /// Waits for the right thing on a connection's socket, or ends it.
    fn watch(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        if connection.is_over() {
            self.close(number);
            return;
        }
        let interest = match connection.has_output() {
            true => Interest::Write,
            false => Interest::Read,
        };
        if interest == Interest::Write {
            // It runs again when the socket has taken the replies.
            self.runnable.remove(&number);
        }
        if interest != connection.interest {
            connection.interest = interest;
            if let Err(error) = self.poll.change(&connection.stream, number, interest) {
                tracing::warn!(%error, "a connection is closed: it cannot be waited for");
                self.close(number);
            }
        }
    }

    fn close(&mut self, number: u64) {
        self.runnable.remove(&number);
        if let Some(connection) = self.connections.remove(&number) {
            self.service.disconnect(&connection.client);
        }
    }

    fn accept(&mut self, listener: u64) {
        let index = usize::try_from(listener - 1).expect("a listener's number is small");
        loop {
            match self.listeners[index].accept() {
                Ok(stream) => self.admit(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error)
                    if is_temporary(&error) || error.kind() == io::ErrorKind::ConnectionAborted => {
                }
                Err(error) => {
                    tracing::warn!(%error, "connections have to wait");
                    self.pause_accepting();
                    return;
                }
            }
        }
    }

    fn admit(&mut self, mut stream: Stream) {
        if self.connections.len() >= self.clients_max {
            // Whether it hears of it or not, the connection ends here.
            let _ = stream.write(b"-ERR max number of clients reached\r\n");
            return;
        }
        let number = self.next_number;
        if let Err(error) = self.poll.add(&stream, number, Interest::Read) {
            tracing::warn!(%error, "a connection is refused: it cannot be waited for");
            return;
        }
        debug_assert!(
            number > self.listeners.len() as u64,
            "behind those of listeners"
        );
        self.next_number += 1;
        let client = self.service.connect();
        self.connections
            .insert(number, Connection::new(stream, client));
    }

    fn pause_accepting(&mut self) {
        if std::mem::replace(&mut self.is_accept_paused, true) {
            return;
        }
        for listener in &self.listeners {
            if let Err(error) = self.poll.remove(listener) {
                tracing::warn!(%error, "a socket cannot be left alone");
            }
        }
    }

    fn resume_accepting(&mut self) {
        self.is_accept_paused = false;
        for (listener, number) in self.listeners.iter().zip(1..) {
            if let Err(error) = self.poll.add(listener, number, Interest::Read) {
                tracing::warn!(%error, "a socket takes no more connections");
            }
        }
    }
}
