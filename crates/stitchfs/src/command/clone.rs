//! `stitchfs clone` and `stitchfs destroy`: directories and files that share their data with
//! another one until either is changed.

mod file;

use super::rmtree::TreeToRemove;
use super::{live, output, sync};
use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde_json::json;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use stitch_fs::INNER_CLONES_MAX;
use stitch_fuse::adapter::CLONE_XATTR;
use stitch_fuse::clones;

const AFTER_CLONE: &str = "\
A clone is a directory with the contents of another one, which changes apart
from it. It takes as long for a million files as for one, and needs the space
of what is changed in either. SRC is a directory in a mount of StitchFS, or in
one of its snapshots or clones; DST is a new name in the same mount. Clones that
lie in SRC, and those in them, are clones in DST: all are of one moment, and
made all or none. Root, the user who mounted, and the owner of SRC may clone it.
mv and ln between a clone and the rest of the mount work as between two file
systems. `stitchfs destroy` removes a clone in one step, and `rm -r` file by
file.

If SRC is a file, DST is a copy of it with its attributes: an ordinary file that
shares the contents until either is changed, as `cp -p` makes one in a mount of
StitchFS. Files below 64 KiB, files with room set aside by `fallocate`, large
files beside the store, and files of a snapshot, are copied byte by byte.

Examples:
  stitchfs clone /srv/project /srv/project-test
  stitchfs clone /srv/.stitchfs/snap/monday /srv/monday
  stitchfs clone /srv/disk.img /srv/disk-test.img
  stitchfs destroy /srv/project-test";

const AFTER_DESTROY: &str = "\
The name goes at once, and the space that only the clone needed comes back in
the background. Clones that lie in it go with it. Root, the user who mounted,
and the one who made the clone may do this; other users have `rm -r`.";

/// Make a directory, or a file, that shares its data with another one
#[derive(Debug, Parser)]
#[command(after_help = AFTER_CLONE)]
pub(super) struct CloneArgs {
    /// Print what was made as JSON
    #[arg(long)]
    json: bool,

    /// Directory or file in a mount of StitchFS
    #[arg(value_name = "SRC")]
    source: PathBuf,

    /// New name in the same mount
    #[arg(value_name = "DST")]
    target: PathBuf,
}

/// Remove a clone with all that is in it, in one step
#[derive(Debug, Parser)]
#[command(after_help = AFTER_DESTROY)]
pub(super) struct DestroyArgs {
    /// Print what was removed as JSON
    #[arg(long)]
    json: bool,

    /// Directory of the clone
    #[arg(value_name = "DIR")]
    path: PathBuf,
}

pub(super) fn run(args: &CloneArgs) -> Result<u8> {
    let source = args.source.canonicalize();
    let source = source.with_context(|| shown(&args.source))?;
    let target = target_path(&args.target)?;
    live::check_target(&target)?;
    let (mount, _) = live::around(&source)?;
    let parent = target.parent().unwrap_or(Path::new("/"));
    let (parent_inode, name) = (inode_in(parent, &source)?, target.file_name());
    if !source.is_dir() {
        return file::run(&source, &target, args.json);
    }
    let name = name.ok_or_else(|| anyhow!("{}: has no name", shown(&target)))?;
    check_view(&source)?;
    check_view(parent)?;
    let opened = open_dir(&source).with_context(|| shown(&source))?;
    sync::write_back(&mount)?;
    let announced = clones::announce(&opened, parent_inode, name.as_bytes());
    announced.map_err(|error| refused(&source, &error))?;
    std::fs::create_dir(&target).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => anyhow!("{}: exists; give a new name", shown(&target)),
        ErrorKind::PermissionDenied if Errno::from_io_error(&error) == Some(Errno::ACCESS) => {
            let parent = shown(parent);
            anyhow!(
                "{parent}: no permission to make a name in it; `ls -ld {parent}` shows its mode"
            )
        }
        _ => refused(&target, &error),
    })?;
    let about = live::ask_for(&target, CLONE_XATTR);
    let mut about = about.with_context(|| {
        let shown = shown(&target);
        format!(
            "{shown}: was made as an empty directory and not as a clone: remove it, and try again"
        )
    })?;
    if args.json {
        stitchfs::set_path(&mut about, "clone", &target);
        output::print_json(&about)?;
    }
    Ok(0)
}

