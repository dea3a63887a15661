//! A mount with `-o restart`: its daemon is killed, replaced, and killed too often.

mod churn;

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use stitch_base::random::Rng;

use crate::harness::context::Context;
use crate::harness::guardian;
use crate::harness::mount::{Mount, Spec, is_live_fuse, is_mount_point, stitchfs};
use crate::harness::process::{run, shell};
use crate::harness::report::{Case, Skip};
use crate::harness::transport::Transport;
use crate::harness::tree::{Rules, expect_equal, scan};
use crate::harness::user::NOBODY;
use churn::Churn;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "killed",
        run: programs_do_not_notice_a_killed_daemon,
    },
    Case {
        name: "upgrade",
        run: programs_do_not_notice_a_replaced_daemon,
    },
    Case {
        name: "as-user",
        run: killed_in_the_mount_of_a_user,
    },
    Case {
        name: "too-often",
        run: a_daemon_that_dies_too_often_is_given_up,
    },
    Case {
        name: "unmounted",
        run: unmounted_while_the_daemon_comes_back,
    },
    Case {
        name: "refused",
        run: what_is_refused,
    },
];

/// Fewer kills than a holder tolerates.
const KILLS: u64 = 5;
const UPGRADES: usize = 3;
const FILES: u64 = 6000;
const PATIENCE: Duration = Duration::from_secs(20);

/// A mount that survives its daemon.
pub(super) fn held(context: &Context, name: &str) -> Result<Spec> {
    context.needs_stitch()?;
    if context.transport == Transport::Uring {
        return Err(Skip("a mount that is held takes requests by /dev/fuse".to_owned()).into());
    }
    let mut spec = Spec::new(name, "1G").memory("128M");
    spec.options.push("restart".to_owned());
    Ok(spec)
}

/// A folder beside the mount, without what a case that failed has left in it.
fn empty_dir(context: &Context, name: &str) -> Result<PathBuf> {
    let old = context.work.join(name);
    if old.exists() {
        fs::remove_dir_all(&old)?;
    }
    context.dir(name)
}

/// A tree of small and larger files, links and folders, and its archive.
fn pack(context: &Context, seed: u64) -> Result<(PathBuf, PathBuf)> {
    let tree = empty_dir(context, "packed")?;
    let mut rng = Rng::new(seed);
    let mut dir = tree.clone();
    for index in 0..FILES {
        if index % 60 == 0 {
            dir = tree.join(format!("d{}/e{}", index / 600, index / 60));
            fs::create_dir_all(&dir)?;
        }
        let path = dir.join(format!("f{index}"));
        let size = if index % 50 == 0 { 300_000 } else { 6000 };
        let mut bytes = vec![0; usize::try_from(rng.below(size))?];
        rng.fill(&mut bytes);
        fs::write(&path, bytes)?;
        match index % 10 {
            1 => fs::hard_link(&path, dir.join(format!("l{index}")))?,
            2 => std::os::unix::fs::symlink(format!("f{index}"), dir.join(format!("s{index}")))?,
            _ => {}
        }
    }
    let archive = context.work.join("packed.tar");
    shell(
        &tree,
        &format!("tar --format=posix -cf {} .", archive.display()),
    )?;
    Ok((tree, archive))
}

/// Files that stay open all the time and must not notice: open files, one of them without a name,
/// and the working directory of a process.
struct Held {
    open: File,
    nameless: Vec<(File, usize)>,
    sitter: std::process::Child,
}

impl Held {
    fn new(dir: &Path) -> Result<Self> {
        let mut open = File::create_new(dir.join("open"))?;
        open.write_all(b"begun")?;
        let mut nameless = Vec::new();
        // One so small that it is nowhere but in memory, and one that is not.
        for size in [100, 100_000] {
            let path = dir.join(format!("nameless{size}"));
            let mut file = File::options()
                .create_new(true)
                .read(true)
                .write(true)
                .open(&path)?;
            file.write_all(&vec![7; size])?;
            fs::remove_file(&path)?;
            nameless.push((file, size));
        }
        let folder = dir.join("folder");
        fs::create_dir(&folder)?;
        let mut command = Command::new("cat");
        let sitter = command.current_dir(&folder).stdin(Stdio::piped()).spawn()?;
        guardian::watch_process(sitter.id())?;
        Ok(Self {
            open,
            nameless,
            sitter,
        })
    }

