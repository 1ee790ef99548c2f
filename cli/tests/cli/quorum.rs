//! The command on several servers that are a quorum.

use crate::command::{BINARY, Cli, ended, said};
use crate::scene::{LONG, spoil};
use fairlock::{Client, LostReason, Owner, Quorum};
use fairlock_support::server::{Server, connected, eventually, soon};
use futures::future::join_all;
use serde_json::Value;
use std::process::Stdio;

/// New servers that vote at once, as if their quarantine were over.
pub async fn fleet(servers: usize) -> Vec<Server> {
    let servers = join_all((0..servers).map(|_| Server::start())).await;
    for server in &servers {
        let mut redis = server.redis().await;
        let info: String = redis::cmd("INFO").arg("server").query_async(&mut redis).await.unwrap();
        let run = info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap();
        let mut set = redis::cmd("SET");
        set.arg("fairlock.q:life").arg(format!("{} 1", run.trim()));
        set.exec_async(&mut redis).await.unwrap();
    }
    servers
}

/// A client that has reached all servers.
pub async fn quorum(servers: &[Server], label: &str) -> Quorum {
    let builder = Quorum::builder("billing").longest_lease(LONG).lease(LONG).label(label);
    let quorum = builder.connect(servers.iter().map(Server::url)).await.unwrap();
    eventually("all servers", async || quorum.reached() == servers.len()).await;
    quorum
}

#[tokio::test]
async fn commands_see_and_use_a_lock_as_a_majority_keeps_it() {
    let mut servers = fleet(3).await;
    let (holding, waiting) = (quorum(&servers, "holding").await, quorum(&servers, "waiting").await);
    let guard = holding.rw_lock("a").write().acquire_fair().await.unwrap();
    let asking = waiting.rw_lock("a").read();
    let waiter = tokio::spawn(async move { asking.acquire_fair().await });
    let cli = Cli::of_all(&servers);
    let at_all = async || {
        let shown = cli.json(&["show", "a"]).await;
        let of_servers = shown["servers"].as_array().unwrap().iter();
        shown["holders"][0]["votes"] == 3 && of_servers.clone().all(|server| server["waiting"] == 1)
    };
    eventually("all servers keep the hold and the place", at_all).await;
    let listed = cli.json(&["ls"]).await;
    let of_lock = &listed[0];
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!((&of_lock["lock"], &of_lock["mode"]), (&"a".into(), &"write".into()));
    assert_eq!((&of_lock["votes"], &of_lock["servers"]), (&3.into(), &3.into()));
    assert_eq!((&of_lock["holding"], &of_lock["waiting"]), (&1.into(), &1.into()));
    let text = cli.says(&["show", "a"]).await;
    assert!(
        said(
            &text,
            &["Holding", "holding", "3 of 3", "Waiting", "waiting", "Servers", "votes"]
        ),
        "{text}"
    );
    let frame = cli.says(&["top", "--once"]).await;
    assert!(
        said(&frame, &["1 lock in use, 1 hold, 1 waiting", "holding", "R"]),
        "{frame}"
    );
    assert_eq!(cli.run(&["run", "--no-wait", "a", "--", "true"]).await.status, 75);
    let script = "test $FAIRLOCK_TOKEN -gt 0 && echo $FAIRLOCK_NAME && exit 3";
    let ran = cli.run(&["run", "b", "--", "sh", "-c", script]).await;
    assert_eq!((ran.status, ran.stdout.as_str()), (3, "b\n"), "{ran:?}");

    servers[0].kill();
    let listed = cli.run(&["ls"]).await;
    assert!(
        said(&listed.stdout, &["a ", "write", "at 2 of 3 servers"]),
        "{listed:?}"
    );
    assert!(listed.stderr.contains(&servers[0].url()), "{listed:?}");
    let owner = cli.owner_of("a").await;
    let evicted = cli.json(&["evict", "a", &owner, "--yes"]).await;
    assert_eq!((&evicted["evicted"], &evicted["servers"]), (&1.into(), &2.into()));
    assert_eq!(soon("the hold is lost", guard.lost()).await, LostReason::Evicted);
    let next = soon("the next one enters", waiter).await.unwrap().unwrap();
    next.release().await.unwrap();
    assert_eq!(cli.run(&["run", "a", "--", "true"]).await.status, 0);
    let nobody = cli.run(&["evict", "nothing", &owner, "--yes"]).await;
    assert_eq!(nobody.status, 66, "{nobody:?}");

    servers[1].kill();
    for arguments in [
        &["ls"][..],
        &["show", "a"],
        &["top", "--once"],
        &["evict", "a", &owner, "--yes"],
        &["run", "a", "--", "true"],
    ] {
        let ended = cli.run(arguments).await;
        assert_eq!(
            (ended.status, ended.stdout.as_str()),
            (69, ""),
            "{arguments:?}: {ended:?}"
        );
        let words = [
            "1 of 3 servers answer",
            "no majority",
            &servers[0].url(),
            &servers[1].url(),
        ];
        assert!(said(&ended.stderr, &words), "{arguments:?}: {ended:?}");
    }
}

