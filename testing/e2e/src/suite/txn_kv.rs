//! Files and keys in one transaction of a mount: both are changed, or neither.

mod kills;

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::context::Context;
use crate::harness::guardian;
use crate::harness::mount::{Mount, Spec, stitchfs};
use crate::harness::process::{output, run, text};
use crate::harness::report::Case;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "run",
        run: a_run_shows_no_key_before_and_all_after,
    },
    Case {
        name: "failed",
        run: what_fails_or_is_killed_changes_neither,
    },
    Case {
        name: "conflicts",
        run: keys_of_two_join_and_the_same_key_is_refused,
    },
    Case {
        name: "resolve",
        run: keys_in_conflict_are_resolved_one_by_one,
    },
    Case {
        name: "nested",
        run: keys_of_a_run_in_a_run_go_to_it,
    },
    Case {
        name: "rights",
        run: a_socket_is_its_owners_and_goes_with_the_transaction,
    },
    Case {
        name: "kill9",
        run: kills::a_daemon_killed_in_the_commit_leaves_both_or_neither,
    },
];

const PATIENCE: Duration = Duration::from_secs(30);
const CONFLICT: i32 = 75;
/// Exit code of `stitchfs kv get` for a key that is not there.
const NO_KEY: i32 = 3;

/// A mount that serves keys.
struct KeyStage<'a> {
    context: &'a Context,
    mount: Mount<'a>,
    outside: PathBuf,
}

impl<'a> KeyStage<'a> {
    fn new(context: &'a Context, name: &str) -> Result<Self> {
        context.needs_stitch()?;
        let mount = Mount::create(context, &Spec::new(name, "256M").option("kv"))?;
        let outside = context.dir(&format!("{name}-outside"))?;
        Ok(Self {
            context,
            mount,
            outside,
        })
    }

    fn dir(&self) -> &Path {
        self.mount.dir()
    }

    fn place(&self, name: &str) -> PathBuf {
        self.dir().join(".stitchfs/txn").join(name).join("root")
    }

    /// `stitchfs kv` at a place.
    fn kv(&self, verb: &str, place: &Path, words: &[&str]) -> Result<(i32, String)> {
        let place = text(place);
        stitchfs(self.context, &[&["kv", verb, &place], words].concat())
    }

    /// The value of a key; `None` for none.
    fn get(&self, place: &Path, key: &str) -> Result<Option<String>> {
        match self.kv("get", place, &[key])? {
            (0, value) => Ok(Some(value)),
            (NO_KEY, _) => Ok(None),
            (code, said) => anyhow::bail!("get {key}: {code} {said}"),
        }
    }

    fn put(&self, place: &Path, key: &str, value: &str) -> Result<()> {
        let (code, said) = self.kv("put", place, &[key, value])?;
        ensure!(code == 0, "put {key}: {code} {said}");
        Ok(())
    }

    /// Begins a transaction with a file and a key of its name, both on the medium.
    fn begin_both(&self, name: &str) -> Result<()> {
        self.txn_ok(&["begin", name])?;
        let place = self.place(name);
        fs::write(place.join(name), "file")?;
        self.put(&place, name, "key")?;
        run(Command::new("sync").arg("-f").arg(&place)).map(drop)
    }

    fn txn(&self, words: &[&str]) -> Result<(i32, String)> {
        let mount = text(self.dir());
        stitchfs(self.context, &[&["txn"], words, &[&mount]].concat())
    }

    fn txn_ok(&self, words: &[&str]) -> Result<String> {
        let (code, said) = self.txn(words)?;
        ensure!(code == 0, "{words:?}: {code} {said}");
        Ok(said)
    }

    /// `stitchfs txn run` of a script in the mount. In it `kv VERB WORDS` is about this mount.
    fn command(&self, script: &str) -> Command {
        let mut command = Command::new(&self.context.stitchfs);
        let program = text(&self.context.stitchfs);
        let kv = format!("kv() {{ local v=$1; shift; {program} kv $v $MNT \"$@\"; }}; {script}");
        command.args(["txn", "run", "--", "bash", "-euc", &kv]);
        command.current_dir(self.dir()).env("MNT", self.dir());
        command
    }

