//! A client's introduction: a key with an expiry, which the readers of a lock's status look up.

use super::key;
use crate::types::owner::ClientId;
use crate::types::timers::INTRODUCED_EVERY;
use redis::Cmd;
use std::fmt;

/// A client's introduction, and its key.
#[derive(Clone)]
pub(crate) struct Introduction {
    pub(crate) key: String,
    text: String,
}

impl Introduction {
    pub(crate) fn new(prefix: &str, client: ClientId, process: &(u32, String), label: Option<&str>) -> Self {
        Self {
            key: key::introduction(prefix, &client.to_string()),
            text: ClientInfo::introduction(process, label),
        }
    }

    pub(crate) fn set(&self) -> Cmd {
        let mut set = redis::cmd("SET");
        set.arg(&self.key).arg(&self.text);
        set.arg("EX").arg(3 * INTRODUCED_EVERY.as_secs());
        set
    }

    /// The command that deletes the introduction, because a client that ends in order leaves nothing behind.
    pub(crate) fn delete(prefix: &str, client: ClientId) -> (String, Cmd) {
        let key = key::introduction(prefix, &client.to_string());
        let mut delete = redis::cmd("DEL");
        delete.arg(&key);
        (key, delete)
    }
}

/// The command that asks one server for the introductions under these keys.
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

/// A client of the server, as that client introduced itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientInfo {
    /// The client's name: the names of its requests begin with it.
    pub id: String,
    /// The client's label, if it set one: see [`ClientBuilder::label`](crate::ClientBuilder::label).
    pub label: Option<String>,
    /// The name of the client's host, if known.
    pub host: Option<String>,
    /// The client's process number, if known.
    pub process: Option<u32>,
}

impl ClientInfo {
    /// The text by which a process introduces itself: its number, its host, its label.
    fn introduction((number, host): &(u32, String), label: Option<&str>) -> String {
        format!("{number}\n{host}\n{}", label.unwrap_or_default())
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
        let text = ClientInfo::introduction(&(17, "blue".to_owned()), Some("billing"));
        let info = ClientInfo::read("0a", Some(&text));
        assert_eq!(info.process, Some(17));
        assert_eq!(info.host.as_deref(), Some("blue"));
        assert_eq!(info.label.as_deref(), Some("billing"));
        assert!(info.to_string().starts_with("billing (process 17"));
    }

    #[test]
    fn a_client_that_did_not_introduce_itself_is_known_by_its_number() {
        assert_eq!(ClientInfo::read("0a", None).to_string(), "0a");
    }
}
