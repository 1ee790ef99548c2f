//! Leases: who is alive keeps what it has, who is not loses it in time and hears of it.

use crate::observe::{LONG, Random, View, client, ms, until_free};
use crate::proxy::Proxy;
use crate::server::{Server, eventually, in_time, soon};
use fairlock::{Client, Error, LostReason, Owner, WriteGuard};
use futures::future::join_all;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::oneshot;

/// A process that can be frozen: a runtime in a thread of its own, which the test blocks and lets go on.
struct Process {
    freeze: oneshot::Sender<()>,
    frozen: oneshot::Receiver<()>,
    thaw: mpsc::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Process {
    /// Runs `life` beside an agent that blocks the whole runtime when told to.
    fn start<F: Future<Output = ()> + 'static>(life: impl FnOnce() -> F + Send + 'static) -> Self {
        let (freeze, to_freeze) = oneshot::channel();
        let (tell_frozen, frozen) = oneshot::channel();
        let (thaw, thawed) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let agent = async {
                if to_freeze.await.is_ok() {
                    let _ = tell_frozen.send(());
                    let _ = thawed.recv();
                }
            };
            let both = async { tokio::join!(agent, life()) };
            runtime.expect("a runtime").block_on(both);
        });
        Self {
            freeze,
            frozen,
            thaw,
            thread,
        }
    }

    /// Returns when nothing of it runs any more.
    async fn freeze(self) -> Frozen {
        self.freeze.send(()).expect("the process lives");
        soon("the process is frozen", self.frozen).await.expect("it says so");
        Frozen(self.thaw, self.thread)
    }
}

struct Frozen(mpsc::Sender<()>, std::thread::JoinHandle<()>);

impl Frozen {
    /// Lets it run to its end, and fails if it failed.
    async fn thaw(self) {
        self.0.send(()).expect("the process lives");
        let ended = tokio::task::spawn_blocking(move || self.1.join());
        soon("the process ends", ended)
            .await
            .unwrap()
            .expect("no assertion failed in it");
    }
}

/// Waits until `n` further scripts were called by hash: renewals, if nothing else is going on.
async fn after_renewals(server: &Server, n: u64) {
    let before = server.script_calls().await;
    eventually("renewals", async || server.script_calls().await >= before + n).await;
}

fn lost_because<T>(result: &Result<T, Error>) -> Option<LostReason> {
    match result {
        Err(Error::Lost { reason, .. }) => Some(*reason),
        _ => None,
    }
}

#[tokio::test]
async fn waiters_behind_a_hold_of_several_leases_all_enter_in_order() {
    in_time(async || {
        let server = Server::start().await;
        let clients = [
            client(server.url(), ms(1000)).await,
            client(server.url(), ms(1500)).await,
        ];
        let held = clients[0].rw_lock("a").write().acquire_fair().await.unwrap();
        let mut waiters = Vec::new();
        for i in 0..6 {
            waiters.push(tokio::spawn(clients[i % 2].rw_lock("a").write().acquire_fair()));
            server.until_queued("a", i + 1).await;
        }
        let order = View::of(&server, "a").await.waiting;
        tokio::time::sleep(ms(4000)).await;
        assert_eq!(View::of(&server, "a").await.waiting, order);
        held.release().await.unwrap();
        for waiter in waiters {
            let guard = soon("its turn", waiter).await.unwrap().unwrap();
            assert!(guard.is_held());
            guard.release().await.unwrap();
        }
        until_free(&server, "a").await;
    })
    .await;
}

#[tokio::test]
async fn deadlines_stay_within_a_lease_though_waiters_come_and_go() {
    let server = Server::start().await;
    let client = client(server.url(), ms(60_000)).await;
    let lock = client.rw_lock("a");
    let held = lock.write().acquire_fair().await.unwrap();
    let mut random = Random::new();
    for _ in 0..20 {
        let calls: Vec<_> = (0..20)
            .map(|_| (200 + random.below(20_000), random.below(20)))
            .collect();
        let calls = calls.into_iter().map(async |(lease_ms, wait_ms)| {
            let waiting = lock.write().lease(ms(lease_ms)).try_acquire_for(ms(1 + wait_ms));
            // Too short for an answer at times: that is another test's affair.
            let _ = waiting.await;
        });
        let sampling = async {
            let view = View::of(&server, "a").await;
            for (request, deadline) in &view.leases {
                let longest = if view.waiting.contains(request) { 20_200 } else { 60_000 };
                assert!(*deadline <= view.now_ms + longest, "{request} {deadline}: {view:?}");
            }
        };
        tokio::join!(join_all(calls), sampling);
    }
    held.release().await.unwrap();
    until_free(&server, "a").await;
}

