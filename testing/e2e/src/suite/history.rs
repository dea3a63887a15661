//! Snapshots by policy and by mkdir(2), and the history: what a daemon keeps by itself.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::io::Errno;

use crate::harness::context::Context;
use crate::harness::mount::{Mount, Spec, command_of, stitchfs};
use crate::harness::process::{command, run, text};
use crate::harness::report::Case;
use crate::harness::user::{NOBODY, acting_as};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "policy",
        run: a_policy_is_kept_by_the_daemon,
    },
    Case {
        name: "policy-user",
        run: owners_have_policies,
    },
    Case {
        name: "mkdir",
        run: mkdir_and_rmdir_create_and_delete_snapshots,
    },
    Case {
        name: "history",
        run: changes_are_listed_restored_and_undone,
    },
    Case {
        name: "undo-further",
        run: another_undo_goes_back_further,
    },
    Case {
        name: "usage",
        run: space_is_told_to_owners_and_of_all_holders,
    },
    Case {
        name: "history-full",
        run: a_history_makes_room_for_writers,
    },
];

fn space_is_told_to_owners_and_of_all_holders(context: &Context) -> Result<()> {
    const BYTES: usize = 4 << 20;
    context.needs_stitch()?;
    let spec = Spec::new("hist-usage", "256M").option("history=10m");
    let mut mount = Mount::create(context, &spec.option("compress=none"))?;
    let (root, theirs) = (text(mount.dir()), mount.dir().join("theirs"));
    fs::create_dir(&theirs)?;
    chown(&theirs, Some(NOBODY.uid), Some(NOBODY.gid))?;
    let file = mount.dir().join("file");
    fs::write(&file, vec![1; BYTES])?;
    let moments = mount.dir().join(".stitchfs/history");
    until(context, "a moment with the file", || {
        let last = names(&moments)?.pop().unwrap_or_default();
        let past = fs::read(moments.join(last).join("file"));
        Ok(past.is_ok_and(|past| past == vec![1; BYTES]))
    })?;
    fs::write(&file, vec![2; BYTES])?;
    command_of(context, &["txn", "begin", "work", &root])?;
    fs::write(
        mount.dir().join(".stitchfs/txn/work/root/new"),
        vec![3; BYTES],
    )?;
    let told: serde_json::Value =
        serde_json::from_str(&command_of(context, &["usage", "--json", &root])?)?;
    let rows = told["usage"][0]["rows"].as_array().context("rows")?;
    for kind in ["transaction", "history"] {
        let row = rows.iter().find(|row| row["kind"] == kind);
        let bytes = row.and_then(|row| row["used_bytes"].as_u64());
        ensure!(bytes.is_some_and(|bytes| bytes >= BYTES as u64), "{told}");
    }
    let shown = command_of(context, &["usage", &root])?;
    ensure!(shown.contains("transaction work\n"), "{shown}");
    ensure!(shown.contains("history, moments: "), "{shown}");
    acting_as(Some(NOBODY), || -> Result<()> {
        fs::write(theirs.join("mine"), vec![4; BYTES])?;
        let told = command_of(context, &["usage", "--json", &text(&theirs)])?;
        let told: serde_json::Value = serde_json::from_str(&told)?;
        let bytes = told["usage"][0]["referenced_bytes"].as_u64();
        ensure!(bytes.is_some_and(|bytes| bytes >= BYTES as u64), "{told}");
        let (code, said) = stitchfs(context, &["usage", &root])?;
        ensure!(code == 1 && said.contains("may ask"), "{said}");
        Ok(())
    })??;
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o755))?;
    chown(&theirs, Some(0), Some(0))?;
    acting_as(Some(NOBODY), || -> Result<()> {
        let (code, said) = stitchfs(context, &["usage", &text(&theirs)])?;
        let is_refused = code == 1 && said.contains("owner of the directory may ask");
        ensure!(is_refused, "{said}");
        Ok(())
    })??;
    mount.unmount()?;
    mount.fsck()
}

