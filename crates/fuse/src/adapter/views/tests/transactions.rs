//! Requests about transactions, and in them.

mod clones;
mod ending;
mod isolation;
mod nested;
mod notices;

use super::*;
use crate::adapter::views::node::{Node, Slot};
use crate::adapter::{ControlLink, TRANSACTIONS_DIR, TransactionSockets};
use crate::notify::Notifier;
use stitch_fs::TransactionView;

const FREE_MAX: usize = 16_380;

impl Setup {
    /// Asks about transactions; the words of the answer.
    fn ask_about(&self, context: &Context<'_>, ino: Ino, words: &str) -> Answer<Vec<String>> {
        let input = format!("{words}\0").replace(' ', "\0");
        let args = Ioctl {
            fh: Fh(0),
            flags: 0,
            command: crate::transactions::ASK,
            arg: 0,
            input: input.as_bytes(),
            output_size: 0,
        };
        let mut out = Vec::new();
        let mut sink = Sink::new(&mut out, FREE_MAX);
        self.views.ioctl(context, ino, &args, &mut sink)?;
        let text = String::from_utf8(out[4..].to_vec()).unwrap();
        Ok(text.split_terminator('\0').map(str::to_owned).collect())
    }

    fn txn(&self, words: &str) -> Answer<Vec<String>> {
        self.ask_about(&context(0), ROOT, words)
    }

    fn number(&self, words: &str) -> u64 {
        self.txn(words).unwrap()[0].parse().unwrap()
    }

    /// Begins a transaction, and looks its root up.
    fn begun(&self, name: &str) -> (u64, Ino) {
        let number = self.number(&format!("begin {name} named"));
        let dir = ControlDir::Transactions.number();
        (number, self.root_in(dir, name.as_bytes()))
    }

    /// Looks up the root of a transaction in `txn`.
    fn root_in(&self, dir: Ino, name: &[u8]) -> Ino {
        let of_it = self.lookup(dir, name).unwrap().unwrap();
        assert!(of_it.entry_ttl.is_zero(), "names are used again");
        let root = self.lookup(of_it.ino, b"root").unwrap().unwrap();
        assert!(root.entry_ttl.is_zero(), "slots are used again");
        root.ino
    }

    fn make(&self, dir: Ino, name: &[u8]) -> Answer<Entry> {
        let args = MkDir {
            name,
            mode: 0o755,
            umask: 0,
        };
        self.views.mkdir(&context(0), dir, &args)
    }

    fn forget_all(&self, inos: &[Ino]) {
        for ino in inos {
            self.views.forget(*ino, 1000);
        }
    }
}

fn kernel() -> (Arc<Kernel>, Notifier) {
    let kernel = Arc::new(Kernel::default());
    let notifier = Notifier::new(Arc::clone(&kernel) as _, 45);
    (kernel, notifier)
}

#[test]
fn a_commit_shows_changes_and_ends_the_transaction() {
    let setup = setup();
    let (kernel, notifier) = kernel();
    let (number, root) = setup.begun("work");
    assert_eq!(
        Node::of(root),
        Node::Live(Slot::of_transaction(number), ROOT)
    );
    let made = setup.make(root, b"new").unwrap();
    assert_eq!(setup.lookup(ROOT, b"new"), Ok(None));
    assert_eq!(setup.number("commit work"), number);
    assert_eq!(setup.txn("commit work"), Err(Errno::EBUSY));
    let outcome = format!("outcome {number}");
    assert_eq!(setup.txn(&outcome).unwrap(), ["running"]);
    assert_eq!(setup.lookup(ROOT, b"new"), Ok(None), "it only began");
    setup.views.transactions.run_now(&notifier);
    assert_eq!(setup.txn(&outcome).unwrap(), ["committed"]);
    assert!(setup.lookup(ROOT, b"new").unwrap().is_some());
    let told = kernel.taken.lock().iter().any(|it| it.ends_with(b"new\0"));
    assert!(told, "the kernel drops the name");
    assert_eq!(setup.make(root, b"late").err(), Some(Errno::ESTALE));
    assert_eq!(setup.lookup(made.ino, b"x"), Err(Errno::ESTALE));
    assert_eq!(setup.txn("abort work"), Err(Errno::ENOENT));
    // Its slot is free when the kernel knows nothing of it.
    assert_eq!(setup.views.transactions.table.count(), 1);
    setup.forget_all(&[made.ino, root]);
    assert_eq!(setup.views.transactions.table.count(), 0);
}

