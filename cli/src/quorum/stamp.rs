//! What the servers keep of the quorum that they belong to, so that all its clients agree.

use crate::outcome::Failure;
use crate::server::ServerArgs;
use fairlock::redis::RedisError;
use std::time::Duration;

/// What the clients of a quorum agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) name: String,
    pub(crate) servers: usize,
    pub(crate) longest_lease: Duration,
}

impl Stamp {
    /// As the servers keep it: `NAME of 3 30000`.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (rest, longest_ms) = text.rsplit_once(' ')?;
        let (rest, servers) = rest.rsplit_once(' ')?;
        Some(Self {
            name: rest.strip_suffix(" of")?.to_owned(),
            servers: servers.parse().ok()?,
            longest_lease: Duration::from_millis(longest_ms.parse().ok()?),
        })
    }
}

/// What one server keeps of the quorum that it belongs to.
pub(crate) async fn stamp(server: &ServerArgs) -> Result<Option<Stamp>, Failure> {
    let mut redis = server.redis().await?;
    let mut get = fairlock::redis::cmd("GET");
    get.arg(format!("{}:quorum", server.prefix));
    let text: Option<String> = get
        .query_async(&mut redis)
        .await
        .map_err(|error| server.refused("cannot read the quorum's name, for which its user needs +get", &error))?;
    Ok(text.and_then(|text| Stamp::read(&text)))
}

/// The server keeps another quorum's name, number of servers or longest lease.
pub(super) fn is_of_another_quorum(error: &RedisError) -> bool {
    error.to_string().contains("belongs to another quorum")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_as_the_servers_keep_it_whatever_the_name() {
        let stamp = |name: &str| Stamp {
            name: name.to_owned(),
            servers: 5,
            longest_lease: Duration::from_millis(2500),
        };
        for name in ["billing", "of", "a of 3"] {
            assert_eq!(Stamp::read(&format!("{name} of 5 2500")), Some(stamp(name)));
        }
        for text in ["", "billing", "billing of 5", "billing 5 2500", "billing of x 2500"] {
            assert_eq!(Stamp::read(text), None, "{text}");
        }
    }
}
