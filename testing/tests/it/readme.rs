//! The first program of the README, which a test of `server.rs` compares with it.

use fairlock::Client;
use fairlock_testing::Server;
use std::time::Duration;

/// What we want to test: it works under the lock `report`, and gives up after a minute.
async fn report(client: &Client) -> Result<bool, fairlock::Error> {
    let lock = client.rw_lock("report");
    let Some(guard) = lock.write().try_acquire_for(Duration::from_secs(60)).await? else {
        return Ok(false);
    };
    // ... work ...
    guard.release().await?;
    Ok(true)
}

#[tokio::test(start_paused = true)]
async fn a_report_gives_up_after_a_minute() -> Result<(), fairlock::Error> {
    let server = Server::new();
    let (client, other) = (server.client().await?, server.client().await?);
    assert!(report(&client).await?);

    // Somebody else holds the lock. The minute passes at once.
    let held = other.rw_lock("report").write().await?;
    assert!(!report(&client).await?);

    // The lease of the other one ends, as if its process had died. The next request enters, and the other one learns it.
    server.expire("report");
    assert!(report(&client).await?);
    held.lost().await;
    Ok(())
}
