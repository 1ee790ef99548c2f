//! A web service on two replicas: many look at the price list, now and then somebody changes it.
//!
//! With a lock that lets readers in whenever other readers are inside, as usual ones do, a flood of readers never leaves
//! a gap: changes wait until the flood is over. `Policy::ReaderFirst` stands for such a lock here. With `Policy::Fifo`, the
//! default, a change waits for those who were there before it and for nobody else, however many come after.
//!
//! The program runs the same load on both, over HTTP, and prints how long requests took. The readers of the second run
//! stop only when all changes are done: if those starved it would never end.
//!
//! Run it with `cargo run -p fairlock-services --bin axum`.

#[path = "../../../common/mod.rs"]
mod common;
#[path = "../http.rs"]
mod http;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use fairlock::{Client, Guard, Policy, RwLock};
use http::request;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::sleep;

const READERS: usize = 24;
const WRITERS: usize = 3;
/// Changes of each writer.
const CHANGES: usize = 10;
/// How long the flood lasts if it does not wait for the writers.
const FLOOD: Duration = Duration::from_secs(4);
const READING: Duration = Duration::from_millis(10);
const WRITING: Duration = Duration::from_millis(2);

/// What both replicas share, such as a file. It sees who is inside.
#[derive(Default)]
struct Prices {
    readers: AtomicUsize,
    writers: AtomicUsize,
    version: AtomicUsize,
}

#[derive(Clone)]
struct Service {
    lock: RwLock,
    prices: Arc<Prices>,
}

type Answer = Result<String, (StatusCode, String)>;

/// What a program does about an error of a lock is its own business; to a web client the service is not available.
fn unavailable(error: fairlock::Error) -> (StatusCode, String) {
    (StatusCode::SERVICE_UNAVAILABLE, error.to_string())
}

/// What was read or written is that. A release that fails does not undo it.
async fn release<M>(guard: Guard<M>) {
    if let Err(error) = guard.release().await {
        eprintln!("prices: {error}");
    }
}

fn overlap() -> (StatusCode, String) {
    (StatusCode::INTERNAL_SERVER_ERROR, "a writer was not alone".to_owned())
}

async fn read(State(service): State<Service>) -> Answer {
    let guard = service.lock.read().acquire_fair().await.map_err(unavailable)?;
    service.prices.readers.fetch_add(1, Ordering::SeqCst);
    let version = service.prices.version.load(Ordering::SeqCst);
    sleep(READING).await;
    let alone = service.prices.writers.load(Ordering::SeqCst) == 0;
    service.prices.readers.fetch_sub(1, Ordering::SeqCst);
    release(guard).await;
    alone.then(|| version.to_string()).ok_or_else(overlap)
}

async fn change(State(service): State<Service>) -> Answer {
    let guard = service.lock.write().acquire_fair().await.map_err(unavailable)?;
    let others = service.prices.writers.fetch_add(1, Ordering::SeqCst) + service.prices.readers.load(Ordering::SeqCst);
    // Not atomic: only who is alone may do this.
    let version = service.prices.version.load(Ordering::SeqCst);
    sleep(WRITING).await;
    service.prices.version.store(version + 1, Ordering::SeqCst);
    service.prices.writers.fetch_sub(1, Ordering::SeqCst);
    release(guard).await;
    (others == 0).then(|| version.to_string()).ok_or_else(overlap)
}

/// One replica: a process of its own in real life, so it has a client of its own.
async fn replica(
    url: &str,
    policy: Policy,
    prices: &Arc<Prices>,
) -> Result<SocketAddr, Box<dyn std::error::Error + Send + Sync>> {
    let lock = Client::connect(url)
        .await?
        .rw_lock(format!("services:prices:{policy:?}"));
    let service = Service {
        lock: lock.policy(policy),
        prices: Arc::clone(prices),
    };
    let router = Router::new()
        .route("/prices", get(read).put(change))
        .with_state(service);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(address)
}

/// How long requests took.
#[derive(Default)]
struct Times {
    reads: Vec<Duration>,
    changes: Vec<Duration>,
    /// Changes that were done while the flood went on.
    in_the_flood: usize,
}

/// The load: readers one after the other on each of many connections, and a few writers.
async fn load(
    url: &str,
    policy: Policy,
    flood: Option<Duration>,
) -> Result<Times, Box<dyn std::error::Error + Send + Sync>> {
    let prices = Arc::new(Prices::default());
    let replicas = [
        replica(url, policy, &prices).await?,
        replica(url, policy, &prices).await?,
    ];
    let over = Arc::new(AtomicBool::new(false));
    let mut readers = JoinSet::new();
    for number in 0..READERS {
        let (server, over) = (replicas[number % 2], Arc::clone(&over));
        readers.spawn(async move {
            let mut times = Vec::new();
            while !over.load(Ordering::SeqCst) {
                let begun = Instant::now();
                request("GET", server, "/prices").await?;
                times.push(begun.elapsed());
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(times)
        });
    }
    // The flood is there before the first change.
    sleep(READING * 5).await;
    let mut writers = JoinSet::new();
    for number in 0..WRITERS {
        let (server, over) = (replicas[number % 2], Arc::clone(&over));
        writers.spawn(async move {
            let mut times = Vec::new();
            for _ in 0..CHANGES {
                let begun = Instant::now();
                request("PUT", server, "/prices").await?;
                times.push((begun.elapsed(), !over.load(Ordering::SeqCst)));
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(times)
        });
    }
    if let Some(flood) = flood {
        sleep(flood).await;
        over.store(true, Ordering::SeqCst);
    }
    let mut times = Times::default();
    while let Some(changes) = writers.join_next().await {
        for (time, in_the_flood) in changes?? {
            times.changes.push(time);
            times.in_the_flood += usize::from(in_the_flood);
        }
    }
    over.store(true, Ordering::SeqCst);
    while let Some(reads) = readers.join_next().await {
        times.reads.extend(reads??);
    }
    // No change was lost to another one.
    assert_eq!(prices.version.load(Ordering::SeqCst), WRITERS * CHANGES);
    Ok(times)
}

/// The time that this share of requests did not exceed.
fn quantile(times: &mut [Duration], share: f64) -> String {
    times.sort();
    let index = ((times.len() as f64 * share).ceil() as usize).clamp(1, times.len()) - 1;
    format!("{:.0} ms", times[index].as_secs_f64() * 1000.0)
}

fn show(name: &str, mut times: Times) {
    for (who, of) in [("readers", &mut times.reads), ("writers", &mut times.changes)] {
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| quantile(of, share));
        println!("{name:12} {who:8} {:>9} {p50:>9} {p99:>9} {max:>9}", of.len());
    }
    println!(
        "{:12} {} of {} changes were done while the flood went on",
        "",
        times.in_the_flood,
        WRITERS * CHANGES
    );
}

#[tokio::main]
async fn main() -> common::Outcome {
    let server = common::Server::find_or_start().await?;
    println!("{READERS} readers without a pause, {WRITERS} writers, two replicas; time of a request over HTTP:");
    println!(
        "{:12} {:8} {:>9} {:>9} {:>9} {:>9}",
        "policy", "", "requests", "p50", "p99", "max"
    );
    show(
        "ReaderFirst",
        load(server.url(), Policy::ReaderFirst, Some(FLOOD)).await?,
    );
    // The flood goes on until the last change is done. That this ends is the point.
    let fair = load(server.url(), Policy::Fifo, None).await?;
    assert_eq!(fair.in_the_flood, WRITERS * CHANGES);
    show("Fifo", fair);
    Ok(())
}
