//! Which server each address of a quorum leads to. A server tells it by the name of its run, `run_id` in INFO. The name
//! lasts as long as the server's process.

use super::named_twice;
use crate::outcome::Failure;
use crate::server::ServerArgs;
use fairlock::{Client, redis};
use futures::future::join;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The name of the run to which each address led last.
#[derive(Clone, Default)]
pub(super) struct Runs(Arc<Mutex<BTreeMap<String, String>>>);

impl Runs {
    /// A client of the server. Fails if another address has led to the same server, because that would answer twice.
    pub(super) async fn client(&self, server: &ServerArgs) -> Result<Client, Failure> {
        let (client, run) = join(server.client(), run_of(server)).await;
        let client = client?;
        let Some(run) = run else { return Ok(client) };
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let address = server.shown();
        if let Some((other, _)) = runs.iter().find(|(other, of)| **of == run && **other != address) {
            return Err(named_twice(other, &address));
        }
        runs.insert(address, run);
        Ok(client)
    }
}

/// `None`: the user may not ask for it, and then only the address tells.
async fn run_of(server: &ServerArgs) -> Option<String> {
    let mut redis = server.redis().await.ok()?;
    let mut info = redis::cmd("INFO");
    let info: String = info.arg("server").query_async(&mut redis).await.ok()?;
    let run = info.lines().find_map(|line| line.strip_prefix("run_id:"))?;
    Some(run.trim().to_owned())
}
