//! Requests by `/dev/fuse`: read one, serve it, write the reply.
//!
//! Each worker has a descriptor of its own, cloned from the mount's, so that replies do not
//! contend. The kernel gives a waiting request to one waiting reader. Replies go through the
//! descriptor that the request came from.
//!
//! Beside io_uring ([`super::uring`]) one worker remains here, for FORGET and INTERRUPT. No process
//! waits for FORGET. So after one, this worker lets more of them gather, which then come in one
//! request.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno as OsError;
use stitch_base::clock::{Clock, SystemClock};
use stitch_base::sync::Arc;

use super::gate::Gate;
use super::idle_poll::IdlePolling;
use super::{End, Queue, ReplySender};
use crate::dispatch::{Dispatcher, Outcome};
use crate::wire::opcode::Opcode;
use crate::wire::reply::ReplyBuffer;
use crate::wire::request::Header;

/// Path of the device.
pub const DEVICE_PATH: &str = "/dev/fuse";
/// Space for a request's header and arguments beside its data.
const ARGUMENTS_SIZE: usize = 4096;
/// How long forgets gather if nothing else comes. An INTERRUPT waits as long at most.
const GATHERING: Duration = Duration::from_millis(2);

/// Opens the device.
///
/// # Errors
/// Those of open(2).
pub fn open_device() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(
        DEVICE_PATH,
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// Clones a descriptor of the mount, with a queue of replies of its own.
///
/// # Errors
/// Those of open(2) and ioctl(2).
pub fn clone_device(mounted: &OwnedFd) -> io::Result<OwnedFd> {
    let clone = open_device()?;
    let number = u32::try_from(mounted.as_raw_fd()).expect("an open descriptor is not negative");
    clone_ioctl(&clone, number)?;
    Ok(clone)
}

#[expect(
    unsafe_code,
    reason = "the ioctl that joins a descriptor to a mount has no wrapper"
)]
fn clone_ioctl(clone: &OwnedFd, number: u32) -> io::Result<()> {
    const CLONE: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<u32>(229, 0);
    // SAFETY: FUSE_DEV_IOC_CLONE reads one u32 through its argument and writes nothing; `Setter`
    // passes a pointer to one that lives through the call.
    unsafe { rustix::ioctl::ioctl(clone, rustix::ioctl::Setter::<CLONE, u32>::new(number)) }?;
    Ok(())
}

/// A descriptor through which replies are sent.
#[derive(Debug)]
pub struct DevSender {
    fd: Arc<OwnedFd>,
}

impl DevSender {
    /// Creates a sender for this descriptor.
    #[must_use]
    pub const fn new(fd: Arc<OwnedFd>) -> Self {
        Self { fd }
    }
}

impl ReplySender for DevSender {
    fn send(&self, message: &[u8]) -> io::Result<()> {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(self.fd.as_fd(), message))?;
        debug_assert_eq!(written, message.len(), "the device takes whole answers");
        Ok(())
    }
}

/// The result of a read of the device.
enum Received {
    Request(usize),
    Nothing,
    Unmounted,
}

/// One worker's descriptor and buffers.
#[derive(Debug)]
pub struct DevQueue {
    fd: Arc<OwnedFd>,
    sender: Arc<dyn ReplySender>,
    request: Box<[u8]>,
    reply: ReplyBuffer,
    gathers: bool,
    gate: Arc<Gate>,
    idle_polling: IdlePolling,
}

impl DevQueue {
    /// Creates a worker on `fd` for requests and replies with up to `data_max` bytes of data.
    #[must_use]
    pub fn new(fd: OwnedFd, data_max: usize) -> Self {
        let fd = Arc::new(fd);
        let sender = Arc::new(DevSender::new(Arc::clone(&fd)));
        // The kernel refuses to read into less than 8 KiB.
        let request = vec![0; (data_max + ARGUMENTS_SIZE).max(8192)].into_boxed_slice();
        Self {
            fd,
            sender,
            request,
            reply: ReplyBuffer::default(),
            gathers: false,
            gate: Arc::default(),
            idle_polling: IdlePolling::default(),
        }
    }

    /// Serves FORGET and INTERRUPT beside io_uring.
    pub(crate) const fn beside_a_ring(mut self) -> Self {
        self.gathers = true;
        self
    }

    /// Sends its requests through this gate.
    pub(crate) fn behind(mut self, gate: Arc<Gate>) -> Self {
        self.gate = gate;
        self
    }

    /// Lets its requests keep idle processors awake.
    pub(crate) fn awake(mut self, idle_polling: IdlePolling) -> Self {
        self.idle_polling = idle_polling;
        self
    }

    /// Touches the buffer, so that its pages are in memory. If the process is killed while the
    /// kernel copies a request into a missing page, the request fails.
    pub(crate) fn touch(&mut self) {
        self.request.fill(1);
    }

    /// The descriptor.
    #[must_use]
    pub const fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// Reads one request and returns its bytes; `None` at the end.
    ///
    /// # Errors
    /// When the device fails.
    pub fn receive_first(&mut self) -> io::Result<Option<&[u8]>> {
        loop {
            match self.receive()? {
                Received::Request(len_bytes) => return Ok(Some(&self.request[..len_bytes])),
                Received::Nothing => {}
                Received::Unmounted => return Ok(None),
            }
        }
    }

    fn receive(&mut self) -> io::Result<Received> {
        match rustix::io::read(&*self.fd, &mut *self.request) {
            Ok(len_bytes) => Ok(Received::Request(len_bytes)),
            // The request was interrupted before it was read, this thread was interrupted, or there
            // was no request.
            Err(OsError::NOENT | OsError::INTR | OsError::AGAIN) => Ok(Received::Nothing),
            Err(OsError::NODEV | OsError::CONNABORTED) => Ok(Received::Unmounted),
            Err(error) => Err(error.into()),
        }
    }
}

impl Queue for DevQueue {
    fn serve(&mut self, dispatcher: &Dispatcher) -> io::Result<End> {
        loop {
            let len_bytes = match self.receive()? {
                Received::Request(len_bytes) => len_bytes,
                Received::Nothing => continue,
                Received::Unmounted => return Ok(End::Unmounted),
            };
            let _pass = self.gate.enter();
            let request = &self.request[..len_bytes];
            let (message, poisoned) =
                match dispatcher.dispatch(request, &mut self.reply, &self.sender) {
                    Outcome::Reply(message) => (message, false),
                    Outcome::Poisoned(message) => (message, true),
                    Outcome::Silent => {
                        if self.gathers && is_forget(request) {
                            SystemClock::default().sleep(GATHERING);
                        }
                        continue;
                    }
                };
            self.idle_polling.note();
            if let Err(error) = self.sender.send(message) {
                match OsError::from_io_error(&error) {
                    // The caller was killed: no process waits for this reply.
                    Some(OsError::NOENT) => {}
                    Some(OsError::NODEV | OsError::CONNABORTED) => return Ok(End::Unmounted),
                    _ => tracing::warn!(%error, "the kernel refused a reply"),
                }
            }
            if poisoned {
                return Ok(End::Poisoned);
            }
        }
    }
}

fn is_forget(request: &[u8]) -> bool {
    let forgets = [Opcode::Forget as u32, Opcode::BatchForget as u32];
    Header::parse(request).is_ok_and(|header| forgets.contains(&header.opcode))
}
