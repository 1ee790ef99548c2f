//! The client before a server that answers and pushes at random: nothing panics, every call returns, and there is no
//! guard without a grant.

mod server;

use crate::parse::{push_kind, runner, seed, value};
use fairlock::{Client, Error, LostReason, testing};
use futures::FutureExt;
use proptest::test_runner::TestRunner;
use redis::PushInfo;
use server::{Mood, Server, Shared, message, one_in, random, text};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// No call takes longer than this, whatever it is told.
const PATIENCE: Duration = Duration::from_secs(30);

const LEASE: Duration = Duration::from_millis(300);

const FIRST_TOKEN: i64 = 1_760_400_000_000_000;

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn count_panics() {
    static HOOK: OnceLock<()> = OnceLock::new();
    HOOK.get_or_init(|| {
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // Tasks of a runtime run on threads without the name of a test.
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            if name.starts_with("wild-") {
                PANICS.lock().expect("a list").push(panic.to_string());
            }
            default(panic);
        }));
    });
}

/// A runtime whose panics are counted. One test at a time: they share the list.
fn in_runtime(name: &str, test: impl Future<Output = ()>) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    count_panics();
    PANICS.lock().expect("a list").clear();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime
        .worker_threads(2)
        .thread_name(format!("wild-{name}"))
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(test);
    runtime.shutdown_timeout(PATIENCE);
    let panics = std::mem::take(&mut *PANICS.lock().expect("a list"));
    assert!(panics.is_empty(), "{panics:#?}");
}

