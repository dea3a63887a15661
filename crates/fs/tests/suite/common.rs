//! What the tests of the file system share.

use crate::engine::{TestEngine, dynamic};
use std::sync::Arc;
use std::time::Duration;
use stitch_base::Ino;
use stitch_base::clock::ManualClock;
use stitch_fs::fsck::{self, Issue};
use stitch_fs::{
    Attr, Caller, DirName, External, ExternalFiles, FileSystem, FsError, FsOptions, FsResult,
    MemFiles, NewNode, SetAttr, Taken, WriteOptions, register_upserts,
};
use stitch_kv::UpsertRegistry;

pub(crate) const ROOT: Ino = Ino::ROOT;
pub(crate) const SUPER: Caller<'static> = Caller::ROOT;
pub(crate) const USER: Caller<'static> = Caller {
    uid: 1000,
    gid: 1000,
    groups: &[],
};

/// A file system on an engine, and a clock that the test moves.
pub(crate) struct Setup {
    pub(crate) engine: Arc<TestEngine>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) fs: FileSystem,
    /// The plain files, where large files are external.
    pub(crate) files: Option<MemFiles>,
    names_bytes: usize,
}

/// Files above this are external in [`setup_external`].
pub(crate) const FROM_BYTES: u64 = 8192;

/// Large files, of more than [`FROM_BYTES`], are external.
pub(crate) fn setup_external() -> Setup {
    external_on(Arc::new(TestEngine::new(registry())), MemFiles::new())
}

pub(crate) fn external_on(engine: Arc<TestEngine>, files: MemFiles) -> Setup {
    let external = External {
        files: Arc::new(files.clone()),
        from_bytes: Some(FROM_BYTES),
        is_synchronous: false,
    };
    let mut setup = setup_on(engine, |options| options.external = Some(external));
    setup.files = Some(files);
    setup
}

pub(crate) fn files(setup: &Setup) -> MemFiles {
    setup.files.clone().expect("there are some")
}

/// A file of 20,000 bytes beside the store.
pub(crate) fn large(setup: &Setup, name: &str) -> Ino {
    let ino = setup.file(ROOT, name).ino;
    setup.write(ino, 0, &[7; 20_000]);
    ino
}

/// Gives a file another length.
pub(crate) fn cut(setup: &Setup, ino: Ino, size: u64) -> FsResult<()> {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    setup.fs.set_attr(&SUPER, ino, &set).map(drop)
}

pub(crate) fn registry() -> UpsertRegistry {
    let mut registry = UpsertRegistry::default();
    register_upserts(&mut registry);
    registry
}

pub(crate) fn setup() -> Setup {
    setup_on(Arc::new(TestEngine::new(registry())), |_| {})
}

pub(crate) fn setup_with(change: impl FnOnce(&mut FsOptions)) -> Setup {
    setup_on(Arc::new(TestEngine::new(registry())), change)
}

pub(crate) fn setup_on(engine: Arc<TestEngine>, change: impl FnOnce(&mut FsOptions)) -> Setup {
    let clock = Arc::new(ManualClock::default());
    clock.advance(Duration::from_secs(1_000_000));
    let mut options = FsOptions {
        clock: clock.clone(),
        name_seed: Some(7),
        ..FsOptions::default()
    };
    let store = dynamic(&engine);
    match FileSystem::format(&store, &options, (0, 0)) {
        Ok(()) | Err(FsError::Exists) => {}
        Err(error) => panic!("format: {error}"),
    }
    change(&mut options);
    let names_bytes = options.names_bytes;
    let fs = FileSystem::open(store, options).expect("opens");
    let files = None;
    Setup {
        engine,
        clock,
        fs,
        files,
        names_bytes,
    }
}

pub(crate) fn at(parent: Ino, name: &str) -> DirName<'_> {
    DirName::new(parent, name.as_bytes())
}

pub(crate) fn new(perm: u32) -> NewNode {
    NewNode { perm, umask: 0 }
}

/// All bytes of a file.
pub(crate) fn contents_of(fs: &FileSystem, ino: Ino) -> Vec<u8> {
    let size = fs.get_attr(ino).expect("is known").size;
    let len = usize::try_from(size).expect("a small file");
    let mut out = Vec::new();
    let count = fs.read(ino, 0, len, &mut out).expect("reads");
    assert_eq!(count, out.len());
    out
}

/// Names in a directory, sorted, without `.` and `..`.
pub(crate) fn names_in(fs: &FileSystem, dir: Ino) -> Vec<String> {
    let mut names = Vec::new();
    fs.read_dir(dir, 0, &mut |entry| {
        names.push(String::from_utf8(entry.name.to_vec()).expect("ASCII"));
        Taken::More
    })
    .expect("reads the directory");
    names.retain(|name| name != "." && name != "..");
    names.sort();
    names
}

impl Setup {
    /// What a killed process leaves, opened again.
    pub(crate) fn reopened(self) -> Self {
        let engine = Arc::new(self.engine.reopened());
        drop(self.fs);
        match self.files {
            Some(files) => external_on(engine, files),
            None => setup_on(engine, |options| options.names_bytes = self.names_bytes),
        }
    }

    pub(crate) fn tick(&self) {
        self.clock.advance(Duration::from_secs(1));
    }

    pub(crate) fn file(&self, parent: Ino, name: &str) -> Attr {
        self.fs
            .create(&SUPER, at(parent, name), &new(0o644))
            .expect("creates")
    }

    pub(crate) fn dir(&self, parent: Ino, name: &str) -> Attr {
        self.fs
            .make_dir(&SUPER, at(parent, name), &new(0o755))
            .expect("makes a directory")
    }

    pub(crate) fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Attr {
        self.fs
            .write(ino, offset, data, WriteOptions::default())
            .expect("writes")
    }

    pub(crate) fn read(&self, ino: Ino, offset: u64, len: usize) -> Vec<u8> {
        let mut out = Vec::new();
        let count = self.fs.read(ino, offset, len, &mut out).expect("reads");
        assert_eq!(count, out.len());
        out
    }

    pub(crate) fn contents(&self, ino: Ino) -> Vec<u8> {
        contents_of(&self.fs, ino)
    }

    pub(crate) fn attr(&self, ino: Ino) -> Attr {
        self.fs.get_attr(ino).expect("is known")
    }

    pub(crate) fn lookup(&self, parent: Ino, name: &str) -> FsResult<Attr> {
        self.fs.lookup(at(parent, name))
    }

    /// Names in a directory, sorted, without `.` and `..`.
    pub(crate) fn names(&self, ino: Ino) -> Vec<String> {
        names_in(&self.fs, ino)
    }

    /// Refuses any broken rule.
    pub(crate) fn check(&self) {
        assert_eq!(self.issues(), []);
    }

    /// What a check finds, also in the plain files. Those whose removal is not durable yet are
    /// none.
    pub(crate) fn issues(&self) -> Vec<Issue> {
        let store = dynamic(&self.engine);
        let files = self.files.as_ref().map(|files| files as &dyn ExternalFiles);
        fsck::check_with_files(&store, &[], files, &mut |_| {}).expect("checks")
    }

    /// All rows of a tree of the file system.
    pub(crate) fn rows(&self, tree: &str) -> usize {
        self.engine.dump()[&format!("fs/{tree}")].len()
    }
}
