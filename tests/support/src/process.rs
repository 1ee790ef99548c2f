//! Users of locks in other operating-system processes, which a test can kill and freeze.
//!
//! The test binary runs itself with only its test `process::child`, which calls [`child`]: that obeys its parent line by
//! line.

use crate::server::{patient, soon};
use fairlock::{Access, Client, Guard, Mode};
use redis::aio::MultiplexedConnection;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

const VARIABLE: &str = "FAIRLOCK_CHILD";
/// What the child says begins with it: its test harness talks too.
const MARK: char = '@';

/// A process with a client of its own. Dropped, it is killed and reaped.
pub struct Process {
    child: Child,
    stdin: ChildStdin,
    lines: mpsc::UnboundedReceiver<String>,
}

impl Process {
    /// Starts it and waits until its client is connected.
    pub async fn start(url: &str, lease: Duration) -> Self {
        Self::start_beside(url, url, lease).await
    }

    /// The same, and it reaches the resources that it fences by a way of their own.
    pub async fn start_beside(url: &str, resources: &str, lease: Duration) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("our own path"));
        command
            .args(["--exact", "process::child", "--nocapture"])
            .env(VARIABLE, format!("{url} {} {resources}", lease.as_millis()));
        Self::running(command).await
    }

    /// The same for another program that obeys the same lines.
    pub async fn running(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs as we do");
        let stdin = child.stdin.take().expect("a pipe");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let (said, lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some((_, line)) = line.split_once(MARK) {
                    let _ = said.send(line.to_owned());
                }
            }
        });
        let mut process = Self { child, stdin, lines };
        assert_eq!(process.line().await, "connected");
        process
    }

    /// Asks for a lock as user `id`: `entered ID TOKEN OWNER clear|conflict` follows. With a time it holds that long
    /// and releases: `released ID true` follows, or false if it was lost.
    pub fn ask(&mut self, id: usize, mode: char, lock: &str, hold: Option<Duration>) {
        let hold = hold.map_or("-".to_owned(), |hold| hold.as_millis().to_string());
        self.tell(&format!("ask {id} {mode} {lock} {hold}"));
    }

    /// `release ID`, `held ID` or `store ID`.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("it listens");
    }

    /// What it says next.
    pub async fn line(&mut self) -> String {
        let line = soon("a line from the child", self.lines.recv()).await;
        line.expect("the child lives")
    }

    /// The token with which user `id` entered, which must be what it says next.
    pub async fn entered(&mut self, id: usize) -> u64 {
        self.answer(id).await.unwrap_or_else(|line| panic!("{line}"))
    }

    /// What it says next, of user `id`: the token with which the user entered, or the line that says why not.
    pub async fn answer(&mut self, id: usize) -> Result<u64, String> {
        let line = self.line().await;
        let words: Vec<_> = line.split(' ').collect();
        assert_eq!(words[1], id.to_string(), "{line}");
        match words[0] {
            "entered" => Ok(words[2].parse().expect("a token")),
            _ => Err(line),
        }
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().expect("it was alive");
        self.child.wait().expect("our own child");
    }

    /// SIGSTOP.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("our own child");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Who is inside, as the users themselves keep it, and the resource that they fence: on the lock's server, but under
/// keys of their own.
#[derive(Clone)]
pub struct Resource {
    redis: MultiplexedConnection,
    key: String,
}

impl Resource {
    pub fn new(redis: MultiplexedConnection, lock: &str) -> Self {
        let key = format!("resource:{lock}");
        Self { redis, key }
    }

    /// Notes an entry; says whether nobody is inside who conflicts.
    pub async fn enter(&mut self, mode: char) -> bool {
        let (readers, writers): (i64, i64) = redis::pipe()
            .atomic()
            .hincr(&self.key, "r", i64::from(mode == 'r'))
            .hincr(&self.key, "w", i64::from(mode == 'w'))
            .query_async(&mut self.redis)
            .await
            .expect("the server answers");
        writers == 0 || (writers == 1 && readers == 0)
    }

    pub async fn leave(&mut self, mode: char) {
        redis::cmd("HINCRBY")
            .arg(&self.key)
            .arg(mode.to_string())
            .arg(-1)
            .exec_async(&mut self.redis)
            .await
            .expect("the server answers");
    }

