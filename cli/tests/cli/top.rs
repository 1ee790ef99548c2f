//! `fairlock top`

use crate::command::{BINARY, Cli, piped, said};
use crate::scene::{client, pool, queue, spoil};
use fairlock::Owner;
use fairlock_support::server::{PATIENCE, Server, eventually, soon};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

#[tokio::test]
async fn shows_a_frame_as_text_and_as_json() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (_, clients) = queue(&server, "invoice:42").await;
    let _reading = clients[1].rw_lock("catalog").read().acquire_fair().await.unwrap();
    let _pool = pool(&server, "gpu").await;
    let text = cli.says(&["top", "--once"]).await;
    let words = [
        "3 locks in use, 3 holds, 3 waiting",
        "QUEUE",
        "invoice:42",
        "write",
        "billing",
        "RW",
        "gpu",
        "3/4",
        "training",
        "catalog",
        "read",
        "mailing",
        "invoice:42: 1 hold",
        "2 waiting",
    ];
    assert!(said(&text, &words), "{text}");
    // Into a pipe as well.
    assert!(cli.says(&["top", "--size", "60x10"]).await.contains("invoice:42"));
    assert_eq!(cli.json(&["top"]).await[0]["waiters"][1]["client"]["label"], "auditing");
}

#[tokio::test]
async fn wide_characters_move_no_column() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let client = client(&server, "holder").await;
    let _wide = client.rw_lock("漢字").write().acquire_fair().await.unwrap();
    let text = cli.says(&["top", "--once"]).await;
    assert!(text.contains("漢字: 1 hold"), "{text}");
}

#[tokio::test]
async fn a_frame_has_the_locks_that_cannot_be_read_first() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (_, _clients) = queue(&server, "invoice:42").await;
    spoil(&server, "fairlock:{text}").await;
    let frame = cli.run(&["top", "--once", "--size", "160x30"]).await;
    let words = [
        "1 lock in use, 1 hold, 2 waiting, 1 not readable",
        "\ntext",
        "error",
        "the server refuses to work",
        "\ninvoice:42",
        "text: error",
        "WRONGTYPE",
    ];
    assert!(said(&frame.stdout, &words), "{frame:?}");
    assert_eq!(frame.status, 69, "{frame:?}");
    let programs = cli.run(&["top", "--json"]).await;
    let locks: serde_json::Value = serde_json::from_str(&programs.stdout).unwrap();
    assert_eq!((programs.status, &locks[0]["lock"]), (69, &"text".into()), "{locks}");
    assert!(locks[0]["error"].as_str().unwrap().contains("WRONGTYPE"), "{locks}");
    assert_eq!(locks[1]["waiters"][1]["client"]["label"], "auditing");
}

/// A `top` on a terminal of its own.
#[cfg(target_os = "linux")]
struct Live {
    child: Child,
    output: ChildStdout,
    keys: ChildStdin,
    terminal: vt100::Parser,
}

#[cfg(target_os = "linux")]
impl Live {
    /// What it says beside its screen goes to that file.
    fn start(cli: &Cli, size: (u16, u16), aside: &Path) -> Self {
        let top = "exec \"$FAIRLOCK\" top --interval 50ms 2>\"$ASIDE\"";
        Self::of_shell(cli, size, aside, top)
    }

