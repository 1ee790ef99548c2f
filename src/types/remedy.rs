//! Remedies: one sentence for each kind of a server's error.

use super::rights::{besides, broad};
use redis::{ErrorKind, RedisError};

/// Removes the arguments of a command from the error of a login. A server repeats those of a command that it does not know,
/// and those of a login have the password. The command `fairlock`, which logs in itself,
/// needs this too.
pub fn without_arguments(error: RedisError) -> RedisError {
    let what = error
        .detail()
        .and_then(|detail| detail.split_once(", with args beginning with"));
    match what.map(|(what, _)| what.to_owned()) {
        Some(what) => RedisError::from((error.kind(), "refused at the login", what)),
        None => error,
    }
}

/// Tells what to do about an error of a server. A program that calls the server itself, such as the command `fairlock`,
/// can say the same as [`Error`](crate::Error) does.
pub fn remedy(error: &RedisError) -> &'static str {
    let text = error.to_string();
    let said = |word: &str| error.code() == Some(word) || text.contains(word);
    if said("WRONGPASS") || said("NOAUTH") || error.kind() == ErrorKind::AuthenticationFailed {
        "check user and password in the URL"
    // When a script exceeds its user's rights, Redis 7 has the second text and Valkey 9 the third.
    } else if said("NOPERM") || text.contains("The user executing the script") || text.contains("ACL failure") {
        concat!(
            "let the client's ACL user run ",
            broad!(),
            " on keys ~fairlock:* and channels &fairlock:* &fairlock:{*}:events (or the client's prefix); ",
            besides!(),
            "; SECURITY.md has narrower rules"
        )
    } else if said("NOREPLICAS") {
        "the server has fewer replicas in step than `min-replicas-to-write`: start replicas, or lower the setting"
    } else if text.contains("no sharded pub/sub") {
        "a cluster needs Redis 7 or later, or Valkey: older servers would send every grant to all nodes"
    } else if text.contains("is a node of a cluster") && error.kind() == ErrorKind::InvalidClientConfig {
        "connect by a list of nodes, such as `[url]`, with the feature `cluster`: then the client finds the masters"
    } else if text.contains("is a sentinel") && error.kind() == ErrorKind::InvalidClientConfig {
        "connect by a redis::sentinel::SentinelClient, with the feature `sentinel`"
    } else if text.contains("no slots") && error.kind() == ErrorKind::InvalidClientConfig {
        "the node belongs to no cluster: name nodes of a cluster, or give this node its slots"
    } else if text.contains("of a cluster") && error.kind() == ErrorKind::InvalidClientConfig
        || text.contains("no node of the cluster is named")
    {
        "name one or more nodes by their URLs, all with the same user, password and TLS"
    } else if text.contains("cluster support disabled") {
        "the server is not a cluster: connect with its URL"
    } else if text.contains("not the master") || error.kind() == ErrorKind::MasterNameNotFoundBySentinel {
        "connect to the master, or by a name that leads to it; with Sentinel check the master's name, that the \
         SentinelClient is one for masters, and that the sentinels see a master"
    } else if said("OOM") {
        "the server's memory is exhausted: raise maxmemory or free memory; holds and releases still work"
    } else if said("WRONGTYPE") {
        "a key of another kind lies under the lock's name: delete it, or choose another name or prefix"
    } else if text.contains("another version of fairlock") {
        "let all users of the lock run versions that share a layout; the lock's state expires a minute after its last use"
    } else if said("QUORUM") {
        "name the quorum, its number of servers and its longest lease as its other clients do, or give it servers of its own"
    } else if text.contains("DB index") {
        "choose a database number that the server has, or raise its setting `databases`"
    } else if error.kind() == ErrorKind::InvalidClientConfig {
        "check the URL: redis://, rediss:// (feature tls-rustls) or unix://"
    } else if error.kind() == ErrorKind::Parse {
        "the server is neither Redis nor Valkey, perhaps an HTTP server: check host and port"
    } else if error.is_io_error() {
        remedy_of_connection(error, &text)
    } else {
        "check the server's version (6.2 or later) and log"
    }
}

/// Tells what to do when the client could not connect, or the connection ended.
fn remedy_of_connection(error: &RedisError, text: &str) -> &'static str {
    // These are texts of rustls. Two authorities with one name cause the second.
    if text.contains("UnknownIssuer") || text.contains("BadSignature") {
        "no authority that this machine trusts has signed the server's certificate: add the authority to the system's, name its file \
         in SSL_CERT_FILE, or make a redis::Client that trusts it"
    } else if text.contains("CaUsedAsEndEntity") {
        "the server's certificate is an authority's own: give the server one that the authority has signed"
    } else if text.contains("invalid peer certificate") {
        "the server's certificate is not valid: compare the URL's host with the names in the certificate, and its dates with the clock"
    } else if text.contains("received fatal alert") {
        "the server refuses the client's TLS: make a redis::Client with a certificate that the server trusts, or read its log"
    } else if text.contains("open files") {
        "this process may open no more files: close some, or raise its limit (ulimit -n)"
    } else if text.contains("received corrupt message") {
        "the port speaks no TLS: write redis:// instead of rediss://, or name the port that speaks TLS"
    } else if error.is_connection_dropped() && !error.is_connection_refusal() {
        "the server ended the connection: if the port speaks TLS, write rediss:// instead of redis://; otherwise check host and port, \
         and read its log"
    } else {
        "check that the server is up and reachable"
    }
}
