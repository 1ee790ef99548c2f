//! The commands of our scripts without the reasons for them: what a lock whose state is a hash and two sorted sets costs a
//! server at least, however its scripts are written. `docs/fast-paths.md` lists them.

use redis::Script;
use redis::aio::MultiplexedConnection;
use std::sync::Arc;

const ACQUIRE: &str = "
redis.call('HMGET', KEYS[1], 'mode', 'rcount', 'writer', 'seq', 'policy', 'more', 'keep', 'cap', 'sole', 'r:' .. ARGV[1])
redis.call('TIME')
redis.call('HSET', KEYS[1], 'mode', 'write', 'writer', ARGV[1], 'wcount', '1', 't:' .. ARGV[1], ARGV[2], 'seq', ARGV[2],
  'sole', 'w' .. ARGV[1] .. ' ' .. ARGV[2])
return { 2, 1, -1, 1 }";

const RELEASE: &str = "
redis.call('HMGET', KEYS[1], 'rcount', 'writer', 'wcount', 'seq', 'more', 'sole', 'r:' .. ARGV[1])
redis.call('HDEL', KEYS[1], 'mode', 'writer', 'wcount', 't:' .. ARGV[1], 'sole')
return { -1, 2 }";

const HAND_OVER: &str = "
redis.call('HMGET', KEYS[1], 'rcount', 'writer', 'wcount', 'seq', 'more', 'sole', 'r:' .. ARGV[1])
local to = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
redis.call('ZSCORE', KEYS[2], 'w' .. ARGV[1])
redis.call('ZRANGE', KEYS[3], 0, 1, 'WITHSCORES')
redis.call('TIME')
redis.call('ZREM', KEYS[3], 'w' .. ARGV[1])
redis.call('ZREM', KEYS[2], to)
redis.call('HSET', KEYS[1], 'writer', to, 't:' .. to, ARGV[2], 'seq', ARGV[2])
redis.call('HDEL', KEYS[1], 't:' .. ARGV[1])
redis.call('PUBLISH', ARGV[3], to .. ' ' .. ARGV[2] .. '\\n' .. KEYS[1])
return { 1000, 2 }";

/// As long as a real one.
const TOKEN: &str = "1760400000123456";
const OWNER: &str = "0123456789abcde:1";
const OTHER: &str = "0123456789abcdf:1";

/// One lock's, over a connection.
#[derive(Clone)]
pub struct Bare {
    redis: MultiplexedConnection,
    keys: [String; 3],
    scripts: Arc<[Script; 3]>,
}

impl Bare {
    pub fn new(redis: MultiplexedConnection) -> Self {
        Self {
            redis,
            keys: Default::default(),
            scripts: Arc::new([ACQUIRE, RELEASE, HAND_OVER].map(Script::new)),
        }
    }

    /// Of a lock that is free, and was used before.
    pub async fn of(&self, lock: &str) -> Self {
        let mut bare = self.clone();
        bare.keys = ["", ":queue", ":leases"].map(|suffix| format!("bare:{{{lock}}}{suffix}"));
        let [state, queue, leases] = &bare.keys;
        let mut prepare = redis::pipe();
        prepare.del(&[state, queue, leases]);
        prepare.hset_multiple(state, &[("seq", TOKEN), ("keep", "1760400000123"), ("cap", "10000")]);
        prepare.exec_async(&mut bare.redis).await.expect("replies");
        bare
    }

    /// What an acquire and a release of a free lock send.
    pub async fn cycle(&mut self) {
        let [acquire, release, _] = &*self.scripts;
        for script in [acquire, release] {
            call(script, &self.keys, "", &mut self.redis).await;
        }
    }

    /// A writer holds it, and another waits.
    pub async fn contend(&mut self) {
        let [state, queue, leases] = &self.keys;
        let (held, waits) = (format!("w{OWNER}"), format!("w{OTHER}"));
        let token = format!("t:{OWNER}");
        let fields = [("mode", "write"), ("writer", OWNER), ("wcount", "1"), (&token, TOKEN)];
        let mut prepare = redis::pipe();
        prepare.hset_multiple(state, &fields).zadd(queue, &waits, TOKEN);
        prepare.zadd_multiple(leases, &[("1760400010123", &held), ("1760400010124", &waits)]);
        prepare.exec_async(&mut self.redis).await.expect("replies");
    }

    /// What a release that lets a writer in sends; it publishes on this channel.
    pub async fn hand_over(&mut self, channel: &str) {
        let [.., hand_over] = &*self.scripts;
        call(hand_over, &self.keys, channel, &mut self.redis).await;
    }
}

async fn call(script: &Script, keys: &[String; 3], channel: &str, redis: &mut MultiplexedConnection) {
    let mut call = script.prepare_invoke();
    for key in keys {
        call.key(key);
    }
    let call = call.arg(OWNER).arg(TOKEN).arg(channel);
    let _: Vec<i64> = call.invoke_async(redis).await.expect("a reply");
}