    fn ran(&self, script: &str) -> Result<(i32, String)> {
        let output = output(&mut self.command(script))?;
        let said = [output.stdout, output.stderr].concat();
        let code = output.status.code().context("it was killed")?;
        Ok((code, String::from_utf8_lossy(&said).into_owned()))
    }

    /// Starts a script, which gets as far as `hold`, and goes on when it is told to.
    fn start(&self, script: &str) -> Result<(Child, Pid)> {
        let (id, go) = (self.outside.join("id"), self.outside.join("go"));
        let _ = fs::remove_file(&id);
        if !go.exists() {
            run(Command::new("mkfifo").arg(&go))?;
        }
        let hold = format!("echo $$ > {}; read x < {}", text(&id), text(&go));
        let mut command = self.command(&script.replace("hold", &hold));
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn()?;
        guardian::watch_process(child.id())?;
        let mut number = None;
        self.context.wait_until(PATIENCE, || {
            let said = fs::read_to_string(&id).unwrap_or_default();
            number = said.strip_suffix('\n').and_then(|said| said.parse().ok());
            Ok(number.is_some())
        })?;
        let number: i32 = number.context("the script did not get as far")?;
        guardian::watch_process(number.cast_unsigned())?;
        Ok((child, Pid::from_raw(number).context("a number")?))
    }

    /// Where the daemon has the sockets of transactions.
    fn sockets(&self) -> Result<Vec<PathBuf>> {
        let mainline = fs::read_link(self.dir().join(".stitchfs/kv.sock"))?;
        let name = mainline.file_name().context("it has a name")?;
        let prefix = name.to_string_lossy().replace(".sock", "-t");
        let dirs = [
            Path::new("/run/stitchfs-txn"),
            mainline.parent().context("a folder")?,
        ];
        let mut found = Vec::new();
        for dir in dirs {
            for entry in fs::read_dir(dir).into_iter().flatten() {
                let entry = entry?;
                if entry.file_name().to_string_lossy().starts_with(&prefix) {
                    found.push(entry.path());
                }
            }
        }
        Ok(found)
    }

    /// Expects that no file, key, transaction or socket is left of a run, soon.
    fn expect_nothing(&self) -> Result<()> {
        let is_clear = || Ok(self.txn_ok(&["list"])?.is_empty() && self.sockets()?.is_empty());
        ensure!(
            self.context.wait_until(PATIENCE, is_clear)?,
            "left: {} {:?}",
            self.txn_ok(&["list"])?,
            self.sockets()?
        );
        ensure!(!self.dir().join("file").exists(), "the file is there");
        ensure!(self.get(self.dir(), "a")?.as_deref() == Some("before"));
        ensure!(self.get(self.dir(), "new")?.is_none(), "the key is there");
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        self.mount.unmount()?;
        self.mount.fsck()
    }
}

/// A reply, as it comes.
fn command(socket: &Path, words: &[&str]) -> Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(request.as_bytes())?;
    let mut reply = vec![0; 64 << 10];
    let len = stream.read(&mut reply)?;
    ensure!(len > 0, "{words:?}: no reply");
    Ok(String::from_utf8_lossy(&reply[..len]).trim_end().to_owned())
}

const CHANGES: &str = "echo after > file; kv put a after; kv put new 1; [ $(kv get a) = after ]";

