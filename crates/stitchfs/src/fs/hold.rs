//! Inodes in use, and the walk along a path.

use super::Open;
use crate::StoreError;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use stitch_base::Ino;
use stitch_base::sync::Arc;
use stitch_fs::{Attr, Caller, DirName, FileKind, FsError, SetAttr};

/// Symbolic links on one path at most.
const LINKS_MAX: u32 = 40;

/// An inode that is known for as long as this is there.
pub(super) struct Hold {
    open: Arc<Open>,
    ino: Ino,
}

impl Hold {
    /// The root directory.
    pub(super) fn root(open: &Arc<Open>) -> Self {
        Self::taken(open, Ino::ROOT)
    }

    /// An inode of which a lookup was just counted.
    pub(super) fn taken(open: &Arc<Open>, ino: Ino) -> Self {
        let open = Arc::clone(open);
        Self { open, ino }
    }

    pub(super) const fn open(&self) -> &Arc<Open> {
        &self.open
    }

    pub(super) const fn ino(&self) -> Ino {
        self.ino
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.ino != Ino::ROOT {
            forget(&self.open, self.ino);
        }
    }
}

/// Takes a lookup back.
pub(super) fn forget(open: &Open, ino: Ino) {
    open.fs.forget(ino, 1);
    // What was unlinked meanwhile goes now. What cannot go is still queued: `sync` tries again, and
    // says so.
    if let Err(error) = open.fs.reclaim() {
        tracing::warn!(%error, "a forgotten file was not removed; tried again later");
    }
}

/// A directory on the way, and whether it is ours to forget.
struct Step<'a> {
    open: &'a Arc<Open>,
    ino: Ino,
    is_held: bool,
}

impl<'a> Step<'a> {
    const fn start(open: &'a Arc<Open>, ino: Ino) -> Self {
        Self {
            open,
            ino,
            is_held: false,
        }
    }

    const fn taken(open: &'a Arc<Open>, ino: Ino) -> Self {
        Self {
            open,
            ino,
            is_held: true,
        }
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if self.is_held {
            self.open.fs.forget(self.ino, 1);
        }
    }
}

/// Where a path leads: the directory that its last name is in, and that name; without one, the
/// directory itself.
pub(super) struct End<'a, 'p> {
    dir: Step<'a>,
    name: &'p [u8],
}

impl End<'_, '_> {
    /// The last name of the path.
    ///
    /// # Errors
    /// Where there is none: the root cannot be made, moved or removed.
    pub(super) fn at(&self) -> Result<DirName<'_>, StoreError> {
        if self.name.is_empty() {
            return Err(FsError::Invalid("the path has no last name").into());
        }
        Ok(DirName::new(self.dir.ino, self.name))
    }

    /// What is there: the directory itself, if no name is left.
    fn stat(&self) -> Result<Attr, StoreError> {
        let fs = &self.dir.open.fs;
        Ok(match self.at() {
            Ok(at) => fs.stat(at)?,
            Err(_) => fs.get_attr(self.dir.ino)?,
        })
    }

    /// Changes what is there; `None` if it is a symbolic link.
    fn set_attr(&self, set: &SetAttr) -> Result<Option<Attr>, StoreError> {
        let fs = &self.dir.open.fs;
        Ok(match self.at() {
            Ok(at) => fs.set_attr_at(&Caller::ROOT, at, set)?,
            Err(_) => Some(fs.set_attr(&Caller::ROOT, self.dir.ino, set)?),
        })
    }
}

/// What the last name of a path means, if it is that of a symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    /// What the link leads to.
    Followed,
    /// The link.
    Itself,
}

/// Walks along a path from a directory.
struct Walk<'a> {
    open: &'a Arc<Open>,
    links: u32,
}

