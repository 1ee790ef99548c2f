//! `redis+cluster://` and `redis+sentinel://`: every subcommand at each, logins, TLS, and what is refused.

use crate::command::{Cli, ended, said};
use crate::deployment::{is_before_7, sentinel};
use crate::serve::Served;
use fairlock_support::cluster::{Cluster, ask};
use fairlock_support::server::{Server, eventually, free_port, soon};
use fairlock_support::tls::{self, Authority};
use serde_json::Value;
use std::path::Path;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;

const USAGE: i32 = 64;
const UNAVAILABLE: i32 = 69;

/// A process that takes the lock and keeps it.
fn stay(cli: &Cli, label: &str, lock: &str) -> Child {
    let arguments = ["run", "--label", label, lock, "--", "sleep", "600"];
    cli.command(&arguments).spawn().unwrap()
}

/// So many hold and wait, as `show` says.
async fn are(cli: &Cli, lock: &str, holding: u64, waiting: u64) {
    eventually("they hold and wait", async || {
        let shown = cli.run(&["show", lock, "--json"]).await;
        let status: Value = serde_json::from_str(&shown.stdout).unwrap_or_default();
        status["holding"] == holding && status["waiting"] == waiting
    })
    .await;
}

/// The path of an operator, from "it is stuck" to the eviction, and the other subcommands.
async fn every_subcommand_works(cli: &Cli, lock: &str) {
    let _billing = stay(cli, "billing", lock);
    are(cli, lock, 1, 0).await;
    let _mailing = stay(cli, "mailing", lock);
    are(cli, lock, 1, 1).await;
    let listed = cli.json(&["ls"]).await;
    assert_eq!(
        (&listed[0]["lock"], &listed[0]["waiting"]),
        (&lock.into(), &1.into()),
        "{listed}"
    );
    assert!(cli.says(&["top", "--once"]).await.contains("1 lock in use"));
    assert_eq!(cli.json(&["top"]).await[0]["waiters"][0]["client"]["label"], "mailing");
    let blamed = cli.json(&["blockers", "mailing"]).await;
    assert_eq!(blamed["waits"][0]["holders"][0]["client"]["label"], "billing");
    assert_eq!(cli.run(&["run", "--no-wait", lock, "--", "true"]).await.status, 75);

    let mut watch = cli.command(&["watch", lock, "--json"]).spawn().unwrap();
    let mut ready = BufReader::new(watch.stderr.take().unwrap()).lines();
    let line = soon("it listens", ready.next_line()).await.unwrap().unwrap();
    assert!(line.contains("watching"), "{line}");
    let mut events = BufReader::new(watch.stdout.take().unwrap()).lines();
    // The announcement that somebody watches may come a moment after the eviction, so that no event tells of it.
    assert_eq!(cli.json(&["evict", lock, "billing", "--yes"]).await["evicted"], 1);
    are(cli, lock, 1, 0).await;
    assert_eq!(
        cli.json(&["show", lock]).await["holders"][0]["client"]["label"],
        "mailing"
    );
    let told = async {
        loop {
            let _ = cli.run(&["run", "--wait", "10ms", lock, "--", "true"]).await;
            let line = tokio::time::timeout(std::time::Duration::from_millis(200), events.next_line()).await;
            if let Ok(line) = line {
                return line.unwrap().unwrap();
            }
        }
    };
    let event: Value = serde_json::from_str(&soon("an event", told).await).unwrap();
    assert_eq!(event["lock"], lock);

    let served = Served::start(cli, &[]).await;
    let list = served.document("/api/locks").await;
    assert_eq!(list["locks"][0]["holder"]["client"]["label"], "mailing", "{list}");
    let led = cli.run(&["elect", "leader:a", "--", "sh", "-c", "exit 3"]).await;
    assert_eq!(led.status, 3, "{led:?}");
    assert_eq!(cli.run(&["leader", "leader:a"]).await.status, 1);
    let doctor = cli.says(&["doctor"]).await;
    assert!(doctor.ends_with("Fit for locks.\n"), "{doctor}");
    assert_eq!(cli.json(&["doctor"]).await["fit_for"], "locking");
}

