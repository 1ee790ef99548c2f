//! What must be true when nobody uses the locks of a quorum any more.

use super::{LONGEST_LEASE, worker};
use crate::Failure;
use crate::torture::connect_redis;
use fairlock::Quorum;
use fairlock_support::packed::Packed;
use fairlock_support::server::PATIENCE;
use std::time::Instant;
use tokio::time::sleep;

/// Looks at every lock: it can be had, and then nobody is left at any server. Returns what is wrong.
pub async fn swept(urls: &[String]) -> Result<Vec<String>, Failure> {
    let quorum: Quorum = worker::builder().connect(urls).await?;
    let mut wrong = Vec::new();
    for name in worker::locks() {
        let begun = Instant::now();
        // Old data may have brought back the leases of the dead, which end with a later call.
        loop {
            match quorum.rw_lock(name.as_str()).write().try_acquire_for(PATIENCE).await {
                Ok(Some(guard)) => {
                    if let Err(error) = guard.release().await {
                        wrong.push(format!("{name}: {error}"));
                    }
                }
                Ok(None) => wrong.push(format!("{name} is still held, by nobody who lives")),
                Err(error) => wrong.push(format!("{name}: {error}")),
            }
            let left = left(urls, &name).await?;
            if left.is_empty() {
                break;
            }
            if begun.elapsed() > PATIENCE {
                wrong.extend(left);
                break;
            }
            sleep(LONGEST_LEASE / 20).await;
        }
    }
    quorum.shutdown().await;
    Ok(wrong)
}

async fn left(urls: &[String], name: &str) -> Result<Vec<String>, Failure> {
    let mut left = Vec::new();
    for (at, url) in urls.iter().enumerate() {
        let state = Packed::of(&mut connect_redis(url).await?, &format!("fairlock.q:{{{name}}}")).await;
        if state.holds() > 0 || state.waiting > 0 {
            left.push(format!("somebody is left of {name} at server {at}: {state:?}"));
        }
    }
    Ok(left)
}