#[test]
fn the_directory_of_a_transaction_is_for_the_one_who_began_it() {
    let setup = setup();
    let mut user = context(0);
    user.caller.uid = 7;
    user.caller.gid = 7;
    setup.ask_about(&user, ROOT, "begin work named").unwrap();
    let txn = ControlDir::Transactions.number();
    let of_it = setup.lookup(txn, b"work").unwrap().unwrap();
    let seen = |attr: &crate::wire::reply::Attr| (attr.mode, attr.uid);
    assert_eq!(seen(&of_it.attr), (0o040_700, 7));
    let again = setup.views.getattr(&context(0), of_it.ino).unwrap();
    assert_eq!(seen(&again.attr), (0o040_700, 7));
    assert!(
        again.ttl.is_zero() && of_it.attr_ttl.is_zero(),
        "slots are used again"
    );
    let above = setup.lookup(of_it.ino, b"..").unwrap().unwrap();
    assert_eq!(above.ino, txn);
    assert_eq!(setup.lookup(of_it.ino, b"other"), Ok(None));
    setup.ask_about(&user, ROOT, "abort work").unwrap();
    assert_eq!(
        setup.views.getattr(&context(0), of_it.ino).err(),
        Some(Errno::ESTALE)
    );
}

#[test]
fn an_abort_leaves_nothing() {
    let setup = setup();
    let (_, notifier) = kernel();
    let (_, root) = setup.begun("work");
    setup.make(root, b"new").unwrap();
    assert_eq!(setup.txn("abort work").unwrap(), [""; 0]);
    assert_eq!(setup.make(root, b"late").err(), Some(Errno::ESTALE));
    let dir = ControlDir::Transactions.number();
    assert_eq!(setup.lookup(dir, b"work"), Err(Errno::ENOENT));
    setup.views.transactions.run_now(&notifier);
    assert_eq!(setup.lookup(ROOT, b"new"), Ok(None));
    assert_eq!(setup.txn("list 0").unwrap(), [""; 0]);
    // The name is free, and leads into the next one.
    let (_, next) = setup.begun("work");
    assert_ne!(next, root);
    assert_eq!(setup.lookup(next, b"new"), Ok(None));
}

#[test]
fn a_conflict_is_told_and_changes_nothing() {
    let setup = setup();
    let (_, notifier) = kernel();
    let (number, root) = setup.begun("work");
    setup.make(root, b"same").unwrap();
    setup.make(root, b"own").unwrap();
    setup.dir(b"same");
    setup.txn("commit work").unwrap();
    setup.views.transactions.run_now(&notifier);
    let outcome = setup.txn(&format!("outcome {number}")).unwrap();
    assert_eq!(outcome, ["conflict", "1", "name", "same"]);
    assert_eq!(setup.lookup(ROOT, b"own"), Ok(None));
    assert!(setup.lookup(root, b"own").unwrap().is_some(), "it goes on");
    let changes = setup.txn("changes work 0").unwrap();
    assert_eq!(changes, ["2", "+", "own", "", "+", "same", ""]);
    let rest = setup.txn("changes work 1").unwrap();
    assert_eq!(rest, ["2", "+", "same", ""]);
    // It commits when mainline is again as it was.
    let removed = setup.views.rmdir(&context(0), ROOT, b"same");
    assert_eq!(removed, Ok(()));
    setup.txn("commit work").unwrap();
    setup.views.transactions.run_now(&notifier);
    let outcome = setup.txn(&format!("outcome {number}")).unwrap();
    assert_eq!(outcome, ["committed"]);
    assert!(setup.lookup(ROOT, b"same").unwrap().is_some());
    let listed = setup.txn("list 0").unwrap();
    assert_eq!(listed[..3], [&number.to_string(), "work", "0"]);
    assert_ne!(listed[5], "open");
    assert_eq!(setup.txn(&format!("list {number}")).unwrap(), [""; 0]);
}

