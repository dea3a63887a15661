//! Sockets in directories: bound for their owner alone, and removed at the end.

use anyhow::{Context, Result, bail};
use rustix::fs::Mode;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A socket at a path. Dropped, it is removed.
#[derive(Debug)]
pub(in crate::command) struct Bound {
    path: PathBuf,
    listener: UnixListener,
}

impl Bound {
    /// Binds a socket. One that is left over from a server that has ended is replaced. To be called
    /// while no other thread makes files: the mode mask is the process's.
    pub(in crate::command) fn new(path: &Path) -> Result<Self> {
        let shown = path.display();
        remove_left_over(path)?;
        let before = rustix::process::umask(Mode::from_raw_mode(0o177));
        let bound = UnixListener::bind(path);
        rustix::process::umask(before);
        let listener = bound.with_context(|| format!("{shown}: cannot make a socket"))?;
        let path = std::path::absolute(path).with_context(|| format!("{shown}: has no path"))?;
        Ok(Self { path, listener })
    }

    /// Binds a socket in a directory that no other user can enter.
    pub(in crate::command) fn in_private_dir(dir: &Path, name: &str) -> Result<Self> {
        let path = dir.join(name);
        let shown = path.display();
        remove_left_over(&path)?;
        let bound = UnixListener::bind(&path).and_then(|listener| {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
            Ok(listener)
        });
        let listener = bound.with_context(|| format!("{shown}: cannot make a socket"))?;
        Ok(Self { path, listener })
    }

    pub(in crate::command) fn path(&self) -> &Path {
        &self.path
    }

    /// A descriptor of it.
    pub(in crate::command) fn listener(&self) -> Result<UnixListener> {
        self.listener.try_clone().context("cannot use the socket")
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // Left over, it is replaced by the next server.
        let _ = fs::remove_file(&self.path);
    }
}

fn remove_left_over(path: &Path) -> Result<()> {
    let shown = path.display();
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| shown.to_string()),
        Ok(meta) if !meta.file_type().is_socket() => {
            bail!("{shown}: exists, and is no socket");
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        _ => bail!("{shown}: another server listens there"),
    }
    fs::remove_file(path).with_context(|| format!("{shown}: cannot be replaced"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_its_owners_and_goes_with_its_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kv.sock");
        let bound = Bound::new(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = Bound::new(&path).unwrap_err().to_string();
        assert!(error.contains("another server"), "{error}");
        drop(bound);
        assert!(!path.exists());
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "left over");
        drop(Bound::new(&path).unwrap());
        fs::write(&path, b"a file").unwrap();
        let error = Bound::new(&path).unwrap_err().to_string();
        assert!(error.contains("no socket"), "{error}");
    }
}
