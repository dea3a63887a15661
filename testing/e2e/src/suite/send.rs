//! `stitchfs send`, `receive` and `export`: copies of snapshots in other file systems, and back.

use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{FileType, Mode, XattrFlags};

use crate::harness::context::Context;
use crate::harness::guardian;
use crate::harness::mount::{Mount, Spec, stitchfs};
use crate::harness::process::{command, run, text};
use crate::harness::report::Case;
use crate::harness::tree::{Rules, expect_equal, scan};
use crate::harness::user::{NOBODY, acting_as};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "round-trip",
        run: snapshots_go_out_and_come_back,
    },
    Case {
        name: "rows",
        run: changes_by_rows_are_those_of_a_walk,
    },
    Case {
        name: "resume",
        run: interrupted_streams_go_on,
    },
    Case {
        name: "refused",
        run: streams_that_do_not_fit_are_refused,
    },
    Case {
        name: "users",
        run: ordinary_users_send_what_they_read,
    },
    Case {
        name: "export",
        run: archives_are_extracted,
    },
];

const LARGE_BYTES: usize = 3 << 20;

fn place(mount: &Mount<'_>, name: &str) -> PathBuf {
    mount.dir().join(".stitchfs/snap").join(name)
}

fn snapshot(context: &Context, dir: &Path, name: &str) -> Result<()> {
    let (code, said) = stitchfs(context, &["snapshot", "create", &text(dir), name])?;
    ensure!(code == 0, "snapshot: {said}");
    Ok(())
}

/// Runs a command with a file as standard input; what it printed, as bytes.
fn with_input(context: &Context, args: &[&str], input: &Path) -> Result<Output> {
    let child = Command::new(&context.stitchfs)
        .args(args)
        .stdin(File::open(input)?)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    guardian::watch_process(child.id())?;
    Ok(child.wait_with_output()?)
}

fn expect_code(output: &Output, code: i32) -> Result<String> {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(
        output.status.code() == Some(code),
        "{}: {said}",
        output.status
    );
    Ok(said)
}

/// Has a command write to a file.
fn to_file(context: &Context, args: &[&str], file: &Path) -> Result<()> {
    let output = with_input(context, args, Path::new("/dev/null"))?;
    expect_code(&output, 0).with_context(|| format!("{args:?}"))?;
    fs::write(file, output.stdout)?;
    Ok(())
}

/// Sends a snapshot to a file, with a base if one is given.
fn send(context: &Context, base: Option<&Path>, snapshot: &Path, file: &Path) -> Result<()> {
    let (base, snapshot) = (base.map(text), text(snapshot));
    let mut args = vec!["send"];
    if let Some(base) = &base {
        args.extend(["-i", base]);
    }
    args.push(&snapshot);
    to_file(context, &args, file)
}

fn receive(context: &Context, file: &Path, dir: &Path) -> Result<Output> {
    with_input(context, &["receive", &text(dir)], file)
}

fn expect_copy(snapshot: &Path, copy: &Path) -> Result<()> {
    let rules = Rules::copy();
    let mut found = scan(copy, rules)?;
    // What the directory itself remembers.
    if let Some(top) = found.get_mut(Path::new(""))
        && let Some(at) = top.find(", user.stitchfs.received=")
    {
        top.truncate(at);
    }
    expect_equal(&scan(snapshot, rules)?, &found)
}

fn node(path: &Path, kind: FileType, device: u64) -> Result<()> {
    let mode = Mode::from_raw_mode(0o640);
    Ok(rustix::fs::mknodat(
        rustix::fs::CWD,
        path,
        kind,
        mode,
        device,
    )?)
}

