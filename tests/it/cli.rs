//! The command `fairlock`: what it shows of locks and servers, to people and to programs.

use crate::server::{Server, connected, eventually, free_port, soon};
use fairlock::{Access, Acquire, Client, Owner};
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

const BINARY: &str = env!("CARGO_BIN_EXE_fairlock");
/// So long that nothing expires in a test.
const LONG: Duration = Duration::from_secs(600);
const HOSTILE: &str = "evil\u{1b}[2J\r\nname\u{202e}}{%7D";

/// The command, for one server.
pub struct Cli {
    url: String,
}

/// What a run of it left.
#[derive(Debug)]
pub struct Ended {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Cli {
    pub fn of(server: &Server) -> Self {
        Self { url: server.url() }
    }

    #[allow(dead_code, reason = "for tests of the feature `tls-rustls`")]
    pub fn at(url: String) -> Self {
        Self { url }
    }

    /// Without a terminal, whoever runs the tests: what it does depends on that.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("setsid");
        command.args([BINARY, "--url", &self.url]).args(arguments);
        piped(command)
    }

    /// A shell script, whose `$0` is the command and `$1` the URL.
    pub fn under_shell(&self, script: &str) -> Command {
        let mut command = Command::new("setsid");
        command.args(["sh", "-c", script, BINARY, &self.url]);
        piped(command)
    }

    pub async fn run(&self, arguments: &[&str]) -> Ended {
        ended(self.command(arguments).spawn().expect("it starts")).await
    }

    /// What it says, if it ends well.
    pub async fn says(&self, arguments: &[&str]) -> String {
        let ended = self.run(arguments).await;
        assert_eq!(ended.status, 0, "{arguments:?}: {ended:?}");
        ended.stdout
    }

