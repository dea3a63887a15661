//! Plain files in use: opened, read from, written, cut, made durable.

use super::{ExternalError, ExternalName, ExternalRow, Externals, Leaving, Plain, Status};
use crate::data::FILE_BYTES_MAX;
use crate::schema::Store;
use crate::system::FileSystem;
use crate::{FsError, FsResult};
use stitch_base::sync::{Arc, Mutex};
use stitch_base::{ErrorKind, Ino};
use stitch_db::SpaceClass;
use stitch_kv::Engine;

/// Gives back space on the host. Reports whether there was any to give back.
pub(crate) type MakeRoom<'a> = &'a dyn Fn() -> FsResult<bool>;

/// The plain files with their rows, and the engine that makes rows durable.
#[derive(Clone, Copy)]
pub(crate) struct PlainFiles<'fs> {
    pub(crate) externals: &'fs Externals,
    pub(super) store: &'fs Store,
    pub(super) engine: &'fs dyn Engine,
    pub(super) read_only: bool,
}

impl<'fs> PlainFiles<'fs> {
    pub(crate) fn of(fs: &'fs FileSystem) -> Self {
        Self {
            externals: &fs.externals,
            store: &fs.store,
            engine: fs.engine().as_ref(),
            read_only: fs.options.read_only,
        }
    }

    /// Returns the plain file of an inode that is locked.
    ///
    /// # Errors
    /// [`FsError::Corrupt`] without a row of it, or where it is shorter than it was synced;
    /// [`FsError::External`] where it is missing.
    pub(crate) fn open(&self, ino: Ino, size: u64) -> FsResult<Arc<Plain>> {
        if let Some(plain) = self.externals.find(ino) {
            return Ok(plain);
        }
        let row = self.row(ino)?;
        let name = ExternalName {
            ino,
            number: row.number,
        };
        let files = self.externals.files()?;
        let len = files.len(name)?;
        if len < row.settled {
            return Err(self.too_short(name, row.settled, len));
        }
        let status = Status {
            // An earlier process may not have synced all of it.
            is_dirty: !self.read_only,
            is_cut_durable: false,
            ..Status::new(len, size, row.settled)
        };
        debug_assert!(status.holds(), "no program has mapped it yet");
        let mut known = self.externals.known.lock();
        // Readers meet here.
        let plain = known.entry(ino).or_insert_with(|| {
            debug_assert!(len >= row.settled, "what is settled is there");
            self.externals.add(0, len - row.settled);
            let status = Mutex::new(status);
            Arc::new(Plain { name, status })
        });
        debug_assert_eq!(plain.name, name, "the plain file of the row");
        Ok(Arc::clone(plain))
    }

    fn row(&self, ino: Ino) -> FsResult<ExternalRow> {
        let row = self.store.get(&self.store.keys.external(ino))?;
        let row = row.ok_or_else(|| {
            FsError::Corrupt(format!(
                "no row says where the contents of inode {ino} are: a check finds it"
            ))
        })?;
        Ok(ExternalRow::decode(&row)?)
    }

    pub(crate) fn too_short(&self, name: ExternalName, settled: u64, len: u64) -> FsError {
        debug_assert!(len < settled, "some of it is missing");
        let path = self.externals.files().map(|files| files.path(name));
        FsError::Corrupt(format!(
            "{}: has {len} bytes, and had {settled}: restore it \
             from a copy; a repair takes it as it is, and what it lacks reads as zeros",
            path.unwrap_or_default()
        ))
    }

    /// Returns the plain file that is removed with the rows of an inode; `None` if its row cannot
    /// be found or decoded: `fsck` finds the plain file then.
    pub(crate) fn leaving(&self, ino: Ino) -> FsResult<Option<Leaving>> {
        debug_assert!(!self.read_only, "no rows are deleted");
        let row = self.store.get(&self.store.keys.external(ino))?;
        let row = row.and_then(|row| ExternalRow::decode(&row).ok());
        Ok(row.map(|row| Leaving {
            name: ExternalName {
                ino,
                number: row.number,
            },
            settled: row.settled,
        }))
    }

    /// Returns the row of a file of which at most `size` bytes are settled from now on, and the
    /// number of bytes that it counts less; `None` if the row need not change. Of a plain file in
    /// use the length counts, so none are less.
    pub(crate) fn unsettled_row(
        &self,
        ino: Ino,
        size: u64,
    ) -> FsResult<Option<(ExternalRow, u64)>> {
        let row = self.row(ino)?;
        let settled = row.settled.min(size);
        if settled == row.settled {
            return Ok(None);
        }
        debug_assert!(settled < row.settled, "less is settled than before");
        debug_assert!(!self.read_only, "no row is changed");
        let is_used = self.externals.find(ino).is_some();
        let less = if is_used { 0 } else { row.settled - settled };
        Ok(Some((ExternalRow { settled, ..row }, less)))
    }

