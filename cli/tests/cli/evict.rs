//! `fairlock evict`

use crate::command::Cli;
use crate::scene::{queue, stay};
use fairlock_support::server::{Server, eventually};

#[tokio::test]
async fn evicts_the_owner_that_it_is_told_and_asks_first() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (owner, _clients) = queue(&server, "a").await;
    let owner = owner.to_string();
    let unasked = cli.run(&["evict", "a", &owner]).await;
    assert_eq!(unasked.status, 64);
    assert!(unasked.stderr.contains("--yes"), "{unasked:?}");
    assert_eq!(cli.owner_of("a").await, owner);
    let nobody = cli.run(&["evict", "a", "nobody", "--yes"]).await;
    assert_eq!(nobody.status, 1);
    assert!(nobody.stderr.contains("nobody called nobody"), "{nobody:?}");

    let evicted = cli.json(&["evict", "a", &owner, "--yes"]).await;
    assert_eq!(evicted["evicted"], 1);
    let status = cli.json(&["show", "a"]).await;
    assert_eq!(status["holders"][0]["client"]["label"], "mailing");
    let again = cli.run(&["evict", "a", &owner, "--yes"]).await;
    assert_eq!(again.status, 1);
    assert!(again.stderr.contains("neither holds"), "{again:?}");
    let reader = cli.owner_of("a").await;
    assert!(cli.says(&["evict", "-y", "a", &reader]).await.contains("1 request"));
}

#[tokio::test]
async fn evicts_who_alone_has_a_label_and_asks_which_if_several_have_it() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (owner, clients) = queue(&server, "a").await;
    let evicted = cli.json(&["evict", "a", "billing", "--yes"]).await;
    assert_eq!(evicted["owner"], owner.to_string());
    assert_eq!(cli.run(&["evict", "a", "billing", "--yes"]).await.status, 1);
    // A client gives each request an owner of its own.
    stay(clients[1].rw_lock("a").write());
    eventually("it waits too", async || {
        clients[0].rw_lock("a").status().await.unwrap().waiting == 2
    })
    .await;
    let several = cli.run(&["evict", "a", "mailing", "--yes"]).await;
    assert_eq!(several.status, 64);
    assert!(several.stderr.contains("mailing is 2 owners of a"), "{several:?}");
    assert_eq!(cli.run(&["evict", "no such lock", "mailing", "--yes"]).await.status, 66);
}
