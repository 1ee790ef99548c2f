//! What to do about an error of a server, in one sentence for each kind of error.

use super::rights::{besides, broad};
use redis::{ErrorKind, RedisError};

/// What to do about an error of a server. Programs that ask the server directly, as the command `fairlock` does, say the
/// same as [`Error`](crate::Error) does.
pub fn remedy(error: &RedisError) -> &'static str {
    let text = error.to_string();
    let said = |word: &str| error.code() == Some(word) || text.contains(word);
    if said("WRONGPASS") || said("NOAUTH") || error.kind() == ErrorKind::AuthenticationFailed {
        "check user and password in the URL"
    // When a script does what its user may not, Redis 7 says the second and Valkey 9 the third.
    } else if said("NOPERM") || text.contains("The user executing the script") || text.contains("ACL failure") {
        concat!(
            "let its ACL user run ",
            broad!(),
            " on keys ~fairlock:* and channels &fairlock:* &fairlock:{*}:events (or the prefix that the client was given); ",
            besides!(),
            "; SECURITY.md has narrower rules"
        )
    } else if said("NOREPLICAS") {
        "it has fewer replicas in step than `min-replicas-to-write`: start them, or lower that"
    } else if text.contains("no sharded pub/sub") {
        "a cluster needs Redis 7 or later, or Valkey: older servers would send every grant to all nodes"
    } else if text.contains("no slots") && error.kind() == ErrorKind::InvalidClientConfig {
        "it is a cluster's node without a cluster: name nodes that belong to one, or give this one its slots"
    } else if text.contains("cluster support disabled") {
        "it is not a cluster: connect with its URL"
    } else if text.contains("not the master") || error.kind() == ErrorKind::MasterNameNotFoundBySentinel {
        "connect to the master, or by a name that leads to it; with Sentinel check the master's name, that the \
         SentinelClient is one for masters, and that the sentinels see a master"
    } else if said("OOM") {
        "its memory is exhausted: raise maxmemory or free some; holds and releases still work"
    } else if said("WRONGTYPE") {
        "a key of another kind lies under the lock's name: delete it, or choose another name or prefix"
    } else if text.contains("another version of fairlock") {
        "let all its users run versions that share a layout; the lock's state goes a minute after its last use"
    } else if text.contains("DB index") {
        "choose a database number that the server has, or raise its setting `databases`"
    } else if error.kind() == ErrorKind::InvalidClientConfig {
        "check the URL: redis://, rediss:// (feature tls-rustls) or unix://"
    } else if error.kind() == ErrorKind::Parse {
        "what answers there is no Redis or Valkey, perhaps an HTTP server: check host and port"
    } else if error.is_io_error() {
        remedy_of_connection(error, &text)
    } else {
        "check the server's version (6.2 or later) and log"
    }
}

/// The connection could not be made, or ended.
fn remedy_of_connection(error: &RedisError, text: &str) -> &'static str {
    // In the words of rustls. Two authorities of one name make the second.
    if text.contains("UnknownIssuer") || text.contains("BadSignature") {
        "no authority that this machine trusts has signed its certificate: add the authority to the system's, name its file \
         in SSL_CERT_FILE, or make a redis::Client that trusts it"
    } else if text.contains("CaUsedAsEndEntity") {
        "its certificate is an authority's own: give the server one that the authority has signed"
    } else if text.contains("invalid peer certificate") {
        "its certificate does not hold: compare the URL's host with the names in the certificate, and its dates with the clock"
    } else if text.contains("received fatal alert") {
        "it refuses this side of TLS: make a redis::Client with a client certificate that the server trusts, or look at its log"
    } else if text.contains("received corrupt message") {
        "it speaks no TLS there: write redis:// instead of rediss://, or name the port that speaks TLS"
    } else if error.is_connection_dropped() && !error.is_connection_refusal() {
        "it ended the connection: if the port speaks TLS, write rediss:// instead of redis://; otherwise check host and port, \
         and look at its log"
    } else {
        "check that it is up and reachable"
    }
}
