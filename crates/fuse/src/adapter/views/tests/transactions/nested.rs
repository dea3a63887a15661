//! Transactions in transactions, and how many a user may have.

use super::*;
use std::process::{Command, Stdio};

impl Setup {
    /// `txn` in `.stitchfs` of a transaction, whose root is given.
    fn inner_dir(&self, root: Ino) -> Ino {
        let control = self.lookup(root, b".stitchfs").unwrap().unwrap();
        assert!(control.entry_ttl.is_zero(), "slots are used again");
        let dir = self.lookup(control.ino, b"txn").unwrap().unwrap();
        assert_eq!(
            Node::of(dir.ino),
            Node::Control(match Node::of(root) {
                Node::Live(slot, _) => ControlDir::TransactionsIn(slot),
                other => panic!("{other:?}"),
            })
        );
        assert_eq!(self.lookup(dir.ino, b".."), Ok(Some(control)));
        let listed = self.list(dir.ino).unwrap();
        assert_eq!(listed.len(), 2 * 32, "the dots alone");
        dir.ino
    }

    fn inner_root(&self, root: Ino, name: &[u8]) -> Ino {
        let dir = self.inner_dir(root);
        let of_it = self.lookup(dir, name).unwrap().unwrap();
        let above = self.lookup(of_it.ino, b"..").unwrap().unwrap();
        assert_eq!(above.ino, dir);
        self.root_in(dir, name)
    }
}

