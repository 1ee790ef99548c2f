//! Man pages, completions and `--help`.

use crate::command::{Cli, ended, said};
use fairlock_support::server::Server;

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
async fn who_asks_for_help_by_a_word_gets_it_and_runs_nothing() {
    // It is the first word.
    let cli = Cli::at(String::new());
    assert_eq!(cli.says(&["help"]).await, cli.says(&["--help"]).await);
    assert_eq!(cli.says(&["help", "run"]).await, cli.says(&["run", "--help"]).await);
    let further = ["help", "run", "a", "--", "echo", "it ran"];
    assert_eq!(cli.says(&further).await, cli.says(&["run", "--help"]).await);
    assert_eq!(cli.run(&["help", "tea"]).await.status, 64);
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
        "serve",
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
    // The page has each status that the help has.
    let table = include_str!("../../../docs/command.md");
    let statuses = help.split("EXIT STATUS:").nth(1).unwrap().split("\n\n").next().unwrap();
    let statuses = statuses
        .lines()
        .filter_map(|line| line.trim().split(' ').next()?.parse::<u8>().ok());
    for status in statuses.filter(|status| *status > 0) {
        assert!(table.contains(&format!("\n| {status} |")), "{status}");
    }
    assert_eq!(cli.run(&["man", "tea"]).await.status, 64);
}