/// A run and its children see its keys; others do when it is committed, with its files.
fn a_run_shows_no_key_before_and_all_after(context: &Context) -> Result<()> {
    let stage = KeyStage::new(context, "txn-kv-run")?;
    stage.put(stage.dir(), "a", "before")?;
    let (mut child, _) = stage.start(&format!("{CHANGES}; hold"))?;
    ensure!(!stage.dir().join("file").exists());
    ensure!(stage.get(stage.dir(), "a")?.as_deref() == Some("before"));
    ensure!(stage.get(stage.dir(), "new")?.is_none());
    ensure!(stage.sockets()?.len() == 1, "{:?}", stage.sockets()?);
    fs::write(stage.outside.join("go"), "go\n")?;
    let status = child.wait()?;
    ensure!(status.code() == Some(0), "{status}");
    ensure!(fs::read(stage.dir().join("file"))? == b"after\n");
    ensure!(stage.get(stage.dir(), "a")?.as_deref() == Some("after"));
    ensure!(stage.get(stage.dir(), "new")?.as_deref() == Some("1"));
    ensure!(stage.sockets()?.is_empty(), "{:?}", stage.sockets()?);
    // A command of Redis, by the link from within: what a client library does.
    let socket = stage.dir().join(".stitchfs/kv.sock");
    ensure!(command(&socket, &["DBSIZE"])? == ":2");
    stage.txn_ok(&["begin", "work"])?;
    let inner = stage.place("work").join(".stitchfs/kv.sock");
    ensure!(command(&inner, &["HSET", "h", "f", "v"])? == ":1");
    ensure!(command(&inner, &["DBSIZE"])? == ":3");
    ensure!(command(&socket, &["DBSIZE"])? == ":2");
    stage.txn_ok(&["commit", "work"])?;
    ensure!(command(&socket, &["DBSIZE"])? == ":3");
    ensure!(command(&socket, &["HGET", "h", "f"])?.ends_with('v'));
    ensure!(fs::read_link(&inner).is_err(), "it is found still");
    // A snapshot has no keys, and does not show those of now.
    stage.txn_ok(&["begin", "last"])?;
    let mount = text(stage.dir());
    let (code, said) = stitchfs(context, &["snapshot", "create", &mount, "s"])?;
    ensure!(code == 0, "{said}");
    let past = text(&stage.dir().join(".stitchfs/snap/s"));
    let program = text(&context.stitchfs);
    let words = [
        "snapshot", "run", &past, "--", &program, "kv", "get", &mount, "a",
    ];
    let (code, said) = stitchfs(context, &words)?;
    ensure!(code == 1 && said.contains("not served"), "{code} {said}");
    stage.end()
}

fn what_fails_or_is_killed_changes_neither(context: &Context) -> Result<()> {
    let stage = KeyStage::new(context, "txn-kv-failed")?;
    stage.put(stage.dir(), "a", "before")?;
    let (code, said) = stage.ran(&format!("{CHANGES}; exit 3"))?;
    ensure!(code == 3, "{code} {said}");
    stage.expect_nothing()?;
    let (mut child, shell) = stage.start(&format!("{CHANGES}; hold"))?;
    kill_process(shell, Signal::KILL)?;
    let status = child.wait()?;
    ensure!(status.code() == Some(128 + 9), "{status}");
    stage.expect_nothing()?;
    let (mut child, _) = stage.start(&format!("{CHANGES}; hold"))?;
    child.kill()?;
    child.wait()?;
    stage.expect_nothing()?;
    let mut stage = stage;
    let (mut child, _) = stage.start(&format!("{CHANGES}; hold"))?;
    stage.mount.kill()?;
    child.kill()?;
    child.wait()?;
    stage.mount.detach()?;
    stage.mount.fsck()?;
    stage.mount.mount_again()?;
    stage.expect_nothing()?;
    stage.end()
}

fn keys_of_two_join_and_the_same_key_is_refused(context: &Context) -> Result<()> {
    let stage = KeyStage::new(context, "txn-kv-conflicts")?;
    stage.put(stage.dir(), "a", "before")?;
    for name in ["one", "two", "three"] {
        stage.txn_ok(&["begin", name])?;
        let place = stage.place(name);
        fs::write(place.join(name), name)?;
        stage.put(&place, name, name)?;
        stage.put(&place, if name == "two" { "other" } else { "a" }, name)?;
    }
    stage.txn_ok(&["commit", "one"])?;
    stage.txn_ok(&["commit", "two"])?;
    let socket = stage.dir().join(".stitchfs/kv.sock");
    ensure!(command(&socket, &["DBSIZE"])? == ":4", "the counts add up");
    let (code, said) = stage.txn(&["commit", "three"])?;
    ensure!(
        code == CONFLICT && said.contains("a: record of redis/rows"),
        "{code} {said}"
    );
    let (code, said) = stage.txn(&["commit", "--json", "three"])?;
    ensure!(
        code == CONFLICT && said.contains("\"tree\": \"redis/rows\""),
        "{code} {said}"
    );
    ensure!(
        said.contains("\"key\": \"a\"") && !said.contains("\"key\": \"three\""),
        "{said}"
    );
    ensure!(!stage.dir().join("three").exists());
    ensure!(stage.get(stage.dir(), "three")?.is_none());
    ensure!(stage.get(stage.dir(), "a")?.as_deref() == Some("one"));
    ensure!(stage.get(&stage.place("three"), "a")?.as_deref() == Some("three"));
    stage.txn_ok(&["abort", "three"])?;
    // A file in conflict keeps the keys back, too.
    fs::write(stage.dir().join("shared"), "0")?;
    stage.txn_ok(&["begin", "four"])?;
    fs::write(stage.place("four").join("shared"), "four")?;
    stage.put(&stage.place("four"), "four", "4")?;
    fs::write(stage.dir().join("shared"), "outside")?;
    let (code, said) = stage.txn(&["commit", "four"])?;
    ensure!(
        code == CONFLICT && said.contains("shared: "),
        "{code} {said}"
    );
    ensure!(stage.get(stage.dir(), "four")?.is_none());
    stage.end()
}