fn id_of(client: &Client) -> String {
    let shown = format!("{client:?}");
    let (_, rest) = shown.split_once("id: ").expect("a client shows its number");
    rest.split(',').next().expect("more than that").to_owned()
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[derive(Default)]
struct Seen {
    guards: AtomicUsize,
    busy: AtomicUsize,
    errors: Mutex<HashMap<String, usize>>,
}

impl Seen {
    fn error(&self, error: &Error) {
        let shown = format!("{error:?}");
        let kind = shown.split([' ', '{', '(']).next().unwrap_or_default().to_owned();
        assert!(!error.to_string().is_empty());
        *self.errors.lock().expect("a map").entry(kind).or_default() += 1;
    }
}

/// A guard was granted by some reply or message, to just that request.
fn check_guard<M: fairlock::Access>(shared: &Shared, guard: &fairlock::Guard<M>, mode: char) {
    let request = format!("{mode}{}", testing::owner_name(guard.owner()));
    let token = guard.fencing_token().get();
    let granted = shared
        .granted
        .lock()
        .expect("a set")
        .contains(&(request.clone(), token));
    assert!(
        granted,
        "a guard of {request} with token {token}, which was never granted"
    );
    assert!((1..=1 << 53).contains(&token), "{token}");
}

async fn use_it(client: &Client, shared: &Shared, seen: &Seen, runner: &mut TestRunner) -> Result<(), Error> {
    let lock = client.rw_lock("a");
    let limit = Duration::from_millis(200);
    match random(runner, 0..8) {
        0 => drop(lock.status().await?),
        1 => drop(lock.evict(&fairlock::Owner::new()).await?),
        2 => drop(timeout(Duration::from_secs(3), client.events()).await),
        3 => match lock.read().try_acquire().await? {
            Some(guard) => {
                check_guard(shared, &guard, 'r');
                seen.guards.fetch_add(1, Ordering::Relaxed);
                drop(timeout(limit, guard.upgrade()).await);
            }
            None => drop(seen.busy.fetch_add(1, Ordering::Relaxed)),
        },
        4 => drop(
            timeout(limit, lock.write().acquire_fair())
                .await
                .map(|got| got.inspect_err(|error| seen.error(error))),
        ),
        more => match lock.write().try_acquire_for(limit).await? {
            Some(guard) => {
                check_guard(shared, &guard, 'w');
                seen.guards.fetch_add(1, Ordering::Relaxed);
                match more {
                    5 => guard.release().await?,
                    6 => guard.downgrade().await?.release().await?,
                    _ => drop(timeout(limit, guard.lost()).await),
                }
            }
            None => drop(seen.busy.fetch_add(1, Ordering::Relaxed)),
        },
    }
    Ok(())
}

#[test]
fn a_server_that_answers_at_random_gets_no_panic_no_hang_and_no_guard_without_a_grant() {
    let seconds = std::env::var("PARSE_SECONDS").map_or(15, |seconds| seconds.parse().expect("PARSE_SECONDS"));
    let seed = seed();
    println!("PARSE_SEED={seed:032x}");
    in_runtime("users", async move {
        let server = Server::start(Mood::Grants, seed).await;
        let clients = [server.client().await, server.client().await];
        server.become_(Mood::Wild);
        let seen = Arc::new(Seen::default());
        let until = Instant::now() + Duration::from_secs(seconds);
        let users = (0..16_u128).map(|user| {
            let (client, shared) = (clients[user as usize % 2].clone(), Arc::clone(&server.shared));
            let seen = Arc::clone(&seen);
            tokio::spawn(async move {
                let mut runner = runner(seed ^ (user + 1), 1);
                while Instant::now() < until {
                    let used = timeout(PATIENCE, use_it(&client, &shared, &seen, &mut runner)).await;
                    if let Err(error) = used.expect("every call returns") {
                        seen.error(&error);
                    }
                }
            })
        });
        for user in users.collect::<Vec<_>>() {
            user.await.expect("no user panics");
        }
        let mut summary = String::new();
        let calls = server.shared.calls.load(Ordering::Relaxed);
        let (guards, busy) = (seen.guards.load(Ordering::Relaxed), seen.busy.load(Ordering::Relaxed));
        write!(summary, "{calls} calls, {guards} guards, {busy} times busy").expect("a string");
        println!("{summary}, errors {:?}", seen.errors.lock().expect("a map"));
        assert!(guards > 0 && busy > 0, "{summary}: nothing was put to the test");
        // It comes to its senses, and so does the client.
        server.become_(Mood::Grants);
        for client in &clients {
            let begun = Instant::now();
            loop {
                let guard = client.rw_lock("b").write().try_acquire_for(Duration::from_secs(1));
                match timeout(PATIENCE, guard).await.expect("every call returns") {
                    Ok(Some(_)) => break,
                    other => assert!(begun.elapsed() < PATIENCE, "no lock from a tame server: {other:?}"),
                }
            }
            timeout(PATIENCE, client.shutdown()).await.expect("a shutdown returns");
        }
        let ids: Vec<_> = clients.iter().map(id_of).collect();
        let released = server.shared.released.lock().expect("a list").clone();
        let foreign = released
            .iter()
            .find(|name| !ids.iter().any(|id| name[1..].starts_with(&format!("{id}:"))));
        assert_eq!(foreign, None, "a request that neither client made was released");
    });
}

#[test]
fn a_client_passes_on_its_own_forgotten_grants_and_no_others() {
    in_runtime("forgotten", async {
        let server = Server::start(Mood::Grants, 1).await;
        let client = server.client_with(Duration::from_secs(3600)).await;
        let id = id_of(&client);
        let guard = client.rw_lock("a").write().acquire_fair().await.expect("granted");
        guard.release().await.expect("released");
        let own = format!("w{id}:1");
        let released = |name: &str| {
            server
                .shared
                .released
                .lock()
                .expect("a list")
                .iter()
                .filter(|n| *n == name)
                .count()
        };
        assert_eq!(released(&own), 1);
        let hear = |payload: &str| testing::push(&client, &message(&format!("fairlock:c:{id}"), payload));
        // Another client's, one that was never made, one on keys that are no lock's, and what has no number.
        let others = [
            "5 w0123456789abcde:1\nfairlock:{a}".to_owned(),
            format!("5 w{id}:0\nfairlock:{{a}}"),
            format!("5 w{id}:999\nfairlock:{{a}}"),
            format!("5 {own}\nusers"),
            format!("5 {own}\nfairlock:{{a}}:q"),
            format!("5 {own}\nother:{{a}}"),
            format!("9007199254740993 {own}\nfairlock:{{a}}"),
            format!("5 x{id}:1\nfairlock:{{a}}"),
        ];
        others.iter().for_each(|payload| hear(payload));
        // What comes after them is done after them.
        hear(&format!("5 {own}\nfairlock:{{a}}"));
        eventually("its own is released", || released(&own) == 2).await;
        client.shutdown().await;
        let all = server.shared.released.lock().expect("a list").clone();
        assert_eq!(all, [own.clone(), own]);
    });
}

#[test]
fn a_message_about_another_name_with_the_same_number_leaves_a_waiter_alone() {
    in_runtime("number", async {
        let server = Server::start(Mood::Queues, 1).await;
        // The server says "waits" to each renewal: after the grant below the next one would be a loss. A busy machine may
        // take seconds until the waiter has seen the grant.
        let client = server.client_with(Duration::from_secs(24)).await;
        let id = id_of(&client);
        let waiter = tokio::spawn(client.rw_lock("a").write().acquire_fair());
        let own = format!("w{id}:1");
        eventually("it asks", || server.shared.asked.lock().expect("a list").contains(&own)).await;
        let channel = format!("fairlock:c:{id}");
        let token = (FIRST_TOKEN * 2).cast_unsigned();
        let others = [
            format!("r{id}:1"),
            format!("{own}:6ba7b8109dad41d180b400c04fd430c8"),
            format!("r{id}:1:*2"),
            "w0123456789abcde:1".to_owned(),
        ];
        for (before, name) in (1..).zip(others) {
            let token = token - before;
            testing::push(&client, &message(&channel, &format!("{token} {name}\nfairlock:{{a}}")));
        }
        server.shared.renewed.lock().expect("a list").clear();
        eventually("it is renewed", || {
            !server.shared.renewed.lock().expect("a list").is_empty()
        })
        .await;
        testing::push(&client, &message(&channel, &format!("{token} {own}\nfairlock:{{a}}")));
        let guard = timeout(PATIENCE, waiter)
            .await
            .expect("a grant wakes it")
            .expect("no panic")
            .expect("granted");
        assert_eq!(guard.fencing_token().get(), token);
        assert_eq!(*server.shared.released.lock().expect("a list"), [""; 0]);
        // And it is told when an operator throws it out.
        let lost = guard.lost();
        testing::push(&client, &message(&channel, &format!("0 {own}\nfairlock:{{a}}")));
        assert_eq!(timeout(PATIENCE, lost).await.expect("told"), LostReason::Evicted);
    });
}

#[test]
fn no_push_of_any_shape_does_harm() {
    let seed = seed();
    in_runtime("pushes", async {
        let server = Server::start(Mood::Grants, seed).await;
        // On a busy machine the pushes below take longer than a lease, and keep the renewals from running.
        let client = server.client_with(Duration::from_secs(3600)).await;
        let guard = client.rw_lock("a").write().acquire_fair().await.expect("granted");
        let mut runner = runner(seed, 1);
        let channels = [
            format!("fairlock:c:{}", id_of(&client)),
            "fairlock:listen".into(),
            "fairlock:{a}:events".into(),
        ];
        for _ in 0..20_000 {
            let mut data = random(&mut runner, proptest::collection::vec(value(), 0..4));
            if !data.is_empty() && !one_in(&mut runner, 4) {
                data[0] = text(&channels[random(&mut runner, 0..3_usize)]);
            }
            let push = PushInfo {
                kind: random(&mut runner, push_kind()),
                data,
            };
            let heard = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| testing::push(&client, &push)));
            assert!(heard.is_ok(), "PARSE_SEED={seed:032x}: {push:?}");
        }
        assert!(
            guard.lost().now_or_never().is_none() && guard.is_held(),
            "PARSE_SEED={seed:032x}"
        );
        guard.release().await.expect("released");
        client.shutdown().await;
        assert_eq!(
            server.shared.released.lock().expect("a list").len(),
            1,
            "PARSE_SEED={seed:032x}"
        );
    });
}