#[tokio::test]
async fn who_holds_at_a_majority_holds_and_who_holds_at_fewer_servers_does_not() {
    let servers = fleet(3).await;
    // Clients of single servers: each hold of theirs is one vote.
    let owners = [Owner::new(), Owner::new()];
    let mut guards = Vec::new();
    for (server, owner) in servers.iter().zip([&owners[0], &owners[1], &owners[1]]) {
        let client = connected(Client::builder().prefix("fairlock.q").lease(LONG), server.url()).await;
        let lock = client.rw_lock("a").with_owner(owner);
        guards.push(lock.write().acquire_fair().await.unwrap());
    }
    let cli = Cli::of_all(&servers);
    let shown = cli.json(&["show", "a"]).await;
    assert_eq!(shown["holders"].as_array().unwrap().len(), 1, "{shown}");
    assert_eq!(shown["holders"][0]["owner"], owners[1].to_string());
    assert_eq!(
        (&shown["holders"][0]["votes"], &shown["mode"]),
        (&2.into(), &"write".into())
    );
    guards.pop().unwrap().release().await.unwrap();
    let shown = cli.json(&["show", "a"]).await;
    assert_eq!(
        (&shown["holding"], &shown["mode"]),
        (&0.into(), &Value::Null),
        "{shown}"
    );
}

#[tokio::test]
async fn an_owner_that_reentered_has_one_vote_of_each_server() {
    let servers = fleet(3).await;
    let (everywhere, at_one) = (Owner::new(), Owner::new());
    let mut guards = Vec::new();
    for (owner, servers) in [(&everywhere, &servers[..]), (&at_one, &servers[..1])] {
        for server in servers {
            let client = connected(Client::builder().prefix("fairlock.q").lease(LONG), server.url()).await;
            let lock = client.rw_lock("a").with_owner(owner);
            for _ in 0..2 {
                guards.push(lock.read().acquire_fair().await.unwrap());
            }
        }
    }
    let cli = Cli::of_all(&servers);
    let shown = cli.json(&["show", "a"]).await;
    let holders: Vec<_> = shown["holders"].as_array().unwrap().iter().collect();
    let votes: Vec<_> = holders
        .iter()
        .map(|holder| (&holder["owner"], &holder["votes"]))
        .collect();
    assert_eq!(votes, [(&everywhere.to_string().into(), &3.into())], "{shown}");
    let top = cli.json(&["top"]).await;
    assert_eq!(top[0]["holders"][0]["votes"], 3, "{top}");
    assert!(top[0].get("servers").is_none(), "{top}");
    let listed = cli.json(&["ls"]).await;
    let of_lock = (&listed[0]["votes"], &listed[0]["holding"]);
    assert_eq!(of_lock, (&3.into(), &1.into()), "{listed}");
}

