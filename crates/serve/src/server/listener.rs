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
    /// For processes of these users alone.
    OfUsers(UnixListener, Vec<u32>),
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

    /// As [`Self::unix`], and refuses processes of other users than these, whatever the mode of the
    /// socket is.
    ///
    /// # Errors
    /// [`ServeError::Host`].
    pub fn unix_of(socket: UnixListener, users: Vec<u32>) -> Result<Self, ServeError> {
        debug_assert!(!users.is_empty(), "at least one user may connect");
        let Self { socket } = Self::unix(socket)?;
        let socket = match socket {
            Socket::Unix(socket) => Socket::OfUsers(socket, users),
            other => other,
        };
        Ok(Self { socket })
    }

    pub(super) fn address(&self) -> Option<SocketAddr> {
        match &self.socket {
            Socket::Tcp(socket) => socket.local_addr().ok(),
            Socket::Unix(_) | Socket::OfUsers(..) => None,
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
            Socket::OfUsers(socket, users) => {
                let (stream, _) = socket.accept()?;
                let peer = rustix::net::sockopt::socket_peercred(&stream)?;
                if !users.contains(&peer.uid.as_raw()) {
                    // Ends here; the next one may be of the right user.
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
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
            Socket::Unix(socket) | Socket::OfUsers(socket, _) => socket.as_fd(),
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