fn keys_in_conflict_are_resolved_one_by_one(context: &Context) -> Result<()> {
    let mut stage = KeyStage::new(context, "txn-kv-resolve")?;
    let outside = stage.dir().to_owned();
    let at = |place: &Path, words: &[&str]| {
        let said = command(&place.join(".stitchfs/kv.sock"), words)?;
        ensure!(!said.starts_with('-'), "{words:?}: {said}");
        Ok(said)
    };
    at(&outside, &["HSET", "h", "f", "before"])?;
    stage.txn_ok(&["begin", "work"])?;
    for (place, side) in [(&stage.place("work"), "inside"), (&outside, "outside")] {
        fs::write(place.join(side), side)?;
        at(place, &["SET", "a", side])?;
        at(place, &["SET", "b\u{1}\\", side])?;
        at(place, &["HSET", "h", side, "1"])?;
        at(place, &["HSET", "z", side, "1"])?;
    }
    let (code, said) = stage.txn(&["conflicts", "work"])?;
    let expected = ["a: record", "b\\x01\\\\: record", "h: record", "z: record"];
    ensure!(
        code == CONFLICT && said.lines().count() == 4,
        "{code} {said}"
    );
    for line in expected {
        ensure!(said.contains(line), "{line:?}: {said}");
    }
    let (code, said) = stage.txn(&["resolve", "--ours", "--key", "none", "work"])?;
    ensure!(code == 1 && said.contains("no conflict"), "{code} {said}");
    stage.txn_ok(&["resolve", "--ours", "--key", "a", "work"])?;
    let said = stage.txn_ok(&["resolve", "--json", "--ours", "--key", "b\\x01\\\\", "work"])?;
    ensure!(said.contains("\"key_hex\": \"62015c\""), "{said}");
    stage.txn_ok(&["resolve", "--theirs", "--key-hex", "68", "work"])?;
    stage.mount.remount()?;
    let (code, said) = stage.txn(&["commit", "work"])?;
    ensure!(
        code == CONFLICT && said.contains("z: record"),
        "{code} {said}"
    );
    ensure!(!said.contains("a: record"), "{said}");
    // A field that is overwritten does not change the row of its key.
    at(&outside, &["HSET", "h", "outside", "2"])?;
    let (code, said) = stage.txn(&["conflicts", "work"])?;
    ensure!(
        code == CONFLICT && said.contains("h: record of redis/rows\n"),
        "{said}"
    );
    stage.txn_ok(&["resolve", "--theirs", "--key", "h", "work"])?;
    stage.txn_ok(&["resolve", "--ours", "--key", "z", "work"])?;
    stage.txn_ok(&["commit", "work"])?;
    ensure!(outside.join("inside").exists() && outside.join("outside").exists());
    ensure!(stage.get(&outside, "a")?.as_deref() == Some("inside"));
    ensure!(at(&outside, &["GET", "b\u{1}\\"])?.ends_with("inside"));
    ensure!(at(&outside, &["HGETALL", "h"])?.contains("outside"));
    ensure!(
        at(&outside, &["HLEN", "h"])? == ":2",
        "the fields of others"
    );
    ensure!(at(&outside, &["HKEYS", "z"])?.ends_with("inside"));
    ensure!(at(&outside, &["DBSIZE"])? == ":4", "each key once");
    stage.end()
}

