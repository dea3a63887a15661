//! Snapshots, clones and transactions of a mounted store, as a user meets them.

mod back;
mod named;
mod names;
mod refusals;
mod streams;
mod targets;
mod times;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::Value;

use crate::mounted::{Mounted, wait_until};
use crate::place::{Ended, STITCHFS};

/// A mount with a directory `d` that has a file, which other users may enter; `None` where nothing
/// can be mounted.
fn mounted(options: &[&str]) -> Option<Mounted> {
    let mounted = Mounted::new(options)?;
    let all = fs::Permissions::from_mode(0o755);
    fs::set_permissions(mounted.place.path(""), all).unwrap();
    fs::create_dir(mounted.path("d")).unwrap();
    fs::write(mounted.path("d/f"), b"before").unwrap();
    Some(mounted)
}

/// Runs the command as another user than root.
fn as_user(mounted: &Mounted, args: &[&str]) -> Ended {
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups", STITCHFS];
    let args = [&user[..], args].concat();
    mounted.place.run_as(Path::new("setpriv"), &args)
}

/// Waits until the history has a moment that shows `d/f`, and returns its path in the place.
#[track_caller]
fn moment(mounted: &Mounted) -> String {
    let dir = mounted.path(".stitchfs/history");
    let found = || {
        let moments = fs::read_dir(&dir).ok()?.filter_map(Result::ok);
        let shows = moments.filter(|moment| moment.path().join("d/f").exists());
        shows.map(|moment| moment.file_name()).max()
    };
    assert!(wait_until(|| found().is_some()), "a moment is kept");
    let name = found().unwrap();
    format!("mnt/.stitchfs/history/{}", name.to_str().unwrap())
}

/// The names of all snapshots.
#[track_caller]
fn snapshots(mounted: &Mounted) -> Vec<String> {
    let listed = mounted
        .place
        .run(&["snapshot", "list", "-q", "--json", "mnt"]);
    let listed = listed.code(0).json();
    let each = listed["snapshots"].as_array().unwrap().iter();
    let name = |one: &Value| one["name"].as_str().unwrap().to_owned();
    each.map(name).collect()
}
