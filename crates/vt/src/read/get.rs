//! Point reads: sources from the newest to the oldest, until the key's state is known.

use crate::VtError;
use crate::cache::ReadCount;
use crate::direct::DirectRun;
use crate::entry::{EntryRef, Op, to_bytes};
use crate::fold;
use crate::memtable::Memtable;
use crate::prefix::first_bytes;
use crate::read::ReadPath;
use crate::read::folded::{CHAIN_COUNT_MIN, Folded};
use crate::readers::Holder;
use crate::table::{BlockSource, Held, OneByOne, PointRead};
use crate::version::{BranchChain, Level, TableHandle};
use crate::view::View;
use bytes::Bytes;
use std::ops::ControlFlow;
use std::sync::Arc;
use stitch_base::{Seqno, TreeId};

/// A search under way.
struct Lookup<'a> {
    key: &'a [u8],
    /// The newest write that the reader sees in the tree that is searched.
    seqno: Seqno,
    /// Asks what an earlier read has folded; none once it was asked, which the first upsert does.
    ask: Option<&'a dyn Fn() -> Option<Folded>>,
    /// What an earlier read has folded: it stands for all writes up to its own, which is an upsert.
    folded: Option<Folded>,
    /// The newest range delete over the key, of the sources so far.
    hidden_by: Option<Seqno>,
    /// Upserts found so far, newest first: their functions, and where their deltas end.
    upserts: Vec<(u32, usize)>,
    /// The deltas.
    deltas: Vec<u8>,
    /// The newest of them.
    newest: Option<Seqno>,
    /// What they are over, when it is known.
    base: Option<Option<Bytes>>,
    /// The tree is a branch: many tables may have the key, and filters of whole tables are asked.
    is_through_branch: bool,
}

impl Lookup<'_> {
    fn hide(&mut self, by: Option<Seqno>) {
        debug_assert!(
            by.is_none_or(|by| by <= self.seqno),
            "newer range deletes hide nothing"
        );
        self.hidden_by = self.hidden_by.max(by);
    }

    /// What was folded, if no range delete is newer.
    fn folded(&self) -> Option<&Folded> {
        let folded = self.folded.as_ref()?;
        self.hidden_by
            .is_none_or(|by| by <= folded.seqno)
            .then_some(folded)
    }

    /// Takes the next older version.
    fn visit(&mut self, entry: &EntryRef<'_>, owner: Option<&Bytes>) -> ControlFlow<()> {
        debug_assert!(self.base.is_none(), "nothing is looked for below a base");
        debug_assert_eq!(
            entry.key, self.key,
            "versions of other keys are passed over"
        );
        debug_assert!(entry.seqno <= self.seqno, "newer versions are not seen");
        if matches!(entry.op, Op::Upsert { .. })
            && let Some(ask) = self.ask.take()
        {
            self.folded = ask();
        }
        if let Some(folded) = self.folded()
            && entry.seqno <= folded.seqno
        {
            self.base = Some(folded.value.clone());
            return ControlFlow::Break(());
        }
        if self.hidden_by.is_some_and(|by| entry.seqno < by) {
            self.base = Some(None);
            return ControlFlow::Break(());
        }
        match entry.op {
            Op::Put(value) => self.base = Some(Some(to_bytes(value, owner))),
            Op::Delete => self.base = Some(None),
            Op::Upsert { function, delta } => {
                self.deltas.extend_from_slice(delta);
                self.upserts.push((function, self.deltas.len()));
                self.newest = self.newest.max(Some(entry.seqno));
                return ControlFlow::Continue(());
            }
        }
        ControlFlow::Break(())
    }

    /// After a source: all that is older than a range delete in it is hidden.
    fn end_source(&mut self) {
        if self.base.is_none() && self.hidden_by.is_some() {
            self.base = Some(self.folded().and_then(|folded| folded.value.clone()));
        }
    }

    /// Upserts and their deltas, oldest first.
    fn deltas(&self) -> impl Iterator<Item = (u32, &[u8])> {
        debug_assert_eq!(
            self.upserts.last().map_or(0, |(_, end)| *end),
            self.deltas.len(),
            "each delta is of an upsert"
        );
        let delta = |index: usize| {
            let (function, end) = self.upserts[index];
            let start = index
                .checked_sub(1)
                .map_or(0, |newer| self.upserts[newer].1);
            debug_assert!(start <= end, "deltas follow each other");
            (function, &self.deltas[start..end])
        };
        (0..self.upserts.len()).rev().map(delta)
    }

    /// After the last source.
    fn end(&mut self) -> Option<Bytes> {
        debug_assert!(
            self.base.is_some() || self.hidden_by.is_none(),
            "what a range delete hides is known"
        );
        let folded = self.folded().and_then(|folded| folded.value.clone());
        self.base.take().unwrap_or(folded)
    }
}

