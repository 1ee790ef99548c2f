//! The lock in the state of a web service: what the guide `programs` shows, and two requests to it.
//!
//! Run it with `cargo run -p fairlock-services --bin state`.

#[path = "../../../common/mod.rs"]
mod common;
#[path = "../http.rs"]
mod http;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::put;
use fairlock::{Client, RwLock};
use http::request;
use std::time::Duration;

#[derive(Clone)]
struct App {
    prices: RwLock,
}

async fn change(State(app): State<App>) -> Result<String, (StatusCode, String)> {
    let unavailable = |error: fairlock::Error| (StatusCode::SERVICE_UNAVAILABLE, error.to_string());
    // The browser waits for an answer, so say "busy" after five seconds.
    let guard = app
        .prices
        .write()
        .try_acquire_for(Duration::from_secs(5))
        .await
        .map_err(unavailable)?;
    let Some(guard) = guard else {
        return Err((StatusCode::SERVICE_UNAVAILABLE, "busy".to_owned()));
    };
    let token = guard.fencing_token();
    guard
        .while_held(async { /* store the new price, with the token */ })
        .await
        .map_err(unavailable)?;
    // The price is stored. A release that fails does not undo that.
    if let Err(error) = guard.release().await {
        eprintln!("prices: {error}");
    }
    Ok(format!("changed under token {token}"))
}

fn router(client: &Client) -> Router {
    let prices = client.rw_lock("prices");
    Router::new().route("/prices", put(change)).with_state(App { prices })
}

#[tokio::main]
async fn main() -> common::Outcome {
    let server = common::Server::find_or_start().await?;
    let client = Client::connect(server.url()).await?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let service = router(&client);
    tokio::spawn(async move { axum::serve(listener, service).await });

    let first = request("PUT", address, "/prices").await?;
    let second = request("PUT", address, "/prices").await?;
    println!("{first}\n{second}");
    assert!(first.starts_with("changed under token ") && first < second);
    client.shutdown().await;
    Ok(())
}
