//! What is left of a row without the client: a plain connection that sends our functions, or those of `least.lua`, which do the
//! same and can do no other case. No client of our scripts is faster than the first, and no lock with these promises than the
//! second. Between them stands `shared.lua`: it reads and writes the state by `lock.lua`, as all other cases do.

use crate::lua::LEASE;
use fairlock_support::scripts;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Functions {
    Ours,
    Shared,
    Least,
}

impl Functions {
    /// Which can do a cycle, and a hand-over.
    pub const ALL: [Self; 3] = [Self::Ours, Self::Shared, Self::Least];

    pub fn key(self) -> &'static str {
        match self {
            Self::Ours => "scripts",
            Self::Shared => "shared",
            Self::Least => "least",
        }
    }

    pub fn what(self) -> &'static str {
        match self {
            Self::Ours => "our functions without the client",
            Self::Shared => "functions that do this case and share the state with all others, without a client",
            Self::Least => "the least functions without a client",
        }
    }

    /// Before the braces of a key, and before the name of a client's channel.
    fn prefix(self) -> &'static str {
        match self {
            Self::Ours => "fairlock",
            Self::Shared => "shared",
            Self::Least => "least",
        }
    }

    /// The library: its name and its text.
    pub fn library(self) -> (String, String) {
        match self {
            Self::Ours => scripts::library(),
            Self::Shared => {
                let texts = [
                    "#!lua name=shared\n",
                    scripts::file("lock.lua"),
                    include_str!("shared.lua"),
                ];
                ("shared".to_owned(), texts.concat())
            }
            Self::Least => ("least".to_owned(), include_str!("least.lua").to_owned()),
        }
    }
}

const HOLDER: &str = "0123456789abcde";
const WAITER: &str = "0123456789abcdf";

/// One lock's, over a connection.
#[derive(Clone)]
pub struct Raw {
    redis: MultiplexedConnection,
    functions: Functions,
    /// What the names of the functions begin with.
    library: String,
    keys: [String; 3],
    number: u64,
}

impl Raw {
    pub async fn new(mut redis: MultiplexedConnection, functions: Functions) -> Self {
        let (library, text) = functions.library();
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg("REPLACE").arg(text);
        load.exec_async(&mut redis).await.expect("the functions compile");
        Self {
            redis,
            functions,
            library,
            keys: Default::default(),
            number: 0,
        }
    }

    /// Of a lock that is free, and was used before.
    pub async fn of(&self, lock: &str) -> Self {
        let mut raw = self.clone();
        raw.keys = ["", ":q", ":l"].map(|suffix| format!("{}:{{raw-{lock}}}{suffix}", self.functions.prefix()));
        match self.functions {
            Functions::Ours | Functions::Shared => raw.cycle().await,
            Functions::Least => raw.prepare("").await,
        }
        raw
    }

    /// The channel of the client that waits.
    pub fn channel(functions: Functions) -> String {
        format!("{}:c:{WAITER}", functions.prefix())
    }

    pub async fn cycle(&mut self) {
        self.name();
        self.acquire().await;
        self.release().await;
    }

    /// A new request.
    pub fn name(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Returns its token.
    pub async fn acquire(&self) -> u64 {
        let token = self.call("acquire", &[&self.request(HOLDER), LEASE]).await;
        redis::from_redis_value(token).expect("a token")
    }

    pub async fn release(&self) {
        self.call("release", &[&self.request(HOLDER)]).await;
    }

    /// A writer holds it, and another waits.
    pub async fn contend(&mut self) {
        self.number += 1;
        let [holder, waiter] = [HOLDER, WAITER].map(|client| self.request(client));
        match self.functions {
            Functions::Ours => {
                self.call("acquire", &[&holder, LEASE]).await;
                self.call("acquire", &[&waiter, LEASE]).await;
            }
            Functions::Shared => {
                self.call("acquire", &[&holder, LEASE]).await;
                self.call("queue", &[&waiter, LEASE]).await;
            }
            Functions::Least => {
                self.prepare(&holder).await;
                self.call("queue", &[&waiter, LEASE]).await;
            }
        }
    }

    /// The holder lets the waiter in.
    pub async fn hand_over(&self) {
        let function = match self.functions {
            Functions::Ours => "release",
            Functions::Shared | Functions::Least => "hand_over",
        };
        self.call(function, &[&self.request(HOLDER)]).await;
    }

    /// The waiter, which was let in, leaves.
    pub async fn leave(&mut self) {
        match self.functions {
            Functions::Ours => drop(self.call("release", &[&self.request(WAITER)]).await),
            Functions::Shared => self.clear().await,
            Functions::Least => self.prepare("").await,
        }
    }

    /// One request queues, and the holder lets it in: both of the client whose channel is [`Raw::holders_channel`].
    pub async fn pass_on(&mut self) {
        let holder = self.request(HOLDER);
        self.number += 1;
        self.call("queue", &[&self.request(HOLDER), LEASE]).await;
        self.call("hand_over", &[&holder]).await;
    }

    pub fn holders_channel(functions: Functions) -> String {
        format!("{}:c:{HOLDER}", functions.prefix())
    }

    /// Removes the lock.
    pub async fn clear(&self) {
        let mut redis = self.redis.clone();
        redis::cmd("DEL")
            .arg(&self.keys)
            .exec_async(&mut redis)
            .await
            .expect("a reply");
    }

    pub fn redis(&self) -> MultiplexedConnection {
        self.redis.clone()
    }

    /// The present request's number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// A writer of the client whose channel is [`Raw::holders_channel`]. Returns its token, or `None` if it waits.
    pub async fn ask(&self, number: u64) -> Option<u64> {
        let writer = format!("w{HOLDER}:{number}");
        match self.call("acquire", &[&writer, LEASE]).await {
            Value::Array(_) => None,
            token => Some(redis::from_redis_value(token).expect("a token")),
        }
    }

    pub async fn release_of(&self, number: u64) {
        self.call("release", &[&format!("w{HOLDER}:{number}")]).await;
    }

    /// A reader of the client that waits, which is to queue.
    pub async fn queue_reader(&self, number: u64) {
        let reader = format!("r{WAITER}:{number}");
        let queued = self.call("acquire", &[&reader, LEASE]).await;
        assert!(matches!(queued, Value::Array(_)), "a writer holds the lock: {queued:?}");
    }

    pub async fn release_readers(&self, readers: u64) {
        let names: Vec<_> = (0..readers).map(|number| format!("r{WAITER}:{number}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        self.call("release", &names).await;
    }

    fn request(&self, client: &str) -> String {
        format!("w{client}:{}", self.number)
    }

    async fn prepare(&self, holder: &str) {
        let _: Value = self.reply("prepare", &[holder, "shared", LEASE]).await;
    }

    async fn call(&self, function: &str, arguments: &[&str]) -> Value {
        let reply = self.reply(function, arguments).await;
        assert_ne!(reply, Value::Int(0), "{function} {arguments:?} is for another case");
        reply
    }

    async fn reply(&self, function: &str, arguments: &[&str]) -> Value {
        let mut call = Cmd::new();
        call.arg("FCALL").arg(format!("{}_{function}", self.library));
        call.arg(3).arg(&self.keys).arg("").arg(arguments);
        call.query_async(&mut self.redis.clone()).await.expect("a reply")
    }
}