    pub async fn json(&self, arguments: &[&str]) -> Value {
        let text = self.says(&[arguments, &["--json"]].concat()).await;
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// The first owner that holds a lock.
    pub async fn owner_of(&self, lock: &str) -> String {
        let status = self.json(&["show", lock]).await;
        status["holders"][0]["owner"].as_str().expect("an owner").to_owned()
    }
}

fn piped(mut command: Command) -> Command {
    command
        .env_remove("REDIS_URL")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Waits for its end.
pub async fn ended(child: Child) -> Ended {
    let output = soon("the command's end", child.wait_with_output()).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let ended = Ended {
        status: output.status.code().unwrap_or(-1),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    };
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
    ended
}

/// All of these, in this order.
pub fn said(text: &str, words: &[&str]) -> bool {
    let mut rest = text;
    words.iter().all(|word| match rest.split_once(word) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

async fn client(server: &Server, label: &str) -> Client {
    connected(Client::builder().label(label).lease(LONG), server.url()).await
}

/// Waits for a lock and holds it until the test's runtime ends.
fn stay<M: Access>(request: Acquire<M>) {
    tokio::spawn(async move {
        let guard = request.acquire_fair().await;
        std::future::pending::<()>().await;
        drop(guard);
    });
}

/// `billing` holds the lock; `mailing` waits to read, then `auditing` to write.
async fn queue(server: &Server, lock: &str) -> (Owner, Vec<Client>) {
    let billing = client(server, "billing").await;
    let mailing = client(server, "mailing").await;
    let auditing = client(server, "auditing").await;
    let guard = billing.rw_lock(lock).write().acquire_fair().await.unwrap();
    // Not by its key: the name may be written in another way there.
    let queued = async |n: usize| billing.rw_lock(lock).status().await.unwrap().waiting == n;
    stay(mailing.rw_lock(lock).read());
    eventually("the reader is queued", async || queued(1).await).await;
    stay(auditing.rw_lock(lock).write());
    eventually("the writer is queued", async || queued(2).await).await;
    let owner = guard.owner();
    tokio::spawn(async move { guard.lost().await });
    (owner, vec![billing, mailing, auditing])
}

#[tokio::test]
async fn ls_lists_locks_in_use_the_busiest_first() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let nothing = cli.run(&["ls"]).await;
    assert_eq!((nothing.status, nothing.stdout.as_str()), (0, ""), "{nothing:?}");
    assert_eq!(cli.json(&["ls"]).await, serde_json::json!([]));

    let (_, clients) = queue(&server, "invoice:42").await;
    let reading = clients[0].rw_lock("catalog").read();
    let _reading = reading.acquire_fair().await.unwrap();
    let free = clients[0].rw_lock("free").write().acquire_fair().await.unwrap();
    free.release().await.unwrap();
    let text = cli.says(&["ls"]).await;
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(
        said(lines[0], &["LOCK", "MODE", "HOLDING", "WAITING", "HELD BY"]),
        "{text}"
    );
    assert!(
        said(lines[1], &["invoice:42 ", "write ", "1 ", "2 ", "billing "]),
        "{text}"
    );
    assert!(said(lines[2], &["catalog ", "read ", "1 ", "0 ", "billing "]), "{text}");
    assert!(cli.says(&["ls", "--all"]).await.contains("free"));
    assert!(!cli.says(&["ls", "invoice:*"]).await.contains("catalog"));

    let locks = cli.json(&["ls"]).await;
    assert_eq!(locks[0]["lock"], "invoice:42");
    assert_eq!((&locks[0]["holding"], &locks[0]["waiting"]), (&1.into(), &2.into()));
    assert_eq!(locks[0]["holder"]["client"]["label"], "billing");
    assert_eq!(locks[1]["longest_wait_ms"], Value::Null);
}

#[tokio::test]
async fn ls_names_the_oldest_of_several_holders_to_people_and_programs() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let old = client(&server, "old").await;
    let held = old.rw_lock("a").read().acquire_fair().await.unwrap();
    // The server's clock has to go on.
    let held_for = async || old.rw_lock("a").status().await.unwrap().holders[0].held_for;
    eventually("time passes", async || held_for().await > Duration::ZERO).await;
    // Its lease ends first: so it comes first in the status.
    let young = connected(Client::builder().label("young").lease(LONG / 2), server.url()).await;
    let _guard = young.rw_lock("a").read().acquire_fair().await.unwrap();
    let status = old.rw_lock("a").status().await.unwrap();
    assert_eq!(status.holders[0].client.label.as_deref(), Some("young"));
    assert_eq!(cli.json(&["ls"]).await[0]["holder"]["client"]["label"], "old");
    assert!(cli.says(&["ls"]).await.contains(" old "));
    drop(held);
}

#[tokio::test]
async fn ls_sees_other_prefixes_only_when_told_to() {
    let server = Server::start().await;
    let builder = Client::builder().prefix("o[t]*her").lease(LONG);
    let client = connected(builder, server.url()).await;
    let _guard = client.rw_lock("a").write().acquire_fair().await.unwrap();
    let cli = Cli::of(&server);
    assert_eq!(cli.says(&["ls"]).await, "");
    assert!(cli.says(&["ls", "--prefix", "o[t]*her"]).await.contains("a "));
    assert_eq!(cli.says(&["ls", "--prefix", "*"]).await, "");
}

#[tokio::test]
async fn hostile_names_are_found_and_printed_without_anything_that_a_terminal_acts_on() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (owner, _clients) = queue(&server, HOSTILE).await;
    let mut redis = server.redis().await;
    let not_utf8 = b"fairlock:{\xff\x1b[2J}";
    let set: Result<(), _> = redis::cmd("HSET")
        .arg(not_utf8)
        .arg("a")
        .arg("b")
        .query_async(&mut redis)
        .await;
    set.unwrap();
    assert_eq!(cli.json(&["ls"]).await[0]["lock"], HOSTILE);
    let owner = owner.to_string();
    for arguments in [
        &["ls"][..],
        &["show", HOSTILE],
        &["blockers", "mailing"],
        &["top", "--once"],
        &["evict", HOSTILE, &owner, "--yes"],
        &["evict", HOSTILE, &owner, "--yes"],
        &["evict", HOSTILE, HOSTILE],
        &["blockers", HOSTILE],
        &["show", ""],
        &["man", HOSTILE],
    ] {
        let ended = cli.run(arguments).await;
        for text in [&ended.stdout, &ended.stderr] {
            let acted_on = |c: char| c != '\n' && c.is_control() || c == '\u{202e}';
            assert!(!text.contains(acted_on), "{arguments:?}: {ended:?}");
        }
    }
    let listed = cli.run(&["ls"]).await;
    assert!(said(&listed.stderr, &["not UTF-8", "\\xff"]), "{listed:?}");
}

#[tokio::test]
async fn show_tells_who_holds_and_who_waits_in_order() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (owner, _clients) = queue(&server, "a").await;
    let (owner, process) = (owner.to_string(), std::process::id().to_string());
    let text = cli.says(&["show", "a"]).await;
    let words = [
        "a: held to write, 1 hold, 2 waiting, fifo",
        "OWNER",
        &owner,
        "write",
        "billing",
        &process,
        "Waiting",
        "read",
        "mailing",
        "write",
        "auditing",
    ];
    assert!(said(&text, &words), "{text}");
    let status = cli.json(&["show", "a"]).await;
    assert_eq!((&status["mode"], &status["policy"]), (&"write".into(), &"fifo".into()));
    assert_eq!(status["holders"][0]["owner"], owner);
    assert!(status["holders"][0]["token"].as_u64().is_some_and(|token| token > 0));
    assert_eq!(status["waiters"][1]["client"]["label"], "auditing");
    assert_eq!(status["waiters"][1]["position"], 1);
}