/// How long a thing that the daemon does by itself may take.
const TRIES: usize = 200;
const TICK: Duration = Duration::from_millis(100);

fn snapshots_of(dir: &Path) -> PathBuf {
    dir.join(".stitchfs/snap")
}

/// Names in a directory, in order.
fn names(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| text(dir))? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Tries until it is so.
fn until(context: &Context, what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    for _ in 0..TRIES {
        if is_so()? {
            return Ok(());
        }
        context.sleep(TICK);
    }
    bail!("{what}: not after {TRIES} tries")
}

fn a_policy_is_kept_by_the_daemon(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("hist-policy", "256M"))?;
    let top = mount.dir().join("top");
    fs::create_dir(&top)?;
    let file = top.join("file");
    let set = ["snapshot", "create", "--every", "1s", "--keep", "last=3"];
    command_of(context, &[&set[..], &[&text(&top), "tick"]].concat())?;
    let snap = snapshots_of(&top);
    let mut count = 0;
    until(context, "a snapshot is deleted by age", || {
        count += 1;
        fs::write(&file, format!("{count}"))?;
        let listed = names(&snap)?;
        ensure!(
            listed.iter().all(|name| name.starts_with("tick-20")),
            "{listed:?}"
        );
        Ok(listed.len() == 3 && count > 60)
    })?;
    let newest = names(&snap)?.pop().context("there are three")?;
    ensure!(newest.ends_with('Z'), "{newest}");
    // Nothing changes, so nothing is created.
    let mut last = names(&snap)?;
    let mut same = 0;
    until(context, "it comes to rest", || {
        let now = names(&snap)?;
        same = if now == last { same + 1 } else { 0 };
        last = now;
        Ok(same > 25)
    })?;
    let shown = fs::read_to_string(snap.join(last.last().context("one")?).join("file"))?;
    ensure!(shown == format!("{count}"), "the newest shows {shown}");
    let listed = command_of(context, &["snapshot", "policy", "list", &text(mount.dir())])?;
    ensure!(
        listed.contains("/top  tick  every 1s  keep last=3"),
        "{listed}"
    );
    let info = command_of(context, &["info", &text(mount.dir())])?;
    ensure!(info.contains("next_snapshot"), "{info}");
    mount.remount()?;
    fs::write(&file, b"after")?;
    until(context, "it goes on after a mount", || {
        Ok(names(&snap)? != last)
    })?;
    command_of(context, &["snapshot", "policy", "delete", &text(&top)])?;
    let (code, said) = stitchfs(context, &["snapshot", "policy", "delete", &text(&top)])?;
    ensure!(code == 1 && said.contains("has no policy"), "{said}");
    let json = ["snapshot", "policy", "list", "--json", &text(mount.dir())];
    let none = command_of(context, &json)?;
    ensure!(none.contains("\"policies\": []"), "{none}");
    ensure!(names(&snap)?.len() == 3, "its snapshots stay");
    mount.unmount()?;
    mount.fsck()
}

fn owners_have_policies(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("hist-user", "256M"))?;
    let (theirs, other) = (mount.dir().join("theirs"), mount.dir().join("other"));
    for dir in [&theirs, &other] {
        fs::create_dir(dir)?;
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    }
    chown(&theirs, Some(NOBODY.uid), Some(NOBODY.gid))?;
    acting_as(Some(NOBODY), || -> Result<()> {
        let set = |dir: &Path| {
            let args = ["snapshot", "create", "--every", "1h", &text(dir)];
            stitchfs(context, &args)
        };
        let mine = set(&theirs)?;
        ensure!(mine.0 == 0, "{}", mine.1);
        let refused = set(&other)?;
        ensure!(
            refused.0 == 1 && refused.1.contains("owner"),
            "{}",
            refused.1
        );
        until(context, "the first one is created at once", || {
            Ok(names(&snapshots_of(&theirs))?.len() == 1)
        })?;
        fs::create_dir(snapshots_of(&theirs).join("mine"))?;
        let refused = fs::create_dir(snapshots_of(&other).join("not-mine"));
        let refused = refused.expect_err("another's directory");
        ensure!(
            Errno::from_io_error(&refused) == Some(Errno::PERM),
            "{refused}"
        );
        fs::remove_dir(snapshots_of(&theirs).join("mine"))?;
        Ok(())
    })??;
    mount.unmount()?;
    mount.fsck()
}