#[tokio::test]
async fn a_hold_keeps_half_its_lease_while_its_owner_comes_and_goes() {
    in_time(async || {
        let server = Server::start().await;
        let client = client(server.url(), ms(6000)).await;
        let mine = client.rw_lock("a").with_owner(&Owner::new());
        let outer = mine.write().acquire_fair().await.unwrap();
        let name = View::of(&server, "a").await.leases[0].0.clone();
        let begun = Instant::now();
        while begun.elapsed() < ms(6500) {
            let (a, b) = tokio::try_join!(mine.write().acquire_fair(), mine.read().acquire_fair()).unwrap();
            a.release().await.unwrap();
            drop(b);
            let view = View::of(&server, "a").await;
            let outers = view.leases.iter().find(|(request, _)| *request == name);
            let left = outers.expect("it holds").1 - view.now_ms;
            assert!(left >= 3000, "{left} ms left");
            tokio::time::sleep(ms(2)).await;
        }
        outer.release().await.unwrap();
        until_free(&server, "a").await;
    })
    .await;
}

#[tokio::test]
async fn as_many_releases_as_acquires_leave_nothing_to_renew() {
    let server = Server::start().await;
    let client = client(server.url(), ms(3000)).await;
    let mut guards = (Vec::new(), Vec::new());
    for i in 0..20 {
        let mine = client.rw_lock(format!("lock {i}")).with_owner(&Owner::new());
        guards.1.push(mine.write().acquire_fair().await.unwrap());
        for _ in 0..3 {
            guards.0.push(mine.read().acquire_fair().await.unwrap());
        }
        guards.1.push(mine.write().acquire_fair().await.unwrap());
    }
    after_renewals(&server, 40).await;
    for guard in guards.0 {
        guard.release().await.unwrap();
    }
    for guard in guards.1 {
        guard.release().await.unwrap();
    }
    let before = server.script_calls().await;
    tokio::time::sleep(ms(1500)).await;
    assert_eq!(server.script_calls().await, before);
}

#[tokio::test]
async fn a_dead_reader_goes_though_another_reader_renews() {
    in_time(async || {
        let server = Server::start().await;
        let (b, w) = (
            client(server.url(), ms(1000)).await,
            client(server.url(), ms(1000)).await,
        );
        let url = server.url();
        let (holds, held) = oneshot::channel();
        let a = Process::start(move || async move {
            let guard = client(url, ms(1000))
                .await
                .rw_lock("a")
                .read()
                .acquire_fair()
                .await
                .unwrap();
            holds.send(()).expect("the test waits");
            guard.lost().await;
        });
        held.await.unwrap();
        let reading = b.rw_lock("a").read().acquire_fair().await.unwrap();
        let writer = tokio::spawn(w.rw_lock("a").write().acquire_fair());
        server.until_queued("a", 1).await;
        let a = a.freeze().await;
        eventually("only B reads", async || View::of(&server, "a").await.holds == 1).await;
        assert!(reading.is_held());
        assert_eq!(server.queued("a").await, 1);
        reading.release().await.unwrap();
        let _guard = soon("the writer enters", writer).await.unwrap().unwrap();
        a.thaw().await;
    })
    .await;
}

#[tokio::test]
async fn names_used_once_leave_keys_that_expire() {
    let server = Server::start().await;
    // The first name must still be there when the last one is used.
    let lease = 600_000;
    let client = client(server.url(), ms(lease)).await;
    let users = (0..50).map(async |user| {
        for i in 0..399 {
            let lock = client.rw_lock(format!("{user}/{i}"));
            lock.write().acquire_fair().await.unwrap().release().await.unwrap();
        }
        // Somebody waits, twice: the other two keys are made, go, are made again, and stay for now.
        let name = format!("{user}/queued for");
        let lock = client.rw_lock(&*name);
        let mut held = lock.write().acquire_fair().await.unwrap();
        for _ in 0..2 {
            let waiter = tokio::spawn(lock.write().acquire_fair());
            server.until_queued(&name, 1).await;
            held.release().await.unwrap();
            held = waiter.await.unwrap().unwrap();
        }
        let waiter = tokio::spawn(lock.write().acquire_fair());
        server.until_queued(&name, 1).await;
        (held, waiter)
    });
    let _in_use = join_all(users).await;
    let script = "local most, least = 0, 1e15
        local keys = redis.call('KEYS', '*')
        local count = 0
        for _, key in ipairs(keys) do
          if not string.find(key, ':client:', 1, true) then
            local ttl = redis.call('PTTL', key)
            count, most, least = count + 1, math.max(most, ttl), math.min(least, ttl)
          end
        end
        return { count, least, most }";
    let (count, least, most): (usize, i64, i64) = redis::Script::new(script)
        .invoke_async(&mut server.redis().await)
        .await
        .expect("the keys");
    assert_eq!(
        count,
        20_000 + 100,
        "one hash for each name, and two sets for those in use"
    );
    assert!(
        0 < least && most <= lease as i64 + 65_000,
        "expire in {least} to {most} ms"
    );
}

