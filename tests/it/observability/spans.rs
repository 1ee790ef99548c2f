//! What a subscriber of `tracing` is told: each test has one of its own, on its thread.

use crate::observe::{LONG, client, ms};
use crate::server::{Server, eventually, soon};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, Once};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

type Fields = BTreeMap<&'static str, String>;

#[derive(Default)]
struct Values(Fields);

impl Visit for Values {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

#[derive(Default)]
struct Seen {
    /// In the order in which they began.
    spans: Vec<(&'static str, Fields)>,
    events: Vec<(Level, Fields)>,
}

thread_local! {
    /// Of the test that runs here.
    static HERE: RefCell<Option<Log>> = const { RefCell::new(None) };
}

#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Seen>>);

impl Log {
    /// One subscriber for all threads: with one for each, a call that is first made on a thread that has none is taken
    /// for one that nobody listens to, on all threads.
    pub fn here() -> Self {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(|| tracing::subscriber::set_global_default(Sorted).expect("no other subscriber"));
        let log = Self::default();
        HERE.set(Some(log.clone()));
        log
    }

    /// Everything so far.
    #[cfg(feature = "metrics")]
    pub fn texts(&self) -> Vec<String> {
        let seen = self.0.lock().unwrap();
        let spans = seen.spans.iter().map(|span| format!("{span:?}"));
        spans
            .chain(seen.events.iter().map(|event| format!("{event:?}")))
            .collect()
    }

    fn spans(&self, name: &str) -> Vec<Fields> {
        let seen = self.0.lock().unwrap();
        let spans = seen.spans.iter().filter(|(of, _)| *of == name);
        spans.map(|(_, fields)| fields.clone()).collect()
    }

    fn events(&self, message: &str) -> Vec<(Level, Fields)> {
        let seen = self.0.lock().unwrap();
        let events = seen.events.iter().filter(|(_, fields)| fields["message"] == message);
        events.cloned().collect()
    }
}

/// Gives each thread's spans and events of this crate to the log of the test that runs there.
struct Sorted;

impl Sorted {
    fn note<T>(note: impl FnOnce(&mut Seen) -> T) -> Option<T> {
        let log = HERE.with_borrow(Clone::clone)?;
        let mut seen = log.0.lock().unwrap();
        Some(note(&mut seen))
    }
}

impl Subscriber for Sorted {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("fairlock")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut values = Values::default();
        span.record(&mut values);
        let number = Self::note(|seen| {
            seen.spans.push((span.metadata().name(), values.0));
            seen.spans.len() as u64
        });
        Id::from_u64(number.unwrap_or(u64::MAX))
    }

    fn record(&self, span: &Id, record: &Record<'_>) {
        let mut values = Values::default();
        record.record(&mut values);
        Self::note(|seen| {
            let index = usize::try_from(span.into_u64() - 1).unwrap();
            if let Some((_, fields)) = seen.spans.get_mut(index) {
                fields.extend(values.0);
            }
        });
    }

