//! `stitchfs serve`, `stitchfs kv` and `-o kv`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::mounted::Mounted;
use crate::place::{Place, STITCHFS};

/// A server of the store `a.stitch`, on a port that the system has chosen.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn start(place: &Place, args: &[&str]) -> Self {
        let mut child = Command::new(STITCHFS)
            .args(["serve", "--listen", "127.0.0.1:0", "--memory", "64M"])
            .args(args)
            .arg("a.stitch")
            .current_dir(place.0.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let out = child.stdout.take().expect("it is piped");
        let mut line = String::new();
        BufReader::new(out)
            .read_line(&mut line)
            .expect("the server says where it is");
        let address = line.trim().strip_prefix("a.stitch: serving on ");
        let address = address.expect("it says so").to_owned();
        Self { child, address }
    }

    fn connect(&self) -> BufReader<TcpStream> {
        BufReader::new(TcpStream::connect(&self.address).expect("the server listens"))
    }

    fn kill(mut self) {
        self.child.kill().expect("it is killed");
        self.child.wait().expect("it ends");
    }

    /// Ends it by SIGTERM.
    fn stop(mut self) {
        let id = i32::try_from(self.child.id()).expect("a process has a small number");
        let id = rustix::process::Pid::from_raw(id).expect("and not 0");
        rustix::process::kill_process(id, rustix::process::Signal::TERM)
            .expect("it is asked to end");
        let status = self.child.wait().expect("it ends");
        assert_eq!(status.code(), Some(0));
    }
}

/// Runs a command whose reply is one line.
fn run(client: &mut BufReader<TcpStream>, command: &str) -> String {
    let sent = client
        .get_mut()
        .write_all(format!("{command}\r\n").as_bytes());
    sent.expect("the server reads");
    let mut line = String::new();
    client.read_line(&mut line).expect("the server replies");
    line.trim_end().to_owned()
}

#[test]
fn keys_are_put_read_listed_and_removed() {
    let place = Place::with_store("a.stitch");
    place.run(&["kv", "get", "a.stitch", "a"]).code(3);
    place.run(&["kv", "put", "a.stitch", "a", "one"]).code(0);
    place.run(&["kv", "put", "a.stitch", "b", "-2"]).code(0);
    let got = place.run(&["kv", "get", "a.stitch", "a"]);
    assert_eq!(got.code(0).out(), "one");
    let got = place.run(&["kv", "get", "--hex", "a.stitch", "62"]);
    assert_eq!(got.code(0).out().trim(), "2d32");
    place
        .run(&["kv", "put", "--hex", "a.stitch", "00ff", "0a"])
        .code(0);
    let listed = place.run(&["kv", "scan", "a.stitch"]);
    assert_eq!(listed.code(0).out(), "\\x00\\xff\na\nb\n");
    let listed = place.run(&["kv", "scan", "--match", "[ab]", "--limit", "1", "a.stitch"]);
    assert_eq!(listed.code(0).out(), "a\n");
    let got = place.run(&["kv", "get", "--json", "a.stitch", "a"]);
    let got = got.code(0).json();
    assert_eq!(
        (&got["value"], &got["value_hex"]),
        (&"one".into(), &"6f6e65".into())
    );
    place.run(&["kv", "del", "a.stitch", "a", "x"]).code(0);
    place.run(&["kv", "del", "a.stitch", "x"]).code(3);
    place.run(&["kv", "get", "--hex", "a.stitch", "0"]).code(1);
    place.run(&["kv", "get", "a.stitch"]).code(2);
    place.run(&["fsck", "-n", "a.stitch"]).code(0);
}

#[test]
fn a_batch_is_done_whole_or_not_at_all() {
    let place = Place::with_store("a.stitch");
    std::fs::write(place.path("good"), "put a 1\nput b \"2 3\"\n# no\ndel a\n").unwrap();
    place.run(&["kv", "batch", "a.stitch", "good"]).code(0);
    let listed = place.run(&["kv", "scan", "--json", "a.stitch"]);
    assert_eq!(listed.code(0).json()["keys"][0]["key"], "b");
    std::fs::write(place.path("wrong"), "put c 1\nput d\n").unwrap();
    let refused = place.run(&["kv", "batch", "a.stitch", "wrong"]);
    assert!(
        refused.code(1).err().contains("line 2"),
        "{}",
        refused.err()
    );
    place.run(&["kv", "get", "a.stitch", "c"]).code(3);
}

#[test]
fn what_was_replied_survives_a_killed_server() {
    let place = Place::with_store("a.stitch");
    for policy in ["always", "everysec"] {
        let served = Served::start(&place, &["--appendfsync", policy]);
        let mut client = served.connect();
        for number in 0..200 {
            assert_eq!(
                run(&mut client, &format!("SET {policy}{number} {number}")),
                "+OK"
            );
        }
        assert_eq!(run(&mut client, "INCR kills").as_bytes()[0], b':');
        served.kill();
    }
    let served = Served::start(&place, &[]);
    let mut client = served.connect();
    assert_eq!(run(&mut client, "DBSIZE"), ":401");
    assert_eq!(run(&mut client, "STRLEN always199"), ":3");
    assert_eq!(run(&mut client, "INCR kills"), ":3");
    let busy = place.run(&["kv", "get", "a.stitch", "kills"]);
    assert!(busy.code(1).err().contains("in use"), "{}", busy.err());
    served.stop();
    let got = place.run(&["kv", "get", "a.stitch", "kills"]);
    assert_eq!(got.code(0).out(), "3");
    place.run(&["fsck", "-n", "a.stitch"]).code(0);
}

