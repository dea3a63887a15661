//! The public suite `pjdfstest`, against a list of the cases that a FUSE file system cannot pass.
//!
//! Two passes: everything that leaves the mount alone, then the cases that remount it read-only
//! (the runner keeps a descriptor open, which would keep the mount busy for the rest).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::harness::context::Context;
use crate::harness::helper::Helper;
use crate::harness::mount::{Mount, Spec};
use crate::harness::process::{command, output, run};
use crate::harness::report::Case;
use crate::harness::views;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "all",
        run: everything_passes_but_the_listed,
    },
    Case {
        name: "large-files",
        run: everything_passes_with_large_files_beside,
    },
    Case {
        name: "clone",
        run: everything_passes_in_a_clone,
    },
    Case {
        name: "txn",
        run: everything_passes_in_a_transaction,
    },
    Case {
        name: "read-only",
        run: read_only_passes,
    },
];

/// Cases that may be skipped or fail, each with its reason. `docs/semantics.md` lists them too.
const EXCEPTIONS: [(&str, &str); 1] = [(
    "link::link_count_max",
    "makes as many links as `pathconf` allows, which is more than fit into a test",
)];

/// Cases of the first pass on the reference machine; fewer mean that the suite did not run.
const CASES_MIN: usize = 380;

const CONFIG: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.02
allow_remount = REMOUNT

[dummy_auth]
entries = [["nobody", "nogroup"], ["tests", "tests"]]
"#;

/// All of pjdfstest passes, but for the listed exceptions.
fn everything_passes_but_the_listed(context: &Context) -> Result<()> {
    all_pass(context, &Spec::new("pjd", "1G"))
}

/// The same where all files of more than a few pages are plain files beside the store.
fn everything_passes_with_large_files_beside(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let spec = Spec::new("pjd-large", "1G").option("large_files=external:16K");
    all_pass(context, &spec)
}

/// The same in a clone.
fn everything_passes_in_a_clone(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("pjd-clone", "1G"))?;
    let view = views::clone(context, &mount)?;
    all_pass_in(context, &mount, &view)?;
    mount.unmount()?;
    mount.fsck()
}

/// A directory that is mounted at another place, where other users than its own reach it.
struct Bound(PathBuf);

impl Bound {
    fn at(place: PathBuf, dir: &Path) -> Result<Self> {
        let mut mount = Command::new("mount");
        mount.arg("--bind").arg(dir).arg(&place);
        ensure!(mount.status()?.success(), "mount --bind failed");
        Ok(Self(place))
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let ended = Command::new("umount").arg(&self.0).status();
        if !ended.is_ok_and(|status| status.success()) {
            eprintln!("{}: was not unmounted", self.0.display());
        }
    }
}

/// The same in a transaction, which is committed: mainline then is what the transaction was.
fn everything_passes_in_a_transaction(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("pt", "1G"))?;
    let view = views::begin(context, &mount)?;
    let bound = Bound::at(context.dir("pt-bound")?, &view)?;
    all_pass_in(context, &mount, &bound.0)?;
    drop(bound);
    views::commit_and_compare(context, &mount)?;
    mount.unmount()?;
    mount.fsck()
}

/// All of pjdfstest passes on a store, but for the listed exceptions.
pub(super) fn all_pass(context: &Context, spec: &Spec) -> Result<()> {
    let mount = Mount::create(context, spec)?;
    all_pass_in(context, &mount, mount.dir())
}

/// All of pjdfstest passes in a directory of a mount.
fn all_pass_in(context: &Context, mount: &Mount<'_>, dir: &Path) -> Result<()> {
    let results = run_suite(context, mount, dir, (false, &[]))?;
    ensure!(
        results.len() >= CASES_MIN,
        "only {} cases ran",
        results.len()
    );
    judge(
        results
            .into_iter()
            .filter(|(name, _)| !name.contains("::erofs")),
    )
}

/// The cases about a mount that is remounted read-only pass. `mount -o remount` asks the helper of
/// the type that the kernel shows.
fn read_only_passes(context: &Context) -> Result<()> {
    let _helper = Helper::install(context, "mount.fuse.stitchfs")?;
    let mount = Mount::create(context, &Spec::new("pjdro", "1G"))?;
    let results = run_suite(context, &mount, mount.dir(), (true, &["::erofs"]))?;
    ensure!(results.len() >= 10, "only {} cases ran", results.len());
    judge(results.into_iter())
}

