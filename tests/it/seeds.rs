//! What three earlier designs do, branch by branch and case by case, here: the flow charts of a reentrant read/write
//! lock in one hash, the test cases of a read/write mutex with lock intent, and the test of a token mutex.

use crate::proxy::Proxy;
use crate::server::{Server, connected, eventually, in_time, soon};
use fairlock::{Client, Error, LostReason, Mode, Owner, Policy, RwLock};
use std::collections::HashMap;
use std::time::Duration;
use tokio::task::JoinSet;

const LEASE: Duration = Duration::from_secs(60);

async fn client(server: &Server) -> Client {
    let builder = Client::builder().lease(LEASE);
    connected(builder, server.url()).await
}

/// What the reentrant hash design keeps in its one hash, read from ours: the same fields by the same names.
#[derive(Debug, PartialEq, Eq)]
struct Hash {
    mode: Option<String>,
    rcount: u64,
    wcount: u64,
    writer: Option<String>,
    /// Read holds by owner.
    r: HashMap<String, u64>,
}

impl Hash {
    async fn of(server: &Server, lock: &str) -> Self {
        let fields: HashMap<String, String> = redis::cmd("HGETALL")
            .arg(format!("fairlock:{{{lock}}}"))
            .query_async(&mut server.redis().await)
            .await
            .expect("HGETALL");
        let number = |text: &String| text.parse().expect("a number");
        let count = |field| fields.get(field).map_or(0, number);
        let of_owners = fields
            .iter()
            .filter_map(|(field, value)| Some((field.strip_prefix("r:")?, value)));
        Self {
            mode: fields.get("mode").cloned(),
            rcount: count("rcount"),
            wcount: count("wcount"),
            writer: fields.get("writer").cloned(),
            r: of_owners
                .map(|(owner, value)| (owner.to_owned(), number(value)))
                .collect(),
        }
    }

    fn free() -> Self {
        Self {
            mode: None,
            rcount: 0,
            wcount: 0,
            writer: None,
            r: HashMap::new(),
        }
    }

    fn read<const N: usize>(of_owners: [(&Owner, u64); N]) -> Self {
        Self {
            mode: Some("read".to_owned()),
            rcount: of_owners.iter().map(|(_, n)| n).sum(),
            r: of_owners.iter().map(|(owner, n)| (field(owner), *n)).collect(),
            ..Self::free()
        }
    }

    fn write(owner: &Owner, wcount: u64, reads: u64) -> Self {
        Self {
            mode: Some("write".to_owned()),
            writer: Some(field(owner)),
            wcount,
            rcount: reads,
            r: (reads > 0).then(|| (field(owner), reads)).into_iter().collect(),
        }
    }
}

fn field(owner: &Owner) -> String {
    owner.uuid().simple().to_string()
}

/// The keys' time to live, of the state: there must be one.
async fn ttl_ms(server: &Server, lock: &str) -> i64 {
    redis::cmd("PTTL")
        .arg(format!("fairlock:{{{lock}}}"))
        .query_async(&mut server.redis().await)
        .await
        .expect("PTTL")
}

/// A lock as two owners use it who are in two processes, and the server's view.
async fn two_owners(server: &Server) -> (Owner, RwLock, Owner, RwLock) {
    let (a, b) = (Owner::new(), Owner::new());
    let mine = client(server).await.rw_lock("a").with_owner(&a);
    let theirs = client(server).await.rw_lock("a").with_owner(&b);
    (a, mine, b, theirs)
}

fn is_lost<T>(outcome: &Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::Lost { .. }))
}

/// Also the chart of a read lock that meets a write lock: its exits are the last two.
#[tokio::test]
async fn chart_read_lock() {
    let server = Server::start().await;
    let (a, mine, b, theirs) = two_owners(&server).await;
    let hash = async || Hash::of(&server, "a").await;

    // Does the lock exist? No: mode=read, rcount=1, r:owner=1, with a TTL.
    let first = mine.read().try_acquire().await.unwrap().expect("free");
    assert_eq!(hash().await, Hash::read([(&a, 1)]));
    assert!(ttl_ms(&server, "a").await >= LEASE.as_millis() as i64);
    // Yes. mode == read? Yes: r:owner+1, rcount+1; of the same owner ...
    let again = mine.read().try_acquire().await.unwrap().expect("readers share");
    assert_eq!(hash().await, Hash::read([(&a, 2)]));
    // ... and of another one.
    let other = theirs.read().try_acquire().await.unwrap().expect("readers share");
    assert_eq!(hash().await, Hash::read([(&a, 2), (&b, 1)]));
    for guard in [first, again, other] {
        guard.release().await.unwrap();
    }
    // mode == read? No. mode == write and writer == owner? Yes: reentry, r:owner+1, rcount+1.
    let writing = mine.write().try_acquire().await.unwrap().expect("free");
    let also = mine.read().try_acquire().await.unwrap().expect("its own write");
    assert_eq!(hash().await, Hash::write(&a, 1, 1));
    // No: refused, and nothing has changed.
    assert!(theirs.read().try_acquire().await.unwrap().is_none());
    assert_eq!(hash().await, Hash::write(&a, 1, 1));
    assert!(writing.is_held() && also.is_held());
}