#[tokio::test]
async fn a_hold_that_expired_and_was_had_by_another_is_lost_and_not_taken_back() {
    let server = Server::start().await;
    let other = client(server.url(), LONG).await.rw_lock("a");
    let url = server.url();
    let (holds, held) = oneshot::channel();
    let first = Process::start(move || async move {
        let guard = client(url, ms(1000))
            .await
            .rw_lock("a")
            .write()
            .acquire_fair()
            .await
            .unwrap();
        holds.send(guard.fencing_token()).expect("the test waits");
        assert_eq!(guard.lost().await, LostReason::LeaseExpired);
        assert!(!guard.is_held());
        tokio::time::sleep(ms(500)).await;
        assert!(!guard.is_held(), "it came back");
        assert_eq!(lost_because(&guard.release().await), Some(LostReason::LeaseExpired));
    });
    let token = held.await.unwrap();
    let first = first.freeze().await;
    let second = soon("the lease ends", other.write().acquire_fair()).await.unwrap();
    assert!(second.fencing_token() > token);
    second.release().await.unwrap();
    first.thaw().await;
    until_free(&server, "a").await;
}

#[tokio::test]
async fn a_renewal_that_arrives_after_the_lease_makes_no_hold() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let (far, near) = (client(proxy.url(), ms(1000)).await, client(server.url(), LONG).await);
    let held = far.rw_lock("a").write().acquire_fair().await.unwrap();
    proxy.stall(true);
    let second = soon("the lease ends", near.rw_lock("a").write().acquire_fair()).await;
    let second = second.unwrap();
    assert!(!held.is_held());
    // A script's first call over a connection carries its text.
    let calls = async || server.script_calls().await;
    let before = calls().await;
    proxy.stall(false);
    eventually("late commands are executed", async || calls().await > before).await;
    // The answer to this comes after those to all late commands.
    eventually("an answer", async || {
        match far.rw_lock("a").write().try_acquire().await {
            Ok(guard) => {
                assert!(guard.is_none());
                true
            }
            Err(error) => {
                assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
                false
            }
        }
    })
    .await;
    assert_eq!(View::of(&server, "a").await.holds, 1);
    second.release().await.unwrap();
    until_free(&server, "a").await;
    assert_eq!(lost_because(&held.release().await), Some(LostReason::LeaseExpired));
}

/// A process that waits for "a", is frozen while it waits, and says what it got.
async fn a_frozen_waiter(server: &Server) -> (Frozen, oneshot::Receiver<(Client, WriteGuard)>) {
    let url = server.url();
    let (says, said) = oneshot::channel();
    let waiter = Process::start(move || async move {
        let client = client(url, ms(1000)).await;
        let guard = client.rw_lock("a").write().acquire_fair().await.unwrap();
        assert!(guard.is_held());
        says.send((client, guard)).expect("the test waits");
        // Time for the keeper to be told if the server disagrees.
        tokio::time::sleep(ms(500)).await;
    });
    server.until_queued("a", 1).await;
    (waiter.freeze().await, said)
}

#[tokio::test]
async fn a_waiter_frozen_from_its_grant_until_another_has_the_lock_queues_again() {
    in_time(async || {
        let server = Server::start().await;
        let near = client(server.url(), LONG).await.rw_lock("a");
        let held = near.write().acquire_fair().await.unwrap();
        let (waiter, mut said) = a_frozen_waiter(&server).await;
        held.release().await.unwrap();
        assert_eq!(View::of(&server, "a").await.mode, "write", "granted to the frozen one");
        let third = soon("the grant expires", near.write().acquire_fair()).await.unwrap();
        assert!(said.try_recv().is_err());
        let third_leaves = async {
            server.until_queued("a", 1).await;
            assert!(said.try_recv().is_err(), "two are inside");
            third.release().await.unwrap();
            soon("it enters", &mut said).await.unwrap()
        };
        let ((_client, guard), ()) = tokio::join!(third_leaves, waiter.thaw());
        assert!(guard.is_held());
    })
    .await;
}