fn judge(results: impl Iterator<Item = (String, String)>) -> Result<()> {
    let mut wrong = Vec::new();
    let (mut passed, mut excused) = (0, 0);
    for (name, result) in results {
        let reason = EXCEPTIONS
            .iter()
            .find(|(case, _)| *case == name)
            .map(|(_, why)| why);
        match (result.as_str(), reason) {
            ("ok", _) => passed += 1,
            (_, Some(_)) => excused += 1,
            (other, None) => wrong.push(format!("{name}: {other}")),
        }
    }
    println!("      {passed} cases ok, {excused} excused");
    ensure!(
        wrong.is_empty(),
        "{} cases:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    Ok(())
}

/// Runs pjdfstest in a directory of a mount, which the cases may remount. Returns the result of
/// each case by name.
fn run_suite(
    context: &Context,
    mount: &Mount<'_>,
    dir: &Path,
    (remount, patterns): (bool, &[&str]),
) -> Result<BTreeMap<String, String>> {
    make_user("tests")?;
    let name = mount.name();
    let second = Mount::reference(context, &Spec::new(&format!("{name}-second"), "64M"))?;
    let config = context.work.join(format!("{name}.toml"));
    fs::write(&config, CONFIG.replace("REMOUNT", &remount.to_string()))?;

    let mut command = Command::new(context.tools.join("pjdfstest"));
    command.arg("-c").arg(&config).arg("-p").arg(dir);
    command
        .arg("-s")
        .arg(second.dir())
        .args(patterns)
        .env("NO_COLOR", "1");
    let output = output(&mut command)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        text.contains("Summary"),
        "pjdfstest did not finish: {}\n{text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(parse(&text))
}

/// Reads lines `name   ok`, `name   FAILED`, `name   skipped`; a reason follows, indented.
fn parse(text: &str) -> BTreeMap<String, String> {
    let plain = without_colours(text);
    let mut results: BTreeMap<String, String> = BTreeMap::new();
    let mut last: Option<String> = None;
    for line in plain.lines() {
        if let (true, Some(name)) = (line.starts_with('\t'), &last) {
            let result = results.get_mut(name).expect("inserted with its name");
            if result != "ok" {
                *result += &format!(" {}", line.trim());
            }
            continue;
        }
        let Some((name, result)) = line.split_once("  ") else {
            continue;
        };
        let result = result.trim();
        if name.contains("::") && ["ok", "FAILED", "skipped"].contains(&result) {
            results.insert(name.to_owned(), result.to_owned());
            last = Some(name.to_owned());
        }
    }
    results
}

fn without_colours(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        plain += before;
        rest = after.split_once('m').map_or("", |(_, rest)| rest);
    }
    plain + rest
}

/// Makes a user of this name, with a group of the same name, if there is none.
fn make_user(name: &str) -> Result<()> {
    let has = |table: &str| -> Result<bool> {
        let text = fs::read_to_string(table).with_context(|| table.to_owned())?;
        Ok(text
            .lines()
            .any(|line| line.split(':').next() == Some(name)))
    };
    if has("/etc/passwd")? {
        return Ok(());
    }
    if !Path::new("/usr/sbin/useradd").exists() {
        bail!("no user `{name}` and no useradd to make one");
    }
    run(&mut command(
        "/usr/sbin/useradd",
        &["--user-group", "--no-create-home", name],
    ))
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_with_reasons_and_without_colours() {
        let text = "\u{1b}[34mopen::a\u{1b}[0m      \u{1b}[32mok\u{1b}[0m\nopen::b   FAILED\n\
                    \tassertion\n\tline\nlink::c     skipped\n\tno\n\nSummary: 1 failed\n";
        let results = parse(text);
        assert_eq!(results["open::a"], "ok");
        assert_eq!(results["open::b"], "FAILED assertion line");
        assert_eq!(results["link::c"], "skipped no");
        assert!(judge(results.into_iter()).is_err());
    }
}
