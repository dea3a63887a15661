//! Clones in transactions: what is shown of them, and until when.

use super::super::clones::cloned;
use super::super::parts::has_number;
use super::*;

/// The number of a file of a clone, and of its directory, as a transaction shows them.
fn shown(setup: &Setup, root: Ino, name: &[u8]) -> (Ino, Ino) {
    let clone = setup.found(root, name);
    assert_eq!(clone.attr.ino, clone.ino);
    assert!(matches!(Node::of(clone.ino), Node::Past(..)));
    (setup.found(clone.ino, b"f").ino, clone.ino)
}

#[test]
fn a_clone_is_shown_as_it_was_and_is_not_changed() {
    let setup = setup();
    let (_, copy) = cloned(&setup);
    let outside = setup.found(copy.ino, b"f").ino;
    setup.write(outside, b"second").unwrap();
    let (_, root) = setup.begun("work");
    setup.write(outside, b"later!").unwrap();
    let (file, clone) = shown(&setup, root, b"copy");
    assert_eq!(setup.read(file).unwrap(), b"second");
    for listed in [setup.list(root).unwrap(), setup.list_plus(root)] {
        assert!(has_number(&listed, clone), "of the clone's directory");
    }
    assert!(holds(&setup.list(clone).unwrap(), "f"));
    assert_eq!(setup.write(file, b"x"), Err(Errno::EROFS));
    assert_eq!(setup.make(clone, b"x").err(), Some(Errno::EROFS));
    let gone = setup.views.unlink(&context(0), clone, b"f");
    assert_eq!(gone, Err(Errno::EROFS));
    assert_eq!(
        setup.rename((clone, b"f"), (root, b"f")),
        Err(Errno::EXDEV),
        "programs copy it"
    );
    let gone = setup.views.rmdir(&context(0), root, b"copy");
    assert_eq!(gone, Err(Errno::ENOTSUP));
    assert_eq!(
        setup.clone_to(clone, ROOT, b"other").err(),
        Some(Errno::ENOTSUP)
    );
}

#[test]
fn it_is_shown_where_the_transaction_has_moved_it_until_the_end() {
    let setup = setup();
    let (kernel, notifier) = kernel();
    let (_, copy) = cloned(&setup);
    let (number, root) = setup.begun("work");
    let before = shown(&setup, root, b"copy");
    setup.rename((root, b"copy"), (root, b"moved")).unwrap();
    assert_eq!(setup.lookup(root, b"copy"), Ok(None));
    assert_eq!(shown(&setup, root, b"moved"), before);
    let (file, clone) = before;
    assert_eq!(setup.number("commit work"), number);
    setup.views.transactions.run_now(&notifier);
    assert_eq!(setup.read(file), Err(Errno::ESTALE));
    let bytes = crate::clones::to_bytes(file.0);
    let taken = kernel.taken.lock();
    let is_told = |it: &Vec<u8>| it.windows(8).any(|part| part == bytes);
    assert!(taken.iter().any(is_told), "the kernel drops its pages");
    drop(taken);
    assert_eq!(setup.found(ROOT, b"moved").ino, copy.ino);
    setup.forget_all(&[file, clone, root]);
    assert_eq!(setup.open_snapshots(), 0);
    assert_eq!(setup.views.transactions.table.count(), 0);
}

#[test]
fn one_in_another_shows_it_and_an_abort_ends_both() {
    let setup = setup();
    let (_, notifier) = kernel();
    let (_, copy) = cloned(&setup);
    let (_, outer) = setup.begun("outer");
    let outside = setup.found(copy.ino, b"f").ino;
    setup.write(outside, b"later!").unwrap();
    setup.txn("begin outer/inner named").unwrap();
    let dir = setup.found(outer, b".stitchfs").ino;
    let dir = setup.found(dir, TRANSACTIONS_DIR.as_bytes()).ino;
    let inner = setup.root_in(dir, b"inner");
    let (file, clone) = shown(&setup, inner, b"copy");
    assert_eq!(shown(&setup, outer, b"copy"), (file, clone));
    assert_eq!(setup.read(file).unwrap(), b"before");
    setup.txn("abort outer").unwrap();
    setup.views.transactions.run_now(&notifier);
    assert_eq!(setup.read(file), Err(Errno::ESTALE));
    assert_eq!(setup.lookup(clone, b"f"), Err(Errno::ESTALE));
}
