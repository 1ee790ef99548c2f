//! What an operator, or a nemesis, says to the server.

use super::connect_redis;
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, RedisError};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// A connection that is made again when it broke: others kill it now and then.
pub struct Admin {
    url: String,
    redis: Option<MultiplexedConnection>,
}

impl Admin {
    pub fn new(url: String) -> Self {
        Self { url, redis: None }
    }

    pub async fn call<T: FromRedisValue>(&mut self, words: &[&str]) -> Result<T, RedisError> {
        let begun = Instant::now();
        loop {
            match self.try_call(words).await {
                Err(error) if error.is_unrecoverable_error() && begun.elapsed() < Duration::from_secs(10) => {
                    self.redis = None;
                    sleep(Duration::from_millis(10)).await;
                }
                other => return other,
            }
        }
    }

    async fn try_call<T: FromRedisValue>(&mut self, words: &[&str]) -> Result<T, RedisError> {
        let redis = match &mut self.redis {
            Some(redis) => redis,
            None => self.redis.insert(connect_redis(&self.url).await?),
        };
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async(redis).await
    }

    pub async fn config(&mut self, name: &str, value: &str) -> Result<(), RedisError> {
        self.call(&["CONFIG", "SET", name, value]).await
    }
}