#[tokio::test]
async fn every_subcommand_works_at_the_nodes_of_a_cluster_though_one_of_them_is_away() {
    if is_before_7().await {
        return;
    }
    let cluster = Cluster::of(3, 0).await;
    let ports = [free_port(), cluster.nodes[2].port(), cluster.nodes[0].port()];
    let hosts = ports.map(|port| format!("127.0.0.1:{port}")).join(",");
    let cli = Cli::at(format!("redis+cluster://{hosts}"));
    every_subcommand_works(&cli, &cluster.lock_on(1).await).await;
}

#[tokio::test]
async fn doctor_tells_which_slots_of_a_cluster_nobody_serves_and_who_is_away() {
    if is_before_7().await {
        return;
    }
    let mut cluster = Cluster::of(3, 0).await;
    let cli = Cli::of(&cluster.nodes[0]);
    let text = cli.says(&["doctor"]).await;
    let words = [
        "16384 of 16384 slots, at 3 masters",
        "3 of 3 masters answer",
        "no replica takes over",
        "handed over on each master",
        "Fit for locks.",
    ];
    assert!(said(&text, &words), "{text}");
    cluster.nodes[1].kill();
    let ended = cli.run(&["doctor"]).await;
    assert_eq!(ended.status, 1, "{ended:?}");
    assert!(said(&ended.stdout, &["2 of 3 masters answer", "wrong"]), "{ended:?}");
    let unowned = ["CLUSTER", "DELSLOTSRANGE", "0", "9"];
    ask::<redis::Value>(&cluster.nodes[0], &unowned).await;
    let ended = cli.run(&["doctor"]).await;
    assert!(
        said(&ended.stdout, &["16374 of 16384 slots", "do not work"]),
        "{ended:?}"
    );
}

#[tokio::test]
async fn doctor_names_the_rights_that_a_user_of_a_cluster_lacks() {
    if is_before_7().await {
        return;
    }
    let cluster = Cluster::of(1, 0).await;
    let url = format!("redis+cluster://app:s3cret@127.0.0.1:{}", cluster.nodes[0].port());
    let doctor = async |rule: &str| {
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
        ];
        ask::<redis::Value>(&cluster.nodes[0], &[&rules[..], &[rule]].concat()).await;
        Cli::at(url.clone()).run(&["doctor"]).await
    };
    assert_eq!(doctor("+@all").await.status, 0);
    for (rule, lacks) in [
        ("-spublish", "+spublish"),
        ("-cluster|info", "+cluster|info"),
        ("-hset", "+hset"),
    ] {
        let ended = doctor(rule).await;
        assert_eq!(ended.status, 1, "{ended:?}");
        assert!(
            said(&ended.stdout, &["user app lacks", lacks, "ACL SETUSER app"]),
            "{ended:?}"
        );
    }
    let unheard = doctor("-ssubscribe").await;
    assert!(said(&unheard.stdout, &["WRONG", "lock"]), "{unheard:?}");
}

#[tokio::test]
async fn every_subcommand_works_at_each_of_several_masters_of_sentinels() {
    let (one, other) = (Server::start().await, Server::start().await);
    let sentinel = sentinel(&[("one", &one), ("my other", &other)]).await;
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", free_port(), sentinel.port());
    for master in ["one", "my%20other/2"] {
        let cli = Cli::at(format!("redis+sentinel://127.0.0.1:{}/{master}", sentinel.port()));
        every_subcommand_works(&cli, "a").await;
        // A sentinel that is away hides none, and doctor tells that it is.
        let cli = Cli::at(format!("redis+sentinel://{hosts}/{master}"));
        assert!(cli.says(&["ls"]).await.contains("mailing"));
        let doctor = cli.run(&["doctor"]).await;
        assert_eq!(doctor.status, 1, "{doctor:?}");
        assert!(
            said(&doctor.stdout, &["WRONG", "sentinels", "1 thing is wrong"]),
            "{doctor:?}"
        );
    }
}

