//! The directory on one of the two sides: what is below it, and by which path.

use super::moment::{Moment, NameTarget};
use super::names::{Name, NameSet};
use super::rows::{InodeRow, WrittenRows};
use super::spans::Relation;
use crate::{FsError, FsResult};
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use stitch_base::Ino;
use stitch_format::fs_back::Place;
use stitch_format::fs_inode::{FileKind, InodeHead};

/// Directories above a name: more are a ring, which damaged rows may form.
const DEPTH_MAX: usize = 4096;
/// The right to list a directory and to pass through it, for its owner.
const OWNER_LISTS: u16 = 0o500;

/// A moment at which every inode with one name has a back row. A directory whose row was not
/// written between it and the two sides has the same name on both.
pub(super) struct Anchor<'f> {
    moment: Moment<'f>,
    /// Of an anchor after both moments: what the second one has in rows that were written since.
    since: WrittenRows,
}

impl<'f> Anchor<'f> {
    /// Chooses the moment with the fewest writes to look at: that of a side, or else the present of
    /// the second one. Returns `None` if none has all back rows.
    pub(super) fn choose(
        (old, new): (&Moment<'f>, &Moment<'f>),
        present: Option<&Moment<'f>>,
    ) -> FsResult<Option<Self>> {
        for moment in [new, old] {
            if moment.has_all_back_rows()? {
                let (moment, since) = (moment.clone(), WrittenRows::default());
                return Ok(Some(Self { moment, since }));
            }
        }
        let Some(present) = present else {
            return Ok(None);
        };
        if !present.has_all_back_rows()? {
            return Ok(None);
        }
        let relation = Relation::of(new, present)?;
        debug_assert!(relation.is_one_view(), "the present is of the second side");
        let (since, _) = WrittenRows::of_spans(&relation.spans, (new, present))?;
        let moment = present.clone();
        Ok(Some(Self { moment, since }))
    }

    /// Where the row of an inode is at a moment at which it was not written apart from the other.
    fn place_of(&self, ino: Ino) -> FsResult<Option<Place>> {
        let since = self.since.inode(ino).and_then(|row| row.name.as_ref());
        match since {
            Some(name) => {
                let hash = self.moment.keys().name_hash(&name.name);
                debug_assert!(hash > 0, "a back row leads to a name");
                let parent = name.dir;
                Ok(Some(Place { parent, hash }))
            }
            None => self.moment.back_row(ino),
        }
    }
}

/// A directory below the one that is compared.
#[derive(Debug)]
struct DirBelow {
    path: Vec<u8>,
    /// `None` for that one itself.
    name: Option<Name>,
    /// The user may list it, and all directories on the way.
    is_listed: bool,
}

/// Where the directory of a view is found that is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reached {
    /// Its path; empty for the first one.
    pub(super) path: Vec<u8>,
    /// The user may list the directories above it, from the first one on.
    pub(super) is_listed: bool,
    /// The directory that has its name, in the view above; `None` for the first one.
    pub(super) name: Option<Name>,
}

impl Reached {
    /// The first directory.
    pub(super) const fn first() -> Self {
        Self {
            path: Vec::new(),
            is_listed: true,
            name: None,
        }
    }
}

/// The directory that is compared, on one side.
pub(super) struct Side<'f> {
    pub(super) moment: Moment<'f>,
    pub(super) rows: WrittenRows,
    anchor: Rc<Anchor<'f>>,
    dir: Ino,
    owner: Option<u32>,
    dirs: RefCell<HashMap<Ino, Option<Rc<DirBelow>>>>,
    /// Names below the directory that are one of several of an inode; scanned on demand.
    links: OnceCell<HashMap<Ino, NameSet>>,
}

