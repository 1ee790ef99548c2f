//! The floors of `instructions`: for each figure of the server a function that executes the commands of that case, with the
//! same keys and arguments, and nothing else; and what each command costs. `floor.lua` has the functions.

use crate::env::{Env, connection, listening};
use crate::instructions::{Counted, READERS, Rows};
use crate::report::shown;
use fairlock_support::scripts;
use redis::aio::MultiplexedConnection;
use redis::{AsyncTypedCommands, Cmd, Pipeline, Value};
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

/// Over a connection of its own.
struct Floor {
    redis: MultiplexedConnection,
    keys: [String; 3],
    number: u64,
}

impl Floor {
    async fn new(url: &str) -> Self {
        let mut redis = connection(url).await;
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg("REPLACE").arg(include_str!("floor.lua"));
        load.exec_async(&mut redis).await.expect("the functions compile");
        let keys = ["", ":q", ":l"].map(|suffix| format!("floor:{{instructions-floor}}{suffix}"));
        let mut floor = Self { redis, keys, number: 0 };
        floor.redis.del(&floor.keys).await.expect("a reply");
        // As a client's first cycle leaves it.
        let fields = [("s", "s"), ("policy", "2"), ("seq", "0")];
        floor
            .redis
            .hset_multiple(&floor.keys[0], &fields)
            .await
            .expect("a reply");
        floor.call("release", false).await;
        floor
    }

    fn request(number: u64) -> String {
        format!("w0123456789abcde:{}", 1000 + number % 9000)
    }

    async fn call(&mut self, name: &str, with_lease: bool) {
        let mut call = Cmd::new();
        call.arg("FCALL").arg(format!("floor_{name}")).arg(3).arg(&self.keys);
        call.arg("").arg(Self::request(self.number));
        if with_lease {
            call.arg(LEASE);
        }
        let _: Value = call.query_async(&mut self.redis).await.expect("a reply");
    }

    async fn calls(&mut self, n: usize, name: &str, with_lease: bool) {
        for _ in 0..n {
            self.call(name, with_lease).await;
        }
    }

    /// Readers wait.
    async fn crowd(&mut self) {
        let mut fill = Pipeline::new();
        for key in &self.keys[1..] {
            for reader in 0..READERS {
                let score = 1_760_400_000_000_000_u64 + reader as u64;
                fill.zadd(key, format!("r0123456789abcdf:{reader}"), score).ignore();
            }
        }
        fill.exec_async(&mut self.redis).await.expect("a reply");
    }
}

/// All floors of one round.
pub async fn measure(server: &mut Counted, env: &Env, rows: &mut Rows) {
    let url = server.server.url();
    let mut floor = Floor::new(&url).await;
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
            let refused = load.exec_async(&mut floor.redis).await;
            refused.expect_err("the server has the library");
        }
    });
    rows.add(
        "price_library",
        "FUNCTION LOAD of the library that is there",
        cost.await,
    );

    let cost = server.each(env.times(400), 2, async |n| {
        for _ in 0..n {
            floor.number += 1;
            floor.call("acquire", true).await;
            floor.call("release", false).await;
        }
    });
    rows.add("floor_cycle", "the commands of a cycle alone", cost.await);
    let cost = server.each(env.times(400), 1, async |n| floor.calls(n, "renew", true).await);
    rows.add(
        "floor_renewal",
        "the commands of a renewal of one hold alone",
        cost.await,
    );

    let (heard, mut pushes) = mpsc::unbounded_channel();
    let mut subscription = listening(&url, move |push| drop(heard.send(push.kind))).await;
    subscription
        .subscribe("floor:c:0123456789abcdf")
        .await
        .expect("subscribed");
    // Of the subscription itself.
    pushes.recv().await.expect("a push");
    floor.number = 0;
    floor.call("queue", true).await;
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
    rows.add("floor_hand_over", "the commands of a hand-over alone", cost.await);

    floor.crowd().await;
    let (cost, executed) = server
        .window(async || {
            floor.call("crowd", false).await;
            pushes.recv().await.expect("a push");
        })
        .await;
    assert_eq!(executed, 1);
    let each = cost / 1e3 / READERS as f64;
    rows.add(
        "floor_crowd",
        "the commands of such a release alone, for each reader",
        each,
    );
    floor.redis.del(&floor.keys).await.expect("a reply");
}

/// The goals of the server: figure, its name for people, goal, calls of scripts.
const CASES: [(&str, &str, f64, f64); 4] = [
    ("cycle", "acquire + release of a free lock", 95.0, 2.0),
    ("hand_over", "acquire that queues + release that hands over", 155.0, 2.0),
    ("crowd", "release that lets 1,000 readers in, each", 6.0, 0.0),
    ("renewal", "renewal of one hold", f64::NAN, 1.0),
];

/// The section of the page. `None`: that was not measured.
pub fn section(number: impl Fn(&str) -> Option<f64>) -> Option<String> {
    let figure = |key: &str| number(&format!("instructions_{key}"));
    let packing = figure("price_pack")? + figure("price_unpack")?;
    let step = figure("price_steps")? / 100.0;
    let mut text =
        "Thousands of user-space instructions of the server. *Commands alone* is a function that executes the \
        commands of that case on the same keys, with the same arguments and with constants for what a script computes: \
        no script that uses these commands can cost less (`floor.lua`). *Packed* adds that each script \
        unpacks and packs the state. The rest is for all decisions.\n\n\
        | case | fairlock | commands alone | packed | goal | |\n|---|--:|--:|--:|--:|---|\n"
            .to_owned();
    let mut reasons = String::new();
    for (key, what, goal, calls) in CASES {
        let (ours, floor) = (figure(key)?, figure(&format!("floor_{key}"))?);
        let packed = floor + calls * packing;
        let (goal_shown, met) = match ours <= goal {
            _ if goal.is_nan() => (String::new(), ""),
            true => (shown(goal), "met"),
            false => (shown(goal), "**missed**"),
        };
        let (ours_shown, floor_shown, packed_shown) = (shown(ours), shown(floor), shown(packed));
        writeln!(
            text,
            "| {what} | {ours_shown} | {floor_shown} | {packed_shown} | {goal_shown} | {met} |"
        )
        .expect("memory");
        if ours > goal {
            write!(
                reasons,
                "\n* **{what}**: beyond the packed commands the goal leaves {} for the decisions of {calls} scripts: {} steps of \
                 the Lua machine, which take {} each, without one call of a string function. fairlock takes {}.",
                shown(goal - packed),
                shown(((goal - packed) / step).round()),
                shown(step),
                shown(ours - packed),
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
    fn a_goal_is_judged_beside_its_floor() {
        let figures = |key: &str| match key.strip_prefix("instructions_")? {
            "price_pack" => Some(4.0),
            "price_unpack" => Some(3.0),
            "price_steps" => Some(5.0),
            "cycle" => Some(110.0),
            "floor_cycle" => Some(65.0),
            "hand_over" => Some(150.0),
            "floor_hand_over" => Some(120.0),
            _ => Some(5.0),
        };
        let text = section(figures).expect("all was measured");
        assert!(text.contains("| 110 | 65 | 79 | 95 | **missed** |"), "{text}");
        assert!(text.contains("| 150 | 120 | 134 | 155 | met |"), "{text}");
        assert!(text.contains("leaves 16 for") && text.contains("320 steps"), "{text}");
        assert!(text.contains("fairlock takes 31"), "{text}");
        assert_eq!(section(|_| None), None);
    }
}
