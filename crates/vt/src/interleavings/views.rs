//! The current view, which is there once for each shard of threads.

use super::{explore, join, start};
use crate::buffer::Buffer;
use crate::memtable::Memtable;
use crate::version::Version;
use crate::view::{View, Views};
use std::sync::Arc;
use stitch_base::sync::atomic::{AtomicU64, Ordering};
use stitch_base::{Lsn, Seqno};

fn views() -> Views {
    Views::new(View {
        buffers: vec![Arc::new(Buffer::new(Memtable::new(0), Lsn(0)))],
        version: Arc::new(Version::empty()),
    })
}

fn number_of(view: &View) -> u64 {
    view.version.last_seqno.0
}

/// Makes the next view.
fn change(views: &Views) -> u64 {
    let changed = views.change(|view| {
        view.version = Arc::new(Version {
            last_seqno: Seqno(number_of(view) + 1),
            ..Version::clone(&view.version)
        });
    });
    number_of(&changed)
}

/// No reader gets a view older than one that any reader had before, whichever shards they are of:
/// what one reader has seen, all see.
#[test]
fn views_go_back_in_no_shard() {
    explore(2000, || {
        let (views, newest) = (Arc::new(views()), Arc::new(AtomicU64::new(0)));
        let changers = [0, 1].map(|_| {
            let (views, newest) = (Arc::clone(&views), Arc::clone(&newest));
            start("changer", move || {
                for _ in 0..2 {
                    newest.fetch_max(change(&views), Ordering::SeqCst);
                }
            })
        });
        let readers = [0, 1].map(|_| {
            let (views, newest) = (Arc::clone(&views), Arc::clone(&newest));
            start("reader", move || {
                for _ in 0..4 {
                    let known = newest.load(Ordering::SeqCst);
                    let seen = number_of(&views.get());
                    assert!(seen >= known, "{known} was current, {seen} is given");
                    newest.fetch_max(seen, Ordering::SeqCst);
                }
            })
        });
        join(changers.into_iter().chain(readers));
        assert_eq!(number_of(&views.get()), 4, "a change is lost");
    });
}