    /// A `top` that a shell starts.
    fn of_shell(cli: &Cli, (columns, lines): (u16, u16), aside: &Path, shell: &str) -> Self {
        let command = format!("stty cols {columns} rows {lines}; {shell}");
        let mut script = Command::new("script");
        script.args(["-q", "-e", "-c", &command, "/dev/null"]);
        let mut script = piped(script);
        script
            .env("FAIRLOCK", BINARY)
            .env("REDIS_URL", &cli.url)
            .env("ASIDE", aside);
        // Its end would be that of the terminal.
        let mut child = script
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            output: child.stdout.take().unwrap(),
            keys: child.stdin.take().unwrap(),
            terminal: vt100::Parser::new(lines, columns, 0),
            child,
        }
    }

    /// Reads on until the screen is so.
    async fn is(&mut self, what: &str, so: impl Fn(&vt100::Screen) -> bool) {
        let becomes_so = async {
            while !so(self.terminal.screen()) {
                let mut bytes = [0; 4096];
                let read = self.output.read(&mut bytes).await.unwrap();
                assert!(read > 0, "it ended before {what}:\n{}", self.screen());
                self.terminal.process(&bytes[..read]);
            }
        };
        if tokio::time::timeout(PATIENCE, becomes_so).await.is_err() {
            panic!("it never showed {what}:\n{}", self.screen());
        }
    }

    async fn shows(&mut self, text: &str) {
        self.is(text, |screen| screen.contents().contains(text)).await;
    }

    async fn hides(&mut self, text: &str) {
        self.is(&format!("a screen without {text}"), |screen| {
            !screen.contents().contains(text)
        })
        .await;
    }

    async fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).await.unwrap();
    }

    fn screen(&self) -> String {
        self.terminal.screen().contents()
    }

    async fn quit(mut self) -> i32 {
        self.press("q").await;
        // Its last words go to the terminal, which must still be there.
        let ends = async {
            self.output.read_to_end(&mut Vec::new()).await.unwrap();
            self.child.wait().await.unwrap()
        };
        soon("the end", ends).await.code().unwrap()
    }
}

#[cfg(target_os = "linux")]
const ESCAPE: &str = "\u{1b}";