    /// Cuts off what a plain file has behind the file's size, durably, before the file grows. The
    /// inode is locked, also while the engine syncs: the size in its row must be durable first.
    pub(crate) fn trim(&self, plain: &Plain) -> FsResult<()> {
        debug_assert!(!self.read_only, "no file is cut");
        let mut status = plain.status.lock();
        check_sound(&status, plain.name, self.externals)?;
        if !status.needs_trim() {
            return Ok(());
        }
        let files = self.externals.files()?;
        self.cut_off(plain.name, &mut status)?;
        if let Err(error) = files.sync(plain.name) {
            status.is_failed = true;
            return Err(error.into());
        }
        status.is_cut_durable = true;
        debug_assert!(!status.is_failed, "what it holds is known");
        debug_assert!(!status.needs_trim(), "the file may grow again");
        Ok(())
    }

    /// Cuts off what a plain file has behind the file's size, once that size is durable.
    fn cut_off(&self, name: ExternalName, status: &mut Status) -> FsResult<()> {
        debug_assert!(status.holds(), "mappings are of lent files");
        if status.is_too_long() {
            self.engine.sync().map_err(FsError::from)?;
            status.is_cut_durable = false;
            let size = status.size;
            if let Err(error) = self.externals.files()?.set_len(name, size) {
                self.learn_len(name, status);
                return Err(error.into());
            }
            self.externals.set_len(status, size);
            debug_assert_eq!(status.len, status.size, "it ends where the file ends");
            debug_assert!(!status.is_too_long(), "no byte lies behind the size");
            self.note_own_change(name, status);
        }
        Ok(())
    }

    /// Learns the length of a plain file after an error that may have left any length up to the one
    /// that is noted.
    fn learn_len(&self, name: ExternalName, status: &mut Status) {
        debug_assert!(!self.read_only, "no change was under way");
        let files = self.externals.files();
        match files.and_then(|files| files.len(name).map_err(FsError::from)) {
            Ok(len) => self.externals.set_len(status, len),
            Err(error) => {
                // Bytes behind its size would be seen if it grew.
                tracing::warn!(%error, %name, "no more writes until the store is opened again");
                status.is_failed = true;
            }
        }
    }

    /// Writes to a plain file, which is at least `end` bytes long afterwards. The inode is locked.
    pub(crate) fn write(
        &self,
        plain: &Plain,
        at: u64,
        bytes: &[u8],
        make_room: MakeRoom<'_>,
    ) -> FsResult<()> {
        let end = at + bytes.len() as u64;
        debug_assert!(!bytes.is_empty(), "some bytes are written");
        debug_assert!(end <= FILE_BYTES_MAX, "the caller has checked the end");
        debug_assert!(!self.read_only, "nothing is written");
        {
            let mut status = plain.status.lock();
            check_sound(&status, plain.name, self.externals)?;
            status.is_dirty = true;
            let len = status.len.max(end);
            self.externals.set_len(&mut status, len);
        }
        if let Err(error) = self.write_where_room(plain.name, at, bytes, make_room) {
            self.learn_len(plain.name, &mut plain.status.lock());
            self.fit(plain);
            return Err(error);
        }
        self.note_own_change(plain.name, &mut plain.status.lock());
        if self.externals.is_synchronous()
            && let Err(error) = self.externals.files()?.sync(plain.name)
        {
            plain.status.lock().is_failed = true;
            return Err(error.into());
        }
        Ok(())
    }

    /// Writes; once more, if the host is full and plain files could be removed.
    fn write_where_room(
        &self,
        name: ExternalName,
        at: u64,
        bytes: &[u8],
        make_room: MakeRoom<'_>,
    ) -> FsResult<()> {
        debug_assert!(!bytes.is_empty(), "some bytes are written");
        let files = self.externals.files()?;
        match files.write_at(name, at, bytes) {
            Err(error) if error.kind == ErrorKind::NoSpace && make_room()? => {
                tracing::debug!(%error, "there is room now");
                Ok(files.write_at(name, at, bytes)?)
            }
            written => Ok(written?),
        }
    }

    /// Makes a range of a plain file read as zeros. The inode is locked.
    pub(crate) fn punch(&self, plain: &Plain, start: u64, end: u64) -> FsResult<()> {
        debug_assert!(!self.read_only, "nothing is written");
        debug_assert!(start <= end, "a range of bytes");
        let len = {
            let mut status = plain.status.lock();
            check_sound(&status, plain.name, self.externals)?;
            status.is_dirty = true;
            status.len
        };
        let end = end.min(len);
        if start < end {
            let files = self.externals.files()?;
            files.punch(plain.name, start, end - start)?;
            self.note_own_change(plain.name, &mut plain.status.lock());
        }
        Ok(())
    }

