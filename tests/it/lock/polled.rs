//! Futures that are polled and then left: nobody polls them again, and nobody drops them. Whatever they are in the middle
//! of, everything else goes on; and the first poll of an acquisition takes its place in the queue.

use crate::lateness::in_time;
use crate::observe::{LONG, View, client, keys, ms};
use crate::proxy::Proxy;
use crate::server::{Server, connected, eventually, soon};
use fairlock::{Client, Error, Owner, RwLock};
use futures::future::{BoxFuture, FutureExt, join_all};
use futures::stream::{self, StreamExt};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Polls a future at most so often, each time when it is woken, and hands it back where it is. `None`: it was done.
///
/// It is given up, too, when nothing wakes it for a while: then it waits for what does not come.
async fn polled<F: Future + Send + 'static>(times: usize, future: F) -> Option<Pin<Box<F>>> {
    let mut future = Some(Box::pin(future));
    let mut polls = 0;
    let stepping = poll_fn(|context| {
        if polls == times {
            return Poll::Ready(());
        }
        polls += 1;
        let ready = future
            .as_mut()
            .is_some_and(|future| future.as_mut().poll(context).is_ready());
        if ready {
            future = None;
        }
        if ready || polls == times {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    });
    let _ = tokio::time::timeout(ms(300), stepping).await;
    future
}

/// Polls each future once, in their order.
async fn first_polls<F: Future + Unpin>(futures: &mut [F]) {
    for future in futures {
        poll_fn(|context| {
            assert!(future.poll_unpin(context).is_pending(), "nobody has answered yet");
            Poll::Ready(())
        })
        .await;
    }
}

/// Everything that a client does for its users, each at a lock of its own.
async fn all_goes_on(client: &Client, case: &str) {
    let lock = client.rw_lock(format!("probe {case}"));
    let probes = async {
        let reading = lock.read().acquire_fair().await?;
        let writing = reading.upgrade().await?;
        let reading_on = writing.downgrade().await?;
        lock.status().await?;
        reading_on.release().await?;
        reading.release().await?;
        let guard = lock.write().try_acquire().await?.expect("it is free");
        guard.release().await?;
        // There are no replicas: it is told so.
        let replicated = lock.write().wait_for_replicas(1, ms(1)).try_acquire().await;
        assert!(matches!(replicated, Err(Error::NotReplicated { .. })), "{replicated:?}");
        let within = lock.write().try_acquire_for(LONG).await?.expect("it is free");
        let next = tokio::spawn(lock.write().acquire_fair());
        // Dropped, and handed over.
        drop(within);
        next.await.expect("no panic")?.release().await
    };
    soon(case, probes.boxed()).await.unwrap();
}

#[tokio::test]
async fn any_number_of_free_locks_can_be_asked_for_at_once_and_released_one_by_one() {
    let server = Server::start().await;
    let client = client(server.url(), LONG).await;
    for n in [600, 2_000] {
        let locks = (0..n).map(|i| client.rw_lock(format!("{n}:{i}")).write().acquire_fair());
        let mut guards = stream::iter(locks).buffer_unordered(n);
        let all = async {
            let mut released = 0;
            while let Some(guard) = guards.next().await {
                // Meanwhile nobody polls the others.
                guard.unwrap().release().await.unwrap();
                released += 1;
            }
            released
        };
        assert_eq!(soon("all of them", all).await, n);
    }
}

#[tokio::test]
async fn what_is_polled_once_and_left_stops_nobody() {
    in_time(polled_and_left).await;
}

async fn polled_and_left() {
    let server = Server::start().await;
    let client = client(server.url(), ms(3_000)).await;
    let held = client.rw_lock("held").write().acquire_fair().await.unwrap();
    let unrelated = client.rw_lock("unrelated").write().acquire_fair().await.unwrap();
    let mut left: Vec<_> = (0..600)
        .map(|i| client.rw_lock(format!("left {i}")).write().acquire_fair().boxed())
        .collect();
    first_polls(&mut left).await;

    all_goes_on(&client, "after 600").await;
    soon("a release", unrelated.release()).await.unwrap();
    // Three leases later by the server's clock, or lost.
    let begun = View::of(&server, "held").await.now_ms;
    let renewed = eventually("three leases", async || {
        View::of(&server, "held").await.now_ms > begun + 9_000
    });
    tokio::select! {
        reason = held.lost() => panic!("lost: {reason}"),
        () = renewed => {}
    }
    soon("its release", held.release()).await.unwrap();
    drop(left);
}

