//! The floors of `instructions`, two for each figure of the server, and what each command costs. `floor.lua` has functions
//! that execute the commands of a case, with the same keys and arguments, and nothing else. `least.lua` has functions that do
//! the whole work of a case, and can do no other.

use crate::env::{Env, connection, listening};
use crate::instructions::{Counted, READERS, Rows};
use crate::raw::{Functions, Raw};
use crate::report::shown;
use fairlock_support::scripts;
use redis::aio::MultiplexedConnection;
use redis::{AsyncTypedCommands, Cmd, FromRedisValue, Pipeline, Value};
use std::fmt::Write;
use tokio::sync::mpsc;

/// What floor.lua does 100 times.
const PRICES: [(&str, &str, &str); 11] = [
    ("hget", "price_hget", "one HGET of the state, by a script"),
    ("hset", "price_hset", "one HSET of the state"),
    ("time", "price_time", "one TIME"),
    ("zscore", "price_zscore", "one ZSCORE of a request that is not there"),
    ("zadd_zrem", "price_zadd_zrem", "one ZADD and one ZREM"),
    ("zrange", "price_zrange", "one ZRANGE 0 0"),
    ("pexpireat", "price_pexpireat", "one PEXPIREAT"),
    ("publish", "price_publish", "one PUBLISH that nobody hears"),
    ("pack", "price_pack", "to pack the state"),
    ("unpack", "price_unpack", "to unpack the state"),
    ("step", "price_steps", "100 steps of the Lua machine"),
];

const LEASE: &str = "3600000";

/// The libraries of floors: name, text, and the key and the meaning of each figure, in the order of [`CASES`].
type Library = (&'static str, &'static str, [(&'static str, &'static str); 4]);

const COMMANDS: Library = (
    "floor",
    include_str!("floor.lua"),
    [
        ("floor_cycle", "the commands of a cycle alone"),
        ("floor_hand_over", "the commands of a hand-over alone"),
        ("floor_crowd", "the commands of such a release alone, for each reader"),
        ("floor_renewal", "the commands of a renewal of one hold alone"),
    ],
);

const LEAST: Library = (
    "least",
    include_str!("least.lua"),
    [
        ("least_cycle", "functions that do a cycle and nothing else"),
        ("least_hand_over", "functions that do a hand-over and nothing else"),
        (
            "least_crowd",
            "a function that does such a release and nothing else, for each reader",
        ),
        ("least_renewal", "a function that renews one hold and nothing else"),
    ],
);

/// Over a connection of its own.
struct Floor {
    redis: MultiplexedConnection,
    library: &'static str,
    keys: [String; 3],
    number: u64,
}

impl Floor {
    async fn new(url: &str, (library, text, _): Library) -> Self {
        let mut redis = connection(url).await;
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg("REPLACE").arg(text);
        load.exec_async(&mut redis).await.expect("the functions compile");
        let keys = ["", ":q", ":l"].map(|suffix| format!("floor:{{instructions-floor}}{suffix}"));
        let floor = Self {
            redis,
            library,
            keys,
            number: 0,
        };
        floor.prepare("", "shared").await;
        floor
    }

    fn request(&self) -> String {
        format!("w0123456789abcde:{}", 1000 + self.number % 9000)
    }

    async fn function<T: FromRedisValue>(&self, name: &str, arguments: &[&str]) -> T {
        let mut call = Cmd::new();
        call.arg("FCALL").arg(format!("{}_{name}", self.library));
        call.arg(3).arg(&self.keys).arg("").arg(arguments);
        call.query_async(&mut self.redis.clone()).await.expect("a reply")
    }

    /// The lock is free, or this request holds it, alone (`sole`) or with others to come.
    async fn prepare(&self, holder: &str, how: &str) {
        let _: Value = self.function("prepare", &[holder, how, LEASE]).await;
    }

    async fn call(&self, name: &str, with_lease: bool) {
        let request = self.request();
        let arguments = [request.as_str(), LEASE];
        let reply: Value = self.function(name, &arguments[..1 + usize::from(with_lease)]).await;
        assert_ne!(reply, Value::Int(0), "{name} is for another case");
    }

    async fn calls(&self, n: usize, name: &str, with_lease: bool) {
        for _ in 0..n {
            self.call(name, with_lease).await;
        }
    }

    /// Readers wait.
    async fn crowd(&self) {
        let mut fill = Pipeline::new();
        for key in &self.keys[1..] {
            for reader in 0..READERS {
                let score = 1_760_400_000_000_000_u64 + reader as u64;
                fill.zadd(key, format!("r0123456789abcdf:{reader}"), score).ignore();
            }
        }
        fill.exec_async(&mut self.redis.clone()).await.expect("a reply");
    }
}