    fn check(&mut self, dir: &Path, round: u64) -> Result<()> {
        writeln!(self.open, "{round}").context("an open file cannot be written")?;
        for (file, size) in &mut self.nameless {
            let mut bytes = Vec::new();
            file.rewind()?;
            file.read_to_end(&mut bytes)?;
            ensure!(bytes == vec![7; *size], "a file without a name has changed");
            ensure!(file.metadata()?.len() == *size as u64);
        }
        let id = self.sitter.id();
        let folder = fs::read_link(format!("/proc/{id}/cwd"))?;
        ensure!(folder == dir.join("folder"), "{}", folder.display());
        fs::metadata(format!("/proc/{id}/cwd/."))?;
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        drop(self.sitter.stdin.take());
        ensure!(self.sitter.wait()?.success());
        Ok(())
    }
}

/// Unpacks the archive in the mount, and does everything else there, while `disturb` is called for
/// each round.
fn undisturbed(
    context: &Context,
    mount: &mut Mount<'_>,
    rounds: u64,
    mut disturb: impl FnMut(&Mount<'_>, u64) -> Result<()>,
) -> Result<()> {
    let (tree, archive) = pack(context, context.seed.unwrap_or(1))?;
    let dir = mount.dir().to_owned();
    let mut held = Held::new(&dir)?;
    let mirror = empty_dir(context, "mirror")?;
    let churn = Churn::start(&dir, &mirror, context.seed.unwrap_or(1))?;
    let mut round = 0;
    // More than once, if it is faster than the rounds are.
    for index in 0.. {
        let target = dir.join(format!("unpacked{index}"));
        fs::create_dir(&target)?;
        let mut untar = Command::new("tar");
        untar.arg("-xf").arg(&archive).arg("-C").arg(&target);
        let mut untar = untar.spawn()?;
        guardian::watch_process(untar.id())?;
        while untar.try_wait()?.is_none() && round < rounds {
            context.sleep(Duration::from_millis(300 + 200 * round));
            disturb(mount, round).with_context(|| format!("round {round}"))?;
            held.check(&dir, round)
                .with_context(|| format!("round {round}"))?;
            round += 1;
        }
        ensure!(untar.wait()?.success(), "tar noticed\n{}", mount.log_tail());
        let found = scan(&target, Rules::copy())?;
        expect_equal(&scan(&tree, Rules::copy())?, &found).context("what was unpacked")?;
        if round == rounds {
            break;
        }
        shell(&dir, &format!("rm -rf unpacked{index}"))?;
    }
    let count = churn.end().with_context(|| mount.log_tail())?;
    println!("      {rounds} rounds: {FILES} files unpacked, {count} other operations");
    held.check(&dir, round)?;
    held.end()?;
    for made in [tree, mirror] {
        fs::remove_dir_all(made)?;
    }
    mount.unmount()?;
    mount.fsck()
}

fn programs_do_not_notice_a_killed_daemon(context: &Context) -> Result<()> {
    programs_do_not_notice_kills(context, &held(context, "killed")?)
}

/// The same on such a store.
pub(super) fn programs_do_not_notice_kills(context: &Context, spec: &Spec) -> Result<()> {
    let mut mount = Mount::create(context, spec)?;
    undisturbed(context, &mut mount, KILLS, |mount, round| {
        kill(context, mount)?;
        // The request waits for the next daemon.
        let restarts = &about(context, mount.dir())?["restarts"];
        ensure!(*restarts == round + 1, "{restarts} restarts");
        Ok(())
    })
}

fn programs_do_not_notice_a_replaced_daemon(context: &Context) -> Result<()> {
    programs_do_not_notice_upgrades(context, held(context, "upgraded")?)
}

/// The same on such a store.
pub(super) fn programs_do_not_notice_upgrades(context: &Context, mut spec: Spec) -> Result<()> {
    let program = context.work.join("program");
    fs::copy(&context.stitchfs, &program)?;
    spec.program = Some(program.clone());
    let mut mount = Mount::create(context, &spec)?;
    undisturbed(context, &mut mount, UPGRADES as u64, |mount, _| {
        // A file beside, then a rename, as package managers do.
        let new = context.work.join("program.new");
        fs::copy(&context.stitchfs, &new)?;
        fs::rename(&new, &program)?;
        let before = daemon_id(context, mount.dir())?;
        let done = upgrade(context, mount.dir(), 0)?;
        let pause_ms = done["pause_ms"].as_u64().context("a pause")?;
        ensure!(done["pid"] != before, "the same daemon");
        ensure!(done["version"] == done["version_before"], "{done}");
        println!("      upgraded: requests waited for {pause_ms} ms");
        ensure!(pause_ms < 10_000, "{pause_ms} ms is no pause");
        Ok(())
    })?;
    mount.mount_again()?;
    a_program_that_does_not_serve(context, &mount, &program)?;
    mount.unmount()?;
    mount.fsck()
}

/// The old program continues.
fn a_program_that_does_not_serve(
    context: &Context,
    mount: &Mount<'_>,
    program: &Path,
) -> Result<()> {
    let new = context.work.join("program.new");
    let stranger = fs::read("/bin/true")?;
    let programs = [
        // Another program: the daemon is not stopped for it.
        (stranger, "is not stitchfs", false),
        (other_version(context)?, "cannot go on with the mount", true),
    ];
    let path = mount.dir().join("file");
    for (bytes, hint, is_replaced) in programs {
        fs::write(&path, hint)?;
        let before = daemon_id(context, mount.dir())?;
        fs::write(&new, bytes)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
        fs::rename(&new, program)?;
        let done = upgrade(context, mount.dir(), 1)?;
        let error = done["error"].as_str().unwrap_or_default();
        ensure!(error.contains(hint), "{done}");
        let after = daemon_id(context, mount.dir())?;
        ensure!((before != after) == is_replaced, "{before} {after}");
        ensure!(fs::read_to_string(&path)? == hint);
    }
    fs::remove_file(program)?;
    let done = upgrade(context, mount.dir(), 1)?;
    let error = done["error"].as_str().unwrap_or_default();
    ensure!(error.contains("cannot open"), "{done}");
    // The killed program is started again, although its file is gone.
    kill(context, mount)?;
    ensure!(path.exists());
    Ok(())
}

/// A program that uses another name for a part of the kept state, and so cannot continue the mount.
fn other_version(context: &Context) -> Result<Vec<u8>> {
    let (part, other) = (b"max_readahead", b"max_readbehin");
    let mut bytes = fs::read(&context.stitchfs)?;
    let mut places = bytes.windows(part.len()).enumerate();
    let at = places.find(|(_, window)| window == part);
    let (at, _) = at.context("the program does not know that part")?;
    bytes[at..at + other.len()].copy_from_slice(other);
    Ok(bytes)
}

fn a_daemon_that_dies_too_often_is_given_up(context: &Context) -> Result<()> {
    let mut mount = Mount::create(context, &held(context, "too-often")?)?;
    let path = mount.dir().join("file");
    for round in 0..=KILLS {
        if round < KILLS {
            fs::write(&path, round.to_string())?;
        }
        kill(context, &mount)?;
        if round < KILLS {
            ensure!(fs::read_to_string(&path)? == round.to_string());
        }
    }
    let status = mount.ended(PATIENCE)?;
    ensure!(status.code() == Some(1), "{status}");
    let said = mount.log_tail();
    ensure!(said.contains("died 6 times within 60 s"), "{said}");
    let error = rustix::fs::statfs(mount.dir()).err();
    ensure!(error == Some(Errno::NOTCONN), "{error:?}");
    // The next mount clears it, and all is there.
    mount.mount_again()?;
    ensure!(fs::read_to_string(&path)? == (KILLS - 1).to_string());
    mount.unmount()?;
    mount.fsck()
}

fn unmounted_while_the_daemon_comes_back(context: &Context) -> Result<()> {
    let mut mount = Mount::create(context, &held(context, "unmounted")?)?;
    for round in 0..10 {
        fs::write(mount.dir().join("file"), vec![round; 50_000])?;
        kill(context, &mount)?;
        context.sleep(Duration::from_millis(u64::from(round) * 5));
        let unmounted = context.wait_until(PATIENCE, || {
            // A file that was just closed may keep it busy for a moment.
            match rustix::mount::unmount(mount.dir(), UnmountFlags::empty()) {
                Ok(()) => Ok(true),
                Err(Errno::BUSY) => Ok(false),
                Err(error) => Err(error.into()),
            }
        })?;
        ensure!(unmounted, "it stays busy");
        let status = mount.ended(PATIENCE)?;
        ensure!(status.success(), "{status}\n{}", mount.log_tail());
        mount.fsck()?;
        mount.mount_again()?;
        ensure!(fs::read(mount.dir().join("file"))? == vec![round; 50_000]);
    }
    mount.unmount()
}

/// In the background, by `fusermount3`, and with paths that only mean something where the command
/// was given.
fn killed_in_the_mount_of_a_user(context: &Context) -> Result<()> {
    held(context, "user")?;
    if fs::metadata("/dev/fuse")?.mode() & 0o006 != 0o006 {
        return Err(Skip("/dev/fuse is for root only here".to_owned()).into());
    }
    let program = context.work.join("stitchfs");
    fs::copy(&context.stitchfs, &program)?;
    let home = context.dir("home")?;
    std::os::unix::fs::chown(&home, Some(NOBODY.uid), Some(NOBODY.gid))?;
    let dir = home.join("mnt");
    guardian::watch_mount(&dir)?;
    let as_nobody = |script: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        let script = script.replace("stitchfs", &program.display().to_string());
        run(command.args(["sh", "-ec", &script]).current_dir(&home))
    };
    as_nobody("stitchfs mount --create 64M -o restart --log log s mnt && echo 1 > mnt/file")?;
    for _ in 0..2 {
        let said = as_nobody("stitchfs info --json mnt")?;
        let said: serde_json::Value = serde_json::from_str(&said)?;
        let holder = said["restart"]["holder_pid"].as_u64().context("a holder")?;
        let daemon = said["pid"].as_u64().context("a daemon")?;
        guardian::watch_process(u32::try_from(holder)?)?;
        guardian::kill(u32::try_from(daemon)?);
        let kept = as_nobody("cat mnt/file && echo 1 > mnt/file")?;
        ensure!(kept == "1\n", "{kept}");
    }
    as_nobody("stitchfs upgrade mnt && cat mnt/file && stitchfs umount mnt && stitchfs fsck s")?;
    let log = fs::read_to_string(home.join("log"))?;
    ensure!(log.contains("restarts=2"), "{log}");
    ensure!(!is_mount_point(&dir)?, "still mounted");
    guardian::forget_mount(&dir);
    Ok(())
}

