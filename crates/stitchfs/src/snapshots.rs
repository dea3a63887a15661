//! What is told about snapshots.

use crate::set_path;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use stitch_base::Ino;
use stitch_fs::{Keep, PolicyInfo, SnapshotInfo};
use stitch_fuse::adapter::{number_in_clone, number_of_source};

/// Returns what a snapshot is of, as commands print it and daemons answer it: `name`, `id`, `path`
/// of the directory from the root of the file system, the inode number `root` that it has in the
/// mount, `owner`, `created_ns`, `holds` (the tags under which it is held),
/// and `automatic` if a policy created it.
#[must_use]
pub fn snapshot_json(info: &SnapshotInfo) -> Value {
    let mut out = json!({
        "name": info.name,
        "id": info.id.0,
        "root": number_of_source(info).0,
        "owner": info.owner,
        "created_ns": info.created.0,
        "holds": info.tags,
        "automatic": info.is_automatic,
    });
    let path = PathBuf::from(OsString::from_vec(info.path.clone()));
    set_path(&mut out, "path", &path);
    out
}

/// Name of an attribute of a mount's root directory: the policies of snapshots, as JSON.
pub const POLICIES_XATTR: &str = "stitchfs.policies";

/// Returns policies as commands print them and daemons answer them: an object with the list
/// `policies`, each with `path` from the root of the file system, the inode number `dir` that the
/// directory has in the mount, `owner`, `prefix`, `every_s`, `keep`, `next_ns`,
/// `clone` with the number of the clone that the directory is in, if it is in one, and `last_error`
/// if the last try failed.
#[must_use]
pub fn policies_json(policies: &[PolicyInfo]) -> Value {
    let each = |policy: &PolicyInfo| {
        let mut out = json!({
            "dir": policy_dir(policy).0,
            "owner": policy.owner,
            "prefix": policy.rule.prefix,
            "every_s": policy.rule.every_s,
            "keep": keep_text(&policy.rule.keep),
            "next_ns": policy.next.0,
        });
        if policy.view > 0 {
            out["clone"] = json!(policy.view);
        }
        if let Some(error) = &policy.last_error {
            out["last_error"] = json!(error);
        }
        let path = PathBuf::from(OsString::from_vec(policy.path.clone()));
        set_path(&mut out, "path", &path);
        out
    };
    json!({ "policies": policies.iter().map(each).collect::<Vec<Value>>() })
}

/// Returns the number that the directory of a policy has in a mount.
fn policy_dir(policy: &PolicyInfo) -> Ino {
    match policy.view {
        0 => policy.dir,
        view => number_in_clone(view, policy.dir),
    }
}

fn keep_text(keep: &Keep) -> String {
    let rules = [
        ("last", keep.last),
        ("hourly", keep.hourly),
        ("daily", keep.daily),
        ("weekly", keep.weekly),
        ("monthly", keep.monthly),
        ("yearly", keep.yearly),
    ];
    let set = rules.iter().filter(|(_, count)| *count > 0);
    let text: Vec<String> = set.map(|(name, count)| format!("{name}={count}")).collect();
    if text.is_empty() {
        return "last=1".to_owned();
    }
    text.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_says_in_which_clone_its_directory_is() {
        let mut policy = PolicyInfo {
            view: 0,
            dir: Ino(9),
            path: b"d".to_vec(),
            owner: 7,
            rule: stitch_fs::PolicyRule {
                every_s: 60,
                keep: Keep::default(),
                prefix: "auto".to_owned(),
            },
            next: stitch_base::clock::Timestamp(5),
            last_error: None,
        };
        let told = policies_json(&[policy.clone()]);
        let told = &told["policies"][0];
        assert_eq!((&told["dir"], &told["path"]), (&json!(9), &json!("d")));
        assert!(told.get("clone").is_none());
        policy.view = 3;
        let told = policies_json(&[policy]);
        let told = &told["policies"][0];
        let number = number_in_clone(3, Ino(9)).0;
        assert_eq!((&told["dir"], &told["clone"]), (&json!(number), &json!(3)));
    }

    #[test]
    fn what_is_kept_is_shown_as_it_is_asked_for() {
        let keep = Keep {
            hourly: 24,
            daily: 7,
            ..Keep::default()
        };
        assert_eq!(keep_text(&keep), "hourly=24,daily=7");
        assert_eq!(keep_text(&Keep::default()), "last=1");
    }
}
