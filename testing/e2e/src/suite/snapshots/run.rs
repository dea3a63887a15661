//! `stitchfs snapshot run`: commands that see a directory as it was.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::{create, place};
use crate::harness::context::Context;
use crate::harness::guardian;
use crate::harness::mount::{Mount, Spec, is_mount_point};
use crate::harness::process::{output, run, text};
use crate::harness::user::ordinary_user;

const PATIENCE: Duration = Duration::from_secs(30);

/// A file system with a directory, a snapshot of it, and changes since.
struct Stage<'a> {
    context: &'a Context,
    mount: Mount<'a>,
    top: PathBuf,
    /// An empty folder outside of the mount.
    outside: PathBuf,
}

impl<'a> Stage<'a> {
    fn new(context: &'a Context, name: &str) -> Result<Self> {
        context.needs_stitch()?;
        let mount = Mount::create(context, &Spec::new(name, "128M"))?;
        let top = mount.dir().join("top");
        fs::create_dir_all(top.join("in"))?;
        fs::create_dir(top.join("sub"))?;
        fs::write(top.join("file"), "old")?;
        fs::write(top.join("in/file"), "old in")?;
        create(context, &top, "mon")?;
        create(context, mount.dir(), "all")?;
        fs::write(top.join("file"), "new")?;
        fs::write(top.join("in/file"), "new in")?;
        fs::create_dir(top.join("later"))?;
        Ok(Self {
            context,
            mount,
            top,
            outside: context.dir(&format!("{name}-outside"))?,
        })
    }

    /// `stitchfs snapshot run` of a snapshot, with `arguments` behind.
    fn command(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.context.stitchfs);
        command.args(["snapshot", "run", &text(&place(&self.mount, name))]);
        command.args(arguments).current_dir(&self.top);
        command
    }

    /// The exit code of a command in the snapshot, and all that was printed.
    fn ran(&self, name: &str, arguments: &[&str]) -> Result<(i32, String)> {
        ended(&mut self.command(name, arguments))
    }

    /// Starts a script in the snapshot that goes on until it is told to end.
    fn start(&self, arguments: &[&str]) -> Result<Child> {
        let mut command = self.command("mon", arguments);
        let child = command.stdin(Stdio::null()).spawn()?;
        guardian::watch_process(child.id())?;
        Ok(child)
    }

    /// Waits for a child to end.
    fn end_of(&self, child: &mut Child) -> Result<ExitStatus> {
        let mut status = None;
        self.context.wait_until(PATIENCE, || {
            status = child.try_wait()?;
            Ok(status.is_some())
        })?;
        status.context("it goes on")
    }

    /// Waits for a process to write its number to a file, and returns it.
    fn number_in(&self, path: &Path) -> Result<u32> {
        let mut number = None;
        self.context.wait_until(PATIENCE, || {
            let said = fs::read_to_string(path).unwrap_or_default();
            number = said.strip_suffix('\n').and_then(|said| said.parse().ok());
            Ok(number.is_some())
        })?;
        let number = number.with_context(|| format!("no number in {}", path.display()))?;
        guardian::watch_process(number)?;
        Ok(number)
    }

    /// A path outside of the mount.
    fn outside(&self, name: &str) -> PathBuf {
        self.outside.join(name)
    }
}

fn ended(command: &mut Command) -> Result<(i32, String)> {
    let output = output(command)?;
    let said = [output.stdout, output.stderr].concat();
    let code = output.status.code().context("it was killed")?;
    Ok((code, String::from_utf8_lossy(&said).into_owned()))
}

fn is_running(id: u32) -> bool {
    // A zombie has ended.
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().unwrap_or_default();
    !state.is_empty() && !state.starts_with('Z')
}

