//! The addresses and settings in a client of the library's.

use crate::wire::timed_out;
use redis::cluster::{ClusterClient, Connect};
use redis::{ConnectionInfo, ConnectionLike, IntoConnectionInfo, RedisError, Value};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

/// The addresses and settings in a client of the library's. They are private; but it hands them to whatever makes its
/// connections, and that can be chosen.
pub(crate) fn seeds_of(client: &ClusterClient) -> Result<Arc<[ConnectionInfo]>, RedisError> {
    SEEDS.take();
    let attempt = client.get_generic_connection::<Probe>();
    let seeds = SEEDS.take();
    match attempt {
        Err(error) if seeds.is_empty() => Err(error),
        _ => Ok(seeds.into()),
    }
}

thread_local! {
    static SEEDS: RefCell<Vec<ConnectionInfo>> = const { RefCell::new(Vec::new()) };
}

/// Takes note of where it should connect, and does not.
enum Probe {}

impl Connect for Probe {
    fn connect<T: IntoConnectionInfo>(info: T, _timeout: Option<Duration>) -> Result<Self, RedisError> {
        let info = info.into_connection_info()?;
        SEEDS.with_borrow_mut(|seeds| seeds.push(info));
        Err(timed_out())
    }

    fn send_packed_command(&mut self, _: &[u8]) -> Result<(), RedisError> {
        match *self {}
    }

    fn set_write_timeout(&self, _: Option<Duration>) -> Result<(), RedisError> {
        match *self {}
    }

    fn set_read_timeout(&self, _: Option<Duration>) -> Result<(), RedisError> {
        match *self {}
    }

    fn recv_response(&mut self) -> Result<Value, RedisError> {
        match *self {}
    }
}

impl ConnectionLike for Probe {
    fn req_packed_command(&mut self, _: &[u8]) -> Result<Value, RedisError> {
        match *self {}
    }

    fn req_packed_commands(&mut self, _: &[u8], _: usize, _: usize) -> Result<Vec<Value>, RedisError> {
        match *self {}
    }

    fn get_db(&self) -> i64 {
        match *self {}
    }

    fn check_connection(&mut self) -> bool {
        match *self {}
    }

    fn is_open(&self) -> bool {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Address;

    #[test]
    fn a_client_tells_its_settings_without_connecting() {
        let client = ClusterClient::new(["redis://user:secret@127.0.0.1:1", "redis://user:secret@[::1]:2"]).unwrap();
        let seeds = seeds_of(&client).unwrap();
        let addresses: Vec<_> = seeds.iter().filter_map(Address::of).map(|a| a.to_string()).collect();
        assert_eq!(addresses, ["127.0.0.1:1", "::1:2"]);
        assert!(
            seeds
                .iter()
                .all(|seed| seed.redis_settings().password() == Some("secret"))
        );
    }
}
