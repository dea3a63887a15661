//! Messages between a holder and its daemon, with descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno as OsError;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// Most bytes of a message.
const MESSAGE_SIZE_MAX: usize = 64 << 10;
/// Most descriptors of a message.
pub const DESCRIPTORS_MAX: usize = 64;

/// One end of a connection that keeps message boundaries.
#[derive(Debug)]
pub struct Link(OwnedFd);

/// A received message.
#[derive(Debug)]
pub struct Message {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The descriptors, closed when a program is executed.
    pub descriptors: Vec<OwnedFd>,
}

impl Link {
    /// Creates both ends.
    ///
    /// # Errors
    /// Those of socketpair(2).
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Self(ours), theirs))
    }

    /// Wraps the descriptor of an end.
    #[must_use]
    pub const fn new(end: OwnedFd) -> Self {
        Self(end)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// Those of sendmsg(2); `InvalidInput` for more descriptors than fit.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        assert!(!bytes.is_empty(), "an empty message is the end");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        rustix::io::retry_on_intr(|| {
            let data = [IoSlice::new(bytes)];
            rustix::net::sendmsg(&self.0, &data, &mut control, SendFlags::NOSIGNAL)
        })?;
        Ok(())
    }

    /// Waits for a message. Returns `None` if the other end is closed.
    ///
    /// # Errors
    /// Those of recvmsg(2).
    pub fn receive(&self) -> io::Result<Option<Message>> {
        self.receive_with(RecvFlags::CMSG_CLOEXEC)
    }

    /// Returns a message that has arrived; `None` if there is none.
    ///
    /// # Errors
    /// Those of recvmsg(2).
    pub fn receive_now(&self) -> io::Result<Option<Message>> {
        match self.receive_with(RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            other => other,
        }
    }

    fn receive_with(&self, flags: RecvFlags) -> io::Result<Option<Message>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = vec![0; MESSAGE_SIZE_MAX];
        let received = loop {
            let mut data = [IoSliceMut::new(&mut bytes)];
            match rustix::net::recvmsg(&self.0, &mut data, &mut control, flags) {
                // The other end was closed with unread data. The kernel reports that once, before
                // the messages that it sent.
                Err(OsError::INTR | OsError::CONNRESET) => {}
                other => break other?,
            }
        };
        if received.bytes == 0 {
            return Ok(None);
        }
        bytes.truncate(received.bytes);
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(came) = message {
                descriptors.extend(came);
            }
        }
        Ok(Some(Message { bytes, descriptors }))
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_whole_with_their_descriptors_and_end() {
        let (ours, theirs) = Link::pair().unwrap();
        let theirs = Link::new(theirs);
        let file = tempfile::tempfile().unwrap();
        assert!(theirs.receive_now().unwrap().is_none());
        ours.send(b"first", &[]).unwrap();
        ours.send(b"second", &[file.as_fd(), file.as_fd()]).unwrap();
        let first = theirs.receive().unwrap().unwrap();
        assert_eq!(
            (first.bytes.as_slice(), first.descriptors.len()),
            (&b"first"[..], 0)
        );
        let second = theirs.receive_now().unwrap().unwrap();
        assert_eq!(
            (second.bytes.as_slice(), second.descriptors.len()),
            (&b"second"[..], 2)
        );
        drop(ours);
        assert!(theirs.receive().unwrap().is_none());
    }

    #[test]
    fn the_last_words_of_a_peer_that_did_not_listen_are_heard() {
        let (ours, theirs) = Link::pair().unwrap();
        let theirs = Link::new(theirs);
        ours.send(b"unread", &[]).unwrap();
        theirs.send(b"last", &[]).unwrap();
        drop(theirs);
        let last = ours.receive_now().unwrap().map(|message| message.bytes);
        assert_eq!(last.as_deref(), Some(&b"last"[..]));
        assert!(ours.receive_now().unwrap().is_none());
        assert!(ours.receive().unwrap().is_none());
    }
}
