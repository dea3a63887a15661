//! `stitchfs snapshot`: read-only snapshots of directories in a mount.

mod delete;
mod hold;
pub(super) mod list;
mod policy;
mod run;

use super::quoted::quoted;
use super::startup::Inherited;
use super::{live, output, sync};
use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Parser, Subcommand};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use stitch_fs::SNAPSHOT_NAME_BYTES_MAX;
use stitch_fuse::adapter::{CONTROL_DIR, SNAPSHOT_XATTR, SNAPSHOTS_DIR, is_control_number};
use stitch_fuse::snapshots;
use stitchfs::{path_in, path_text};

const AFTER: &str = "\
A snapshot shows a directory, and all below it, as it was at one moment. It
takes as long for a million files as for one, survives crashes, and needs the
space of what was changed since. It is found at MNT/.stitchfs/snap/NAME, where
MNT is the mount point; .stitchfs is not listed. Nothing in it can be changed.
Root, the user who mounted, and the owner of a directory create and delete its
snapshots. Restore a file with cp.

Examples:
  stitchfs snapshot create /srv/home/ada before-upgrade
  stitchfs diff /srv/.stitchfs/snap/before-upgrade
  stitchfs snapshot run /srv/.stitchfs/snap/before-upgrade -- make test
  stitchfs snapshot hold /srv before-upgrade audit
  stitchfs snapshot release /srv before-upgrade audit
  stitchfs snapshot delete /srv before-upgrade
  stitchfs snapshot delete /srv/.stitchfs/snap/mon /srv/.stitchfs/snap/tue
  stitchfs snapshot create --every 15m --keep hourly=24,daily=7 /srv/home/ada
  stitchfs snapshot policy list /srv
  stitchfs snapshot policy delete /srv/home/ada";

/// Create, list, enter, hold or delete read-only snapshots of directories
#[derive(Debug, Parser)]
#[command(after_help = AFTER)]
pub(super) struct SnapshotArgs {
    #[command(subcommand)]
    what: SnapshotCommand,
}

#[derive(Debug, Subcommand)]
enum SnapshotCommand {
    Create(SnapshotCreate),
    List(list::SnapshotList),
    Run(run::SnapshotRun),
    Delete(delete::SnapshotDelete),
    Hold(hold::SnapshotHold),
    Release(hold::SnapshotRelease),
    Policy(policy::SnapshotPolicy),
}

/// Create a snapshot of a directory
#[derive(Debug, Parser)]
struct SnapshotCreate {
    /// Print what was created as JSON
    #[arg(long)]
    json: bool,

    /// Directory in a mount of StitchFS
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// Instead of one snapshot, have the daemon create one every 30s, 15m, 2h, 1d or 1w
    #[arg(long, value_name = "TIME", value_parser = policy::parse_every)]
    every: Option<u64>,

    /// With --every: which are kept, last=N,hourly=N,daily=N,weekly=N,monthly=N,yearly=N
    ///
    /// Of each of the last N hours, days and so on, in UTC, the newest snapshot is kept, and the
    /// last N of all. By default hourly=24,daily=7,weekly=4,monthly=12.
    #[arg(long, value_name = "RULES", requires = "every", value_parser = policy::parse_keep)]
    keep: Option<String>,

    /// Name, not used by another snapshot of the store; at most 250 bytes, no slash
    ///
    /// With --every it is the beginning of the names, `auto` by default; the time follows.
    #[arg(
        value_name = "NAME|PREFIX",
        required_unless_present = "every",
        value_parser = parse_name
    )]
    name: Option<String>,
}

pub(super) fn run(args: &SnapshotArgs, inherited: &Inherited) -> Result<u8> {
    match &args.what {
        SnapshotCommand::Create(args) => create(args),
        SnapshotCommand::List(args) => list::run(args),
        SnapshotCommand::Run(args) => run::run(args, inherited),
        SnapshotCommand::Delete(args) => delete::run(args),
        SnapshotCommand::Hold(args) => hold::hold(args),
        SnapshotCommand::Release(args) => hold::release(args),
        SnapshotCommand::Policy(args) => policy::run(args),
    }
}

/// Returns a name that a snapshot can have, or names of a policy can begin with.
fn parse_name(text: &str) -> Result<String, String> {
    let is_name = !matches!(text, "" | "." | "..") && !text.contains('/');
    match is_name && text.len() <= SNAPSHOT_NAME_BYTES_MAX {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "a name is not empty, `.` or `..`, has no slash, and at most {SNAPSHOT_NAME_BYTES_MAX} \
             bytes"
        )),
    }
}

