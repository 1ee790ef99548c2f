//! `fairlock evict`

use crate::command::Cli;
use crate::scene::queue;
use fairlock_support::server::Server;

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
    assert_eq!(cli.run(&["evict", "a", "billing", "--yes"]).await.status, 64);

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