#[tokio::test]
async fn a_master_that_a_sentinel_does_not_watch_is_unavailable_and_the_others_are_named() {
    let master = Server::start().await;
    let sentinel = sentinel(&[("mine", &master)]).await;
    let cli = Cli::at(format!("redis+sentinel://127.0.0.1:{}/yours", sentinel.port()));
    for arguments in [&["ls"][..], &["run", "a", "--", "true"], &["doctor"]] {
        let ended = cli.run(arguments).await;
        // Another sentinel may know it.
        assert_eq!((ended.status, ended.stdout.as_str()), (UNAVAILABLE, ""), "{ended:?}");
        let url = format!("redis+sentinel://127.0.0.1:{}/mine", sentinel.port());
        assert!(said(&ended.stderr, &["no master called yours", &url]), "{ended:?}");
    }
}

#[tokio::test]
async fn a_url_that_names_another_kind_of_server_is_refused() {
    let server = Server::start().await;
    let sentinel = sentinel(&[("mine", &server)]).await;
    for (scheme, at, words) in [
        ("redis+cluster", &server, ["a single server", "write redis://"]),
        ("redis+sentinel", &server, ["a single server", "write redis://"]),
        ("redis+cluster", &sentinel, ["a Sentinel", "write redis+sentinel://"]),
    ] {
        let ended = Cli::at(format!("{scheme}://127.0.0.1:{}", at.port()))
            .run(&["ls"])
            .await;
        assert_eq!((ended.status, ended.stdout.as_str()), (USAGE, ""), "{ended:?}");
        assert!(said(&ended.stderr, &words), "{ended:?}");
    }
    let several = [
        &server.url(),
        "redis+cluster://a:s3cret@127.0.0.1:1",
        "redis://127.0.0.1:2",
    ];
    let ended = Cli::at(several.join(" ")).run(&["ls"]).await;
    assert_eq!(ended.status, USAGE, "{ended:?}");
    assert!(
        said(&ended.stderr, &["quorum", "redis+cluster://a@", "one URL"]),
        "{ended:?}"
    );
    for url in [
        "redis://:s3cret@a,b",
        "redis-sentinel://:s3cret@a",
        "redis+cluster://:s3cret@a/x",
    ] {
        let ended = Cli::at(url.to_owned()).run(&["ls"]).await;
        assert_eq!(ended.status, USAGE, "{ended:?}");
        assert!(
            ended.stderr.contains("write ") && !ended.stderr.contains("s3cret"),
            "{ended:?}"
        );
    }
}

#[tokio::test]
async fn sentinels_and_their_master_have_logins_of_their_own() {
    let master = Server::start_with(&["--requirepass", "of-master"]).await;
    let sentinel = sentinel(&[("mine", &master)]).await;
    let pass = ["SENTINEL", "SET", "mine", "auth-pass", "of-master"];
    ask::<redis::Value>(&sentinel, &pass).await;
    let hosts = format!("127.0.0.1:{}", sentinel.port());
    let ls = async |url: String| Cli::at(url).run(&["ls"]).await;
    let ended = ls(format!("redis+sentinel://:of-master@{hosts}/mine")).await;
    assert_eq!(ended.status, 0, "{ended:?}");
    let ended = ls(format!("redis+sentinel://:s3cret@{hosts}/mine")).await;
    assert_eq!(ended.status, UNAVAILABLE, "{ended:?}");
    assert!(!ended.stderr.contains("s3cret"), "{ended:?}");

    let config = ["CONFIG", "SET", "requirepass", "of-sentinel"];
    let user = ["ACL", "SETUSER", "default", ">of-sentinel"];
    let mut command = redis::cmd(config[0]);
    let set: Result<redis::Value, _> = command.arg(&config[1..]).query_async(&mut sentinel.redis().await).await;
    if set.is_err() {
        ask::<redis::Value>(&sentinel, &[&user[..], &["resetpass"], &user[3..]].concat()).await;
    }
    let ended = ls(format!("redis+sentinel://:of-master@{hosts}/mine")).await;
    assert_eq!(ended.status, UNAVAILABLE, "{ended:?}");
    assert!(said(&ended.stderr, &["NOAUTH", "sentinel_password"]), "{ended:?}");
    let both = format!("redis+sentinel://:of-master@{hosts}/mine?sentinel_password=of-sentinel");
    let ended = ls(both.clone()).await;
    assert_eq!(ended.status, 0, "{ended:?}");
    assert!(!ended.stderr.contains("of-sentinel"), "{ended:?}");
    assert!(Cli::at(both).says(&["doctor"]).await.contains("Fit for locks"));
}