#[tokio::test]
async fn a_release_or_downgrade_that_is_left_does_not_keep_its_owner_out() {
    let server = Server::start().await;
    let client = client(server.url(), LONG).await;
    for (name, releases) in [("released", true), ("downgraded", false)] {
        let lock = client.rw_lock(name).with_owner(&Owner::new());
        let guard = lock.write().acquire_fair().await.unwrap();
        let mut left = match releases {
            true => [guard.release().boxed()],
            false => [guard.downgrade().map(|reading| reading.map(drop)).boxed()],
        };
        first_polls(&mut left).await;
        let again = soon("its owner's next turn", lock.write().acquire_fair())
            .await
            .unwrap();
        again.release().await.unwrap();
        let [left] = left;
        let left = soon("its end", left).await;
        assert!(left.is_ok(), "{name}: {left:?}");
    }
}

#[tokio::test]
async fn a_wait_for_replicas_that_is_left_stops_nobody() {
    let server = Server::start().await;
    let client = client(server.url(), LONG).await;
    // There are none: each of them is told so when its time is over.
    let ask = |name: String| client.rw_lock(name).write().wait_for_replicas(1, ms(50)).acquire_fair();
    let mut left = Vec::new();
    for polls in 1..=12 {
        left.extend(polled(polls, ask(format!("left {polls}"))).await);
        let next = soon("the next one's answer", ask(format!("next {polls}"))).await;
        assert!(matches!(next, Err(Error::NotReplicated { .. })), "{next:?}");
        all_goes_on(&client, &format!("{polls} polls")).await;
    }
    assert!(left.len() > 1, "only {} were left in the middle", left.len());
}

/// A public future, made anew for a lock of that name.
type Make = fn(Client, String) -> BoxFuture<'static, ()>;

/// For what fails as well as for what succeeds: only that it ends matters.
fn over(future: impl Future<Output: 'static> + Send + 'static) -> BoxFuture<'static, ()> {
    future.map(drop).boxed()
}

async fn busy(client: &Client, name: &str) -> RwLock {
    let lock = client.rw_lock(name);
    let guard = lock.write().acquire_fair().await.unwrap();
    // Renewed for as long as the client lives.
    std::mem::forget(guard);
    lock
}

