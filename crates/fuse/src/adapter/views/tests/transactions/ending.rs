//! What a transaction's name leads to while it ends.

use super::*;
use crate::adapter::views::tests::setup_with;
use std::sync::{OnceLock, Weak, mpsc};
use std::time::Duration;
use stitch_fs::{PausedRecords, RecordRules, RecordSides};
use stitch_kv::KvError;

/// Looks at a transaction between the commit of the engine and the end of the call.
#[derive(Default)]
struct Observer {
    setup: OnceLock<Weak<Setup>>,
    /// Whether it was listed as open, and whether its name was found, if a lookup did not wait for
    /// the end of the call.
    seen: Mutex<Vec<(bool, Option<bool>)>>,
}

impl Observer {
    fn look(&self) {
        let Some(setup) = self.setup.get().and_then(Weak::upgrade) else {
            return;
        };
        let listed = setup.txn("list 0").unwrap();
        let is_open = listed.get(5).is_some_and(|state| state == "open");
        let (found, is_found) = mpsc::channel();
        let look_up = move || {
            let dir = ControlDir::Transactions.number();
            let _ = found.send(setup.lookup(dir, b"work").is_ok());
        };
        let thread = stitch_base::thread::spawn("lookup", look_up);
        thread.unwrap();
        let is_found = is_found.recv_timeout(Duration::from_secs(5)).ok();
        self.seen.lock().push((is_open, is_found));
    }
}

/// Writers of records that wait. They go on when the engine has an outcome.
struct Waiting<'o>(&'o Observer);

impl PausedRecords for Waiting<'_> {
    fn changed(&mut self, _: &str, _: &[Vec<u8>]) {}
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.look();
    }
}

impl RecordRules for Observer {
    fn is_joined(&self, _: &str, _: &[u8]) -> bool {
        false
    }

    fn join(
        &self,
        _: &str,
        _: &[u8],
        sides: &RecordSides,
    ) -> Result<Option<bytes::Bytes>, KvError> {
        Ok(sides.ours.clone())
    }

    fn shown(&self, tree: &str, key: &[u8]) -> Option<(String, Vec<u8>)> {
        Some((tree.to_owned(), key.to_vec()))
    }

    fn pause(&self, _: Option<u64>, _: &[&str]) -> Box<dyn PausedRecords + '_> {
        Box::new(Waiting(self))
    }
}

#[test]
fn a_name_is_not_found_once_its_transaction_is_listed_as_committed() {
    let observer = Arc::new(Observer::default());
    let setup = Arc::new(setup_with(FsOptions {
        records: Arc::clone(&observer) as _,
        ..FsOptions::default()
    }));
    let known = observer.setup.set(Arc::downgrade(&setup));
    known.expect("it is set once");
    let (_, notifier) = kernel();
    let (_, root) = setup.begun("work");
    setup.make(root, b"new").unwrap();
    setup.txn("commit work").unwrap();
    setup.views.transactions.run_now(&notifier);
    let seen = observer.seen.lock();
    assert_eq!(*seen, [(false, Some(false))]);
}