    /// A write, which is refused if a greater token has been here.
    pub async fn store(&mut self, token: u64) -> bool {
        // Tokens fit a double.
        let script = "if tonumber(redis.call('HGET', KEYS[1], 'token') or 0) > tonumber(ARGV[1]) then return 0 end \
                      redis.call('HSET', KEYS[1], 'token', ARGV[1]) return 1";
        redis::cmd("EVAL")
            .arg(script)
            .arg(1)
            .arg(&self.key)
            .arg(token)
            .query_async(&mut self.redis)
            .await
            .expect("the server answers")
    }
}

fn say(line: &str) {
    writeln!(std::io::stdout(), "{MARK}{line}").expect("the parent listens");
}

/// What the test `child` of a binary does. In a child that [`Process::start`] started, it obeys until its pipe is closed;
/// elsewhere nothing.
pub fn child() {
    let Ok(parameters) = std::env::var(VARIABLE) else {
        return;
    };
    let mut words = parameters.split(' ');
    let mut word = || words.next().expect("a URL, a lease, and a URL");
    let (url, lease_ms, resources) = (word(), word(), word());
    let lease = Duration::from_millis(lease_ms.parse().expect("a number"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(obey(url, resources, lease));
}

#[derive(Debug)]
enum Order {
    Held,
    Store,
    Release,
}

type Users = Arc<Mutex<HashMap<String, mpsc::UnboundedSender<(Order, oneshot::Sender<()>)>>>>;

/// Does what the parent says until its pipe is closed.
async fn obey(url: &str, resources: &str, lease: Duration) {
    let client = Client::builder()
        .lease(lease)
        .connect(url)
        .await
        .expect("the server is up");
    let redis = redis::Client::open(resources).expect("a URL");
    let redis = redis
        .get_multiplexed_async_connection_with_config(&patient())
        .await
        .expect("the server is up");
    let (read, mut lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = read.send(line);
        }
    });
    let users = Users::default();
    say("connected");
    while let Some(line) = lines.recv().await {
        let words: Vec<_> = line.split(' ').collect();
        let order = match words[0] {
            "ask" => {
                let user = User {
                    id: words[1].to_owned(),
                    hold: words[4].parse().ok().map(Duration::from_millis),
                    resource: Resource::new(redis.clone(), words[3]),
                    users: Arc::clone(&users),
                };
                let lock = client.rw_lock(words[3]);
                match words[2] {
                    "r" => drop(tokio::spawn(async move {
                        user.hold(lock.read().acquire_fair().await).await
                    })),
                    _ => drop(tokio::spawn(async move {
                        user.hold(lock.write().acquire_fair().await).await
                    })),
                }
                continue;
            }
            "held" => Order::Held,
            "store" => Order::Store,
            "release" => Order::Release,
            other => panic!("no such order: {other}"),
        };
        let (done, until_done) = oneshot::channel();
        let user = users.lock().unwrap().get(words[1]).cloned().expect("it has entered");
        user.send((order, done)).expect("it has not left");
        let _ = until_done.await;
    }
}

/// One user of a lock.
struct User {
    id: String,
    hold: Option<Duration>,
    resource: Resource,
    users: Users,
}

impl User {
    async fn hold<M: Access>(mut self, guard: Result<Guard<M>, fairlock::Error>) {
        let guard = match guard {
            Ok(guard) => guard,
            Err(error) => return say(&format!("failed {} {error}", self.id)),
        };
        let mode = if M::MODE == Mode::Write { 'w' } else { 'r' };
        let clear = if self.resource.enter(mode).await {
            "clear"
        } else {
            "conflict"
        };
        let (orders, mut inbox) = mpsc::unbounded_channel();
        self.users.lock().unwrap().insert(self.id.clone(), orders);
        let (token, owner) = (guard.fencing_token(), guard.owner());
        say(&format!("entered {} {token} {owner} {clear}", self.id));
        if let Some(hold) = self.hold {
            tokio::time::sleep(hold).await;
        }
        while self.hold.is_none() {
            let Some((order, _done)) = inbox.recv().await else {
                return;
            };
            match order {
                Order::Held => say(&format!("held {} {}", self.id, guard.is_held())),
                Order::Store => say(&format!(
                    "stored {} {}",
                    self.id,
                    self.resource.store(token.get()).await
                )),
                Order::Release => break,
            }
        }
        self.resource.leave(mode).await;
        let released = guard.release().await;
        say(&format!("released {} {}", self.id, released.is_ok()));
    }
}
