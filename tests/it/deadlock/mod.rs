//! Deadlocks: who is told of a circle of owners that wait for each other, and who is not.

mod left;

use crate::server::{Server, connected, eventually, soon};
use crate::users::LONG;
use fairlock::{Blocked, Client, Error, Mode, Owner, RwLock, WriteGuard};
use futures::FutureExt;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;
use tokio::task::JoinHandle;

/// So short that a test sees many looks.
const SOON: Duration = Duration::from_millis(50);

async fn client(url: String, label: &str, timeout: Duration) -> Client {
    let builder = Client::builder().lease(LONG).label(label).deadlock_timeout(timeout);
    connected(builder, url).await
}

async fn user(server: &Server, label: &str) -> Client {
    client(server.url(), label, SOON).await
}

async fn write(lock: &RwLock) -> WriteGuard {
    soon("to write", lock.write().acquire_fair()).await.expect("the lock")
}

/// Asks, and waits until the request is in the queue.
async fn waits(server: &Server, lock: &RwLock, place: usize) -> JoinHandle<Result<WriteGuard, Error>> {
    let waiting = tokio::spawn(lock.write().acquire_fair());
    server.until_queued(lock.name(), place).await;
    waiting
}

fn circle(error: Error) -> (String, Vec<Blocked>) {
    match error {
        Error::Deadlock { lock, circle, .. } => (lock, circle),
        other => panic!("no deadlock: {other}"),
    }
}

/// Two owners, each with a lock for which the other one waits.
struct Pair {
    younger_owner: Owner,
    _holds: [WriteGuard; 2],
    older: JoinHandle<Result<WriteGuard, Error>>,
    younger: JoinHandle<Result<WriteGuard, Error>>,
}

impl Pair {
    /// Of the locks `a` and `b`, for which nobody else waits.
    async fn new(server: &Server, older: &Client, younger: &Client) -> Self {
        let (first, second) = (Owner::new(), Owner::new());
        Self {
            _holds: [
                write(&older.rw_lock("a").with_owner(&first)).await,
                write(&younger.rw_lock("b").with_owner(&second)).await,
            ],
            older: waits(server, &older.rw_lock("b").with_owner(&first), 1).await,
            younger: waits(server, &younger.rw_lock("a").with_owner(&second), 1).await,
            younger_owner: second,
        }
    }

    async fn until_found(self) {
        until_told(self.younger).await;
        self.older.abort();
    }
}

/// Waits until the youngest of two hears of their circle.
async fn until_told(waiting: JoinHandle<Result<WriteGuard, Error>>) {
    let error = soon("the deadlock", waiting).await.unwrap().expect_err("a circle");
    assert_eq!(circle(error).1.len(), 2);
}

/// Waits until clients have looked several times more.
async fn several_looks(server: &Server) {
    let before = server.calls("mget").await;
    eventually("looks", async || server.calls("mget").await > before + 3).await;
}

/// The owners that have a note.
async fn noted(server: &Server) -> Vec<String> {
    let mut keys = redis::cmd("KEYS");
    let keys: Vec<String> = keys
        .arg("fairlock:waits:*")
        .query_async(&mut server.redis().await)
        .await
        .unwrap();
    let owners = keys.iter().filter_map(|key| key.strip_prefix("fairlock:waits:"));
    owners.map(str::to_owned).collect()
}