impl ReadPath {
    /// The value of a key in a view, as of `seqno`. The tree is in the view.
    pub(crate) fn get_in(
        &self,
        view: &View,
        tree: TreeId,
        key: &[u8],
        seqno: Seqno,
    ) -> Result<Option<Bytes>, VtError> {
        self.look_up(view, tree, (key, seqno), &mut OneByOne)
    }

    /// As [`Self::get_in`], with blocks of tables from `source`.
    pub(super) fn look_up<S: BlockSource>(
        &self,
        view: &View,
        tree: TreeId,
        (key, seqno): (&[u8], Seqno),
        source: &mut S,
    ) -> Result<Option<Bytes>, S::Error> {
        let ask = || self.folded_value(view, tree, key, seqno);
        let mut lookup = Lookup {
            key,
            seqno,
            ask: Some(&ask),
            folded: None,
            hidden_by: None,
            upserts: Vec::new(),
            deltas: Vec::new(),
            newest: None,
            base: None,
            is_through_branch: false,
        };
        let mut read = PointRead::new(key, seqno, source);
        self.search(view, tree, &mut lookup, &mut read)?;
        read.end(self.parts.cache.counters());
        let base = lookup.end();
        debug_assert_eq!(
            lookup.newest.is_some(),
            !lookup.upserts.is_empty(),
            "the newest of the upserts is known"
        );
        let Some(newest) = lookup.newest else {
            return Ok(base);
        };
        let upserts = &self.parts.upserts;
        let value = fold::fold(upserts, key, base.as_deref(), lookup.deltas())?;
        let value = value.map(Bytes::from);
        if lookup.upserts.len() >= CHAIN_COUNT_MIN {
            // The newest write seen, not the newest visible one: the view may be older than that.
            self.folded.put(tree, key, newest, value.as_ref());
        }
        Ok(value)
    }

    /// What an earlier read has folded, if all newer writes are still in memtables: those in tables
    /// may be joined to one that stands for older ones too.
    fn folded_value(&self, view: &View, tree: TreeId, key: &[u8], seqno: Seqno) -> Option<Folded> {
        let folded = self.folded.get(tree, key, seqno)?;
        debug_assert!(folded.seqno <= seqno, "the reader sees what was folded");
        if view.version.is_temporary(tree) {
            // Tables of temporary trees may be newer than the version says.
            return None;
        }
        (folded.seqno > view.version.last_seqno).then_some(folded)
    }

    /// Searches a tree, then its parents, each as of the moment at which its branch begins.
    fn search<S: BlockSource>(
        &self,
        view: &View,
        tree: TreeId,
        lookup: &mut Lookup<'_>,
        read: &mut PointRead<'_, S>,
    ) -> Result<(), S::Error> {
        let version = &view.version.trees[&tree];
        debug_assert!(lookup.base.is_none(), "a search begins without a base");
        if version.is_branch() {
            lookup.is_through_branch = true;
            let chain = view.version.chain(version);
            return self.search_chain(view, chain, lookup, read);
        }
        self.search_buffers(view, tree, lookup, read)?;
        for level in version.levels.iter().enumerate() {
            if lookup.base.is_some() {
                break;
            }
            self.search_level(level, lookup, read)?;
        }
        Ok(())
    }

