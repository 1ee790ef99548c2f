//! `fairlock run` while it waits: what `--verbose` tells, and a wait for a lock that an outer `run` holds.

use crate::command::{Cli, Ended, ended, said};
use crate::scene::{client, queue, stay};
use fairlock::{Owner, Policy};
use fairlock_support::server::{Server, eventually, soon};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};

#[tokio::test]
async fn told_to_be_verbose_it_tells_its_position_and_each_change_of_it() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    // `billing` holds; `mailing` and `auditing` wait.
    let (owner, clients) = queue(&server, "a").await;
    let arguments = ["run", "--verbose", "--lease", "600s", "a", "--", "echo", "inside"];
    let mut waiting = cli.command(&arguments).spawn().unwrap();
    let mut told = BufReader::new(waiting.stderr.take().unwrap());
    let mut line = async || {
        let mut line = String::new();
        soon("a line", told.read_line(&mut line)).await.unwrap();
        line
    };
    let first = line().await;
    assert!(
        said(&first, &["a: position 2 of 3 in the queue", "held by billing"]),
        "{first}"
    );
    assert_eq!(clients[2].rw_lock("a").evict(&owner).await.unwrap(), 1);
    let second = line().await;
    assert!(
        said(&second, &["a: position 1 of 2 in the queue", "held by mailing"]),
        "{second}"
    );
    for label in ["mailing", "auditing"] {
        assert_eq!(cli.run(&["evict", "a", label, "--yes"]).await.status, 0);
    }
    let mut rest = String::new();
    soon("the end", told.read_to_string(&mut rest)).await.unwrap();
    let last = rest.lines().last().unwrap_or_default();
    assert!(said(last, &["a: entered after", "with token"]), "{rest}");
    let ended = ended(waiting).await;
    assert_eq!((ended.status, ended.stdout.as_str()), (0, "inside\n"), "{ended:?}");
}

#[tokio::test]
async fn told_to_be_verbose_it_gives_up_in_time_and_leaves_the_queue() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let holder = client(&server, "holder").await;
    let _guard = holder.rw_lock("a").write().acquire_fair().await.unwrap();
    // On a busy machine the limit may be over before there was a look at the queue.
    let mut limit = 200;
    loop {
        let wait = format!("{limit}ms");
        let ended = cli.run(&["run", "-v", "--wait", &wait, "a", "--", "true"]).await;
        assert_eq!(ended.status, 75, "{ended:?}");
        assert!(said(&ended.stderr, &["not acquired within"]), "{ended:?}");
        assert_eq!(server.queued("a").await, 0);
        if said(&ended.stderr, &["position 0 of 1", "held by holder"]) {
            break;
        }
        assert!(limit < 60_000, "{ended:?}");
        limit *= 2;
    }
    for options in [&["--no-wait"][..], &["--and", "b"]] {
        let arguments = [&["run", "--verbose"], options, &["a", "--", "true"]].concat();
        assert_eq!(cli.run(&arguments).await.status, 64, "{options:?}");
    }
}

#[tokio::test]
async fn a_server_that_grants_nothing_is_unavailable_and_not_busy() {
    // It has no replica, so it refuses all scripts.
    let server = Server::start_with(&["--min-replicas-to-write", "1"]).await;
    let cli = Cli::of(&server);
    for options in [&[][..], &["--verbose"]] {
        for wait in ["0", "10ms"] {
            let arguments = [&["run", "--wait", wait], options, &["a", "--", "true"]].concat();
            let ended = cli.run(&arguments).await;
            assert_eq!(ended.status, 69, "{arguments:?}: {ended:?}");
            assert!(said(&ended.stderr, &["NOREPLICAS"]), "{arguments:?}: {ended:?}");
        }
    }
}

/// A command line in a shell under the outer lock; `$0` is fairlock.
async fn inside(cli: &Cli, outer: &[&str], script: &str) -> Ended {
    let mut command = cli.command(&["run"]);
    command
        .args(outer)
        .args(["--", "sh", "-c", script, crate::command::BINARY]);
    ended(command.env("REDIS_URL", &cli.url).spawn().unwrap()).await
}

#[tokio::test]
async fn a_run_inside_another_one_does_not_wait_for_itself() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let words = ["already runs under", "would wait for itself", "--no-wait"];
    for (outer, inner) in [
        (&["a"][..], "run a -- true"),
        (&["--read", "a"], "run --read a -- true"),
        (&["a"], "run --and a b -- true"),
        (&["--and", "a", "b"], "run a -- true"),
        (&["--semaphore", "2", "pool"], "run --semaphore 2 pool -- true"),
        (
            &["--semaphore", "1", "--and", "data", "gpu"],
            "run --semaphore 1 gpu -- true",
        ),
        (&["--semaphore", "1", "--and", "data", "gpu"], "run --read data -- true"),
        (&["a"], "elect a -- true"),
        // Also over a lock in between.
        (&["a"], "run c -- \"$0\" run a -- true"),
    ] {
        let ended = inside(&cli, outer, &format!("exec \"$0\" {inner}")).await;
        assert_eq!(ended.status, 64, "{outer:?} {inner}: {ended:?}");
        assert!(said(&ended.stderr, &words), "{outer:?} {inner}: {ended:?}");
    }
    // What ends by itself, and other locks, are as before.
    for (inner, status) in [
        ("run --no-wait a -- true", 75),
        ("run --wait 10ms a -- true", 75),
        ("run b -- true", 0),
        ("--prefix other run a -- true", 0),
    ] {
        let ended = inside(&cli, &["a"], &format!("exec \"$0\" {inner}")).await;
        assert_eq!(ended.status, status, "{inner}: {ended:?}");
    }
    let under_election = ["sh", "-c", "exec \"$0\" run a -- true", crate::command::BINARY];
    let mut elect = cli.command(&["elect", "a", "--"]);
    elect.args(under_election).env("REDIS_URL", &cli.url);
    assert_eq!(ended(elect.spawn().unwrap()).await.status, 64);
}

