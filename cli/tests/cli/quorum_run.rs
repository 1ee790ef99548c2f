//! `fairlock run` on a quorum: when it starts although a server is frozen, and the token that others see.

use crate::command::Cli;
use crate::quorum::{fleet, quorum};
use crate::scene::LONG;
use fairlock::{Client, Owner};
use fairlock_support::server::{PATIENCE, connected};
use tokio::time::timeout;

/// Who has the frozen server alone gives up when it has not greeted. A command of the quorum must not wait for that.
#[tokio::test]
async fn a_frozen_server_does_not_keep_a_command_from_its_start() {
    let servers = fleet(3).await;
    let _named = quorum(&servers, "named").await;
    servers[0].freeze();
    let (cli, alone) = (Cli::of_all(&servers), Cli::of(&servers[0]));
    for options in [&[][..], &["--no-wait"], &["--wait", "1s"]] {
        let arguments = [&["run"], options, &["a", "--", "true"]].concat();
        let mut is_first = false;
        // A busy machine may delay either of them.
        for _ in 0..3 {
            let mut greeted = alone.command(&["show", "a"]).spawn().unwrap();
            is_first |= tokio::select! {
                ended = cli.run(&arguments) => {
                    assert_eq!(ended.status, 0, "{options:?}: {ended:?}");
                    true
                }
                ended = timeout(PATIENCE, greeted.wait()) => {
                    assert_eq!(ended.expect("it gives up").unwrap().code(), Some(69));
                    false
                }
            };
            if is_first {
                break;
            }
        }
        assert!(is_first, "{options:?}: it waits for the frozen server");
    }
}

/// A vote that comes after the guard was told its token may have a greater one.
#[tokio::test]
async fn the_token_of_a_holder_is_that_of_its_first_majority() {
    let servers = fleet(3).await;
    let owner = Owner::new();
    let (mut guards, mut tokens) = (Vec::new(), Vec::new());
    for server in &servers {
        let client = connected(Client::builder().prefix("fairlock.q").lease(LONG), server.url()).await;
        let lock = client.rw_lock("a").with_owner(&owner);
        let guard = lock.write().acquire_fair().await.unwrap();
        tokens.push(guard.fencing_token().get());
        guards.push(guard);
    }
    tokens.sort_unstable();
    assert_ne!(tokens[1], tokens[2]);
    let shown = Cli::of_all(&servers).json(&["show", "a"]).await;
    assert_eq!(shown["holders"][0]["votes"], 3, "{shown}");
    assert_eq!(shown["holders"][0]["token"], tokens[1], "{shown}");
}