/// A tree with all types of files, and all that they have.
fn grow(top: &Path) -> Result<()> {
    fs::create_dir_all(top.join("d/e"))?;
    fs::create_dir(top.join("locked"))?;
    for index in 0..50 {
        fs::write(top.join(format!("d/f{index}")), format!("before {index}"))?;
    }
    fs::write(top.join("d/e/large"), vec![1; LARGE_BYTES])?;
    let strange = std::ffi::OsString::from_vec(b"odd\n\xff".to_vec());
    fs::write(top.join(strange), b"odd")?;
    let sparse = File::create(top.join("sparse"))?;
    sparse.set_len(1 << 30)?;
    sparse.write_all_at(&[2; 10_000], 100 << 20)?;
    symlink("d/f1", top.join("link"))?;
    fs::hard_link(top.join("d/f2"), top.join("d/e/again"))?;
    node(&top.join("fifo"), FileType::Fifo, 0)?;
    node(
        &top.join("device"),
        FileType::BlockDevice,
        rustix::fs::makedev(7, 1),
    )?;
    chown(top.join("d/f3"), Some(1234), Some(4321))?;
    fs::set_permissions(top.join("d/f3"), fs::Permissions::from_mode(0o6755))?;
    fs::set_permissions(top.join("locked"), fs::Permissions::from_mode(0o500))?;
    let none = XattrFlags::empty();
    rustix::fs::setxattr(top.join("d/f4"), "user.a", &[0; 3000], none)?;
    rustix::fs::setxattr(top.join("d"), "trusted.b", b"\xff", none)?;
    // user::rwx, user:1234:rw-, group::r-x, mask::rwx, other::---
    let list: &[u8] = b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x02\0\x06\0\xd2\x04\0\0\
        \x04\0\x05\0\xff\xff\xff\xff\x10\0\x07\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";
    rustix::fs::setxattr(top.join("d/f5"), "system.posix_acl_access", list, none)?;
    rustix::fs::setxattr(top.join("d/e"), "system.posix_acl_default", list, none)?;
    Ok(())
}

fn change(top: &Path) -> Result<()> {
    for index in 10..20 {
        fs::remove_file(top.join(format!("d/f{index}")))?;
    }
    fs::write(top.join("d/f20"), b"after")?;
    fs::rename(top.join("d/f21"), top.join("moved"))?;
    fs::rename(top.join("d/f22"), top.join("d/f23"))?;
    fs::rename(top.join("d/e"), top.join("e"))?;
    fs::rename(top.join("locked"), top.join("e/unlocked"))?;
    fs::create_dir(top.join("locked"))?;
    fs::write(top.join("e/new"), b"with the list of its directory")?;
    fs::hard_link(top.join("d/f24"), top.join("e/f24"))?;
    fs::remove_file(top.join("link"))?;
    symlink("nowhere", top.join("link"))?;
    fs::set_permissions(top.join("d/f25"), fs::Permissions::from_mode(0o4711))?;
    rustix::fs::removexattr(top.join("d/f4"), "user.a")?;
    let large = OpenOptions::new().write(true).open(top.join("e/large"))?;
    large.write_all_at(b"changed", 1 << 20)?;
    let sparse = OpenOptions::new().write(true).open(top.join("sparse"))?;
    sparse.set_len(50 << 20)?;
    Ok(())
}

/// A mount with the snapshots `mon` and `tue` of its directory `top`.
fn two_snapshots<'a>(context: &'a Context, name: &str) -> Result<(Mount<'a>, PathBuf, PathBuf)> {
    context.needs_stitch()?;
    let mount = Mount::create(context, &Spec::new(name, "256M"))?;
    let top = mount.dir().join("top");
    grow(&top)?;
    snapshot(context, &top, "mon")?;
    change(&top)?;
    snapshot(context, &top, "tue")?;
    let (mon, tue) = (place(&mount, "mon"), place(&mount, "tue"));
    Ok((mount, mon, tue))
}

