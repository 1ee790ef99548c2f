//! The command `fairlock` never answers wrongly: at a server that keeps no locks, about a lock that does not exist, about
//! a holder whose lease is over.

use crate::cli::{Cli, Ended, said};
use crate::lua::{Lock, PAST};
use crate::server::{Server, eventually};
use fairlock::Client;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Every command that talks to a server.
const COMMANDS: [&[&str]; 9] = [
    &["run", "a", "--", "true"],
    &["ls"],
    &["show", "a"],
    &["watch"],
    &["watch", "a"],
    &["top", "--once"],
    &["blockers", "a"],
    &["evict", "a", "00000000-0000-0000-0000-000000000000", "--yes"],
    &["doctor"],
];
const UNAVAILABLE: i32 = 69;
const NO_LOCK: i32 = 66;

/// Every command refuses that server, with these words and nothing on stdout.
async fn refused_by_all(server: &Server, words: &[&str]) {
    let cli = Cli::of(server);
    for arguments in COMMANDS {
        let ended = cli.run(arguments).await;
        assert_eq!(
            (ended.status, ended.stdout.as_str()),
            (UNAVAILABLE, ""),
            "{arguments:?}: {ended:?}"
        );
        assert!(said(&ended.stderr, words), "{arguments:?}: {ended:?}");
    }
    let chosen = cli.run(&["run", "--unavailable-status", "4", "a", "--", "true"]).await;
    assert_eq!(chosen.status, 4, "{chosen:?}");
}

#[tokio::test]
async fn every_command_refuses_a_server_in_a_cluster() {
    let args = ["--cluster-enabled", "yes", "--cluster-port", "0"];
    let server = Server::start_with(&args).await;
    let redis = Lock::new(&server, "a").await;
    let mut slots = redis::cmd("CLUSTER");
    slots.arg("ADDSLOTS").arg((0..16384).collect::<Vec<u32>>());
    slots.exec_async(&mut server.redis().await).await.unwrap();
    eventually("the cluster is up", async || {
        let info: String = redis::from_redis_value(redis.run("CLUSTER", &["INFO"]).await).unwrap();
        info.contains("cluster_state:ok")
    })
    .await;
    refused_by_all(&server, &["is a node of a cluster", "one node", "feature `cluster`"]).await;
}

#[tokio::test]
async fn every_command_refuses_a_sentinel_and_names_the_masters_that_it_watches() {
    let master = Server::start().await;
    let port = master.port().to_string();
    let file = master.dir().join("sentinel.conf");
    std::fs::write(&file, format!("sentinel monitor mine 127.0.0.1 {port} 1\n")).unwrap();
    let binary = std::env::var("FAIRLOCK_TEST_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
    let program = [binary, file.display().to_string(), "--sentinel".to_owned()];
    let sentinel = Server::start_program(&program, &[]).await;
    let address = format!("redis://127.0.0.1:{port} (mine)");
    refused_by_all(&sentinel, &["is a Sentinel", "connect to its master", &address]).await;
}

fn no_such_lock(ended: &Ended, words: &[&str]) {
    assert_eq!((ended.status, ended.stdout.as_str()), (NO_LOCK, ""), "{ended:?}");
    assert!(said(&ended.stderr, words), "{ended:?}");
}

#[tokio::test]
async fn a_lock_that_nobody_has_used_is_not_free_but_unknown() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let nobody = "00000000-0000-0000-0000-000000000000";
    let words = ["no such lock under prefix fairlock: a", "never used", "a minute"];
    for arguments in [
        &["show", "a"][..],
        &["show", "a", "--json"],
        &["evict", "-y", "a", nobody],
    ] {
        no_such_lock(&cli.run(arguments).await, &words);
    }
    let name = "percent % and brace }";
    let lock = Lock::new(&server, "percent %25 and brace %7D").await;
    lock.acquire("w1:1").await;
    assert!(cli.says(&["show", name]).await.contains("held to write"));
    lock.release(&["w1:1"]).await;
    assert!(cli.says(&["show", name]).await.contains(": free"));
    let other = cli.run(&["--prefix", "other", "show", name]).await;
    no_such_lock(&other, &["no such lock under prefix other: ", name]);
    // Another thing than a lock.
    redis::cmd("SET")
        .arg("fairlock:{text}")
        .arg("x")
        .exec_async(&mut server.redis().await)
        .await
        .unwrap();
    let text = cli.run(&["show", "text"]).await;
    assert!(
        text.status == UNAVAILABLE && text.stderr.contains("WRONGTYPE"),
        "{text:?}"
    );
}