#[tokio::test]
async fn blockers_leads_from_who_is_stuck_to_who_is_to_blame() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (owner, clients) = queue(&server, "a").await;
    let text = cli.says(&["blockers", "auditing"]).await;
    let owner_text = owner.to_string();
    let words = [
        "auditing waits for a, position 1",
        &owner_text,
        "billing",
        "1 request ahead",
        "mailing",
    ];
    assert!(said(&text, &words), "{text}");
    let found = cli.json(&["blockers", "auditing"]).await;
    let wait = &found["waits"][0];
    assert_eq!(
        (&wait["lock"], &wait["places"][0]["position"]),
        (&"a".into(), &1.into())
    );
    assert_eq!(wait["holders"][0]["owner"], owner_text);
    assert_eq!(wait["ahead"][0]["client"]["label"], "mailing");
    // By the owner itself, in any case.
    let waiting = wait["places"][0]["owner"].as_str().unwrap().to_uppercase();
    assert!(cli.says(&["blockers", &waiting]).await.contains("billing"));

    let nobody = cli.run(&["blockers", "billing"]).await;
    assert_eq!(nobody.status, 1);
    assert!(
        said(&nobody.stderr, &["billing waits for nothing", "holds a"]),
        "{nobody:?}"
    );

    // The holder waits for another lock; and then its holder for what the one who asks holds.
    let blamed = client(&server, "blamed").await;
    let _guard = blamed.rw_lock("b").write().acquire_fair().await.unwrap();
    tokio::spawn(clients[0].rw_lock("b").write().acquire_fair());
    server.until_queued("b", 1).await;
    let text = cli.says(&["blockers", "auditing"]).await;
    assert!(
        said(&text, &["for a", "billing", "holds a", "for b", "blamed"]),
        "{text}"
    );
    assert!(!text.contains("circle"), "{text}");
    let _held = clients[2].rw_lock("c").write().acquire_fair().await.unwrap();
    tokio::spawn(blamed.rw_lock("c").write().acquire_fair());
    server.until_queued("c", 1).await;
    let text = cli.says(&["blockers", "auditing"]).await;
    assert!(said(&text, &["for b", "for c", "circle"]), "{text}");
}

