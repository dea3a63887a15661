//! Serializable transactions by requests: the first access of each kind is noted.

use super::*;
use crate::wire::reply::DirPlusSink;
use std::process::{Child, Command, Stdio};

impl Setup {
    /// The node of a name in a directory, which is there.
    fn node_of(&self, dir: Ino, name: &[u8]) -> Ino {
        let found = self.lookup(dir, name).unwrap();
        found.expect("the name is there").ino
    }

    fn begin_ser(&self, name: &str) -> Ino {
        let begun = self.txn(&format!("begin-with {name} named ser refuse"));
        assert_eq!(begun.unwrap()[0], "begun");
        let dir = ControlDir::Transactions.number();
        self.root_in(dir, name.as_bytes())
    }

    fn read_dir_plus(&self, dir: Ino) -> Vec<u8> {
        let mut out = Vec::new();
        let mut sink = DirPlusSink::new(Sink::new(&mut out, 4096));
        let read = self
            .views
            .readdirplus(&context(0), dir, &read_at(0), &mut sink);
        read.unwrap();
        out
    }
}

/// Builds `dir/file`, begins a serializable transaction, reads in it, makes `result`, changes
/// mainline, and commits. Returns the outcome.
fn commit_after(reads: impl Fn(&Setup, Ino), writes: impl Fn(&Setup)) -> Vec<String> {
    let setup = setup();
    let (_, notifier) = kernel();
    let dir = setup.dir(b"dir");
    setup.make(dir, b"inner").unwrap();
    let root = setup.begin_ser("work");
    reads(&setup, root);
    setup.make(root, b"result").unwrap();
    writes(&setup);
    let number = setup.number("commit work");
    setup.views.transactions.run_now(&notifier);
    setup.txn(&format!("outcome {number}")).unwrap()
}

#[test]
fn each_kind_of_access_is_noted_at_the_first_request() {
    let makes = |setup: &Setup| {
        let dir = setup.node_of(ROOT, b"dir");
        setup.make(dir, b"new").map(drop).unwrap();
    };
    let refused = |path: &str, kind: &str| {
        let words = ["conflict", "1", kind, path];
        words.map(str::to_owned).to_vec()
    };
    // The kernel keeps that the name is missing, and asks no more.
    let misses = |setup: &Setup, root: Ino| {
        let dir = setup.node_of(root, b"dir");
        assert_eq!(setup.lookup(dir, b"new"), Ok(None));
    };
    assert_eq!(commit_after(misses, makes), refused("dir/new", "read name"));
    let lists = |setup: &Setup, root: Ino| {
        let dir = setup.node_of(root, b"dir");
        setup.list(dir).unwrap();
    };
    assert_eq!(
        commit_after(lists, makes),
        refused("dir", "read list of names")
    );
    let lists_plus = |setup: &Setup, root: Ino| {
        let dir = setup.node_of(root, b"dir");
        assert!(!setup.read_dir_plus(dir).is_empty());
    };
    assert_eq!(
        commit_after(lists_plus, makes),
        refused("dir", "read list of names")
    );
    let passes = |setup: &Setup, root: Ino| {
        let dir = setup.node_of(root, b"dir");
        setup.make(dir, b"own").unwrap();
        setup.forget_all(&[dir]);
    };
    assert_eq!(commit_after(passes, makes), ["committed"]);
    // Attributes come with READDIRPLUS; the kernel does not ask for them again.
    let changes = |setup: &Setup| {
        let dir = setup.node_of(ROOT, b"dir");
        let inner = setup.node_of(dir, b"inner");
        let set = SetAttr {
            perm: Some(0o700),
            ..SetAttr::default()
        };
        setup.fs.set_attr(&SUPER, inner, &set).unwrap();
    };
    let expected = refused("dir/inner", "read attributes or contents");
    assert_eq!(commit_after(lists_plus, changes), expected);
    assert_eq!(commit_after(lists, changes), ["committed"]);
}

#[test]
fn it_is_told_which_are_serializable() {
    let setup = setup();
    setup.begin_ser("checked");
    setup.begun("plain");
    let details = setup.txn("details 0").unwrap();
    assert_eq!(details, ["1", "checked", "isolation", "ser"]);
    assert_eq!(setup.txn("details 1").unwrap(), ["1"]);
    let twice = setup.txn("begin-with checked named si refuse");
    assert_eq!(twice, Err(Errno::EEXIST));
}

/// A process that lives until its input is closed.
fn child() -> (Child, Context<'static>) {
    let mut command = Command::new("cat");
    let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
    let child = child.unwrap();
    let mut own = context(0);
    own.caller.pid = child.id();
    (child, own)
}

fn end(mut child: Child) {
    drop(child.stdin.take());
    child.wait().unwrap();
}

#[test]
fn path_locks_are_taken_in_order_and_released_at_the_end() {
    let setup = setup();
    let ask = |words: &str| setup.ask_about(&context(0), ROOT, words).unwrap();
    let own = |context: &Context<'_>, words: &str| setup.ask_about(context, ROOT, words).unwrap();
    let (child, waiter) = child();
    let begin =
        |name: &str, waits: &str, path: &str| format!("begin-with {name} named si {waits} {path}");
    assert_eq!(
        own(&waiter, &begin("first", "refuse", "/srv/a"))[0],
        "begun"
    );
    let second = begin("second", "wait", "/srv");
    assert_eq!(own(&waiter, &second), ["locked", "first"]);
    assert_eq!(
        own(&waiter, &begin("third", "refuse", "/srv/b")),
        ["locked", "second"]
    );
    assert_eq!(
        own(&waiter, &begin("fourth", "refuse", "/home"))[0],
        "begun"
    );
    let details = ask("details 0");
    let expected = "3 first holds /srv/a second waits /srv fourth holds /home";
    assert_eq!(details.join(" "), expected);
    assert_eq!(
        own(&waiter, &second),
        ["locked", "first"],
        "it keeps its place"
    );
    ask("abort first");
    assert_eq!(own(&waiter, &second)[0], "begun");
    ask("abort second");
    assert_eq!(
        own(&waiter, &begin("fifth", "refuse", "/"))[..2],
        ["locked", "fourth"]
    );
    // A place in the line goes with its process.
    assert_eq!(
        own(&waiter, &begin("sixth", "wait", "/home/x")),
        ["locked", "fourth"]
    );
    let words = begin("x", "refuse", "/a/../b");
    let refused = setup.ask_about(&waiter, ROOT, &words);
    assert_eq!(refused, Err(Errno::EINVAL));
    end(child);
    assert_eq!(ask("details 0").join(" "), "1 fourth holds /home");
}