#[tokio::test]
async fn chart_read_unlock() {
    let server = Server::start().await;
    let (a, mine, b, theirs) = two_owners(&server).await;
    let hash = async || Hash::of(&server, "a").await;
    let (first, again) = (
        mine.read().acquire_fair().await.unwrap(),
        mine.read().acquire_fair().await.unwrap(),
    );
    let other = theirs.read().acquire_fair().await.unwrap();

    // self_cnt <= 0? No: self_cnt-1, rcount-1. self_cnt == 0? No: r:owner stays. rcount <= 0? No: the lock is kept.
    again.release().await.unwrap();
    assert_eq!(hash().await, Hash::read([(&a, 1), (&b, 1)]));
    // self_cnt == 0? Yes: r:owner goes; the lock is kept by the other one.
    first.release().await.unwrap();
    assert_eq!(hash().await, Hash::read([(&b, 1)]));
    // rcount <= 0? Yes. mode == read? Yes: free. Theirs deletes the key; ours keeps the counter of tokens for a while.
    other.release().await.unwrap();
    assert_eq!(hash().await, Hash::free());
    assert!(ttl_ms(&server, "a").await > 0, "what is left expires");
    // rcount <= 0? Yes. mode == read? No: only rcount goes, the write stays.
    let writing = mine.write().acquire_fair().await.unwrap();
    let also = mine.read().acquire_fair().await.unwrap();
    also.release().await.unwrap();
    assert_eq!(hash().await, Hash::write(&a, 1, 0));
    writing.release().await.unwrap();
}

#[tokio::test]
async fn chart_read_unlock_and_write_unlock_of_who_does_not_hold() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let builder = Client::builder().lease(Duration::from_secs(60));
    let deaf = builder.connect(proxy.url()).await.unwrap().rw_lock("a");
    let (a, b) = (Owner::new(), Owner::new());
    let theirs = client(&server).await.rw_lock("a").with_owner(&b);
    // It has to believe that it holds, otherwise it does not even ask.
    proxy.drop_messages(true);

    // self_cnt <= 0? Yes: refused, and another reader's holds stay as they are.
    let believed = deaf.with_owner(&a).read().acquire_fair().await.unwrap();
    let reading = theirs.read().acquire_fair().await.unwrap();
    assert_eq!(theirs.evict(&a).await.unwrap(), 1);
    assert!(believed.is_held());
    let refused = believed.release().await;
    assert!(is_lost(&refused), "{refused:?}");
    assert_eq!(Hash::of(&server, "a").await, Hash::read([(&b, 1)]));
    reading.release().await.unwrap();

    // writer != owner? Yes: refused, and another writer's hold stays as it is.
    let believed = deaf.with_owner(&a).write().acquire_fair().await.unwrap();
    assert_eq!(theirs.evict(&a).await.unwrap(), 1);
    let writing = theirs.write().acquire_fair().await.unwrap();
    let refused = believed.release().await;
    assert!(is_lost(&refused), "{refused:?}");
    assert_eq!(Hash::of(&server, "a").await, Hash::write(&b, 1, 0));
    assert!(writing.is_held());
}

