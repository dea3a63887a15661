//! The server over sockets.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use stitch_base::sync::Arc;
use stitch_kv::{CommitFault, ModelEngine, UpsertRegistry};
use stitch_serve::{Listener, Remote, RemoteError, Response, Server, ServerOptions, SyncPolicy};

struct Served {
    engine: Arc<ModelEngine>,
    server: Server,
}

impl Served {
    fn start(options: &ServerOptions) -> Self {
        let engine = Arc::new(ModelEngine::new(UpsertRegistry::default()));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = Listener::tcp(address).unwrap();
        let server = Server::start(Arc::clone(&engine) as _, vec![listener], options).unwrap();
        Self { engine, server }
    }

    fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.server.addresses()[0]).unwrap();
        Client(BufReader::new(stream))
    }
}

fn always() -> ServerOptions {
    ServerOptions {
        sync: SyncPolicy::Always,
        ..ServerOptions::default()
    }
}

/// Sends lines, reads lines.
struct Client(BufReader<TcpStream>);

impl Client {
    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Runs a command whose reply is one line.
    fn run(&mut self, command: &str) -> String {
        self.send(format!("{command}\r\n").as_bytes());
        self.line()
    }

    /// Reads until the server closes the connection.
    fn rest(mut self) -> String {
        let mut text = String::new();
        self.0.read_to_string(&mut text).unwrap();
        text
    }
}

#[test]
fn clients_see_what_others_have_set() {
    for sync in [SyncPolicy::Always, SyncPolicy::EverySecond] {
        let options = ServerOptions {
            sync,
            ..ServerOptions::default()
        };
        let served = Served::start(&options);
        let (mut one, mut two) = (served.connect(), served.connect());
        assert_eq!(one.run("SET a 1"), "+OK");
        assert_eq!(two.run("INCR a"), ":2");
        assert_eq!(one.run("STRLEN a"), ":1");
        assert_eq!(two.run("QUIT"), "+OK");
        assert_eq!(two.rest(), "");
        assert_eq!(one.run("EXISTS a"), ":1");
        served.server.stop().unwrap();
        assert_eq!(one.rest(), "", "the server has ended");
    }
}

#[test]
fn a_watch_of_one_client_meets_a_write_of_another() {
    let served = Served::start(&always());
    let (mut one, mut two) = (served.connect(), served.connect());
    assert_eq!(one.run("WATCH a"), "+OK");
    assert_eq!(one.run("MULTI"), "+OK");
    assert_eq!(one.run("SET a mine"), "+QUEUED");
    assert_eq!(two.run("SET a theirs"), "+OK");
    assert_eq!(one.run("EXEC"), "*-1");
    assert_eq!(one.run("STRLEN a"), ":6");
}

#[test]
fn commands_that_are_sent_without_waiting_are_answered_in_order() {
    let served = Served::start(&always());
    let mut client = served.connect();
    let count = 5000;
    let mut text = String::new();
    for number in 0..count {
        text += &format!("*3\r\n$3\r\nSET\r\n$4\r\n{number:04}\r\n$1\r\nv\r\n");
        text += "INCR n\r\n";
    }
    client.send(text.as_bytes());
    for number in 1..=count {
        assert_eq!(client.line(), "+OK");
        assert_eq!(client.line(), format!(":{number}"));
    }
    assert_eq!(client.run("DBSIZE"), format!(":{}", count + 1));
}

#[test]
fn replies_wait_for_a_client_that_reads_late() {
    let served = Served::start(&always());
    let mut client = served.connect();
    let value = "v".repeat(500_000);
    client.send(format!("*3\r\n$3\r\nSET\r\n$1\r\na\r\n$500000\r\n{value}\r\n").as_bytes());
    assert_eq!(client.line(), "+OK");
    let count = 60;
    client.send("GET a\r\n".repeat(count).as_bytes());
    let mut other = served.connect();
    assert_eq!(other.run("PING"), "+PONG", "others do not wait");
    for _ in 0..count {
        assert_eq!(client.line(), "$500000");
        assert_eq!(client.line().len(), value.len());
    }
    assert_eq!(client.run("PING"), "+PONG");
}

#[test]
fn what_is_no_command_ends_the_connection() {
    let served = Served::start(&always());
    let mut client = served.connect();
    client.send(b"PING\r\n*1\r\n$x\r\nPING\r\n");
    let text = client.rest();
    assert_eq!(
        text,
        "+PONG\r\n-ERR Protocol error: invalid bulk length\r\n"
    );
    let mut client = served.connect();
    client.send(b"SET a 1\r\nGET");
    client
        .0
        .get_ref()
        .shutdown(std::net::Shutdown::Write)
        .unwrap();
    assert_eq!(client.rest(), "+OK\r\n");
}

#[test]
fn a_failed_commit_is_told_to_all_whom_it_concerns() {
    let served = Served::start(&always());
    let mut client = served.connect();
    served.engine.fail_commits(CommitFault::Full, 1);
    client.send(b"SET a 1\r\nPING\r\nGET a\r\n");
    let first = client.line();
    assert!(first.starts_with("-OOM command not allowed"), "{first}");
    assert_eq!(client.line(), "+PONG");
    // In the same round as the failed command, or in one of its own.
    let last = client.line();
    assert!(last.starts_with("-OOM") || last == "$-1", "{last}");
    assert_eq!(client.run("SET a 2"), "+OK");
}

#[test]
fn the_number_of_clients_has_a_limit() {
    let options = ServerOptions {
        clients_max: 1,
        ..always()
    };
    let served = Served::start(&options);
    let mut first = served.connect();
    assert_eq!(first.run("PING"), "+PONG");
    assert_eq!(
        served.connect().rest(),
        "-ERR max number of clients reached\r\n"
    );
    assert_eq!(first.run("PING"), "+PONG");
}

#[test]
fn a_socket_in_a_directory_serves_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kv.sock");
    let listener = Listener::unix(UnixListener::bind(&path).unwrap()).unwrap();
    let engine = Arc::new(ModelEngine::new(UpsertRegistry::default()));
    let options = ServerOptions {
        password: Some(b"secret".to_vec()),
        ..always()
    };
    let server = Server::start(engine, vec![listener], &options).unwrap();
    let mut remote = Remote::new(UnixStream::connect(&path).unwrap());
    let refused = remote.call(&[b"GET", b"a"]);
    assert!(matches!(refused, Err(RemoteError::Refused(text)) if text.starts_with("NOAUTH")));
    remote.call(&[b"AUTH", b"secret"]).unwrap();
    let set = remote.call(&[b"SET", b"a", b"\r\n\0"]).unwrap();
    assert_eq!(set, Response::Simple("OK".to_owned()));
    let got = remote.call(&[b"MGET", b"a", b"x"]).unwrap();
    let expected = vec![Response::Bulk(b"\r\n\0".to_vec()), Response::Null];
    assert_eq!(got, Response::Array(expected));
    server.stop().unwrap();
    assert!(matches!(remote.call(&[b"PING"]), Err(RemoteError::Io(_))));
}
