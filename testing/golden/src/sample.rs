//! A store with something of everything, as it is kept for each version of the format.

mod rollback;

pub use rollback::make_rollback;

use crate::store::{self, Clean};
use stitch_base::{Ino, TreeId};
use stitch_device::MemDevice;
use stitch_fs::{
    Caller, CloneSource, DirName, FallocateMode, FileKind, FileSystem, FsResult, Keep, NewNode,
    PolicyRule, RenameMode, SetAttr, WriteOptions, XattrMode,
};
use stitch_kv::{
    Batch, CommitOptions, Guards, KeyRanges, NewBranch, OwnedKeyRange, PinRanges, TreeOptions,
};

const ROOT: &Caller<'static> = &Caller::ROOT;

/// A new store with the sample in it, closed in good order or left as by a crash.
///
/// # Errors
/// Whatever the store says.
pub fn make(clean: Clean) -> Result<MemDevice, Box<dyn std::error::Error>> {
    store::with_new(clean, &[], |fs| {
        first(fs)?;
        fs.sync()?;
        second(fs)
    })
}

/// A new store with the sample in it and with back rows, closed in good order or left as by a
/// crash.
///
/// # Errors
/// Whatever the store says.
pub fn make_with_back_rows(clean: Clean) -> Result<MemDevice, Box<dyn std::error::Error>> {
    store::with_new(clean, &[], |fs| {
        first(fs)?;
        // It was known since it was made.
        let directory = fs.lookup(at(Ino::ROOT, "directory"))?.ino;
        let small = fs.lookup(at(directory, "small"))?.ino;
        fs.forget(small, 2);
        fs.look_up_number(small)?;
        fs.sync()?;
        second(fs)
    })
}

/// A new store of several instances, closed in good order or left as by a crash.
///
/// # Errors
/// Whatever the store says.
pub fn make_instances(clean: Clean) -> Result<MemDevice, Box<dyn std::error::Error>> {
    store::with_new(clean, &["mail", "cache"], |fs| brief(fs, "main"))
}

/// A new store with pins, one of which sees a tree that was dropped, closed in good order or left
/// as by a crash.
///
/// # Errors
/// Whatever the store says.
pub fn make_pins(clean: Clean) -> Result<MemDevice, Box<dyn std::error::Error>> {
    store::with_engine(clean, &[], |fs, engine| {
        brief(fs, "main")?;
        engine.create_pin("empty of extras", b"first")?;
        let tree = engine.create_tree("extra", &TreeOptions::default())?;
        let mut batch = Batch::new();
        for number in 0..9u8 {
            batch.put(tree, &[number], &text(usize::from(number) * 10));
        }
        engine.commit(&batch, CommitOptions::default())?;
        engine.create_pin("with extras", b"second")?;
        engine.create_pin("dropped", b"")?;
        engine.drop_tree(tree)?;
        engine.drop_pin("dropped")?;
        let new = NewNode {
            perm: 0o600,
            umask: 0,
        };
        let later = fs.create(ROOT, at(Ino::ROOT, "later"), &new)?.ino;
        fs.write(later, 0, &text(5_000), WriteOptions::default())?;
        engine.create_pin("after", b"third")?;
        engine.alter_pin("with extras", b"altered")?;
        fs.unlink(ROOT, at(Ino::ROOT, "later"))?;
        Ok(())
    })
}