fn create(args: &SnapshotCreate) -> Result<u8> {
    let given = args.name.as_deref();
    if let Some(every_s) = args.every {
        return policy::set(&args.dir, given, every_s, args.keep.as_deref(), args.json);
    }
    let name = given.unwrap_or_default();
    let place = create_at(&args.dir, name)?;
    if args.json {
        let mut out =
            live::ask_for(&place, SNAPSHOT_XATTR).unwrap_or_else(|_| json!({ "name": name }));
        stitchfs::set_path(&mut out, "snapshot", &place);
        output::print_json(&out)?;
    } else {
        output::print(&path_text(&place))?;
    }
    Ok(0)
}

/// Creates a snapshot of a directory, and returns where it is.
pub(super) fn create_at(dir: &Path, name: &str) -> Result<PathBuf> {
    let path = dir.canonicalize().with_context(|| shown(dir))?;
    let (mount, _) = live::around(&path)?;
    let opened = open_dir(&path).with_context(|| shown(dir))?;
    sync::write_back(&mount)?;
    snapshots::create(&opened, name).map_err(|error| refused(&path, name, &error))?;
    Ok(place(&mount, name))
}

/// The mount point that a path is in, and a directory of the mount to ask the daemon by.
fn open_mount(given: &Path) -> Result<(PathBuf, File)> {
    let path = given.canonicalize().with_context(|| shown(given))?;
    let (mount, _) = live::around(&path)?;
    // The root directory may be closed to the caller.
    let opened = open_dir(&snapshots_dir(&mount)).or_else(|_| open_dir(&mount));
    let opened = opened.with_context(|| shown(&mount))?;
    Ok((mount, opened))
}

/// Where the snapshots of a mount are.
pub(super) fn snapshots_dir(mount: &Path) -> PathBuf {
    mount.join(CONTROL_DIR).join(SNAPSHOTS_DIR)
}

pub(super) fn place(mount: &Path, name: &str) -> PathBuf {
    snapshots_dir(mount).join(name)
}

/// What the daemon says of the snapshot whose directory `path` is; `None` if it is that of none.
pub(super) fn about(path: &Path) -> Option<Value> {
    live::ask_for(path, SNAPSHOT_XATTR).ok()
}

/// Returns what the daemon says of the snapshot whose directory is `dir`, which the user called
/// `given`.
///
/// # Errors
/// It is the directory of none.
pub(super) fn information(given: &Path, dir: &Path, mount: &Path) -> Result<Value> {
    let (given, listed) = (given.display(), mount.display());
    live::told(dir, SNAPSHOT_XATTR).map_err(|error| match error {
        Errno::ACCESS | Errno::PERM if is_in_list(dir) => anyhow!(
            "{given}: permission denied: the directory of this snapshot, or one above it, was \
             closed to you when it was created"
        ),
        _ => anyhow!(
            "{given}: is not the directory of a snapshot; `stitchfs snapshot list {listed}` lists \
             them"
        ),
    })
}

/// Returns the directory of a snapshot, by its path, or by its name in the mount that one of
/// `beside` is in. A path that is there is taken for a path.
///
/// # Errors
/// There is neither.
pub(super) fn path_or_name(given: &Path, beside: &[&Path]) -> Result<PathBuf> {
    let error = match given.canonicalize() {
        Ok(path) => return Ok(path),
        Err(error) => error,
    };
    let name = given.to_str().filter(|_| given.components().count() == 1);
    let Some(name) = name.filter(|_| error.kind() == io::ErrorKind::NotFound) else {
        return Err(anyhow::Error::new(error).context(shown(given)));
    };
    let mounts: Vec<PathBuf> = beside.iter().filter_map(|dir| mount_around(dir)).collect();
    let places = mounts.iter().map(|mount| place(mount, name));
    let mut found = places.filter(|place| place.symlink_metadata().is_ok());
    found
        .next()
        .ok_or_else(|| no_snapshot(name, mounts.first().map(PathBuf::as_path)))
}

/// Returns the mount that a directory is in.
fn mount_around(dir: &Path) -> Option<PathBuf> {
    let (mount, _) = live::around(&dir.canonicalize().ok()?).ok()?;
    Some(mount)
}

/// Returns the error for a name that is neither there nor that of a snapshot in `mount`, which is
/// `None` where no mount was given.
fn no_snapshot(name: &str, mount: Option<&Path>) -> anyhow::Error {
    match mount.map(Path::display) {
        Some(mount) => anyhow!(
            "{name}: no such file or directory, and no snapshot of {mount}; `stitchfs snapshot \
             list {mount}` lists them"
        ),
        None => anyhow!(
            "{name}: no such file or directory; a snapshot is looked for by its name where a \
             directory or mount point is given too, or where the working directory is in a mount"
        ),
    }
}

/// Reports whether a path is of an entry in the list of snapshots.
pub(super) fn is_in_list(path: &Path) -> bool {
    let above = path.parent().map(|above| match above == Path::new("") {
        true => Path::new("."),
        false => above,
    });
    let Some(list) = above.and_then(|above| above.canonicalize().ok()) else {
        return false;
    };
    let is_made_up = |about: std::fs::Metadata| is_control_number(about.ino());
    list.ends_with(Path::new(CONTROL_DIR).join(SNAPSHOTS_DIR))
        && list.symlink_metadata().is_ok_and(is_made_up)
}

