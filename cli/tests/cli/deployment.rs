//! Locks on more than one server: in a cluster, and on the master that a Sentinel names.

use crate::command::{Cli, Ended, said};
use crate::scene::{LONG, client};
use crate::serve::Served;
use fairlock_support::cluster::{Cluster, ask};
use fairlock_support::server::{Server, eventually};
use futures::future::join_all;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const USAGE: i32 = 64;
const UNAVAILABLE: i32 = 69;

pub async fn is_before_7() -> bool {
    let is = Server::start().await.is_before_7().await;
    if is {
        println!("skipped: a cluster on free ports needs Redis 7");
    }
    is
}

#[tokio::test]
async fn commands_find_and_use_the_locks_of_all_nodes_in_a_cluster() {
    if is_before_7().await {
        return;
    }
    let cluster = Cluster::of(3, 0).await;
    let holder = cluster.client(LONG).await;
    let (mut names, mut guards) = (Vec::new(), Vec::new());
    for node in 0..3 {
        let name = cluster.lock_on(node).await;
        guards.push(holder.rw_lock(&*name).write().acquire_fair().await.unwrap());
        names.push(name);
    }
    let cli = Cli::of(&cluster.nodes[0]);
    let listed = cli.json(&["ls"]).await;
    let listed: Vec<_> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|lock| lock["lock"].clone())
        .collect();
    let mut sorted = names.clone();
    sorted.sort();
    assert_eq!(
        listed,
        sorted.iter().map(|name| Value::from(name.as_str())).collect::<Vec<_>>()
    );
    let text = cli.says(&["top", "--once"]).await;
    assert!(text.contains("3 locks in use"), "{text}");
    for (name, guard) in names.iter().zip(&guards) {
        assert_eq!(cli.run(&["run", "--no-wait", name, "--", "true"]).await.status, 75);
        let owner = cli.owner_of(name).await;
        assert_eq!(owner, guard.owner().to_string());
        let evicted = cli.json(&["evict", name, &owner, "--yes"]).await;
        assert_eq!(evicted["evicted"], 1);
        let ran = cli.run(&["run", name, "--", "sh", "-c", "echo $FAIRLOCK_NAME"]).await;
        assert_eq!((ran.status, ran.stdout.trim_end()), (0, name.as_str()), "{ran:?}");
    }
    let all: Ended = cli.run(&["watch"]).await;
    assert_eq!(all.status, USAGE, "{all:?}");
    assert!(said(&all.stderr, &["events of all locks", "single locks"]), "{all:?}");
}

/// A way to a node on which no script ever arrives, and nothing after it on the same connection. Returns its port.
async fn without_scripts(node: &Server) -> u16 {
    let to = node.port();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let carry = move |client: TcpStream| async move {
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_node, mut to_node) = TcpStream::connect(("127.0.0.1", to)).await?.into_split();
        let replies = tokio::spawn(async move { tokio::io::copy(&mut from_node, &mut to_client).await });
        let (mut chunk, mut is_silent) = (vec![0; 64 * 1024], false);
        while let Ok(read @ 1..) = from_client.read(&mut chunk).await {
            let is_script = |words: &[u8]| words.eq_ignore_ascii_case(b"FCALL") || words.eq_ignore_ascii_case(b"EVALS");
            is_silent |= chunk[..read].windows(5).any(is_script);
            if !is_silent {
                to_node.write_all(&chunk[..read]).await?;
            }
        }
        replies.abort();
        std::io::Result::Ok(())
    };
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(carry(client));
        }
    });
    port
}

