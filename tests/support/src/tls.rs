//! Servers that speak TLS, with certificates made on the spot.

use crate::server::{Server, free_port};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use redis::ClientTlsConfig;

/// Who signs certificates for one test.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// A new authority, whom nobody trusts yet.
    #[allow(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Its own certificate.
    pub fn pem(&self) -> Vec<u8> {
        self.0.pem().into_bytes()
    }

    /// A certificate for that name, and its key.
    pub fn signs(&self, name: &str) -> ClientTlsConfig {
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
pub async fn server(authority: &Authority, clients: &str) -> Option<(Server, String)> {
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

pub fn url(host: &str, port: &str) -> String {
    format!("rediss://{host}:{port}")
}