fn snapshots_go_out_and_come_back(context: &Context) -> Result<()> {
    let (mut mount, mon, tue) = two_snapshots(context, "send-trip")?;
    let dir = context.dir("send-trip-out")?;
    let (first, second) = (dir.join("mon.stream"), dir.join("tue.stream"));
    send(context, None, &mon, &first)?;
    send(context, Some(&mon), &tue, &second)?;
    let (whole, part) = (fs::metadata(&first)?.len(), fs::metadata(&second)?.len());
    ensure!(
        whole < 2 * LARGE_BYTES as u64,
        "holes are sent: {whole} bytes"
    );
    ensure!(
        part < 100_000,
        "more than the changes is sent: {part} bytes"
    );
    // To the file system of the host, and to a store of its own.
    let mut other = Mount::create(context, &Spec::new("send-trip-in", "256M"))?;
    for copy in [dir.join("copy"), other.dir().join("copy")] {
        expect_code(&receive(context, &first, &copy)?, 0)?;
        expect_copy(&mon, &copy).context("complete")?;
        expect_code(&receive(context, &second, &copy)?, 0)?;
        expect_copy(&tue, &copy).context("incremental")?;
    }
    let allocated = fs::metadata(dir.join("copy/sparse"))?;
    let blocks = std::os::unix::fs::MetadataExt::blocks(&allocated);
    ensure!(blocks * 512 < 1 << 20, "{blocks} blocks");
    // What was received is a snapshot there, which can be sent on.
    let again = other.dir().join("again");
    let args = ["receive", "--snapshot", "--json", &text(&again)];
    expect_code(&with_input(context, &args, &first)?, 0)?;
    let third = dir.join("again.stream");
    send(context, None, &place(&other, "mon"), &third)?;
    expect_code(&receive(context, &third, &dir.join("again"))?, 0)?;
    expect_copy(&mon, &dir.join("again")).context("sent on")?;
    other.unmount()?;
    other.fsck()?;
    mount.unmount()?;
    mount.fsck()
}

const DIRS: usize = 20;
const FILES_IN_DIR: usize = 100;

/// Many files, of which few change.
fn grow_many(top: &Path) -> Result<()> {
    for index in 0..DIRS {
        let dir = top.join(format!("many/{index}"));
        fs::create_dir_all(&dir)?;
        for file in 0..FILES_IN_DIR {
            fs::write(dir.join(format!("f{file}")), format!("{file}"))?;
        }
    }
    Ok(())
}

fn change_few(top: &Path) -> Result<()> {
    let many = top.join("many");
    fs::write(many.join("0/f0"), b"other contents")?;
    fs::rename(many.join("1/f1"), many.join("2/moved"))?;
    fs::rename(many.join("3"), many.join("4/dir"))?;
    fs::hard_link(many.join("5/f5"), many.join("6/second"))?;
    fs::remove_file(many.join("7/f7"))?;
    // Its times alone are other ones.
    fs::create_dir(many.join("8/gone"))?;
    fs::remove_dir(many.join("8/gone"))?;
    let value = b"note";
    rustix::fs::setxattr(many.join("9/f9"), "user.a", value, XattrFlags::empty())?;
    Ok(())
}

fn changes_by_rows_are_those_of_a_walk(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("send-rows", "256M"))?;
    let top = mount.dir().join("top");
    grow(&top)?;
    grow_many(&top)?;
    snapshot(context, &top, "mon")?;
    change(&top)?;
    change_few(&top)?;
    snapshot(context, &top, "tue")?;
    let (mon, tue) = (place(&mount, "mon"), place(&mount, "tue"));
    let dir = context.dir("send-rows-out")?;
    let (asked, walked) = (dir.join("asked"), dir.join("walked"));
    // The first comparison in the life of a store notes where every inode is.
    send(context, Some(&mon), &tue, &asked)?;
    // Nothing of the snapshots is known to the kernel.
    mount.remount()?;
    let before = mount.stats()?;
    send(context, Some(&mon), &tue, &asked)?;
    let after = mount.stats()?;
    let lookups = after.since(&before, "fuse.requests.lookup")?;
    ensure!(lookups < 500, "{lookups} names were looked up");
    let args = ["send", "--walk", "-i", &text(&mon), &text(&tue)];
    to_file(context, &args, &walked)?;
    let (asked, walked) = (fs::read(&asked)?, fs::read(&walked)?);
    ensure!(
        asked == walked,
        "{} bytes by rows, {} by a walk",
        asked.len(),
        walked.len()
    );
    let (first, second, copy) = (dir.join("first"), dir.join("asked"), dir.join("copy"));
    send(context, None, &mon, &first)?;
    expect_code(&receive(context, &first, &copy)?, 0)?;
    expect_code(&receive(context, &second, &copy)?, 0)?;
    expect_copy(&tue, &copy)?;
    let refused = ["send", "--walk", &text(&tue)];
    expect_code(&with_input(context, &refused, Path::new("/dev/null"))?, 2)?;
    mount.unmount()?;
    mount.fsck()
}