/// All floors of one round.
pub async fn measure(server: &mut Counted, env: &Env, rows: &mut Rows) {
    let url = server.server.url();
    let floor = Floor::new(&url, COMMANDS).await;
    let empty = server
        .each(env.times(1000), 1, async |n| floor.calls(n, "empty", true).await)
        .await;
    rows.add("floor_fcall", "an empty function with 3 KEYS and 3 ARGV", empty);
    for (name, key, what) in PRICES {
        let cost = server.each(env.times(50), 1, async |n| floor.calls(n, name, true).await);
        rows.add(key, what, (cost.await - empty) / 100.0);
    }

    // What each connection for commands does first.
    crate::lua::Lua::new(&url).await;
    let mut load = redis::cmd("FUNCTION");
    load.arg("LOAD").arg(scripts::library().1);
    let cost = server.each(env.times(50), 0, async |n| {
        for _ in 0..n {
            let refused = load.exec_async(&mut floor.redis.clone()).await;
            refused.expect_err("the server has the library");
        }
    });
    rows.add(
        "price_library",
        "FUNCTION LOAD of the library that is there",
        cost.await,
    );
    for library in [COMMANDS, LEAST] {
        cases(server, env, rows, library).await;
    }
    shared(server, env, rows).await;
}

/// The cases of `shared.lua`.
async fn shared(server: &mut Counted, env: &Env, rows: &mut Rows) {
    let url = server.server.url();
    let raw = Raw::new(connection(&url).await, Functions::Shared).await;
    let mut raw = raw.of("instructions-shared").await;
    let cost = server.each(env.times(400), 2, async |n| {
        for _ in 0..n {
            raw.cycle().await;
        }
    });
    rows.add(
        "shared_cycle",
        "functions that do a cycle, by lock.lua's own reading and writing of the state",
        cost.await,
    );
    let (heard, mut pushes) = mpsc::unbounded_channel();
    let mut subscription = listening(&url, move |push| drop(heard.send(push.kind))).await;
    let channel = Raw::holders_channel(Functions::Shared);
    subscription.subscribe(channel).await.expect("subscribed");
    // Of the subscription itself.
    pushes.recv().await.expect("a push");
    raw.name();
    raw.acquire().await;
    let cost = server.each(env.times(200), 2, async |n| {
        for _ in 0..n {
            raw.pass_on().await;
            pushes.recv().await.expect("a push");
        }
    });
    rows.add(
        "shared_hand_over",
        "functions that do a hand-over, by lock.lua's own reading and writing of the state",
        cost.await,
    );
    raw.clear().await;
}

/// The cases of a library.
async fn cases(server: &mut Counted, env: &Env, rows: &mut Rows, library: Library) {
    let url = server.server.url();
    let mut floor = Floor::new(&url, library).await;
    let [cycle, hand_over, crowd, renewal] = library.2;
    let cost = server.each(env.times(400), 2, async |n| {
        for _ in 0..n {
            floor.number += 1;
            floor.call("acquire", true).await;
            floor.call("release", false).await;
        }
    });
    rows.add(cycle.0, cycle.1, cost.await);
    floor.prepare(&floor.request(), "sole").await;
    let cost = server.each(env.times(400), 1, async |n| floor.calls(n, "renew", true).await);
    rows.add(renewal.0, renewal.1, cost.await);

    let (heard, mut pushes) = mpsc::unbounded_channel();
    let mut subscription = listening(&url, move |push| drop(heard.send(push.kind))).await;
    for client in ["e", "f"] {
        let channel = format!("floor:c:0123456789abcd{client}");
        subscription.subscribe(channel).await.expect("subscribed");
        // Of the subscription itself.
        pushes.recv().await.expect("a push");
    }
    floor.prepare(&floor.request(), "shared").await;
    let cost = server.each(env.times(200), 2, async |n| {
        for _ in 0..n {
            floor.number += 1;
            floor.call("queue", true).await;
            floor.number -= 1;
            floor.call("hand_over", false).await;
            floor.number += 1;
            pushes.recv().await.expect("a push");
        }
    });
    rows.add(hand_over.0, hand_over.1, cost.await);

    floor.prepare(&floor.request(), "shared").await;
    floor.crowd().await;
    let (cost, executed) = server
        .window(async || {
            floor.call("crowd", false).await;
            pushes.recv().await.expect("a push");
        })
        .await;
    assert_eq!(executed, 1);
    rows.add(crowd.0, crowd.1, cost / 1e3 / READERS as f64);
    floor.redis.del(&floor.keys).await.expect("a reply");
}