impl<'f> Side<'f> {
    pub(super) fn new(
        (moment, rows): (Moment<'f>, WrittenRows),
        anchor: &Rc<Anchor<'f>>,
        (dir, owner): (Ino, Option<u32>),
        reached: &Reached,
    ) -> FsResult<Self> {
        debug_assert_eq!(
            reached.path.is_empty(),
            reached.name.is_none(),
            "the first one alone has no name"
        );
        let side = Self {
            moment,
            rows,
            anchor: Rc::clone(anchor),
            dir,
            owner,
            dirs: RefCell::default(),
            links: OnceCell::new(),
        };
        let base = DirBelow {
            path: reached.path.clone(),
            name: None,
            is_listed: reached.is_listed && side.may_list(&side.dir_head()?),
        };
        side.dirs.borrow_mut().insert(dir, Some(Rc::new(base)));
        Ok(side)
    }

    /// The directory itself.
    pub(super) fn dir_head(&self) -> FsResult<InodeHead> {
        let row = self.row(self.dir)?.ok_or(FsError::Stale(self.dir))?;
        match row.head.kind {
            FileKind::Directory => Ok(row.head),
            _ => Err(FsError::NotDir),
        }
    }

    /// Reports whether the user may list a directory.
    pub(super) fn may_list(&self, head: &InodeHead) -> bool {
        let lists = |owner| head.uid == owner && head.perm & OWNER_LISTS == OWNER_LISTS;
        self.owner.is_none_or(lists)
    }

    /// The row of an inode, wherever it is.
    pub(super) fn row(&self, ino: Ino) -> FsResult<Option<InodeRow>> {
        if let Some(row) = self.rows.inode(ino) {
            return Ok(Some(row.clone()));
        }
        let row = |name, head| {
            let tail = 0;
            InodeRow { head, tail, name }
        };
        if let Some(head) = self.moment.own_head(ino)? {
            return Ok(Some(row(None, head)));
        }
        let Some(place) = self.anchor.place_of(ino)? else {
            return Ok(None);
        };
        // It may have been made later, or be gone by then.
        let found = self.moment.find(place, ino)?;
        debug_assert!(
            found.as_ref().is_none_or(|(_, head)| head.ino == ino),
            "the row of this inode"
        );
        Ok(found.map(|(name, head)| row(Some(name), head)))
    }

    /// Finds a directory, if it is below the one that is compared, or is that one.
    fn dir_below(&self, ino: Ino) -> FsResult<Option<Rc<DirBelow>>> {
        let mut passed: Vec<(Ino, Name, InodeHead)> = Vec::new();
        let mut at = ino;
        let mut found = loop {
            if let Some(known) = self.dirs.borrow().get(&at) {
                break known.clone();
            }
            let row = match passed.len() < DEPTH_MAX && at != Ino::ROOT {
                true => self.row(at)?,
                false => None,
            };
            let Some(InodeRow {
                head,
                name: Some(name),
                ..
            }) = row
            else {
                self.dirs.borrow_mut().insert(at, None);
                break None;
            };
            let dir = name.dir;
            passed.push((at, name, head));
            at = dir;
        };
        debug_assert!(passed.len() <= DEPTH_MAX, "a way up has an end");
        for (ino, name, head) in passed.into_iter().rev() {
            found = found.map(|above| {
                debug_assert!(
                    above.is_listed || self.owner.is_some(),
                    "without a user all is listed"
                );
                Rc::new(DirBelow {
                    path: join(&above.path, &name.name),
                    is_listed: above.is_listed && self.may_list(&head),
                    name: Some(name),
                })
            });
            self.dirs.borrow_mut().insert(ino, found.clone());
        }
        debug_assert!(
            self.dirs.borrow().contains_key(&ino),
            "it is known from now on"
        );
        Ok(found)
    }

    /// Reports whether a directory is below the one that is compared, or is that one.
    pub(super) fn has_dir(&self, ino: Ino) -> FsResult<bool> {
        Ok(self.dir_below(ino)?.is_some())
    }

    /// Where a directory is found that is below the one that is compared; `None` if it is not.
    pub(super) fn reach(&self, ino: Ino) -> FsResult<Option<Reached>> {
        let Some(dir) = self.dir_below(ino)?.filter(|dir| dir.name.is_some()) else {
            return Ok(None);
        };
        let above = match &dir.name {
            Some(name) => self.dir_below(name.dir)?,
            None => None,
        };
        debug_assert!(above.is_some(), "it is below another directory");
        debug_assert!(!dir.path.is_empty(), "the first one alone has no path");
        Ok(Some(Reached {
            path: dir.path.clone(),
            is_listed: above.is_some_and(|above| above.is_listed),
            name: dir.name.clone(),
        }))
    }

    /// The name of a directory that is below the one that is compared.
    pub(super) fn dir_name(&self, ino: Ino) -> FsResult<Option<Name>> {
        let dir = self.dir_below(ino)?;
        Ok(dir.and_then(|dir| dir.name.clone()))
    }

    /// The inode that a name leads to, if the name is below the directory.
    pub(super) fn ino_of(&self, name: &Name) -> FsResult<Option<Ino>> {
        match self.has_dir(name.dir)? {
            true => self.moment.ino_of(name),
            false => Ok(None),
        }
    }

    /// What a name leads to, if the name is below the directory.
    pub(super) fn target(&self, name: &Name) -> FsResult<Option<NameTarget>> {
        match self.has_dir(name.dir)? {
            true => self.moment.target(name),
            false => Ok(None),
        }
    }

    /// The path of a name that is below the directory.
    ///
    /// # Errors
    /// [`FsError::Perm`] if the user may not list the directory that it is in.
    pub(super) fn path_of(&self, name: &Name) -> FsResult<Vec<u8>> {
        let dir = self.dir_below(name.dir)?.ok_or(FsError::Stale(name.dir))?;
        if !dir.is_listed {
            return Err(FsError::Perm);
        }
        debug_assert!(
            dir.name.is_some() || name.dir == self.dir,
            "the directory that is compared"
        );
        Ok(join(&dir.path, &name.name))
    }

    /// The names of an inode that are below the directory, in order.
    pub(super) fn names_of(&self, ino: Ino, row: &InodeRow) -> FsResult<NameSet> {
        let links = self.rows.links(ino);
        if row.name.is_none() && links.len() as u64 != u64::from(row.head.nlink) {
            return Ok(self.links()?.get(&ino).cloned().unwrap_or_default());
        }
        let mut names = NameSet::new();
        let links = links.filter(|_| row.name.is_none());
        for name in row.name.iter().chain(links) {
            if self.has_dir(name.dir)? {
                names.insert(name.clone());
            }
        }
        debug_assert!(
            names.len() <= 1 || row.name.is_none(),
            "a row under a name has one"
        );
        Ok(names)
    }

    fn links(&self) -> FsResult<&HashMap<Ino, NameSet>> {
        if let Some(links) = self.links.get() {
            return Ok(links);
        }
        let mut links: HashMap<Ino, NameSet> = HashMap::new();
        let visit = |ino, name| {
            links.entry(ino).or_default().insert(name);
        };
        self.moment.links_below(self.dir, visit)?;
        debug_assert!(
            links.values().all(|names| !names.is_empty()),
            "an inode with a name"
        );
        Ok(self.links.get_or_init(|| links))
    }
}

pub(super) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    debug_assert!(!name.is_empty(), "a name is not empty");
    match dir {
        b"" => name.to_vec(),
        _ => [dir, b"/", name].concat(),
    }
}
