//! Where clients connect, over TCP or a socket in a directory.

use crate::ServeError;
use rustix::fd::{AsFd, BorrowedFd};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};

/// A socket that takes connections.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Listens on an address; port 0 is one that the system chooses.
    ///
    /// # Errors
    /// [`ServeError::Host`].
    pub fn tcp(address: SocketAddr) -> Result<Self, ServeError> {
        let bound = TcpListener::bind(address).and_then(|socket| {
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        let socket = bound
            .map_err(|error| ServeError::host(format!("cannot listen on {address}"), error))?;
        Ok(Self {
            socket: Socket::Tcp(socket),
        })
    }

    /// Takes connections from a socket in a directory, whose mode says who may connect.
    ///
    /// # Errors
    /// [`ServeError::Host`].
    pub fn unix(socket: UnixListener) -> Result<Self, ServeError> {
        let set = socket.set_nonblocking(true);
        set.map_err(|error| ServeError::host("cannot use the socket", error))?;
        Ok(Self {
            socket: Socket::Unix(socket),
        })
    }

    pub(super) fn address(&self) -> Option<SocketAddr> {
        match &self.socket {
            Socket::Tcp(socket) => socket.local_addr().ok(),
            Socket::Unix(_) => None,
        }
    }

    /// Takes a connection; one that would block is an error.
    pub(super) fn accept(&self) -> io::Result<Stream> {
        let stream = match &self.socket {
            Socket::Tcp(socket) => {
                let (stream, _) = socket.accept()?;
                // Replies are whole when they are written: waiting for more of them would only
                // delay.
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Stream::Tcp(stream)
            }
            Socket::Unix(socket) => {
                let (stream, _) = socket.accept()?;
                stream.set_nonblocking(true)?;
                Stream::Unix(stream)
            }
        };
        Ok(stream)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Tcp(socket) => socket.as_fd(),
            Socket::Unix(socket) => socket.as_fd(),
        }
    }
}

/// A connection's socket.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
