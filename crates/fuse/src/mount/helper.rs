//! Mounts as a user, by the set-uid program `fusermount3`.
//!
//! It opens the device, mounts, and sends the descriptor back through a socket, whose number is in
//! its environment. The socket is its standard input, so that no other program that is started
//! meanwhile inherits it.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};

use super::{MountError, MountOptions, SUBTYPE, Unmount};

const HELPER: &str = "fusermount3";

pub(super) fn mount(path: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let failed = |source| MountError::Io {
        op: "mount",
        path: path.to_owned(),
        source,
    };
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|error| failed(error.into()))?;
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(words(options)).arg("--").arg(path);
    command.env("_FUSE_COMMFD", "0").stdin(Stdio::from(theirs));
    let output = run(command, path)?;
    let fd = receive_descriptor(&ours).map_err(failed)?;
    match fd {
        Some(fd) if output.status.success() => Ok(fd),
        _ => Err(refused(&output)),
    }
}

/// The options as the helper takes them.
fn words(options: &MountOptions) -> OsString {
    let mut words = OsString::from("fsname=");
    words.push(escaped(&options.source));
    words.push(format!(",subtype={SUBTYPE}"));
    let pairs = [
        (options.read_only, "ro"),
        (options.no_exec, "noexec"),
        (options.no_atime, "noatime"),
        (options.no_dir_atime, "nodiratime"),
        (options.sync, "sync"),
        (options.dir_sync, "dirsync"),
        (options.allow_other, "allow_other"),
        (options.default_permissions, "default_permissions"),
    ];
    for (_, word) in pairs.iter().filter(|(on, _)| *on) {
        words.push(",");
        words.push(word);
    }
    if let Some(max_read) = options.max_read {
        words.push(format!(",max_read={max_read}"));
    }
    words
}

/// A comma would end the source, a backslash starts an escape.
fn escaped(source: &OsStr) -> OsString {
    let mut out = Vec::with_capacity(source.len());
    for &byte in source.as_bytes() {
        if matches!(byte, b'\\' | b',') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    OsString::from_vec(out)
}

pub(super) fn unmount(path: &Path, how: Unmount) -> Result<(), MountError> {
    let mut command = Command::new(HELPER);
    command.arg("-u");
    if how == Unmount::Lazy {
        command.arg("-z");
    }
    command.arg("--").arg(path).stdin(Stdio::null());
    let output = run(command, path)?;
    let message = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(())
    } else if message.contains("busy") {
        Err(MountError::Busy {
            path: path.to_owned(),
        })
    } else if message.contains("not found in") {
        Err(MountError::NotMounted {
            path: path.to_owned(),
        })
    } else {
        Err(refused(&output))
    }
}

/// Runs the helper in the C locale: its messages are recognised by their English words.
fn run(mut command: Command, path: &Path) -> Result<Output, MountError> {
    command
        .env("LC_ALL", "C")
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let spawned = command.spawn().map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => MountError::NoHelper,
        _ => MountError::Io {
            op: "run fusermount3 for",
            path: path.to_owned(),
            source,
        },
    })?;
    // Dropping the command closes this process's copy of the socket.
    drop(command);
    spawned.wait_with_output().map_err(|source| MountError::Io {
        op: "run fusermount3 for",
        path: path.to_owned(),
        source,
    })
}

fn refused(output: &Output) -> MountError {
    let message = String::from_utf8_lossy(&output.stderr);
    if message.contains("user_allow_other") {
        return MountError::AllowOtherRefused;
    }
    if message.contains("failed to open /dev/fuse: Permission denied") {
        let source = io::ErrorKind::PermissionDenied.into();
        return MountError::DeviceRefused { source };
    }
    let message = message
        .trim()
        .trim_start_matches("fusermount3: ")
        .to_owned();
    let message = if message.is_empty() {
        output.status.to_string()
    } else {
        message
    };
    MountError::HelperRefused { message }
}

/// Returns the received descriptor, if one came before the other end was closed.
fn receive_descriptor(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8; 1];
    rustix::io::retry_on_intr(|| {
        let mut data = [IoSliceMut::new(&mut byte)];
        rustix::net::recvmsg(socket, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(descriptors.next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_passed_on_byte_by_byte() {
        let options = MountOptions {
            source: OsString::from_vec(b"/a,b\\c\xff".to_vec()),
            read_only: true,
            max_read: Some(4096),
            ..MountOptions::default()
        };
        let expected =
            b"fsname=/a\\,b\\\\c\xff,subtype=stitchfs,ro,default_permissions,max_read=4096";
        assert_eq!(words(&options).as_bytes(), expected);
    }
}
