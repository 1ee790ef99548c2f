//! What must be true when nobody uses a lock any more.

use super::admin::Admin;
use super::workload::{LONGEST_LEASE, Workload};
use super::{Failure, lock};
use fairlock::Client;
use futures::stream::{self, StreamExt};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::time::sleep;

const DISCONNECTED_WITHIN: Duration = Duration::from_secs(120);
/// What a lock is when it is free.
const REMAINS: [&str; 3] = ["policy", "s", "seq"];

/// The key of a lock's state.
pub fn key(name: &str) -> String {
    format!("fairlock:{{{name}}}")
}

/// The workers' clients have ended: their connections are gone, although their processes live.
pub async fn until_disconnected(url: &str) -> Result<(), Failure> {
    let mut admin = Admin::new(url.to_owned());
    let begun = Instant::now();
    loop {
        let list: String = admin.call(&["CLIENT", "LIST"]).await?;
        let named = list.lines().filter(|line| !line.contains(" name= ")).count();
        if named == 0 {
            return Ok(());
        }
        if begun.elapsed() > DISCONNECTED_WITHIN {
            return Err(format!("{named} connections {DISCONNECTED_WITHIN:?} after all have left:\n{list}").into());
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Looks at every lock: it can be had, and then nothing is left of it but what expires. Returns what is wrong.
pub async fn swept(url: &str, workloads: &[Workload]) -> Result<Vec<String>, Failure> {
    let client = Client::builder().lease(LONGEST_LEASE).connect(url).await?;
    let wrong = Mutex::new(Vec::new());
    let locks = workloads
        .iter()
        .flat_map(|workload| workload.locks().into_iter().map(move |name| (workload, name)));
    let mut visits = stream::iter(locks.map(|(workload, name)| {
        let (client, wrong) = (&client, &wrong);
        async move {
            let acquire = workload.handle(client, &name).write();
            // The requests of the dead have a lease to go.
            match acquire.try_acquire_for(LONGEST_LEASE + Duration::from_secs(120)).await {
                Ok(Some(guard)) => {
                    if let Err(error) = guard.release().await {
                        lock(wrong).push(format!("{name}: {error}"));
                    }
                }
                Ok(None) => lock(wrong).push(format!("{name} is still held, by nobody who lives")),
                Err(error) => lock(wrong).push(format!("{name}: {error}")),
            }
        }
    }))
    .buffer_unordered(50);
    while visits.next().await.is_some() {}
    drop(visits);
    client.shutdown().await;
    let mut wrong = std::mem::take(&mut *lock(&wrong));
    wrong.extend(leftovers(url).await?);
    Ok(wrong)
}

async fn leftovers(url: &str) -> Result<Vec<String>, Failure> {
    let mut admin = Admin::new(url.to_owned());
    let mut wrong = Vec::new();
    let keys: Vec<String> = admin.call(&["KEYS", "*"]).await?;
    for key in keys.iter().filter(|key| !key.contains(":journal")) {
        let ttl_ms: i64 = admin.call(&["PTTL", key]).await?;
        // -2: it has expired since.
        if ttl_ms == -1 {
            wrong.push(format!("{key} never expires"));
        }
        if key.starts_with("fairlock:{") {
            let kind: String = admin.call(&["TYPE", key]).await?;
            if kind != "hash" && kind != "none" {
                wrong.push(format!("{key} ({kind}) is left"));
                continue;
            }
            let fields: Vec<String> = admin.call(&["HKEYS", key]).await?;
            let left: Vec<_> = fields
                .iter()
                .filter(|field| !REMAINS.contains(&field.as_str()))
                .collect();
            if !left.is_empty() {
                wrong.push(format!("{key} still has {left:?}"));
            }
        }
    }
    Ok(wrong)
}
