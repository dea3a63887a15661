//! Repairs, one small step for each issue. Each is a batch of its own, so that a repair that stops
//! half-way leaves a file system that is no worse than before.

mod views;

use super::back;
use super::{Issue, Trees};
use super::{allocated, external, shared};
use crate::contents::Contents;
use crate::locator::{Locator, RowKey, Tree};
use crate::rows::is_readable;
use crate::{ExternalFiles, FsError, FsResult};
use stitch_base::Ino;
use stitch_db::{Changes, CommitOptions, Direction, KeyRange, SpaceClass};
use stitch_format::fs_inode::{FileKind, InodeHead, MetaRow, encode_link, row_flag};
use stitch_format::fs_key::{CHUNK_BYTES, INO_MAX, NAME_BYTES_MAX};
use stitch_format::fs_sys::{FsHeader, decode_number, encode_number};

/// Where what has lost its name goes.
const LOST_AND_FOUND: &[u8] = b"lost+found";

struct Repair<'a> {
    trees: &'a Trees,
    files: Option<&'a dyn ExternalFiles>,
    changes: Changes<'static>,
}

/// Repairs issues in their order. Returns their number.
pub(super) fn repair(
    trees: &Trees,
    files: Option<&dyn ExternalFiles>,
    issues: &[Issue],
) -> FsResult<u64> {
    let row = match trees.schema.now().get(trees.sys, &trees.keys.header()) {
        Ok(row) => row,
        Err(error) if FsError::from(error.clone()).is_unreadable() => return Ok(0),
        Err(error) => return Err(error.into()),
    };
    let header = row.map(|row| FsHeader::decode(&row));
    if !matches!(header, Some(Ok(_))) {
        return Ok(0);
    }
    let mut repair = Repair {
        trees,
        files,
        changes: Changes::new(),
    };
    // Numbers first: repairs below hand some out.
    let is_number = |issue: &&Issue| matches!(issue, Issue::NextIno { .. } | Issue::NoRoot);
    let (first, rest): (Vec<_>, Vec<_>) = issues.iter().partition(is_number);
    let mut repaired = 0;
    for issue in first.into_iter().chain(rest) {
        match repair.one(issue) {
            Ok(is_repaired) => repaired += u64::from(is_repaired),
            // What it needs to read is lost; others may not need it.
            Err(error) if error.is_unreadable() => repair.changes.clear(),
            Err(error) => return Err(error),
        }
    }
    debug_assert!(repair.changes.is_empty(), "each repair is committed");
    debug_assert!(repaired <= issues.len() as u64, "an issue is repaired once");
    Ok(repaired)
}