#[test]
fn an_inner_one_is_found_in_the_outer_one_and_committed_to_it() {
    let setup = setup();
    let (kernel, notifier) = kernel();
    let (outer_number, outer) = setup.begun("outer");
    let in_outer = |words: &str| setup.ask_about(&context(0), outer, words);
    let number: u64 = in_outer("begin inner named").unwrap()[0].parse().unwrap();
    assert_eq!(setup.txn("begin outer/inner named"), Err(Errno::EEXIST));
    let inner = setup.inner_root(outer, b"inner");
    let slot = Slot::of_transaction(number);
    assert_eq!(Node::of(inner), Node::Live(slot, ROOT));
    let top = ControlDir::Transactions.number();
    assert_eq!(setup.lookup(top, b"inner"), Err(Errno::ENOENT));
    let made = setup.make(inner, b"new").unwrap().ino;
    assert_eq!(setup.lookup(outer, b"new"), Ok(None));
    // Names are those of what is asked.
    let names = |words: Vec<String>| {
        words
            .chunks(7)
            .map(|one| one[1].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        names(setup.txn("list 0").unwrap()),
        ["outer", "outer/inner"]
    );
    assert_eq!(names(in_outer("list 0").unwrap()), ["inner"]);
    assert_eq!(in_outer("commit outer"), Err(Errno::ENOENT));
    let changes = ["1", "+", "new", ""];
    assert_eq!(in_outer("changes inner 0").unwrap(), changes);
    assert_eq!(setup.txn("changes outer/inner 0").unwrap(), changes);
    // The outer one is not committed before it.
    setup.txn("commit outer").unwrap();
    setup.views.transactions.run_now(&notifier);
    let refused = setup.txn(&format!("outcome {outer_number}")).unwrap();
    assert_eq!(refused[..2], ["failed", &libc::EBUSY.to_string()]);
    assert!(refused[2].contains("are open: inner;"), "{refused:?}");
    in_outer("commit inner").unwrap();
    kernel.taken.lock().clear();
    setup.views.transactions.run_now(&notifier);
    let outcome = in_outer(&format!("outcome {number}")).unwrap();
    assert_eq!(outcome, ["committed"]);
    let told = kernel.taken.lock().iter().any(|it| {
        let parent = outer.0.to_le_bytes();
        it.ends_with(b"new\0") && it.windows(8).any(|bytes| bytes == parent)
    });
    assert!(told, "the kernel drops the name of the outer one");
    assert!(setup.lookup(outer, b"new").unwrap().is_some());
    assert_eq!(setup.lookup(ROOT, b"new"), Ok(None));
    assert_eq!(setup.lookup(made, b"x"), Err(Errno::ESTALE));
    setup.txn("commit outer").unwrap();
    setup.views.transactions.run_now(&notifier);
    assert!(setup.lookup(ROOT, b"new").unwrap().is_some());
    assert_eq!(in_outer("list 0"), Err(Errno::ESTALE));
    assert_eq!(names(setup.txn("list 0").unwrap()), ["outer"]);
}

#[test]
fn an_abort_of_the_outer_one_ends_all_in_it() {
    let setup = setup();
    let (_, notifier) = kernel();
    let (_, outer) = setup.begun("outer");
    setup.txn("begin outer/inner named").unwrap();
    setup.txn("begin outer/inner/deep named").unwrap();
    let inner = setup.inner_root(outer, b"inner");
    let deep = setup.inner_root(inner, b"deep");
    setup.make(deep, b"new").unwrap();
    assert_eq!(setup.txn("abort outer").unwrap(), [""; 0]);
    for root in [outer, inner, deep] {
        assert_eq!(setup.make(root, b"late").err(), Some(Errno::ESTALE));
    }
    setup.views.transactions.run_now(&notifier);
    assert_eq!(setup.txn("list 0").unwrap(), [""; 0]);
    setup.forget_all(&[outer, inner, deep]);
    assert_eq!(setup.txn("begin outer/inner named"), Err(Errno::ENOENT));
}

/// The commit of the outer one does not wait until the thread has noticed the end of a process.
#[test]
fn a_run_whose_process_has_ended_is_no_obstacle() {
    let setup = setup();
    let (_, notifier) = kernel();
    setup.begun("outer");
    let mut child = Command::new("cat");
    let child = child.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
    let mut child = child.unwrap();
    let mut caller = context(0);
    caller.caller.pid = child.id();
    setup
        .ask_about(&caller, ROOT, "begin outer/run run")
        .unwrap();
    let number = setup.number("commit outer");
    setup.views.transactions.run_now(&notifier);
    let refused = setup.txn(&format!("outcome {number}")).unwrap();
    assert_eq!(refused[0], "failed", "it runs");
    drop(child.stdin.take());
    child.wait().unwrap();
    assert_eq!(setup.number("commit outer"), number);
    setup.views.transactions.run_now(&notifier);
    let outcome = setup.txn(&format!("outcome {number}")).unwrap();
    assert_eq!(outcome, ["committed"]);
    setup.views.transactions.stop();
}

#[test]
fn only_users_who_may_end_the_outer_one_begin_one_in_it() {
    let setup = setup();
    setup.begun("outer");
    let theirs = |words: &str| setup.ask_about(&context(OTHER), ROOT, words);
    assert_eq!(theirs("begin outer/theirs named"), Err(Errno::EPERM));
    theirs("begin theirs named").unwrap();
    theirs("begin theirs/inner named").unwrap();
    assert_eq!(theirs("abort outer"), Err(Errno::EPERM));
    setup.txn("begin theirs/ours named").unwrap();
    assert_eq!(theirs("abort theirs/ours"), Err(Errno::EPERM));
    assert_eq!(theirs("abort theirs").unwrap(), [""; 0], "with all in it");
}

#[test]
fn a_user_has_a_number_of_them_and_root_any() {
    let setup = setup();
    let begin = |uid: u32, number: usize| {
        let words = format!("begin u{uid}n{number} named");
        setup.ask_about(&context(uid), ROOT, &words).map(drop)
    };
    for number in 0..32 {
        assert_eq!(begin(OTHER, number), Ok(()), "{number}");
    }
    assert_eq!(begin(OTHER, 32), Err(Errno::EDQUOT));
    for number in 0..40 {
        assert_eq!(begin(0, number), Ok(()), "{number}");
    }
    assert_eq!(begin(OTHER + 1, 0), Ok(()), "another user");
    let abort = format!("abort u{OTHER}n7");
    setup.ask_about(&context(OTHER), ROOT, &abort).unwrap();
    assert_eq!(begin(OTHER, 32), Ok(()), "one has ended");
}

#[test]
fn locks_of_an_inner_one_do_not_wait_for_the_outer_one() {
    let setup = setup();
    let mut own = context(0);
    own.caller.pid = std::process::id();
    let begin = |name: &str, path: &str| {
        let words = format!("begin-with {name} named si refuse {path}");
        setup.ask_about(&own, ROOT, &words).unwrap()
    };
    assert_eq!(begin("outer", "/a")[0], "begun");
    assert_eq!(begin("other", "/a/b"), ["locked", "outer"]);
    assert_eq!(begin("outer/inner", "/a/b")[0], "begun");
    assert_eq!(begin("outer/second", "/a/b"), ["locked", "outer/inner"]);
    let held = setup.txn("details 0").unwrap();
    let expected = ["2", "outer", "holds", "/a", "outer/inner", "holds", "/a/b"];
    assert_eq!(held, expected);
}
