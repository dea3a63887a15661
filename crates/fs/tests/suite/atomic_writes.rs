//! Atomic writes: all of their changes or none, whatever comes between start and commit.

mod random;

use crate::common::*;
use crate::engine::dynamic;
use std::sync::Arc;
use stitch_base::Ino;
use stitch_fs::{
    AtomicWriter, ClearSetId, FallocateMode, FileSystem, FsError, FsResult, RollbackRights,
    SeekFor, TransactionView, WriteOptions, Writer,
};
use stitch_kv::counters::SYNCS;

const WRITER: AtomicWriter = AtomicWriter {
    process: 10,
    thread: 11,
};
const OTHER: AtomicWriter = AtomicWriter {
    process: 20,
    thread: 20,
};
const OWN: Writer = Writer::Process(WRITER.process);

/// Commits the atomic write of a file.
fn commit(setup: &Setup, ino: Ino) {
    let done = setup.fs.commit_atomic_write(ino, WRITER.process);
    done.expect("commits");
}

fn start(fs: &FileSystem, ino: Ino) {
    let started = fs.start_atomic_write(&SUPER, ino, WRITER);
    started.expect("it has none");
}

fn write(fs: &FileSystem, writer: Writer, ino: Ino, at: u64, data: &[u8]) -> FsResult<()> {
    let options = WriteOptions::default();
    fs.write_by(writer, ino, at, data, options).map(drop)
}

fn resize(fs: &FileSystem, ino: Ino, size: u64) {
    let resized = fs.resize_staged(ino, WRITER.process, size, ClearSetId::None);
    resized.expect("it is open");
}

fn end(fs: &FileSystem, ino: Ino) -> bool {
    let was_open = fs.end_atomic_write(ino);
    fs.remove_atomic_write(ino);
    was_open
}

fn file(setup: &Setup, name: &str, data: &[u8]) -> Ino {
    let ino = setup.file(ROOT, name).ino;
    setup.write(ino, 0, data);
    ino
}

fn is_busy(result: FsResult<impl Sized>) -> bool {
    matches!(result, Err(FsError::Busy))
}

/// A file of three chunks whose middle one has an atomic write.
fn started() -> (Setup, Ino) {
    let setup = setup();
    let ino = file(&setup, "file", &[1; 12_288]);
    start(&setup.fs, ino);
    write(&setup.fs, OWN, ino, 4096, &[2; 4096]).expect("it is staged");
    (setup, ino)
}

fn expected(staged: u8) -> Vec<u8> {
    [[1; 4096], [staged; 4096], [1; 4096]].concat()
}

#[test]
fn a_crash_before_the_commit_leaves_the_file_as_it_was() {
    let (setup, ino) = started();
    assert!(setup.contents(ino) == expected(2), "readers see it");
    setup.fs.sync_inode(ino).expect("it syncs");
    let setup = setup.reopened();
    let found = setup.lookup(ROOT, "file").expect("it is there").ino;
    assert!(setup.contents(found) == expected(1));
    assert!(!setup.fs.has_atomic_writes());
    setup.check();
}

#[test]
fn a_commit_is_durable_when_it_returns_and_is_one_sync() {
    let (setup, ino) = started();
    setup.fs.sync().expect("it syncs");
    let syncs = |setup: &Setup| {
        let counters = dynamic(&setup.engine).counters();
        // Of the model, or of the device.
        counters.get(SYNCS) + counters.get("device.syncs")
    };
    let before = syncs(&setup);
    let attr = setup.fs.commit_atomic_write(ino, WRITER.process);
    assert_eq!(attr.expect("it commits").size, 12_288);
    assert_eq!(syncs(&setup), before + 1);
    setup.fs.sync_inode(ino).expect("it syncs");
    assert_eq!(syncs(&setup), before + 1, "nothing is pending");
    assert_eq!(setup.fs.atomic_writer(ino), None);
    let setup = setup.reopened();
    let found = setup.lookup(ROOT, "file").expect("it is there").ino;
    assert!(setup.contents(found) == expected(2));
    setup.check();
}

