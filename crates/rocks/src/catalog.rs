//! The catalog: which trees a store has, in the default column family.
//!
//! 1. A tree is made: its number is taken and synced, its column family made, its record written
//!    and synced. A family without a record is what a crash left, and goes at the next open.
//! 2. A tree is dropped: its record goes and is synced, then its column family.
//!
//! Invariant: tree numbers are never reused, since the next one is durable before a number is in
//! use.

use crate::database::{Database, Family, Opening, ReadOptions, family_names, storage};
use crate::point::get;
use crate::scan::RocksScan;
use crate::write::WriteBatch;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::path::Path;
use std::sync::Arc;
use stitch_base::{ErrorKind, TreeId};
use stitch_format::rocks::{
    NEXT_TREE_KEY, TREE_KEY, TreeRecord, VERSION, VERSION_KEY, family_name, tree_key,
    tree_of_family, tree_of_key,
};
use stitch_kv::{Compression, Direction, KeyRange, KvError, Scan as _, TreeInfo, TreeOptions};

/// A tree and its column family.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) info: TreeInfo,
    pub(crate) family: Arc<Family>,
}

/// All trees of an open store.
#[derive(Debug)]
pub(crate) struct Catalog {
    pub(crate) trees: BTreeMap<TreeId, Tree>,
    default: Arc<Family>,
    next: TreeId,
}

impl Catalog {
    /// Opens a store with all of its trees. `is_new`: it is made, and must not be there.
    pub(crate) fn open(path: &Path, opening: &Opening) -> Result<(Arc<Database>, Self), KvError> {
        let names = match opening.creates {
            true => vec![c"default".to_owned()],
            false => family_names(path)?,
        };
        let (database, families) = Database::open(path, opening, &names)?;
        let mut by_name: BTreeMap<CString, Family> = names.into_iter().zip(families).collect();
        let default = by_name
            .remove(c"default")
            .ok_or_else(|| foreign("it has no default column family"))?;
        let mut catalog = Self {
            trees: BTreeMap::new(),
            default: Arc::new(default),
            next: TreeId(1),
        };
        match opening.creates {
            true => catalog.begin(&database)?,
            false => catalog.read(&database, by_name, opening.is_read_only)?,
        }
        Ok((database, catalog))
    }

    fn begin(&self, database: &Database) -> Result<(), KvError> {
        let mut batch = WriteBatch::new();
        batch.put(&self.default, VERSION_KEY, &VERSION.to_le_bytes());
        batch.put(&self.default, NEXT_TREE_KEY, &self.next.0.to_le_bytes());
        batch.write(database, true)
    }

    fn read(
        &mut self,
        database: &Database,
        mut families: BTreeMap<CString, Family>,
        is_read_only: bool,
    ) -> Result<(), KvError> {
        let version = self.number(VERSION_KEY)?;
        match version {
            None => return Err(foreign("it has no version of ours")),
            Some(version) if version > VERSION => {
                let what = format!("the store has layout {version}, this program knows {VERSION}");
                return Err(storage(ErrorKind::Unsupported, what));
            }
            Some(_) => {}
        }
        let next = self.number(NEXT_TREE_KEY)?;
        self.next = TreeId(next.ok_or_else(|| foreign("it has no next tree number"))?);
        for (id, record) in self.records()? {
            let name = c_name(id);
            let family = families.remove(name.as_c_str());
            let family = family.ok_or_else(|| foreign("a tree has no column family"))?;
            let info = info_of(id, record);
            if !is_read_only {
                database.tune(&family, &info.options)?;
            }
            let family = Arc::new(family);
            self.trees.insert(id, Tree { info, family });
        }
        for (name, family) in families {
            remove_leftover(database, &name, &family, is_read_only)?;
        }
        Ok(())
    }

    fn number(&self, key: &[u8]) -> Result<Option<u32>, KvError> {
        let value = get(&self.default, &ReadOptions::new(None), key)?;
        let Some(value) = value else {
            return Ok(None);
        };
        let number = value.as_ref().try_into().map(u32::from_le_bytes);
        number
            .map(Some)
            .map_err(|_| foreign("a number of its catalog has another length"))
    }

    fn records(&self) -> Result<Vec<(TreeId, TreeRecord)>, KvError> {
        let range = KeyRange::new(&[TREE_KEY], &[TREE_KEY + 1]);
        let reading = (ReadOptions::new(None), None);
        let mut scan = RocksScan::new(
            Arc::clone(&self.default),
            range,
            Direction::Forward,
            reading,
        );
        let mut records = Vec::new();
        while let Some((key, value)) = scan.next()? {
            let id = tree_of_key(key).ok_or_else(|| foreign("a key of its catalog is wrong"))?;
            let record = TreeRecord::decode(value);
            let record = record.map_err(|error| KvError::storage(ErrorKind::Corrupt, error))?;
            records.push((id, record));
        }
        Ok(records)
    }

    /// Makes a tree.
    pub(crate) fn create(
        &mut self,
        database: &Arc<Database>,
        name: &str,
        options: &TreeOptions,
    ) -> Result<TreeId, KvError> {
        if self.trees.values().any(|tree| tree.info.name == name) {
            return Err(KvError::TreeExists(name.to_owned()));
        }
        let id = self.next;
        let next = id.next();
        let mut taken = WriteBatch::new();
        taken.put(&self.default, NEXT_TREE_KEY, &next.0.to_le_bytes());
        taken.write(database, true)?;
        self.next = next;
        let family = database.create_family(&c_name(id))?;
        database.tune(&family, options)?;
        let info = TreeInfo {
            id,
            name: name.to_owned(),
            options: options.clone(),
            branch: None,
            branch_ranges: None,
        };
        self.write_record(database, &info)?;
        let family = Arc::new(family);
        self.trees.insert(id, Tree { info, family });
        Ok(id)
    }

