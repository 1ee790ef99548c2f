//! A client's introduction: a key with an expiry, which the readers of a lock's status look up.

use super::key;
use crate::types::client_info::ClientInfo;
use crate::types::owner::ClientId;
use crate::types::timers::INTRODUCED_EVERY;
use redis::Cmd;

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