    /// Gives a range of a plain file the host's space. The inode is locked.
    pub(crate) fn allocate(
        &self,
        plain: &Plain,
        start: u64,
        end: u64,
        make_room: MakeRoom<'_>,
    ) -> FsResult<()> {
        debug_assert!(!self.read_only, "nothing is written");
        debug_assert!(end <= FILE_BYTES_MAX, "the caller has checked the end");
        {
            let mut status = plain.status.lock();
            check_sound(&status, plain.name, self.externals)?;
            status.is_dirty = true;
        }
        let files = self.externals.files()?;
        debug_assert!(start < end, "a range that is not empty");
        let mut allocated = files.allocate(plain.name, start, end - start);
        if matches!(&allocated, Err(error) if error.kind == ErrorKind::NoSpace) && make_room()? {
            allocated = files.allocate(plain.name, start, end - start);
        }
        self.note_own_change(plain.name, &mut plain.status.lock());
        Ok(allocated?)
    }

    /// Makes a plain file durable, and its least length with a row. The caller sees to it that
    /// nothing changes the plain file meanwhile.
    pub(crate) fn sync_plain(&self, plain: &Plain) -> FsResult<()> {
        debug_assert!(!self.read_only, "there is nothing to sync");
        let len = {
            let status = plain.status.lock();
            check_sound(&status, plain.name, self.externals)?;
            if !status.is_dirty {
                return Ok(());
            }
            status.len
        };
        let synced = self.externals.files()?.sync(plain.name);
        let mut status = plain.status.lock();
        if status.is_gone {
            return Ok(());
        }
        if let Err(error) = synced {
            status.is_failed = true;
            return Err(error.into());
        }
        let settled = len.min(status.size);
        if settled != status.settled {
            debug_assert!(
                settled <= status.size,
                "what is settled exists: the next open refuses a shorter file"
            );
            debug_assert!(
                settled <= len,
                "what is settled exists: the next open refuses a shorter file"
            );
            let row = ExternalRow {
                number: plain.name.number,
                settled,
            };
            let mut batch = self.store.batch();
            let key = self.store.keys.external(plain.name.ino);
            batch.put(&key, &row.encode());
            match self.store.commit(&batch, SpaceClass::Reserve) {
                Ok(()) => status.settled = settled,
                // It is durable all the same. Bytes that it lacks later cannot be told from a hole.
                Err(FsError::NoSpace) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        status.is_dirty = status.mapped.is_some();
        debug_assert!(status.settled <= status.len, "what is settled is there");
        debug_assert!(status.holds(), "a mapped file is synced again");
        Ok(())
    }

    /// Notes the host's time of change after a change of our own, so that it is not taken for a
    /// write through a mapping.
    fn note_own_change(&self, name: ExternalName, status: &mut Status) {
        debug_assert!(status.holds(), "mappings are of lent files");
        if status.mapped.is_none() {
            return;
        }
        let files = self.externals.files();
        match files.and_then(|files| files.modified(name).map_err(FsError::from)) {
            Ok(modified) => status.mapped = Some(modified),
            Err(error) => tracing::debug!(%error, "its time of change moves once more"),
        }
    }

    /// Lets a plain file grow by a hole. Nothing that was cut may come back: it is trimmed.
    pub(crate) fn stretch(&self, plain: &Plain, size: u64) -> FsResult<()> {
        debug_assert!(!self.read_only, "nothing is written");
        let mut status = plain.status.lock();
        debug_assert!(!status.needs_trim(), "it was trimmed");
        if status.len >= size {
            return Ok(());
        }
        status.is_dirty = true;
        self.externals.set_len(&mut status, size);
        debug_assert!(status.holds(), "mappings are of lent files");
        if let Err(error) = self.externals.files()?.set_len(plain.name, size) {
            self.learn_len(plain.name, &mut status);
            drop(status);
            self.fit(plain);
            return Err(error.into());
        }
        self.note_own_change(plain.name, &mut status);
        debug_assert!(status.len >= size, "it is as long as the file");
        Ok(())
    }

    /// Cuts off what a lent file has behind its size. The inode is locked.
    pub(crate) fn fit(&self, plain: &Plain) {
        let mut status = plain.status.lock();
        if !status.is_lent {
            return;
        }
        status.is_dirty |= status.is_too_long();
        debug_assert!(status.holds(), "mappings are of lent files");
        if let Err(error) = self.cut_off(plain.name, &mut status) {
            let name = plain.name;
            tracing::warn!(%error, %name, "readers may see bytes behind the end until it is cut");
        }
    }

    /// Cuts off what a lent plain file of an inode has behind its size, if the inode has one.
    pub(crate) fn fit_again(&self, ino: Ino) {
        if let Some(plain) = self.externals.find(ino) {
            debug_assert_eq!(plain.name.ino, ino, "the plain file of the inode");
            self.fit(&plain);
        }
    }
}

/// Refuses a change of a plain file whose contents are not known, as after a sync that failed. It
/// can be read, and is not written until the store is opened again.
fn check_sound(status: &Status, name: ExternalName, externals: &Externals) -> FsResult<()> {
    if !status.is_failed {
        return Ok(());
    }
    let files = externals.files()?;
    Err(FsError::External(ExternalError {
        path: files.path(name),
        op: "write",
        reason:
            "an earlier sync failed, or another error left open what it holds; open the store again"
                .to_owned(),
        kind: ErrorKind::Poisoned,
    }))
}
