//! `rediss://` with certificates made on the spot.

use crate::observe::LONG;
use crate::server::{Server, free_port, in_time, soon};
use fairlock::{Client, Error};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use redis::{ClientTlsConfig, TlsCertificates};

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> Vec<u8> {
        self.0.pem().into_bytes()
    }

    /// A certificate for that name, and its key.
    fn signs(&self, name: &str) -> ClientTlsConfig {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        // Not the authority's: OpenSSL would take it for signed by itself.
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.0).unwrap();
        ClientTlsConfig {
            client_cert: certificate.pem().into_bytes(),
            client_key: key.serialize_pem().into_bytes(),
        }
    }
}

/// A server with a certificate for 127.0.0.1, which its clients may or must answer with one of their own. `None`: it was
/// built without TLS.
async fn server(authority: &Authority, clients: &str) -> Option<(Server, String)> {
    let (mut server, port) = (Server::start().await, free_port().to_string());
    let mut knows = redis::cmd("CONFIG");
    let knows: Vec<String> = knows
        .arg("GET")
        .arg("tls-port")
        .query_async(&mut server.redis().await)
        .await
        .unwrap();
    let skipped = || println!("skipped: the server was built without TLS");
    if knows.is_empty() {
        skipped();
        return None;
    }
    let own = authority.signs("127.0.0.1");
    std::fs::write(server.dir().join("ca.pem"), authority.pem()).unwrap();
    std::fs::write(server.dir().join("server.pem"), own.client_cert).unwrap();
    std::fs::write(server.dir().join("server.key"), own.client_key).unwrap();
    server.kill();
    server.add_args(&["--tls-port", &port, "--tls-auth-clients", clients]);
    server.add_args(&["--tls-ca-cert-file", "ca.pem", "--tls-cert-file", "server.pem"]);
    server.add_args(&["--tls-key-file", "server.key"]);
    // Valkey knows the settings without it.
    if !server.start_again_unless("Failed finding TLS support").await {
        skipped();
        return None;
    }
    Some((server, port))
}

fn url(host: &str, port: &str) -> String {
    format!("rediss://{host}:{port}")
}

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

/// The command says the same, and not that no server answers.
#[cfg(all(unix, feature = "cli"))]
#[tokio::test]
async fn the_command_tells_a_bad_certificate_and_a_wrong_scheme_from_a_server_that_is_away() {
    use crate::cli::{Cli, said};
    let authority = Authority::new();
    let Some((server, port)) = server(&authority, "no").await else {
        return;
    };
    let certificate = server.dir().join("ca.pem");
    let trusting = |mut command: tokio::process::Command| {
        command.env("SSL_CERT_FILE", &certificate);
        command
    };
    let ls = |url: String| Cli::at(url).command(&["ls"]);
    for (command, words) in [
        (
            ls(url("127.0.0.1", &port)),
            ["UnknownIssuer", "authority", "SSL_CERT_FILE"],
        ),
        (trusting(ls(url("localhost", &port))), ["certificate", "names", "dates"]),
        (
            ls(format!("redis://127.0.0.1:{port}")),
            ["cannot connect", "TLS", "rediss://"],
        ),
    ] {
        let ended = crate::cli::ended({ command }.spawn().unwrap()).await;
        assert_eq!(ended.status, 69, "{ended:?}");
        assert!(said(&ended.stderr, &words), "{words:?}: {ended:?}");
        assert!(!ended.stderr.contains("no server answers"), "{ended:?}");
    }
    let trusted = trusting(ls(url("127.0.0.1", &port))).spawn().unwrap();
    assert_eq!(crate::cli::ended(trusted).await.status, 0);
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