/// A new store with pins of some trees, one of which was dropped, closed in good order or left as
/// by a crash.
///
/// # Errors
/// Whatever the store says.
pub fn make_scopes(clean: Clean) -> Result<MemDevice, Box<dyn std::error::Error>> {
    store::with_engine(clean, &[], |fs, engine| {
        brief(fs, "main")?;
        let [kept, other] = ["kept", "other"].map(|name| {
            let made = engine.create_tree(name, &TreeOptions::default());
            made.map_err(|error| error.to_string())
        });
        let (kept, other) = (kept?, other?);
        let put = |count: u8| {
            let mut batch = Batch::new();
            for tree in [kept, other] {
                for number in 0..count {
                    batch.put(tree, &[number], &text(usize::from(number) * 10));
                }
            }
            engine.commit(&batch, CommitOptions::default())
        };
        put(9)?;
        engine.create_pin_of("of one", b"first", &|tree| tree.id == kept)?;
        put(12)?;
        engine.create_pin_of("of both", b"second", &|tree| tree.id >= kept)?;
        engine.create_pin_of("of files", b"third", &|tree| tree.id < kept)?;
        engine.create_pin("of all", b"fourth")?;
        engine.drop_trees(&[kept, other])?;
        engine.drop_pin("of all")?;
        engine.alter_pin("of one", b"altered")?;
        Ok(())
    })
}

/// A new store with pins of key ranges, of two trees of which one was dropped, closed in good order
/// or left as by a crash.
///
/// # Errors
/// Whatever the store says.
pub fn make_ranges(clean: Clean) -> Result<MemDevice, Box<dyn std::error::Error>> {
    store::with_engine(clean, &[], |fs, engine| {
        brief(fs, "main")?;
        let tree = engine.create_tree("kept", &TreeOptions::default())?;
        let dropped = engine.create_tree("dropped", &TreeOptions::default())?;
        let put = |count: u8| {
            let mut batch = Batch::new();
            for tree in [tree, dropped] {
                for number in 0..count {
                    batch.put(tree, &[number], &text(usize::from(number) * 10));
                }
            }
            engine.commit(&batch, CommitOptions::default())
        };
        let range = |start: u8, end: Option<u8>| (vec![start], end.map(|end| vec![end]));
        let narrow = |name: &str, tree: TreeId, ranges: Vec<OwnedKeyRange>| {
            let ranges = PinRanges::from([(tree, KeyRanges::new(ranges))]);
            engine.narrow_pin(name, &ranges)
        };
        put(9)?;
        engine.create_pin_of("of one", b"first", &|info| info.id == tree)?;
        engine.create_pin("of both", b"second")?;
        put(12)?;
        narrow("of one", tree, vec![range(2, Some(5)), range(7, None)])?;
        narrow(
            "of both",
            dropped,
            vec![range(0, Some(4)), range(6, Some(8))],
        )?;
        engine.drop_tree(dropped)?;
        narrow("of both", dropped, vec![range(1, Some(3))])?;
        narrow("of both", tree, Vec::new())?;
        engine.alter_pin("of one", b"altered")?;
        Ok(())
    })
}

/// A new store with branch trees that begin at a narrowed pin, which was dropped, closed in good
/// order or left as by a crash.
///
/// # Errors
/// Whatever the store says.
pub fn make_narrowed(clean: Clean) -> Result<MemDevice, Box<dyn std::error::Error>> {
    store::with_engine(clean, &[], |fs, engine| {
        brief(fs, "main")?;
        let tree = engine.create_tree("parent", &TreeOptions::default())?;
        let put = |tree: TreeId, numbers: std::ops::Range<u8>, len: usize| {
            let mut batch = Batch::new();
            numbers.for_each(|number| batch.put(tree, &[number], &text(len)));
            engine.commit(&batch, CommitOptions::default())
        };
        put(tree, 0..9, 10)?;
        engine.create_pin("narrowed", b"")?;
        let range = |start: u8, end: Option<u8>| (vec![start], end.map(|end| vec![end]));
        let ranges = KeyRanges::new([range(2, Some(5)), range(7, None)]);
        engine.narrow_pin("narrowed", &PinRanges::from([(tree, ranges)]))?;
        put(tree, 0..12, 20)?;
        let at = engine.open_pin("narrowed")?;
        let two = ["first", "second"].map(|name| NewBranch::new(tree, name));
        let made = engine.branch_trees(&two, Some(&at))?;
        drop(at);
        put(made[1], 5..8, 30)?;
        engine.branch_trees(&[NewBranch::new(made[1], "of the second")], None)?;
        engine.drop_pin("narrowed")?;
        Ok(())
    })
}