#[tokio::test]
async fn locks_of_a_node_that_is_slow_are_lines_with_errors_and_hide_no_others() {
    if is_before_7().await {
        return;
    }
    // More than the command asks for at a time.
    const SILENT: usize = 80;
    let cluster = Cluster::of(3, 0).await;
    let holder = cluster.client(LONG).await;
    let silent = cluster.locks_on(1, SILENT).await;
    let mut readable = [cluster.lock_on(0).await, cluster.lock_on(2).await];
    readable.sort();
    let hold = |name: &String| holder.rw_lock(name.as_str()).write().acquire_fair();
    let guards = join_all(silent.iter().chain(&readable).map(hold)).await;
    assert!(guards.iter().all(Result::is_ok));
    let port = without_scripts(&cluster.nodes[1]).await;
    let announced = port.to_string();
    ask::<redis::Value>(
        &cluster.nodes[1],
        &["CONFIG", "SET", "cluster-announce-port", &announced],
    )
    .await;
    // All of them: the command may ask any node for the slots, and would go round the silence by what a late one says.
    for node in &cluster.nodes {
        eventually("every node knows", async || {
            let owners = cluster.owners(node).await;
            owners.iter().any(|(.., owner)| *owner == port)
        })
        .await;
    }
    let cli = Cli::of(&cluster.nodes[0]);
    let all_others = async || {
        let listed = cli.run(&["ls", "--json"]).await;
        // A busy machine may be late with the search for names, and then the whole fails.
        if listed.stderr.contains("about lock \"*\"") {
            return false;
        }
        let locks: Value = serde_json::from_str(&listed.stdout).unwrap_or_else(|_| panic!("{listed:?}"));
        let locks = locks.as_array().unwrap();
        let (errors, others): (Vec<_>, Vec<_>) = locks.iter().partition(|lock| lock["error"].is_string());
        assert_eq!((listed.status, locks.len()), (UNAVAILABLE, SILENT + 2), "{listed:?}");
        assert!(errors.len() >= SILENT, "{listed:?}");
        // Or with these.
        let names: Vec<_> = others
            .iter()
            .filter(|lock| lock["holding"] == 1)
            .map(|lock| &lock["lock"])
            .collect();
        names == [&readable[0], &readable[1]]
    };
    eventually("the locks of the other nodes are there", all_others).await;
    // If no lock can be read, the whole is not there.
    for arguments in [["ls", &silent[0]], ["top", &silent[0]]] {
        let ended = cli.run(&arguments).await;
        assert_eq!((ended.status, ended.stdout.as_str()), (UNAVAILABLE, ""), "{ended:?}");
        assert!(said(&ended.stderr, &["did not answer about lock"]), "{ended:?}");
    }
}