/// In every mount of the file system the command sees the snapshot, and other processes do not.
pub(super) fn it_is_seen_wherever_the_directory_is_mounted(context: &Context) -> Result<()> {
    let mut scene = Stage::new(context, "snap-run")?;
    let (bind, whole) = (context.dir("run-bind")?, context.dir("run-whole")?);
    let script = "
        cd $TOP
        mount --bind $TOP/in $BIND
        mount --bind $MNT $WHOLE
        mount -t tmpfs none $TOP/sub
        mount -t tmpfs none $TOP/later
        echo now > sub/file
        see='cat file; echo; cat in/file; echo; cat $BIND/file; echo; cat $WHOLE/top/file; echo;
             cat $TOP/file; echo; cat sub/file; ls $TOP; pwd; echo $STITCHFS_SNAPSHOT'
        echo = mon; $STITCHFS snapshot run $MNT/.stitchfs/snap/mon -- sh -c \"$see\"
        echo = all; $STITCHFS snapshot run $MNT/.stitchfs/snap/all -- sh -c \"$see\"
        echo = outside; cat file in/file $BIND/file $WHOLE/top/file; echo
        cd later
        if $STITCHFS snapshot run $MNT/.stitchfs/snap/mon true; then exit 1; fi
        cd $BIND
        umount $TOP/later
        mount --bind $TOP/later $BIND
        cd $TOP
        if $STITCHFS snapshot run $MNT/.stitchfs/snap/mon true; then exit 1; fi
    ";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "bash", "-euc", script])
        .env("STITCHFS", &context.stitchfs)
        .env("MNT", scene.mount.dir())
        .env("TOP", &scene.top)
        .env("BIND", &bind)
        .env("WHOLE", &whole);
    let output = output(&mut command)?;
    let (said, notes) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    ensure!(output.status.success(), "{said}\n{notes}");
    let past = format!(
        "old\nold in\nold in\nold\nold\nnow\nfile\nin\nsub\n{}\n",
        text(&scene.top)
    );
    let present = "newnew innew innew\n";
    let expected = format!("= mon\n{past}mon\n= all\n{past}all\n= outside\n{present}");
    ensure!(said == expected, "{said}\n{notes}");
    for note in [
        "/sub: another mount in the directory",
        "/later: not shown",
        "the working directory is not in the view",
        "the view has nothing to show there",
    ] {
        ensure!(notes.contains(note), "{note} is not said: {notes}");
    }
    ensure!(!is_mount_point(&scene.top)?, "the view is outside");
    scene.mount.unmount()?;
    scene.mount.fsck()
}

/// The command's exit code, output and limits are as without us.
pub(super) fn a_command_runs_as_without_it(context: &Context) -> Result<()> {
    let mut scene = Stage::new(context, "snap-run-codes")?;
    let ran = |arguments: &[&str]| scene.ran("mon", arguments);
    ensure!(ran(&["--", "cat", "file"])? == (0, "old".to_owned()));
    ensure!(ran(&["sh", "-c", "exit 3"])?.0 == 3);
    ensure!(ran(&["sh", "-c", "kill -KILL $$"])?.0 == 128 + 9);
    ensure!(ran(&["no-such-command"])?.0 == 127);
    ensure!(ran(&["./file"])?.0 == 126);
    ensure!(ran(&["--no-such-option"])?.0 == 125);
    let (code, said) = ran(&["sh", "-c", "echo x > file"])?;
    ensure!(
        code != 0 && fs::read(scene.top.join("file"))? == b"new",
        "{said}"
    );
    let limits = "ulimit -Sn; umask";
    let mut command = Command::new("bash");
    let script = format!("ulimit -Sn 77; umask 0777; {limits}; exec \"$@\"");
    let inside = scene.command("mon", &["bash", "-c", limits]);
    let inside = [inside.get_program()].into_iter().chain(inside.get_args());
    command.args(["-c", &script, "bash"]).args(inside);
    let (code, said) = ended(command.current_dir(&scene.top))?;
    ensure!(
        (code, &*said) == (0, "77\n0777\n77\n0777\n"),
        "{code} {said}"
    );
    let mut shell = scene.command("mon", &[]);
    ensure!(ended(shell.env("SHELL", "/bin/pwd"))? == (0, text(&scene.top) + "\n"));
    let (code, said) = ended(
        Command::new(&context.stitchfs)
            .args(["snapshot", "run"])
            .arg(&scene.top)
            .arg("true"),
    )?;
    ensure!(
        code == 125 && said.contains("snapshot list"),
        "{code} {said}"
    );
    fs::rename(&scene.top, scene.mount.dir().join("moved"))?;
    let mut command = scene.command("mon", &["true"]);
    let (code, said) = ended(command.current_dir("/"))?;
    ensure!(
        code == 125 && said.contains("move it back"),
        "{code} {said}"
    );
    scene.mount.unmount()
}

/// An ordinary user keeps their ids and rights.
pub(super) fn a_user_without_root_runs_commands(context: &Context) -> Result<()> {
    let as_user = ordinary_user()?;
    let mut scene = Stage::new(context, "snap-run-user")?;
    let secret = scene.top.join("secret");
    fs::write(&secret, "secret")?;
    run(Command::new("chmod").arg("600").arg(&secret))?;
    create(context, &scene.top, "tue")?;
    let script =
        "id -u; id -g; cat file; echo; cat secret || echo closed; chroot / true || echo no";
    let program = context.dir("run-bin")?.join("stitchfs");
    fs::copy(&context.stitchfs, &program)?;
    let inside = |name: &str, arguments: &[&str]| -> Result<(i32, String)> {
        let inside = scene.command(name, arguments);
        let mut command = Command::new("setpriv");
        command.args(as_user).arg(&program).args(inside.get_args());
        let output = output(command.current_dir(&scene.top))?;
        let code = output.status.code().context("it was killed")?;
        Ok((code, String::from_utf8_lossy(&output.stdout).into_owned()))
    };
    let (code, said) = inside("tue", &["--", "sh", "-c", script])?;
    ensure!(
        (code, &*said) == (0, "4242\n4243\nnew\nclosed\nno\n"),
        "{code} {said}"
    );
    let (code, said) = inside("mon", &["cat", "file", "in/file"])?;
    ensure!((code, &*said) == (0, "oldold in"), "{code} {said}");
    scene.mount.unmount()
}