#[tokio::test]
async fn blockers_sees_no_circle_in_a_reader_that_waits_to_write() {
    let server = Server::start().await;
    let (upgrading, reading) = (client(&server, "upgrading").await, client(&server, "reading").await);
    let _read = reading.rw_lock("a").read().acquire_fair().await.unwrap();
    let guard = upgrading.rw_lock("a").read().acquire_fair().await.unwrap();
    let write = tokio::spawn(async move { guard.upgrade().await.map(drop) });
    server.until_queued("a", 1).await;
    let found = Cli::of(&server).json(&["blockers", "upgrading"]).await;
    let wait = &found["waits"][0];
    assert_eq!(wait["closes_circle"], false, "{found}");
    assert_eq!(wait["holders"].as_array().unwrap().len(), 2, "{found}");
    write.abort();
}

#[tokio::test]
async fn evict_throws_out_whom_it_is_told_to_and_asks_first() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (owner, _clients) = queue(&server, "a").await;
    let owner = owner.to_string();
    let unasked = cli.run(&["evict", "a", &owner]).await;
    assert_eq!(unasked.status, 64);
    assert!(unasked.stderr.contains("--yes"), "{unasked:?}");
    assert_eq!(cli.owner_of("a").await, owner);
    assert_eq!(cli.run(&["evict", "a", "billing", "--yes"]).await.status, 64);

    let evicted = cli.json(&["evict", "a", &owner, "--yes"]).await;
    assert_eq!(evicted["evicted"], 1);
    let status = cli.json(&["show", "a"]).await;
    assert_eq!(status["holders"][0]["client"]["label"], "mailing");
    let again = cli.run(&["evict", "a", &owner, "--yes"]).await;
    assert_eq!(again.status, 1);
    assert!(again.stderr.contains("neither holds"), "{again:?}");
    let reader = cli.owner_of("a").await;
    assert!(cli.says(&["evict", "-y", "a", &reader]).await.contains("1 request"));
}

#[tokio::test]
async fn watch_prints_events_as_they_come_until_it_is_interrupted() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let client = client(&server, "watched").await;
    for (arguments, json) in [(&["watch", "a"][..], false), (&["watch", "--json"], true)] {
        let mut child = cli.command(arguments).spawn().unwrap();
        let mut ready = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = soon("it listens", ready.next_line()).await.unwrap().unwrap();
        assert!(line.contains("watching"), "{line}");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Its announcement may reach the client a moment later, also between a grant and the release.
        let mut tokens = Vec::new();
        let granted = loop {
            let guard = client.rw_lock("a").write().acquire_fair().await.unwrap();
            tokens.push(guard.fencing_token().to_string());
            guard.release().await.unwrap();
            let line = tokio::time::timeout(Duration::from_millis(200), lines.next_line());
            let Ok(line) = line.await else { continue };
            let line = line.unwrap().unwrap();
            if !line.contains("released") {
                // The line may be late, and a later grant have been made meanwhile.
                assert!(tokens.iter().any(|token| line.contains(token)), "{line}");
                break line;
            }
        };
        if json {
            let event: Value = serde_json::from_str(&granted).unwrap();
            assert_eq!(
                (&event["event"], &event["mode"], &event["lock"]),
                (&"granted".into(), &"write".into(), &"a".into())
            );
        } else {
            assert!(
                said(&granted, &["granted", "write", "a", "owner", "token"]),
                "{granted}"
            );
        }
        let next = soon("the release", lines.next_line()).await.unwrap().unwrap();
        assert!(next.contains("released"), "{next} after {granted}");
        let pid = rustix::process::Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let mut rest = String::new();
        soon("the end", lines.get_mut().read_to_string(&mut rest))
            .await
            .unwrap();
        assert_eq!(ended(child).await.status, 130);
    }
}

