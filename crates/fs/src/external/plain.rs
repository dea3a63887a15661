//! What is done with plain files in use: written, cut, made durable, removed.

use super::{ExternalError, ExternalName, ExternalRow, Leaving, Plain, Status};
use crate::contents::Contents;
use crate::room::unless_full;
use crate::system::FileSystem;
use crate::{FsError, FsResult};
use stitch_base::sync::{Arc, Mutex};
use stitch_base::{ErrorKind, Ino};
use stitch_db::SpaceClass;

impl FileSystem {
    /// The plain file of an inode that is locked.
    ///
    /// # Errors
    /// [`FsError::Corrupt`] without a row of it, or where it is shorter than it was synced;
    /// [`FsError::External`] where it is missing.
    pub(crate) fn plain(&self, ino: Ino, size: u64) -> FsResult<Arc<Plain>> {
        if let Some(plain) = self.externals.find(ino) {
            return Ok(plain);
        }
        let row = self.external_row(ino)?;
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
            // An earlier life may not have synced all of it.
            is_dirty: !self.options.read_only,
            is_cut_durable: false,
            ..Status::new(len, size, row.settled)
        };
        let mut known = self.externals.known.lock();
        // Readers meet here.
        let plain = known.entry(ino).or_insert_with(|| {
            self.externals.add(0, len - row.settled);
            let status = Mutex::new(status);
            Arc::new(Plain { name, status })
        });
        Ok(Arc::clone(plain))
    }

    fn external_row(&self, ino: Ino) -> FsResult<ExternalRow> {
        let row = self.store.get(&self.store.keys.external(ino))?;
        let row = row.ok_or_else(|| {
            FsError::Corrupt(format!(
                "no row says where the contents of inode {ino} are: a check finds it"
            ))
        })?;
        Ok(ExternalRow::decode(&row)?)
    }

    pub(crate) fn too_short(&self, name: ExternalName, settled: u64, len: u64) -> FsError {
        let path = self.externals.files().map(|files| files.path(name));
        FsError::Corrupt(format!(
            "{}: has {len} bytes, and had {settled}: restore it \
             from a copy; a repair takes it as it is, and what it lacks reads as zeros",
            path.unwrap_or_default()
        ))
    }

    /// What leaves with an inode's rows. A row that cannot be found or decoded takes nothing along: `fsck`
    /// finds the plain file.
    pub(crate) fn leaving(&self, ino: Ino) -> FsResult<Option<Leaving>> {
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

    /// What is settled of a file is at most `size` from now on; the row that says so, if one is needed, and how many
    /// bytes it no longer counts. Of a plain file in use its length counts.
    pub(crate) fn unsettled_row(
        &self,
        ino: Ino,
        size: u64,
    ) -> FsResult<Option<(ExternalRow, u64)>> {
        let row = self.external_row(ino)?;
        let settled = row.settled.min(size);
        if settled == row.settled {
            return Ok(None);
        }
        let is_used = self.externals.find(ino).is_some();
        let less = if is_used { 0 } else { row.settled - settled };
        Ok(Some((ExternalRow { settled, ..row }, less)))
    }

    /// Before a file grows: cuts off what its plain file has behind its size, for good. The inode is locked,
    /// also while the engine syncs: the size that is in its row must be durable first.
    pub(crate) fn trim(&self, plain: &Plain) -> FsResult<()> {
        let mut status = plain.status.lock();
        check_sound(&status, plain.name, self)?;
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
        Ok(())
    }

    /// Cuts off what a plain file has behind its size, once that size is durable.
    pub(super) fn cut_off(&self, name: ExternalName, status: &mut Status) -> FsResult<()> {
        if status.is_too_long() {
            self.engine().sync().map_err(FsError::from)?;
            status.is_cut_durable = false;
            let size = status.size;
            if let Err(error) = self.externals.files()?.set_len(name, size) {
                self.learn_len(name, status);
                return Err(error.into());
            }
            self.externals.set_len(status, size);
            self.note_own_change(name, status);
        }
        Ok(())
    }

    /// After an error that may have left a plain file of any length up to the one that is noted.
    pub(super) fn learn_len(&self, name: ExternalName, status: &mut Status) {
        let files = self.externals.files();
        match files.and_then(|files| files.len(name).map_err(FsError::from)) {
            Ok(len) => self.externals.set_len(status, len),
            Err(error) => {
                // What lies behind its size could be seen if it grew.
                tracing::warn!(%error, %name, "it takes no more writes until the store is opened again");
                status.is_failed = true;
            }
        }
    }

    /// Writes to a plain file, which is at least `end` bytes long afterwards. The inode is locked.
    pub(crate) fn write_plain(&self, plain: &Plain, at: u64, bytes: &[u8]) -> FsResult<()> {
        let end = at + bytes.len() as u64;
        {
            let mut status = plain.status.lock();
            check_sound(&status, plain.name, self)?;
            status.is_dirty = true;
            let len = status.len.max(end);
            self.externals.set_len(&mut status, len);
        }
        if let Err(error) = self.write_where_room(plain.name, at, bytes) {
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

    /// Writes, once more if the host is full and had room for others that nobody needs.
    fn write_where_room(&self, name: ExternalName, at: u64, bytes: &[u8]) -> FsResult<()> {
        let files = self.externals.files()?;
        match files.write_at(name, at, bytes) {
            Err(error) if error.kind == ErrorKind::NoSpace && self.makes_room_beside()? => {
                tracing::debug!(%error, "there is room now");
                Ok(files.write_at(name, at, bytes)?)
            }
            written => Ok(written?),
        }
    }

    /// Makes a range of a plain file read as zeros. The inode is locked.
    pub(crate) fn punch_plain(&self, plain: &Plain, start: u64, end: u64) -> FsResult<()> {
        let len = {
            let mut status = plain.status.lock();
            check_sound(&status, plain.name, self)?;
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
    pub(crate) fn allocate_plain(&self, plain: &Plain, start: u64, end: u64) -> FsResult<()> {
        {
            let mut status = plain.status.lock();
            check_sound(&status, plain.name, self)?;
            status.is_dirty = true;
        }
        let files = self.externals.files()?;
        let mut allocated = files.allocate(plain.name, start, end - start);
        if matches!(&allocated, Err(error) if error.kind == ErrorKind::NoSpace)
            && self.makes_room_beside()?
        {
            allocated = files.allocate(plain.name, start, end - start);
        }
        self.note_own_change(plain.name, &mut plain.status.lock());
        Ok(allocated?)
    }

    /// Makes a plain file durable, and says in the trees how long it is at least. Nobody may change it
    /// meanwhile.
    pub(crate) fn settle(&self, plain: &Plain) -> FsResult<()> {
        let len = {
            let status = plain.status.lock();
            check_sound(&status, plain.name, self)?;
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
            let row = ExternalRow {
                number: plain.name.number,
                settled,
            };
            let mut batch = self.store.batch();
            let key = self.store.keys.external(plain.name.ino);
            batch.put(&key, &row.encode());
            match self.store.commit(&batch, SpaceClass::Reserve) {
                Ok(()) => status.settled = settled,
                // It is durable all the same; what it lacks later is not told from what was lost.
                Err(FsError::NoSpace) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        status.is_dirty = status.mapped.is_some();
        Ok(())
    }

    /// Makes all plain files durable, those that nobody knows any more too.
    pub(crate) fn settle_all(&self) -> FsResult<()> {
        let mut first = Ok(());
        for (ino, plain) in self.externals.all() {
            if let Err(error) = self.note_mapped_writes(ino) {
                tracing::debug!(%error, ino = ino.0, "its time of change is set later");
            }
            let settled = {
                let _inode = self.residents.locks.inode_read(ino);
                self.settle(&plain)
            };
            if self.residents.inodes.find(ino).is_none() {
                self.externals.forget(ino);
            }
            // One that failed long ago hides no other.
            let is_old = |e: &FsError| e.kind() == ErrorKind::Poisoned;
            if first.is_ok() || (first.as_ref().is_err_and(is_old) && settled.is_err()) {
                first = settled;
            }
        }
        first
    }

    /// After the engine was synced: gives back what was cut off.
    pub(crate) fn trim_all(&self) {
        for (ino, plain) in self.externals.all() {
            if !plain.status.lock().is_too_long() {
                continue;
            }
            let _inode = self.residents.locks.inode_write(ino);
            let is_there = !plain.status.lock().is_gone;
            if is_there && let Err(error) = self.trim(&plain) {
                tracing::debug!(%error, name = %plain.name, "it is cut later");
            }
        }
    }

    /// Removes plain files whose rows are gone, after that is durable. Answers how many.
    pub(crate) fn remove_retired(&self) -> FsResult<usize> {
        let _one_at_a_time = self.externals.removing.lock();
        let names = std::mem::take(&mut *self.externals.retired.lock());
        if names.is_empty() {
            return Ok(0);
        }
        if let Err(error) = self.engine().sync() {
            self.externals.retired.lock().extend(names);
            return Err(error.into());
        }
        let files = self.externals.files()?;
        for &name in &names {
            if let Err(error) = files.remove(name) {
                tracing::warn!(%error, "a plain file is left; the next open removes it");
            }
        }
        self.room.note_given_back(names.len());
        Ok(names.len())
    }

    /// The host is full: removes the plain files of what nobody has any more, though it was to be done later. Answers
    /// whether there were any. Whoever asks may have an inode locked.
    pub(crate) fn makes_room_beside(&self) -> FsResult<bool> {
        let mark = self.room_mark();
        // A store that is full itself: perhaps others are retired already.
        unless_full(self.reclaim())?;
        // Also what another thread removed meanwhile.
        Ok(self.remove_retired()? > 0 || self.room_mark() != mark)
    }

    /// Whether [`Self::sync`] would do something for external files: to be asked now and then by who
    /// calls it in the background.
    #[must_use]
    pub fn has_unsettled_files(&self) -> bool {
        if self.options.read_only || !self.externals.is_there() {
            return false;
        }
        // One that is locked is being written or settled.
        let is_open = |plain: &Arc<Plain>| plain.status.try_lock().is_none_or(|s| s.is_unsettled());
        let has_retired = !self.externals.retired.lock().is_empty();
        has_retired || self.externals.known.lock().values().any(is_open)
    }

    /// Whether it has a place of external files.
    #[must_use]
    pub fn has_large_files(&self) -> bool {
        self.externals.is_there()
    }

    /// Whether the contents of a file are a plain file.
    ///
    /// # Errors
    /// As [`Self::get_attr`].
    pub fn is_external(&self, ino: Ino) -> FsResult<bool> {
        Ok(Contents::are_external(&self.residents.inodes.head(ino)?))
    }

    /// How many files are external, and how many bytes they have.
    #[must_use]
    pub fn external_usage(&self) -> (u64, u64) {
        (self.externals.count(), self.externals.bytes())
    }
}

/// A plain file of which it is not known what it holds, as after a sync that failed, is read, and not written,
/// until the store is opened again.
pub(super) fn check_sound(status: &Status, name: ExternalName, fs: &FileSystem) -> FsResult<()> {
    if !status.is_failed {
        return Ok(());
    }
    let files = fs.externals.files()?;
    Err(FsError::External(ExternalError {
        path: files.path(name),
        op: "write",
        reason:
            "an earlier sync failed, or another error left open what it holds; open the store again"
                .to_owned(),
        kind: ErrorKind::Poisoned,
    }))
}
