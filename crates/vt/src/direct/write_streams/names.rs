//! Names of write streams: how a put finds the stream that its writer has named.
//!
//! A put with a name goes one of four ways. Chunks of the files `f` and `g`, which follow each
//! other in the order of keys:
//!
//! ```text
//! put   stream of its name    the stream continues with
//! f7    f, ends with f6       f7: no search in the memtable
//! f2    f, ends with f7       nothing; the put is placed like one without a name
//! g0    none                  g0, if the memtable shows that f7 is next before it: the stream is
//!                             named g from now on, so that small files share an append extent
//! k0    none                  nothing; a stream named k begins with k0
//! ```
//!
//! So a stream has at most one name, and a name at most one stream. A name that no put used from
//! one seal of the memtable to the next is forgotten: a file that is written anew from its
//! beginning gets a stream again.

use super::{Puts, WriteStream, WriteStreamId, WriteStreams};
use std::collections::BTreeMap;
use stitch_base::TreeId;
use stitch_kv::StreamName;

/// The stream of each name in a tree.
///
/// Invariant: it has exactly the names in the records of streams.
pub(super) type StreamNames = BTreeMap<(TreeId, StreamName), WriteStreamId>;

impl WriteStreams {
    /// Returns the stream that puts name.
    pub(super) fn named(&self, puts: &Puts<'_>) -> Option<WriteStreamId> {
        let id = *self.names.get(&(puts.tree, puts.name?))?;
        let stream = &self.streams[id.0 as usize];
        debug_assert_eq!(stream.name, puts.name, "the record has the name");
        debug_assert_eq!(stream.tree, puts.tree, "a name is of one tree");
        Some(id)
    }

    /// Names a stream, or takes its name.
    pub(super) fn set_name(&mut self, id: WriteStreamId, name: Option<StreamName>) {
        let stream = &mut self.streams[id.0 as usize];
        if let Some(old) = std::mem::replace(&mut stream.name, name) {
            let removed = self.names.remove(&(stream.tree, old));
            debug_assert_eq!(removed, Some(id), "a name has one stream");
        }
        if let Some(name) = name {
            let other = self.names.insert((stream.tree, name), id);
            debug_assert_eq!(other, None, "a name has one stream");
        }
        debug_assert!(
            self.names.len() <= self.streams.len(),
            "a stream has one name"
        );
    }

    /// Begins a stream of a name with puts.
    pub(super) fn begin_named(&mut self, name: StreamName, puts: &Puts<'_>) {
        let Some(id) = self.new_stream(puts.tree, puts.bytes) else {
            return;
        };
        self.set_name(id, Some(name));
        let stream = &mut self.streams[id.0 as usize];
        debug_assert!(stream.end.is_empty(), "a new stream has no key");
        stream.end.extend_from_slice(puts.last);
        stream.times = 1;
    }

    /// Reports whether a stream that has a name went on after a key that it ended with.
    pub(super) fn has_passed(&self, id: WriteStreamId, tree: TreeId, key: &[u8]) -> bool {
        let stream = self.streams.get(id.0 as usize);
        stream.is_some_and(|s| s.name.is_some() && s.tree == tree && s.end[..] > *key)
    }

    /// Forgets the names that no put used since the memtable was sealed last.
    pub(super) fn forget_idle_names(&mut self) {
        let Self { names, streams, .. } = self;
        let is_idle = |stream: &WriteStream| stream.times == 0;
        names.retain(|_, id| !is_idle(&streams[id.0 as usize]));
        for stream in streams.iter_mut().filter(|stream| is_idle(stream)) {
            stream.name = None;
        }
        debug_assert!(
            names
                .values()
                .all(|id| streams[id.0 as usize].name.is_some()),
            "the records have the names"
        );
        debug_assert_eq!(
            streams
                .iter()
                .filter(|stream| stream.name.is_some())
                .count(),
            names.len(),
            "a name in a record is found"
        );
    }
}

#[cfg(test)]
mod tests;
