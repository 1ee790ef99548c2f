//! What the command is to show: clients that hold locks and wait for them.

use fairlock::{Access, Acquire, Client, Owner};
use fairlock_support::packed::{Packed, run_out};
use fairlock_support::server::{Server, connected, eventually};
use std::time::Duration;

/// So long that nothing expires in a test.
pub const LONG: Duration = Duration::from_secs(600);
/// A lock's name with everything that a terminal could act on.
pub const HOSTILE: &str = "evil\u{1b}[2J\r\nname\u{202e}}{%7D";

pub async fn client(server: &Server, label: &str) -> Client {
    connected(Client::builder().label(label).lease(LONG), server.url()).await
}

/// Waits for a lock and holds it until the test's runtime ends.
pub fn stay<M: Access>(request: Acquire<M>) {
    tokio::spawn(async move {
        let guard = request.acquire_fair().await;
        std::future::pending::<()>().await;
        drop(guard);
    });
}

/// `billing` holds the lock; `mailing` waits to read, then `auditing` to write.
pub async fn queue(server: &Server, lock: &str) -> (Owner, Vec<Client>) {
    let billing = client(server, "billing").await;
    let mailing = client(server, "mailing").await;
    let auditing = client(server, "auditing").await;
    let guard = billing.rw_lock(lock).write().acquire_fair().await.unwrap();
    // Not by its key: the name may be written in another way there.
    let queued = async |n: usize| billing.rw_lock(lock).status().await.unwrap().waiting == n;
    stay(mailing.rw_lock(lock).read());
    eventually("the reader is queued", async || queued(1).await).await;
    stay(auditing.rw_lock(lock).write());
    eventually("the writer is queued", async || queued(2).await).await;
    let owner = guard.owner();
    tokio::spawn(async move { guard.lost().await });
    (owner, vec![billing, mailing, auditing])
}

/// A semaphore of four permits: `training` has three, and `tuning` waits for two.
pub async fn pool(server: &Server, name: &str) -> Vec<Client> {
    let (training, tuning) = (client(server, "training").await, client(server, "tuning").await);
    let guard = training.semaphore(name, 4).permits(3).acquire_fair().await.unwrap();
    stay(tuning.semaphore(name, 4).permits(2));
    let waits = async || training.rw_lock(name).status().await.unwrap().waiting == 1;
    eventually("the second job is queued", waits).await;
    tokio::spawn(async move { guard.lost().await });
    vec![training, tuning]
}

/// Puts a text where a lock's state belongs, so that nobody can read the lock.
pub async fn spoil(server: &Server, key: &str) {
    let mut set = redis::cmd("SET");
    set.arg(key).arg("text");
    set.exec_async(&mut server.redis().await).await.unwrap();
}

/// Ends the lease of a request that holds the lock: of the first one in the alphabet that reads or writes (`r`, `w`).
pub async fn end_lease(server: &Server, lock: &str, mode: char) {
    let mut redis = server.redis().await;
    let state = format!("fairlock:{{{lock}}}");
    // A lock with a single request keeps its lease in the state.
    let packed = Packed::of(&mut redis, &state).await;
    let requests: Vec<String> = match packed.sole {
        true => vec![packed.holder],
        false => {
            let mut requests = redis::cmd("ZRANGE");
            requests.arg(format!("{state}:l")).arg(0).arg(-1);
            requests.query_async(&mut redis).await.unwrap()
        }
    };
    let request = requests.iter().filter(|request| request.starts_with(mode)).min();
    run_out(&mut redis, &state, &[request.expect("such a request")]).await;
}
