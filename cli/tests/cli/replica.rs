//! A replica: commands that look there say so, and those that need events are refused.

use crate::command::{Cli, said};
use crate::scene::{client, stay};
use crate::serve::Served;
use fairlock_support::cluster::ask;
use fairlock_support::server::{Server, eventually};

/// A master with a holder of the lock `a`, and its replica that has the lock too.
pub async fn pair() -> (Server, Server) {
    let master = Server::start().await;
    let replica = Server::start_with(&["--replicaof", "127.0.0.1", &master.port().to_string()]).await;
    let holder = client(&master, "holder").await;
    let guard = holder.rw_lock("a").write().acquire_fair().await.unwrap();
    tokio::spawn(async move { guard.lost().await });
    let cli = Cli::of(&replica);
    eventually("the replica has the lock", async || {
        cli.run(&["show", "a"]).await.status == 0
    })
    .await;
    (master, replica)
}

#[tokio::test]
async fn commands_that_look_at_a_replica_say_so_once() {
    let (master, replica) = pair().await;
    let told = format!(
        "{} is a replica of 127.0.0.1:{}, and may be behind it\n",
        replica.url(),
        master.port()
    );
    for arguments in [
        &["ls"][..],
        &["show", "a"],
        &["top", "--once"],
        &["blockers", "a"],
        &["leader", "a"],
    ] {
        let ended = Cli::of(&replica).run(arguments).await;
        assert_eq!(ended.status, 0, "{arguments:?}: {ended:?}");
        assert_eq!(ended.stderr, format!("fairlock: {told}"), "{arguments:?}");
        assert!(ended.stdout.contains("holder"), "{arguments:?}: {ended:?}");
        let ended = Cli::of(&master).run(arguments).await;
        assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{arguments:?}");
    }
}

#[tokio::test]
async fn who_waits_for_events_is_sent_from_a_replica_to_its_master() {
    let (master, replica) = pair().await;
    let mut user = vec!["ACL", "SETUSER", "app", "on", ">s3cret", "~*", "&*", "+@all"];
    user.push("-role");
    ask::<redis::Value>(&replica, &user).await;
    let without_role = format!("redis://app:s3cret@127.0.0.1:{}", replica.port());
    let named = format!("127.0.0.1:{}", master.port());
    for (url, master) in [(replica.url(), named.as_str()), (without_role, "another server")] {
        for arguments in [&["watch"][..], &["watch", "a"], &["leader", "--watch", "a"]] {
            let ended = Cli::at(url.clone()).run(arguments).await;
            assert_eq!(
                (ended.status, ended.stdout.as_str()),
                (69, ""),
                "{arguments:?}: {ended:?}"
            );
            let words = ["is a replica of ", master, "no events", "--url"];
            assert!(said(&ended.stderr, &words), "{arguments:?}: {ended:?}");
        }
    }
}

#[tokio::test]
async fn the_page_of_a_replica_says_that_there_are_no_events_and_looks_instead() {
    let (master, replica) = pair().await;
    let served = Served::start(&Cli::of(&replica), &["--interval", "1ms"]).await;
    let site = served.document("/api/site").await;
    assert_eq!(site["events"], "none", "{site}");
    let why = site["no_events"].as_str().unwrap();
    assert!(said(why, &["a replica brings no events", "its master"]), "{why}");
    let refused = served.get("/api/events").await;
    assert_eq!(refused.status, 400, "{refused:?}");
    assert!(refused.body.contains("a replica brings no events"), "{refused:?}");
    // Only looks tell of its waits.
    let holding = client(&master, "holding").await;
    let guard = holding.rw_lock("b").write().acquire_fair().await.unwrap();
    stay(holding.rw_lock("b").write());
    eventually("the replica shows the wait", async || {
        served.document("/api/locks?text=b").await["totals"]["waiting"] == 1
    })
    .await;
    guard.release().await.unwrap();
    eventually("the wait is in the history", async || {
        served.document("/api/history?text=b").await["matching"] == 1
    })
    .await;
}