#[tokio::test]
async fn watch_fails_when_the_server_refuses_to_bring_further_events() {
    let server = Server::start().await;
    let cli = Cli {
        url: format!("redis://app:s3cret@127.0.0.1:{}", server.port()),
    };
    let mut redis = server.redis().await;
    let mut channels = async |rules: &[&str]| {
        let mut command = redis::cmd("ACL");
        command.arg(&["SETUSER", "app", "on", ">s3cret", "~fairlock:*", "+@all"]);
        let set: Result<(), _> = command.arg(rules).query_async(&mut redis).await;
        set.unwrap();
    };
    channels(&["resetchannels", "&fairlock:*", "&fairlock:{*}:events"]).await;
    let mut child = cli.command(&["watch"]).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut said_first = String::new();
    soon("it listens", stderr.read_line(&mut said_first)).await.unwrap();
    assert!(said_first.contains("watching all locks"), "{said_first}");
    // The server ends the connections that use what is not allowed any more.
    channels(&["resetchannels", "&fairlock:*"]).await;
    let ended = ended(child).await;
    let mut text = String::new();
    stderr.read_to_string(&mut text).await.unwrap();
    assert_eq!(ended.status, 69, "{text}");
    assert!(said(&text, &["no more", "refused", "channels"]), "{text}");
}

#[tokio::test]
async fn top_shows_a_frame_as_text_as_a_picture_and_as_json() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (_, clients) = queue(&server, "invoice:42").await;
    let _reading = clients[1].rw_lock("catalog").read().acquire_fair().await.unwrap();
    let text = cli.says(&["top", "--once"]).await;
    let words = [
        "2 locks in use, 2 holds, 2 waiting",
        "QUEUE",
        "invoice:42",
        "write",
        "billing",
        "RW",
        "catalog",
        "read",
        "mailing",
        "invoice:42: 1 hold",
        "2 waiting",
    ];
    assert!(said(&text, &words), "{text}");
    // Into a pipe as well.
    assert!(cli.says(&["top", "--size", "60x10"]).await.contains("invoice:42"));
    let picture = server.dir().join("top.svg");
    assert_eq!(cli.says(&["top", "--svg", picture.to_str().unwrap()]).await, "");
    let picture = std::fs::read_to_string(picture).unwrap();
    assert!(said(&picture, &["<svg ", "invoice:42", "</svg>"]), "{picture}");
    assert_eq!(cli.says(&["top", "--svg", "-"]).await.matches("<svg ").count(), 1);
    assert_eq!(cli.json(&["top"]).await[0]["waiters"][1]["client"]["label"], "auditing");
}

#[tokio::test]
async fn wide_characters_move_no_column_of_top() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let client = client(&server, "holder").await;
    let _wide = client.rw_lock("漢字").write().acquire_fair().await.unwrap();
    let text = cli.says(&["top", "--once"]).await;
    assert!(text.contains("漢字: 1 hold"), "{text}");
    let picture = cli.says(&["top", "--svg", "-"]).await;
    assert!(picture.contains("漢字: 1 hold"), "{picture}");
}

#[cfg(target_os = "linux")]
/// A `top` on a terminal of its own.
struct Live {
    child: Child,
    screen: tokio::process::ChildStdout,
    seen: String,
}

#[cfg(target_os = "linux")]
impl Live {
    /// What it says beside its screen goes to that file.
    fn start(cli: &Cli, aside: &std::path::Path) -> Self {
        let command = "stty cols 100 rows 28; exec \"$FAIRLOCK\" --url \"$URL\" top --interval 50ms 2>\"$ASIDE\"";
        let mut script = Command::new("script");
        script.args(["-q", "-e", "-c", command, "/dev/null"]);
        let mut script = piped(script);
        script.env("FAIRLOCK", BINARY).env("URL", &cli.url).env("ASIDE", aside);
        // Its end would be that of the terminal.
        let mut child = script
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let screen = child.stdout.take().unwrap();
        Self {
            child,
            screen,
            seen: String::new(),
        }
    }