#[test]
fn a_server_that_never_has_done_with_it_does_not_keep_a_release_waiting() {
    in_runtime("endless", async {
        let server = Server::start(Mood::Grants, 1).await;
        // Calls of a short lease end too early on a busy machine, and with them what this is about.
        let client = server.client_with(Duration::from_secs(10)).await;
        let guard = client.rw_lock("a").write().acquire_fair().await.expect("granted");
        server.become_(Mood::Endless);
        timeout(PATIENCE, guard.release())
            .await
            .expect("an end")
            .expect("released");
        assert!(server.shared.renewed.lock().expect("a list").is_empty());
    });
}

#[test]
fn a_reply_to_another_question_is_an_error() {
    in_runtime("another", async {
        let server = Server::start(Mood::Contrary, 1).await;
        let client = server.client_with(Duration::from_secs(3600)).await;
        let lock = client.rw_lock("a");
        for _ in 0..3 {
            let tried = timeout(PATIENCE, lock.write().try_acquire())
                .await
                .expect("a try does not wait");
            assert!(matches!(tried, Err(Error::Server { .. })), "{tried:?}");
            let turned_away = timeout(PATIENCE, lock.write().acquire_fair()).await.expect("in time");
            assert!(matches!(turned_away, Err(Error::Server { .. })), "{turned_away:?}");
        }
        client.shutdown().await;
    });
}