#[test]
fn one_that_ends_leaves_the_file_as_it_was() {
    let (setup, ino) = started();
    write(&setup.fs, OWN, ino, 20_000, &[3; 10]).expect("it is staged");
    assert_eq!(setup.attr(ino).size, 20_010);
    assert!(setup.fs.end_atomic_write(ino));
    assert_eq!(setup.attr(ino).size, 12_288);
    assert!(setup.contents(ino) == expected(1));
    // The cache writes back what it has, until it has dropped all.
    write(&setup.fs, Writer::Cache, ino, 4096, &[2; 4096]).expect("it is dropped");
    assert!(is_busy(write(&setup.fs, OWN, ino, 0, &[4; 10])));
    setup.fs.remove_atomic_write(ino);
    assert!(setup.contents(ino) == expected(1));
    assert!(!end(&setup.fs, ino), "there is none");
    let refused = setup.fs.commit_atomic_write(ino, WRITER.process);
    assert!(matches!(refused, Err(FsError::Invalid(_))));
    setup.check();
}

#[test]
fn no_other_writer_changes_the_contents_meanwhile() {
    let (setup, ino) = started();
    let fs = &setup.fs;
    let other = Writer::Process(OTHER.process);
    assert!(is_busy(write(fs, other, ino, 0, &[9; 10])));
    assert!(is_busy(write(fs, Writer::Other, ino, 0, &[9; 10])));
    assert!(is_busy(cut(&setup, ino, 5)));
    let allocate = FallocateMode::Allocate { keep_size: false };
    assert!(is_busy(fs.fallocate(ino, allocate, 0, 50_000)));
    let source = file(&setup, "source", &[9; 100]);
    assert!(is_busy(fs.copy_range((source, 0), (ino, 0), 100)));
    assert!(is_busy(fs.start_atomic_write(&SUPER, ino, OTHER)));
    assert!(is_busy(fs.commit_atomic_write(ino, OTHER.process)));
    let resized = fs.resize_staged(ino, OTHER.process, 3, ClearSetId::None);
    assert!(is_busy(resized));
    start(fs, ino);
    assert!(setup.contents(ino) == expected(2), "its own goes on");
    fs.commit_atomic_write(ino, WRITER.process)
        .expect("commits");
    write(fs, other, ino, 0, &[9; 10]).expect("it has ended");
    setup.check();
}

#[test]
fn pages_of_mappings_go_into_the_file_unless_they_hold_staged_bytes() {
    let (setup, ino) = started();
    write(&setup.fs, Writer::Cache, ino, 0, &[7; 4096]).expect("into the file");
    write(&setup.fs, Writer::Cache, ino, 4096, &[8; 4096]).expect("it is staged");
    assert!(end(&setup.fs, ino));
    let contents = [[7; 4096], [1; 4096], [1; 4096]].concat();
    assert!(setup.contents(ino) == contents);
}

#[test]
fn a_copy_and_a_search_of_a_file_with_one() {
    let (setup, ino) = started();
    let target = setup.file(ROOT, "target").ino;
    let copied = setup.fs.copy_range((ino, 0), (target, 0), 12_288);
    assert_eq!(copied.expect("it copies"), 12_288);
    assert!(setup.contents(target) == expected(1), "what is in the file");
    resize(&setup.fs, ino, 40_000);
    let hole = setup.fs.seek(ino, 0, SeekFor::Hole);
    assert_eq!(hole.expect("the end"), 40_000);
    assert_eq!(
        setup.fs.seek(ino, 30_000, SeekFor::Data).expect("data"),
        30_000
    );
    assert_eq!(
        setup
            .fs
            .read(ino, 39_999, 10, &mut Vec::new())
            .expect("reads"),
        1
    );
}

#[test]
fn it_follows_a_rename_and_an_unlink() {
    let (setup, ino) = started();
    let (from, to) = (at(ROOT, "file"), at(ROOT, "moved"));
    let mode = stitch_fs::RenameMode::Replace;
    setup.fs.rename(&SUPER, from, to, mode).expect("it moves");
    commit(&setup, ino);
    assert!(setup.contents(ino) == expected(2));
    start(&setup.fs, ino);
    write(&setup.fs, OWN, ino, 4096, &[3; 4096]).expect("it is staged");
    setup.fs.unlink(&SUPER, to).expect("it goes");
    commit(&setup, ino);
    assert!(setup.contents(ino) == expected(3), "by who has it open");
    start(&setup.fs, ino);
    setup.fs.forget(ino, 1);
    assert!(!setup.fs.has_atomic_writes(), "it goes with its inode");
    setup.fs.reclaim().expect("reclaims");
    setup.check();
}