    /// Reads on until it has drawn that, which must not share a letter with what was there before.
    async fn shows(&mut self, text: &str) {
        let shown = async {
            while !self.seen.contains(text) {
                let mut bytes = [0; 4096];
                let read = self.screen.read(&mut bytes).await.unwrap();
                assert!(read > 0, "it ended before it showed {text}: {}", self.seen);
                self.seen += &String::from_utf8_lossy(&bytes[..read]);
            }
        };
        soon(&format!("it shows {text}"), shown).await;
        self.seen.clear();
    }

    async fn quit(mut self) -> i32 {
        let mut keys = self.child.stdin.take().unwrap();
        keys.write_all(b"q").await.unwrap();
        ended(self.child).await.status
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn top_connects_again_and_keeps_complaints_off_its_screen() {
    let mut server = Server::start().await;
    let cli = Cli::of(&server);
    let aside = server.dir().join("aside");
    let before = client(&server, "b").await;
    let guard = before.rw_lock("qqqq").write().acquire_fair().await.unwrap();
    let mut top = Live::start(&cli, &aside);
    top.shows("qqqq").await;
    drop(guard);
    server.kill();
    // Red.
    top.shows("\u{1b}[38;5;1;49m").await;
    server.start_again().await;
    let after = client(&server, "a").await;
    let _guard = after.rw_lock("zzzz").write().acquire_fair().await.unwrap();
    top.shows("zzzz").await;
    let mut redis = server.redis().await;
    let set: Result<(), _> = redis::cmd("HSET")
        .arg(b"fairlock:{\xff}")
        .arg("a")
        .arg("b")
        .query_async(&mut redis)
        .await;
    set.unwrap();
    top.shows("UTF-8").await;
    assert_eq!(top.quit().await, 0);
    assert_eq!(std::fs::read_to_string(aside).unwrap(), "");
}

#[tokio::test]
async fn where_no_server_answers_every_command_says_how_to_start_one_and_no_password() {
    let cli = Cli {
        url: format!("redis://app:s3cret@127.0.0.1:{}/3?password=s3cret", free_port()),
    };
    for arguments in [
        &["run", "a", "--", "true"][..],
        &["ls"],
        &["show", "a"],
        &["watch"],
        &["top", "--once"],
        &["blockers", "a"],
        &["evict", "a", "00000000-0000-0000-0000-000000000000", "--yes"],
        &["doctor"],
    ] {
        let ended = cli.run(arguments).await;
        assert_eq!(
            (ended.status, ended.stdout.as_str()),
            (69, ""),
            "{arguments:?}: {ended:?}"
        );
        let words = [
            "no server answers at redis://app@127.0.0.1:",
            "/3",
            "redis-server --port",
            "docker run",
        ];
        assert!(said(&ended.stderr, &words), "{arguments:?}: {ended:?}");
        assert!(!ended.stderr.contains("s3cret"), "{arguments:?}: {ended:?}");
    }
    let ended = cli.run(&["run", "--unavailable-status", "4", "a", "--", "true"]).await;
    assert_eq!(ended.status, 4);
    let cli = Cli {
        url: "s3cret@nonsense".to_owned(),
    };
    let ended = cli.run(&["ls"]).await;
    assert_eq!(ended.status, 64, "{ended:?}");
    assert!(
        ended.stderr.contains("redis://") && !ended.stderr.contains("s3cret"),
        "{ended:?}"
    );
}

#[tokio::test]
async fn the_server_is_taken_from_the_environment_unless_it_is_given() {
    let server = Server::start().await;
    let _guard = client(&server, "holder")
        .await
        .rw_lock("a")
        .write()
        .acquire_fair()
        .await;
    let mut command = Command::new(BINARY);
    command.args(["show", "a"]);
    let mut command = piped(command);
    let ended = ended(command.env("REDIS_URL", server.url()).spawn().unwrap()).await;
    assert!(ended.stdout.starts_with("a: held"), "{ended:?}");
}

#[tokio::test]
async fn a_server_that_the_environment_names_in_other_bytes_than_utf8_is_not_guessed() {
    use std::os::unix::ffi::OsStrExt;
    let mut command = Command::new(BINARY);
    command.args(["show", "a"]);
    let url = std::ffi::OsStr::from_bytes(b"redis://127.0.0.1/\xff");
    let ended = ended(piped(command).env("REDIS_URL", url).spawn().unwrap()).await;
    assert_eq!(ended.status, 64, "{ended:?}");
    assert!(said(&ended.stderr, &["REDIS_URL", "not UTF-8"]), "{ended:?}");
}

#[tokio::test]
async fn a_closed_pipe_ends_it_quietly() {
    let server = Server::start().await;
    for arguments in [&["man"][..], &["completions", "bash"], &["--help"], &["ls", "--json"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = Cli::of(&server).command(arguments).stdout(writer).spawn().unwrap();
        let ended = ended(child).await;
        assert_eq!((ended.status, ended.stderr.as_str()), (141, ""), "{arguments:?}");
    }
}

#[tokio::test]
async fn pages_and_completions_know_every_command() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let commands = [
        "run",
        "ls",
        "show",
        "watch",
        "top",
        "blockers",
        "evict",
        "doctor",
        "completions",
        "man",
    ];
    let (page, help) = (cli.says(&["man"]).await, cli.says(&["--help"]).await);
    let script = cli.says(&["completions", "bash"]).await;
    assert!(
        said(
            &page,
            &[
                ".TH FAIRLOCK 1",
                ".SH NAME",
                ".SH SYNOPSIS",
                ".SH DESCRIPTION",
                "EXIT STATUS"
            ]
        ),
        "{page}"
    );
    for command in commands {
        assert!(page.contains(&format!("fairlock\\-{command}(1)")), "{page}");
        assert!(help.contains(&format!("\n  {command}")), "{help}");
        assert!(script.contains(command));
        let page = cli.says(&["man", command]).await;
        assert!(said(&page, &[".TH FAIRLOCK-", "fairlock\\-", "fairlock "]), "{page}");
        assert!(
            cli.says(&[command, "--help"])
                .await
                .lines()
                .all(|line| line.len() <= 100)
        );
    }
    assert!(cli.says(&["run", "--help"]).await.contains("FAIRLOCK_TOKEN"));
    assert_eq!(cli.run(&["man", "tea"]).await.status, 64);
}

#[tokio::test]
async fn doctor_finds_nothing_wrong_with_a_plain_server_and_leaves_nothing_behind() {
    let server = Server::start_with(&["--appendonly", "yes"]).await;
    let cli = Cli::of(&server);
    let text = cli.says(&["doctor"]).await;
    let about = [
        "server",
        "role",
        "eviction",
        "persistence",
        "latency",
        "clock",
        "rights",
        "pub/sub",
        "lock",
    ];
    assert!(said(&text, &about) && text.ends_with("Fit for locks.\n"), "{text}");
    let found = cli.json(&["doctor"]).await;
    assert_eq!(found["wrong"], 0, "{found}");
    assert_eq!(server.keys().await, [""; 0]);
    let forgotten = async || server_keys(&server).await == 0;
    eventually("its introduction is gone", forgotten).await;
}

async fn server_keys(server: &Server) -> u64 {
    let size = redis::cmd("DBSIZE").query_async(&mut server.redis().await).await;
    size.unwrap()
}

/// The findings of that level, as text.
async fn findings(cli: &Cli, level: &str) -> (i32, Vec<String>) {
    let ended = cli.run(&["doctor", "--json"]).await;
    let found: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"));
    let all = found["findings"].as_array().unwrap().iter();
    let findings = all.filter(|finding| finding["level"] == level).map(Value::to_string);
    (ended.status, findings.collect())
}

#[tokio::test]
async fn doctor_warns_of_a_policy_that_may_drop_locks() {
    let server = Server::start_with(&["--maxmemory", "100mb", "--maxmemory-policy", "volatile-ttl"]).await;
    let (status, wrong) = findings(&Cli::of(&server), "wrong").await;
    assert_eq!((status, wrong.len()), (1, 1), "{wrong:?}");
    assert!(
        said(&wrong[0], &["eviction", "noeviction", "volatile-ttl"]),
        "{wrong:?}"
    );
    let server = Server::start_with(&["--maxmemory-policy", "allkeys-lru"]).await;
    let (status, notes) = findings(&Cli::of(&server), "note").await;
    assert_eq!(status, 0, "there is no limit that it could reach");
    assert!(notes.iter().any(|note| note.contains("allkeys-lru")), "{notes:?}");
}

#[tokio::test]
async fn doctor_sends_who_asks_a_replica_to_its_master() {
    let master = Server::start().await;
    let replica = Server::start_with(&["--replicaof", "127.0.0.1", &master.port().to_string()]).await;
    let (status, wrong) = findings(&Cli::of(&replica), "wrong").await;
    assert_eq!(status, 1);
    assert!(
        wrong.iter().any(|text| said(text, &["role", "connect to its master"])),
        "{wrong:?}"
    );
}

#[tokio::test]
async fn doctor_names_the_rights_that_a_user_lacks() {
    let server = Server::start().await;
    let cli = Cli {
        url: format!("redis://app:s3cret@127.0.0.1:{}", server.port()),
    };
    let all = ["resetkeys", "resetchannels", "~fairlock:*", "&fairlock:*", "+@all"];
    for (rules, lacks) in [
        (&["-hset", "-zmscore"][..], &["+hset +zmscore"][..]),
        (&["-evalsha", "-eval"], &["+eval +evalsha"]),
        (&["resetkeys", "~other:*"], &["~fairlock:*"]),
        (&["resetchannels"], &["&fairlock:*"]),
        (&["-subscribe"], &["+subscribe"]),
        (
            &["-@all", "+ping", "+hello", "+info", "+client"],
            &["+del", "+hset", "+publish", "+zadd"],
        ),
    ] {
        let mut command = redis::cmd("ACL");
        command
            .arg("SETUSER")
            .arg("app")
            .arg("reset")
            .arg("on")
            .arg(">s3cret")
            .arg(&all)
            .arg(rules);
        let set: Result<(), _> = command.query_async(&mut server.redis().await).await;
        set.unwrap();
        let (status, wrong) = findings(&cli, "wrong").await;
        let wrong = wrong.join("\n");
        assert_eq!(status, 1, "{rules:?}: {wrong}");
        assert!(said(&wrong, lacks), "{rules:?}: {wrong}");
        assert!(!wrong.contains("s3cret"), "{wrong}");
    }
    // Less than all, but enough.
    let enough = "resetkeys resetchannels ~fairlock:* &fairlock:* -@all +@connection +@scripting +@pubsub +@hash \
                  +@sortedset +@set +@string +expire +pexpireat +exists +del +time";
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg("app").arg("reset").arg("on").arg(">s3cret");
    enough
        .split(' ')
        .filter(|rule| !rule.is_empty())
        .for_each(|rule| _ = command.arg(rule));
    let set: Result<(), _> = command.query_async(&mut server.redis().await).await;
    set.unwrap();
    let (status, wrong) = findings(&cli, "wrong").await;
    assert_eq!((status, wrong.len()), (0, 0), "{wrong:?}");
}