/// A new store with branch trees, one of which reads a tree that was dropped, closed in good order
/// or left as by a crash.
///
/// # Errors
/// Whatever the store says.
pub fn make_branches(clean: Clean) -> Result<MemDevice, Box<dyn std::error::Error>> {
    store::with_engine(clean, &[], |fs, engine| {
        brief(fs, "main")?;
        let parent = engine.create_tree("parent", &TreeOptions::default())?;
        let mut batch = Batch::new();
        for number in 0..9u8 {
            batch.put(parent, &[number], &text(usize::from(number) * 10));
        }
        engine.commit(&batch, CommitOptions::default())?;
        let two = ["first", "second"].map(|name| NewBranch::new(parent, name));
        let made = engine.branch_trees(&two, None)?;
        let mut batch = Batch::new();
        batch.put(parent, &[9], b"the parent's");
        batch.put(made[0], &[10], b"the first's");
        batch.delete(made[0], &[0]);
        batch.delete_range(made[1], &[2], &[5]);
        engine.commit(&batch, CommitOptions::default())?;
        engine.branch_trees(&[NewBranch::new(made[0], "of the first")], None)?;
        engine.drop_trees(&[parent, made[0]])?;
        Ok(())
    })
}

/// The tree of [`make_shifts`].
pub const SHIFTED_TREE: &str = "parent";

/// A new store whose tables were moved from branches to their parent, and so have shifts: one over
/// the other, below and above rows of the parent. Closed in good order or left as by a crash.
///
/// # Errors
/// Whatever the store says.
pub fn make_shifts(clean: Clean) -> Result<MemDevice, Box<dyn std::error::Error>> {
    store::with_engine(clean, &[], |fs, engine| {
        brief(fs, "main")?;
        let parent = engine.create_tree(SHIFTED_TREE, &TreeOptions::default())?;
        let put = |tree: TreeId, keys: std::ops::Range<u8>, value: &str| {
            let mut batch = Batch::new();
            for key in keys {
                batch.put(tree, &[key], value.as_bytes());
            }
            engine.commit(&batch, CommitOptions::default())
        };
        put(parent, 0..30, "the parent's first")?;
        for (name, keys) in [("first", 5..20), ("second", 10..25)] {
            let made = engine.branch_trees(&[NewBranch::new(parent, name)], None)?;
            put(made[0], keys.clone(), name)?;
            let mut batch = Batch::new();
            batch.delete(made[0], &[keys.start]);
            batch.delete_range(made[0], &[keys.start + 2], &[keys.start + 4]);
            engine.commit(&batch, CommitOptions::default())?;
            // While the branch is open: older than what the branch holds, once it is absorbed.
            put(parent, keys.end..keys.end + 2, "meanwhile")?;
            let batch = Batch::new();
            engine.absorb(
                &made,
                &batch,
                &Guards::since(&engine.snapshot()),
                CommitOptions::default(),
            )?;
        }
        put(parent, 18..19, "the parent's last")?;
        Ok(())
    })
}