#[test]
fn owners_end_their_own() {
    let setup = setup();
    let dir = ControlDir::Transactions.number();
    let theirs = setup.ask_about(&context(OTHER), dir, "begin theirs named");
    assert!(theirs.is_ok());
    setup.begun("roots");
    for verb in ["commit", "abort", "keep"] {
        let refused = setup.ask_about(&context(OTHER), dir, &format!("{verb} roots"));
        assert_eq!(refused, Err(Errno::EPERM), "{verb}");
    }
    let refused = setup.ask_about(&context(OTHER), dir, "changes roots 0");
    assert_eq!(refused, Err(Errno::EPERM));
    assert!(
        setup
            .ask_about(&context(OTHER), dir, "abort theirs")
            .is_ok()
    );
    assert_eq!(setup.txn("begin roots named"), Err(Errno::EEXIST));
    assert_eq!(
        setup.txn("keep roots"),
        Err(Errno::EINVAL),
        "it was not watched"
    );
    assert_eq!(setup.txn("outcome 77"), Err(Errno::ENOENT));
    assert_eq!(setup.txn("begin a/b named"), Err(Errno::ENOENT));
    assert_eq!(setup.txn("begin .. named"), Err(Errno::EINVAL));
}

#[test]
fn views_do_not_mix() {
    let setup = setup();
    setup.dir(b"dir");
    let (_, root) = setup.begun("work");
    let inner = setup.ask_about(&context(0), root, "begin inner named");
    assert!(inner.is_ok(), "it begins in that one");
    let args = Rename {
        target_parent: ROOT,
        flags: 0,
        source_name: b"dir",
        target_name: b"moved",
    };
    let moved = setup.views.rename(&context(0), root, &args);
    assert_eq!(moved, Err(Errno::EXDEV));
    let made = setup.make(root, CONTROL_DIR.as_bytes());
    assert_eq!(made.err(), Some(Errno::EEXIST), "it would hide the views");
    assert_eq!(setup.lookup(root, b"..").err(), Some(Errno::ESTALE));
    let top = ControlDir::Top.number();
    let found = setup.lookup(top, TRANSACTIONS_DIR.as_bytes()).unwrap();
    assert_eq!(found.unwrap().ino, ControlDir::Transactions.number());
}

#[test]
fn a_run_needs_a_process_that_can_be_seen() {
    let setup = setup();
    assert_eq!(setup.txn("begin run run"), Err(Errno::ESRCH));
    assert_eq!(setup.txn("list 0").unwrap(), [""; 0]);
    let mut own = context(0);
    own.caller.pid = std::process::id();
    let begun = setup.ask_about(&own, ROOT, "begin run run");
    assert!(begun.is_ok());
    assert_eq!(setup.txn("list 0").unwrap()[4], "run");
    assert_eq!(setup.txn("keep run"), Err(Errno::EINVAL));
    let watched = setup.ask_about(&own, ROOT, "begin kept watched");
    assert!(watched.is_ok());
    assert!(setup.txn("keep kept").is_ok());
    // The end of a mount ends runs, and keeps what is kept.
    setup.views.transactions.stop();
    let left = setup.fs.transactions().list().unwrap();
    let names: Vec<&str> = left.iter().map(|info| &*info.name).collect();
    assert_eq!(names, ["kept"]);
}

/// Notes what is opened and ended.
#[derive(Debug, Default)]
struct Sockets {
    opened: Mutex<Vec<u64>>,
    ended: Mutex<Vec<u64>>,
}

impl TransactionSockets for Sockets {
    fn open(&self, view: &Arc<TransactionView>) -> Answer<ControlLink> {
        let number = view.info().number;
        self.opened.lock().push(number);
        Ok(link_to(&format!("/run/{number}")))
    }

    fn end(&self, number: u64) {
        self.ended.lock().push(number);
    }

    fn end_all(&self) {
        self.ended.lock().push(0);
    }
}

fn link_to(target: &str) -> ControlLink {
    ControlLink {
        name: b"kv.sock".to_vec(),
        target: target.as_bytes().to_vec(),
        uid: 7,
        gid: 7,
    }
}