#[tokio::test]
async fn whoever_looks_in_vain_is_told_under_which_prefix() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let ended = cli.run(&["ls"]).await;
    assert_eq!((ended.status, ended.stdout.as_str()), (0, ""));
    assert!(said(&ended.stderr, &["no lock", "under prefix fairlock"]), "{ended:?}");
    let ended = cli.run(&["ls", "--prefix", "team", "b*"]).await;
    assert!(
        said(&ended.stderr, &["no lock", "under prefix team", "b*"]),
        "{ended:?}"
    );
    let ended = cli.run(&["blockers", "billing", "--prefix", "team"]).await;
    assert_eq!(ended.status, 1);
    assert!(
        said(&ended.stderr, &["billing neither", "under prefix team"]),
        "{ended:?}"
    );
    assert!(
        cli.says(&["top", "--once", "--prefix", "team"])
            .await
            .contains("prefix team")
    );
    Lock::new(&server, "a").await.acquire("w1:1").await;
    assert!(said(&cli.says(&["ls"]).await, &["LOCK (prefix fairlock)", "\na "]));
}

/// A writer whose lease is over, and nobody who would end it.
async fn expired(server: &Server) -> Lock {
    let lock = Lock::new(server, "a").await;
    lock.acquire("w000000000000001:1").await;
    lock.set_deadline("w000000000000001:1", PAST).await;
    lock
}

#[tokio::test]
async fn a_holder_whose_lease_is_over_is_marked() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let lock = expired(&server).await;
    let shown = cli.says(&["show", "a"]).await;
    let words = ["a: expired", "the next asker enters", "Holding", "expired ", " ago"];
    assert!(said(&shown, &words), "{shown}");
    let listed = cli.says(&["ls"]).await;
    assert!(
        said(&listed, &["\na ", "expired ", " ago: client 000000000000001"]),
        "{listed}"
    );
    let top = cli.says(&["top", "--once", "--size", "160x28"]).await;
    assert!(
        said(
            &top,
            &["a ", "expired ", " ago: client", "a: 1 hold", "expired ", " ago"]
        ),
        "{top}"
    );
    for document in [
        cli.json(&["show", "a"]).await,
        cli.json(&["ls"]).await[0].clone(),
        cli.json(&["top"]).await[0].clone(),
    ] {
        let holder = document.get("holder").unwrap_or(&document["holders"][0]);
        assert!(holder["expired_for_ms"].as_u64().is_some_and(|ms| ms > 0), "{document}");
        assert_eq!(
            (&document["expired"], &holder["lease_left_ms"]),
            (&true.into(), &0.into()),
            "{document}"
        );
    }
    let owner = cli.owner_of("a").await;
    let blockers = cli.run(&["blockers", &owner]).await;
    assert!(said(&blockers.stderr, &["holds a (expired ", " ago)"]), "{blockers:?}");
    // Whoever asks enters; and then nothing is over.
    lock.acquire("w2:1").await.token();
    let document = cli.json(&["show", "a"]).await;
    assert_eq!(
        (&document["expired"], &document["holders"][0]["expired_for_ms"]),
        (&false.into(), &Value::Null),
        "{document}"
    );
    assert!(cli.says(&["show", "a"]).await.starts_with("a: held to write"));
}

#[tokio::test]
async fn a_lock_is_held_while_one_of_its_readers_has_a_lease() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let lock = Lock::new(&server, "a").await;
    lock.acquire_all(&["r000000000000002:1", "r000000000000001:1"]).await;
    lock.set_deadline("r000000000000001:1", PAST).await;
    let shown = cli.says(&["show", "a"]).await;
    assert!(
        said(&shown, &["a: held to read, 2 holds, 1 of them expired", "expired "]),
        "{shown}"
    );
    assert_eq!(shown.matches(" ago").count(), 1, "{shown}");
    assert_eq!(cli.json(&["show", "a"]).await["expired"], false);
}

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
        said(&ended.stderr, &["cannot connect", "no Redis", "HTTP", "port"]),
        "{ended:?}"
    );
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    let error = Client::connect(url).await.unwrap_err().to_string();
    assert!(said(&error, &["no Redis", "HTTP", "port"]), "{error}");
    serving.abort();
}

#[tokio::test]
async fn doctor_names_the_user_of_the_url_who_may_not_ask_for_its_name() {
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
