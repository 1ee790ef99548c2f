//! What Prometheus sees of the locks of a service: the feature `metrics`, and an exporter of the program's choice.
//!
//! The crate only names what happens, by the facade of the crate `metrics`. The program installs a recorder, here
//! `metrics-exporter-prometheus`, and serves what it renders. Histograms need buckets: with those below the dashboard
//! and the alerts in `ops` work. The program makes something of everything happen, scrapes itself and prints that.
//!
//! Run it with `cargo run -p fairlock-services --bin exporter`.

#[path = "../../../common/mod.rs"]
mod common;
#[path = "../http.rs"]
mod http;

use axum::Router;
use axum::routing::get;
use fairlock::Client;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::sleep;

/// From a hand-over to a long queue, in seconds.
const BUCKETS: [f64; 14] = [
    0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0,
];

/// Before the first client connects: it tells the recorder what its metrics are.
fn install() -> Result<PrometheusHandle, Box<dyn std::error::Error + Send + Sync>> {
    let builder = PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)?;
    let recorder = builder.install_recorder()?;
    tokio::spawn({
        let recorder = recorder.clone();
        async move {
            loop {
                sleep(Duration::from_secs(5)).await;
                recorder.run_upkeep();
            }
        }
    });
    Ok(recorder)
}

async fn serve(recorder: PrometheusHandle) -> std::io::Result<SocketAddr> {
    let router = Router::new().route("/metrics", get(move || async move { recorder.render() }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(address)
}

/// Something of everything; one write hold stays.
async fn work(server: &common::Server, client: &Client) -> Result<fairlock::WriteGuard, fairlock::Error> {
    const NAME: &str = "services:exporter";
    let lock = client.rw_lock(NAME);
    for _ in 0..5 {
        lock.read().acquire_fair().await?.release().await?;
    }
    let held = lock.write().acquire_fair().await?;
    assert!(lock.read().try_acquire().await?.is_none());
    assert!(lock.read().try_acquire_for(Duration::from_millis(20)).await?.is_none());
    // A hand-over, to one that waits.
    let waiter = tokio::spawn(lock.write().acquire_fair());
    server.until_queued(NAME, 1).await.expect("one waiter");
    held.release().await?;
    let evicted = waiter.await.expect("it does not panic")?;
    lock.evict(&evicted.owner()).await?;
    evicted.lost().await;
    lock.write().acquire_fair().await
}

#[tokio::main]
async fn main() -> common::Outcome {
    let recorder = install()?;
    let server = common::Server::find_or_start().await?;
    // So long that no renewal is faster than a message.
    let lease = Duration::from_secs(600);
    let client = Client::builder().lease(lease).connect(server.url()).await?;
    let address = serve(recorder).await?;
    let held = work(&server, &client).await?;
    let scraped = http::request("GET", address, "/metrics").await?;
    println!("{scraped}");
    for line in [
        r#"fairlock_acquisitions_total{mode="read",outcome="granted"} 5"#,
        r#"fairlock_acquisitions_total{mode="read",outcome="busy"} 1"#,
        r#"fairlock_acquisitions_total{mode="read",outcome="timeout"} 1"#,
        r#"fairlock_grants_total{mode="write",source="message"} 1"#,
        r#"fairlock_lost_total{mode="write",reason="evicted"} 1"#,
        r#"fairlock_held{mode="write"} 1"#,
        r#"fairlock_waiting{mode="write"} 0"#,
        r#"fairlock_wait_seconds_bucket{mode="read",outcome="granted",le="+Inf"} 5"#,
        r#"fairlock_handover_seconds_count{mode="write"} 1"#,
    ] {
        assert!(scraped.lines().any(|scraped| scraped == line), "{line} was not scraped");
    }
    held.release().await?;
    let scraped = http::request("GET", address, "/metrics").await?;
    assert!(scraped.contains(r#"fairlock_held{mode="write"} 0"#));
    Ok(())
}
