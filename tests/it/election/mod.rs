//! Elections: candidates, leaders, and those who watch them.

use crate::lua::Lock;
use crate::proxy::Proxy;
use crate::server::{Server, connected, eventually, soon};
use crate::users::{LEASE, LONG, client, read, write};
use fairlock::{Client, Election, Error, Leader, Leaders, Owner};
use futures::StreamExt;
use std::time::{Duration, SystemTime};

const NAME: &str = "a";

async fn candidate(server: &Server, label: &str) -> Election {
    let builder = Client::builder().lease(LONG).label(label);
    connected(builder, server.url()).await.election(NAME)
}

async fn observer(url: String) -> Leaders {
    let election = client(url, LONG).await.election(NAME);
    soon("to observe", election.observe()).await.expect("a subscription")
}

async fn next(leaders: &mut Leaders) -> Option<Leader> {
    let told = soon("a change", leaders.next()).await;
    told.expect("a stream without end").expect("a server")
}

fn label(leader: &Option<Leader>) -> Option<&str> {
    leader.as_ref()?.client.label.as_deref()
}

#[tokio::test]
async fn candidates_lead_in_turn_and_observers_see_each_change_and_the_vacancies() {
    let server = Server::start().await;
    let (one, two) = (candidate(&server, "one").await, candidate(&server, "two").await);
    let mut observed = observer(server.url()).await;
    assert_eq!(next(&mut observed).await, None);
    let first = one.campaign().await.unwrap();
    let seen = next(&mut observed).await;
    assert_eq!(label(&seen), Some("one"));
    assert_eq!(
        seen,
        two.leader().await.unwrap(),
        "an event and the status tell the same"
    );
    let seen = seen.unwrap();
    assert_eq!((seen.owner, seen.term), (first.owner(), first.term()));
    assert!(seen.since <= SystemTime::now());

    let second = tokio::spawn(async move { two.campaign().await });
    server.until_queued(NAME, 1).await;
    first.resign().await.unwrap();
    let second = soon("the second term", second).await.unwrap().unwrap();
    assert!(second.is_leader() && second.term() > seen.term);
    let seen = next(&mut observed).await;
    assert_eq!(label(&seen), Some("two"), "there was no vacancy in between");
    drop(second);
    assert_eq!(next(&mut observed).await, None);
    eventually("a vacancy", async || one.leader().await.unwrap().is_none()).await;
}

#[tokio::test]
async fn a_leader_that_is_cut_off_knows_before_the_next_one_leads() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let first = client(proxy.url(), LEASE)
        .await
        .election(NAME)
        .campaign()
        .await
        .unwrap();
    let mut observed = observer(server.url()).await;
    let seen = next(&mut observed).await.expect("a leader");
    assert_eq!(seen.term, first.term());
    let two = candidate(&server, "two").await;
    let second = tokio::spawn(async move { two.campaign().await });
    server.until_queued(NAME, 1).await;
    proxy.refuse(true);
    proxy.cut();
    let job = soon("the loss", first.while_leading(std::future::pending::<()>())).await;
    assert!(matches!(job, Err(Error::Lost { .. })), "{job:?}");
    assert!(!first.is_leader());
    let second = soon("the next term", second).await.unwrap().unwrap();
    assert!(second.term() > first.term());
    // A stream that reads the status between the two terms tells a vacancy.
    let seen = match next(&mut observed).await {
        None => next(&mut observed).await,
        seen => seen,
    };
    assert_eq!(label(&seen), Some("two"));
}

#[tokio::test]
async fn a_change_whose_messages_are_lost_is_told_when_the_stream_has_its_connection_back() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let mut observed = observer(proxy.url()).await;
    assert_eq!(next(&mut observed).await, None);
    proxy.drop_messages(true);
    let leading = candidate(&server, "one").await.campaign().await.unwrap();
    proxy.cut();
    proxy.drop_messages(false);
    // Commands that fail meanwhile are told, too.
    let told = async {
        loop {
            match observed.next().await.expect("a stream without end") {
                Ok(leader) => return leader,
                Err(error) => assert!(matches!(error, Error::Unavailable { .. }), "{error}"),
            }
        }
    };
    let seen = soon("the change", told).await.expect("a leader");
    assert_eq!(seen.term, leading.term());
}

#[tokio::test]
async fn a_scope_that_leads_twice_leaves_no_vacancy_when_it_resigns_once() {
    let server = Server::start().await;
    let one = candidate(&server, "one").await;
    let (outer, inner) = Owner::new()
        .scope(async { (one.campaign().await.unwrap(), one.campaign().await.unwrap()) })
        .await;
    assert_eq!(outer.term(), inner.term());
    let mut observed = observer(server.url()).await;
    assert_eq!(next(&mut observed).await.map(|leader| leader.term), Some(outer.term()));
    outer.resign().await.unwrap();
    // Whatever the stream tells next, it is the end of the second hold.
    inner.resign().await.unwrap();
    assert_eq!(next(&mut observed).await, None);
    let again = one.campaign().await.unwrap();
    assert_eq!(next(&mut observed).await.map(|leader| leader.term), Some(again.term()));
}

