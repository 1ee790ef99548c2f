//! `fairlock top`

use crate::command::{BINARY, Cli, ended, piped, said};
use crate::scene::{client, pool, queue};
use fairlock_support::server::{Server, soon};
use std::process::Stdio;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

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
async fn reconnects_and_keeps_complaints_off_its_screen() {
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