    /// Searches the trees of a chain until the key's state is known.
    fn search_chain<S: BlockSource>(
        &self,
        view: &View,
        chain: &BranchChain,
        lookup: &mut Lookup<'_>,
        read: &mut PointRead<'_, S>,
    ) -> Result<(), S::Error> {
        let head = first_bytes(lookup.key);
        for tree in chain.trees() {
            debug_assert!(lookup.base.is_none(), "nothing is looked for below a base");
            lookup.seqno = lookup.seqno.min(tree.seqno);
            read.see_to(lookup.seqno);
            self.search_buffers(view, tree.tree.info.id, lookup, read)?;
            if lookup.base.is_some() {
                break;
            }
            for found in tree.levels_with(head) {
                if found.lone.is_some_and(|lone| self.table(lone).denies(read)) {
                    continue;
                }
                self.search_level((found.number, found.level), lookup, read)?;
                if lookup.base.is_some() {
                    return Ok(());
                }
            }
            if !tree.goes_on(lookup.key) {
                break;
            }
        }
        Ok(())
    }

    /// Searches what memtables have of a tree, newest first, until the key's state is known.
    fn search_buffers<S: BlockSource>(
        &self,
        view: &View,
        tree: TreeId,
        lookup: &mut Lookup<'_>,
        read: &mut PointRead<'_, S>,
    ) -> Result<(), S::Error> {
        for buffer in &view.buffers {
            let has_entries = may_have_entries(&buffer.memtable, tree, lookup, read);
            let has_deletes = buffer.memtable.may_delete_ranges(tree);
            if !has_entries && !has_deletes && buffer.direct.count() == 0 {
                continue;
            }
            if has_deletes {
                let memtable = &buffer.memtable;
                lookup.hide(memtable.newest_covering(tree, lookup.key, lookup.seqno));
            }
            let runs = buffer.direct.holding(tree, lookup.key);
            match has_entries {
                true => self.search_buffer((&buffer.memtable, &runs), tree, lookup, read)?,
                false => search_runs(&runs, lookup, read)?,
            }
            lookup.end_source();
            if lookup.base.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Searches a level of a tree, which is given with its number.
    fn search_level<S: BlockSource>(
        &self,
        (number, level): (usize, &Level),
        lookup: &mut Lookup<'_>,
        read: &mut PointRead<'_, S>,
    ) -> Result<(), S::Error> {
        debug_assert!(lookup.base.is_none(), "nothing is looked for below a base");
        if number == 0 {
            return self.search_level0(level, lookup, read);
        }
        match level.holding(lookup.key) {
            Some(handle) => self.search_table(level, handle, lookup, read),
            None => Ok(()),
        }
    }

    fn search_level0<S: BlockSource>(
        &self,
        level: &Level,
        lookup: &mut Lookup<'_>,
        read: &mut PointRead<'_, S>,
    ) -> Result<(), S::Error> {
        let key = lookup.key;
        let reaches = |handle: &&Arc<TableHandle>| {
            let meta = handle.meta();
            meta.smallest.as_slice() <= key && meta.reaches(key)
        };
        let mut count = 0;
        for handle in level.tables.iter().filter(reaches) {
            count += 1;
            self.search_table(level, handle, lookup, read)?;
            if lookup.base.is_some() {
                break;
            }
        }
        self.parts.level0.note_get(count);
        Ok(())
    }

    fn search_table<S: BlockSource>(
        &self,
        level: &Level,
        handle: &Arc<TableHandle>,
        lookup: &mut Lookup<'_>,
        read: &mut PointRead<'_, S>,
    ) -> Result<(), S::Error> {
        let table = self.table(handle);
        debug_assert!(
            handle.meta().reaches(lookup.key),
            "the key is in the range of the table"
        );
        debug_assert!(lookup.base.is_none(), "nothing is looked for below a base");
        if handle.meta().range_delete_count > 0 {
            let range_deletes = table.range_deletes()?;
            lookup.hide(range_deletes.newest_covering(lookup.key, lookup.seqno));
        }
        if lookup.is_through_branch && table.denies(read) {
            lookup.end_source();
            return Ok(());
        }
        let upserts = lookup.upserts.len();
        let found = table.versions_of(read, &mut |entry, owner| lookup.visit(&entry, owner));
        if read.take_index_read() {
            self.parts.cache.counters().add(ReadCount::IndexWaits, 1);
            if read.source().prefetches_index() {
                table.fetch_indexes(|| self.tables_from(level, handle));
            }
        }
        // Whether the table was asked to stop is in the lookup.
        let _ = found?;
        let is_missed = lookup.base.is_none() && lookup.upserts.len() == upserts;
        if lookup.is_through_branch && is_missed {
            table.note_miss(|| Arc::clone(handle) as Holder);
        }
        lookup.end_source();
        Ok(())
    }

    /// The tables of a level, from one of them on and round.
    fn tables_from<'a>(
        &'a self,
        level: &'a Level,
        first: &Arc<TableHandle>,
    ) -> impl Iterator<Item = Held> + 'a {
        let is_first = |handle: &Arc<TableHandle>| Arc::ptr_eq(handle, first);
        let at = level.tables.iter().position(is_first);
        let (before, after) = level.tables.split_at(at.expect("a table of the level"));
        let hold = |handle: &Arc<TableHandle>| {
            (Arc::clone(self.table(handle)), Arc::clone(handle) as Holder)
        };
        after.iter().chain(before).map(hold)
    }

