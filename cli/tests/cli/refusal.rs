//! Servers with which no command works: none at all, and one that is no Redis; and which server is meant.

use crate::command::{BINARY, Cli, ended, piped, said};
use crate::scene::client;
use fairlock::Client;
use fairlock_support::server::{Server, free_port};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::process::Command;

const UNAVAILABLE: i32 = 69;

/// An HTTP server, as far as a client of Redis gets to know it.
async fn http_server() -> (u16, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let refusal = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
            let _ = stream.write_all(refusal).await;
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
        }
    });
    (port, serving)
}

#[tokio::test]
async fn an_http_server_is_not_taken_for_an_old_redis() {
    let (port, serving) = http_server().await;
    let url = format!("redis://127.0.0.1:{port}");
    let ended = Cli::at(url.clone()).run(&["ls"]).await;
    assert_eq!(ended.status, UNAVAILABLE, "{ended:?}");
    assert!(
        said(&ended.stderr, &["cannot connect", "neither Redis", "HTTP", "port"]),
        "{ended:?}"
    );
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    let error = Client::connect(url).await.unwrap_err().to_string();
    assert!(said(&error, &["neither Redis", "HTTP", "port"]), "{error}");
    serving.abort();
}

#[tokio::test]
async fn where_no_server_answers_every_command_says_so_and_no_password() {
    let cli = Cli {
        url: format!("redis://app:s3cret@127.0.0.1:{}/3?protocol=resp3", free_port()),
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
        let words = ["no server answers at redis://app@127.0.0.1:", "/3", "Check its address"];
        assert!(said(&ended.stderr, &words), "{arguments:?}: {ended:?}");
        assert!(!ended.stderr.contains("s3cret"), "{arguments:?}: {ended:?}");
        // The operator named the server whose locks matter. A new one has none of them.
        assert!(!ended.stderr.contains("docker run"), "{arguments:?}: {ended:?}");
    }
    let ended = cli.run(&["run", "--unavailable-status", "4", "a", "--", "true"]).await;
    assert_eq!(ended.status, 4);
    for (url, words) in [
        ("s3cret@nonsense", "redis://"),
        ("redis://127.0.0.1:1?db=s3cret", "/DATABASE"),
        ("redis://127.0.0.1:1#s3cret", "# as %23"),
    ] {
        let ended = Cli::at(url.to_owned()).run(&["ls"]).await;
        assert_eq!(ended.status, 64, "{ended:?}");
        assert!(
            ended.stderr.contains(words) && !ended.stderr.contains("s3cret"),
            "{ended:?}"
        );
    }
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
async fn an_empty_url_is_refused_and_an_empty_redis_url_counts_as_unset() {
    let server = Server::start().await;
    // Each would use the server of the environment, or the default one.
    for urls in [
        &["--url", ""][..],
        &["--url", " "],
        &["--url", "redis://h", "--url", ""],
    ] {
        let mut command = Command::new(BINARY);
        command.args(urls).args(["ls"]);
        let ended = ended(piped(command).env("REDIS_URL", server.url()).spawn().unwrap()).await;
        assert_eq!(ended.status, 64, "{urls:?}: {ended:?}");
        assert!(said(&ended.stderr, &["--url is empty", "REDIS_URL"]), "{ended:?}");
    }
    // What stands at the default address is unknown, so a subcommand that asks no server first tells the difference.
    let mut command = Command::new(BINARY);
    command.args(["--quorum", "q", "ls"]);
    let ended = ended(piped(command).env("REDIS_URL", "").spawn().unwrap()).await;
    assert!(said(&ended.stderr, &["1 server is named"]), "{ended:?}");
}

#[tokio::test]
async fn only_who_has_named_no_server_is_told_how_to_start_one() {
    let ls = async |variable: &str| {
        let mut command = Command::new(BINARY);
        command.arg("ls");
        ended(piped(command).env("REDIS_URL", variable).spawn().unwrap()).await
    };
    let named = ls(&format!("redis://127.0.0.1:{}", free_port())).await;
    assert!(
        said(&named.stderr, &["no server answers", "Check its address"]),
        "{named:?}"
    );
    assert!(!named.stderr.contains("docker run"), "{named:?}");
    if std::net::TcpStream::connect("127.0.0.1:6379").is_ok() {
        println!("skipped: something answers at the default address");
        return;
    }
    let unnamed = ls("").await;
    let words = ["no server answers", "or start one", "redis-server --port", "docker run"];
    assert!(said(&unnamed.stderr, &words), "{unnamed:?}");
}

#[tokio::test]
async fn an_empty_name_is_refused_before_any_server_is_asked() {
    // Nobody listens there.
    let cli = Cli::at("redis://127.0.0.1:1".to_owned());
    for arguments in [
        &["blockers", ""][..],
        &["evict", "a", "", "--yes"],
        &["ls", ""],
        &["top", "", "--once"],
    ] {
        let ended = cli.run(arguments).await;
        assert_eq!(
            (ended.status, ended.stdout.as_str()),
            (64, ""),
            "{arguments:?}: {ended:?}"
        );
        assert!(said(&ended.stderr, &["it is empty"]), "{arguments:?}: {ended:?}");
    }
}

#[tokio::test]
async fn a_time_below_zero_is_refused_in_plain_words() {
    let cli = Cli::at("redis://127.0.0.1:1".to_owned());
    for option in [&["--wait", "-1"][..], &["--wait=-1s"], &["--lease=-0.5"]] {
        let ended = cli.run(&[&["run"], option, &["a", "--", "true"]].concat()).await;
        assert_eq!(ended.status, 64, "{option:?}: {ended:?}");
        assert!(
            said(&ended.stderr, &["a time cannot be negative"]),
            "{option:?}: {ended:?}"
        );
    }
}

/// A server that refuses every command in words that a terminal would act on.
async fn hostile_server() -> (u16, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut some = [0; 4096];
                while let Ok(1..) = stream.read(&mut some).await {
                    // As many replies as a pipeline may want.
                    let refusal = b"-ERR \x1b]0;owned\x07 \x1b[2J\xc2\x9b31m\xe2\x80\xae back\\slash\r\n".repeat(4);
                    let _ = stream.write_all(&refusal).await;
                }
            });
        }
    });
    (port, serving)
}