#[test]
fn small_files_stay_in_their_rows_and_leave_them_when_they_grow() {
    let setup = setup();
    let ino = file(&setup, "small", b"abcdef");
    start(&setup.fs, ino);
    write(&setup.fs, OWN, ino, 2, b"XY").expect("it is staged");
    write(&setup.fs, OWN, ino, 8, b"Z").expect("it is staged");
    commit(&setup, ino);
    assert_eq!(setup.contents(ino), b"abXYef\0\0Z");
    assert_eq!(setup.rows("data"), 0);
    start(&setup.fs, ino);
    write(&setup.fs, OWN, ino, 9000, b"end").expect("it is staged");
    resize(&setup.fs, ino, 4);
    resize(&setup.fs, ino, 6000);
    write(&setup.fs, OWN, ino, 5000, b"x").expect("it is staged");
    commit(&setup, ino);
    let mut contents = b"abXY".to_vec();
    contents.resize(6000, 0);
    contents[5000] = b'x';
    assert!(setup.contents(ino) == contents);
    start(&setup.fs, ino);
    resize(&setup.fs, ino, 0);
    write(&setup.fs, OWN, ino, 0, b"new").expect("it is staged");
    commit(&setup, ino);
    assert_eq!(setup.contents(ino), b"new");
    setup.check();
}

#[test]
fn one_that_is_too_large_is_refused_and_the_file_can_be_written_otherwise() {
    let setup = setup();
    let ino = file(&setup, "file", &[1; 5000]);
    start(&setup.fs, ino);
    let piece = vec![2; 1 << 20];
    let mut staged = 0;
    let error = loop {
        match write(&setup.fs, OWN, ino, staged, &piece) {
            Ok(()) => staged += piece.len() as u64,
            Err(error) => break error,
        }
        assert!(staged < 64 << 20, "memory is bounded");
    };
    assert!(matches!(error, FsError::FileTooBig), "{error}");
    assert!(staged >= 1 << 20, "{staged} bytes of a transaction");
    assert_eq!(setup.attr(ino).size, staged, "what was taken is whole");
    assert!(end(&setup.fs, ino));
    assert!(setup.contents(ino) == [1; 5000]);
    write(&setup.fs, OWN, ino, 0, &piece).expect("without an atomic write");
    setup.check();
}

