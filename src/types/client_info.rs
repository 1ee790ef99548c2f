//! Who a client of the server is.

use std::fmt;

/// A client of the server, as that client introduced itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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