/// Also the chart of a write lock that meets read locks: its exits are the last two.
#[tokio::test]
async fn chart_write_lock() {
    let server = Server::start().await;
    let (a, mine, b, theirs) = two_owners(&server).await;
    let hash = async || Hash::of(&server, "a").await;

    // Does the lock exist? No: mode=write, writer=owner, wcount=1, with a TTL.
    let first = mine.write().try_acquire().await.unwrap().expect("free");
    assert_eq!(hash().await, Hash::write(&a, 1, 0));
    assert!(ttl_ms(&server, "a").await >= LEASE.as_millis() as i64);
    // Yes. mode == write and writer == owner? Yes: wcount+1.
    let again = mine.write().try_acquire().await.unwrap().expect("its own write");
    assert_eq!(hash().await, Hash::write(&a, 2, 0));
    // No. mode == read ...? No, another one writes: refused, and nothing has changed.
    assert!(theirs.write().try_acquire().await.unwrap().is_none());
    assert_eq!(hash().await, Hash::write(&a, 2, 0));
    first.release().await.unwrap();
    again.release().await.unwrap();

    // mode == read and rcount == r:owner? Yes, with any number of its own reads: an upgrade.
    let reads = [
        mine.read().acquire_fair().await.unwrap(),
        mine.read().acquire_fair().await.unwrap(),
    ];
    let upgraded = mine.write().try_acquire().await.unwrap().expect("the only reader");
    assert_eq!(hash().await, Hash::write(&a, 1, 2));
    assert!(
        upgraded.fencing_token() > reads[0].fencing_token(),
        "its writes come after others' reads"
    );
    upgraded.release().await.unwrap();
    let upgraded = reads[0].try_upgrade().await.unwrap().expect("the same by the guard");
    upgraded.release().await.unwrap();
    // No, another one reads too: refused, and nothing has changed.
    let other = theirs.read().acquire_fair().await.unwrap();
    assert!(mine.write().try_acquire().await.unwrap().is_none());
    assert!(reads[1].try_upgrade().await.unwrap().is_none());
    assert_eq!(hash().await, Hash::read([(&a, 2), (&b, 1)]));
    // Nor for one who does not read at all.
    let stranger = theirs.with_owner(&Owner::new()).write().try_acquire().await.unwrap();
    assert!(stranger.is_none() && other.is_held());
}

#[tokio::test]
async fn chart_write_unlock() {
    let server = Server::start().await;
    let (a, mine, _b, theirs) = two_owners(&server).await;
    let hash = async || Hash::of(&server, "a").await;
    let (first, again) = (
        mine.write().acquire_fair().await.unwrap(),
        mine.write().acquire_fair().await.unwrap(),
    );

    // writer != owner? No: wcount-1. wcount > 0? Yes: it writes on.
    again.release().await.unwrap();
    assert_eq!(hash().await, Hash::write(&a, 1, 0));
    assert!(theirs.read().try_acquire().await.unwrap().is_none());
    // wcount > 0? No: writer and wcount go. rcount > 0? Yes: it falls back to reading, and others may read.
    let also = mine.read().acquire_fair().await.unwrap();
    first.release().await.unwrap();
    assert_eq!(hash().await, Hash::read([(&a, 1)]));
    assert!(also.is_held());
    theirs
        .read()
        .try_acquire()
        .await
        .unwrap()
        .expect("readers share")
        .release()
        .await
        .unwrap();
    also.release().await.unwrap();
    // rcount > 0? No: free.
    mine.write().acquire_fair().await.unwrap().release().await.unwrap();
    assert_eq!(hash().await, Hash::free());
    assert!(ttl_ms(&server, "a").await > 0, "what is left expires");
    // The same by what the notes call a downgrade.
    let writing = mine.write().acquire_fair().await.unwrap();
    let reading = writing.downgrade().await.unwrap();
    assert_eq!(hash().await, Hash::read([(&a, 1)]));
    reading.release().await.unwrap();
    assert_eq!(hash().await, Hash::free());
}

/// The charts of both renewals.
#[tokio::test]
async fn chart_renewals() {
    in_time(async || {
        const SHORT: Duration = Duration::from_secs(2);
        let server = Server::start().await;
        let (a, mine, b, theirs) = two_owners(&server).await;

        // self_cnt <= 0? No. writer != owner? No. The TTL is refreshed, by itself, for longer than any of them.
        let reading = mine.read().lease(SHORT).acquire_fair().await.unwrap();
        tokio::time::sleep(SHORT + SHORT / 2).await;
        assert!(reading.is_held());
        assert_eq!(Hash::of(&server, "a").await, Hash::read([(&a, 1)]));
        let writing = mine.write().lease(SHORT).acquire_fair().await.unwrap();
        tokio::time::sleep(SHORT + SHORT / 2).await;
        assert!(reading.is_held() && writing.is_held());
        assert_eq!(Hash::of(&server, "a").await, Hash::write(&a, 1, 1));

        // self_cnt <= 0? Yes. writer != owner? Yes. Refused, which the guards report; the renewal does not make the lock again, and others can have it.
        let state = ["fairlock:{a}", "fairlock:{a}:leases"];
        redis::cmd("DEL")
            .arg(&state)
            .exec_async(&mut server.redis().await)
            .await
            .unwrap();
        assert_eq!(soon("the loss", reading.lost()).await, LostReason::UnknownToServer);
        assert_eq!(soon("the loss", writing.lost()).await, LostReason::UnknownToServer);
        assert_eq!(Hash::of(&server, "a").await, Hash::free());
        let other = soon("the other", theirs.write().acquire_fair()).await.unwrap();
        assert!(other.fencing_token() > writing.fencing_token());
        assert!(is_lost(&reading.release().await) && is_lost(&writing.release().await));
        assert_eq!(Hash::of(&server, "a").await, Hash::write(&b, 1, 0));
    })
    .await;
}