/// Back and forth, with the caches of the kernel warm; then the directory goes.
fn caches_follow(mount: &Mount<'_>, top: &Path, place: &Path) -> Result<()> {
    for round in 0..20 {
        fs::create_dir(place)?;
        let shown = fs::read(place.join("file"))?;
        ensure!(shown == b"two", "round {round}");
        let root = snapshots_of(mount.dir()).join("mon");
        ensure!(root.join("file").exists(), "round {round}");
        fs::remove_dir(if round % 2 == 0 { &root } else { place })?;
        ensure!(!place.exists() && !root.exists(), "round {round}");
    }
    // A directory that has some can be renamed and removed.
    fs::create_dir(place)?;
    fs::rename(top, mount.dir().join("renamed"))?;
    let renamed = snapshots_of(&mount.dir().join("renamed"));
    ensure!(names(&renamed)? == ["mon"], "they are the directory's");
    fs::remove_file(mount.dir().join("renamed/file"))?;
    fs::remove_dir(mount.dir().join("renamed"))?;
    ensure!(
        names(&snapshots_of(mount.dir()))? == ["mon"],
        "it outlives it"
    );
    let found = run(&mut command("find", &[&text(mount.dir())]))?;
    ensure!(!found.contains(".stitchfs"), "it is listed");
    Ok(())
}

fn mkdir_and_rmdir_create_and_delete_snapshots(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("hist-mkdir", "256M"))?;
    let (top, other) = (mount.dir().join("a/top"), mount.dir().join("other"));
    fs::create_dir_all(&top)?;
    fs::create_dir(&other)?;
    fs::write(top.join("file"), b"one")?;
    let snap = snapshots_of(&top);
    let place = snap.join("mon");
    // The kernel knows that it is missing.
    ensure!(!place.exists() && names(&snap)?.is_empty(), "there is none");
    fs::create_dir(&place)?;
    ensure!(place.is_dir() && names(&snap)? == ["mon"], "it is there");
    fs::write(top.join("file"), b"two")?;
    ensure!(fs::read(place.join("file"))? == b"one", "the past");
    ensure!(
        names(&snapshots_of(mount.dir()))? == ["mon"],
        "the root's list has all"
    );
    ensure!(
        names(&snapshots_of(&other))?.is_empty(),
        "another directory"
    );
    let listed = command_of(context, &["snapshot", "list", &text(&top)])?;
    ensure!(listed.contains("mon  /a/top"), "{listed}");
    let again = fs::create_dir(&place).expect_err("it is there");
    ensure!(again.kind() == ErrorKind::AlreadyExists, "{again}");
    let taken = fs::create_dir(snapshots_of(&other).join("mon")).expect_err("taken");
    ensure!(taken.kind() == ErrorKind::AlreadyExists, "{taken}");
    let inside = fs::create_dir(place.join("new")).expect_err("it is the past");
    ensure!(
        Errno::from_io_error(&inside) == Some(Errno::ROFS),
        "{inside}"
    );
    let own = fs::create_dir(top.join(".stitchfs")).expect_err("it is there");
    ensure!(own.kind() == ErrorKind::AlreadyExists, "{own}");
    command_of(context, &["snapshot", "hold", &text(&top), "mon", "audit"])?;
    let held = fs::remove_dir(&place).expect_err("it is held");
    ensure!(Errno::from_io_error(&held) == Some(Errno::BUSY), "{held}");
    command_of(
        context,
        &["snapshot", "release", &text(&top), "mon", "audit"],
    )?;
    fs::remove_dir(&place)?;
    ensure!(!place.exists() && names(&snap)?.is_empty(), "it is gone");
    ensure!(
        names(&snapshots_of(mount.dir()))?.is_empty(),
        "and from the root's list"
    );
    caches_follow(&mount, &top, &place)?;
    mount.unmount()?;
    mount.fsck()
}