/// A sentinel that watches these masters.
pub async fn sentinel(masters: &[(&str, &Server)]) -> Server {
    let file = masters[0].1.dir().join("sentinel.conf");
    let watch =
        |(name, master): &(&str, &Server)| format!("sentinel monitor \"{name}\" 127.0.0.1 {} 1\n", master.port());
    std::fs::write(&file, masters.iter().map(watch).collect::<String>()).unwrap();
    let binary = std::env::var("FAIRLOCK_TEST_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
    let program = [binary, file.display().to_string(), "--sentinel".to_owned()];
    Server::start_program(&program, &[]).await
}

#[tokio::test]
async fn commands_use_the_one_master_of_a_sentinel() {
    let master = Server::start().await;
    let sentinel = sentinel(&[("mine", &master)]).await;
    let holder = client(&master, "holder").await;
    let _held = holder.rw_lock("a").write().acquire_fair().await.unwrap();
    let cli = Cli::of(&sentinel);
    assert!(cli.says(&["ls"]).await.contains("holder"));
    assert!(cli.says(&["show", "a"]).await.starts_with("a: held to write"));
    assert_eq!(cli.run(&["run", "--no-wait", "a", "--", "true"]).await.status, 75);
    assert_eq!(cli.run(&["run", "b", "--", "sh", "-c", "exit 3"]).await.status, 3);
    assert!(cli.says(&["doctor"]).await.contains("Fit for locks."));
}

#[tokio::test]
async fn serve_shows_the_master_of_a_sentinel_and_follows_it_to_the_next_one() {
    let (mut first, second) = (Server::start().await, Server::start().await);
    let sentinel = sentinel(&[("mine", &first)]).await;
    let holders = [client(&first, "first").await, client(&second, "second").await];
    let _held = holders[0].rw_lock("a").write().acquire_fair().await.unwrap();
    let _also = holders[1].rw_lock("b").write().acquire_fair().await.unwrap();
    let served = Served::start(&Cli::of(&sentinel), &["--interval", "10ms"]).await;
    let list = served.document("/api/locks").await;
    assert_eq!(list["locks"][0]["holder"]["client"]["label"], "first", "{list}");
    let lock = served.document("/api/lock?name=a").await;
    assert_eq!(lock["holding"], 1, "{lock}");
    let site = served.document("/api/site").await;
    assert_eq!(
        (&site["events"], &site["server"]),
        (&"all".into(), &sentinel.url().into())
    );

    first.kill();
    let port = second.port().to_string();
    ask::<redis::Value>(&sentinel, &["SENTINEL", "REMOVE", "mine"]).await;
    ask::<redis::Value>(&sentinel, &["SENTINEL", "MONITOR", "mine", "127.0.0.1", &port, "1"]).await;
    eventually("the locks of the next master", async || {
        let answer = served.get("/api/locks").await;
        answer.status == 200 && answer.json()["locks"][0]["lock"] == "b"
    })
    .await;
}

#[tokio::test]
async fn a_sentinel_of_several_masters_is_refused_and_its_masters_are_named() {
    let (one, other) = (Server::start().await, Server::start().await);
    let sentinel = sentinel(&[("one", &one), ("other", &other)]).await;
    let cli = Cli::of(&sentinel);
    for arguments in [&["ls"][..], &["run", "a", "--", "true"], &["watch"]] {
        let ended = cli.run(arguments).await;
        assert_eq!((ended.status, ended.stdout.as_str()), (USAGE, ""), "{ended:?}");
        for (name, master) in [("one", &one), ("other", &other)] {
            let (own, its) = (sentinel.port(), master.port());
            let address = format!("redis+sentinel://127.0.0.1:{own}/{name} (at 127.0.0.1:{its})");
            assert!(ended.stderr.contains(&address), "{ended:?}");
        }
    }
}

#[tokio::test]
async fn a_sentinel_that_watches_no_master_yet_is_unavailable() {
    let master = Server::start().await;
    let sentinel = sentinel(&[("mine", &master)]).await;
    ask::<redis::Value>(&sentinel, &["SENTINEL", "REMOVE", "mine"]).await;
    let ended = Cli::of(&sentinel).run(&["ls"]).await;
    assert_eq!(ended.status, UNAVAILABLE, "{ended:?}");
    assert!(said(&ended.stderr, &["no master yet"]), "{ended:?}");
}

#[tokio::test]
async fn a_cluster_without_slots_is_unavailable_and_doctor_says_that_no_lock_works() {
    if is_before_7().await {
        return;
    }
    let cluster = Cluster::of(1, 0).await;
    ask::<redis::Value>(&cluster.nodes[0], &["CLUSTER", "FLUSHSLOTS"]).await;
    let cli = Cli::of(&cluster.nodes[0]);
    for arguments in [&["ls"][..], &["run", "a", "--", "true"]] {
        let ended = cli.run(arguments).await;
        assert_eq!(ended.status, UNAVAILABLE, "{arguments:?}: {ended:?}");
        assert!(said(&ended.stderr, &["no slots"]), "{arguments:?}: {ended:?}");
    }
    let doctor = cli.run(&["doctor"]).await;
    assert_eq!(doctor.status, 1, "{doctor:?}");
    let wrong = |line: &str| said(line, &["WRONG", "answer", "no lock works"]);
    assert!(doctor.stdout.lines().any(wrong), "{doctor:?}");
}