fn a_socket_is_its_owners_and_goes_with_the_transaction(context: &Context) -> Result<()> {
    let stage = KeyStage::new(context, "txn-kv-rights")?;
    stage.put(stage.dir(), "a", "before")?;
    fs::set_permissions(stage.dir(), fs::Permissions::from_mode(0o777))?;
    let program = context.dir("txn-kv-bin")?.join("stitchfs");
    fs::copy(&context.stitchfs, &program)?;
    let as_user = |user: &str, words: &[&str]| -> Result<(i32, String)> {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", user, "--regid", user, "--clear-groups"]);
        let output = output(command.arg(&program).args(words).current_dir("/"))?;
        let said = [output.stdout, output.stderr].concat();
        let code = output.status.code().context("it was killed")?;
        Ok((code, String::from_utf8_lossy(&said).into_owned()))
    };
    let mount = text(stage.dir());
    let (code, said) = as_user("4242", &["txn", "begin", "theirs", &mount])?;
    ensure!(code == 0, "{code} {said}");
    let place = text(&stage.place("theirs"));
    let (code, said) = as_user("4242", &["kv", "put", &place, "theirs", "1"])?;
    ensure!(code == 0, "{code} {said}");
    let sockets = stage.sockets()?;
    ensure!(sockets.len() == 1, "{sockets:?}");
    let meta = fs::metadata(&sockets[0])?;
    ensure!(
        (meta.uid(), meta.mode() & 0o777) == (4242, 0o600),
        "{meta:?}"
    );
    let (code, said) = as_user("4343", &["kv", "get", &place, "theirs"])?;
    ensure!(code == 1, "another user: {code} {said}");
    // Nor with a mode that lets all users in.
    fs::set_permissions(&sockets[0], fs::Permissions::from_mode(0o777))?;
    let (code, said) = as_user("4343", &["kv", "get", &place, "theirs"])?;
    ensure!(code == 1, "another user: {code} {said}");
    ensure!(stage.get(&stage.place("theirs"), "theirs")?.as_deref() == Some("1"));
    let (code, said) = as_user("4242", &["txn", "commit", "theirs", &mount])?;
    ensure!(code == 0, "{code} {said}");
    ensure!(stage.sockets()?.is_empty());
    ensure!(stage.get(stage.dir(), "theirs")?.as_deref() == Some("1"));
    stage.end()
}

/// A run in a run sees the keys of the outer one and gives its own to it, whose server has its
/// totals in memory.
fn keys_of_a_run_in_a_run_go_to_it(context: &Context) -> Result<()> {
    let stage = KeyStage::new(context, "kv-nested")?;
    stage.put(stage.dir(), "a", "before")?;
    stage.txn_ok(&["begin", "outer"])?;
    stage.txn_ok(&["begin", "outer/inner"])?;
    let outer = stage.place("outer");
    let inner = outer.join(".stitchfs/txn/inner/root");
    let size = |place: &Path| command(&place.join(".stitchfs/kv.sock"), &["DBSIZE"]);
    stage.put(&outer, "outer", "1")?;
    ensure!(size(&outer)?.trim() == ":2", "{}", size(&outer)?);
    ensure!(stage.get(&inner, "outer")?.is_none(), "it began before");
    stage.put(&inner, "a", "inner")?;
    stage.put(&inner, "new", "1")?;
    fs::write(inner.join("file"), "inner")?;
    ensure!(stage.get(&outer, "a")?.as_deref() == Some("before"));
    stage.txn_ok(&["commit", "outer/inner"])?;
    ensure!(stage.get(&outer, "a")?.as_deref() == Some("inner"));
    ensure!(size(&outer)?.trim() == ":3", "{}", size(&outer)?);
    ensure!(outer.join("file").exists() && !stage.dir().join("file").exists());
    ensure!(stage.get(stage.dir(), "a")?.as_deref() == Some("before"));
    stage.txn_ok(&["commit", "outer"])?;
    ensure!(stage.get(stage.dir(), "a")?.as_deref() == Some("inner"));
    ensure!(size(stage.dir())?.trim() == ":3", "{}", size(stage.dir())?);
    // By the mount point, in a run in a run; the outer one fails afterwards.
    let program = text(&context.stitchfs);
    let inner = format!("{program} txn run -- {program} kv put $MNT b 2");
    let script = format!("{inner}; test $(kv get b) = 2; {inner}; exit 5");
    let (code, said) = stage.ran(&script)?;
    ensure!(code == 5, "{code} {said}");
    ensure!(stage.get(stage.dir(), "b")?.is_none(), "it is there");
    stage.end()
}
