//! Who a client says it is: a key with an expiry, for those who look at a lock's status.

use super::key;
use crate::types::owner::ClientId;
use crate::types::timers::INTRODUCED_EVERY;
use redis::Cmd;
use std::fmt;

/// A client's introduction, and where it is stored.
#[derive(Clone)]
pub(crate) struct Introduction {
    pub(crate) key: String,
    text: String,
}

impl Introduction {
    pub(crate) fn new(prefix: &str, client: ClientId, label: Option<&str>) -> Self {
        Self {
            key: key::introduction(prefix, &client.to_string()),
            text: ClientInfo::introduction(label),
        }
    }

    pub(crate) fn set(&self) -> Cmd {
        let mut set = redis::cmd("SET");
        set.arg(&self.key).arg(&self.text);
        set.arg("EX").arg(3 * INTRODUCED_EVERY.as_secs());
        set
    }

    /// Nothing is left of a client that ends in order.
    pub(crate) fn delete(prefix: &str, client: ClientId) -> (String, Cmd) {
        let key = key::introduction(prefix, &client.to_string());
        let mut delete = redis::cmd("DEL");
        delete.arg(&key);
        (key, delete)
    }
}

/// Asks for the introductions under these keys of one server.
pub(crate) fn get_all(keys: &[String]) -> Cmd {
    let mut get = redis::cmd("MGET");
    get.arg(keys);
    get
}

#[cfg(feature = "cluster")]
pub(crate) fn get(key: &str) -> Cmd {
    let mut get = redis::cmd("GET");
    get.arg(key);
    get
}

/// A client of the server, as it introduced itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientInfo {
    /// Its number among the clients: what its requests' names begin with.
    pub id: String,
    /// Its label, if it set one: see [`ClientBuilder::label`](crate::ClientBuilder::label).
    pub label: Option<String>,
    /// The name of its host, if it is known.
    pub host: Option<String>,
    /// Its process number, if it is known.
    pub process: Option<u32>,
}

impl ClientInfo {
    /// What this process says of itself, as it is stored.
    pub(crate) fn introduction(label: Option<&str>) -> String {
        // No library for a name that is only shown.
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
        let host = host.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default();
        format!("{}\n{}\n{}", std::process::id(), host.trim(), label.unwrap_or_default())
    }

    pub(crate) fn read(id: &str, introduction: Option<&str>) -> Self {
        let mut lines = introduction.unwrap_or_default().splitn(3, '\n');
        let process = lines.next().and_then(|line| line.parse().ok());
        let mut text = || lines.next().filter(|line| !line.is_empty()).map(str::to_owned);
        Self {
            id: id.to_owned(),
            process,
            host: text(),
            label: text(),
        }
    }
}

impl fmt::Display for ClientInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label.as_deref().unwrap_or(&self.id))?;
        match (self.process, &self.host) {
            (Some(process), Some(host)) => write!(f, " (process {process} on {host})"),
            (Some(process), None) => write!(f, " (process {process})"),
            (None, _) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_introduction_is_read_back() {
        let info = ClientInfo::read("0a", Some(&ClientInfo::introduction(Some("billing"))));
        assert_eq!(info.process, Some(std::process::id()));
        assert_eq!(info.label.as_deref(), Some("billing"));
        assert!(info.to_string().starts_with("billing (process "));
    }

    #[test]
    fn a_client_that_did_not_introduce_itself_is_known_by_its_number() {
        assert_eq!(ClientInfo::read("0a", None).to_string(), "0a");
    }
}
