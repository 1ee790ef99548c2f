//! The commands of our scripts without the reasons for them, as functions: what a lock whose state is one packed field of a
//! hash and two sorted sets costs a server at least, however its scripts are written. `docs/scripts.md` tells what they do.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, Pipeline};

/// As lua/lock.lua packs the state.
const LIBRARY: &str = "#!lua name=bare
local format = '<BBBI4I4I4dddddd'
local pack, unpack_state, call
local function state(keys, holds, waits, token)
  return pack(format, 2, 0, holds - waits, 0, holds, waits, token, token, token, token / 1000 + 10000, 1760400000123, 10000)
end
local function begin(keys)
  pack, unpack_state, call = struct.pack, struct.unpack, redis.call
  return unpack_state(format, call('HGET', keys[1], 's'))
end
redis.register_function('bare_prepare', function(keys, args)
  pack, call = struct.pack, redis.call
  call('DEL', unpack(keys))
  call('HSET', keys[1], 's', state(keys, 0, 0, args[2]), 'policy', '2', 'seq', '0')
end)
redis.register_function('bare_acquire', function(keys, args)
  begin(keys)
  call('TIME')
  call('HSET', keys[1], 's', state(keys, 1, 0, args[2]) .. 'w' .. args[1])
  return 1
end)
redis.register_function('bare_release', function(keys, args)
  begin(keys)
  call('HSET', keys[1], 's', state(keys, 0, 0, args[2]))
  return 2
end)
redis.register_function('bare_contend', function(keys, args)
  pack, call = struct.pack, redis.call
  call('HSET', keys[1], 's', state(keys, 1, 1, args[2]) .. 'w' .. args[1])
  call('ZADD', keys[2], args[2], args[3])
  call('ZADD', keys[3], '1760400010123', 'w' .. args[1], '1760400010124', args[3])
end)
redis.register_function('bare_hand_over', function(keys, args)
  begin(keys)
  call('ZREM', keys[3], 'w' .. args[1])
  call('TIME')
  local to = call('ZRANGE', keys[2], '0', '0')[1]
  call('DEL', keys[2])
  call('HSET', keys[1], 's', state(keys, 1, 0, args[2]) .. to)
  call('PUBLISH', args[3], args[2] .. ' ' .. to .. '\\n' .. keys[1])
  return 2
end)
redis.register_function('bare_enter', function(keys, args)
  begin(keys)
  call('ZREM', keys[3], args[1])
  call('TIME')
  local to = call('ZRANGE', keys[2], '0', '0')[1]
  call('ZREMRANGEBYRANK', keys[2], '0', '0')
  call('HSET', keys[1], 's', state(keys, 1, 0, args[2]) .. to)
  call('PUBLISH', args[3], args[2] .. ' ' .. to .. '\\n' .. keys[1])
  return to
end)
";

/// As long as a real one.
const TOKEN: &str = "1760400000123456";
const OWNER: &str = "0123456789abcde:1";
const OTHER: &str = "w0123456789abcdf:1";

/// One lock's, over a connection.
#[derive(Clone)]
pub struct Bare {
    redis: MultiplexedConnection,
    keys: [String; 3],
}

impl Bare {
    pub fn new(redis: MultiplexedConnection) -> Self {
        Self {
            redis,
            keys: Default::default(),
        }
    }

    /// Of a lock that is free, and was used before.
    pub async fn of(&self, lock: &str) -> Self {
        let mut bare = self.clone();
        bare.keys = ["", ":q", ":l"].map(|suffix| format!("bare:{{{lock}}}{suffix}"));
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg("REPLACE").arg(LIBRARY);
        load.exec_async(&mut bare.redis).await.expect("the functions compile");
        bare.call::<()>("bare_prepare", "").await;
        bare
    }

    /// What an acquire and a release of a free lock send.
    pub async fn cycle(&mut self) {
        for function in ["bare_acquire", "bare_release"] {
            self.call::<i64>(function, "").await;
        }
    }

    /// A writer holds it, and another waits.
    pub async fn contend(&mut self) {
        self.call::<()>("bare_contend", OTHER).await;
    }

    /// What a release that lets a writer in sends; it publishes on this channel.
    pub async fn hand_over(&mut self, channel: &str) {
        self.call::<i64>("bare_hand_over", channel).await;
    }

    /// Waiters at these tickets.
    pub async fn queue(&mut self, waiters: impl Iterator<Item = (String, usize)>) {
        let mut calls = redis::pipe();
        for (name, ticket) in waiters {
            self.add_waiter(&mut calls, &name, ticket);
        }
        calls.exec_async(&mut self.redis).await.expect("a reply");
    }

    /// What as many releases send, each of which lets in the first of several waiters; and a newcomer after each. All at
    /// once.
    pub async fn enter(&mut self, moves: impl Iterator<Item = (String, (String, usize))>) {
        let mut calls = redis::pipe();
        for (gone, (newcomer, ticket)) in moves {
            calls.cmd("FCALL").arg("bare_enter").arg(3).arg(&self.keys);
            calls.arg(gone).arg(TOKEN).arg("bare-queue").ignore();
            self.add_waiter(&mut calls, &newcomer, ticket);
        }
        calls.exec_async(&mut self.redis).await.expect("a reply");
    }

    fn add_waiter(&self, calls: &mut Pipeline, name: &str, ticket: usize) {
        calls.zadd(&self.keys[1], name, ticket).ignore();
        // Its lease ends after those before it, as if all had asked one after the other.
        calls.zadd(&self.keys[2], name, 1_760_400_010_124 + ticket).ignore();
    }

    async fn call<T: FromRedisValue>(&mut self, function: &str, last: &str) -> T {
        let mut call = Cmd::new();
        call.arg("FCALL").arg(function).arg(3).arg(&self.keys);
        call.arg(OWNER).arg(TOKEN).arg(last);
        call.query_async(&mut self.redis).await.expect("a reply")
    }
}