fn interrupted_streams_go_on(context: &Context) -> Result<()> {
    let (mut mount, mon, tue) = two_snapshots(context, "send-resume")?;
    let dir = context.dir("send-resume-out")?;
    let (copy, stream) = (dir.join("copy"), dir.join("stream"));
    for (base, snapshot) in [(None, &mon), (Some(&mon), &tue)] {
        let mut args = vec!["send".to_owned()];
        if let Some(base) = base {
            args.extend(["-i".to_owned(), text(base)]);
        }
        args.push(text(snapshot));
        send(context, base.map(PathBuf::as_path), snapshot, &stream)?;
        let bytes = fs::read(&stream)?;
        fs::write(&stream, &bytes[..bytes.len() / 2])?;
        let said = expect_code(&receive(context, &stream, &copy)?, 1)?;
        ensure!(said.contains("--resume"), "no remedy: {said}");
        // Damaged on the second try.
        for damaged in [true, false] {
            let (code, token) = stitchfs(context, &["receive", "--token", &text(&copy)])?;
            ensure!(code == 0, "{token}");
            let rest: Vec<&str> = args.iter().map(String::as_str).collect();
            let rest = [&rest[..], &["--resume", token.trim()]].concat();
            to_file(context, &rest, &stream)?;
            let mut bytes = fs::read(&stream)?;
            ensure!(bytes.len() > 300, "{} bytes are left", bytes.len());
            if damaged {
                let at = bytes.len() / 2;
                bytes[at] ^= 1;
                fs::write(&stream, bytes)?;
            }
            let said = expect_code(&receive(context, &stream, &copy)?, i32::from(damaged))?;
            ensure!(damaged == said.contains("checksum"), "{said}");
        }
        expect_copy(snapshot, &copy)?;
    }
    let (code, said) = stitchfs(context, &["receive", "--token", &text(&copy)])?;
    ensure!(code == 1 && said.contains("no part"), "{said}");
    mount.unmount()
}

fn streams_that_do_not_fit_are_refused(context: &Context) -> Result<()> {
    let (mut mount, mon, tue) = two_snapshots(context, "send-refused")?;
    let dir = context.dir("send-refused-out")?;
    let (copy, stream) = (dir.join("copy"), dir.join("stream"));
    let refused = |file: &Path, dir: &Path, reason: &str| -> Result<()> {
        let said = expect_code(&receive(context, file, dir)?, 1)?;
        ensure!(said.contains(reason), "{reason}: {said}");
        Ok(())
    };
    send(context, Some(&mon), &tue, &stream)?;
    refused(&stream, &copy, "No such file")?;
    fs::create_dir(&copy)?;
    refused(&stream, &copy, "holds no snapshot")?;
    let mut newer = fs::read(&stream)?;
    newer[8] = 7;
    fs::write(dir.join("newer"), newer)?;
    refused(&dir.join("newer"), &copy, "version 7")?;
    ensure!(fs::read_dir(&copy)?.next().is_none(), "something is there");
    send(context, None, &tue, &dir.join("tue"))?;
    expect_code(&receive(context, &dir.join("tue"), &copy)?, 0)?;
    refused(&stream, &copy, "already")?;
    refused(&dir.join("tue"), &copy, "is not empty")?;
    expect_copy(&tue, &copy)?;
    for (args, code, reason) in [
        (vec!["send", "-i", "TUE", "TUE"], 1, "same snapshot"),
        (vec!["send", "TOP"], 1, "not the directory of a snapshot"),
        (vec!["send", "--resume", "12", "TUE"], 2, "resume token"),
    ] {
        let (tue, top) = (text(&tue), text(&mount.dir().join("top")));
        let args: Vec<&str> = args
            .into_iter()
            .map(|arg| match arg {
                "TUE" => &tue,
                "TOP" => &top,
                other => other,
            })
            .collect();
        let output = with_input(context, &args, Path::new("/dev/null"))?;
        let said = expect_code(&output, code)?;
        ensure!(said.contains(reason), "{reason}: {said}");
        ensure!(output.stdout.is_empty(), "something was sent");
    }
    mount.unmount()
}