const FUTURES: [(&str, Make); 35] = [
    ("acquire_fair, free", |client, name| {
        over(client.rw_lock(name).write().acquire_fair())
    }),
    ("acquire_fair, busy", |client, name| {
        over(async move { busy(&client, &name).await.write().acquire_fair().await })
    }),
    ("acquire_fair, read", |client, name| {
        over(client.rw_lock(name).read().acquire_fair())
    }),
    ("acquire_fair, owner", |client, name| {
        over(client.rw_lock(name).with_owner(&Owner::new()).write().acquire_fair())
    }),
    ("acquire_fair, owner twice", |client, name| {
        over(async move {
            let lock = busy(&client, &name).await.with_owner(&Owner::new());
            let _ = tokio::time::timeout(ms(5), lock.write().acquire_fair()).await;
            lock.write().acquire_fair().await
        })
    }),
    ("acquire_fair, replicas", |client, name| {
        over(client.rw_lock(name).write().wait_for_replicas(1, ms(20)).acquire_fair())
    }),
    ("permits", |client, name| {
        over(client.semaphore(name, 2).permits(2).acquire_fair())
    }),
    ("enqueue, free", |client, name| {
        over(async move { client.rw_lock(name).write().enqueue().await?.await })
    }),
    ("enqueue, busy", |client, name| {
        over(async move {
            let queued = busy(&client, &name).await.write().enqueue().await?;
            queued.place().await?;
            queued.await
        })
    }),
    ("enqueue_for, busy", |client, name| {
        over(async move { busy(&client, &name).await.write().enqueue_for(ms(20)).await?.await })
    }),
    ("try_acquire, free", |client, name| {
        over(client.rw_lock(name).write().try_acquire())
    }),
    ("try_acquire, busy", |client, name| {
        over(async move { busy(&client, &name).await.write().try_acquire().await })
    }),
    ("try_acquire_for, free", |client, name| {
        over(client.rw_lock(name).read().try_acquire_for(LONG))
    }),
    ("try_acquire_for, busy", |client, name| {
        over(async move { busy(&client, &name).await.write().try_acquire_for(ms(20)).await })
    }),
    ("all", |client, name| {
        over(async move {
            let [a, b] = ["a", "b"].map(|part| client.rw_lock(format!("{name} {part}")));
            client.all().write(&b).read(&a).acquire_fair().await?.release().await
        })
    }),
    ("all, busy", |client, name| {
        over(async move {
            let (first, second) = (client.rw_lock(format!("{name} a")), format!("{name} b"));
            let second = busy(&client, &second).await;
            client.all().write(&first).write(&second).acquire_fair().await
        })
    }),
    ("all, tried", |client, name| {
        over(async move {
            let (first, second) = (client.rw_lock(format!("{name} a")), format!("{name} b"));
            let second = busy(&client, &second).await;
            client.all().write(&first).write(&second).try_acquire().await
        })
    }),
    ("release", |client, name| {
        over(async move { client.rw_lock(name).write().acquire_fair().await?.release().await })
    }),
    ("upgrade", |client, name| {
        over(async move { client.rw_lock(name).read().acquire_fair().await?.upgrade().await })
    }),
    ("try_upgrade", |client, name| {
        over(async move { client.rw_lock(name).read().acquire_fair().await?.try_upgrade().await })
    }),
    ("downgrade", |client, name| {
        over(async move { client.rw_lock(name).write().acquire_fair().await?.downgrade().await })
    }),
    ("status", |client, name| {
        over(async move { busy(&client, &name).await.status().await })
    }),
    ("status_from", |client, name| {
        over(async move { busy(&client, &name).await.status_from(1).await })
    }),
    ("exists", |client, name| {
        over(async move { client.rw_lock(name).exists().await })
    }),
    ("client_info", |client, _| {
        over(async move { client.client_info("0a").await })
    }),
    ("locks", |client, name| {
        over(async move {
            let mut locks = client.locks(name);
            while let Some(found) = locks.next().await {
                found?;
            }
            Ok::<(), Error>(())
        })
    }),
    ("evict", |client, name| {
        over(async move { client.rw_lock(name).evict(&Owner::new()).await })
    }),
    ("events", |client, name| {
        over(async move {
            let lock = client.rw_lock(name);
            let mut events = lock.events().await?;
            let guard = lock.write().acquire_fair().await?;
            let event = events.next().await;
            drop(guard);
            drop(event);
            Ok::<(), Error>(())
        })
    }),
    ("all events", |client, name| {
        over(async move {
            let mut events = client.events().await?;
            let guard = client.rw_lock(name).write().acquire_fair().await?;
            let event = events.next().await;
            drop(guard);
            drop(event);
            Ok::<(), Error>(())
        })
    }),
    ("contended", |client, name| {
        over(async move {
            let guard = client.rw_lock(&*name).write().acquire_fair().await?;
            let next = tokio::spawn(client.rw_lock(name).write().acquire_fair());
            guard.contended().await?;
            drop((guard, next));
            Ok::<(), Error>(())
        })
    }),
    ("campaign and resign", |client, name| {
        over(async move { client.election(name).campaign().await?.resign().await })
    }),
    ("leader", |client, name| {
        over(async move {
            busy(&client, &name).await;
            client.election(name).leader().await
        })
    }),
    ("observe", |client, name| {
        over(async move {
            let election = client.election(name);
            let mut leaders = election.observe().await?;
            let leading = election.campaign().await?;
            let seen = (leaders.next().await, leaders.next().await);
            drop((leading, seen));
            Ok::<(), Error>(())
        })
    }),
    ("a deadlock", |client, name| {
        over(async move {
            let (one, two) = (Owner::new(), Owner::new());
            let locks = [format!("{name} a"), format!("{name} b")].map(|name| client.rw_lock(name));
            let [a, b] = &locks;
            let _a = a.with_owner(&one).write().acquire_fair().await?;
            let _b = b.with_owner(&two).write().acquire_fair().await?;
            let ended = tokio::join!(
                b.with_owner(&one).write().try_acquire_for(ms(200)),
                a.with_owner(&two).write().try_acquire_for(ms(200))
            );
            drop(ended);
            Ok::<(), Error>(())
        })
    }),
    ("while_held and lost", |client, name| {
        over(async move {
            let guard = client.rw_lock(name).write().max_hold(ms(20)).acquire_fair().await?;
            let _ = guard.while_held(std::future::pending::<()>()).await;
            guard.lost().await;
            Ok::<(), Error>(())
        })
    }),
];