/// Moments of a mount, in order.
fn moments(mount: &Mount<'_>) -> Result<Vec<String>> {
    names(&mount.dir().join(".stitchfs/history"))
}

/// Waits until there is a moment that shows a file with these contents.
fn until_kept(context: &Context, mount: &Mount<'_>, file: &str, bytes: &[u8]) -> Result<String> {
    let mut found = None;
    until(context, "a moment shows it", || {
        let all = moments(mount)?;
        let last = all.last().cloned().unwrap_or_default();
        let past = mount.dir().join(".stitchfs/history").join(&last).join(file);
        let is_kept = fs::read(past).is_ok_and(|read| read == bytes);
        found = is_kept.then_some(last);
        Ok(is_kept)
    })?;
    found.context("there is one")
}

/// Restores a file elsewhere and in place.
fn restore_a_file(context: &Context, top: &Path, first: &str) -> Result<()> {
    let file = text(&top.join("file"));
    let copy = top.join("copy");
    let restore = ["restore", "--at", first, "--to", &text(&copy), &file];
    command_of(context, &restore)?;
    ensure!(fs::read(&copy)? == b"one", "the copy");
    let again = stitchfs(context, &restore)?;
    ensure!(
        again.0 == 1 && again.1.contains("is there already"),
        "{}",
        again.1
    );
    let unasked = stitchfs(context, &["restore", "--at", first, &file])?;
    ensure!(
        unasked.0 == 1 && unasked.1.contains("--force"),
        "{}",
        unasked.1
    );
    ensure!(fs::read(&file)? == b"two", "it was replaced");
    command_of(context, &["restore", "--force", "--at", first, &file])?;
    ensure!(fs::read(&file)? == b"one", "it was not replaced");
    let early = stitchfs(context, &["restore", "--at", "2 days ago", &file])?;
    ensure!(early.0 == 1 && early.1.contains("begins at"), "{}", early.1);
    let nonsense = stitchfs(context, &["restore", "--at", "soon", &file])?;
    ensure!(
        nonsense.0 == 2 && nonsense.1.contains("is no time"),
        "{}",
        nonsense.1
    );
    Ok(())
}

/// Takes back the last change, asked and unasked.
fn undo(context: &Context, top: &Path) -> Result<()> {
    let dir = text(top);
    let shown = command_of(context, &["undo", "-n", &dir])?;
    ensure!(
        shown.contains("M\tfile") && shown.contains("+\tmore"),
        "{shown}"
    );
    let unasked = stitchfs(context, &["undo", &dir])?;
    ensure!(
        unasked.0 == 1 && unasked.1.contains("--yes"),
        "{}",
        unasked.1
    );
    let said = command_of(context, &["undo", "--yes", &dir])?;
    ensure!(
        names(top)? == ["file"] && fs::read(top.join("file"))? == b"one",
        "{said}"
    );
    let before = PathBuf::from(said.lines().last().context("a line")?);
    ensure!(fs::read(before.join("more"))? == b"mistake", "{said}");
    Ok(())
}

