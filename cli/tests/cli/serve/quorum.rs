//! Quorums.

use super::Served;
use crate::command::Cli;
use fairlock_support::proxy::Proxy;
use fairlock_support::server::{eventually, free_port, soon};
use serde_json::{Value, json};

#[tokio::test]
async fn of_a_quorum_it_shows_what_a_majority_keeps_and_reaches_servers_that_come_back() {
    let mut servers = crate::quorum::fleet(3).await;
    let holding = crate::quorum::quorum(&servers, "holding").await;
    let _guard = holding.rw_lock("a").write().acquire_fair().await.unwrap();
    let waiting = crate::quorum::quorum(&servers, "waiting").await;
    let asking = waiting.rw_lock("a").read();
    let waiter = tokio::spawn(async move { asking.acquire_fair().await });
    let cli = Cli::of_all(&servers);
    let mut served = Served::start(&cli, &["--interval", "1ms", "--evict"]).await;
    let token = served.token().await;
    let shows = async |what: &str, is: &dyn Fn(&Value) -> bool| {
        eventually(what, async || {
            let answer = served.get("/api/lock?name=a").await;
            answer.status == 200 && is(&answer.json())
        })
        .await;
    };
    shows("all servers keep the hold", &|lock| {
        lock["holders"][0]["votes"] == 3 && lock["waiting"] == 1
    })
    .await;
    let list = served.document("/api/locks").await;
    assert_eq!(
        (&list["locks"][0]["votes"], &list["locks"][0]["servers"]),
        (&3.into(), &3.into())
    );
    let site = served.document("/api/site").await;
    assert_eq!((&site["events"], &site["blockers"]), (&"none".into(), &false.into()));
    for path in ["/api/events", "/api/events?lock=a", "/api/blockers?subject=waiting"] {
        let refused = served.get(path).await;
        assert_eq!(refused.status, 400, "{path}: {refused:?}");
    }
    let waits = served.document("/api/waits").await;
    assert_eq!(waits["trees"][0]["holders"][0]["client"]["label"], "holding", "{waits}");
    assert_eq!(waits["deadlocks"], Value::Null);

    let owner = cli.owner_of("a").await;
    servers[2].kill();
    shows("a server is away", &|lock| lock["servers"][2]["error"].is_string()).await;
    let evicted = served.evict(Some(&token), "a", &owner).await;
    assert_eq!(
        (evicted.status, &evicted.json()["servers"]),
        (200, &2.into()),
        "{evicted:?}"
    );
    let next = soon("the next one enters", waiter).await.unwrap().unwrap();
    // Only looks tell of a quorum's waits.
    eventually("the wait is in the history", async || {
        served.document("/api/history?text=waiting").await["matching"] != 0
    })
    .await;
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_quorums_server_that_was_away_at_the_start_is_asked_again() {
    let mut servers = crate::quorum::fleet(3).await;
    servers[2].kill();
    let served = Served::start(&Cli::of_all(&servers), &["--interval", "1ms"]).await;
    let list = served.document("/api/locks").await;
    assert!(list["complaints"][0].is_string(), "{list}");
    servers[2].start_again().await;
    eventually("nothing is missing", async || {
        served.document("/api/locks").await["complaints"] == json!([])
    })
    .await;
}

#[tokio::test]
async fn an_address_that_leads_to_another_server_of_the_quorum_later_counts_for_nothing() {
    let servers = crate::quorum::fleet(2).await;
    let third = Proxy::to(free_port()).await;
    let urls = [servers[0].url(), servers[1].url(), third.url()];
    let served = Served::start(&Cli::at(urls.join(" ")), &["--interval", "1ms"]).await;
    third.leads_to(servers[0].port());
    eventually("it is refused", async || {
        let list = served.document("/api/locks").await;
        let complaint = list["complaints"][0].as_str().unwrap_or_default();
        complaint.contains("two addresses of the quorum lead to one server")
    })
    .await;
}
