//! A directory to run the command in, and how a run ended.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub(crate) const STITCHFS: &str = env!("CARGO_BIN_EXE_stitchfs");

/// A directory to work in.
pub(crate) struct Place(pub(crate) tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory is made"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs `program` in the directory.
    pub(crate) fn run_as(&self, program: &Path, args: &[&str]) -> Ended {
        self.ended(Command::new(program).args(args))
    }

    /// Runs a command in the directory.
    fn ended(&self, command: &mut Command) -> Ended {
        let command = command.current_dir(self.0.path()).stdin(Stdio::null());
        Ended(command.output().expect("the program starts"))
    }

    /// Runs the program with one more variable in its environment.
    #[cfg(feature = "rocksdb")]
    pub(crate) fn run_with(&self, (name, value): (&str, &Path), args: &[&str]) -> Ended {
        let mut command = Command::new(STITCHFS);
        command.args(args).env(name, value);
        self.ended(&mut command)
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ended {
        self.run_as(Path::new(STITCHFS), args)
    }

    /// The program under another name.
    pub(crate) fn named(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        if !path.exists() {
            symlink(STITCHFS, &path).expect("a link is made");
        }
        path
    }

    pub(crate) fn with_store(name: &str) -> Self {
        let place = Self::new();
        place.run(&["mkfs", "--size", "16M", name]).code(0);
        place
    }
}

/// How a command ended.
pub(crate) struct Ended(Output);

impl Ended {
    #[track_caller]
    pub(crate) fn code(&self, code: i32) -> &Self {
        let out = String::from_utf8_lossy(&self.0.stdout);
        let err = self.err();
        assert_eq!(self.0.status.code(), Some(code), "out: {out}\nerr: {err}");
        self
    }

    pub(crate) fn out(&self) -> String {
        String::from_utf8(self.0.stdout.clone()).expect("text")
    }

    /// Standard output, as bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.stdout.clone()
    }

    pub(crate) fn err(&self) -> String {
        String::from_utf8(self.0.stderr.clone()).expect("text")
    }

    /// Standard error says this, and standard output says nothing.
    #[track_caller]
    pub(crate) fn says(&self, text: &str) -> &Self {
        let err = self.err();
        assert!(err.contains(text), "{text:?} is not in {err:?}");
        assert!(!err.contains("panicked"), "{err}");
        assert_eq!(self.out(), "");
        self
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.0.stdout).expect("JSON")
    }
}
