//! `rediss://` with certificates made on the spot.

use crate::server::{Server, free_port, in_time, soon};
use fairlock::{Client, Error};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use redis::TlsCertificates;
use std::path::Path;

/// A certificate authority, and a server's certificate for 127.0.0.1 signed by it, in `dir`. Returns the authority's.
fn certificates(dir: &Path) -> Vec<u8> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap();
    std::fs::write(dir.join("ca.pem"), authority.pem()).unwrap();
    std::fs::write(dir.join("server.pem"), certificate.pem()).unwrap();
    std::fs::write(dir.join("server.key"), key.serialize_pem()).unwrap();
    authority.pem().into_bytes()
}

fn url(port: &str) -> String {
    format!("rediss://127.0.0.1:{port}")
}

#[tokio::test]
async fn a_server_with_a_trusted_certificate_is_used_and_another_refused() {
    in_time(async || {
        let (mut server, port) = (Server::start().await, free_port().to_string());
        let root = certificates(server.dir());
        server.kill();
        server.add_args(&[
            "--tls-port",
            &port,
            "--tls-auth-clients",
            "no",
            "--tls-ca-cert-file",
            "ca.pem",
        ]);
        server.add_args(&["--tls-cert-file", "server.pem", "--tls-key-file", "server.key"]);
        server.start_again().await;

        let trusting = TlsCertificates {
            client_tls: None,
            root_cert: Some(root),
        };
        let trusting = redis::Client::build_with_tls(url(&port), trusting).unwrap();
        let client = Client::connect(trusting).await.unwrap();
        let lock = client.rw_lock("a");
        let guard = lock.write().acquire_fair().await.unwrap();
        let waiter = tokio::spawn(lock.write().acquire_fair());
        server.until_queued("a", 1).await;
        guard.release().await.unwrap();
        drop(soon("the hand-over", waiter).await.unwrap().unwrap());

        let refused = Client::connect(url(&port)).await;
        assert!(matches!(refused, Err(Error::Connect { .. })), "{refused:?}");
    })
    .await;
}