#[tokio::test]
async fn the_words_of_a_hostile_server_reach_the_terminal_escaped() {
    let (port, serving) = hostile_server().await;
    let cli = Cli::at(format!("redis://127.0.0.1:{port}"));
    for arguments in [
        &["ls"][..],
        &["run", "a", "--", "true"],
        &["show", "a"],
        &["evict", "a", "00000000-0000-0000-0000-000000000000", "--yes"],
        &["doctor"],
    ] {
        let ended = cli.run(arguments).await;
        assert_eq!(ended.status, UNAVAILABLE, "{arguments:?}: {ended:?}");
        let acts = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
        assert!(!ended.stderr.contains(acts), "{arguments:?}: {ended:?}");
        assert!(said(&ended.stderr, &["\\u{1b}]0;owned", "back\\slash"]), "{ended:?}");
    }
    serving.abort();
}

#[tokio::test]
async fn a_pause_beyond_a_day_between_two_looks_is_refused() {
    for command in ["top", "serve"] {
        let ended = Cli::at("redis://127.0.0.1:1".to_owned())
            .run(&[command, "--interval", "1e19"])
            .await;
        assert_eq!(ended.status, 64, "{ended:?}");
        assert!(said(&ended.stderr, &["at most 24h"]), "{ended:?}");
    }
}

#[tokio::test]
async fn a_semaphore_that_is_named_again_as_a_lock_is_refused() {
    let server = Server::start().await;
    let run = ["run", "--semaphore", "4", "--and", "gpu", "gpu", "--", "true"];
    let ended = Cli::of(&server).run(&run).await;
    assert_eq!(ended.status, 64, "{ended:?}");
    assert!(ended.stderr.contains("--and names the semaphore itself"), "{ended:?}");
}

#[tokio::test]
async fn a_name_that_would_end_a_line_of_tokens_is_refused() {
    let server = Server::start().await;
    let ended = Cli::of(&server)
        .run(&["run", "--and", "b", "a\n9 b", "--", "true"])
        .await;
    assert_eq!(
        (ended.status, ended.stderr.contains("FAIRLOCK_TOKENS")),
        (64, true),
        "{ended:?}"
    );
    assert_eq!(Cli::of(&server).run(&["run", "a\n9 b", "--", "true"]).await.status, 0);
}
