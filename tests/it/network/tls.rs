//! `rediss://` with certificates made on the spot.

use crate::lateness::in_time;
use crate::observe::LONG;
use crate::server::{Server, soon};
use fairlock::{Client, Error};
use fairlock_support::tls::{Authority, server, url};
use redis::{ClientTlsConfig, TlsCertificates};

async fn connect(url: String, trusted: &Authority, client_tls: Option<ClientTlsConfig>) -> Result<Client, Error> {
    let certificates = TlsCertificates {
        client_tls,
        root_cert: Some(trusted.pem()),
    };
    let client = redis::Client::build_with_tls(url, certificates).unwrap();
    Client::builder().lease(LONG).connect(client).await
}

/// Both connections work: no renewal is due for minutes.
async fn hand_over(client: &Client, server: &Server) {
    let lock = client.rw_lock("a");
    let guard = lock.write().acquire_fair().await.unwrap();
    let waiter = tokio::spawn(lock.write().acquire_fair());
    server.until_queued("a", 1).await;
    guard.release().await.unwrap();
    let next = soon("the hand-over", waiter).await.unwrap().unwrap();
    next.release().await.unwrap();
}

/// And the error says what to do, in these words.
fn assert_refused(what: &str, outcome: Result<Client, Error>, advice: &str) {
    assert!(matches!(outcome, Err(Error::Connect { .. })), "{what}: {outcome:?}");
    let message = outcome.unwrap_err().to_string();
    assert!(message.contains(advice), "{what}: {message}");
    assert!(!message.contains("up and reachable"), "it is: {message}");
}

#[tokio::test]
async fn a_server_with_a_trusted_certificate_is_used_and_another_refused() {
    in_time(async || {
        let authority = Authority::new();
        let Some((server, port)) = server(&authority, "no").await else {
            return;
        };
        let client = connect(url("127.0.0.1", &port), &authority, None).await.unwrap();
        hand_over(&client, &server).await;
        assert_refused(
            "the system's authorities",
            Client::connect(url("127.0.0.1", &port)).await,
            "authority",
        );
        let stranger = connect(url("127.0.0.1", &port), &Authority::new(), None).await;
        assert_refused("another authority", stranger, "authority");
        // The server answers there too, but not under that name.
        let localhost = connect(url("localhost", &port), &authority, None).await;
        assert_refused("another name", localhost, "names");
        let without_tls = Client::connect(format!("redis://127.0.0.1:{port}")).await;
        assert_refused("no TLS", without_tls, "rediss://");
    })
    .await;
}

#[tokio::test]
async fn a_client_shows_its_certificate_on_all_of_its_connections() {
    in_time(async || {
        let authority = Authority::new();
        let Some((server, port)) = server(&authority, "yes").await else {
            return;
        };
        let ours = connect(url("127.0.0.1", &port), &authority, Some(authority.signs("us"))).await;
        let ours = ours.unwrap();
        hand_over(&ours, &server).await;
        assert_refused(
            "no certificate",
            connect(url("127.0.0.1", &port), &authority, None).await,
            "certificate",
        );
        let foreign = Some(Authority::new().signs("us"));
        let foreign = connect(url("127.0.0.1", &port), &authority, foreign).await;
        assert_refused("another's", foreign, "certificate");
    })
    .await;
}