/// The goals of the server: figure, its name for people, goal.
const CASES: [(&str, &str, f64); 4] = [
    ("cycle", "acquire + release of a free lock", 95.0),
    ("hand_over", "acquire that queues + release that hands over", 155.0),
    ("crowd", "release that lets 1,000 readers in, each", 6.0),
    ("renewal", "renewal of one hold", f64::NAN),
];

/// A goal that leaves fewer steps of the Lua machine than this to a script leaves nothing to it: `begin()` alone takes more.
const STEPS: f64 = 70.0;

/// The section of the page. `None`: that was not measured.
pub fn section(number: impl Fn(&str) -> Option<f64>) -> Option<String> {
    let figure = |key: &str| number(&format!("instructions_{key}"));
    let step = figure("price_steps")? / 100.0;
    let mut text = "Thousands of user-space instructions of the server. *Commands alone* is a function that executes the \
        commands of that case on the same keys, with constants for what a script computes (`floor.lua`). *Least* does the \
        whole work of that case on the packed state, and can do no other case (`least.lua`). No script with these promises \
        can cost less, and one that has other cases costs more.\n\n\
        | case | fairlock | commands alone | least | fairlock / least | goal | |\n|---|--:|--:|--:|--:|--:|---|\n"
        .to_owned();
    let mut reasons = String::new();
    for (key, what, goal) in CASES {
        let ours = figure(key)?;
        let (commands, least) = (figure(&format!("floor_{key}"))?, figure(&format!("least_{key}"))?);
        let (goal_shown, met) = match ours <= goal {
            _ if goal.is_nan() => (String::new(), ""),
            true => (shown(goal), "met"),
            false => (shown(goal), "**missed**"),
        };
        let [ours_shown, commands, least_shown, ratio] = [ours, commands, least, ours / least].map(shown);
        writeln!(
            text,
            "| {what} | {ours_shown} | {commands} | {least_shown} | {ratio} | {goal_shown} | {met} |"
        )
        .expect("memory");
        if ours > goal {
            let steps = ((goal - least) / step).round();
            let shared = figure(&format!("shared_{key}")).filter(|shared| *shared > goal);
            let verdict = match (steps, shared) {
                (..0.0, _) => format!(
                    "the goal is out of reach: the least is {} above it",
                    shown(least - goal)
                ),
                (_, Some(shared)) => format!(
                    "the goal is out of reach of scripts that say nothing twice: functions that do this case alone, and \
                     read and write the state by the lines that all cases share (`shared.lua`), take {}, which is {} \
                     above it",
                    shown(shared),
                    shown(shared - goal)
                ),
                (steps, None) if steps < STEPS => format!(
                    "the goal is out of reach: it leaves {} steps of the Lua machine for all other cases",
                    shown(steps)
                ),
                (steps, None) => format!(
                    "the goal leaves {} steps of the Lua machine for all other cases",
                    shown(steps)
                ),
            };
            write!(
                reasons,
                "\n* **{what}**: {verdict}. fairlock takes {} more than the least.",
                shown(ours - least)
            )
            .expect("memory");
        }
    }
    Some(text + &reasons)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_judged_beside_its_floors() {
        let figures = |key: &str| match key.strip_prefix("instructions_")? {
            "price_steps" => Some(5.0),
            "cycle" => Some(110.0),
            "floor_cycle" => Some(65.0),
            "least_cycle" => Some(94.5),
            "hand_over" => Some(200.0),
            "floor_hand_over" => Some(120.0),
            "least_hand_over" => Some(170.0),
            _ => Some(5.0),
        };
        let text = section(figures).expect("all was measured");
        assert!(text.contains("| 110 | 65 | 94.5 | 1.16 | 95 | **missed** |"), "{text}");
        assert!(
            text.contains("it leaves 10 steps") && text.contains("takes 15.5 more"),
            "{text}"
        );
        assert!(
            text.contains("the least is 15 above it") && text.contains("takes 30 more"),
            "{text}"
        );
        let shared = section(|key| match key {
            "instructions_shared_cycle" => Some(105.0),
            key => figures(key),
        });
        let shared = shared.expect("all was measured");
        assert!(shared.contains("take 105, which is 10 above it"), "{shared}");
        let roomy = section(|key| {
            if key.ends_with("least_cycle") {
                Some(85.0)
            } else {
                figures(key)
            }
        });
        assert!(roomy.expect("all was measured").contains("the goal leaves 200 steps"));
        assert_eq!(section(|_| None), None);
    }
}
