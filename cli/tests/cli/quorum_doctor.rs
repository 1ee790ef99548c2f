//! `fairlock doctor` on several servers that are a quorum.

use crate::command::{Cli, said};
use crate::quorum::{fleet, quorum};
use fairlock_support::server::Server;
use futures::future::join_all;
use serde_json::Value;

/// What doctor says of all servers together, at those levels: `LEVEL ABOUT TEXT`.
async fn of_all(cli: &Cli, levels: &[&str]) -> (i32, Vec<String>) {
    let ended = cli.run(&["doctor", "--json"]).await;
    let found: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"));
    let all = found["findings"].as_array().unwrap().iter();
    let words = |finding: &Value| ["level", "about", "text"].map(|field| finding[field].as_str().unwrap().to_owned());
    let all = all.map(words).filter(|[level, ..]| levels.contains(&level.as_str()));
    (ended.status, all.map(|words| words.join(" ")).collect())
}

async fn wrong(cli: &Cli) -> Vec<String> {
    let (status, wrong) = of_all(cli, &["wrong"]).await;
    assert_eq!(status, 1, "{wrong:?}");
    wrong
}

async fn set(server: &Server, key: &str, value: &str) {
    let mut set = redis::cmd("SET");
    set.arg(key).arg(value);
    set.exec_async(&mut server.redis().await).await.unwrap();
}

#[tokio::test]
async fn finds_nothing_wrong_with_servers_that_vote_and_uses_a_lock_of_all() {
    let servers = fleet(3).await;
    let client = quorum(&servers, "service").await;
    let cli = Cli::of_all(&servers);
    let text = cli.says(&["doctor"]).await;
    let about = [
        "checks",
        "checks",
        "checks",
        "All servers",
        "3 of 3 servers answer",
        "note   independent",
        "3 servers are on 127.0.0.1",
        "billing of 3",
        "3 of 3 servers vote",
        "clocks",
        "versions",
        "latency",
        "lock         acquired",
        "Fit for locks.",
    ];
    assert!(said(&text, &about), "{text}");
    client.shutdown().await;
    for server in &servers {
        assert_eq!(server.keys().await, ["fairlock.q:life", "fairlock.q:quorum"]);
    }
}

#[tokio::test]
async fn finds_servers_that_are_one_or_copies_of_one_another() {
    let mut servers = fleet(2).await;
    let [one, other] = [servers[0].url(), servers[1].url()];
    let twice = Cli::at(format!("{one} {other} {}", one.replace("127.0.0.1", "localhost")));
    let found = wrong(&twice).await;
    assert!(
        said(&found[0], &["independent", &one, "localhost", "one server"]),
        "{found:?}"
    );

    let replica = ["--replicaof", "127.0.0.1", &servers[0].port().to_string()];
    servers.push(Server::start_with(&replica).await);
    let cli = Cli::of_all(&servers);
    let copied = async || {
        wrong(&cli)
            .await
            .iter()
            .any(|text| said(text, &["independent", "replicate one another"]))
    };
    fairlock_support::server::eventually("the replica has its master's id", copied).await;
}

#[tokio::test]
async fn finds_servers_that_do_not_agree() {
    let servers = fleet(3).await;
    let cli = Cli::of_all(&servers);
    let (status, notes) = of_all(&cli, &["note"]).await;
    assert!(
        status == 0 && notes.iter().any(|note| note.contains("no quorum yet")),
        "{notes:?}"
    );
    for server in &servers {
        assert_eq!(server.keys().await, ["fairlock.q:life"], "doctor names no quorum");
        set(server, "fairlock.q:quorum", "billing of 5 600000").await;
    }
    let found = wrong(&cli).await;
    assert!(
        said(&found[0], &["quorum", "billing of 5", "3 servers are named"]),
        "{found:?}"
    );
    for server in &servers {
        set(server, "fairlock.q:quorum", "billing of 3 600000").await;
    }
    let (_, notes) = of_all(&cli, &["note"]).await;
    assert!(notes.iter().any(|note| said(note, &["quarantine", "10m"])), "{notes:?}");
    let named = cli.run(&["--quorum", "mailing", "doctor"]).await;
    assert!(
        said(&named.stdout, &["WRONG  quorum", "billing of 3", "--quorum"]),
        "{named:?}"
    );
    set(&servers[2], "fairlock.q:quorum", "mailing of 3 600000").await;
    let found = wrong(&cli).await;
    assert!(said(&found[0], &["several quorums", "billing", "mailing"]), "{found:?}");
}

#[tokio::test]
async fn tells_who_votes_and_how_many_servers_may_still_fail() {
    let mut servers = fleet(5).await;
    drop(quorum(&servers, "service").await);
    let cli = Cli::of_all(&servers);
    servers[4].kill();
    let found = wrong(&cli).await;
    assert!(
        said(&found[0], &["4 of 5 servers answer", "no lock works if 2 more fail"]),
        "{found:?}"
    );
    servers[4].start_again().await;
    // An append-only file may have kept what a former run was called.
    set(&servers[4], "fairlock.q:life", "former 1").await;
    let (status, notes) = of_all(&cli, &["note"]).await;
    let last = servers[4].url();
    assert_eq!(status, 0, "{notes:?}");
    assert!(
        notes
            .iter()
            .any(|note| said(note, &["voting 4 of 5 servers vote", &last, "after its first client"])),
        "{notes:?}"
    );
    // Doctor was that client.
    let (_, notes) = of_all(&cli, &["note"]).await;
    assert!(
        notes
            .iter()
            .any(|note| said(note, &["4 of 5 servers vote", &last, "votes in 9m"])),
        "{notes:?}"
    );
    for server in &mut servers[..3] {
        server.kill();
    }
    let found = wrong(&cli).await;
    assert!(
        said(&found[0], &["2 of 5 servers answer", "no lock works"]),
        "{found:?}"
    );
}

#[tokio::test]
async fn names_the_rights_that_only_a_quorum_needs() {
    let servers = join_all((0..3).map(|_| Server::start())).await;
    let url = |server: &Server| format!("redis://app:s3cret@127.0.0.1:{}", server.port());
    let cli = Cli::at(servers.iter().map(url).collect::<Vec<_>>().join(" "));
    for right in ["get", "set"] {
        for server in &servers {
            let mut user = redis::cmd("ACL");
            user.arg("SETUSER").arg("app").arg("reset").arg("on").arg(">s3cret");
            user.arg(&["~fairlock.q:*", "&fairlock.q:*", "+@all"])
                .arg(format!("-{right}"));
            user.exec_async(&mut server.redis().await).await.unwrap();
        }
        let ended = cli.run(&["doctor"]).await;
        assert_eq!(ended.status, 1, "{ended:?}");
        let words = [
            "WRONG  rights",
            &format!("app lacks +{right}"),
            &format!("ACL SETUSER app +{right}"),
        ];
        assert!(said(&ended.stdout, &words), "{ended:?}");
        assert!(!ended.stdout.contains("s3cret"), "{ended:?}");
    }
}
