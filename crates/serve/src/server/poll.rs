//! Waiting for sockets, by epoll(7).

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use std::io;
use std::time::Duration;

/// Events that are returned at once, at most.
const EVENTS_MAX: usize = 256;

/// What a socket is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interest {
    /// Something to read.
    Read,
    /// Room to write.
    Write,
}

impl Interest {
    const fn flags(self) -> EventFlags {
        match self {
            Self::Read => EventFlags::IN,
            Self::Write => EventFlags::OUT,
        }
    }
}

/// Sockets that are waited for, by numbers that the caller chooses.
#[derive(Debug)]
pub(super) struct Poll {
    epoll: OwnedFd,
}

impl Poll {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
        })
    }

    pub(super) fn add(&self, socket: impl AsFd, number: u64, interest: Interest) -> io::Result<()> {
        let data = EventData::new_u64(number);
        Ok(epoll::add(&self.epoll, socket, data, interest.flags())?)
    }

    pub(super) fn change(
        &self,
        socket: impl AsFd,
        number: u64,
        interest: Interest,
    ) -> io::Result<()> {
        let data = EventData::new_u64(number);
        Ok(epoll::modify(&self.epoll, socket, data, interest.flags())?)
    }

    pub(super) fn remove(&self, socket: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, socket)?)
    }

    /// Waits until a socket is ready, or for `timeout`. Returns the numbers of those that are.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> io::Result<Vec<u64>> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let nothing = Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        };
        let mut events = [nothing; EVENTS_MAX];
        let count = match epoll::wait(&self.epoll, &mut events[..], timeout.as_ref()) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        let events = &events[..count];
        Ok(events.iter().map(|event| event.data.u64()).collect())
    }
}