    fn event(&self, event: &Event<'_>) {
        let mut values = Values::default();
        event.record(&mut values);
        Self::note(|seen| seen.events.push((*event.metadata().level(), values.0)));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn has(fields: &Fields, expected: &[(&str, &str)]) {
    for (name, value) in expected {
        assert_eq!(
            fields.get(name).map(String::as_str),
            Some(*value),
            "{name} of {fields:#?}"
        );
    }
}

fn number(fields: &Fields, name: &str) -> u64 {
    fields[name].parse().expect("a number")
}

#[tokio::test]
async fn a_hand_over_is_an_acquire_and_a_hold() {
    let log = Log::here();
    let server = Server::start().await;
    let lock = client(server.url(), LONG).await.rw_lock("a");
    let held = lock.write().acquire_fair().await.unwrap();
    let token = held.fencing_token().to_string();
    let acquire = &log.spans("acquire")[0];
    has(acquire, &[("lock", "a"), ("mode", "write"), ("outcome", "granted")]);
    has(acquire, &[("token", &token), ("source", "reply")]);
    assert!(number(acquire, "wait_us") > 0);
    let hold = &log.spans("hold")[0];
    has(hold, &[("lock", "a"), ("mode", "write"), ("token", &token)]);
    assert!(!hold.contains_key("outcome"), "{hold:#?}");

    let waiter = tokio::spawn(lock.read().acquire_fair());
    server.until_queued("a", 1).await;
    assert!(!log.spans("acquire")[1].contains_key("outcome"));
    held.release().await.unwrap();
    has(&log.spans("hold")[0], &[("outcome", "released")]);
    assert!(number(&log.spans("hold")[0], "hold_us") > 0);
    drop(soon("the hand-over", waiter).await.unwrap().unwrap());
    has(
        &log.spans("acquire")[1],
        &[("mode", "read"), ("outcome", "granted"), ("source", "message")],
    );
    has(&log.spans("hold")[1], &[("outcome", "dropped")]);
}

#[tokio::test]
async fn spans_of_a_semaphore_say_how_many_permits() {
    let log = Log::here();
    let server = Server::start().await;
    let client = client(server.url(), LONG).await;
    let held = client.semaphore("a", 4).permits(3).acquire_fair().await.unwrap();
    let permits = [("lock", "a"), ("mode", "permits"), ("permits", "3")];
    has(&log.spans("acquire")[0], &permits);
    has(&log.spans("hold")[0], &permits);
    held.release().await.unwrap();
    drop(client.rw_lock("b").read().acquire_fair().await.unwrap());
    assert!(!log.spans("acquire")[1].contains_key("permits"));
}

#[tokio::test]
async fn an_acquire_without_a_guard_says_why() {
    let log = Log::here();
    let server = Server::start().await;
    let lock = client(server.url(), LONG).await.rw_lock("a");
    let _held = lock.write().acquire_fair().await.unwrap();
    assert!(lock.read().try_acquire().await.unwrap().is_none());
    assert!(lock.read().try_acquire_for(ms(20)).await.unwrap().is_none());
    let waiter = tokio::spawn(lock.read().acquire_fair());
    server.until_queued("a", 1).await;
    waiter.abort();
    assert!(waiter.await.is_err());
    let outcomes = log
        .spans("acquire")
        .into_iter()
        .map(|mut fields| fields.remove("outcome"));
    let outcomes: Vec<_> = outcomes.flatten().collect();
    assert_eq!(outcomes, ["granted", "busy", "timeout", "cancelled"]);
    assert_eq!(log.spans("hold").len(), 1);
}

#[tokio::test]
async fn a_loss_is_a_warning_once() {
    let log = Log::here();
    let server = Server::start().await;
    let lock = client(server.url(), LONG).await.rw_lock("a");
    let held = lock.write().max_hold(ms(30)).acquire_fair().await.unwrap();
    held.lost().await;
    assert!(!held.is_held());
    drop(held);
    let [(level, fields)] = &log.events("hold lost")[..] else {
        panic!("not one warning: {:?}", log.events("hold lost"));
    };
    assert_eq!(*level, Level::WARN);
    has(fields, &[("lock", "a"), ("mode", "write"), ("reason", "max_hold")]);
    has(&log.spans("hold")[0], &[("outcome", "lost"), ("reason", "max_hold")]);
}

#[tokio::test]
async fn the_end_of_a_client_that_left_a_least_time_is_no_warning() {
    let (log, server) = (Log::here(), Server::start().await);
    let client = client(server.url(), LONG).await;
    let acquire = client.rw_lock("a").write().hold_at_least(LONG);
    acquire.acquire_fair().await.unwrap().release().await.unwrap();
    drop(client);
    eventually("the client's connections closed", async || {
        server.connections().await == 0
    })
    .await;
    let warnings = log.0.lock().unwrap().events.clone();
    let warnings = warnings.into_iter().filter(|(level, _)| *level == Level::WARN);
    assert_eq!(warnings.count(), 0);
}

#[tokio::test]
async fn an_outage_is_a_warning_and_its_end_is_told() {
    let log = Log::here();
    let mut server = Server::start().await;
    let client = client(server.url(), LONG).await;
    server.kill();
    let asking = tokio::spawn(client.rw_lock("a").write().acquire_fair());
    let connections = |message: &str| {
        let events = log.events(message).into_iter();
        let mut connections: Vec<_> = events.map(|(_, mut fields)| fields.remove("connection")).collect();
        connections.sort();
        connections.into_iter().flatten().collect::<Vec<_>>()
    };
    eventually("both are lost", async || {
        connections("connection lost") == ["command", "subscription"]
    })
    .await;
    server.start_again().await;
    eventually("both reconnect", async || {
        connections("reconnected") == ["command", "subscription"]
    })
    .await;
    drop(soon("an answer", asking).await.unwrap().unwrap());
}