    /// Looks into a memtable and the runs of it that may have the key, newest version first.
    fn search_buffer<S: BlockSource>(
        &self,
        (memtable, runs): (&Memtable, &[Arc<DirectRun>]),
        tree: TreeId,
        lookup: &mut Lookup<'_>,
        read: &mut PointRead<'_, S>,
    ) -> Result<(), S::Error> {
        let (key, seqno) = (lookup.key, lookup.seqno);
        debug_assert!(lookup.base.is_none(), "nothing is looked for below a base");
        let mut left = runs;
        let mut result = Ok(());
        memtable.versions_of(tree, key, seqno, &mut |entry, place| {
            let newer = left.partition_point(|run| run.min_seqno > entry.seqno);
            let (newer, older) = left.split_at(newer);
            left = older;
            result = search_runs(newer, lookup, read);
            if result.is_err() || lookup.base.is_some() {
                return ControlFlow::Break(());
            }
            let Some(place) = place else {
                return lookup.visit(&entry, None);
            };
            match self.values().get_from(read.source(), &place.entry(&entry)) {
                Ok(value) => {
                    let op = Op::Put(&value);
                    lookup.visit(&EntryRef { op, ..entry }, Some(&value))
                }
                Err(error) => {
                    result = Err(error);
                    ControlFlow::Break(())
                }
            }
        });
        result?;
        search_runs(left, lookup, read)
    }
}

/// Reports whether a memtable may have entries of the key that is looked for. A get of a tree that
/// is no branch asks the marks of trees alone.
fn may_have_entries<S: BlockSource>(
    memtable: &Memtable,
    tree: TreeId,
    lookup: &Lookup<'_>,
    read: &mut PointRead<'_, S>,
) -> bool {
    if memtable.lacks(tree) {
        return false;
    }
    let may_have = !lookup.is_through_branch || memtable.may_hold_key(tree, || read.hash());
    if !may_have {
        read.note_memtable_denied();
    }
    may_have
}

/// Looks into runs, newest first, until the key's state is known.
fn search_runs<S: BlockSource>(
    runs: &[Arc<DirectRun>],
    lookup: &mut Lookup<'_>,
    read: &mut PointRead<'_, S>,
) -> Result<(), S::Error> {
    debug_assert!(
        runs.is_sorted_by(|run, next| run.min_seqno > next.min_seqno),
        "newest first"
    );
    for run in runs {
        if lookup.base.is_some() {
            break;
        }
        let visit = &mut |entry: EntryRef<'_>, owner: Option<&Bytes>| lookup.visit(&entry, owner);
        // Whether it was asked to stop is in the lookup.
        let _ = run.blocks.versions_of(read, visit)?;
    }
    Ok(())
}
