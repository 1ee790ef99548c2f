//! Real servers for tests: started on free loopback ports, each killed by its own handle.

use fairlock::{Client, ClientBuilder, Error};
use redis::aio::MultiplexedConnection;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::net::TcpSocket;

/// How long a test waits for what should take milliseconds: these machines are slow at times.
pub const PATIENCE: Duration = Duration::from_secs(match option_env!("FAIRLOCK_IMPATIENT") {
    // `make mutants`, where many tests wait in vain. Some wait for a look, which comes after half a minute.
    Some(_) => 45,
    None => 180,
});

/// A server of this test. Dropped, it is killed and its directory removed.
pub struct Server {
    child: Option<Child>,
    port: u16,
    /// Chosen with the port if the arguments have a `--cluster-port`.
    bus_port: u16,
    /// While it is killed: a server of another test that got this port would be taken for the one that is gone.
    reserved: Option<TcpSocket>,
    dir: PathBuf,
    /// The program and what comes before its own arguments.
    program: Vec<String>,
    args: Vec<String>,
}

impl Server {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// With further arguments of redis-server, such as `--appendonly yes`.
    pub async fn start_with(args: &[&str]) -> Self {
        Self::start_program(&[program()], args).await
    }

    /// Another program than redis-server, such as `env` with variables and then redis-server.
    pub async fn start_program(program: &[String], args: &[&str]) -> Self {
        let dir = std::env::temp_dir().join(format!("fairlock-test-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&dir).expect("a directory for the server");
        let mut server = Self {
            child: None,
            port: 0,
            bus_port: 0,
            reserved: None,
            dir,
            program: program.to_vec(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        };
        // Another process may take a free port before the server does.
        for _ in 0..20 {
            server.port = free_port();
            if let Some(at) = server.args.iter().position(|arg| arg == "--cluster-port") {
                server.bus_port = free_port();
                server.args[at + 1] = server.bus_port.to_string();
            }
            if server.spawn().await {
                return server;
            }
        }
        panic!("no server came up; see {}", server.dir.join("log").display());
    }

    async fn spawn(&mut self) -> bool {
        self.reserved = None;
        // One that was killed leaves it behind.
        let _ = std::fs::remove_file(self.socket());
        let program = &self.program;
        let child = Command::new(&program[0])
            .args(&program[1..])
            .args(["--bind", "127.0.0.1", "--port", &self.port.to_string()])
            .args(["--save", "", "--dir"])
            .arg(&self.dir)
            // After its directory: it opens the file as soon as it reads this.
            .args(["--logfile", "log"])
            .args(["--unixsocket", "socket"])
            .args(&self.args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.child = Some(child.unwrap_or_else(|error| panic!("cannot start {program:?}: {error}; run `make setup`")));
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(child) = &mut self.child
                && child.try_wait().expect("the server's status").is_some()
            {
                return false;
            }
            // It makes its socket once it has its port.
            if self.socket().exists() && self.answers().await {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }

    /// Any reply will do, also "NOAUTH": it is up. "LOADING" is not.
    async fn answers(&self) -> bool {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let ping = async {
            // Whoever answers there is ours.
            let mut stream = tokio::net::UnixStream::connect(self.socket()).await.ok()?;
            stream.write_all(b"PING\r\n").await.ok()?;
            let mut reply = [0; 64];
            let n = stream.read(&mut reply).await.ok()?;
            Some(n > 0 && !reply.starts_with(b"-LOADING"))
        };
        let answer = tokio::time::timeout(Duration::from_secs(1), ping).await;
        answer.ok().flatten().unwrap_or(false)
    }

    /// Further arguments for the next start.
    pub fn add_args(&mut self, args: &[&str]) {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn bus_port(&self) -> u16 {
        self.bus_port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.join("socket")
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A connection of the test's own.
    pub async fn redis(&self) -> MultiplexedConnection {
        let client = redis::Client::open(self.url()).expect("a valid URL");
        client
            .get_multiplexed_async_connection_with_config(&patient())
            .await
            .expect("the server answers")
    }

    /// SIGKILL. Its port refuses connections and stays its own.
    pub fn kill(&mut self) {
        self.end();
        self.reserved = reserve(self.port).ok();
    }

    fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it again after `kill`, on the same port, with what it wrote to disk.
    pub async fn start_again(&mut self) {
        let begun = Instant::now();
        while !self.spawn().await {
            assert!(begun.elapsed() < PATIENCE, "the server did not come up again");
        }
    }

    /// Starts it again: false if it refuses to, with that text in its log.
    pub async fn start_again_unless(&mut self, refusal: &str) -> bool {
        let begun = Instant::now();
        while !self.spawn().await {
            let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            if log.contains(refusal) {
                return false;
            }
            assert!(begun.elapsed() < PATIENCE, "the server did not come up again:\n{log}");
        }
        true
    }

    /// SIGSTOP: it keeps its connections but does not answer.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(self.child.as_ref().expect("a running server"))
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("our own child");
    }

    /// Redis 6.2: no flags in scripts, no rights to read only, fewer commands.
    pub async fn is_before_7(&self) -> bool {
        let mut info = redis::cmd("INFO");
        let text: String = info
            .arg("server")
            .query_async(&mut self.redis().await)
            .await
            .expect("INFO");
        text.contains("redis_version:6.")
    }

    /// Clients that connect from now on call the scripts by their texts, as on every server before 7.
    pub async fn refuse_functions(&self) {
        if self.is_before_7().await {
            return;
        }
        let mut rule = redis::cmd("ACL");
        rule.arg("SETUSER").arg("default").arg("-function|load");
        rule.exec_async(&mut self.redis().await).await.expect("ACL SETUSER");
    }

    /// Calls of a command so far, as the server counts them, scripts' inner calls included.
    pub async fn calls(&self, command: &str) -> u64 {
        count(&self.command_stats().await, command, "calls")
    }

    /// Calls of a command so far that did not fail.
    pub async fn executed(&self, command: &str) -> u64 {
        let stats = self.command_stats().await;
        count(&stats, command, "calls") - count(&stats, command, "failed_calls")
    }

    /// Calls of a command so far that the server refused, for want of a right.
    pub async fn refused(&self, command: &str) -> u64 {
        count(&self.command_stats().await, command, "rejected_calls")
    }

    /// Errors with that code that the server has replied so far, to scripts too.
    pub async fn errors(&self, code: &str) -> u64 {
        let info = redis::cmd("INFO").arg("errorstats").to_owned();
        let stats: String = info.query_async(&mut self.redis().await).await.expect("INFO");
        let mut lines = stats.lines();
        let count = lines.find_map(|line| line.strip_prefix(&format!("errorstat_{code}:count=")));
        count.map_or(0, |count| count.trim().parse().expect("a number"))
    }

    /// Scripts that were executed so far, as functions or by EVAL. A refused EVALSHA is no execution.
    pub async fn script_calls(&self) -> u64 {
        let stats = self.command_stats().await;
        let executed = |command| count(&stats, command, "calls") - count(&stats, command, "failed_calls");
        executed("fcall") + executed("evalsha") + executed("eval")
    }

    async fn command_stats(&self) -> String {
        redis::cmd("INFO")
            .arg("commandstats")
            .query_async(&mut self.redis().await)
            .await
            .expect("INFO")
    }

    /// Connected clients other than the one that asks.
    pub async fn connections(&self) -> usize {
        let text: String = redis::cmd("CLIENT")
            .arg("LIST")
            .query_async(&mut self.redis().await)
            .await
            .expect("CLIENT LIST");
        text.lines().count() - 1
    }

    /// All keys of the server, but for those by which clients say who they are, and what owners wait for: clients delete
    /// these when they get to it.
    pub async fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = redis::cmd("KEYS")
            .arg("*")
            .query_async(&mut self.redis().await)
            .await
            .expect("KEYS");
        keys.retain(|key| !key.contains(":client:") && !key.contains(":waits:"));
        keys.sort();
        keys
    }

    /// Channels with subscribers whose names match the pattern.
    pub async fn channels(&self, pattern: &str) -> Vec<String> {
        let mut channels = redis::cmd("PUBSUB");
        channels.arg("CHANNELS").arg(pattern);
        channels.query_async(&mut self.redis().await).await.expect("PUBSUB")
    }

    /// Requests that wait for the lock.
    pub async fn queued(&self, lock: &str) -> usize {
        self.try_queued(lock).await.expect("ZCARD")
    }

    async fn try_queued(&self, lock: &str) -> redis::RedisResult<usize> {
        let mut count = redis::cmd("ZCARD");
        count.arg(format!("fairlock:{{{lock}}}:q"));
        count.query_async(&mut self.redis().await).await
    }

    /// Waits until so many requests are queued. A node of a cluster may say for a moment that the cluster is down.
    pub async fn until_queued(&self, lock: &str, n: usize) {
        eventually(&format!("{n} queued for {lock}"), async || {
            self.try_queued(lock).await.is_ok_and(|queued| queued == n)
        })
        .await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let running = self
            .child
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)));
        if running {
            self.thaw();
        }
        self.end();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A client of a server that is up. Its connecting may take longer than the two seconds that it allows.
pub async fn connected(builder: ClientBuilder, url: impl AsRef<str>) -> Client {
    let begun = Instant::now();
    loop {
        match builder.clone().connect(url.as_ref()).await {
            Ok(client) => return client,
            Err(Error::Connect { source, .. }) if source.is_timeout() && begun.elapsed() < PATIENCE => {}
            Err(error) => panic!("the server is up, but: {error}"),
        }
    }
}

/// The server's program that the tests use unless they need another.
pub fn program() -> String {
    std::env::var("FAIRLOCK_TEST_SERVER").unwrap_or_else(|_| "redis-server".to_owned())
}

/// Replies may be late while this machine is busy.
pub fn patient() -> redis::AsyncConnectionConfig {
    let config = redis::AsyncConnectionConfig::new().set_connection_timeout(Some(PATIENCE));
    config.set_response_timeout(Some(PATIENCE))
}

/// What lies under a key, in one order: some servers bring the fields of a larger hash in another one each time.
pub async fn content(redis: &mut MultiplexedConnection, key: &str) -> Vec<Vec<u8>> {
    let kind: String = redis::cmd("TYPE").arg(key).query_async(redis).await.expect("TYPE");
    let mut content = vec![kind.clone().into_bytes()];
    if kind == "hash" {
        let all = redis::cmd("HGETALL").arg(key).query_async(redis).await;
        let all: BTreeMap<Vec<u8>, Vec<u8>> = all.expect("HGETALL");
        content.extend(all.into_iter().flat_map(|(field, value)| [field, value]));
    } else {
        let dump: Option<Vec<u8>> = redis::cmd("DUMP").arg(key).query_async(redis).await.expect("DUMP");
        content.extend(dump);
    }
    content
}

pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}

/// The system gives a port that is bound to nobody who asks for a free one. As nobody listens, it refuses connections.
fn reserve(port: u16) -> std::io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    // In spite of connections of the former server that the system still remembers.
    socket.set_reuseaddr(true)?;
    socket.bind((Ipv4Addr::LOCALHOST, port).into())?;
    Ok(socket)
}

/// Waits until a condition holds; panics after [`PATIENCE`].
pub async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let begun = Instant::now();
    while !condition().await {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Fails the test if the future takes longer than [`PATIENCE`].
pub async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(output) => output,
        Err(_) => panic!("not within {PATIENCE:?}: {what}"),
    }
}

#[tokio::test]
async fn the_port_of_a_killed_server_refuses_connections_and_is_its_own_again() {
    let mut server = Server::start().await;
    server.redis().await;
    server.kill();
    let refused = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).await;
    assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    assert!(
        server.reserved.is_some(),
        "somebody else may get port {}",
        server.port()
    );
    server.start_again().await;
    server.redis().await;
}

/// A number that INFO gives for a command; 0 if it has not been called.
fn count(stats: &str, command: &str, what: &str) -> u64 {
    let prefix = format!("cmdstat_{command}:");
    let line = stats.lines().find_map(|line| line.strip_prefix(&prefix));
    let number = line.and_then(|line| line.split(',').find_map(|pair| pair.strip_prefix(&format!("{what}="))));
    number.map_or(0, |number| number.parse().expect("a number"))
}
