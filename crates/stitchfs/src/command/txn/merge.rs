//! `stitchfs txn resolve --merge`: contents of a regular file are merged by a command.
//!
//! 1. The three states are copied to a directory for temporary files.
//! 2. The command merges them.
//! 3. The result is written to the file in the transaction, whose side wins.
//! 4. If others have changed the file since 1, it is done again.

use super::super::quoted::quoted;
use super::end::path_of;
use super::resolve::{listed, no_conflict, take};
use super::target::TxnMount;
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rustix::io::Errno;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use stitch_base::clock::{Clock as _, SystemClock};
use stitch_fs::Side;
use stitch_fuse::transactions;

/// How often the file may change meanwhile.
const TRIES: usize = 5;

/// The files of a merge; removed with their directory.
struct MergeFiles {
    dir: PathBuf,
    base: PathBuf,
    ours: PathBuf,
    theirs: PathBuf,
}

impl MergeFiles {
    fn create(name: &Path) -> Result<Self> {
        let id = (std::process::id(), SystemClock::default().now().0);
        let dir = std::env::temp_dir().join(format!("stitchfs-merge-{}-{}", id.0, id.1));
        let made = DirBuilder::new().mode(0o700).create(&dir);
        made.with_context(|| dir.display().to_string())?;
        // Tools tell by the ending what is in a file.
        let file = |side: &str| {
            let mut file = std::ffi::OsString::from(side);
            file.push("-");
            file.push(name);
            dir.join(file)
        };
        let (base, ours, theirs) = (file("base"), file("ours"), file("theirs"));
        Ok(Self {
            dir,
            base,
            ours,
            theirs,
        })
    }
}

impl Drop for MergeFiles {
    fn drop(&mut self) {
        // What is left is in the directory for temporary files.
        drop(fs::remove_dir_all(&self.dir));
    }
}

/// Merges a file, and returns the number of conflicts that are resolved by it.
pub(super) fn run(target: &TxnMount, name: &str, path: &[u8], command: &str) -> Result<usize> {
    let shown = quoted(path_of(path));
    if !listed(target, name)?
        .iter()
        .any(|one| one.path == path && one.record.is_none())
    {
        return Err(no_conflict(target, name, &shown));
    }
    let inside = target.place(name).join(path_of(path));
    let outside = target.mount().join(path_of(path));
    let ours = contents(&inside).with_context(|| format!("{shown}: in the transaction"))?;
    let base = match transactions::base_contents(target.dir(), name, path) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => Vec::new(),
        base => base.with_context(|| format!("{shown}: as the transaction began"))?,
    };
    let file_name = outside.file_name().map_or_else(PathBuf::new, PathBuf::from);
    for _ in 0..TRIES {
        let theirs = contents(&outside).with_context(|| format!("{shown}: as it is now"))?;
        let merged = merge(&file_name, command, [&base, &ours, &theirs])
            .with_context(|| format!("{shown}: nothing was resolved"))?;
        overwrite(&inside, &merged)?;
        let count = take(target, name, path, Side::Ours)?;
        // What was resolved is what was merged.
        if contents(&outside).is_ok_and(|now| now == theirs) {
            return Ok(count);
        }
    }
    bail!("{shown}: others change it again and again; try again")
}

/// Returns the contents of a regular file.
fn contents(path: &Path) -> Result<Vec<u8>> {
    let found = path.symlink_metadata()?;
    ensure!(
        found.is_file(),
        "is no regular file; take --ours or --theirs"
    );
    Ok(fs::read(path)?)
}

fn merge(name: &Path, command: &str, sides: [&[u8]; 3]) -> Result<Vec<u8>> {
    let files = MergeFiles::create(name)?;
    let paths = [&files.base, &files.ours, &files.theirs];
    for (path, contents) in paths.iter().zip(sides) {
        fs::write(path, contents).with_context(|| path.display().to_string())?;
    }
    let (text, is_given) = with_places(command);
    let mut shell = Command::new("/bin/sh");
    // The files are $1, $2 and $3.
    let text = match is_given {
        true => text,
        false => format!("{text} \"$@\""),
    };
    shell.arg("-c").arg(text).arg("stitchfs-merge").args(paths);
    shell.env("BASE", &files.base).env("LOCAL", &files.ours);
    shell
        .env("REMOTE", &files.theirs)
        .env("MERGED", &files.ours);
    let status = shell.status().context("/bin/sh")?;
    ensure!(status.success(), "the command {command:?} ended: {status}");
    contents(&files.ours)
}

/// Returns a command in which `%O`, `%A` and `%B` are the three files, and whether there are any.
fn with_places(command: &str) -> (String, bool) {
    let mut text = command.to_owned();
    for (place, argument) in [("%O", "\"$1\""), ("%A", "\"$2\""), ("%B", "\"$3\"")] {
        text = text.replace(place, argument);
    }
    let is_given = text != command;
    (text, is_given)
}

/// Writes the contents of a file anew, which stays the same file.
fn overwrite(path: &Path, contents: &[u8]) -> Result<()> {
    let shown = || anyhow!("{}: cannot be written", path.display());
    let file = OpenOptions::new().write(true).truncate(true).open(path);
    let mut file = file.with_context(shown)?;
    file.write_all(contents).with_context(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_gets_three_files_and_leaves_the_result_in_the_second() {
        let sides: [&[u8]; 3] = [b"base\n", b"ours\n", b"theirs\n"];
        let merged = |command: &str| merge(Path::new("file.txt"), command, sides);
        let placed = "cat %O %B >> %A";
        assert_eq!(merged(placed).unwrap(), b"ours\nbase\ntheirs\n");
        let by_arguments = "f() { cat \"$3\" > \"$2\"; }; f";
        assert_eq!(merged(by_arguments).unwrap(), b"theirs\n");
        let by_names = "cat \"$REMOTE\" \"$LOCAL\" \"$BASE\" > x.$$; mv x.$$ \"$MERGED\" # %A";
        let in_temp = format!("cd $(dirname \"$BASE\"); {by_names}");
        assert_eq!(merged(&in_temp).unwrap(), b"theirs\nours\nbase\n");
        assert!(merged("case %A in *ours-file.txt) ;; *) exit 1;; esac").is_ok());
        let why = format!("{:#}", merged("exit 3 # %A").unwrap_err());
        assert!(why.contains("exit status: 3"), "{why}");
    }

    #[test]
    fn only_regular_files_are_merged() {
        let why = contents(Path::new("/tmp")).unwrap_err().to_string();
        assert!(why.contains("no regular file"), "{why}");
        assert!(contents(Path::new("/nonexistent/file")).is_err());
    }
}
