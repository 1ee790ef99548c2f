//! Events and the history, and a server or a command that ends.

use super::{Served, encoded};
use crate::command::{Cli, ended};
use crate::scene::{HOSTILE, client};
use fairlock_support::server::{Server, eventually, soon};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn events_reach_every_browser_and_late_ones_get_those_before() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let served = Served::start(&cli, &[]).await;
    let client = client(&server, "watched").await;
    let guard = client.rw_lock("other").write().acquire_fair().await.unwrap();
    eventually("it has introduced itself", async || {
        let status = client.rw_lock("other").status().await.unwrap();
        status.holders[0].client.label.is_some()
    })
    .await;
    guard.release().await.unwrap();
    let (mut all, mut one) = (
        served.events("").await,
        served.events(&format!("lock={}", encoded(HOSTILE))).await,
    );
    // Its announcement may reach the client a moment later.
    let lock = client.rw_lock(HOSTILE);
    let token = std::cell::Cell::new(Value::Null);
    let heard = async {
        let event = all
            .until(|event| event["event"] == "granted" && event["lock"] == HOSTILE)
            .await;
        token.set(event["token"].clone());
    };
    tokio::pin!(heard);
    loop {
        let other = client.rw_lock("other").write().acquire_fair().await.unwrap();
        other.release().await.unwrap();
        let guard = lock.write().acquire_fair().await.unwrap();
        let step = std::time::Duration::from_millis(50);
        let was_heard = tokio::time::timeout(step, &mut heard).await.is_ok();
        guard.release().await.unwrap();
        if was_heard {
            break;
        }
    }
    let token = token.take();
    one.until(|event| {
        assert_eq!(event["lock"], HOSTILE, "another lock's event");
        event["token"] == token
    })
    .await;
    // They come again for a browser that was away, from where it was, and as watch prints them.
    let mut late = served.events("after=0").await;
    let event = late.until(|event| event["token"] == token).await;
    let keys: Vec<_> = event.as_object().unwrap().keys().map(String::as_str).collect();
    let of_watch = [
        "at", "client", "event", "host", "label", "lock", "mode", "owner", "process", "token",
    ];
    assert_eq!(keys, of_watch);
    assert_eq!(event["label"], "watched", "{event}");
    assert!(event["process"].is_u64() && event["host"].is_string(), "{event}");
    let mut of_other_run = served.events("after=999999").await;
    of_other_run.until(|event| event["token"] == token).await;
}

#[tokio::test]
async fn the_history_tells_how_long_each_wait_took_and_how_it_ended() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (holder, waiter) = (client(&server, "holder").await, client(&server, "waiter").await);
    let guard = holder.rw_lock("a").write().acquire_fair().await.unwrap();
    // This one waits before anybody listens.
    let early = tokio::spawn(waiter.rw_lock("a").write().acquire_fair());
    server.until_queued("a", 1).await;
    let served = Served::start(&cli, &["--interval", "10ms"]).await;
    guard.release().await.unwrap();
    let guard = soon("the early waiter enters", early).await.unwrap().unwrap();
    let wait = async |of: &str| {
        let path = format!("/api/history?text={of}");
        let found = async || served.document(&path).await["matching"] != 0;
        eventually("the wait is told", async || {
            // Events may have begun too late for this one: then a look tells.
            served.document("/api/locks").await;
            found().await
        })
        .await;
        served.document(&path).await["waits"][0].clone()
    };
    let told = wait("a").await;
    assert_eq!(
        (&told["ended"], &told["client"]["label"]),
        (&"granted".into(), &"waiter".into()),
        "{told}"
    );
    // One that gives up.
    let late = tokio::spawn(holder.rw_lock("a").read().acquire_fair());
    server.until_queued("a", 1).await;
    late.abort();
    server.until_queued("a", 0).await;
    let told = wait("holder").await;
    assert!(["left", "gone"].contains(&told["ended"].as_str().unwrap()), "{told}");
    assert_eq!((&told["lock"], &told["mode"]), (&"a".into(), &"read".into()));
    guard.release().await.unwrap();
    let all = served.document("/api/history?order=longest").await;
    assert_eq!(all["matching"], 2, "{all}");
    assert!(
        all["waits"][0]["waited_ms"].as_u64() >= all["waits"][1]["waited_ms"].as_u64(),
        "{all}"
    );
}

#[tokio::test]
async fn a_server_that_comes_back_is_shown_again() {
    let mut server = Server::start().await;
    let served = Served::start(&Cli::of(&server), &["--interval", "1ms"]).await;
    assert_eq!(served.document("/api/locks").await["totals"]["in_use"], 0);
    server.kill();
    eventually("the page says why", async || {
        let answer = served.get("/api/locks").await;
        answer.status == 502 && answer.json()["error"].is_string()
    })
    .await;
    server.start_again().await;
    let holder = client(&server, "holder").await;
    let _held = holder.rw_lock("a").write().acquire_fair().await.unwrap();
    eventually("the lock shows", async || {
        let answer = served.get("/api/locks").await;
        answer.status == 200 && answer.json()["locks"][0]["lock"] == "a"
    })
    .await;
}

#[tokio::test]
async fn a_signal_ends_it_also_while_browsers_listen() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let served = Served::start(&cli, &[]).await;
    let mut stream = served.events("").await;
    let mut idle = TcpStream::connect(&served.address).await.unwrap();
    idle.write_all(b"GET / HT").await.unwrap();
    let pid = rustix::process::Pid::from_raw(served.child.id().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(ended(served.child).await.status, 130);
    let mut rest = String::new();
    soon("the stream's end", stream.0.read_to_string(&mut rest))
        .await
        .unwrap();
    eventually("its connections are closed", async || server.connections().await == 0).await;
}

#[tokio::test]
async fn it_ends_at_once_where_no_server_answers_or_the_user_may_not_look() {
    let nobody = Cli::at("redis://127.0.0.1:1".to_owned());
    let refused = nobody.run(&["serve", "--listen", "127.0.0.1:0"]).await;
    assert_eq!((refused.status, refused.stdout.as_str()), (69, ""), "{refused:?}");
}

#[tokio::test]
async fn the_history_keeps_a_thousand_waits_and_no_more() {
    let server = Server::start().await;
    let (holder, waiter) = (client(&server, "holder").await, client(&server, "waiter").await);
    let served = Served::start(&Cli::of(&server), &["--interval", "10ms"]).await;
    let round = async || {
        let guard = holder.rw_lock("a").write().acquire_fair().await.unwrap();
        let reader = |_| tokio::spawn(waiter.rw_lock("a").read().acquire_fair());
        let readers: Vec<_> = (0..600).map(reader).collect();
        server.until_queued("a", readers.len()).await;
        // A look tells of these if their events began too late.
        served.document("/api/locks").await;
        guard.release().await.unwrap();
        for reader in readers {
            reader.await.unwrap().unwrap().release().await.unwrap();
        }
        served.document("/api/locks").await;
    };
    let history = async || served.document("/api/history?limit=1").await;
    eventually("it is full", async || {
        round().await;
        history().await["matching"] == 1000
    })
    .await;
    let before = history().await["waits"][0]["at"].clone();
    // The events of a round may come with a gap.
    eventually("later waits are told", async || {
        round().await;
        history().await["waits"][0]["at"] != before
    })
    .await;
    assert_eq!(history().await["matching"], 1000);
    let longest = served.document("/api/history?order=longest&first=999&limit=5").await;
    assert_eq!(longest["waits"].as_array().unwrap().len(), 1);
}