#[tokio::test]
async fn a_lock_that_few_servers_can_read_is_a_line_with_what_they_say() {
    let servers = fleet(3).await;
    let holding = quorum(&servers, "holding").await;
    let _guards = [
        holding.rw_lock("a").write().acquire_fair().await.unwrap(),
        holding.rw_lock("b").write().acquire_fair().await.unwrap(),
    ];
    let cli = Cli::of_all(&servers);
    eventually("all servers keep the holds", async || {
        let listed = cli.json(&["ls"]).await;
        listed[0]["votes"] == 3 && listed[1]["votes"] == 3
    })
    .await;
    spoil(&servers[0], "fairlock.q:{a}").await;
    let listed = cli.run(&["ls"]).await;
    assert_eq!(listed.status, 0, "a majority reads it: {listed:?}");
    assert!(
        said(&listed.stdout, &["a ", "write ", "at 2 of 3 servers"]),
        "{listed:?}"
    );
    assert!(said(&listed.stderr, &[&servers[0].url(), "WRONGTYPE"]), "{listed:?}");
    spoil(&servers[1], "fairlock.q:{a}").await;
    let listed = cli.run(&["ls"]).await;
    assert_eq!(listed.status, 69, "{listed:?}");
    let words = [
        "a ",
        "error ",
        &servers[0].url(),
        "WRONGTYPE",
        &servers[1].url(),
        "\nb ",
        "write ",
    ];
    assert!(said(&listed.stdout, &words), "{listed:?}");
}

#[tokio::test]
async fn a_server_that_restarted_empty_shows_its_quarantine() {
    let mut servers = fleet(3).await;
    let holding = quorum(&servers, "holding").await;
    let guard = holding.rw_lock("a").write().acquire_fair().await.unwrap();
    servers[2].kill();
    servers[2].start_again().await;
    // The holder asks it again, and it grants the lock to nobody meanwhile.
    let cli = Cli::of_all(&servers);
    let quarantined = async || {
        let shown = cli.json(&["show", "a"]).await;
        shown["servers"][2]["quarantine_ms"]
            .as_u64()
            .is_some_and(|left| left > 0)
    };
    eventually("the third server is in quarantine", quarantined).await;
    let text = cli.says(&["show", "a"]).await;
    assert!(
        said(
            &text,
            &["2 of 3", "Servers", "votes", "votes", "in quarantine, votes in"]
        ),
        "{text}"
    );
    assert!(guard.is_held());
}

#[tokio::test]
async fn the_first_use_of_a_quorum_needs_its_name_and_later_ones_take_it_from_the_servers() {
    let servers = join_all((0..3).map(|_| Server::start())).await;
    let cli = Cli::of_all(&servers);
    let unnamed = cli.run(&["run", "a", "--", "true"]).await;
    assert_eq!(unnamed.status, 64, "{unnamed:?}");
    assert!(
        said(&unnamed.stderr, &["no quorum yet", "--quorum", "--longest-lease"]),
        "{unnamed:?}"
    );
    let named = ["--quorum", "billing", "--longest-lease", "1s", "run", "a", "--", "true"];
    assert_eq!(cli.run(&named).await.status, 0);
    assert_eq!(cli.run(&["run", "a", "--", "true"]).await.status, 0);
    for other in [["--quorum", "mailing"], ["--longest-lease", "2s"]] {
        let other = cli.run(&[&other[..], &["run", "a", "--", "true"]].concat()).await;
        assert_eq!(other.status, 64, "{other:?}");
        assert!(
            said(&other.stderr, &["belongs to another quorum", "billing of 3 1000"]),
            "{other:?}"
        );
    }
    let longer = cli.run(&["run", "--lease", "2s", "a", "--", "true"]).await;
    assert_eq!(longer.status, 64, "{longer:?}");
}