pub(super) fn destroy(args: &DestroyArgs) -> Result<u8> {
    let tree = TreeToRemove::find(&args.path)?;
    if live::ask_for(tree.path(), CLONE_XATTR).is_err() {
        tree.check_stored()?;
        bail!(
            "{}: is no clone; `stitchfs rmtree` and `rm -r` remove other directories",
            shown(&args.path)
        );
    }
    tree.remove()?;
    if args.json {
        let mut out = json!({});
        stitchfs::set_path(&mut out, "destroyed", tree.path());
        output::print_json(&out)?;
    }
    Ok(0)
}

/// Refuses a directory in a view that takes no clones and is the source of none.
fn check_view(dir: &Path) -> Result<()> {
    if live::is_in_transaction(dir) {
        bail!(
            "{}: is in a transaction, where directories are not cloned: use cp -a, or clone after \
             the commit",
            shown(dir)
        );
    }
    if live::is_in_history(dir) {
        bail!(
            "{}: is in the history, whose moments are not cloned: use cp -a, or `stitchfs restore`",
            shown(dir)
        );
    }
    Ok(())
}

/// The absolute path of what is to be made. Its directory exists.
fn target_path(given: &Path) -> Result<PathBuf> {
    let Some(name) = given.file_name() else {
        bail!("{}: is no new name; give it as DIR/NAME", shown(given));
    };
    let parent = match given.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let parent = parent.canonicalize().with_context(|| shown(parent))?;
    debug_assert!(parent.is_absolute(), "as of canonicalize");
    Ok(parent.join(name))
}

/// The number of a directory in the mount that `source` is in.
fn inode_in(parent: &Path, source: &Path) -> Result<u64> {
    let about = |path: &Path| path.metadata().with_context(|| shown(path));
    let (parent_about, source_about) = (about(parent)?, about(source)?);
    if parent_about.dev() != source_about.dev() {
        bail!(
            "{}: is not in the mount of {}; use cp -a",
            shown(parent),
            shown(source)
        );
    }
    Ok(parent_about.ino())
}

fn open_dir(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// Why the daemon did not do it.
fn refused(path: &Path, error: &std::io::Error) -> anyhow::Error {
    let shown = path.display();
    match Errno::from_io_error(error) {
        Some(Errno::PERM) => anyhow!(
            "{shown}: only root, the user who mounted it, and the owner of the directory may"
        ),
        Some(Errno::OPNOTSUPP) => anyhow!(
            "{shown}: its store holds no clones: large files are beside it, or its engine cannot; \
             use cp -a"
        ),
        Some(Errno::OVERFLOW) => anyhow!(
            "{shown}: its inode numbers are too large for clones; copy the files to a new store"
        ),
        Some(Errno::LOOP) => {
            anyhow!(
                "{shown}: is, or has in it, a clone of a clone, 32 times; use cp -a for that one"
            )
        }
        Some(Errno::MFILE) => anyhow!(
            "{shown}: more than {INNER_CLONES_MAX} clones lie in it; clone directories in it one \
             by one"
        ),
        Some(Errno::NOTTY) => {
            anyhow!("{shown}: its daemon is of an older stitchfs; unmount it and mount it again")
        }
        Some(Errno::ROFS) => anyhow!("{shown}: is in a snapshot, or mounted for reading only"),
        Some(Errno::NAMETOOLONG) => {
            anyhow!("{shown}: the name has more than 255 bytes, or the path more than 4000")
        }
        Some(errno) => live::refusal(path, errno),
        None => anyhow!("{shown}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_a_name_in_a_directory_that_exists() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        assert_eq!(target_path(&root.join("a")).unwrap(), root.join("a"));
        let inside = root.join("x/..");
        let error = target_path(&inside).unwrap_err().to_string();
        assert!(error.contains("no new name"), "{error}");
        assert!(target_path(&root.join("missing/a")).is_err());
    }

    #[test]
    fn both_are_in_one_mount() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().metadata().unwrap().ino();
        assert_eq!(inode_in(dir.path(), dir.path()).unwrap(), own);
        let error = inode_in(dir.path(), Path::new("/proc")).unwrap_err();
        assert!(error.to_string().contains("use cp -a"), "{error}");
    }
}
