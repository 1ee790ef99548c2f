//! `fairlock doctor`: whether a server is fit for locks.

use crate::command::{Cli, said};
use fairlock_support::server::{Server, eventually};
use serde_json::Value;

#[tokio::test]
async fn finds_nothing_wrong_with_a_plain_server_and_leaves_nothing_behind() {
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
        "functions",
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
async fn warns_of_a_policy_that_may_drop_locks() {
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
async fn sends_who_asks_a_replica_to_its_master() {
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
async fn names_the_rights_that_a_user_lacks() {
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
                  +@sortedset +@string +expire +pexpireat +exists +del +time";
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

#[tokio::test]
async fn names_the_user_of_the_url_who_may_not_ask_for_its_name() {
    let server = Server::start().await;
    redis::cmd("ACL")
        .arg(&[
            "SETUSER",
            "ann",
            "on",
            "resetchannels",
            ">SECRET",
            "~fairlock:*",
            "&fairlock:*",
            "+@all",
            "-acl",
            "-hset",
        ])
        .exec_async(&mut server.redis().await)
        .await
        .unwrap();
    let cli = Cli::at(format!("redis://ann:SECRET@127.0.0.1:{}", server.port()));
    let ended = cli.run(&["doctor"]).await;
    assert_eq!(ended.status, 1, "{ended:?}");
    assert!(
        said(&ended.stdout, &["user ann lacks +hset", "ACL SETUSER ann +hset"]),
        "{ended:?}"
    );
}

#[tokio::test]
async fn tells_how_the_scripts_are_called_and_why() {
    let server = Server::start().await;
    let cli = Cli::at(format!("redis://app:s3cret@127.0.0.1:{}", server.port()));
    let user = async |rule: &str| {
        let rules = [
            "ACL",
            "SETUSER",
            "app",
            "reset",
            "on",
            ">s3cret",
            "~fairlock:*",
            "&*",
            "+@all",
            rule,
        ];
        let mut command = redis::cmd(rules[0]);
        command.arg(&rules[1..]);
        command.exec_async(&mut server.redis().await).await.unwrap();
    };
    user("+@all").await;
    if server.is_before_7().await {
        let text = cli.says(&["doctor"]).await;
        return assert!(said(&text, &["calls are EVALSHA", "has no functions"]), "{text}");
    }
    let text = cli.says(&["doctor"]).await;
    assert!(said(&text, &["ok     functions", "calls are FCALL"]), "{text}");
    for (rule, lacks) in [("-fcall", "+fcall"), ("-function", "+function|load")] {
        user(rule).await;
        let text = cli.says(&["doctor"]).await;
        assert!(said(&text, &["calls are EVALSHA", "ACL SETUSER app", lacks]), "{text}");
        assert!(text.ends_with("Fit for locks.\n"), "{text}");
    }
}
