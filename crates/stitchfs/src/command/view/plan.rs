//! The plan: what is attached where, from the mount table alone.
//!
//! Only mounts that a path leads to count. A mount of the file system is covered if its root lies
//! in the view's directory, or the directory lies in it. What else is mounted in a covered
//! directory is attached again.

use super::View;
use anyhow::{Result, ensure};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use stitch_fuse::adapter::CONTROL_DIR;
use stitch_fuse::mount::table::MountEntry;

/// What the kernel appends to the root of a bind mount whose directory was removed.
const REMOVED: &[u8] = b"//deleted";

/// A step. They are taken in order: a mount is attached before those in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PlanStep {
    /// A directory of the view is attached at a path.
    Cover {
        /// The directory, from the view's own.
        inner: PathBuf,
        target: PathBuf,
        /// The path is in a directory that a step before has covered.
        is_inside: bool,
    },
    /// What is mounted in a covered directory is attached again at the same path.
    Keep { target: PathBuf },
}

/// Plans how to enter a view.
///
/// # Errors
/// If no path leads to the directory of the view, or it is `/`.
pub(super) fn plan(mounts: &[MountEntry], view: &View) -> Result<Vec<PlanStep>> {
    let mut visible: Vec<&MountEntry> = mounts
        .iter()
        .filter(|mount| is_at(mounts, mount, &mount.path))
        .collect();
    visible.sort_by_key(|mount| mount.path.components().count());
    let mut planner = Planner::default();
    for mount in visible {
        let cover = covered(mount, view).filter(|(_, target)| is_at(mounts, mount, target));
        planner.place(mount, cover)?;
    }
    ensure!(
        !planner.covered.is_empty(),
        "{}: its directory, /{} of the file system, cannot be reached: something is mounted over \
         it",
        view.dir.display(),
        view.covers.display()
    );
    Ok(planner.steps)
}

#[derive(Default)]
struct Planner<'a> {
    steps: Vec<PlanStep>,
    /// Mounts with a covered directory, and the path of that.
    covered: Vec<(&'a MountEntry, PathBuf)>,
}

impl<'a> Planner<'a> {
    /// Adds the steps of a mount; `cover` is the directory of the view for it and its path.
    fn place(&mut self, mount: &'a MountEntry, cover: Option<(PathBuf, PathBuf)>) -> Result<()> {
        let is_inside = self
            .covered
            .iter()
            .any(|(parent, top)| parent.id == mount.parent && mount.path.starts_with(top));
        let is_replaced = cover
            .as_ref()
            .is_some_and(|(_, target)| *target == mount.path);
        if is_inside && !is_replaced {
            let target = mount.path.clone();
            self.steps.push(PlanStep::Keep { target });
        }
        if let Some((inner, target)) = cover {
            ensure!(
                target != Path::new("/"),
                "the file system is mounted at /, which cannot be replaced for one command; mount \
                 it at another path as well"
            );
            self.covered.push((mount, target.clone()));
            self.steps.push(PlanStep::Cover {
                inner,
                target,
                is_inside: is_inside && is_replaced,
            });
        }
        Ok(())
    }
}

/// Returns the directory of the view that belongs to a mount, and the path that it belongs at.
fn covered(mount: &MountEntry, view: &View) -> Option<(PathBuf, PathBuf)> {
    if mount.device != view.device || mount.root.as_os_str().as_bytes().ends_with(REMOVED) {
        return None;
    }
    let root = mount.root.strip_prefix("/").ok()?;
    let root = root.strip_prefix(&view.replaces).ok()?;
    // A directory of another view.
    if root.starts_with(CONTROL_DIR) {
        return None;
    }
    if let Ok(inner) = root.strip_prefix(&view.covers) {
        return Some((inner.to_owned(), mount.path.clone()));
    }
    let below = view.covers.strip_prefix(root).ok()?;
    Some((PathBuf::new(), mount.path.join(below)))
}

/// Reports whether `path`, which must not contain links, leads to this mount.
fn is_at(mounts: &[MountEntry], mount: &MountEntry, path: &Path) -> bool {
    // Mounts whose parent is not in the table are where a walk begins.
    let mut at = None;
    for _ in 0..=mounts.len() {
        match next(mounts, at, path) {
            Some(next) => at = Some(next),
            None => break,
        }
    }
    at.is_some_and(|found| found.id == mount.id)
}

