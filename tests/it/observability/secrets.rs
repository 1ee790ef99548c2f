//! A password of the URL: nothing that the library shows contains it.

use super::metrics::Recorded;
use super::spans::Log;
use crate::observe::ms;
use crate::proxy::Proxy;
use crate::server::{Server, connected, soon};
use fairlock::Client;

const PASSWORD: &str = "hunter2hunter2";

/// Connects with a password, wrongly too, and does what has spans, events, errors, metrics and Debug texts. All of these.
async fn texts_beside_a_password(server: &Server, recorded: &Recorded) -> Vec<String> {
    let mut acl = redis::cmd("ACL");
    acl.arg("SETUSER")
        .arg("ann")
        .arg(&["on", &format!(">{PASSWORD}"), "~*", "&*", "+@all"]);
    acl.exec_async(&mut server.redis().await).await.unwrap();
    let proxy = Proxy::to(server.port()).await;
    let address = proxy.url().replace("redis://", "");
    let mut texts = Vec::new();
    for login in ["bob", "ann:x"] {
        let refused = Client::connect(format!("redis://{login}:{PASSWORD}@{address}"))
            .await
            .unwrap_err();
        texts.extend([refused.to_string(), format!("{refused:?}")]);
    }
    let url = format!("redis://ann:{PASSWORD}@{address}");
    let nowhere = Client::connect(url.replace(&address, "127.0.0.1:1")).await.unwrap_err();
    texts.extend([nowhere.to_string(), format!("{nowhere:?}")]);
    let builder = Client::builder().lease(ms(1000));
    texts.push(format!("{builder:?}"));
    let client = connected(builder, &url).await;
    let lock = client.rw_lock("a");
    let mut events = lock.events().await.unwrap();
    let guard = lock.write().acquire_fair().await.unwrap();
    let event = soon("an event", futures::StreamExt::next(&mut events)).await;
    let asked = lock.read();
    texts.extend([format!("{client:?} {lock:?} {guard:?} {asked:?} {event:?} {events:?}")]);
    texts.push(format!("{:?}", lock.status().await.unwrap()));
    // Silent until the hold is lost and a request has failed; then its connections are made again.
    proxy.stall(true);
    soon("the loss", guard.lost()).await;
    let error = lock.write().acquire_fair().await.unwrap_err();
    texts.extend([error.to_string(), format!("{error:?}"), format!("{client:?}")]);
    proxy.stall(false);
    proxy.cut();
    let guard = soon("a grant", async {
        loop {
            if let Ok(guard) = lock.write().acquire_fair().await {
                return guard;
            }
        }
    })
    .await;
    guard.release().await.unwrap();
    texts.extend(recorded.texts());
    texts
}

/// A server repeats the arguments of a command that it does not know, and HELLO has the password.
#[tokio::test]
async fn a_server_that_does_not_know_the_login_tells_no_password() {
    let server = Server::start_with(&["--rename-command", "HELLO", ""]).await;
    let url = server.url().replace("redis://", &format!("redis://:{PASSWORD}@"));
    let url = format!("{url}?protocol=resp3");
    has_no_password(&Client::connect(url.as_str()).await.unwrap_err());
    // Or a sentinel that does not know it.
    #[cfg(feature = "sentinel")]
    {
        use redis::sentinel::{SentinelClient, SentinelServerType};
        let client = SentinelClient::build(vec![url], String::from("master"), None, SentinelServerType::Master);
        has_no_password(&Client::connect(client.unwrap()).await.unwrap_err());
    }
}

fn has_no_password(refused: &fairlock::Error) {
    let mut texts = vec![refused.to_string(), format!("{refused:?}")];
    assert!(texts[0].contains("unknown command 'HELLO'"), "{}", texts[0]);
    let mut source = std::error::Error::source(refused);
    while let Some(error) = source {
        texts.extend([error.to_string(), format!("{error:?}")]);
        source = error.source();
    }
    for text in &texts {
        assert!(!text.contains(PASSWORD), "{text}");
    }
}

#[tokio::test]
async fn no_span_event_error_metric_or_debug_text_has_the_password() {
    let (log, recorded) = (Log::here(), Recorded::here());
    let server = Server::start().await;
    let mut texts = texts_beside_a_password(&server, &recorded).await;
    let logged = log.texts();
    assert!(logged.len() > 5, "too little was logged: {logged:?}");
    texts.extend(logged);
    for text in &texts {
        assert!(!text.contains(PASSWORD), "{text}");
    }
}