    /// Drops a tree.
    pub(crate) fn remove(&mut self, database: &Database, id: TreeId) -> Result<(), KvError> {
        let tree = self.trees.get(&id).ok_or(KvError::NoTree(id))?;
        let mut batch = WriteBatch::new();
        batch.delete(&self.default, &tree_key(id));
        batch.write(database, true)?;
        let family = Arc::clone(&tree.family);
        self.trees.remove(&id);
        database.drop_family(&family)
    }

    /// Gives a tree other options.
    pub(crate) fn alter(
        &mut self,
        database: &Database,
        id: TreeId,
        options: &TreeOptions,
    ) -> Result<(), KvError> {
        let tree = self.trees.get(&id).ok_or(KvError::NoTree(id))?;
        let info = TreeInfo {
            options: options.clone(),
            ..tree.info.clone()
        };
        self.write_record(database, &info)?;
        database.tune(&tree.family, options)?;
        if let Some(tree) = self.trees.get_mut(&id) {
            tree.info = info;
        }
        Ok(())
    }

    fn write_record(&self, database: &Database, info: &TreeInfo) -> Result<(), KvError> {
        let mut batch = WriteBatch::new();
        let record = record_of(info).encode();
        batch.put(&self.default, &tree_key(info.id), &record);
        batch.write(database, true)
    }
}

fn foreign(why: &str) -> KvError {
    let what = format!("not a store of this program: {why}");
    storage(ErrorKind::Corrupt, what)
}

fn c_name(id: TreeId) -> CString {
    CString::new(family_name(id)).expect("a name of letters and digits")
}

/// Removes a column family that a crash left without a record.
fn remove_leftover(
    database: &Database,
    name: &CStr,
    family: &Family,
    is_read_only: bool,
) -> Result<(), KvError> {
    let is_ours = name.to_str().ok().and_then(tree_of_family).is_some();
    if !is_ours {
        return Err(foreign("it has a column family with another name"));
    }
    match is_read_only {
        true => Ok(()),
        false => database.drop_family(family),
    }
}

fn record_of(info: &TreeInfo) -> TreeRecord {
    TreeRecord {
        block_bytes: info.options.block_bytes,
        stitch_bytes: info.options.stitch_bytes,
        compression: info.options.compression.code(),
        value_block_bytes: info.options.value_block_bytes,
        name: info.name.clone(),
    }
}

fn info_of(id: TreeId, record: TreeRecord) -> TreeInfo {
    TreeInfo {
        id,
        name: record.name,
        options: TreeOptions {
            block_bytes: record.block_bytes,
            stitch_bytes: record.stitch_bytes,
            compression: Compression::of_code(record.compression).unwrap_or_default(),
            value_block_bytes: record.value_block_bytes,
        },
        branch: None,
        branch_ranges: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_kv::UpsertRegistry;

    fn opening(creates: bool) -> Opening {
        Opening {
            memory_bytes: 8 << 20,
            is_read_only: false,
            creates,
            upserts: UpsertRegistry::default(),
        }
    }

    #[test]
    fn a_family_without_a_record_goes_and_its_number_is_not_used_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let (database, mut catalog) = Catalog::open(folder.path(), &opening(true)).expect("made");
        let options = TreeOptions::default();
        let first = catalog
            .create(&database, "first", &options)
            .expect("a tree");
        // As a crash between both steps leaves it.
        let family = database
            .create_family(&c_name(first.next()))
            .expect("a family");
        catalog.next = first.next().next();
        let mut batch = WriteBatch::new();
        batch.put(
            &catalog.default,
            NEXT_TREE_KEY,
            &catalog.next.0.to_le_bytes(),
        );
        batch.write(&database, true).expect("written");
        drop((family, catalog, database));

        let (database, mut catalog) = Catalog::open(folder.path(), &opening(false)).expect("open");
        assert_eq!(catalog.trees.keys().copied().collect::<Vec<_>>(), [first]);
        let next = catalog.create(&database, "next", &options).expect("a tree");
        assert_eq!(next, first.next().next());
        drop((catalog, database));
        let names = family_names(folder.path()).expect("listed");
        let expected = [c"default".to_owned(), c_name(first), c_name(next)];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_database_of_another_program_and_a_newer_layout_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let (database, catalog) = Catalog::open(folder.path(), &opening(true)).expect("made");
        let mut batch = WriteBatch::new();
        batch.put(&catalog.default, VERSION_KEY, &(VERSION + 1).to_le_bytes());
        batch.write(&database, true).expect("written");
        drop((catalog, database));
        let newer = Catalog::open(folder.path(), &opening(false)).map(drop);
        let kind = newer.map_err(|error| error.kind());
        assert_eq!(kind, Err(ErrorKind::Unsupported));

        let folder = tempfile::tempdir().expect("a folder");
        let default = [c"default".to_owned()];
        drop(Database::open(folder.path(), &opening(true), &default).expect("a database"));
        let other = Catalog::open(folder.path(), &opening(false)).map(drop);
        assert_eq!(other.map_err(|error| error.kind()), Err(ErrorKind::Corrupt));
    }
}
