//! `rediss://`: what the command says of certificates and of ports without TLS.

use crate::command::{Cli, ended, said};
use fairlock_support::tls::{Authority, server, url};

#[tokio::test]
async fn tells_a_bad_certificate_and_a_wrong_scheme_from_a_server_that_is_away() {
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
        let ended = ended({ command }.spawn().unwrap()).await;
        assert_eq!(ended.status, 69, "{ended:?}");
        assert!(said(&ended.stderr, &words), "{words:?}: {ended:?}");
        assert!(!ended.stderr.contains("no server answers"), "{ended:?}");
    }
    let trusted = trusting(ls(url("127.0.0.1", &port))).spawn().unwrap();
    assert_eq!(ended(trusted).await.status, 0);
}