fn ordinary_users_send_what_they_read(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("send-users", "256M"))?;
    let top = mount.dir().join("top");
    fs::create_dir_all(top.join("theirs/locked"))?;
    fs::write(top.join("theirs/locked/file"), b"mine")?;
    fs::write(top.join("readable"), b"of root")?;
    fs::write(top.join("secret"), b"secret")?;
    fs::set_permissions(top.join("secret"), fs::Permissions::from_mode(0o600))?;
    for path in ["theirs", "theirs/locked", "theirs/locked/file"] {
        chown(top.join(path), Some(NOBODY.uid), Some(NOBODY.gid))?;
    }
    let file = top.join("theirs/locked/file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o400))?;
    fs::set_permissions(top.join("theirs/locked"), fs::Permissions::from_mode(0o500))?;
    snapshot(context, &top, "mon")?;
    fs::write(&file, b"mine, changed")?;
    fs::write(top.join("theirs/locked/new"), b"new")?;
    snapshot(context, &top, "tue")?;
    let (mon, tue) = (place(&mount, "mon"), place(&mount, "tue"));
    let dir = context.dir("send-users-out")?;
    chown(&dir, Some(NOBODY.uid), Some(NOBODY.gid))?;
    fs::set_permissions(&context.work, fs::Permissions::from_mode(0o755))?;
    let (copy, stream) = (dir.join("copy"), dir.join("stream"));
    acting_as(Some(NOBODY), || -> Result<()> {
        let null = Path::new("/dev/null");
        let output = with_input(context, &["send", &text(&mon)], null)?;
        let said = expect_code(&output, 1)?;
        ensure!(
            said.contains("secret") && said.contains("--skip-unreadable"),
            "{said}"
        );
        for args in [
            vec![text(&mon)],
            vec!["-i".to_owned(), text(&mon), text(&tue)],
        ] {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let args = [&["send", "--skip-unreadable"], &args[..]].concat();
            let output = with_input(context, &args, null)?;
            let said = expect_code(&output, 3)?;
            ensure!(said.contains("secret: left out"), "{said}");
            fs::write(&stream, output.stdout)?;
            let said = expect_code(&receive(context, &stream, &copy)?, 0)?;
            ensure!(said.contains("some are left out"), "{said}");
        }
        Ok(())
    })??;
    ensure!(!copy.join("secret").exists(), "what was closed is there");
    let rules = Rules::default();
    let theirs = |dir: &Path| scan(&dir.join("theirs"), rules);
    expect_equal(&theirs(&tue)?, &theirs(&copy)?)?;
    mount.unmount()
}

fn archives_are_extracted(context: &Context) -> Result<()> {
    let (mut mount, _, tue) = two_snapshots(context, "send-export")?;
    let dir = context.dir("send-export-out")?;
    let (archive, copy) = (dir.join("tue.tar"), dir.join("copy"));
    to_file(context, &["export", &text(&tue)], &archive)?;
    let bytes = fs::metadata(&archive)?.len();
    ensure!(
        bytes < 2 * LARGE_BYTES as u64,
        "holes are written: {bytes} bytes"
    );
    fs::create_dir(&copy)?;
    let (archive, into) = (text(&archive), text(&copy));
    let attributes = [
        "--xattrs",
        "--xattrs-include=*",
        "--acls",
        "--numeric-owner",
    ];
    let args = [&["-xpf", &archive, "-C", &into], &attributes[..]].concat();
    run(&mut command("tar", &args))?;
    expect_copy(&tue, &copy)?;
    mount.unmount()
}
