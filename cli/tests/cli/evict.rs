//! `fairlock evict`

use crate::command::Cli;
#[cfg(target_os = "linux")]
use crate::command::{BINARY, ended, piped, said};
use crate::scene::{queue, stay};
use fairlock_support::server::{Server, eventually};
#[cfg(target_os = "linux")]
use std::process::Stdio;
#[cfg(target_os = "linux")]
use tokio::io::AsyncWriteExt;

#[tokio::test]
async fn evicts_the_owner_that_it_is_told_and_asks_first() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (owner, _clients) = queue(&server, "a").await;
    let owner = owner.to_string();
    let unasked = cli.run(&["evict", "a", &owner]).await;
    assert_eq!(unasked.status, 64);
    assert!(unasked.stderr.contains("--yes"), "{unasked:?}");
    assert_eq!(cli.owner_of("a").await, owner);
    let nobody = cli.run(&["evict", "a", "nobody", "--yes"]).await;
    assert_eq!(nobody.status, 1);
    assert!(nobody.stderr.contains("nobody called nobody"), "{nobody:?}");

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

#[cfg(target_os = "linux")]
#[tokio::test]
async fn takes_a_yes_in_any_case_and_says_where_it_cannot_ask() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (_, _clients) = queue(&server, "a").await;
    for (owner, answer) in [("billing", "YES\n"), ("mailing", "Yes\n"), ("auditing", "y\n")] {
        let command = format!("'{BINARY}' evict a {owner}");
        let mut script = tokio::process::Command::new("script");
        script.args(["-q", "-e", "-c", &command, "/dev/null"]);
        let mut script = piped(script);
        script.env("REDIS_URL", &cli.url).stdin(Stdio::piped());
        let mut asked = script.spawn().unwrap();
        // Its end would be that of the terminal.
        let mut answers = asked.stdin.take().unwrap();
        answers.write_all(answer.as_bytes()).await.unwrap();
        let ended = ended(asked).await;
        drop(answers);
        assert_eq!(ended.status, 0, "{answer}: {ended:?}");
        assert!(said(&ended.stdout, &["Evict it?", "evicted"]), "{ended:?}");
    }
    let help = cli.says(&["evict", "--help"]).await;
    let of_status = |status: &str| {
        let lines = help.split("EXIT STATUS").nth(1).unwrap().lines();
        lines
            .map(str::trim)
            .find(|line| line.starts_with(status))
            .map(str::to_owned)
    };
    assert!(of_status("64").unwrap().contains("terminal"), "{help}");
    assert!(!of_status("70").unwrap().contains("terminal"), "{help}");
}

#[tokio::test]
async fn evicts_who_alone_has_a_label_and_asks_which_if_several_have_it() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (owner, clients) = queue(&server, "a").await;
    let evicted = cli.json(&["evict", "a", "billing", "--yes"]).await;
    assert_eq!(evicted["owner"], owner.to_string());
    assert_eq!(cli.run(&["evict", "a", "billing", "--yes"]).await.status, 1);
    // A client gives each request an owner of its own.
    stay(clients[1].rw_lock("a").write());
    eventually("it waits too", async || {
        clients[0].rw_lock("a").status().await.unwrap().waiting == 2
    })
    .await;
    let several = cli.run(&["evict", "a", "mailing", "--yes"]).await;
    assert_eq!(several.status, 64);
    assert!(several.stderr.contains("mailing is 2 owners of a"), "{several:?}");
    assert_eq!(cli.run(&["evict", "no such lock", "mailing", "--yes"]).await.status, 66);
}