#[tokio::test]
async fn of_a_ring_of_three_only_the_last_is_told_and_the_others_enter() {
    let server = Server::start().await;
    let names = ["a", "b", "c"];
    let (mut owners, mut holds, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
    let mut clients = Vec::new();
    for name in names {
        let (client, owner) = (user(&server, &format!("holder-of-{name}")).await, Owner::new());
        holds.push(write(&client.rw_lock(name).with_owner(&owner)).await);
        owners.push(owner);
        clients.push(client);
    }
    for n in 0..3 {
        let next = clients[n].rw_lock(names[(n + 1) % 3]).with_owner(&owners[n]);
        waiting.push(waits(&server, &next, 1).await);
    }
    let last = waiting.pop().unwrap();
    let error = soon("the deadlock", last).await.unwrap().expect_err("a circle");
    let words = error.to_string();
    let (lock, circle) = circle(error);
    assert_eq!(lock, "a");
    let told: Vec<_> = circle
        .iter()
        .map(|blocked| (blocked.owner, &*blocked.waits_for))
        .collect();
    assert_eq!(told, [(owners[2], "a"), (owners[0], "b"), (owners[1], "c")]);
    assert!(
        circle
            .iter()
            .all(|blocked| blocked.mode == Mode::Write && !blocked.waited.is_zero())
    );
    assert_eq!(circle[1].client.label.as_deref(), Some("holder-of-a"));
    assert!(words.contains("holder-of-b") && words.contains("\"c\""), "{words}");
    // It lets go, and the chain behind it goes on. Nobody else was told.
    holds.pop().unwrap().release().await.unwrap();
    for (hold, waiting) in holds.into_iter().zip(waiting).rev() {
        let entered = soon("the next of the chain", waiting).await.unwrap().unwrap();
        entered.release().await.unwrap();
        hold.release().await.unwrap();
    }
    eventually("no notes", async || noted(&server).await.is_empty()).await;
}

#[tokio::test]
async fn anonymous_owners_are_not_followed_and_leave_no_note() {
    let server = Server::start().await;
    let (one, two) = (user(&server, "one").await, user(&server, "two").await);
    let (named, another) = (Owner::new(), Owner::new());
    let _anonymous = write(&one.rw_lock("a")).await;
    let _named = write(&two.rw_lock("b").with_owner(&named)).await;
    let _third = write(&two.rw_lock("c").with_owner(&another)).await;
    let waiting = [
        waits(&server, &one.rw_lock("b"), 1).await,
        waits(&server, &two.rw_lock("a").with_owner(&named), 1).await,
        // Its holder is named, so this wait makes the client read notes again and again.
        waits(&server, &two.rw_lock("b").with_owner(&another), 2).await,
    ];
    eventually("notes", async || noted(&server).await.len() == 2).await;
    several_looks(&server).await;
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
    waiting.iter().for_each(JoinHandle::abort);
}

#[tokio::test]
async fn a_wait_that_nobody_polls_is_ended_all_the_same() {
    let server = Server::start().await;
    let (one, two) = (user(&server, "one").await, user(&server, "two").await);
    let (first, second) = (Owner::new(), Owner::new());
    let _a = write(&one.rw_lock("a").with_owner(&first)).await;
    let b = write(&two.rw_lock("b").with_owner(&second)).await;
    let older = waits(&server, &one.rw_lock("b").with_owner(&first), 1).await;
    let mut left = two.rw_lock("a").with_owner(&second).write().acquire_fair().boxed();
    // Until it has seen that it waits.
    poll_fn(|context| {
        assert!(left.poll_unpin(context).is_pending());
        Poll::Ready(())
    })
    .await;
    server.until_queued("a", 1).await;
    let _ = left.as_mut().now_or_never();
    server.until_queued("a", 0).await;
    assert!(!older.is_finished());
    b.release().await.unwrap();
    drop(soon("the older one", older).await.unwrap().unwrap());
    let error = soon("the answer", left).await.expect_err("a circle");
    assert_eq!(circle(error).1.len(), 2);
}

#[tokio::test]
async fn readers_among_the_holders_close_a_circle_too() {
    let server = Server::start().await;
    let (one, two) = (user(&server, "one").await, user(&server, "two").await);
    let (first, second, third) = (Owner::new(), Owner::new(), Owner::new());
    let reading = |client: &Client, owner| client.rw_lock("a").with_owner(owner).read();
    let _reads = reading(&one, &first).acquire_fair().await.unwrap();
    let _beside = reading(&one, &third).acquire_fair().await.unwrap();
    let also = reading(&two, &second).acquire_fair().await.unwrap();
    let _b = write(&two.rw_lock("b").with_owner(&second)).await;
    let _older = waits(&server, &one.rw_lock("b").with_owner(&first), 1).await;
    // An upgrade waits for the other readers, and not for its own read hold.
    let error = soon("the upgrade", also.upgrade()).await.expect_err("a circle");
    let (lock, circle) = circle(error);
    assert_eq!((lock.as_str(), circle.len()), ("a", 2));
    assert!(also.is_held());
}

#[tokio::test]
async fn a_client_that_does_not_search_leaves_no_note_and_others_miss_its_circles() {
    let server = Server::start().await;
    let (never, searches) = (
        client(server.url(), "never", Duration::MAX).await,
        user(&server, "searches").await,
    );
    let pair = Pair::new(&server, &never, &searches).await;
    several_looks(&server).await;
    assert!(!pair.older.is_finished() && !pair.younger.is_finished());
    assert_eq!(noted(&server).await, [pair.younger_owner.uuid().simple().to_string()]);
    pair.older.abort();
    pair.younger.abort();
}

#[tokio::test]
async fn notes_of_others_that_are_no_notes_end_no_wait() {
    let server = Server::start().await;
    let (one, two) = (user(&server, "one").await, user(&server, "two").await);
    let (first, second) = (Owner::new(), Owner::new());
    let _a = write(&one.rw_lock("a").with_owner(&first)).await;
    let waiting = waits(&server, &two.rw_lock("a").with_owner(&second), 1).await;
    let key = format!("fairlock:waits:{}", first.uuid().simple());
    let nobody = format!("w0a:1:{} 12 fairlock:{{a}}", first.uuid().simple());
    for text in ["", "nonsense", "w0a:1:x 99999999999999999999 y", &nobody] {
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(text);
        set.exec_async(&mut server.redis().await).await.unwrap();
        several_looks_of(&two, &server).await;
        assert!(!waiting.is_finished(), "{text:?}");
    }
    waiting.abort();
}

/// Looks become rare. A wait that begins anew makes them frequent again.
async fn several_looks_of(client: &Client, server: &Server) {
    let fresh = client.rw_lock("a").with_owner(&Owner::new());
    let waiting = waits(server, &fresh, 2).await;
    several_looks(server).await;
    waiting.abort();
    server.until_queued("a", 1).await;
}

#[tokio::test]
async fn an_owner_that_begins_a_second_wait_is_followed_there_too() {
    let server = Server::start().await;
    // Its notes are written again after 64 s.
    let one = client(server.url(), "one", Duration::from_secs(1)).await;
    let two = user(&server, "two").await;
    let (first, second) = (Owner::new(), Owner::new());
    let _elsewhere = write(&two.rw_lock("elsewhere")).await;
    let _a = write(&one.rw_lock("a").with_owner(&first)).await;
    let _b = write(&two.rw_lock("b").with_owner(&second)).await;
    let waiting = waits(&server, &one.rw_lock("elsewhere").with_owner(&first), 1).await;
    eventually("a note", async || noted(&server).await.len() == 1).await;
    let older = waits(&server, &one.rw_lock("b").with_owner(&first), 1).await;
    let younger = waits(&server, &two.rw_lock("a").with_owner(&second), 1).await;
    until_told(younger).await;
    older.abort();
    waiting.abort();
}

#[tokio::test]
async fn an_owner_that_takes_a_lock_while_it_waits_is_followed_to_it() {
    let server = Server::start().await;
    // Its notes are written again after 192 s.
    let one = client(server.url(), "one", Duration::from_secs(3)).await;
    let two = user(&server, "two").await;
    let (first, second) = (Owner::new(), Owner::new());
    let _a = write(&two.rw_lock("a").with_owner(&second)).await;
    let older = waits(&server, &one.rw_lock("a").with_owner(&first), 1).await;
    eventually("a note", async || noted(&server).await.len() == 1).await;
    let _b = write(&one.rw_lock("b").with_owner(&first)).await;
    let younger = waits(&server, &two.rw_lock("b").with_owner(&second), 1).await;
    until_told(younger).await;
    older.abort();
}

#[tokio::test]
async fn a_server_that_refuses_the_search_for_a_while_does_not_end_it() {
    let server = Server::start().await;
    let (one, two) = (user(&server, "one").await, user(&server, "two").await);
    let right = async |right: &str| {
        let mut set = redis::cmd("ACL");
        set.arg("SETUSER").arg("default").arg(right);
        set.exec_async(&mut server.redis().await).await.unwrap();
    };
    right("-set").await;
    let pair = Pair::new(&server, &one, &two).await;
    // One of them alone could find the circle.
    eventually("both are refused", async || {
        let mut log = redis::cmd("ACL");
        let log: Vec<BTreeMap<String, redis::Value>> =
            log.arg("LOG").query_async(&mut server.redis().await).await.unwrap();
        log.iter().any(|entry| matches!(entry["count"], redis::Value::Int(2..)))
    })
    .await;
    right("+set").await;
    pair.until_found().await;
}

#[tokio::test]
async fn a_lock_that_cannot_be_read_hides_no_circle_of_others() {
    let server = Server::start().await;
    // A pause of 64 time-outs is longer than the patience of this test.
    let two = client(server.url(), "two", Duration::from_secs(3)).await;
    let one = user(&server, "one").await;
    let owner = Owner::new();
    // Its look comes first, because it waits longer and its name is less.
    let _unreadable = write(&one.rw_lock("0")).await;
    let waiting = waits(&server, &two.rw_lock("0").with_owner(&owner), 1).await;
    let mut damage = redis::cmd("SET");
    damage.arg("fairlock:{0}").arg("x");
    let _: () = damage.query_async(&mut server.redis().await).await.unwrap();
    eventually("a look at it", async || server.errors("WRONGTYPE").await > 0).await;
    Pair::new(&server, &one, &two).await.until_found().await;
    waiting.abort();
}

#[tokio::test]
async fn a_client_that_ends_leaves_no_note() {
    let server = Server::start().await;
    let holder = user(&server, "holder").await;
    let _a = write(&holder.rw_lock("a")).await;
    for shuts_down in [true, false] {
        // Its note expires after 256 s.
        let client = client(server.url(), "waiter", Duration::from_secs(2)).await;
        let owner = Owner::new();
        let waiting = waits(&server, &client.rw_lock("a").with_owner(&owner), 1).await;
        eventually("a note", async || noted(&server).await.len() == 1).await;
        match shuts_down {
            true => client.shutdown().await,
            false => waiting.abort(),
        }
        drop(client);
        eventually("no note", async || noted(&server).await.is_empty()).await;
    }
}

#[cfg(feature = "cluster")]
#[tokio::test]
async fn a_circle_over_two_nodes_of_a_cluster_is_found() {
    let cluster = fairlock_support::cluster::Cluster::start().await;
    let names = [cluster.lock_on(0).await, cluster.lock_on(1).await];
    let builder = Client::builder().lease(LONG).deadlock_timeout(SOON);
    let client = fairlock_support::cluster::connected(builder, &cluster.urls()[..3]).await;
    let owners = [Owner::new(), Owner::new()];
    let lock = |n: usize, owner: usize| client.rw_lock(&*names[n]).with_owner(&owners[owner]);
    let (_first, second) = (write(&lock(0, 0)).await, write(&lock(1, 1)).await);
    let older = tokio::spawn(lock(1, 0).write().acquire_fair());
    cluster.nodes[1].until_queued(&names[1], 1).await;
    let error = soon("the deadlock", lock(0, 1).write().acquire_fair())
        .await
        .expect_err("a circle");
    let told: Vec<_> = circle(error).1.iter().map(|blocked| blocked.owner).collect();
    assert_eq!(told, [owners[1], owners[0]]);
    second.release().await.unwrap();
    drop(soon("the older one", older).await.unwrap().unwrap());
}

/// One waits there, and the note of another owner would lie there. No node takes over.
#[cfg(feature = "cluster")]
#[tokio::test]
async fn a_circle_on_the_other_nodes_is_found_while_a_node_of_a_cluster_is_away() {
    let mut cluster = fairlock_support::cluster::Cluster::of(3, 0).await;
    let (away, names) = (cluster.lock_on(0).await, cluster.locks_on(1, 2).await);
    let builder = Client::builder().lease(LONG).deadlock_timeout(SOON);
    let client = fairlock_support::cluster::connected(builder, &cluster.urls()).await;
    // By the node that has their notes.
    let (mut there, mut owners) = (Vec::new(), Vec::new());
    while there.is_empty() || owners.len() < 2 {
        let owner = Owner::new();
        let note = format!("fairlock:waits:{}", owner.uuid().simple());
        let slot: u16 = fairlock_support::cluster::ask(&cluster.nodes[1], &["CLUSTER", "KEYSLOT", &note]).await;
        match cluster.owner(slot, &cluster.nodes[1]).await {
            Some(0) => there.push(owner),
            _ => owners.push(owner),
        }
    }
    let lock = |n: usize, owner: &Owner| client.rw_lock(&*names[n]).with_owner(owner);
    let _held = write(&client.rw_lock(&*away)).await;
    let waits = tokio::spawn(client.rw_lock(&*away).with_owner(&there[0]).write().acquire_fair());
    cluster.nodes[0].until_queued(&away, 1).await;
    let (_first, second) = (write(&lock(0, &owners[0])).await, write(&lock(1, &owners[1])).await);
    cluster.nodes[0].kill();
    let noted = tokio::spawn(lock(0, &there[0]).write().acquire_fair());
    cluster.nodes[1].until_queued(&names[0], 1).await;
    let older = tokio::spawn(lock(1, &owners[0]).write().acquire_fair());
    cluster.nodes[1].until_queued(&names[1], 1).await;
    let closes = soon("the deadlock", lock(0, &owners[1]).write().acquire_fair()).await;
    let told: Vec<_> = circle(closes.expect_err("a circle")).1;
    assert!(told.iter().any(|blocked| blocked.owner == owners[0]), "{told:?}");
    second.release().await.unwrap();
    drop(soon("the older one", older).await.unwrap().unwrap());
    waits.abort();
    noted.abort();
}
