//! Schemas and dictionaries. A dictionary's tree is named `schema/dictionary` in the engine.

mod branch;

pub use branch::DictionaryBranch;

use crate::{ConflictPolicy, DbError, Transaction, TransactionOptions, Transactions, View};
use stitch_base::TreeId;
use stitch_base::sync::Arc;
use stitch_kv::{Engine, TreeOptions};

/// A tree with a role in a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dictionary {
    tree: TreeId,
}

impl Dictionary {
    /// Its tree in the engine.
    #[must_use]
    pub const fn tree(self) -> TreeId {
        self.tree
    }
}

impl From<Dictionary> for TreeId {
    fn from(dictionary: Dictionary) -> Self {
        dictionary.tree
    }
}

/// A named set of dictionaries in a store. Cheap to clone; clones share the locks of transactions.
#[derive(Clone)]
pub struct Schema {
    transactions: Transactions,
    name: Arc<str>,
    dictionaries: Arc<[(String, Dictionary)]>,
}

impl std::fmt::Debug for Schema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Schema")
            .field("name", &self.name)
            .field("dictionaries", &self.dictionaries)
            .finish_non_exhaustive()
    }
}

impl Schema {
    /// Makes a schema with these dictionaries. A crash in the middle leaves a schema with fewer of
    /// them, which [`Self::open`] opens and whose user sees what is missing.
    ///
    /// # Errors
    /// [`DbError::SchemaExists`], [`DbError::BadName`], [`DbError::Kv`].
    ///
    /// # Durability
    /// On the medium when this returns.
    pub fn create(
        engine: Arc<dyn Engine>,
        name: &str,
        dictionaries: &[(&str, TreeOptions)],
    ) -> Result<Self, DbError> {
        check_name(name)?;
        for (dictionary, _) in dictionaries {
            check_name(dictionary)?;
        }
        if !list(engine.as_ref(), name).is_empty() {
            return Err(DbError::SchemaExists(name.to_owned()));
        }
        for (dictionary, options) in dictionaries {
            engine.create_tree(&format!("{name}/{dictionary}"), options)?;
        }
        Self::open(engine, name)
    }

    /// Opens a schema.
    ///
    /// # Errors
    /// [`DbError::NoSchema`], [`DbError::BadName`].
    pub fn open(engine: Arc<dyn Engine>, name: &str) -> Result<Self, DbError> {
        check_name(name)?;
        let dictionaries = list(engine.as_ref(), name);
        if dictionaries.is_empty() {
            return Err(DbError::NoSchema(name.to_owned()));
        }
        Ok(Self {
            transactions: Transactions::new(engine),
            name: name.into(),
            dictionaries: dictionaries.into(),
        })
    }

    /// Removes the schema and all that is in it, in one step where the engine drops several trees
    /// in one. Branches of it go on. Other handles of it find no dictionary any more.
    ///
    /// # Errors
    /// [`DbError::Kv`].
    ///
    /// # Durability
    /// On the medium when this returns.
    pub fn remove(self) -> Result<(), DbError> {
        Ok(self.engine().drop_trees(&self.trees())?)
    }

    fn trees(&self) -> Vec<TreeId> {
        let dictionaries = self.dictionaries.iter();
        let trees: Vec<TreeId> = dictionaries.map(|(_, found)| found.tree).collect();
        debug_assert!(!trees.is_empty(), "a schema has a dictionary");
        trees
    }

    /// The name of the schema.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The dictionary of this name.
    ///
    /// # Errors
    /// [`DbError::NoDictionary`].
    pub fn dictionary(&self, name: &str) -> Result<Dictionary, DbError> {
        let found = self.dictionaries.iter().find(|(n, _)| n == name);
        found
            .map(|(_, dictionary)| *dictionary)
            .ok_or_else(|| DbError::NoDictionary {
                schema: self.name.to_string(),
                dictionary: name.to_owned(),
            })
    }

    /// The dictionaries with their names.
    #[must_use]
    pub fn dictionaries(&self) -> &[(String, Dictionary)] {
        &self.dictionaries
    }

    /// The name of a dictionary; `None` if it is not of this schema.
    #[must_use]
    pub fn name_of(&self, dictionary: Dictionary) -> Option<&str> {
        let found = self.dictionaries.iter().find(|(_, of)| *of == dictionary);
        found.map(|(name, _)| name.as_str())
    }

    /// The present.
    #[must_use]
    pub fn now(&self) -> View {
        View::new(Arc::clone(self.engine()), None)
    }

    /// This moment, held open as long as the view or a clone of it lives.
    #[must_use]
    pub fn snapshot(&self) -> View {
        self.now().snapshot()
    }

    /// The store that it is in.
    #[must_use]
    pub const fn engine(&self) -> &Arc<dyn Engine> {
        self.transactions.engine()
    }

    /// Begins a transaction over the dictionaries.
    #[must_use]
    pub fn begin(&self, options: &TransactionOptions) -> Transaction {
        self.transactions.begin(options)
    }

    /// Where its transactions begin: to run closures in them.
    #[must_use]
    pub const fn transactions(&self) -> &Transactions {
        &self.transactions
    }