#[test]
fn a_transaction_has_a_link_to_its_records_until_it_ends() {
    let setup = setup();
    let (_, root) = setup.begun("before");
    let hidden = CONTROL_DIR.as_bytes();
    let dir = setup.lookup(root, hidden).unwrap().unwrap();
    let link = setup.lookup(dir.ino, b"kv.sock");
    assert_eq!(link, Ok(None), "nothing is served");
    let sockets = Arc::new(Sockets::default());
    let Setup { fs, views } = setup;
    let views = views.with_link(link_to("/run/mainline"));
    let views = views.with_transaction_sockets(Arc::clone(&sockets) as _);
    let setup = Setup { fs, views };
    let (_, notifier) = kernel();
    let (number, root) = setup.begun("work");
    let dir = setup.lookup(root, hidden).unwrap().unwrap();
    assert!(dir.entry_ttl.is_zero());
    assert_eq!(setup.lookup(dir.ino, b".."), setup.lookup(root, b"."));
    assert_eq!(setup.lookup(dir.ino, b"snap"), Ok(None));
    assert!(sockets.opened.lock().is_empty(), "only if it is looked up");
    let link = setup.lookup(dir.ino, b"kv.sock").unwrap().unwrap();
    assert_eq!((link.attr.ino, link.attr.uid), (link.ino, 7));
    assert_eq!(*sockets.opened.lock(), [number]);
    let target = |ino: Ino| {
        let mut out = Vec::new();
        let mut sink = Sink::new(&mut out, 4096);
        let read = setup.views.readlink(&context(0), ino, &mut sink);
        read.map(|()| String::from_utf8(out).unwrap())
    };
    assert_eq!(target(link.ino), Ok(format!("/run/{number}")));
    let attr = setup.views.getattr(&context(0), link.ino).unwrap();
    assert_eq!(attr.attr.ino, link.ino);
    let made = setup.make(dir.ino, b"x");
    assert_eq!(made.err(), Some(Errno::EROFS));
    let top = setup.lookup(ROOT, hidden).unwrap().unwrap();
    let outer = setup.lookup(top.ino, b"kv.sock").unwrap().unwrap();
    assert_eq!(target(outer.ino), Ok("/run/mainline".to_owned()));
    setup.txn("commit work").unwrap();
    setup.views.transactions.run_now(&notifier);
    assert_eq!(*sockets.ended.lock(), [number]);
    assert_eq!(target(link.ino), Err(Errno::ESTALE));
    assert_eq!(setup.lookup(dir.ino, b"kv.sock"), Err(Errno::ESTALE));
    setup.txn("abort before").unwrap();
    assert_eq!(sockets.ended.lock().len(), 2);
    setup.views.transactions.stop();
    assert_eq!(sockets.ended.lock().last(), Some(&0));
}

#[test]
fn conflicts_are_resolved_and_the_transaction_goes_on_elsewhere() {
    let setup = setup();
    let (_, notifier) = kernel();
    let (number, root) = setup.begun("work");
    setup.make(root, b"same").unwrap();
    setup.make(root, b"own").unwrap();
    setup.dir(b"same");
    let listed = setup.txn("conflicts work 0").unwrap();
    assert_eq!(listed, ["1", "name", "open", "same"]);
    let none = setup.txn("resolve work ours own").unwrap();
    assert_eq!(none[..2], ["failed", "2"], "ENOENT");
    assert_eq!(setup.txn("resolve work theirs same").unwrap(), ["1"]);
    let listed = setup.txn("conflicts work 0").unwrap();
    assert_eq!(listed, ["1", "name", "theirs", "same"]);
    assert_eq!(setup.number("rebase work"), number);
    assert_eq!(setup.txn("commit work"), Err(Errno::EBUSY));
    setup.views.transactions.run_now(&notifier);
    let outcome = setup.txn(&format!("outcome {number}")).unwrap();
    assert_eq!(outcome, ["rebased"]);
    assert_eq!(setup.make(root, b"late").err(), Some(Errno::ESTALE));
    let dir = ControlDir::Transactions.number();
    let next = setup.root_in(dir, b"work");
    assert_ne!(next, root);
    assert!(setup.lookup(next, b"own").unwrap().is_some());
    assert_eq!(setup.lookup(ROOT, b"own"), Ok(None));
    let number = setup.number("commit work");
    setup.views.transactions.run_now(&notifier);
    let outcome = setup.txn(&format!("outcome {number}")).unwrap();
    assert_eq!(outcome, ["committed"]);
    assert!(setup.lookup(ROOT, b"own").unwrap().is_some());
}