/// Whatever a command starts has ended when the run ends.
pub(super) fn nothing_outlives_the_run(context: &Context) -> Result<()> {
    let mut scene = Stage::new(context, "snap-run-left")?;
    let (id, ready) = (scene.outside("id"), scene.outside("ready"));
    run(Command::new("mkfifo").arg(&ready))?;
    for (name, trap) in [("ends", ""), ("ignores SIGTERM", "trap '' TERM;")] {
        let daemon = format!(
            "{trap} echo $$ > {}; echo > {}; exec cat {} >/dev/null 2>&1",
            text(&id),
            text(&ready),
            text(&fifo(&scene)?)
        );
        let script = format!("setsid sh -c \"$1\" & read x < {}; exit 5", text(&ready));
        // The second argument is a name that the shell gives itself.
        let (code, said) = scene.ran("mon", &["--", "bash", "-c", &script, "bash", &daemon])?;
        ensure!(code == 5, "{name}: {code} {said}");
        let number = scene.number_in(&id)?;
        ensure!(!is_running(number), "{name}: {number} is there");
        fs::remove_file(&id)?;
    }
    scene.mount.unmount()
}

/// Makes a named pipe outside of the mount, without a writer.
fn fifo(scene: &Stage<'_>) -> Result<PathBuf> {
    let path = scene.outside("fifo");
    if !path.exists() {
        run(Command::new("mkfifo").arg(&path))?;
    }
    Ok(path)
}

/// With `--wait`, what the command leaves behind ends by itself, in the snapshot.
pub(super) fn the_run_waits_if_it_is_told_to(context: &Context) -> Result<()> {
    let mut scene = Stage::new(context, "snap-run-wait")?;
    let (fifo, id, seen) = (fifo(&scene)?, scene.outside("id"), scene.outside("seen"));
    let script = format!(
        "(echo $BASHPID > {}; read x < {}; cat file > {}) & exit 6",
        text(&id),
        text(&fifo),
        text(&seen)
    );
    let mut child = scene.start(&["--wait", "bash", "-c", &script])?;
    let number = scene.number_in(&id)?;
    ensure!(
        child.try_wait()?.is_none() && is_running(number),
        "it did not wait"
    );
    fs::write(&fifo, "go\n")?;
    ensure!(scene.end_of(&mut child)?.code() == Some(6), "another code");
    ensure!(fs::read(&seen)? == b"old", "it saw the present");
    scene.mount.unmount()
}

/// Signals reach the command, and SIGKILL takes it along.
pub(super) fn signals_are_passed_on(context: &Context) -> Result<()> {
    let mut scene = Stage::new(context, "snap-run-signals")?;
    let (id, reader, fifo) = (scene.outside("id"), scene.outside("reader"), fifo(&scene)?);
    let tell = format!("echo $$ > {}", text(&id));
    // The pipe has no writer, so only a signal ends the wait.
    let read = format!("cat {} >/dev/null", text(&fifo));
    let tell_reader = format!("echo $! > {}", text(&reader));
    for (signal, name) in [
        (Signal::TERM, "TERM"),
        (Signal::INT, "INT"),
        (Signal::HUP, "HUP"),
    ] {
        let script = format!("trap 'exit 7' {name}; {read} & {tell_reader}; {tell}; wait");
        let mut child = scene.start(&["bash", "-c", &script])?;
        scene.number_in(&id)?;
        // If the case fails here, the guardian ends it.
        let reader_number = scene.number_in(&reader)?;
        kill_process(Pid::from_child(&child), signal)?;
        let status = scene.end_of(&mut child)?;
        ensure!(status.code() == Some(7), "{name}: {status}");
        ensure!(!is_running(reader_number), "{name}: the reader goes on");
        fs::remove_file(&id)?;
        fs::remove_file(&reader)?;
    }
    let mut child = scene.start(&["bash", "-c", &format!("{tell}; exec {read}")])?;
    let number = scene.number_in(&id)?;
    child.kill()?;
    child.wait()?;
    let is_gone = context.wait_until(PATIENCE, || Ok(!is_running(number)))?;
    ensure!(is_gone, "the command goes on");
    scene.mount.unmount()
}