#[tokio::test]
async fn what_a_quorum_does_not_have_is_refused_with_what_to_do() {
    // Nobody listens there: the command refuses before it connects.
    let cli = Cli::at("redis://127.0.0.1:1 redis://127.0.0.1:2 redis://127.0.0.1:3".to_owned());
    let at_one = "--url URL --prefix fairlock.q";
    for (arguments, words) in [
        (&["watch"][..], [at_one, "watch"]),
        (&["blockers", "billing"], [at_one, "blockers billing"]),
        (&["show", "--raw", "a"], [at_one, "show --raw a"]),
        (&["leader", "a"], ["no elections", "single server"]),
        (&["elect", "a", "--", "true"], ["no elections", "single server"]),
        (
            &["run", "--semaphore", "2", "a", "--", "true"],
            ["--semaphore", "single server"],
        ),
        (
            &["run", "--and", "b", "a", "--", "true"],
            ["--and", "one command inside the other"],
        ),
        (
            &["run", "--max-queue", "2", "a", "--", "true"],
            ["--max-queue", "--wait"],
        ),
        (
            &["run", "--at-least", "1s", "a", "--", "true"],
            ["--at-least", "end later"],
        ),
        (
            &["run", "--verbose", "a", "--", "true"],
            ["--verbose", "a queue of its own"],
        ),
    ] {
        let ended = cli.run(arguments).await;
        assert_eq!(
            (ended.status, ended.stdout.as_str()),
            (64, ""),
            "{arguments:?}: {ended:?}"
        );
        assert!(said(&ended.stderr, &words), "{arguments:?}: {ended:?}");
    }
    // The help and the page name all options that a quorum lacks.
    let page = include_str!("../../../docs/command.md");
    let help = cli.says(&["--help"]).await;
    let of_page = page.split("**What a majority cannot keep**").nth(1).unwrap();
    let of_help = help.split("SEVERAL SERVERS").nth(1).unwrap();
    for option in ["--semaphore", "--and", "--max-queue", "--at-least", "--verbose"] {
        let is_named = |text: &str| text.split("\n\n").next().unwrap_or_default().contains(option);
        assert!(is_named(of_page) && is_named(of_help), "{option}");
    }
    for (urls, arguments) in [
        ("redis://127.0.0.1:1 redis://127.0.0.1:2", &["ls"][..]),
        ("redis://127.0.0.1:1", &["--quorum", "billing", "ls"]),
    ] {
        let ended = Cli::at(urls.to_owned()).run(arguments).await;
        assert_eq!(ended.status, 64, "{ended:?}");
        assert!(
            said(&ended.stderr, &["a quorum has 3, 5, 7 or 9", "--url"]),
            "{ended:?}"
        );
    }
}

#[tokio::test]
async fn one_server_that_is_named_several_times_is_no_majority() {
    // Nobody listens there: the command refuses before it connects. Databases of one server are lost together.
    let at = "redis://127.0.0.1";
    for urls in [
        format!("{at}:1 {at}:1 {at}:1"),
        format!("{at}:1/1 {at}:2 {at}:1/2"),
        format!("{at}:1 redis://app:s3cret@127.0.0.1:1 {at}:2"),
    ] {
        for arguments in every_command() {
            let ended = Cli::at(urls.clone()).run(arguments).await;
            assert_eq!(
                (ended.status, ended.stdout.as_str()),
                (64, ""),
                "{arguments:?}: {ended:?}"
            );
            let words = [TWICE, "127.0.0.1:1", "127.0.0.1:1", "name each server once"];
            assert!(
                said(&ended.stderr, &words) && !ended.stderr.contains("s3cret"),
                "{arguments:?}: {ended:?}"
            );
        }
    }
}

#[tokio::test]
async fn two_names_of_one_server_are_no_majority() {
    let servers = fleet(2).await;
    let (one, other) = (servers[0].url(), servers[1].url());
    let cli = Cli::at(format!("{one} {other} {}", one.replace("127.0.0.1", "localhost")));
    for arguments in every_command() {
        let ended = cli.run(arguments).await;
        assert_eq!(
            (ended.status, ended.stdout.as_str()),
            (64, ""),
            "{arguments:?}: {ended:?}"
        );
        assert!(ended.stderr.contains(TWICE), "{arguments:?}: {ended:?}");
    }
}