/// Returns the mount that a walk to `path` enters next from the mount `at`.
fn next<'a>(
    mounts: &'a [MountEntry],
    at: Option<&MountEntry>,
    path: &Path,
) -> Option<&'a MountEntry> {
    let is_child = |mount: &&MountEntry| match at {
        Some(at) => mount.parent == at.id && mount.id != at.id,
        None => mount.parent == mount.id || !mounts.iter().any(|above| above.id == mount.parent),
    };
    let children = mounts.iter().filter(is_child);
    let on_the_way = children.filter(|mount| path.starts_with(&mount.path));
    on_the_way.min_by_key(|mount| mount.path.components().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: (u32, u32) = (0, 51);

    /// A mount table: `id parent root path`, with `*` before the roots of the file system.
    fn table(text: &str) -> Vec<MountEntry> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        lines
            .map(|line| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                let root = fields[2].strip_prefix('*');
                MountEntry {
                    id: fields[0].parse().unwrap(),
                    parent: fields[1].parse().unwrap(),
                    root: root.unwrap_or(fields[2]).into(),
                    path: fields[3].into(),
                    device: root.map_or((8, 1), |_| OURS),
                    kind: "any".to_owned(),
                    source: "x".into(),
                    options: String::new(),
                    super_options: String::new(),
                }
            })
            .collect()
    }

    fn plan_of(text: &str, covers: &str) -> Result<Vec<String>> {
        let view = View {
            dir: "/srv/.stitchfs/snap/mon".into(),
            replaces: "".into(),
            covers: covers.into(),
            device: OURS,
        };
        let steps = plan(&table(text), &view)?;
        Ok(steps.iter().map(line).collect())
    }

    fn line(step: &PlanStep) -> String {
        match step {
            PlanStep::Keep { target } => format!("keep {}", target.display()),
            PlanStep::Cover {
                inner,
                target,
                is_inside,
            } => {
                let sign = if *is_inside { "cover inside" } else { "cover" };
                format!("{sign} {} with ./{}", target.display(), inner.display())
            }
        }
    }

    const MOUNTS: &str = "
        1 0 / /
        2 1 */ /srv
        3 2 / /srv/home/ada/usb
        4 3 */home /srv/home/ada/usb/again
        5 1 */home /home
        6 1 */home/ada/www /www
        7 2 */home/ada /srv/home/bob
        8 7 / /srv/home/bob/tmp
        9 1 / /other";

    #[test]
    fn a_view_of_the_root_covers_every_mount() {
        let steps = plan_of(MOUNTS, "").unwrap();
        let expected = [
            "cover /srv with ./",
            "cover /home with ./home",
            "cover /www with ./home/ada/www",
            "cover inside /srv/home/bob with ./home/ada",
            "keep /srv/home/ada/usb",
            "keep /srv/home/bob/tmp",
            "cover /srv/home/ada/usb/again with ./home",
        ];
        assert_eq!(steps, expected);
    }

    #[test]
    fn a_view_of_a_directory_covers_it_alone() {
        let steps = plan_of(MOUNTS, "home/ada").unwrap();
        let expected = [
            "cover /srv/home/ada with ./",
            "cover /home/ada with ./",
            "cover /www with ./www",
            "cover /srv/home/bob with ./",
            "keep /srv/home/ada/usb",
            "keep /srv/home/bob/tmp",
            "cover /srv/home/ada/usb/again/ada with ./",
        ];
        assert_eq!(steps, expected);
    }

    #[test]
    fn a_mount_in_the_view_with_the_directory_in_it_is_kept_and_covered() {
        let mounts = "
            1 0 / /
            2 1 */ /srv
            3 2 */home /srv/home/ada/up";
        let steps = plan_of(mounts, "home/ada").unwrap();
        let expected = [
            "cover /srv/home/ada with ./",
            "keep /srv/home/ada/up",
            "cover /srv/home/ada/up/ada with ./",
        ];
        assert_eq!(steps, expected);
    }

    #[test]
    fn what_no_path_leads_to_is_left_alone() {
        let mounts = "
            1 0 / /
            2 1 */ /srv
            3 2 / /srv/home
            4 1 */ /over
            5 4 */other /over
            6 1 */home/gone//deleted /gone
            7 1 */.stitchfs/snap/tue/home /tue
            8 1 */ /real";
        let steps = plan_of(mounts, "home").unwrap();
        assert_eq!(steps, ["cover /real/home with ./"]);
        let steps = plan_of(mounts, "other").unwrap();
        let expected = ["cover /srv/other with ./", "cover /over with ./"];
        assert_eq!(steps[..2], expected);
        assert_eq!(steps[2..], ["cover /real/other with ./"]);
    }

    #[test]
    fn names_that_begin_alike_are_not_in_the_directory() {
        let mounts = "
            1 0 / /
            2 1 */ /srv
            3 1 */homes /homes
            4 1 / /srv2";
        assert_eq!(
            plan_of(mounts, "home").unwrap(),
            ["cover /srv/home with ./"]
        );
    }

    #[test]
    fn a_hidden_directory_and_the_root_are_refused() {
        let hidden = "
            1 0 / /
            2 1 */ /srv
            3 2 / /srv";
        let error = plan_of(hidden, "home").unwrap_err().to_string();
        assert!(error.contains("mounted over it"), "{error}");
        let error = plan_of("1 0 */ /", "").unwrap_err().to_string();
        assert!(error.contains("mounted at /"), "{error}");
        // Without its parent in the table, as in a container.
        assert_eq!(plan_of("5 4 */ /srv", "").unwrap(), ["cover /srv with ./"]);
    }
}
