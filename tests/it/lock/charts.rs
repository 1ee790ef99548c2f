//! The flow charts of a reentrant read/write lock in one hash, branch by branch: the same state, and what ours does
//! differently.

use super::{LEASE, client, is_lost};
use crate::lateness::{in_time, promise};
use crate::proxy::Proxy;
use crate::server::{Server, soon};
use fairlock::{Client, LostReason, Owner, RwLock};
use fairlock_support::packed::Packed;
use std::collections::HashMap;
use std::time::Duration;

/// What the reentrant hash design keeps in its one hash, read from our state: the same values.
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
        let fields: HashMap<String, Vec<u8>> = redis::cmd("HGETALL")
            .arg(format!("fairlock:{{{lock}}}"))
            .query_async(&mut server.redis().await)
            .await
            .expect("HGETALL");
        let state = fields
            .get("s")
            .and_then(|field| Packed::read(field))
            .unwrap_or_default();
        let number = |text: &Vec<u8>| String::from_utf8_lossy(text).parse().expect("a number");
        let of_owners = fields
            .iter()
            .filter_map(|(field, value)| Some((field.strip_prefix("r:")?, value)));
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Self {
            mode: some(state.mode()),
            rcount: u64::from(state.reads),
            wcount: u64::from(state.writes),
            writer: some(state.writer()),
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
        let state = ["fairlock:{a}", "fairlock:{a}:l"];
        redis::cmd("DEL")
            .arg(&state)
            .exec_async(&mut server.redis().await)
            .await
            .unwrap();
        assert_eq!(soon("the loss", reading.lost()).await, LostReason::UnknownToServer);
        assert_eq!(soon("the loss", writing.lost()).await, LostReason::UnknownToServer);
        assert_eq!(Hash::of(&server, "a").await, Hash::free());
        let other = soon("the other", theirs.write().acquire_fair()).await.unwrap();
        promise(other.fencing_token() > writing.fencing_token(), "tokens grow");
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