#[tokio::test]
async fn a_waiter_frozen_from_its_grant_until_nobody_has_the_lock_gets_a_fresh_hold() {
    in_time(async || {
        let server = Server::start().await;
        let near = client(server.url(), LONG).await.rw_lock("a");
        let held = near.write().acquire_fair().await.unwrap();
        let (waiter, said) = a_frozen_waiter(&server).await;
        held.release().await.unwrap();
        eventually("the grant has run out", async || {
            let view = View::of(&server, "a").await;
            view.leases.iter().all(|(_, deadline)| *deadline < view.now_ms)
        })
        .await;
        let ((_client, guard), ()) = tokio::join!(async { soon("it enters", said).await.unwrap() }, waiter.thaw());
        let view = View::of(&server, "a").await;
        assert!(
            guard.is_held() && view.leases.iter().all(|(_, deadline)| *deadline > view.now_ms),
            "{view:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn a_writer_of_a_short_lease_waits_for_a_reader_of_a_long_one() {
    in_time(async || {
        let server = Server::start().await;
        let (reader, writer) = (
            client(server.url(), ms(60_000)).await,
            client(server.url(), ms(1000)).await,
        );
        let reading = reader.rw_lock("a").read().acquire_fair().await.unwrap();
        let waiter = tokio::spawn(writer.rw_lock("a").write().acquire_fair());
        server.until_queued("a", 1).await;
        after_renewals(&server, 6).await;
        let view = View::of(&server, "a").await;
        assert_eq!((view.mode.as_str(), view.waiting.len()), ("read", 1));
        assert!(reading.is_held() && !waiter.is_finished());
        reading.release().await.unwrap();
        let _guard = soon("the writer enters", waiter).await.unwrap().unwrap();
    })
    .await;
}

#[tokio::test]
async fn no_command_carries_a_clients_clock() {
    let server = Server::start().await;
    let mut monitor = tokio::net::TcpStream::connect(("127.0.0.1", server.port()))
        .await
        .unwrap();
    monitor.write_all(b"MONITOR\r\n").await.unwrap();
    let mut lines = BufReader::new(monitor).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("+OK"));

    let client = client(server.url(), ms(3000)).await;
    let held = client
        .rw_lock("a")
        .write()
        .max_hold(ms(60_000))
        .acquire_fair()
        .await
        .unwrap();
    let waiter = tokio::spawn(client.rw_lock("a").read().acquire_fair());
    server.until_queued("a", 1).await;
    after_renewals(&server, 2).await;
    held.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    let _: () = redis::cmd("ECHO")
        .arg("the end")
        .query_async(&mut server.redis().await)
        .await
        .unwrap();

    let mut scripts = BTreeSet::new();
    while let Some(line) = soon("a line", lines.next_line()).await.unwrap() {
        if line.contains("\"ECHO\"") {
            break;
        }
        let words: Vec<_> = line.split('"').skip(1).step_by(2).collect();
        if words.first() != Some(&"EVALSHA") || line.contains(" lua] ") {
            continue;
        }
        scripts.insert(words[1].to_owned());
        for word in &words[2..] {
            // Seconds since 1970 have ten digits, and finer clocks more.
            assert!(word.len() < 10 || word.parse::<u64>().is_err(), "{line}");
        }
    }
    assert_eq!(scripts.len(), 3, "acquire, renew and release were seen: {scripts:?}");
}

#[tokio::test]
async fn renewals_never_move_a_deadline_beyond_max_hold() {
    in_time(async || {
        let server = Server::start().await;
        let client = client(server.url(), ms(1500)).await;
        let held = client
            .rw_lock("a")
            .write()
            .max_hold(ms(2500))
            .acquire_fair()
            .await
            .unwrap();
        let begun_ms = View::of(&server, "a").await.now_ms;
        let waiter = tokio::spawn(client.rw_lock("a").write().lease(LONG).acquire_fair());
        server.until_queued("a", 1).await;
        let name = View::of(&server, "a").await.leases[0].0.clone();
        while held.is_held() {
            let view = View::of(&server, "a").await;
            for (_, deadline) in view.leases.iter().filter(|(request, _)| *request == name) {
                // A renewal that is not cut, from 2000 ms on, leads beyond 3500 ms.
                assert!(*deadline <= begun_ms + 3000, "{} ms", deadline - begun_ms);
            }
            tokio::time::sleep(ms(10)).await;
        }
        assert_eq!(held.lost().await, LostReason::MaxHold);
        let _next = soon("the next enters", waiter).await.unwrap().unwrap();
    })
    .await;
}

#[tokio::test]
async fn while_held_gives_the_jobs_output_or_drops_the_job_when_the_lock_is_lost() {
    in_time(async || {
        struct Job(Arc<AtomicBool>);
        impl Drop for Job {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let server = Server::start().await;
        let proxy = Proxy::to(server.port()).await;
        let client = client(proxy.url(), ms(1000)).await;
        let guard = client.rw_lock("a").write().acquire_fair().await.unwrap();
        assert_eq!(guard.while_held(async { 3 }).await.unwrap(), 3);
        let longer_than_a_lease = guard.while_held(tokio::time::sleep(ms(1500)));
        longer_than_a_lease.await.unwrap();

        let dropped = Arc::new(AtomicBool::new(false));
        let job = Job(Arc::clone(&dropped));
        proxy.stall(true);
        let result = guard.while_held(async move {
            let _job = job;
            std::future::pending::<()>().await;
        });
        let result = soon("the job ends", result).await;
        assert_eq!(lost_because(&result), Some(LostReason::LeaseExpired));
        assert!(dropped.load(Ordering::SeqCst));
        assert_eq!(guard.lost().await, LostReason::LeaseExpired, "as often as it is asked");
    })
    .await;
}

#[tokio::test]
async fn a_guard_that_was_lost_stays_lost_when_the_server_can_be_reached_again() {
    in_time(async || {
        let server = Server::start().await;
        let proxy = Proxy::to(server.port()).await;
        let (far, near) = (client(proxy.url(), ms(1000)).await, client(server.url(), LONG).await);
        let guard = far.rw_lock("a").read().acquire_fair().await.unwrap();
        let _other = near.rw_lock("a").read().acquire_fair().await.unwrap();
        let mut lost = Box::pin(guard.lost());
        assert!(futures::poll!(&mut lost).is_pending());
        proxy.stall(true);
        assert_eq!(soon("it is lost", lost).await, LostReason::LeaseExpired);
        proxy.stall(false);
        let again = soon("the server answers", far.rw_lock("a").read().acquire_fair())
            .await
            .unwrap();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(800) {
            assert!(!guard.is_held());
            tokio::time::sleep(ms(1)).await;
        }
        assert!(again.is_held(), "a new hold is another matter");
        drop(guard);
        eventually("two holds are left", async || View::of(&server, "a").await.holds == 2).await;
        assert!(again.is_held());
    })
    .await;
}

#[tokio::test]
async fn a_hold_ends_at_max_hold_though_its_lease_is_longer() {
    let server = Server::start().await;
    let lock = client(server.url(), LONG).await.rw_lock("a");
    let begun = Instant::now();
    let held = lock.write().max_hold(ms(500)).acquire_fair().await.unwrap();
    let waiter = tokio::spawn(lock.write().acquire_fair());
    assert_eq!(soon("it is lost", held.lost()).await, LostReason::MaxHold);
    assert!(begun.elapsed() >= ms(450) && !held.is_held());
    let _next = soon("the next enters", waiter).await.unwrap().unwrap();
    assert_eq!(lost_because(&held.release().await), Some(LostReason::MaxHold));
}

#[tokio::test]
async fn a_key_of_another_type_ends_waits_with_an_error_and_a_hold_among_them_with_its_lease() {
    use crate::users::{LEASE, client, queued};
    let server = Server::start().await;
    let lock = client(server.url(), LEASE).await.rw_lock("a");
    let held = lock.write().acquire_fair().await.unwrap();
    let waiter = queued(&server, lock.write(), 1).await;
    redis::cmd("SET")
        .arg("fairlock:{a}:leases")
        .arg("somebody else's")
        .exec_async(&mut server.redis().await)
        .await
        .unwrap();
    assert!(matches!(waiter.fails().await, Error::Server { .. }));
    assert_eq!(soon("the loss", held.lost()).await, LostReason::LeaseExpired);
}
