//! `fairlock show`: who holds a lock and who waits for it; and what all commands say of a lock that does not exist, and of a
//! lease that is over.

use crate::command::{Cli, Ended, said};
use crate::scene::{client, end_lease, pool, queue};
use fairlock_support::server::Server;
use serde_json::Value;

const UNAVAILABLE: i32 = 69;
const NO_LOCK: i32 = 66;

#[tokio::test]
async fn tells_who_holds_and_who_waits_in_order() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (owner, _clients) = queue(&server, "a").await;
    let (owner, process) = (owner.to_string(), std::process::id().to_string());
    let text = cli.says(&["show", "a"]).await;
    let words = [
        "a: held to write, 1 hold, 2 waiting, fifo",
        "OWNER",
        &owner,
        "write",
        "billing",
        &process,
        "Waiting",
        "read",
        "mailing",
        "write",
        "auditing",
    ];
    assert!(said(&text, &words), "{text}");
    let status = cli.json(&["show", "a"]).await;
    assert_eq!((&status["mode"], &status["policy"]), (&"write".into(), &"fifo".into()));
    assert_eq!(status["holders"][0]["owner"], owner);
    assert!(status["holders"][0]["token"].as_u64().is_some_and(|token| token > 0));
    assert_eq!(status["waiters"][1]["client"]["label"], "auditing");
    assert_eq!(status["waiters"][1]["position"], 1);
}

#[tokio::test]
async fn tells_who_has_how_many_permits_of_a_semaphore_and_who_waits_for_how_many() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let _clients = pool(&server, "gpu").await;
    let text = cli.says(&["show", "gpu"]).await;
    let words = [
        "gpu: held to read, 1 hold, 3/4 permits, 1 waiting, bounded",
        "Holding",
        "read, 3 permits",
        "training",
        "Waiting",
        "read, 2 permits",
        "tuning",
    ];
    assert!(said(&text, &words), "{text}");
    let status = cli.json(&["show", "gpu", "--raw"]).await;
    assert_eq!((&status["limit"], &status["used"]), (&4.into(), &3.into()));
    assert_eq!(status["holders"][0]["permits"], 3);
    assert_eq!(status["waiters"][0]["permits"], 2);
    assert_eq!(
        (&status["raw"]["limit"], &status["raw"]["used"]),
        (&4.into(), &3.into())
    );
}

#[tokio::test]
async fn shows_the_state_as_it_lies_in_the_server() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (_owner, _clients) = queue(&server, "a").await;
    let text = cli.says(&["show", "a", "--raw"]).await;
    let words = [
        "State:",
        "seq",
        "token",
        "first",
        "near",
        "writes    1",
        "waiting   2",
        "holder    w",
    ];
    assert!(said(&text, &words), "{text}");
    let raw = &cli.json(&["show", "a", "--raw"]).await["raw"];
    assert_eq!(
        (&raw["writes"], &raw["waiting"], &raw["sole"]),
        (&1.into(), &2.into(), &0.into())
    );
    assert!(raw["seq"].as_u64() > raw["token"].as_u64(), "{raw}");
    assert!(cli.json(&["show", "a"]).await.get("raw").is_none());
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
    let user = client(&server, "user").await;
    let guard = user.rw_lock(name).write().acquire_fair().await.unwrap();
    assert!(cli.says(&["show", name]).await.contains("held to write"));
    guard.release().await.unwrap();
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
async fn a_holder_whose_lease_is_over_is_marked() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let holder = client(&server, "frozen").await;
    let _held = holder.rw_lock("a").write().acquire_fair().await.unwrap();
    end_lease(&server, "a", 'w').await;
    let shown = cli.says(&["show", "a"]).await;
    let words = ["a: expired", "the next request enters", "Holding", "expired ", " ago"];
    assert!(said(&shown, &words), "{shown}");
    let listed = cli.says(&["ls"]).await;
    assert!(said(&listed, &["\na ", "expired ", " ago: frozen "]), "{listed}");
    let top = cli.says(&["top", "--once", "--size", "160x28"]).await;
    assert!(
        said(
            &top,
            &["a ", "expired ", " ago: frozen", "a: 1 hold", "expired ", " ago"]
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
    // The next request ends the hold and enters.
    let next = client(&server, "next").await;
    let _next = next
        .rw_lock("a")
        .write()
        .try_acquire()
        .await
        .unwrap()
        .expect("the lock");
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
    let readers = [client(&server, "one").await, client(&server, "other").await];
    let _one = readers[0].rw_lock("a").read().acquire_fair().await.unwrap();
    let _other = readers[1].rw_lock("a").read().acquire_fair().await.unwrap();
    end_lease(&server, "a", 'r').await;
    let shown = cli.says(&["show", "a"]).await;
    assert!(
        said(&shown, &["a: held to read, 2 holds, 1 of them expired", "expired "]),
        "{shown}"
    );
    assert_eq!(shown.matches(" ago").count(), 1, "{shown}");
    assert_eq!(cli.json(&["show", "a"]).await["expired"], false);
}