    /// The same schema, whose transactions do something else on a conflict: ask a function, or
    /// overwrite what others wrote. Other handles of the schema stay as they are.
    #[must_use]
    pub fn with_conflicts(mut self, conflicts: ConflictPolicy) -> Self {
        self.transactions = self.transactions.with_conflicts(conflicts);
        self
    }
}

fn check_name(name: &str) -> Result<(), DbError> {
    if name.is_empty() || name.contains('/') {
        return Err(DbError::BadName(name.to_owned()));
    }
    Ok(())
}

fn list(engine: &dyn Engine, schema: &str) -> Vec<(String, Dictionary)> {
    let of = |info: stitch_kv::TreeInfo| {
        let name = info.name.strip_prefix(schema)?.strip_prefix('/')?;
        Some((name.to_owned(), Dictionary { tree: info.id }))
    };
    engine.trees().into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Changes, CommitOptions, Direction, KeyRange};
    use stitch_base::ErrorKind;
    use stitch_kv::ModelEngine;

    fn engine() -> Arc<dyn Engine> {
        Arc::new(ModelEngine::new(stitch_kv::UpsertRegistry::default()))
    }

    fn two() -> [(&'static str, TreeOptions); 2] {
        [
            ("meta", TreeOptions::default()),
            ("data", TreeOptions::default()),
        ]
    }

    #[test]
    fn a_schema_is_found_again_and_apart_from_others() {
        let engine = engine();
        let made = Schema::create(Arc::clone(&engine), "fs", &two()).unwrap();
        Schema::create(Arc::clone(&engine), "fs2", &two()).unwrap();
        let found = Schema::open(Arc::clone(&engine), "fs").unwrap();
        assert_eq!(found.dictionaries(), made.dictionaries());
        assert_eq!(found.dictionaries().len(), 2);
        let meta = found.dictionary("meta").unwrap();
        assert_ne!(meta, found.dictionary("data").unwrap());
        let missing = found.dictionary("xattr").unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        let other = Schema::open(engine, "fs2").unwrap();
        assert_ne!(other.dictionary("meta").unwrap(), meta);
    }

    #[test]
    fn names_are_checked() {
        let engine = engine();
        let none = Schema::open(Arc::clone(&engine), "fs").unwrap_err();
        assert!(matches!(none, DbError::NoSchema(_)));
        for name in ["", "a/b"] {
            let bad = Schema::create(Arc::clone(&engine), name, &two()).unwrap_err();
            assert!(matches!(bad, DbError::BadName(_)));
        }
        Schema::create(Arc::clone(&engine), "fs", &two()).unwrap();
        let twice = Schema::create(engine, "fs", &two()).unwrap_err();
        assert_eq!(twice.kind(), ErrorKind::Exists);
    }

    #[test]
    fn a_snapshot_shows_its_moment_and_takes_no_writes() {
        let schema = Schema::create(engine(), "fs", &two()).unwrap();
        let (meta, data) = (
            schema.dictionary("meta").unwrap(),
            schema.dictionary("data").unwrap(),
        );
        let mut changes = Changes::new();
        changes.put(meta, b"k", b"1");
        changes.put(data, b"k", b"1");
        let now = schema.now();
        now.commit(&changes, CommitOptions::default()).unwrap();
        let then = schema.snapshot();
        changes.clear();
        changes.delete(meta, b"k");
        now.commit(&changes, CommitOptions::default()).unwrap();
        assert_eq!(now.get(meta, b"k").unwrap(), None);
        assert!(now.get(data, b"k").unwrap().is_some());
        assert!(then.get(meta, b"k").unwrap().is_some());
        assert_eq!(then.snapshot().seqno(), then.seqno());
        let mut scan = then
            .scan(meta, KeyRange::all(), Direction::Forward)
            .unwrap();
        assert!(scan.next().unwrap().is_some());
        let refused = then.commit(&changes, CommitOptions::default()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnly);
    }

    #[test]
    fn a_transaction_spans_dictionaries_and_a_handle_has_its_own_policy() {
        let schema = Schema::create(engine(), "fs", &two()).unwrap();
        let (meta, data) = (
            schema.dictionary("meta").unwrap(),
            schema.dictionary("data").unwrap(),
        );
        let write = |schema: &Schema, value: &[u8]| {
            let mut transaction = schema.begin(&TransactionOptions::default());
            transaction.put(meta, b"k", value).unwrap();
            transaction.put(data, b"k", value).unwrap();
            transaction
        };
        let lax = schema.clone().with_conflicts(ConflictPolicy::Ignore);
        let (first, strict, ignoring) = (
            write(&schema, b"1"),
            write(&schema, b"2"),
            write(&lax, b"3"),
        );
        first.commit(CommitOptions::default()).unwrap();
        let refused = strict.commit(CommitOptions::default()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        assert!(matches!(refused, DbError::Conflict { keys } if keys.len() == 2));
        ignoring.commit(CommitOptions::default()).unwrap();
        for dictionary in [meta, data] {
            let value = schema.now().get(dictionary, b"k").unwrap();
            assert_eq!(value.as_deref(), Some(&b"3"[..]));
        }
    }
}