/// Hands the futures back that were left in the middle.
async fn leave_after_any_poll(client: &Client, what: &str, make: Make) -> Vec<Pin<Box<BoxFuture<'static, ()>>>> {
    let mut left = Vec::new();
    for polls in 1..40 {
        let case = format!("{what}, {polls} polls");
        let Some(future) = polled(polls, make(client.clone(), case.clone())).await else {
            break;
        };
        all_goes_on(client, &case).await;
        left.push(future);
    }
    left
}

#[tokio::test]
async fn every_public_future_may_be_left_after_any_poll() {
    let server = Server::start().await;
    let client = client(server.url(), LONG).await;
    let cases = FUTURES.map(|(what, make)| leave_after_any_poll(&client, what, make).boxed_local());
    let left: usize = join_all(cases).await.iter().map(Vec::len).sum();
    assert!(left > FUTURES.len() * 2, "only {left} were left in the middle");
    all_goes_on(&client, "after all").await;
}

#[tokio::test]
async fn connect_and_shutdown_may_be_left_after_any_poll() {
    let server = Server::start().await;
    let client = client(server.url(), LONG).await;
    let mut left: Vec<BoxFuture<'static, ()>> = Vec::new();
    for polls in 1..40 {
        let url = server.url();
        let Some(connecting) = polled(polls, async move { drop(Client::connect(url).await) }).await else {
            break;
        };
        left.push(connecting);
        all_goes_on(&client, &format!("connect {polls}")).await;
    }
    for polls in 1..40 {
        let name = format!("shutdown {polls}");
        let other = connected(Client::builder().lease(LONG), server.url()).await;
        let guard = other.rw_lock(&*name).write().acquire_fair().await.unwrap();
        let going = other.clone();
        let done = polled(polls, async move { going.shutdown().await }).await;
        // Whatever has become of the future: from its first poll on the hold is given back.
        let next = client.rw_lock(name);
        soon("the next", next.write().acquire_fair())
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        drop(guard);
        let Some(going) = done else { break };
        left.push(going.boxed());
    }
    assert!(left.len() > 4, "only {} were left in the middle", left.len());
    all_goes_on(&client, "after all").await;
}

/// Which of the client's requests wait for a lock, in the order of the queue: their numbers.
async fn numbers_in_queue(server: &Server, lock: &str) -> Vec<u64> {
    let waiting = View::of(server, lock).await.waiting;
    let number = |name: &String| name.split(':').nth(1).and_then(|number| number.parse().ok());
    waiting.iter().map(|name| number(name).expect("a number")).collect()
}

/// Has `n` acquisitions of one lock polled once, each in its turn, while the network is as it is; then the network is well
/// again. Says in which order they queue.
async fn order_of(n: usize, server: &Server, lock: &RwLock, meanwhile: impl AsyncFnOnce()) -> Vec<u64> {
    let mut futures: Vec<_> = (0..n).map(|_| lock.write().acquire_fair().boxed()).collect();
    first_polls(&mut futures).await;
    meanwhile().await;
    server.until_queued(lock.name(), n).await;
    numbers_in_queue(server, lock.name()).await
}