#[cfg(target_os = "linux")]
#[tokio::test]
async fn reconnects_and_keeps_complaints_off_its_screen() {
    let mut server = Server::start().await;
    let cli = Cli::of(&server);
    let aside = server.dir().join("aside");
    let before = client(&server, "b").await;
    let guard = before.rw_lock("first").write().acquire_fair().await.unwrap();
    let mut top = Live::start(&cli, (100, 28), &aside);
    top.shows("first").await;
    drop(guard);
    server.kill();
    let red = vt100::Color::Idx(1);
    let is_red = |screen: &vt100::Screen| screen.cell(1, 0).is_some_and(|cell| cell.fgcolor() == red);
    top.is("its trouble", is_red).await;
    server.start_again().await;
    let after = client(&server, "a").await;
    let _guard = after.rw_lock("second").write().acquire_fair().await.unwrap();
    top.shows("second").await;
    let mut redis = server.redis().await;
    let set: Result<(), _> = redis::cmd("HSET")
        .arg(b"fairlock:{\xff}")
        .arg("a")
        .arg("b")
        .query_async(&mut redis)
        .await;
    set.unwrap();
    top.shows("UTF-8").await;
    spoil(&server, "fairlock:{text}").await;
    top.shows("text: error").await;
    top.press("\r").await;
    top.shows("the server refuses to work on lock \"text\"").await;
    assert_eq!(top.quit().await, 0);
    assert_eq!(std::fs::read_to_string(aside).unwrap(), "");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_quorums_server_that_was_away_at_the_start_is_shown_as_away_and_appears_once_it_is_back() {
    let mut servers = crate::quorum::fleet(3).await;
    let holding = crate::quorum::quorum(&servers, "holding").await;
    let _guard = holding.rw_lock("a").write().acquire_fair().await.unwrap();
    let cli = Cli::of_all(&servers);
    let owner = cli.owner_of("a").await;
    servers[2].kill();
    let mut top = Live::start(&cli, (160, 28), &servers[0].dir().join("aside"));
    let away = format!("no server answers at {}", servers[2].url());
    top.shows(&away).await;
    top.shows("at 2 of 3 servers").await;
    top.press("\r").await;
    top.is("the opened lock, and who is away", |screen| {
        let contents = screen.contents();
        contents.contains(&owner) && contents.contains(&away)
    })
    .await;
    servers[2].start_again().await;
    top.shows("a: write, 1 hold").await;
    top.hides(&away).await;
    top.press(ESCAPE).await;
    top.shows("1 lock in use, 1 hold").await;
    assert_eq!(top.quit().await, 0);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn filters_sorts_and_explains_its_keys() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (_, clients) = queue(&server, "invoice:42").await;
    let _reading = clients[1].rw_lock("catalog").read().acquire_fair().await.unwrap();
    let mut top = Live::start(&cli, (80, 24), &server.dir().join("aside"));
    top.shows("by waiting").await;
    let line = |screen: &vt100::Screen, at: u16| screen.rows(0, 80).nth(at.into()).unwrap();
    top.is("the busiest lock first", |screen| {
        line(screen, 3).contains("invoice:42")
    })
    .await;
    top.press("sss").await;
    top.is("the names in order", |screen| line(screen, 3).contains("catalog"))
        .await;
    top.press("r").await;
    top.is("the reverse", |screen| line(screen, 3).contains("invoice:42"))
        .await;
    // A name, a label, nothing; then a filter that is not kept.
    for (typed, shown, hidden) in [("CATA", "catalog", "invoice"), ("auditing", "invoice", "catalog")] {
        top.press(&format!("/{typed}\r")).await;
        top.shows(&format!("with {typed}: 1")).await;
        top.is("the filtered lock", |screen| line(screen, 3).contains(shown))
            .await;
        assert!(!line(top.terminal.screen(), 4).contains(hidden));
        top.press(ESCAPE).await;
        top.hides("with ").await;
    }
    top.press("/zzz").await;
    top.shows("with zzz: 0").await;
    top.press(ESCAPE).await;
    top.hides("with ").await;
    top.press("?").await;
    top.shows("evict the owner of the selected request").await;
    top.press("x").await;
    top.hides("evict the owner of the selected request").await;
    top.press(" ").await;
    top.shows("paused").await;
    assert_eq!(top.quit().await, 0);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn opens_a_lock_follows_its_events_and_evicts_after_a_question() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (owner, clients) = queue(&server, "invoice:42").await;
    let owner = owner.to_string();
    let mut top = Live::start(&cli, (80, 24), &server.dir().join("aside"));
    top.shows("invoice:42").await;
    top.press("\r").await;
    top.shows("invoice:42: write, 1 hold, 2 waiting, fifo").await;
    // Whole, although the screen is narrow.
    top.shows(&owner).await;
    top.shows("billing").await;
    let newcomer = client(&server, "newcomer").await;
    // The watcher is heard of by and by.
    let comes = async {
        loop {
            let tried = newcomer.rw_lock("invoice:42").write();
            drop(tried.try_acquire_for(Duration::from_millis(20)).await.unwrap());
        }
    };
    tokio::select! {
        () = top.shows("queued    write") => {}
        () = comes => {}
    }
    top.press("o").await;
    top.shows(&format!("copied {owner}")).await;
    top.press("e").await;
    top.shows(&format!("owner {owner}? y/n")).await;
    top.press("n").await;
    top.shows("nothing was evicted").await;
    top.shows(&owner).await;
    top.press("e").await;
    top.shows("? y/n").await;
    top.press("y").await;
    top.shows(&format!("evicted {owner}: 1 request")).await;
    top.shows("evicted   write").await;
    top.shows("invoice:42: read, 1 hold, 1 waiting, fifo").await;
    top.press(ESCAPE).await;
    top.shows("HELD BY").await;
    assert_eq!(top.quit().await, 0);
    drop(clients);
}

/// The text that a shell has written into a file, once it is there.
#[cfg(target_os = "linux")]
async fn written(file: &Path) -> String {
    eventually("the shell has written it", async || {
        std::fs::read_to_string(file).is_ok_and(|text| text.ends_with('\n'))
    })
    .await;
    std::fs::read_to_string(file).unwrap()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn it_ends_without_a_panic_when_its_terminal_goes_away() {
    let server = Server::start().await;
    let status = server.dir().join("status");
    // Its stderr is the terminal too. The shell gets HUP and goes on.
    let shell = "trap : HUP; \"$FAIRLOCK\" top --interval 50ms; echo $? >\"$ASIDE\"";
    let mut top = Live::of_shell(&Cli::of(&server), (80, 24), &status, shell);
    top.shows("0 locks in use").await;
    top.child.start_kill().unwrap();
    top.child.wait().await.unwrap();
    let status = written(&status).await;
    assert!(["0\n", "70\n", "129\n"].contains(&status.as_str()), "{status}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_signal_to_quit_leaves_the_terminal_as_it_was() {
    let server = Server::start().await;
    let (pid, terminal) = (server.dir().join("pid"), server.dir().join("terminal"));
    // Who starts the tests in the background may have them ignore QUIT.
    let shell = "sh -c 'echo $$ >\"$0\"; exec env --default-signal=QUIT \"$FAIRLOCK\" top' \"${ASIDE%/*}/pid\"; \
                 echo $? >\"$ASIDE\"; stty -a >>\"$ASIDE\"";
    let mut top = Live::of_shell(&Cli::of(&server), (80, 24), &terminal, shell);
    top.shows("0 locks in use").await;
    let pid = Pid::from_raw(written(&pid).await.trim().parse().unwrap()).unwrap();
    kill_process(pid, Signal::QUIT).unwrap();
    let ends = async {
        top.output.read_to_end(&mut Vec::new()).await.unwrap();
        top.child.wait().await.unwrap();
    };
    soon("the end", ends).await;
    let terminal = written(&terminal).await;
    assert!(terminal.starts_with("131\n"), "{terminal}");
    assert!(
        terminal.contains(" icanon ") && terminal.contains(" echo "),
        "{terminal}"
    );
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn thousands_of_locks_are_walked_through_on_a_great_screen() {
    const LOCKS: usize = 5000;
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let client = client(&server, "holder").await;
    let holds = (0..LOCKS).map(|number| {
        let lock = client.rw_lock(format!("lock-{number:04}"));
        async move { lock.write().acquire_fair().await.unwrap() }
    });
    let _guards = futures::future::join_all(holds).await;
    let mut top = Live::start(&cli, (200, 50), &server.dir().join("aside"));
    top.shows("5000 locks in use, 5000 holds, 0 waiting").await;
    top.press("G").await;
    top.shows("lock-4999: 1 hold").await;
    top.press("k").await;
    top.shows("lock-4998: 1 hold").await;
    top.press("g").await;
    top.shows("lock-0000: 1 hold").await;
    top.press("\u{1b}[6~").await;
    top.hides("lock-0000: 1 hold").await;
    top.press("/4321\r").await;
    top.shows("with 4321: 1").await;
    top.press("\r").await;
    top.shows("lock-4321: write, 1 hold, 0 waiting").await;
    // As wide as this the screen has room for the token.
    let token = _guards[4321].fencing_token().to_string();
    top.shows(&token).await;
    assert_eq!(top.quit().await, 0);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn each_request_can_be_selected_also_where_an_owner_has_several() {
    let server = Server::start().await;
    let (twice, once) = (Owner::new(), Owner::new());
    let client = client(&server, "reading").await;
    let mut guards = Vec::new();
    for owner in [&twice, &twice, &once] {
        let lock = client.rw_lock("a").with_owner(owner);
        guards.push(lock.read().acquire_fair().await.unwrap());
    }
    let shown = Cli::of(&server).json(&["show", "a"]).await;
    let order = shown["holders"].as_array().unwrap().iter();
    let mut top = Live::start(&Cli::of(&server), (160, 24), &server.dir().join("aside"));
    top.shows("a: 3 holds").await;
    top.press("\r").await;
    top.shows("a: read, 3 holds").await;
    for (at, holder) in order.enumerate() {
        if at > 0 {
            top.press("j").await;
        }
        top.press("e").await;
        top.shows(&format!("owner {}? y/n", holder["owner"].as_str().unwrap()))
            .await;
        top.press("n").await;
        top.shows("nothing was evicted").await;
        top.press("o").await;
        top.shows("copied").await;
    }
    assert_eq!(top.quit().await, 0);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn at_a_replica_an_opened_lock_says_that_there_are_no_events() {
    let (_master, replica) = crate::replica::pair().await;
    let mut top = Live::start(&Cli::of(&replica), (120, 24), &replica.dir().join("aside"));
    top.shows("a: 1 hold").await;
    top.press("\r").await;
    top.shows("a: write, 1 hold").await;
    top.shows("a replica brings no events").await;
    assert_eq!(top.quit().await, 0);
}