/// A new store with files that have allocated extents, closed in good order or left as by a crash.
///
/// # Errors
/// Whatever the store says.
pub fn make_allocated(clean: Clean) -> Result<MemDevice, Box<dyn std::error::Error>> {
    store::with_new(clean, &[], |fs| {
        let new = NewNode {
            perm: 0o600,
            umask: 0,
        };
        let keep = FallocateMode::Allocate { keep_size: true };
        let log = fs.create(ROOT, at(Ino::ROOT, "log"), &new)?.ino;
        fs.fallocate(log, keep, 0, 100 * 4096)?;
        fs.write(log, 0, &text(5_000), WriteOptions::default())?;
        let grow = FallocateMode::Allocate { keep_size: false };
        let table = fs.create(ROOT, at(Ino::ROOT, "table"), &new)?.ino;
        fs.write(table, 0, &text(9_000), WriteOptions::default())?;
        fs.fallocate(table, grow, 4_000, 160_000)?;
        fs.sync()?;
        fs.write(table, 80_000, &text(10), WriteOptions::default())?;
        fs.fallocate(table, FallocateMode::PunchHole, 120_000, 20_000)?;
        // Removed while it is open: a crash leaves it, and the next life gives its room back.
        let open = fs.create(ROOT, at(Ino::ROOT, "open"), &new)?.ino;
        fs.fallocate(open, keep, 0, 50 * 4096)?;
        fs.open_handle(open)?;
        fs.unlink(ROOT, at(Ino::ROOT, "open"))
    })
}

/// A new store with files that share contents, closed in good order or left as by a crash.
///
/// # Errors
/// Whatever the store says.
pub fn make_shared(clean: Clean) -> Result<MemDevice, Box<dyn std::error::Error>> {
    store::with_new(clean, &[], |fs| {
        let new = NewNode {
            perm: 0o600,
            umask: 0,
        };
        let make =
            |name: &'static str| FsResult::Ok(fs.create(ROOT, at(Ino::ROOT, name), &new)?.ino);
        let copy = |from, name| {
            let to = make(name)?;
            fs.copy_range((from, 0), (to, 0), 1 << 20)?;
            FsResult::Ok(to)
        };
        let source = make("source")?;
        fs.write(source, 0, &text(70_000), WriteOptions::default())?;
        let copied = copy(source, "copy")?;
        copy(source, "second copy")?;
        fs.sync()?;
        fs.write(copied, 5_000, b"a patch", WriteOptions::default())?;
        fs.fallocate(copied, FallocateMode::PunchHole, 16_384, 8_192)?;
        fs.write(source, 60_000, &text(20_000), WriteOptions::default())?;
        copy(copied, "copy of a copy")?;
        // Removed while it is open: a crash leaves it, and the next life gives up what it uses.
        let open = copy(source, "open")?;
        fs.open_handle(open)?;
        fs.unlink(ROOT, at(Ino::ROOT, "open"))
    })
}

/// A new store with a clone, a snapshot of a directory in it, and policies of directories in both,
/// closed in good order or left as by a crash.
///
/// # Errors
/// Whatever the store says.
pub fn make_clones(clean: Clean) -> Result<MemDevice, Box<dyn std::error::Error>> {
    store::with_new(clean, &[], |fs| {
        let new = NewNode {
            perm: 0o755,
            umask: 0,
        };
        let dir = fs.make_dir(ROOT, at(Ino::ROOT, "directory"), &new)?.ino;
        let file = fs.create(ROOT, at(dir, "file"), &new)?.ino;
        fs.write(file, 0, &text(6_000), WriteOptions::default())?;
        let source = CloneSource {
            fs,
            dir,
            snapshot: None,
        };
        let made = fs.make_clone(ROOT, &source, at(Ino::ROOT, "clone"))?;
        let clone = fs.open_clone(made.number)?;
        let rule = PolicyRule {
            every_s: 900,
            keep: Keep::default(),
            prefix: "auto".to_owned(),
        };
        fs.policies().set(dir, &rule)?;
        fs.policies().set_in(&clone, made.root, &rule)?;
        fs.snapshots().create_in(&clone, made.root, "before")?;
        let late = clone.fs().create(ROOT, at(made.root, "late"), &new)?.ino;
        clone
            .fs()
            .write(late, 0, &text(300), WriteOptions::default())?;
        Ok(())
    })
}