#[test]
fn all_of_them_together_have_a_bound_of_memory() {
    let setup = setup();
    let piece = vec![2; 1 << 20];
    let mut total = 0;
    'files: for number in 0..100 {
        let ino = setup.file(ROOT, &format!("{number}")).ino;
        start(&setup.fs, ino);
        for at in 0..4 {
            match write(&setup.fs, OWN, ino, at << 20, &piece) {
                Ok(()) => total += piece.len(),
                Err(FsError::FileTooBig) if at == 0 => break 'files,
                Err(FsError::FileTooBig) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!((8 << 20..=32 << 20).contains(&total), "{total}");
}

#[test]
fn owners_alone_start_one_and_only_of_what_may_be_written() {
    let setup = setup();
    let ino = file(&setup, "file", b"abc");
    let refused = setup.fs.start_atomic_write(&USER, ino, WRITER);
    assert!(matches!(refused, Err(FsError::Access)));
    let set = stitch_fs::SetAttr {
        uid: Some(USER.uid),
        ..Default::default()
    };
    setup.fs.set_attr(&SUPER, ino, &set).expect("it is given");
    setup
        .fs
        .start_atomic_write(&USER, ino, WRITER)
        .expect("it is its own");
    assert!(end(&setup.fs, ino));
    let refused = setup.fs.start_atomic_write(&SUPER, ROOT, WRITER);
    assert!(matches!(refused, Err(FsError::IsDir)));
    let takes = |ino| setup.fs.takes_atomic_writes(ino).expect("it is known");
    assert_eq!((takes(ino), takes(ROOT)), (true, false));
    for flag in [
        stitch_fs::inode_flag::IMMUTABLE,
        stitch_fs::inode_flag::APPEND,
    ] {
        setup
            .fs
            .set_inode_flags(&SUPER, ino, flag)
            .expect("it is set");
        let refused = setup.fs.start_atomic_write(&SUPER, ino, WRITER);
        assert!(matches!(refused, Err(FsError::Perm)));
    }
}

#[test]
fn set_id_bits_go_with_the_commit() {
    let setup = setup();
    let ino = file(&setup, "file", b"abc");
    let set = stitch_fs::SetAttr {
        perm: Some(0o6755),
        ..Default::default()
    };
    setup.fs.set_attr(&SUPER, ino, &set).expect("it is set");
    start(&setup.fs, ino);
    let options = WriteOptions {
        clear_setid: ClearSetId::All,
        append: true,
    };
    let written = setup.fs.write_by(OWN, ino, 0, b"def", options);
    assert_eq!(written.expect("it is staged").size, 6);
    commit(&setup, ino);
    assert_eq!(setup.contents(ino), b"abcdef");
    assert_eq!(setup.attr(ino).perm, 0o755);
}

#[test]
fn it_writes_into_allocated_extents_and_keeps_their_count() {
    let setup = setup();
    let ino = setup.file(ROOT, "file").ino;
    let allocate = FallocateMode::Allocate { keep_size: false };
    let allocated = setup.fs.fallocate(ino, allocate, 0, 64 * 4096);
    let blocks = allocated.expect("there is room").blocks;
    start(&setup.fs, ino);
    // Two extents of it lie within one that is allocated; the last begins within a chunk.
    for (at, len) in [(4096, 8192), (40_960, 4096), (100_000, 100)] {
        write(&setup.fs, OWN, ino, at, &vec![2; len]).expect("it is staged");
    }
    commit(&setup, ino);
    assert_eq!(setup.attr(ino).blocks, blocks, "writes add none");
    let found = setup.contents(ino);
    let written = found.iter().filter(|byte| **byte == 2).count();
    assert_eq!((found.len(), written), (64 * 4096, 8192 + 4096 + 100));
    setup.check();
    start(&setup.fs, ino);
    resize(&setup.fs, ino, 50_000);
    write(&setup.fs, OWN, ino, 90_000, &[3; 10_000]).expect("it is staged");
    commit(&setup, ino);
    // Those up to the cut, and those that were written: chunks 0 to 12 and 21 to 24.
    assert_eq!(setup.attr(ino).blocks, (13 + 4) * 8);
    assert_eq!(setup.attr(ino).size, 100_000);
    setup.check();
    start(&setup.fs, ino);
    resize(&setup.fs, ino, 0);
    write(&setup.fs, OWN, ino, 0, &[4; 5000]).expect("it is staged");
    commit(&setup, ino);
    assert!(setup.contents(ino) == [4; 5000]);
    let setup = setup.reopened();
    let found = setup.lookup(ROOT, "file").expect("it is there").ino;
    assert!(setup.contents(found) == [4; 5000]);
    setup.check();
}

/// A transaction with an atomic write of the file, and the file's number in it.
fn started_within(setup: &Setup) -> (Arc<TransactionView>, Ino) {
    let options = stitch_fs::BeginOptions::default();
    let view = setup.fs.transactions().begin("work", &options);
    let view = view.expect("it begins");
    let inner = view.fs().lookup(at(ROOT, "file")).expect("it is there").ino;
    start(view.fs(), inner);
    write(view.fs(), OWN, inner, 4096, &[2; 4096]).expect("it is staged");
    (view, inner)
}

#[test]
fn in_a_transaction_it_is_whole_within_the_view_and_leaves_with_the_view() {
    let setup = setup();
    let ino = file(&setup, "file", &expected(1));
    let (view, inner) = started_within(&setup);
    assert!(contents_of(view.fs(), inner) == expected(2));
    assert!(
        setup.contents(ino) == expected(1),
        "mainline does not see it"
    );
    assert!(end(view.fs(), inner));
    assert!(contents_of(view.fs(), inner) == expected(1));
    start(view.fs(), inner);
    write(view.fs(), OWN, inner, 4096, &[3; 4096]).expect("it is staged");
    let done = view.fs().commit_atomic_write(inner, WRITER.process);
    done.expect("it is in the view");
    assert!(contents_of(view.fs(), inner) == expected(3));
    assert!(setup.contents(ino) == expected(1), "mainline sees it later");
    // One that is open when the transaction is committed is no part of it.
    start(view.fs(), inner);
    write(view.fs(), OWN, inner, 0, &[4; 4096]).expect("it is staged");
    setup
        .fs
        .transactions()
        .commit(&view)
        .expect("mainline has not changed");
    assert!(setup.contents(ino) == expected(3));
    let refused = view.fs().commit_atomic_write(inner, WRITER.process);
    assert!(matches!(refused, Err(FsError::Ended)), "{refused:?}");
    drop(view);
    setup.check();
}

#[test]
fn an_aborted_transaction_takes_its_atomic_writes_with_it() {
    let (setup, ino) = started();
    assert!(end(&setup.fs, ino));
    for commits in [false, true] {
        let (view, inner) = started_within(&setup);
        if commits {
            let done = view.fs().commit_atomic_write(inner, WRITER.process);
            done.expect("it is in the view");
        }
        setup.fs.transactions().abort("work").expect("it ends");
        assert!(setup.contents(ino) == expected(1));
    }
    setup.check();
}

#[test]
fn the_memory_of_all_views_together_is_bounded() {
    let setup = setup();
    let piece = vec![2; 1 << 20];
    let fill = |fs: &FileSystem, name: &str| {
        let ino = fs.create(&SUPER, at(ROOT, name), &new(0o644));
        let ino = ino.expect("there is space").ino;
        start(fs, ino);
        let written = (0..4).map(|at| write(fs, OWN, ino, at << 20, &piece));
        written.take_while(Result::is_ok).count()
    };
    let options = stitch_fs::BeginOptions::default();
    let mut views: Vec<_> = (0..40)
        .map(|number| {
            setup
                .fs
                .transactions()
                .begin(&format!("{number}"), &options)
        })
        .map(|view| view.expect("it begins"))
        .collect();
    let total: usize = views.iter().map(|view| fill(view.fs(), "file")).sum();
    assert!((8..=32).contains(&total), "{total} MiB");
    assert_eq!(fill(&setup.fs, "one"), 0, "all views count");
    for view in views.drain(..) {
        let ended = setup.fs.transactions().abort(&view.info().name);
        ended.expect("it was open");
    }
    assert!(fill(&setup.fs, "two") > 0, "views that are gone do not");
}

#[test]
fn the_commit_of_a_transaction_ends_those_outside() {
    let (setup, ino) = started();
    let options = stitch_fs::BeginOptions::default();
    let view = setup
        .fs
        .transactions()
        .begin("work", &options)
        .expect("it begins");
    let inner = view.fs().lookup(at(ROOT, "file")).expect("it is there").ino;
    view.fs()
        .write(inner, 0, &[5; 100], WriteOptions::default())
        .expect("it is written");
    setup
        .fs
        .transactions()
        .commit(&view)
        .expect("mainline has not changed");
    let refused = setup.fs.commit_atomic_write(ino, WRITER.process);
    assert!(matches!(refused, Err(FsError::Invalid(_))));
    let mut contents = expected(1);
    contents[..100].fill(5);
    assert!(setup.contents(ino) == contents);
    assert!(end(&setup.fs, ino));
    setup.check();
}

#[test]
fn a_rollback_ends_it() {
    let setup = setup();
    let ino = file(&setup, "file", &expected(1));
    setup
        .fs
        .snapshots()
        .create(ROOT, "mon")
        .expect("it is created");
    setup.tick();
    setup.write(ino, 0, &[5; 100]);
    start(&setup.fs, ino);
    write(&setup.fs, OWN, ino, 4096, &[2; 4096]).expect("it is staged");
    setup
        .fs
        .roll_back("mon", ROOT, RollbackRights::default())
        .expect("it rolls back");
    let refused = setup.fs.commit_atomic_write(ino, WRITER.process);
    assert!(matches!(refused, Err(FsError::Invalid(_))));
    assert!(setup.contents(ino) == expected(1));
    assert!(end(&setup.fs, ino));
    setup.check();
}