fn ascends(numbers: &[u64]) -> bool {
    numbers.windows(2).all(|pair| pair[0] < pair[1])
}

async fn first_polls_take_places_in_order() {
    const N: usize = 5_000;
    let server = Server::start().await;
    let client = client(server.url(), LONG).await;
    let held = client.rw_lock("a").write().acquire_fair().await.unwrap();
    let order = soon("all queue", order_of(N, &server, &client.rw_lock("a"), async || {})).await;
    assert_eq!(order.len(), N);
    assert!(ascends(&order), "{order:?}");
    held.release().await.unwrap();
}

#[tokio::test]
async fn first_polls_take_places_in_order_on_one_thread() {
    first_polls_take_places_in_order().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_polls_take_places_in_order_on_several_threads() {
    first_polls_take_places_in_order().await;
}

#[tokio::test]
async fn first_polls_take_places_in_order_while_the_connection_is_made_again() {
    const N: usize = 1_500;
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let near = client(server.url(), LONG).await;
    let held = near.rw_lock("a").write().acquire_fair().await.unwrap();
    let far = client(proxy.url(), LONG).await;
    proxy.refuse(true);
    proxy.cut();
    // It has noticed: from here on every call stands in line.
    let probe = async || far.rw_lock("b").write().try_acquire().now_or_never().is_none();
    eventually("the connection is lost", async || {
        let _ = probe().await;
        proxy.refused() > 0
    })
    .await;
    let lock = far.rw_lock("a");
    let order = soon("all queue", order_of(N, &server, &lock, async || proxy.refuse(false))).await;
    assert_eq!(order.len(), N);
    assert!(ascends(&order), "{order:?}");
    held.release().await.unwrap();
}

#[tokio::test]
async fn first_polls_take_places_in_order_though_the_server_knows_no_script() {
    const N: usize = 500;
    let server = Server::start().await;
    server.refuse_functions().await;
    let near = client(server.url(), LONG).await;
    let held = near.rw_lock("a").write().acquire_fair().await.unwrap();
    let _: () = redis::cmd("SCRIPT")
        .arg("FLUSH")
        .query_async(&mut server.redis().await)
        .await
        .unwrap();
    // Its first calls on a new connection.
    let far = client(server.url(), LONG).await;
    let order = soon("all queue", order_of(N, &server, &far.rw_lock("a"), async || {})).await;
    assert_eq!(order.len(), N);
    assert!(ascends(&order), "{order:?}");
    held.release().await.unwrap();
}

/// More calls stay than leave, because the link clears a line of which the greater part has left.
#[tokio::test]
async fn a_call_that_left_the_line_is_not_sent() {
    const LEAVE: usize = 100;
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let far = client(proxy.url(), LONG).await;
    proxy.refuse(true);
    proxy.cut();
    eventually("the connection is lost", async || proxy.refused() > 0).await;
    let acquire = |name: String| far.rw_lock(name).write().acquire_fair().boxed();
    let mut leave: Vec<_> = (0..LEAVE).map(|i| acquire(format!("left {i}"))).collect();
    let mut stay: Vec<_> = (0..2 * LEAVE).map(|i| acquire(format!("stays {i}"))).collect();
    first_polls(&mut leave).await;
    first_polls(&mut stay).await;
    drop(leave);
    proxy.refuse(false);
    // The replies come in the order of the line: the calls that left stood in front.
    for guard in soon("their turn", join_all(stay)).await {
        guard.unwrap().release().await.unwrap();
    }
    let mut redis = server.redis().await;
    for i in 0..LEAVE {
        let there: bool = redis::cmd("EXISTS")
            .arg(&keys(&format!("left {i}"))[0])
            .query_async(&mut redis)
            .await
            .unwrap();
        assert!(!there, "lock {i} was asked for");
    }
}