/// Little enough to be stored several times over.
pub(crate) fn brief(fs: &FileSystem, name: &str) -> FsResult<()> {
    let new = NewNode {
        perm: 0o644,
        umask: 0,
    };
    let ino = fs.create(ROOT, at(Ino::ROOT, name), &new)?.ino;
    fs.write(ino, 0, &text(6_000), WriteOptions::default())?;
    fs.sync()?;
    let late = fs.create(ROOT, at(Ino::ROOT, "late"), &new)?.ino;
    fs.write(late, 0, name.as_bytes(), WriteOptions::default())?;
    Ok(())
}

fn at(parent: Ino, name: &str) -> DirName<'_> {
    DirName::new(parent, name.as_bytes())
}

fn text(len: usize) -> Vec<u8> {
    b"What was stored once must open for ever. "
        .iter()
        .copied()
        .cycle()
        .take(len)
        .collect()
}

fn first(fs: &FileSystem) -> FsResult<()> {
    let new = NewNode {
        perm: 0o644,
        umask: 0,
    };
    let dir = fs
        .make_dir(
            ROOT,
            at(Ino::ROOT, "directory"),
            &NewNode {
                perm: 0o1750,
                umask: 0,
            },
        )?
        .ino;
    let small = fs.create(ROOT, at(dir, "small"), &new)?.ino;
    fs.write(small, 0, &text(200), WriteOptions::default())?;
    let large = fs.create(ROOT, at(dir, "large"), &new)?.ino;
    fs.write(large, 0, &text(70_000), WriteOptions::default())?;
    fs.write(large, 5_000, b"a patch", WriteOptions::default())?;
    fs.fallocate(large, FallocateMode::PunchHole, 16_384, 8_192)?;
    let sparse = fs.create(ROOT, at(dir, "sparse"), &new)?.ino;
    fs.write(sparse, 1 << 40, b"far away", WriteOptions::default())?;
    fs.link(ROOT, large, at(Ino::ROOT, "second name"))?;
    fs.make_symlink(ROOT, at(Ino::ROOT, "symlink"), b"directory/large")?;
    fs.make_node(ROOT, at(dir, "fifo"), FileKind::Fifo, 0, &new)?;
    fs.make_node(ROOT, at(dir, "device"), FileKind::CharDevice, 0x0103, &new)?;
    fs.set_xattr(ROOT, small, b"user.colour", b"green", XattrMode::Set, false)?;
    let owner = SetAttr {
        uid: Some(1000),
        gid: Some(100),
        perm: Some(0o4711),
        ..SetAttr::default()
    };
    fs.set_attr(ROOT, small, &owner)?;
    for i in 0..40 {
        let name = format!("entry-{i:02}");
        let ino = fs.create(ROOT, at(Ino::ROOT, &name), &new)?.ino;
        fs.write(ino, 0, &text(i * 7), WriteOptions::default())?;
    }
    Ok(())
}

/// What is in the log only, if the store is left as by a crash.
fn second(fs: &FileSystem) -> FsResult<()> {
    let new = NewNode {
        perm: 0o600,
        umask: 0,
    };
    let dir = fs.lookup(at(Ino::ROOT, "directory"))?.ino;
    let late = fs.create(ROOT, at(dir, "late"), &new)?.ino;
    fs.write(late, 0, &text(9_000), WriteOptions::default())?;
    fs.rename(
        ROOT,
        at(Ino::ROOT, "entry-07"),
        at(dir, "moved"),
        RenameMode::Replace,
    )?;
    fs.unlink(ROOT, at(Ino::ROOT, "entry-08"))?;
    // Removed while it is open: a crash leaves it as an orphan.
    let open = fs.lookup(at(Ino::ROOT, "entry-09"))?.ino;
    fs.open_handle(open)?;
    fs.unlink(ROOT, at(Ino::ROOT, "entry-09"))?;
    let large = fs.lookup(at(dir, "large"))?.ino;
    fs.set_attr(
        ROOT,
        large,
        &SetAttr {
            size: Some(60_000),
            ..SetAttr::default()
        },
    )?;
    Ok(())
}