#[tokio::test]
async fn notes_of_the_charts() {
    let server = Server::start().await;
    let (a, mine, _b, theirs) = two_owners(&server).await;
    // 1: an owner is a UUID and is the same in every process that has it.
    let same = Owner::from_uuid(a.uuid());
    let outer = mine.write().acquire_fair().await.unwrap();
    let inner = theirs
        .with_owner(&same)
        .write()
        .try_acquire()
        .await
        .unwrap()
        .expect("the same owner");
    assert_eq!(outer.fencing_token(), inner.fencing_token());
    drop((outer, inner));
    // 3: the writer that also reads is a reader when its writes are over: in any order of the releases.
    let writing = soon("to write", mine.write().acquire_fair()).await.unwrap();
    let reading = mine.read().acquire_fair().await.unwrap();
    let waiting = tokio::spawn(theirs.read().acquire_fair());
    server.until_queued("a", 1).await;
    writing.release().await.unwrap();
    let other = soon("the other reader", waiting).await.unwrap().unwrap();
    assert!(reading.is_held() && other.is_held());
    drop((reading, other));
    // 5: what a crashed process holds ends with its lease.
    let proxy = Proxy::to(server.port()).await;
    let builder = Client::builder().lease(Duration::from_secs(1));
    let crashing = builder.connect(proxy.url()).await.unwrap().rw_lock("a");
    let _held = soon("the crashing one", crashing.write().acquire_fair()).await.unwrap();
    proxy.stall(true);
    drop(soon("the next one", theirs.write().acquire_fair()).await.unwrap());
}

// The read/write mutex: its tests Mutex, RWMutex, LockIntent and ID, and what they assert of the TTL.

