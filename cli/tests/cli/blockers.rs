//! `fairlock blockers`: from "it is stuck" to the owner to blame.

use crate::command::{Cli, said};
use crate::scene::{client, queue};
use fairlock_support::server::Server;

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
