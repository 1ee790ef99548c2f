//! The commands of our scripts without the reasons for them: what a lock whose state is a packed field and two sorted sets costs a
//! server at least, however its scripts are written. `docs/scripts.md` lists them.

use redis::Script;
use redis::aio::MultiplexedConnection;
use std::sync::Arc;

const ACQUIRE: &str = "
redis.call('HGET', KEYS[1], 's')
redis.call('TIME')
redis.call('HSET', KEYS[1], 's', ARGV[1])
return 1760400000123456";

const RELEASE: &str = "
redis.call('HGET', KEYS[1], 's')
redis.call('HSET', KEYS[1], 's', ARGV[1])
return 1760400000123456";

const HAND_OVER: &str = "
redis.call('HGET', KEYS[1], 's')
redis.call('ZREM', KEYS[3], ARGV[2])
redis.call('TIME')
local to = redis.call('ZRANGE', KEYS[2], '0', '0')[1]
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[1], 's', ARGV[1])
redis.call('PUBLISH', ARGV[3], '1760400000123456 ' .. to .. '\\n' .. KEYS[1])
return 1760400000123456";

/// As long as a real one.
const STATE: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdew0123456789abcde:1";
const TICKET: &str = "1760400000123456";
const HOLDER: &str = "w0123456789abcde:1";
const WAITER: &str = "w0123456789abcdf:1";

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
        bare.keys = ["", ":q", ":l"].map(|suffix| format!("bare:{{{lock}}}{suffix}"));
        let [state, queue, leases] = &bare.keys;
        let mut prepare = redis::pipe();
        prepare.del(&[state, queue, leases]);
        prepare.hset(state, "s", STATE);
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
        let mut prepare = redis::pipe();
        prepare.hset(state, "s", STATE).zadd(queue, WAITER, TICKET);
        prepare.zadd_multiple(leases, &[("1760400010123", HOLDER), ("1760400010124", WAITER)]);
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
    let call = call.arg(STATE).arg(HOLDER).arg(channel);
    let _: i64 = call.invoke_async(redis).await.expect("a reply");
}
