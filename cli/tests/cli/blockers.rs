//! `fairlock blockers`: from "it is stuck" to the owner to blame.

use crate::command::{Cli, said};
use crate::scene::{LONG, client, queue};
use fairlock::{Client, Owner};
use fairlock_support::server::{Server, connected};
use std::time::Duration;

#[tokio::test]
async fn leads_from_who_is_stuck_to_who_is_to_blame() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (owner, clients) = queue(&server, "a").await;
    let text = cli.says(&["blockers", "auditing"]).await;
    let owner_text = owner.to_string();
    let words = [
        "auditing waits for a, position 1",
        &owner_text,
        "billing",
        "1 request ahead",
        "mailing",
    ];
    assert!(said(&text, &words), "{text}");
    let found = cli.json(&["blockers", "auditing"]).await;
    let wait = &found["waits"][0];
    assert_eq!(
        (&wait["lock"], &wait["places"][0]["position"]),
        (&"a".into(), &1.into())
    );
    assert_eq!(wait["holders"][0]["owner"], owner_text);
    assert_eq!(wait["ahead"][0]["client"]["label"], "mailing");
    // By the owner itself, in any case.
    let waiting = wait["places"][0]["owner"].as_str().unwrap().to_uppercase();
    assert!(cli.says(&["blockers", &waiting]).await.contains("billing"));

    let nobody = cli.run(&["blockers", "billing"]).await;
    assert_eq!(nobody.status, 1);
    assert!(
        said(&nobody.stderr, &["billing waits for nothing", "holds a"]),
        "{nobody:?}"
    );

    // The holder waits for another lock; and then its holder for what the one who asks holds.
    let blamed = client(&server, "blamed").await;
    let _guard = blamed.rw_lock("b").write().acquire_fair().await.unwrap();
    tokio::spawn(clients[0].rw_lock("b").write().acquire_fair());
    server.until_queued("b", 1).await;
    let text = cli.says(&["blockers", "auditing"]).await;
    assert!(
        said(&text, &["for a", "billing", "holds a", "for b", "blamed"]),
        "{text}"
    );
    assert!(!text.contains("circle"), "{text}");
    let _held = clients[2].rw_lock("c").write().acquire_fair().await.unwrap();
    tokio::spawn(blamed.rw_lock("c").write().acquire_fair());
    server.until_queued("c", 1).await;
    let text = cli.says(&["blockers", "auditing"]).await;
    assert!(said(&text, &["for b", "for c", "circle"]), "{text}");
}

#[tokio::test]
async fn says_that_it_is_a_deadlock_only_of_owners_that_wait_for_each_other() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    // Clients that do not search, so that the circle stays.
    let client = async |label: &str| {
        let builder = Client::builder().label(label).lease(LONG);
        connected(builder.deadlock_timeout(Duration::MAX), server.url()).await
    };
    let (red, blue) = (client("red").await, client("blue").await);
    let owners = [Owner::new(), Owner::new()];
    let _a = red
        .rw_lock("a")
        .with_owner(&owners[0])
        .write()
        .acquire_fair()
        .await
        .unwrap();
    let _b = blue
        .rw_lock("b")
        .with_owner(&owners[1])
        .write()
        .acquire_fair()
        .await
        .unwrap();
    let ask = |client: &Client, lock: &str, owner: &Owner| {
        tokio::spawn(client.rw_lock(lock).with_owner(owner).write().acquire_fair())
    };
    let first = ask(&red, "b", &owners[0]);
    server.until_queued("b", 1).await;
    // Of the same process, and not of the same owner: a circle of processes, and no deadlock.
    let other = ask(&blue, "a", &Owner::new());
    server.until_queued("a", 1).await;
    let text = cli.says(&["blockers", "red"]).await;
    assert!(text.contains("may be a circle") && !text.contains("deadlock"), "{text}");
    assert!(cli.json(&["blockers", "red"]).await["deadlock"].is_null());
    other.abort();
    server.until_queued("a", 0).await;
    let second = ask(&blue, "a", &owners[1]);
    server.until_queued("a", 1).await;
    let text = cli.says(&["blockers", "red"]).await;
    let [one, two] = owners.map(|owner| owner.to_string());
    assert!(
        said(&text, &["This is a deadlock", &one, "red", "waits for b", &two]),
        "{text}"
    );
    let circle = cli.json(&["blockers", "blue"]).await["deadlock"].clone();
    assert_eq!(circle.as_array().map(Vec::len), Some(2), "{circle}");
    assert_eq!(
        (&circle[0]["owner"], &circle[0]["waits_for"]),
        (&two.into(), &"a".into())
    );
    first.abort();
    second.abort();
}

#[tokio::test]
async fn sees_no_circle_in_a_reader_that_waits_to_write() {
    let server = Server::start().await;
    let (upgrading, reading) = (client(&server, "upgrading").await, client(&server, "reading").await);
    let _read = reading.rw_lock("a").read().acquire_fair().await.unwrap();
    let guard = upgrading.rw_lock("a").read().acquire_fair().await.unwrap();
    let write = tokio::spawn(async move { guard.upgrade().await.map(drop) });
    server.until_queued("a", 1).await;
    let found = Cli::of(&server).json(&["blockers", "upgrading"]).await;
    let wait = &found["waits"][0];
    assert_eq!(wait["closes_circle"], false, "{found}");
    assert_eq!(wait["holders"].as_array().unwrap().len(), 2, "{found}");
    write.abort();
}