fn changes_are_listed_restored_and_undone(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let spec = Spec::new("hist-history", "256M").option("history=10m");
    let mut mount = Mount::create(context, &spec)?;
    let top = mount.dir().join("top");
    fs::create_dir(&top)?;
    fs::write(top.join("file"), b"one")?;
    let first = until_kept(context, &mount, "top/file", b"one")?;
    fs::write(top.join("file"), b"two")?;
    fs::write(top.join("later"), b"later")?;
    fs::write(mount.dir().join("other"), b"other")?;
    until_kept(context, &mount, "other", b"other")?;
    let count = moments(&mount)?.len();
    context.sleep(Duration::from_millis(2500));
    ensure!(moments(&mount)?.len() == count, "a moment of nothing");
    let dir = text(&top);
    let listed = command_of(context, &["history", &dir])?;
    let lines = listed.lines().count();
    ensure!(
        (1..=6).contains(&lines) && listed.contains(" ago"),
        "{listed}"
    );
    let json = command_of(context, &["history", "--json", &dir])?;
    ensure!(
        json.contains("\"changes\"") && json.contains("history/"),
        "{json}"
    );
    let file = text(&top.join("file"));
    restore_a_file(context, &top, &first)?;
    // A directory that is gone.
    fs::remove_dir_all(&top)?;
    command_of(context, &["restore", "--at", &first, &dir])?;
    ensure!(
        names(&top)? == ["file"] && fs::read(&file)? == b"one",
        "the directory"
    );
    fs::write(mount.dir().join("marker"), b"x")?;
    until_kept(context, &mount, "marker", b"x")?;
    // A mistake, and back.
    fs::write(top.join("file"), b"mistake")?;
    fs::write(top.join("more"), b"mistake")?;
    undo(context, &top)?;
    let info = command_of(context, &["info", &text(mount.dir())])?;
    ensure!(info.contains("history_moments"), "{info}");
    mount.remount()?;
    ensure!(!moments(&mount)?.is_empty(), "they outlive a mount");
    mount.unmount()?;
    mount.fsck()
}

/// Undoes, and returns the last two lines: the command that goes back, and the snapshot before.
fn undo_to(context: &Context, top: &Path, shown: &str) -> Result<[String; 2]> {
    let said = command_of(context, &["undo", "--yes", &text(top)])?;
    let now = fs::read_to_string(top.join("file"))?;
    ensure!(now == shown, "{now} instead of {shown}: {said}");
    let mut lines = said.lines().rev().map(str::to_owned);
    let (before, back) = (lines.next(), lines.next());
    Ok([back.context("a command")?, before.context("a snapshot")?])
}

/// Undos in a row, over a mount, and with an edit between.
fn another_undo_goes_back_further(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let spec = Spec::new("hist-undo", "256M").option("history=10m");
    let mut mount = Mount::create(context, &spec)?;
    let top = mount.dir().join("top");
    fs::create_dir(&top)?;
    let write = |mount: &Mount<'_>, shown: &str| -> Result<String> {
        fs::write(mount.dir().join("top/file"), shown)?;
        until_kept(context, mount, "top/file", shown.as_bytes())
    };
    for shown in ["zero", "one", "two", "three"] {
        write(&mount, shown)?;
    }
    undo_to(context, &top, "two")?;
    mount.remount()?;
    undo_to(context, &top, "one")?;
    write(&mount, "four")?;
    undo_to(context, &top, "one")?;
    let [back, before] = undo_to(context, &top, "zero")?;
    let before = PathBuf::from(before);
    let name = before.file_name().context("a name")?.to_string_lossy();
    let dir = text(&top);
    let expected = format!("to go back: stitchfs rollback {name} {dir}");
    ensure!(back == expected, "{back} instead of {expected}");
    command_of(context, &["rollback", "--yes", &name, &dir])?;
    ensure!(fs::read(top.join("file"))? == b"one", "back again");
    // What was gone back to can be undone, too.
    undo_to(context, &top, "zero")?;
    mount.unmount()?;
    mount.fsck()
}

fn a_history_makes_room_for_writers(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let spec = Spec::new("hist-full", "256M").option("history=1h");
    let mut mount = Mount::create(context, &spec)?;
    let bytes = vec![7_u8; 24 << 20];
    // Thirty times as much as fits beside what is there.
    for round in 0..30 {
        let file = mount.dir().join("file");
        fs::write(&file, &bytes).with_context(|| format!("round {round}"))?;
        context.sleep(Duration::from_millis(200));
    }
    ensure!(
        fs::read(mount.dir().join("file"))? == bytes,
        "other contents"
    );
    mount.unmount()?;
    mount.fsck()
}
