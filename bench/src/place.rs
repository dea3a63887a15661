//! Locations of stores: a folder of this run, and in it one store at a time.

use crate::disk::{self, Disk, Mount};
use crate::side;
use anyhow::{Context as _, Result};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stitch_base::clock::{Clock as _, SystemClock};

const FOLDER_PREFIX: &str = "stitch-bench-";
/// Time for children of a killed run to notice.
const CHILDREN_END: Duration = Duration::from_secs(10);

/// A folder that is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes one for this process in `parent`; removes what earlier ones left that were killed.
    pub(crate) fn new(parent: &Path) -> Result<Self> {
        fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        remove_stale(parent)?;
        let path = parent.join(format!("{FOLDER_PREFIX}{}", std::process::id()));
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        let path = path.canonicalize()?;
        Ok(Self { path })
    }

    /// Returns its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// An empty place for a side's store: a folder, a file system on `disk`, or `disk` itself.
    pub(crate) fn place(&self, side: &str, disk: Option<&Disk>) -> Result<Place> {
        let path = self.path.join("store");
        let Some(disk) = disk else {
            fs::create_dir(&path).with_context(|| path.display().to_string())?;
            return Ok(Place { path, mount: None });
        };
        if side::is_raw(side) {
            let path = disk.device().to_owned();
            return Ok(Place { path, mount: None });
        }
        let mount = Some(disk.mount(&path)?);
        Ok(Place { path, mount })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// The location of a side's store, removed when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    mount: Option<Mount>,
}

impl Place {
    /// A folder or a device.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(self.mount.take());
        // What a raw device holds, the next side overwrites.
        if self.path.is_dir()
            && let Err(error) = fs::remove_dir_all(&self.path)
        {
            eprintln!("cannot remove {}: {error}", self.path.display());
        }
    }
}

fn remove_stale(parent: &Path) -> Result<()> {
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(FOLDER_PREFIX);
        let pid = pid.and_then(|pid| pid.parse::<u32>().ok());
        if let Some(pid) = pid
            && !Path::new(&format!("/proc/{pid}")).exists()
        {
            let path = entry.path().canonicalize()?;
            disk::take_down(&path)?;
            remove_all(&path)?;
        }
    }
    Ok(())
}

/// Removes a folder. A child of a killed run may still make files where its mount was, until it
/// notices that its parent is gone.
fn remove_all(path: &Path) -> Result<()> {
    let clock = SystemClock::default();
    loop {
        match fs::remove_dir_all(path) {
            Err(error)
                if error.kind() == ErrorKind::DirectoryNotEmpty
                    && clock.monotonic() < CHILDREN_END =>
            {
                clock.sleep(Duration::from_millis(20));
            }
            other => return other.with_context(|| path.display().to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_run_left_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let gone = dir.path().join(format!("{FOLDER_PREFIX}4194305"));
        let other = dir.path().join("stitch-bench-notes");
        fs::create_dir_all(gone.join("store")).unwrap();
        fs::create_dir(&other).unwrap();
        let folder = Folder::new(dir.path()).unwrap();
        assert!(!gone.exists());
        assert!(other.exists());
        let place = folder.place("stitch", None).unwrap();
        fs::write(place.path().join("file"), b"x").unwrap();
        let path = folder.path().to_owned();
        drop(place);
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
        drop(folder);
        assert!(!path.exists());
    }
}