fn what_is_refused(context: &Context) -> Result<()> {
    held(context, "refused")?;
    let (store, dir) = (context.work.join("refused.store"), context.dir("refused")?);
    let (store, at) = (store.display().to_string(), dir.display().to_string());
    let options = "restart,transport=uring";
    let (code, said) = stitchfs(
        context,
        &["mount", "--create", "32M", "-o", options, &store, &at],
    )?;
    ensure!(
        code == 1 && said.contains("transport=dev"),
        "{code}: {said}"
    );
    ensure!(!Path::new(&store).exists(), "a store was made");
    let mut plain = Mount::create(context, &Spec::new("plain", "64M"))?;
    let at = plain.dir().display().to_string();
    let (code, said) = stitchfs(context, &["upgrade", &at])?;
    ensure!(code == 1 && said.contains("-o restart"), "{code}: {said}");
    plain.unmount()?;
    fs::remove_dir(&dir)?;
    Ok(())
}

/// Reads what the daemon reports about its holder.
fn about(context: &Context, dir: &Path) -> Result<serde_json::Value> {
    Ok(info(context, dir)?["restart"].take())
}

fn info(context: &Context, dir: &Path) -> Result<serde_json::Value> {
    let mut command = Command::new(&context.stitchfs);
    let said = run(command.args(["info", "--json"]).arg(dir))?;
    Ok(serde_json::from_str(&said)?)
}

fn daemon_id(context: &Context, dir: &Path) -> Result<u64> {
    let id = info(context, dir)?["pid"].as_u64();
    id.context("the daemon's process")
}

/// Kills the daemon as `kill -9` does, wherever it is.
pub(super) fn kill(context: &Context, mount: &Mount<'_>) -> Result<()> {
    ensure!(is_live_fuse(mount.dir()), "{}", mount.log_tail());
    let id = u32::try_from(daemon_id(context, mount.dir())?)?;
    ensure!(id != mount.daemon_id()?, "the holder is not the daemon");
    guardian::kill(id);
    Ok(())
}

fn upgrade(context: &Context, dir: &Path, code: i32) -> Result<serde_json::Value> {
    let at = dir.display().to_string();
    let output = Command::new(&context.stitchfs)
        .args(["upgrade", "--json", &at])
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    if output.status.code() != Some(code) {
        bail!(
            "{}: {said}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(serde_json::from_str(&said)?)
}