#[tokio::test]
async fn a_leader_that_reads_many_times_is_still_seen() {
    let server = Server::start().await;
    let one = candidate(&server, "one").await;
    let lock = client(server.url(), LONG).await.rw_lock(NAME).with_owner(&Owner::new());
    // The server lists it behind its readers, whose leases end earlier.
    let leading = lock.write().lease(LONG * 2).acquire_fair().await.unwrap();
    let mut reading = Vec::new();
    for _ in 0..40 {
        reading.push(read(&lock).await);
    }
    let seen = one.observe().await.unwrap().next().await.unwrap().unwrap();
    assert_eq!(seen.map(|leader| leader.term), Some(leading.fencing_token()));
    assert_eq!(
        one.leader().await.unwrap().map(|leader| leader.owner),
        Some(leading.owner())
    );
}

#[tokio::test]
async fn readers_do_not_lead_and_a_shutdown_ends_the_stream() {
    let server = Server::start().await;
    let client = client(server.url(), LONG).await;
    let (election, lock) = (client.election(NAME), client.rw_lock(NAME));
    let mut observed = election.observe().await.unwrap();
    assert_eq!(next(&mut observed).await, None);
    let reading = read(&lock).await;
    assert_eq!(election.leader().await.unwrap(), None);
    reading.release().await.unwrap();
    let writing = write(&lock).await;
    let leader = next(&mut observed).await.expect("a leader");
    assert_eq!(leader.owner, writing.owner());
    client.shutdown().await;
    let rest = soon("the end", observed.collect::<Vec<_>>()).await;
    // Its own release may still be told.
    assert!(rest.iter().all(|told| matches!(told, Ok(None))), "{rest:?}");
    assert!(matches!(election.campaign().await, Err(Error::Shutdown { .. })));
}

#[tokio::test]
async fn a_leader_whose_lease_is_over_leads_no_more_though_nobody_has_swept_it_out() {
    let server = Server::start().await;
    let election = candidate(&server, "one").await;
    let lock = Lock::new(&server, NAME).await;
    let [dead, waiting] = [1, 2].map(|n| format!("w0123456789abcde:{n}"));
    lock.acquire_all(&[&dead, &waiting]).await;
    assert!(election.leader().await.unwrap().is_some());
    lock.die(&[&dead, &waiting]).await;
    assert_eq!(election.leader().await.unwrap(), None);
    assert_eq!(lock.state().await.holding(), [&dead]);
}

#[tokio::test]
async fn nobody_leads_during_a_quarantine() {
    let server = Server::start().await;
    let watching = client(server.url(), LONG).await;
    let (watching_lock, watching) = (watching.rw_lock(NAME), watching.election(NAME));
    let mut observed = observer(server.url()).await;
    assert_eq!(next(&mut observed).await, None);
    // An empty server may have been another before.
    let builder = Client::builder().lease(LONG).quarantine(Duration::from_millis(1500));
    let careful = connected(builder, server.url()).await.election(NAME);
    let campaign = tokio::spawn(async move { careful.campaign().await });
    eventually("the lock is in quarantine", async || {
        watching_lock.exists().await.unwrap()
    })
    .await;
    let told = watching.leader().await.unwrap();
    let leading = soon("the end of the quarantine", campaign).await.unwrap().unwrap();
    assert!(told.is_none_or(|leader| leader.owner == leading.owner()));
    let seen = next(&mut observed).await.expect("a leader");
    assert_eq!(seen.owner, leading.owner());
}

#[tokio::test]
async fn a_stream_goes_on_when_the_server_allows_its_subscription_again() {
    let server = Server::start().await;
    let app_has = async |channels: &[&str]| {
        let mut rules = redis::cmd("ACL");
        rules.arg(&[
            "SETUSER",
            "app",
            "on",
            ">s3cret",
            "~fairlock:*",
            "+@all",
            "resetchannels",
        ]);
        rules.arg(channels).exec_async(&mut server.redis().await).await.unwrap();
    };
    app_has(&["&fairlock:*"]).await;
    let mut observed = observer(format!("redis://app:s3cret@127.0.0.1:{}", server.port())).await;
    assert_eq!(next(&mut observed).await, None);
    app_has(&["&fairlock:c:*", "&fairlock:listen"]).await;
    for _ in 0..2 {
        let refused = soon("a refusal", observed.next()).await;
        assert!(matches!(refused, Some(Err(Error::Server { .. }))), "{refused:?}");
    }
    let leading = candidate(&server, "one").await.campaign().await.unwrap();
    app_has(&["&fairlock:*"]).await;
    let seen = loop {
        match soon("who leads", observed.next()).await.expect("a stream without end") {
            Ok(seen) => break seen,
            Err(refused) => assert!(matches!(refused, Error::Server { .. }), "{refused:?}"),
        }
    };
    assert_eq!(seen.expect("a leader").term, leading.term());
    drop(leading);
    assert_eq!(next(&mut observed).await, None, "events come again");
}
