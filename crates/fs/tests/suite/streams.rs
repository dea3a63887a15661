//! The names of write streams that chunks of files are put with.

use crate::common::*;
use std::sync::Arc;
use stitch_base::sync::Mutex;
use stitch_base::{Ino, Seqno};
use stitch_format::fs_key;
use stitch_fs::{FileSystem, FsOptions, WriteOptions};
use stitch_kv::{
    Batch, CommitOptions, Engine, Guards, KvError, Message, ModelEngine, StreamName, WrappedEngine,
};

/// A put of a chunk: its inode, its number, the name of its stream, and whether it is partial.
type ChunkPut = (Ino, u64, Option<StreamName>, bool);

/// An engine that notes the puts of chunks.
struct Watched {
    inner: ModelEngine,
    puts: Mutex<Vec<ChunkPut>>,
}

impl Watched {
    fn note(&self, batch: &Batch<'_>) {
        let trees = self.inner.trees();
        let data = trees.iter().find(|tree| tree.name == "fs/data");
        let data = data.expect("the file system has trees").id;
        let mut puts = self.puts.lock();
        for hinted in batch.hinted_messages() {
            let is_put = matches!(hinted.message, Message::Put { .. });
            if !is_put || hinted.tree != data {
                assert_eq!(hinted.stream, None, "only chunks are of a stream");
                continue;
            }
            let key = hinted.message.key();
            let ino = key.first_chunk::<8>().expect("a key begins with an inode");
            let number = fs_key::chunk_of(key).expect("a number follows");
            let ino = Ino(u64::from_be_bytes(*ino));
            puts.push((ino, number, hinted.stream, hinted.is_partial));
        }
    }

    fn take(&self) -> Vec<ChunkPut> {
        std::mem::take(&mut self.puts.lock())
    }
}

impl WrappedEngine for Watched {
    fn inner(&self) -> &dyn Engine {
        &self.inner
    }

    fn commit(&self, batch: &Batch<'_>, options: CommitOptions) -> Result<Seqno, KvError> {
        self.note(batch);
        self.inner.commit(batch, options)
    }

    fn commit_guarded(
        &self,
        batch: &Batch<'_>,
        guards: &Guards,
        options: CommitOptions,
    ) -> Result<Seqno, KvError> {
        self.note(batch);
        self.inner.commit_guarded(batch, guards, options)
    }
}

#[test]
fn puts_of_chunks_name_the_inode_as_their_stream() {
    let watched = Arc::new(Watched {
        inner: ModelEngine::new(registry()),
        puts: Mutex::default(),
    });
    let engine: Arc<dyn Engine> = Arc::clone(&watched) as _;
    let options = FsOptions::default();
    FileSystem::format(&engine, &options, (0, 0)).expect("formats");
    let fs = FileSystem::open(engine, options).expect("opens");
    let create = |name| fs.create(&SUPER, at(ROOT, name), &new(0o644)).unwrap().ino;
    let (f, g) = (create("f"), create("g"));
    watched.take();
    let chunk = |ino: Ino, number, is_partial| (ino, number, Some(StreamName(ino.0)), is_partial);
    let write = |ino, offset, len: usize| {
        let written = fs.write(ino, offset, &vec![7; len], WriteOptions::default());
        written.expect("there is space");
        watched.take()
    };
    // Short and copied, with a partial chunk at the end, and long and borrowed.
    assert_eq!(write(f, 0, 8192), [chunk(f, 0, false), chunk(f, 1, false)]);
    assert_eq!(write(g, 0, 4608), [chunk(g, 0, false), chunk(g, 1, true)]);
    let long: Vec<ChunkPut> = (2..18).map(|number| chunk(f, number, false)).collect();
    assert_eq!(write(f, 8192, 65_536), long);
    assert_eq!(write(f, 4096, 4096), [chunk(f, 1, false)], "an overwrite");
    assert_eq!(write(f, 5000, 10), [], "a patch is no put");
}