#[tokio::test]
async fn case_mutex() {
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("mutex");
    let guard = lock.write().acquire_fair().await.unwrap();
    let left = lock.status().await.unwrap().holders[0].lease_left;
    assert!(left <= LEASE && left > LEASE / 4, "{left:?}");
    assert!(lock.write().try_acquire().await.unwrap().is_none());
    assert!(lock.read().try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    let again = lock.write().acquire_fair().await.unwrap();
    // Their deferred unlock unlocks a second time, silently; here a guard can be released only once.
    again.release().await.unwrap();
}

#[tokio::test]
async fn case_rw_mutex() {
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("rw_mutex");
    let guard = lock.read().acquire_fair().await.unwrap();
    let left = lock.status().await.unwrap().holders[0].lease_left;
    assert!(left <= LEASE && left > LEASE / 4, "{left:?}");
    assert!(lock.write().try_acquire().await.unwrap().is_none());
    let second = lock.read().try_acquire().await.unwrap().expect("readers share");
    second.release().await.unwrap();
    guard.release().await.unwrap();
    assert!(lock.write().acquire_fair().await.unwrap().is_held());
}

#[tokio::test]
async fn case_lock_intent() {
    // Theirs is an option of a mutex; in ours a writer that waits holds readers back under these two policies.
    for policy in [Policy::Fifo, Policy::WriterFirst] {
        let server = Server::start().await;
        // So long a lease that no intent ends with it.
        let builder = Client::builder().lease(Duration::from_secs(600));
        let client = builder.connect(server.url()).await.unwrap();
        let lock = client.rw_lock("lock_intent").policy(policy);
        let guard = lock.read().acquire_fair().await.unwrap();
        let writer = tokio::spawn(lock.write().acquire_fair());
        server.until_queued("lock_intent", 1).await;
        assert!(
            lock.read().try_acquire().await.unwrap().is_none(),
            "{policy:?}: no reader passes the intent"
        );
        guard.release().await.unwrap();
        let writing = soon("the writer", writer).await.unwrap().unwrap();
        writing.release().await.unwrap();
        let reading = lock.read().try_acquire().await.unwrap();
        let reading = reading.expect("the intent is gone");
        // A try leaves no intent; a writer that gives up takes it away, where theirs stays for a TTL.
        assert!(lock.write().try_acquire().await.unwrap().is_none());
        assert!(lock.read().try_acquire().await.unwrap().is_some(), "{policy:?}");
        let none = lock.write().try_acquire_for(Duration::from_millis(50)).await.unwrap();
        assert!(none.is_none());
        server.until_queued("lock_intent", 0).await;
        assert!(lock.read().try_acquire().await.unwrap().is_some(), "{policy:?}");
        // Nor does it keep those back who came after it.
        let writer = tokio::spawn(lock.write().acquire_fair());
        server.until_queued("lock_intent", 1).await;
        let behind = tokio::spawn(lock.read().acquire_fair());
        server.until_queued("lock_intent", 2).await;
        writer.abort();
        let behind = soon("the reader behind it", behind).await.unwrap().unwrap();
        assert!(behind.is_held() && reading.is_held(), "{policy:?}");
    }
    // Without the intent, theirs lets readers in past a waiting writer.
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("lock_intent").policy(Policy::ReaderFirst);
    let _guard = lock.read().acquire_fair().await.unwrap();
    let _writer = tokio::spawn(lock.write().acquire_fair());
    server.until_queued("lock_intent", 1).await;
    assert!(lock.read().try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn case_ids_differ() {
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("ids");
    let mut owners = Vec::new();
    for _ in 0..100 {
        let guard = lock.read().acquire_fair().await.unwrap();
        // 16 bytes, as theirs: in hex 32 digits.
        assert_eq!(guard.owner().uuid().simple().to_string().len(), 32);
        owners.push(guard.owner());
        guard.release().await.unwrap();
    }
    owners.extend((0..100).map(|_| Owner::new()));
    owners.sort();
    owners.dedup();
    assert_eq!(owners.len(), 200);
}

/// The token mutex: a hundred at once count to a hundred. Theirs sleep at random and enter in any order.
#[tokio::test]
async fn case_a_hundred_count_in_turn() {
    const TOTAL: usize = 100;
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("ntlock");
    let first = lock.write().acquire_fair().await.unwrap();
    let count = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for id in 0..TOTAL {
        let (lock, count) = (lock.clone(), std::sync::Arc::clone(&count));
        tasks.spawn(async move {
            let guard = lock.write().acquire_fair().await.unwrap();
            let before = count.lock().unwrap().clone();
            // Others run meanwhile: without the lock their counts are lost.
            tokio::task::yield_now().await;
            *count.lock().unwrap() = [before, vec![id]].concat();
            guard.release().await.unwrap();
        });
        server.until_queued("ntlock", id + 1).await;
    }
    // Their start signal.
    first.release().await.unwrap();
    soon("all of them", tasks.join_all()).await;
    let in_turn: Vec<_> = (0..TOTAL).collect();
    assert_eq!(*count.lock().unwrap(), in_turn);
}

/// The token mutex: why the value is random. A asks, its time is over, B enters; A's late unlock must not free B.
#[tokio::test]
async fn case_a_late_unlock_does_not_free_the_next_holder() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let builder = Client::builder().lease(Duration::from_secs(1));
    let proxy_client = builder.connect(proxy.url()).await.unwrap();
    let a = proxy_client.rw_lock("ntlock");
    let b = client(&server).await.rw_lock("ntlock");
    let held = a.write().acquire_fair().await.unwrap();
    proxy.stall(true);
    let next = soon("B", b.write().acquire_fair()).await.unwrap();
    assert!(!held.is_held(), "A knows before B enters");
    proxy.stall(false);
    let late = held.release().await;
    assert!(is_lost(&late), "{late:?}");
    // Its client has more to tell the server now: it ends when it has.
    drop((a, proxy_client));
    eventually("A's client has ended", async || server.connections().await == 2).await;
    let status = b.status().await.unwrap();
    assert_eq!((status.mode, status.holding), (Some(Mode::Write), 1));
    next.release().await.unwrap();
    eventually("free", async || b.status().await.unwrap().mode.is_none()).await;
}