impl Repair<'_> {
    fn one(&mut self, issue: &Issue) -> FsResult<bool> {
        debug_assert!(self.changes.is_empty(), "the one before is done");
        let trees = self.trees;
        match issue {
            Issue::NoHeader { .. }
            | Issue::Lost { .. }
            | Issue::LostUnused { .. }
            | Issue::Unchecked { .. }
            // Finished by an open of the file system.
            | Issue::InterruptedRollback { .. }
            // Repaired in the list of pins.
            | Issue::BadMoment { .. }
            // Repaired in the trees of the clone.
            | Issue::InClone { .. } => return Ok(false),
            Issue::CloneAdrift { .. } | Issue::CloneWithoutTrees { .. } => self.view(issue)?,
            Issue::BrokenRollback { .. } => self.end_rollback()?,
            Issue::NoPlainFile { .. }
            | Issue::MissingPlainFile { .. }
            | Issue::LooseExternal { .. }
            | Issue::SettledBeyondEnd { .. }
            | Issue::ShortPlainFile { .. }
            | Issue::Unmarked
            | Issue::ExtraPlainFile { .. } => return self.external(issue),
            Issue::BadMetaRow { key, .. }
            | Issue::DanglingName { key, .. }
            | Issue::TwoRows { key, .. } => self.changes.delete(trees.meta, key),
            Issue::WrongHash { parent, name, key } => self.rehash(*parent, name, key)?,
            Issue::BadRow { tree, key } => self.delete_bad_row(tree, key),
            Issue::NoRoot => self.put_directory(&trees.keys.own(Ino::ROOT), Ino::ROOT, 0o755),
            Issue::WrongType { key, ino } => self.put_type(key, *ino)?,
            Issue::LinkCount { key, counted, .. } => {
                self.change(key, |head| head.nlink = *counted)?;
            }
            Issue::Nameless { ino } => self.rescue(*ino)?,
            Issue::UnlistedOrphan { ino } => self.list_orphan(*ino),
            Issue::FalseOrphan { ino } => self.changes.delete(trees.sys, &trees.keys.orphan(*ino)),
            Issue::FalsePolicy { .. } | Issue::FalseClonePolicy { .. } => self.delete_policy(issue),
            Issue::MissingDirectory { ino } => self.remake(*ino)?,
            Issue::NotADirectory { ino } => self.move_entries(*ino)?,
            Issue::Unreachable { ino, key } => self.rehang(*ino, key)?,
            Issue::LooseData { ino } => self.delete_chunks(*ino, 0),
            Issue::DataBeyondEnd { ino, chunk } => self.delete_chunks(*ino, *chunk),
            Issue::LongChunk { .. } => self.cut_long(issue)?,
            Issue::ChunkCount { key, counted, .. } => self.note_holes(key, *counted)?,
            Issue::LooseXattr { ino, key: None } => self.delete_xattrs(*ino),
            Issue::LooseXattr { key: Some(key), .. } => {
                self.change(key, |head| head.flags |= row_flag::XATTRS)?;
            }
            Issue::LongInline { key, .. } => self.cut_inline(key)?,
            Issue::LooseAllocated { .. }
            | Issue::BadAllocated { .. }
            | Issue::UnwrittenCount { .. }
            | Issue::UnmarkedAllocated => self.allocated(issue)?,
            Issue::NoSharedRow { ino, key } => self.put_shared_row(*ino, key)?,
            Issue::UnmarkedShared => self.mark_header(|header| header.has_shared = true)?,
            Issue::LooseSharedRow { .. }
            | Issue::MissingUser { .. }
            | Issue::FalseUser { .. }
            | Issue::SharedBeyondEnd { .. } => shared::repair(trees, &mut self.changes, issue)?,
            Issue::BackRow { ino, place } => back::put(trees, &mut self.changes, *ino, *place),
            Issue::NextIno { needed, .. } => self.put_number(&trees.keys.next_ino(), *needed),
            Issue::InodeCount { counted, .. } => {
                self.put_number(&trees.keys.inode_count(), *counted);
            }
        }
        self.commit()?;
        debug_assert!(self.changes.is_empty(), "the repair is committed");
        Ok(true)
    }

    fn delete_bad_row(&mut self, tree: &str, key: &[u8]) {
        debug_assert!(
            matches!(tree, "data" | "xattr" | "sys"),
            "rows of the meta tree are told apart"
        );
        let trees = self.trees;
        let tree = match tree {
            "data" => trees.data,
            "xattr" => trees.xattr,
            _ => trees.sys,
        };
        self.changes.delete(tree, key);
    }

    fn put_type(&mut self, key: &[u8], ino: Ino) -> FsResult<()> {
        if let Some(head) = self.head(&self.trees.keys.own(ino))? {
            let row = encode_link(ino, head.kind);
            debug_assert!(Locator::name_of(key).is_some(), "links are under names");
            debug_assert!(
                is_readable(Tree::Meta, key, &row),
                "a repaired row is read again"
            );
            self.changes.put(self.trees.meta, key, &row);
        }
        Ok(())
    }

    fn put_number(&mut self, key: &[u8], number: u64) {
        let sys = self.trees.sys;
        let row = encode_number(number);
        debug_assert!(
            is_readable(Tree::Sys, key, &row),
            "a repaired row is read again"
        );
        self.changes.put(sys, key, &row);
    }

    fn list_orphan(&mut self, ino: Ino) {
        debug_assert_ne!(ino, Ino::ROOT, "the root has no name to lose");
        let key = self.trees.keys.orphan(ino);
        debug_assert!(
            is_readable(Tree::Sys, &key, &[]),
            "a repaired row is read again"
        );
        self.changes.put(self.trees.sys, &key, &[]);
    }

    /// An issue of allocated extents.
    fn allocated(&mut self, issue: &Issue) -> FsResult<()> {
        let trees = self.trees;
        match issue {
            Issue::LooseAllocated { ino } => allocated::delete(trees, &mut self.changes, *ino),
            Issue::BadAllocated { ino, key } => self.drop_allocated(*ino, key)?,
            Issue::UnwrittenCount { counted, .. } => {
                self.put_number(&trees.keys.unwritten(), *counted);
            }
            _ => {
                debug_assert_eq!(
                    issue,
                    &Issue::UnmarkedAllocated,
                    "all others have a repair of their own"
                );
                self.mark_header(|header| header.has_allocated = true)?;
            }
        }
        Ok(())
    }

    /// An issue of external files.
    fn external(&mut self, issue: &Issue) -> FsResult<bool> {
        let trees = self.trees;
        match issue {
            Issue::LooseExternal { ino } => {
                self.changes.delete(trees.sys, &trees.keys.external(*ino));
            }
            Issue::SettledBeyondEnd { ino, size: most }
            | Issue::ShortPlainFile { ino, len: most, .. } => {
                external::unsettle(trees, &mut self.changes, *ino, *most)?;
            }
            Issue::Unmarked => self.mark_header(|header| header.has_external = true)?,
            Issue::ExtraPlainFile { name, .. } => {
                let Some(files) = self.files else {
                    return Ok(false);
                };
                files.set_aside(*name)?;
            }
            _ => {
                debug_assert!(
                    !issue.is_repairable(),
                    "all others have a repair of their own"
                );
                return Ok(false);
            }
        }
        self.commit()?;
        Ok(true)
    }

    fn commit(&mut self) -> FsResult<()> {
        if !self.changes.is_empty() {
            let options = CommitOptions {
                space: SpaceClass::Reserve,
                ..CommitOptions::default()
            };
            self.trees.schema.now().commit(&self.changes, options)?;
            self.changes.clear();
        }
        debug_assert!(self.changes.is_empty(), "nothing is committed twice");
        Ok(())
    }

    /// Deletes the contents of an inode from a chunk on.
    fn delete_chunks(&mut self, ino: Ino, chunk: u64) {
        let rest = self.trees.keys.chunks_from(ino, chunk);
        debug_assert!(rest.start() < rest.end(), "there may be chunks");
        self.changes
            .delete_range(self.trees.data, rest.start(), rest.end());
    }

    fn mark_header(&mut self, mark: impl FnOnce(&mut FsHeader)) -> FsResult<()> {
        let sys = self.trees.sys;
        let key = self.trees.keys.header();
        let row = self.trees.schema.now().get(sys, &key)?;
        let row = row.ok_or_else(|| FsError::Corrupt("there is no header".to_owned()))?;
        let mut header = FsHeader::decode(&row)?;
        mark(&mut header);
        let row = header.encode();
        debug_assert!(
            is_readable(Tree::Sys, &key, &row),
            "a repaired row is read again"
        );
        self.changes.put(sys, &key, &row);
        Ok(())
    }

    fn put_shared_row(&mut self, ino: Ino, key: &[u8]) -> FsResult<()> {
        let new = self.new_number()?;
        let size = self.head(key)?.map_or(0, |head| head.size);
        shared::put_row(self.trees, &mut self.changes, ino, size, new)
    }

    fn delete_xattrs(&mut self, ino: Ino) {
        let all = self.trees.keys.xattrs(ino);
        debug_assert!(all.start() < all.end(), "there may be attributes");
        self.changes
            .delete_range(self.trees.xattr, all.start(), all.end());
    }

    fn cut_long(&mut self, issue: &Issue) -> FsResult<()> {
        match issue {
            Issue::LongChunk {
                ino,
                chunk,
                len_bytes,
            } => self.cut_chunk(&self.trees.keys.chunk(*ino, *chunk), *len_bytes),
            _ => {
                debug_assert!(false, "it is no issue of a long chunk");
                Ok(())
            }
        }
    }

    fn cut_chunk(&mut self, key: &[u8], len_bytes: u64) -> FsResult<()> {
        let data = self.trees.data;
        if let Some(bytes) = self.trees.schema.now().get(data, key)? {
            let len = usize::try_from(len_bytes).unwrap_or(usize::MAX);
            let left = &bytes[..len.min(bytes.len())];
            debug_assert!(!left.is_empty(), "an empty chunk is absent");
            debug_assert!(
                is_readable(Tree::Data, key, left),
                "a repaired row is read again"
            );
            self.changes.put(data, key, left);
        }
        Ok(())
    }

    fn note_holes(&mut self, key: &[u8], chunks: u64) -> FsResult<()> {
        self.change(key, |head| {
            head.flags |= row_flag::HOLES;
            head.chunks = chunks;
        })
    }

    fn drop_allocated(&mut self, ino: Ino, key: &[u8]) -> FsResult<()> {
        let chunks = allocated::chunks(self.trees, ino)?;
        debug_assert!(self.changes.is_empty(), "chunks are counted as they are");
        allocated::delete(self.trees, &mut self.changes, ino);
        self.change(key, |head| {
            head.flags &= !row_flag::ALLOCATED;
            head.chunks = chunks;
        })
    }

    fn row(&self, key: &[u8]) -> FsResult<Option<bytes::Bytes>> {
        Ok(self.trees.schema.now().get(self.trees.meta, key)?)
    }

    fn head(&self, key: &[u8]) -> FsResult<Option<InodeHead>> {
        let Some(row) = self.row(key)? else {
            return Ok(None);
        };
        Ok(match MetaRow::decode(&row)? {
            MetaRow::Inode(head, _) => Some(head),
            MetaRow::Link { .. } => None,
        })
    }

    fn put_inode(&mut self, key: &[u8], head: &InodeHead, tail: &[u8]) {
        debug_assert!(
            (1..=INO_MAX).contains(&head.ino.0),
            "a reader takes no other number"
        );
        let mut row = head.encode().to_vec();
        row.extend_from_slice(tail);
        debug_assert!(
            is_readable(Tree::Meta, key, &row),
            "a repaired row is read again"
        );
        self.changes.put(self.trees.meta, key, &row);
    }

    /// Changes an inode's row. One that is gone meanwhile needs no change.
    fn change(&mut self, key: &[u8], apply: impl FnOnce(&mut InodeHead)) -> FsResult<()> {
        let Some(row) = self.row(key)? else {
            return Ok(());
        };
        if let MetaRow::Inode(mut head, tail) = MetaRow::decode(&row)? {
            let ino = head.ino;
            apply(&mut head);
            debug_assert_eq!(head.ino, ino, "an inode keeps its number");
            self.put_inode(key, &head, tail);
        }
        Ok(())
    }

    fn put_directory(&mut self, key: &[u8], ino: Ino, perm: u16) {
        debug_assert!(
            (1..=INO_MAX).contains(&ino.0),
            "a reader takes no other number"
        );
        debug_assert_eq!(perm & !0o7777, 0, "permissions and nothing else");
        let head = InodeHead {
            perm,
            nlink: 2,
            ..InodeHead::new(ino, FileKind::Directory)
        };
        self.put_inode(key, &head, &[]);
    }

    fn rehash(&mut self, parent: Ino, name: &[u8], key: &[u8]) -> FsResult<()> {
        let right = self.trees.keys.dentry(parent, name);
        debug_assert_ne!(&right[..], key, "the name is under another hash");
        if let Some(row) = self.row(key)? {
            self.changes.delete(self.trees.meta, key);
            if self.row(&right)?.is_none() {
                self.changes.put(self.trees.meta, &right, &row);
            }
        }
        Ok(())
    }

    /// Gives an inode under its own number a name in `lost+found`.
    fn rescue(&mut self, ino: Ino) -> FsResult<()> {
        let Some(row) = self.row(&self.trees.keys.own(ino))? else {
            return Ok(());
        };
        let MetaRow::Inode(mut head, tail) = MetaRow::decode(&row)? else {
            return Ok(());
        };
        let name = self.lost_name(ino)?;
        if head.kind == FileKind::Directory {
            self.put_inode(&name, &head, tail);
            self.changes
                .delete(self.trees.meta, &self.trees.keys.own(ino));
            return Ok(());
        }
        head.nlink = 1;
        let link = encode_link(ino, head.kind);
        debug_assert!(
            is_readable(Tree::Meta, &name, &link),
            "a repaired row is read again"
        );
        self.changes.put(self.trees.meta, &name, &link);
        self.put_inode(&self.trees.keys.own(ino), &head, tail);
        Ok(())
    }

    /// Makes a directory again whose entries are still there.
    fn remake(&mut self, ino: Ino) -> FsResult<()> {
        let name = self.lost_name(ino)?;
        self.put_directory(&name, ino, 0o700);
        Ok(())
    }

    /// Moves the entries of what is no directory to a new one in `lost+found`.
    fn move_entries(&mut self, ino: Ino) -> FsResult<()> {
        let name = self.lost_name(ino)?;
        let target = self.new_number()?;
        debug_assert_ne!(target, ino, "a new number");
        self.put_directory(&name, target, 0o700);
        let view = self.trees.schema.now();
        let all = self.trees.keys.directory(ino);
        let mut rows = view.scan(self.trees.meta, all.keys(), Direction::Forward)?;
        while let Some((key, row)) = rows.next()? {
            if let Some((_, entry)) = Locator::name_of(key) {
                debug_assert_eq!(
                    Locator::ino_of(key),
                    Some(ino),
                    "an entry of this directory"
                );
                let moved = self.trees.keys.dentry(target, entry);
                self.changes.delete(self.trees.meta, key);
                self.changes.put(self.trees.meta, &moved, row);
            }
        }
        Ok(())
    }

    /// Takes a directory out of a ring and names it in `lost+found`.
    fn rehang(&mut self, ino: Ino, key: &[u8]) -> FsResult<()> {
        let Some(row) = self.row(key)? else {
            return Ok(());
        };
        let name = self.lost_name(ino)?;
        self.changes.delete(self.trees.meta, key);
        self.changes.put(self.trees.meta, &name, &row);
        Ok(())
    }

    fn cut_inline(&mut self, key: &[u8]) -> FsResult<()> {
        let Some(row) = self.row(key)? else {
            return Ok(());
        };
        if let MetaRow::Inode(mut head, tail) = MetaRow::decode(&row)? {
            let is_inline = head.kind == FileKind::Symlink
                || Contents::of_flags(head.flags) == Contents::Inline;
            if is_inline {
                head.size = head.size.min(CHUNK_BYTES);
            }
            let most = if is_inline { head.size } else { 0 };
            let len = tail
                .len()
                .min(usize::try_from(most).expect("at most a chunk"));
            debug_assert!(
                len as u64 <= CHUNK_BYTES,
                "contents in a row are no longer than a chunk"
            );
            self.put_inode(key, &head, &tail[..len]);
        }
        Ok(())
    }

    /// Key of the name that an inode gets in `lost+found`, which is made if it does not exist.
    /// Where something else has that name, another one is taken.
    fn lost_name(&mut self, ino: Ino) -> FsResult<RowKey> {
        let mut name = LOST_AND_FOUND.to_vec();
        let directory = loop {
            let key = self.trees.keys.dentry(Ino::ROOT, &name);
            match self.row(&key)?.as_deref().map(MetaRow::decode) {
                None => break self.make_lost_and_found(&key)?,
                Some(Ok(MetaRow::Inode(head, _))) if head.kind == FileKind::Directory => {
                    break head.ino;
                }
                Some(_) if name.len() < NAME_BYTES_MAX => name.push(b'+'),
                Some(_) => return Err(FsError::Corrupt("lost+found is no directory".to_owned())),
            }
        };
        debug_assert!(name.len() <= NAME_BYTES_MAX, "a name can be so long");
        let name = format!("#{ino}");
        Ok(self.trees.keys.dentry(directory, name.as_bytes()))
    }

    fn make_lost_and_found(&mut self, key: &[u8]) -> FsResult<Ino> {
        debug_assert_eq!(Locator::ino_of(key), Some(Ino::ROOT), "it lies in the root");
        let ino = self.new_number()?;
        self.put_directory(key, ino, 0o700);
        self.commit()?;
        debug_assert!(
            self.changes.is_empty(),
            "it is there before something is put into it"
        );
        Ok(ino)
    }

    /// A number that no inode has, taken for good with the next commit.
    fn new_number(&mut self) -> FsResult<Ino> {
        let (view, sys) = (self.trees.schema.now(), self.trees.sys);
        let key = self.trees.keys.next_ino();
        let stored = view.get(sys, &key)?;
        let known = stored
            .map(|row| decode_number(&row))
            .transpose()?
            .unwrap_or(0);
        let ino = Ino(known.max(self.largest()?.saturating_add(1)));
        if ino.0 >= INO_MAX {
            return Err(FsError::Corrupt("no inode number is left".to_owned()));
        }
        debug_assert!(ino > Ino::ROOT, "a number of no inode");
        self.put_number(&key, ino.0 + 1);
        Ok(ino)
    }

    /// Largest directory number that a name is in. No inode of a later number has names, so that a
    /// number after it and after the stored one is new.
    fn largest(&self) -> FsResult<u64> {
        let view = self.trees.schema.now();
        let mut rows = view.scan(self.trees.meta, KeyRange::all(), Direction::Backward)?;
        let last = rows.next()?.and_then(|(key, _)| Locator::ino_of(key));
        Ok(last.unwrap_or(Ino::ROOT).0)
    }
}