/// The command, trusting that authority.
async fn trusting(certificate: &Path, url: String, arguments: &[&str]) -> crate::command::Ended {
    let mut command = Cli::at(url).command(arguments);
    command.env("SSL_CERT_FILE", certificate);
    ended(command.spawn().unwrap()).await
}

#[tokio::test]
async fn tls_reaches_the_nodes_of_a_cluster() {
    if is_before_7().await {
        return;
    }
    let authority = Authority::new();
    let Some((mut server, port)) = tls::server(&authority, "no").await else {
        return;
    };
    server.kill();
    let bus = free_port().to_string();
    server.add_args(&[
        "--cluster-enabled",
        "yes",
        "--tls-cluster",
        "yes",
        "--cluster-port",
        &bus,
    ]);
    server.start_again().await;
    ask::<redis::Value>(&server, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
    eventually("the cluster is up", async || {
        let info: String = ask(&server, &["CLUSTER", "INFO"]).await;
        info.contains("cluster_state:ok")
    })
    .await;
    let certificate = server.dir().join("ca.pem");
    let url = format!("rediss+cluster://127.0.0.1:{port}");
    for arguments in [&["run", "a", "--", "true"][..], &["doctor"]] {
        let ended = trusting(&certificate, url.clone(), arguments).await;
        assert_eq!(ended.status, 0, "{ended:?}");
    }
    let ended = Cli::at(url).run(&["ls"]).await;
    assert!(said(&ended.stderr, &["UnknownIssuer", "SSL_CERT_FILE"]), "{ended:?}");
}

#[tokio::test]
async fn tls_reaches_sentinels_and_their_master() {
    let authority = Authority::new();
    let Some((master, port)) = tls::server(&authority, "no").await else {
        return;
    };
    let file = master.dir().join("sentinel.conf");
    std::fs::write(&file, format!("sentinel monitor mine 127.0.0.1 {port} 1\n")).unwrap();
    let of = |name: &str| master.dir().join(name).display().to_string();
    let (own, ca, cert, key) = (
        free_port().to_string(),
        of("ca.pem"),
        of("server.pem"),
        of("server.key"),
    );
    let program = [
        fairlock_support::server::program(),
        file.display().to_string(),
        "--sentinel".to_owned(),
    ];
    let args = [
        ["--tls-port", &own],
        ["--tls-auth-clients", "no"],
        ["--tls-replication", "yes"],
        ["--tls-ca-cert-file", &ca],
        ["--tls-cert-file", &cert],
        ["--tls-key-file", &key],
    ];
    let _sentinel = Server::start_program(&program, &args.concat()).await;
    let url = format!("rediss+sentinel://127.0.0.1:{own}/mine");
    for arguments in [&["run", "a", "--", "true"][..], &["doctor"]] {
        let ended = trusting(Path::new(&ca), url.clone(), arguments).await;
        assert_eq!(ended.status, 0, "{ended:?}");
    }
}