#[tokio::test]
async fn a_process_that_outlived_the_outer_run_may_wait_for_its_lock() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let script = "setsid sh -c 'while kill -0 $1 2>/dev/null; do sleep 0.01; done; \"$0\" run a -- true; echo $? > \"$2\"' \
                  \"$0\" $PPID \"$FILE\" >/dev/null 2>&1 </dev/null &";
    let file = server.dir().join("status");
    let mut command = cli.command(&["run", "a", "--", "sh", "-c", script, crate::command::BINARY]);
    command.env("REDIS_URL", &cli.url).env("FILE", &file);
    assert_eq!(ended(command.spawn().unwrap()).await.status, 0);
    eventually("it has run", async || {
        std::fs::read_to_string(&file).is_ok_and(|status| status == "0\n")
    })
    .await;
}

#[tokio::test]
async fn a_request_that_is_evicted_while_it_waits_was_busy_and_lost_nothing() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let holder = client(&server, "holder").await;
    let _guard = holder.rw_lock("a").write().acquire_fair().await.unwrap();
    for options in [&[][..], &["--wait", "600s"], &["--verbose"], &["--and", "b"]] {
        let arguments = [&["run", "--label", "late"], options, &["a", "--", "echo", "it ran"]].concat();
        let waiting = cli.command(&arguments).spawn().unwrap();
        server.until_queued("a", 1).await;
        // It may still be about to introduce itself.
        let evicted = async || cli.run(&["evict", "a", "late", "--yes"]).await.status == 0;
        eventually("it is evicted", evicted).await;
        let ended = ended(waiting).await;
        assert_eq!(
            (ended.status, ended.stdout.as_str()),
            (75, ""),
            "{options:?}: {ended:?}"
        );
        let words = ["a: ", "evicted", "COMMAND has not run"];
        assert!(said(&ended.stderr, &words), "{options:?}: {ended:?}");
        assert!(!ended.stderr.contains("lost"), "{options:?}: {ended:?}");
    }
    let chosen = ["run", "--label", "late", "--busy-status", "4", "a", "--", "true"];
    let waiting = cli.command(&chosen).spawn().unwrap();
    server.until_queued("a", 1).await;
    let evicted = async || cli.run(&["evict", "a", "late", "--yes"]).await.status == 0;
    eventually("it is evicted", evicted).await;
    assert_eq!(ended(waiting).await.status, 4);
}

#[tokio::test]
async fn an_outage_while_it_waits_with_a_part_of_its_locks_is_no_busy_lock() {
    let mut server = Server::start().await;
    let cli = Cli::of(&server);
    let holder = client(&server, "holder").await;
    let _guard = holder.rw_lock("b").write().acquire_fair().await.unwrap();
    let arguments = ["run", "--lease", "3s", "--and", "b", "a", "--", "echo", "it ran"];
    let mut waiting = cli.command(&arguments).spawn().unwrap();
    tokio::select! {
        () = server.until_queued("b", 1) => {}
        // A starved process loses its lease without an outage, which is the same to it.
        _ = waiting.wait() => {}
    }
    server.kill();
    let ended = ended(waiting).await;
    assert_eq!((ended.status, ended.stdout.as_str()), (69, ""), "{ended:?}");
    assert!(said(&ended.stderr, &["a: ", "COMMAND has not run"]), "{ended:?}");
}

#[tokio::test]
async fn who_is_told_of_a_deadlock_was_busy() {
    let server = Server::start().await;
    let (reader, other) = (client(&server, "reader").await, client(&server, "other").await);
    let lock = |client: &fairlock::Client, name| client.rw_lock(name).policy(Policy::ReaderFirst);
    let _reads = lock(&reader, "a").read().acquire_fair().await.unwrap();
    let owner = Owner::new();
    let _b = lock(&other, "b")
        .with_owner(&owner)
        .write()
        .acquire_fair()
        .await
        .unwrap();
    stay(lock(&other, "a").with_owner(&owner).write());
    server.until_queued("a", 1).await;
    // It reads `a` past that waiter, and is the youngest of the circle when it waits for `b`.
    let arguments = [
        "run",
        "--lease",
        "600s",
        "--read",
        "--policy",
        "reader-first",
        "--and",
        "b",
        "a",
        "--",
    ];
    let ended = Cli::of(&server)
        .run(&[&arguments[..], &["echo", "it ran"]].concat())
        .await;
    assert_eq!((ended.status, ended.stdout.as_str()), (75, ""), "{ended:?}");
    assert!(said(&ended.stderr, &["\"b\"", "would never end"]), "{ended:?}");
}