#[test]
fn a_password_is_asked_for() {
    let place = Place::with_store("a.stitch");
    let open = place.run(&["serve", "--listen", "0.0.0.0:0", "a.stitch"]);
    assert!(
        open.code(1).err().contains("--requirepass-file"),
        "{}",
        open.err()
    );
    std::fs::write(place.path("empty"), "\n").unwrap();
    place
        .run(&["serve", "--requirepass-file", "empty", "a.stitch"])
        .code(1);
    std::fs::write(place.path("secret"), "hunter2\n").unwrap();
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(place.path("secret"), mode).unwrap();
    let served = Served::start(
        &place,
        &["--requirepass-file", "secret", "--socket", "kv.sock"],
    );
    let mut client = served.connect();
    assert!(run(&mut client, "GET a").starts_with("-NOAUTH"));
    assert_eq!(run(&mut client, "AUTH hunter2"), "+OK");
    assert_eq!(run(&mut client, "GET a"), "$-1");
    let mode = std::fs::metadata(place.path("kv.sock"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut stream = UnixStream::connect(place.path("kv.sock")).unwrap();
    stream.write_all(b"PING\r\nQUIT\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert_eq!(text, "-NOAUTH Authentication required.\r\n+OK\r\n");
    served.stop();
    assert!(!place.path("kv.sock").exists());
}

#[test]
fn a_mount_serves_its_keys_where_that_is_asked_for() {
    let Some(mounted) = Mounted::new(&["-o", "kv=always"]) else {
        return;
    };
    let place = &mounted.place;
    place.run(&["kv", "put", "mnt", "a", "one"]).code(0);
    std::fs::write(place.path("mnt/file"), b"beside").unwrap();
    assert_eq!(place.run(&["kv", "get", "mnt", "a"]).code(0).out(), "one");
    std::fs::write(place.path("batch"), "put b 1\nput c 2\n").unwrap();
    place.run(&["kv", "batch", "mnt", "batch"]).code(0);
    assert_eq!(place.run(&["kv", "scan", "mnt"]).code(0).out(), "a\nb\nc\n");
    let stats = place.run(&["stats", "--json", "mnt"]).code(0).json();
    let socket = stats["kv_socket"].as_str().unwrap().to_owned();
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let link = place.path("mnt/.stitchfs/kv.sock");
    assert_eq!(
        std::fs::read_link(&link).unwrap().to_str(),
        Some(socket.as_str())
    );
    let mut stream = UnixStream::connect(&link).unwrap();
    stream.write_all(b"GET a\r\nQUIT\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert_eq!(text, "$3\r\none\r\n+OK\r\n");
    check_hidden_dir(&place.path("mnt"));
    let refused = place.run(&["serve", "mnt"]);
    assert!(refused.code(1).err().contains("-o kv"), "{}", refused.err());
    place.run(&["umount", "mnt"]).code(0);
    assert!(!Path::new(&socket).exists());
}

/// Names in a directory.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    entries
        .map(|entry| name(entry).into_string().unwrap())
        .collect()
}

/// `.stitchfs` can be reached, is listed nowhere, and cannot be changed.
fn check_hidden_dir(mnt: &Path) {
    let dir = mnt.join(".stitchfs");
    assert_eq!(names(mnt), ["file"]);
    assert_eq!(names(&dir), ["snap", "kv.sock"]);
    let meta = std::fs::metadata(&dir).unwrap();
    assert!(meta.is_dir());
    assert_eq!(meta.permissions().mode() & 0o777, 0o555);
    assert!(
        std::fs::symlink_metadata(dir.join("kv.sock"))
            .unwrap()
            .is_symlink()
    );
    assert!(std::fs::symlink_metadata(dir.join("other")).is_err());
    assert!(std::fs::write(dir.join("new"), b"x").is_err());
    assert!(std::fs::remove_file(dir.join("kv.sock")).is_err());
    assert!(std::fs::create_dir(&dir).is_err());
    assert!(std::fs::remove_dir(&dir).is_err());
    // What the kernel forgets is found again.
    std::fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    assert_eq!(names(&dir), ["snap", "kv.sock"]);
}

#[test]
fn a_mount_without_the_option_serves_no_keys() {
    let Some(mounted) = Mounted::new(&[]) else {
        return;
    };
    let socket = mounted.place.path("mnt/.stitchfs/kv.sock");
    assert!(socket.symlink_metadata().is_err(), "there is no such link");
    let refused = mounted.place.run(&["kv", "get", "mnt", "a"]);
    assert!(
        refused.code(1).err().contains("mount it with -o kv"),
        "{}",
        refused.err()
    );
}