impl<'a> Walk<'a> {
    /// To the last name, which need not be there.
    fn go_near<'p>(&mut self, from: Step<'a>, path: &'p [u8]) -> Result<End<'a, 'p>, StoreError> {
        let mut dir = match path.first() {
            Some(b'/') => Step::start(self.open, Ino::ROOT),
            _ => from,
        };
        let mut names = path
            .split(|byte| *byte == b'/')
            .filter(|name| !matches!(*name, b"" | b"."))
            .peekable();
        while let Some(name) = names.next() {
            if names.peek().is_none() {
                return Ok(End { dir, name });
            }
            dir = self.enter(dir, name)?;
        }
        Ok(End { dir, name: b"" })
    }

    fn enter(&mut self, dir: Step<'a>, name: &[u8]) -> Result<Step<'a>, StoreError> {
        let attr = self.open.fs.step(DirName::new(dir.ino, name))?;
        let found = Step::taken(self.open, attr.ino);
        match attr.kind {
            FileKind::Symlink => self.follow(dir, &found).map(|(step, _)| step),
            _ => Ok(found),
        }
    }

    /// To where a link leads, which is there.
    fn follow(&mut self, dir: Step<'a>, link: &Step<'a>) -> Result<(Step<'a>, Attr), StoreError> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(FsError::Invalid("too many symbolic links").into());
        }
        let target = self.open.fs.read_link(link.ino)?;
        let end = self.go_near(dir, &target)?;
        self.arrive(end, Last::Followed)
    }

    fn arrive(&mut self, end: End<'a, '_>, last: Last) -> Result<(Step<'a>, Attr), StoreError> {
        let End { dir, name } = end;
        if name.is_empty() {
            let attr = self.open.fs.get_attr(dir.ino)?;
            return Ok((dir, attr));
        }
        let attr = self.open.fs.lookup(DirName::new(dir.ino, name))?;
        let found = Step::taken(self.open, attr.ino);
        if attr.kind == FileKind::Symlink && last == Last::Followed {
            return self.follow(dir, &found);
        }
        Ok((found, attr))
    }
}

impl Hold {
    /// Where a path from this directory leads.
    pub(super) fn parent_of<'p>(&self, path: &'p Path) -> Result<End<'_, 'p>, StoreError> {
        let mut walk = Walk {
            open: &self.open,
            links: 0,
        };
        let from = Step::start(&self.open, self.ino);
        walk.go_near(from, path.as_os_str().as_bytes())
    }

    /// Attributes of what is there.
    pub(super) fn stat(&self, path: &Path, last: Last) -> Result<Attr, StoreError> {
        let attr = self.parent_of(path)?.stat()?;
        if attr.kind == FileKind::Symlink && last == Last::Followed {
            return self.with(path, last, |attr| Ok(*attr));
        }
        Ok(attr)
    }

    /// Changes attributes of what is there, links followed.
    pub(super) fn set_attr(&self, path: &Path, set: &SetAttr) -> Result<Attr, StoreError> {
        if let Some(attr) = self.parent_of(path)?.set_attr(set)? {
            return Ok(attr);
        }
        self.with(path, Last::Followed, |attr| {
            Ok(self.open.fs.set_attr(&Caller::ROOT, attr.ino, set)?)
        })
    }

    /// What is there, known for as long as the call takes.
    pub(super) fn with<T>(
        &self,
        path: &Path,
        last: Last,
        use_it: impl FnOnce(&Attr) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut walk = Walk {
            open: &self.open,
            links: 0,
        };
        let from = Step::start(&self.open, self.ino);
        let end = walk.go_near(from, path.as_os_str().as_bytes())?;
        let (found, attr) = walk.arrive(end, last)?;
        let done = use_it(&attr);
        drop(found);
        done
    }

    /// What is there, held.
    pub(super) fn find(&self, path: &Path) -> Result<(Self, Attr), StoreError> {
        let mut walk = Walk {
            open: &self.open,
            links: 0,
        };
        let from = Step::start(&self.open, self.ino);
        let end = walk.go_near(from, path.as_os_str().as_bytes())?;
        let (mut found, attr) = walk.arrive(end, Last::Followed)?;
        if !found.is_held && found.ino != Ino::ROOT {
            // The directory that the walk began at: one more lookup keeps it.
            let again = self.open.fs.lookup(DirName::new(found.ino, b"."))?;
            debug_assert_eq!(again.ino, found.ino, "a directory is in itself");
        }
        // The hold has the lookup from now on.
        found.is_held = false;
        Ok((Self::taken(&self.open, found.ino), attr))
    }
}