#[tokio::test]
async fn a_quorum_that_the_library_refuses_is_wrong_usage() {
    let servers = fleet(3).await;
    let (one, other) = (servers[0].url(), servers[1].url());
    let twice = format!("{one} {other} {}", one.replace("127.0.0.1", "localhost"));
    for (urls, name, words) in [
        (Cli::of_all(&servers).url, "bill ing", "like a label"),
        (twice, "billing", TWICE),
    ] {
        let run = ["--quorum", name, "--longest-lease", "1s", "run", "a", "--", "true"];
        let ended = Cli::at(urls).run(&run).await;
        assert_eq!(ended.status, 64, "{ended:?}");
        assert!(said(&ended.stderr, &["is refused", words]), "{ended:?}");
    }
}

const TWICE: &str = "two addresses of the quorum lead to one server";

fn every_command() -> [&'static [&'static str]; 6] {
    [
        &["ls"],
        &["show", "a"],
        &["top", "--once"],
        &["evict", "a", "00000000-0000-0000-0000-000000000001", "--yes"],
        &["serve", "--listen", "127.0.0.1:0"],
        &["--quorum", "billing", "--longest-lease", "1s", "run", "a", "--", "true"],
    ]
}

#[tokio::test]
async fn a_run_inside_another_one_is_refused_on_the_same_quorum_and_not_on_another_one() {
    let (servers, others) = (fleet(3).await, fleet(3).await);
    let (_outer, _inner) = (quorum(&servers, "outer").await, quorum(&others, "inner").await);
    let inside = async |inner: String| {
        let script = "for url in $INNER; do set -- \"$@\" --url \"$url\"; done; exec \"$0\" \"$@\" run a -- true";
        let arguments = ["run", "a", "--", "sh", "-c", script, BINARY];
        let mut command = Cli::of_all(&servers).command(&arguments);
        ended(command.env("INNER", inner).spawn().unwrap()).await
    };
    let other = inside(Cli::of_all(&others).url).await;
    assert_eq!(other.status, 0, "{other:?}");
    let urls: Vec<_> = servers.iter().rev().map(Server::url).collect();
    // In another order, and with another name of a server.
    let same = [urls.join(" "), urls.join(" ").replacen("127.0.0.1", "localhost", 1)];
    for urls in same {
        let refused = inside(urls.clone()).await;
        assert_eq!(refused.status, 64, "{urls}: {refused:?}");
        assert!(
            said(&refused.stderr, &["already runs under a", "--wait"]),
            "{refused:?}"
        );
    }
}

/// A vote that is asked for again has a request of its own, and still counts for its owner.
#[tokio::test]
async fn a_command_whose_lock_a_server_forgot_still_shows_as_one_holder() {
    let servers = fleet(3).await;
    let _first = quorum(&servers, "first").await;
    let cli = Cli::of_all(&servers);
    let mut command = cli.command(&["run", "a", "--", "cat"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let votes = async || {
        // Before anybody asks there is no lock to show.
        let shown = cli.run(&["show", "a", "--json"]).await;
        serde_json::from_str::<Value>(&shown.stdout).is_ok_and(|shown| shown["holders"][0]["votes"] == 3)
    };
    eventually("all votes", votes).await;
    let mut redis = servers[0].redis().await;
    let mut forget = redis::cmd("DEL");
    forget
        .arg("fairlock.q:{a}")
        .arg("fairlock.q:{a}:q")
        .arg("fairlock.q:{a}:l");
    forget.exec_async(&mut redis).await.unwrap();
    // Then its clients look at once.
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg("TYPE").arg("pubsub");
    kill.exec_async(&mut redis).await.unwrap();
    eventually("all votes again", votes).await;
    let owner = cli.owner_of("a").await;
    let evicted = cli.run(&["evict", "a", &owner, "--yes"]).await;
    assert_eq!(evicted.status, 0, "{evicted:?}");
    drop(child.stdin.take());
    let ended = ended(child).await;
    assert_ne!(ended.status, 0, "its lock was lost: {ended:?}");
}
