//! Engines that change a few calls of another one.

use crate::{
    Batch, Capabilities, ChangedKey, CommitOptions, Counters, DeletedRange, Direction, Engine,
    Guards, Holder, KeyRange, KeyRanges, KvError, Limits, NewBranch, PinInfo, PinRanges, ReadHint,
    Scan, Snapshot, SpaceShare, SpaceUsage, TreeInfo, TreeOptions, UpsertRegistry, Violation,
};
use bytes::Bytes;
use stitch_base::{PinId, Seqno, TreeId};

/// Makes [`WrappedEngine`] of the methods of [`Engine`], which are listed here and nowhere else.
macro_rules! wrapped_engine {
    ($(fn $name:ident(&self $(, $arg:ident: $type:ty)*) $(-> $ret:ty)?;)*) => {
        /// An [`Engine`] that forwards every call to another one, except those that its type
        /// defines: an engine with a fault, with a gate, or that counts.
        ///
        /// All calls are forwarded, also those that an engine may leave out. So an engine that must
        /// see or refuse every write, as [`crate::SnapshotEngine`], is none of these.
        pub trait WrappedEngine: Send + Sync {
            /// Returns the engine that calls are forwarded to.
            fn inner(&self) -> &dyn Engine;

            $(
                /// Forwards the call.
                ///
                /// # Errors
                /// As the method of [`Engine`].
                #[allow(clippy::missing_errors_doc)]
                fn $name(&self $(, $arg: $type)*) $(-> $ret)? {
                    self.inner().$name($($arg),*)
                }
            )*
        }

        impl<T: WrappedEngine> Engine for T {
            $(
                fn $name(&self $(, $arg: $type)*) $(-> $ret)? {
                    WrappedEngine::$name(self $(, $arg)*)
                }
            )*
        }

        /// The names of the methods that are forwarded.
        #[cfg(test)]
        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

wrapped_engine! {
    fn limits(&self) -> Limits;
    fn capabilities(&self) -> Capabilities;
    fn trees(&self) -> Vec<TreeInfo>;
    fn trees_at(&self, at: &Snapshot) -> Vec<TreeInfo>;
    fn held_ranges(&self, tree: TreeId, at: &Snapshot) -> Option<KeyRanges>;
    fn create_tree(&self, name: &str, options: &TreeOptions) -> Result<TreeId, KvError>;
    fn drop_tree(&self, tree: TreeId) -> Result<(), KvError>;
    fn drop_trees(&self, trees: &[TreeId]) -> Result<(), KvError>;
    fn alter_tree(&self, tree: TreeId, options: &TreeOptions) -> Result<(), KvError>;
    fn commit(&self, batch: &Batch, options: CommitOptions) -> Result<Seqno, KvError>;
    fn commit_guarded(
        &self,
        batch: &Batch,
        guards: &Guards,
        options: CommitOptions
    ) -> Result<Seqno, KvError>;
    fn changed_keys(&self, guards: &Guards, count_max: usize) -> Result<Vec<ChangedKey>, KvError>;
    fn keys_between(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        moments: (&Snapshot, Option<&Snapshot>),
        count_max: usize
    ) -> Result<Vec<Vec<u8>>, KvError>;
    fn upserts(&self) -> &UpsertRegistry;
    fn sync(&self) -> Result<(), KvError>;
    fn snapshot(&self) -> Snapshot;
    fn create_pin(&self, name: &str, user: &[u8]) -> Result<PinInfo, KvError>;
    fn create_pin_of(
        &self,
        name: &str,
        user: &[u8],
        is_held: &dyn Fn(&TreeInfo) -> bool
    ) -> Result<PinInfo, KvError>;
    fn pins(&self) -> Result<Vec<PinInfo>, KvError>;
    fn pin_by_name(&self, name: &str) -> Result<Option<PinInfo>, KvError>;
    fn pin_by_id(&self, id: PinId) -> Result<Option<PinInfo>, KvError>;
    fn open_pin(&self, name: &str) -> Result<Snapshot, KvError>;
    fn drop_pin(&self, name: &str) -> Result<(), KvError>;
    fn alter_pin(&self, name: &str, user: &[u8]) -> Result<(), KvError>;
    fn narrow_pin(&self, name: &str, ranges: &PinRanges) -> Result<PinInfo, KvError>;
    fn branch_trees(
        &self,
        branches: &[NewBranch<'_>],
        at: Option<&Snapshot>
    ) -> Result<Vec<TreeId>, KvError>;
    fn branch_keys(
        &self,
        branch: TreeId,
        after: Option<&[u8]>,
        count_max: usize
    ) -> Result<Vec<Vec<u8>>, KvError>;
    fn branch_deleted_ranges(&self, branch: TreeId) -> Result<Vec<DeletedRange>, KvError>;
    fn branch_moment(&self, branch: TreeId) -> Result<Snapshot, KvError>;
    fn release_replaced(&self, branches: &[TreeId]) -> Result<(), KvError>;
    fn release_beside(
        &self,
        branch: TreeId,
        ranges: &KeyRanges,
        at: &Snapshot
    ) -> Result<bool, KvError>;
    fn prepare_absorb(&self, branches: &[TreeId]) -> Result<(), KvError>;
    fn absorb(
        &self,
        branches: &[TreeId],
        batch: &Batch,
        guards: &Guards,
        options: CommitOptions
    ) -> Result<Seqno, KvError>;
    fn get(
        &self,
        tree: TreeId,
        key: &[u8],
        at: Option<&Snapshot>
    ) -> Result<Option<Bytes>, KvError>;
    fn get_many(
        &self,
        tree: TreeId,
        keys: &[&[u8]],
        at: Option<&Snapshot>
    ) -> Result<Vec<Option<Bytes>>, KvError>;
    fn scan(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        direction: Direction,
        at: Option<&Snapshot>
    ) -> Result<Box<dyn Scan + '_>, KvError>;
    fn scan_whole(
        &self,
        tree: TreeId,
        range: KeyRange<'_>,
        at: Option<&Snapshot>
    ) -> Result<Box<dyn Scan + '_>, KvError>;
    fn read_ahead(&self, tree: TreeId, hint: &ReadHint<'_>) -> bool;
    fn counters(&self) -> Counters;
    fn space(&self) -> SpaceUsage;
    fn exclusive_space(
        &self,
        holders: &[Holder<'_>],
        watch: &mut dyn FnMut(u64, u64) -> bool
    ) -> Result<Option<Vec<u64>>, KvError>;
    fn range_space(
        &self,
        tree: TreeId,
        ranges: &[KeyRange<'_>],
        at: Option<&Snapshot>
    ) -> Result<SpaceShare, KvError>;
    fn set_aside(&self, bytes: u64) -> Result<(), KvError>;
    fn check(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Vec<Violation>, KvError>;
    fn quiesce(&self) -> Result<(), KvError>;
    fn close(&self) -> Result<(), KvError>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelEngine;

    /// The model, with a fault: each commit is of nothing.
    struct Lossy(ModelEngine);

    impl WrappedEngine for Lossy {
        fn inner(&self) -> &dyn Engine {
            &self.0
        }

        fn commit(&self, _: &Batch, options: CommitOptions) -> Result<Seqno, KvError> {
            self.0.commit(&Batch::new(), options)
        }
    }

    #[test]
    fn every_method_of_the_contract_is_forwarded() {
        let source = include_str!("engine.rs");
        let (_, contract) = source.split_once("pub trait Engine").unwrap();
        let (contract, _) = contract.split_once("\n}\n").unwrap();
        let methods: Vec<&str> = contract
            .lines()
            .filter_map(|line| line.strip_prefix("    fn ")?.split('(').next())
            .collect();
        assert!(methods.len() > 30, "they are found in the source");
        assert_eq!(methods, NAMES);
    }

    #[test]
    fn a_call_that_is_defined_is_not_forwarded_and_others_are() {
        let lossy = Lossy(ModelEngine::new(UpsertRegistry::default()));
        let engine: &dyn Engine = &lossy;
        let tree = Engine::create_tree(engine, "t", &TreeOptions::default()).unwrap();
        let mut batch = Batch::new();
        batch.put(tree, b"key", b"value");
        engine.commit(&batch, CommitOptions::default()).unwrap();
        assert_eq!(engine.get(tree, b"key", None).unwrap(), None);
        assert_eq!(engine.trees(), lossy.0.trees());
        engine.create_pin("p", b"").unwrap();
        assert_eq!(lossy.0.pins().unwrap().len(), 1);
    }
}