#[test]
fn a_commit_with_resolutions_is_told_by_the_number_that_began_it() {
    let setup = setup();
    let (_, notifier) = kernel();
    let (number, root) = setup.begun("work");
    setup.make(root, b"same").unwrap();
    setup.dir(b"same");
    assert_eq!(setup.txn("resolve work ours same").unwrap(), ["1"]);
    assert_eq!(setup.number("commit work"), number);
    setup.views.transactions.run_now(&notifier);
    let outcome = setup.txn(&format!("outcome {number}")).unwrap();
    assert_eq!(outcome, ["committed"]);
    assert_eq!(setup.make(root, b"late").err(), Some(Errno::ESTALE));
    assert_eq!(setup.txn("resolve work ours same"), Err(Errno::ENOENT));
}

#[test]
fn a_run_is_neither_resolved_nor_rebased() {
    let setup = setup();
    let mut own = context(0);
    own.caller.pid = std::process::id();
    for life in ["run", "watched"] {
        let begun = setup.ask_about(&own, ROOT, &format!("begin {life} {life}"));
        assert!(begun.is_ok());
        assert_eq!(setup.txn(&format!("rebase {life}")), Err(Errno::EINVAL));
        let resolved = setup.txn(&format!("resolve {life} ours x"));
        assert_eq!(resolved, Err(Errno::EINVAL));
    }
    assert_eq!(setup.txn("expire run 5"), Err(Errno::EINVAL));
    setup.views.transactions.stop();
}

#[test]
fn the_time_of_expiry_is_listed_and_changed() {
    let setup = setup();
    let last = i64::MAX - 1;
    setup.number("begin dated named");
    assert!(setup.txn(&format!("expire dated {last}")).is_ok());
    assert_eq!(setup.txn("list 0").unwrap()[6], last.to_string());
    assert!(setup.txn("expire dated never").is_ok());
    assert_eq!(setup.txn("list 0").unwrap()[6], "never");
    let refused = setup.ask_about(&context(OTHER), ROOT, "expire dated 5");
    assert_eq!(refused, Err(Errno::EPERM));
    assert_eq!(setup.txn("expire none 5"), Err(Errno::ENOENT));
    setup.views.transactions.stop();
}

#[test]
fn the_base_is_told_to_users_with_a_right_to_read_it() {
    let setup = setup();
    let made = setup.dir(b"dir");
    let file = setup.file(made, b"file", b"contents");
    setup.begun("work");
    let dir = ControlDir::Transactions.number();
    let theirs = setup.ask_about(&context(OTHER), dir, "begin theirs named");
    assert!(theirs.is_ok());
    for missing in ["dir/none", "none/file", "..", "dir//file"] {
        let asked = setup.txn(&format!("base work 0 {missing}"));
        assert_eq!(asked, Err(Errno::ENOENT), "{missing}");
    }
    assert_eq!(setup.txn("base work 0 dir"), Err(Errno::EISDIR));
    assert_eq!(setup.txn("base work 0 dir/file").unwrap(), ["contents"]);
    setup.file(made, b"later", b"contents");
    assert_eq!(setup.txn("base work 0 dir/later"), Err(Errno::ENOENT));
    assert_eq!(setup.txn("base work 5 dir/file").unwrap(), ["nts"]);
    assert_eq!(setup.txn("base work 8 dir/file").unwrap(), [""; 0]);
    let perm = |ino, perm: u32| {
        let set = stitch_fs::SetAttr {
            perm: Some(perm),
            ..stitch_fs::SetAttr::default()
        };
        let caller = stitch_fs::Caller::ROOT;
        setup.fs.set_attr(&caller, ino, &set).unwrap();
    };
    let asked = |name: &str| {
        let (begin, base) = (
            format!("begin {name} named"),
            format!("base {name} 0 dir/file"),
        );
        setup.ask_about(&context(OTHER), dir, &begin).unwrap();
        setup.ask_about(&context(OTHER), dir, &base).map(drop)
    };
    perm(file, 0o600);
    assert_eq!(asked("private"), Err(Errno::EACCES));
    perm(file, 0o604);
    assert_eq!(asked("readable"), Ok(()));
    perm(made, 0o700);
    assert_eq!(asked("hidden"), Err(Errno::EACCES));
}
