//! Redis's own programs against `stitchfs serve` and against a mount with `-o kv`.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::context::Context;
use crate::harness::guardian;
use crate::harness::mount::{Mount, Spec};
use crate::harness::process::{command, run};
use crate::harness::report::{Case, Skip};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "redis-cli",
        run: redis_cli_gets_what_it_expects,
    },
    Case {
        name: "redis-benchmark",
        run: redis_benchmark_ends_without_errors,
    },
    Case {
        name: "redis-py",
        run: redis_py_gets_what_it_expects,
    },
    Case {
        name: "mount",
        run: a_mount_serves_keys_beside_files,
    },
];

const CLI: &str = "/usr/bin/redis-cli";
const BENCHMARK: &str = "/usr/bin/redis-benchmark";
/// The system's interpreter: packages of Debian are for this one.
const PYTHON: &str = "/usr/bin/python3";

/// A program of the package `redis-tools`.
fn needs(program: &str) -> Result<()> {
    match Path::new(program).exists() {
        true => Ok(()),
        false => Err(Skip(format!("{program} is missing (package redis-tools)")).into()),
    }
}

/// A store with a server.
struct Served {
    store: PathBuf,
    child: Option<Child>,
    port: String,
}

impl Served {
    fn start(context: &Context, name: &str, policy: &str) -> Result<Self> {
        context.needs_stitch()?;
        let store = context.work.join(name);
        let mut make = Command::new(&context.stitchfs);
        run(make.args(["mkfs", "--size", "512M"]).arg(&store))?;
        let mut child = Command::new(&context.stitchfs)
            .args(["serve", "--listen", "127.0.0.1:0", "--appendfsync", policy])
            .arg(&store)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        guardian::watch_process(child.id())?;
        let out = child.stdout.take().context("it is piped")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        let port = line
            .trim()
            .rsplit(':')
            .next()
            .context("no port")?
            .to_owned();
        ensure!(port.parse::<u16>().is_ok(), "no port in {line:?}");
        let child = Some(child);
        Ok(Self { store, child, port })
    }

    fn cli(&self, args: &[&str]) -> Result<String> {
        let args = [&["-p", &self.port, "--no-auth-warning", "-e"], args].concat();
        Ok(run(&mut command(CLI, &args))?.trim().to_owned())
    }

    /// Ends the server and checks the store.
    fn finish(mut self, context: &Context) -> Result<()> {
        let mut child = self.child.take().context("it runs")?;
        let id = Pid::from_child(&child);
        kill_process(id, Signal::TERM)?;
        let status = child.wait()?;
        ensure!(status.success(), "the server ended with {status}");
        let mut check = Command::new(&context.stitchfs);
        run(check.args(["fsck", "-n"]).arg(&self.store)).map(drop)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn expect(served: &Served, args: &[&str], expected: &str) -> Result<()> {
    let found = served.cli(args)?;
    ensure!(
        found == expected,
        "{args:?}: {found:?} instead of {expected:?}"
    );
    Ok(())
}

fn redis_cli_gets_what_it_expects(context: &Context) -> Result<()> {
    needs(CLI)?;
    let served = Served::start(context, "cli.store", "always")?;
    expect(&served, &["SET", "a", "1"], "OK")?;
    expect(&served, &["INCRBY", "a", "41"], "42")?;
    expect(&served, &["HSET", "h", "f", "v"], "1")?;
    expect(&served, &["-3", "HGETALL", "h"], "f v")?;
    expect(&served, &["ZADD", "z", "2", "b", "1", "a"], "2")?;
    expect(
        &served,
        &["ZRANGE", "z", "0", "-1", "WITHSCORES"],
        "a\n1\nb\n2",
    )?;
    expect(&served, &["--scan", "--pattern", "[ah]"], "a\nh")?;
    expect(&served, &["DBSIZE"], "3")?;
    served.finish(context)
}

fn redis_benchmark_ends_without_errors(context: &Context) -> Result<()> {
    needs(BENCHMARK)?;
    for (policy, pipeline) in [("always", "1"), ("everysec", "16")] {
        let served = Served::start(context, &format!("{policy}.store"), policy)?;
        let args = [
            "-p",
            &served.port,
            "-n",
            "5000",
            "-r",
            "1000",
            "-c",
            "20",
            "-P",
            pipeline,
            "-t",
            "ping,set,get,incr,hset,zadd,mset",
            "-e",
            "-q",
        ];
        let text = run(&mut command(BENCHMARK, &args))?;
        let tests = text.matches("requests per second").count();
        ensure!(tests == 8, "{tests} tests instead of 8:\n{text}");
        served.finish(context)?;
    }
    Ok(())
}

/// Transactions, pipelines and walks as programs use them.
const SCRIPT: &str = r#"
import redis, sys
r = redis.Redis(port=int(sys.argv[1]), decode_responses=True)
r.flushdb()
with r.pipeline(transaction=True) as p:
    for n in range(1000):
        p.set(f"k{n:04}", n)
    assert all(p.execute())
assert r.dbsize() == 1000
assert sorted(r.scan_iter("k00*", count=7)) == [f"k{n:04}" for n in range(100)]
def move(p):
    value = int(p.get("k0001"))
    p.multi()
    p.set("k0002", value + 1)
r.transaction(move, "k0001")
assert r.get("k0002") == "2"
with r.pipeline() as p:
    p.watch("k0003")
    r.set("k0003", "changed")
    p.multi()
    p.set("k0003", "mine")
    try:
        p.execute()
        raise SystemExit("the watched key has changed")
    except redis.WatchError:
        pass
assert r.get("k0003") == "changed"
r.hset("h", mapping={"a": 1, "b": 2})
assert r.hgetall("h") == {"a": "1", "b": "2"}
r.zadd("z", {"a": 1.5, "b": 0.5})
assert r.zrange("z", 0, -1, withscores=True) == [("b", 0.5), ("a", 1.5)]
assert r.set("t", 1, px=60000, nx=True) and 0 < r.pttl("t") <= 60000
try:
    r.lpush("l", 1)
    raise SystemExit("lists are not offered")
except redis.ResponseError as error:
    assert "unknown command" in str(error), error
"#;

fn redis_py_gets_what_it_expects(context: &Context) -> Result<()> {
    let found = Command::new(PYTHON).args(["-c", "import redis"]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        return Err(Skip("redis-py is missing (package python3-redis)".to_owned()).into());
    }
    let served = Served::start(context, "py.store", "everysec")?;
    run(&mut command(PYTHON, &["-c", SCRIPT, &served.port]))?;
    served.finish(context)
}

fn a_mount_serves_keys_beside_files(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    needs(CLI)?;
    let spec = Spec::new("keys", "256M").option("kv=always");
    let mut mount = Mount::create(context, &spec)?;
    let socket = mount.dir().join(".stitchfs/kv.sock").display().to_string();
    let cli = |args: &[&str]| run(&mut command(CLI, &[&["-s", &socket, "-e"], args].concat()));
    std::fs::write(mount.dir().join("file"), "beside")?;
    ensure!(cli(&["SET", "a", "1"])?.trim() == "OK", "SET");
    let listed = run(&mut command("find", &[&mount.dir().display().to_string()]))?;
    ensure!(!listed.contains(".stitchfs"), "it is listed:\n{listed}");
    mount.kill()?;
    mount.detach()?;
    mount.mount_again()?;
    ensure!(
        cli(&["GET", "a"])?.trim() == "1",
        "what was replied is gone"
    );
    ensure!(
        std::fs::read(mount.dir().join("file"))? == b"beside",
        "a file is gone"
    );
    mount.unmount()?;
    mount.fsck()
}
