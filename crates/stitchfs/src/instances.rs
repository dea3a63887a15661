//! Instances of a store: further databases, or file systems, on the same volume.

use crate::engine::Instance;
use crate::make::MakeOptions;
use crate::store::{Store, format_file_system};
use crate::{Database, InstanceOptions, StoreError};

impl Store {
    /// Names of all instances, `main` first.
    #[must_use]
    pub fn instances(&self) -> Vec<String> {
        self.first.names()
    }

    /// As [`Database::create_instance`]; with `make`, there is an empty file system in it, whose
    /// root directory and compression are as that says.
    ///
    /// # Errors
    /// As [`Database::create_instance`].
    pub fn create_instance(
        &self,
        name: &str,
        options: &InstanceOptions,
        make: Option<&MakeOptions>,
    ) -> Result<(), StoreError> {
        let instance = self.first.create_instance(name, options)?;
        if let Some(make) = make {
            format_file_system(&instance.engine, make)?;
        }
        Ok(())
    }

    /// True if an instance holds nothing: no tree and no file system.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such instance.
    pub fn is_instance_empty(&self, name: &str) -> Result<bool, StoreError> {
        Ok(self.first.find(Some(name))?.engine.trees().is_empty())
    }

    /// As [`Database::remove_instance`].
    ///
    /// # Errors
    /// As [`Database::remove_instance`].
    pub fn remove_instance(&self, name: &str) -> Result<(), StoreError> {
        self.first.remove_instance(name)
    }
}

impl Database {
    /// Names of all instances of the store, `main` first. Each is a database of its own, with its
    /// own trees, log and background work; they share the space, and the memory that the store was
    /// opened with.
    #[must_use]
    pub fn instances(&self) -> Vec<String> {
        self.first.names()
    }

    /// Another instance of the same store, which stays open as long as any of them is. Commits to
    /// two instances are not in one order: after a power cut each is as it was after one of its
    /// own.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is none of this name.
    pub fn instance(&self, name: &str) -> Result<Self, StoreError> {
        Ok(self.with(self.first.find(Some(name))?))
    }

    /// Makes another instance, which is empty.
    ///
    /// ```
    /// use stitchfs::{Database, InstanceOptions, StoreOptions, TreeOptions};
    /// let db = Database::in_memory(32 << 20, &StoreOptions::default())?;
    /// let cache = db.create_instance("cache", &InstanceOptions::default())?;
    /// let pages = cache.create_tree("pages", &TreeOptions::default())?;
    /// pages.put(b"/", b"<html>")?;
    /// assert!(db.tree("pages").is_none(), "each has its own trees");
    /// assert_eq!(db.instances(), ["main", "cache"]);
    /// # Ok::<(), stitchfs::StoreError>(())
    /// ```
    ///
    /// # Errors
    /// [`Exists`](crate::ErrorKind::Exists) if there is one of this name;
    /// [`Invalid`](crate::ErrorKind::Invalid) for what is no name (1 to 32 letters, digits, and,
    /// but for the first, `-`, `_`, `.`), and for one more than 28 beside `main`;
    /// [`NoSpace`](crate::ErrorKind::NoSpace) if no free zones lie side by side for its logs.
    ///
    /// # Durability
    /// On the medium when this returns; a crash leaves all of it or nothing. Older programs refuse
    /// a store with further instances.
    ///
    /// # Cost
    /// Its logs, as long as those of the store by default, are written once.
    pub fn create_instance(
        &self,
        name: &str,
        options: &InstanceOptions,
    ) -> Result<Self, StoreError> {
        Ok(self.with(self.first.create_instance(name, options)?))
    }

    /// Removes an instance with all that is in it. Handles of it take no more writes and find
    /// nothing, but scans that have begun go on. Its space is free when this returns and the last
    /// of them has ended.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is none of this name,
    /// [`Invalid`](crate::ErrorKind::Invalid) for `main`.
    ///
    /// # Durability
    /// Gone from the medium when this returns; a crash leaves all of it or nothing.
    pub fn remove_instance(&self, name: &str) -> Result<(), StoreError> {
        self.first.remove_instance(name)
    }

    fn with(&self, instance: Instance) -> Self {
        Self::of_instance(self.first.clone(), instance)
    }
}