/// Returns the path of a snapshot's directory as it is now.
///
/// # Errors
/// It is not there any more, or another one; `remedy` says what to do then.
pub(super) fn present(mount: &Path, info: &Value, remedy: &str) -> Result<PathBuf> {
    let path = mount.join(path_in(info, "path").unwrap_or_default());
    let is_it = path
        .symlink_metadata()
        .is_ok_and(|found| info["root"] == found.ino());
    ensure!(
        is_it,
        "{}: is not there any more, or another one; {remedy}",
        path.display()
    );
    Ok(path)
}

pub(super) fn open_dir(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

/// Returns the path, from the root of the file system on, that is told of a snapshot or policy.
fn path_from_root(told: &Value) -> String {
    quoted(Path::new("/").join(path_in(told, "path").unwrap_or_default()))
}

pub(super) fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// Why the daemon did not do it.
pub(super) fn refused(path: &Path, name: &str, error: &io::Error) -> anyhow::Error {
    let shown = path.display();
    match Errno::from_io_error(error) {
        Some(Errno::EXIST) => taken(path, name),
        Some(Errno::NOENT) => anyhow!(
            "{name}: there is no such snapshot; `stitchfs snapshot list {shown}` lists them"
        ),
        Some(Errno::BUSY) => anyhow!("{name}: is held{}", hold::tags_of(path, name)),
        Some(Errno::PERM) => anyhow!(
            "{shown}: only root, the user who mounted it, and the owner of the directory may"
        ),
        Some(Errno::OPNOTSUPP) if live::is_in_transaction(path) => anyhow!(
            "{shown}: is in a transaction, of which there are no snapshots: commit it first"
        ),
        Some(Errno::OPNOTSUPP) => anyhow!(
            "{shown}: its store keeps no snapshots: it has large files beside it, or is one of the \
             RocksDB engine"
        ),
        Some(Errno::OVERFLOW) => anyhow!(
            "{shown}: its inode numbers are too large for snapshots; copy the files to a new store"
        ),
        Some(Errno::ROFS) => anyhow!("{shown}: is in a snapshot, or mounted for reading only"),
        Some(Errno::INVAL) => anyhow!(
            "{name:?}: is no name of a snapshot: one is not empty, `.` or `..`, and has no slash"
        ),
        Some(Errno::NAMETOOLONG) => {
            anyhow!("{shown}: the name has more than 250 bytes, or the path more than 4000")
        }
        Some(Errno::STALE) => {
            anyhow!("{shown}: was renamed while the snapshot was created; try again")
        }
        Some(Errno::NOTTY) => {
            anyhow!("{shown}: its daemon is of an older stitchfs; unmount it and mount it again")
        }
        Some(errno) => live::refusal(path, errno),
        None => anyhow!("{name:?}: is no name of a snapshot"),
    }
}

/// Another snapshot has a name.
fn taken(path: &Path, name: &str) -> anyhow::Error {
    let unique = "names are unique in a store: give another one";
    let mount = live::around(path).map(|(mount, _)| mount);
    let found = mount.ok().and_then(|mount| {
        let info = about(&place(&mount, name))?;
        Some((mount, info))
    });
    match found {
        Some((mount, info)) => anyhow!(
            "{name}: a snapshot of {} in {} has this name, and {unique}",
            path_from_root(&info),
            mount.display()
        ),
        None => anyhow!("{name}: another snapshot has this name, and {unique}"),
    }
}

/// Refuses a mount whose snapshots cannot be reached.
fn check_reachable(mount: &Path) -> Result<()> {
    let dir = snapshots_dir(mount);
    if dir.is_dir() {
        return Ok(());
    }
    let own = mount.join(CONTROL_DIR);
    if own.symlink_metadata().is_ok() {
        bail!(
            "{}: is a file of the file system itself, and hides the snapshots; rename it",
            own.display()
        );
    }
    bail!(
        "{}: its store cannot keep snapshots, or its daemon is of an older stitchfs",
        mount.display()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_no_snapshot_is_said_to_be_none() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |given: &str| {
            let error = path_or_name(Path::new(given), &[dir.path()]).unwrap_err();
            format!("{error:#}")
        };
        let said = refused("no-such-snapshot");
        assert!(
            said.contains("looked for by its name where a directory"),
            "{said}"
        );
        let said = refused("no-such-dir/a");
        assert!(said.starts_with("no-such-dir/a: No such file"), "{said}");
        let said = no_snapshot("mon", Some(Path::new("/srv"))).to_string();
        assert!(
            said.contains("no snapshot of /srv; `stitchfs snapshot list /srv`"),
            "{said}"
        );
        assert_eq!(
            path_or_name(dir.path(), &[]).unwrap(),
            dir.path().canonicalize().unwrap()
        );
    }
}
