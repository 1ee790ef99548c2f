//! A number that is read, thought about and written back, kept where the lock cannot protect it.
//!
//! Its users go on after they have lost the lock, on purpose: they are stopped, or sleep, between reading and writing.
//! With the fence no update may be lost. Without it some must be, or this check is blind.

use super::task::Task;
use fairlock_support::random::Rng;
use redis::aio::MultiplexedConnection;
use redis::{RedisError, Script};
use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// The fenced one and the control.
pub const REGISTERS: [&str; 2] = ["fenced", "unfenced"];
pub const LOCKS: [&str; 2] = ["register-fenced", "register-unfenced"];

/// Reading shows the token too: who read before a later holder did, and writes after that, would otherwise be let in.
/// KEYS: the register. ARGV: 1 token, 2 the new value or '' to read, 3 '1': with the fence.
/// Returns the value, or -1: refused.
static STEP: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local greatest = tonumber(redis.call('HGET', KEYS[1], 'greatest') or 0)
         if ARGV[3] == '1' and tonumber(ARGV[1]) < greatest then
           return -1
         end
         redis.call('HSET', KEYS[1], 'greatest', ARGV[1])
         if ARGV[2] ~= '' then
           redis.call('HSET', KEYS[1], 'value', ARGV[2])
           redis.call('HINCRBY', KEYS[1], 'writes', 1)
         end
         return tonumber(redis.call('HGET', KEYS[1], 'value') or 0)",
    )
});

pub(super) async fn step(
    store: &mut MultiplexedConnection,
    which: usize,
    token: u64,
    value: &str,
) -> Result<i64, RedisError> {
    let fence = if which == 0 { "1" } else { "" };
    let mut call = STEP.prepare_invoke();
    call.key(REGISTERS[which]).arg(token).arg(value).arg(fence);
    call.invoke_async(store).await
}

/// Increments, until it is told to stop.
pub async fn rounds(mut task: Task, mut store: MultiplexedConnection) {
    let which = task.number % 2;
    while !task.is_stopped() {
        // Renewals do not stop while a task sleeps: max_hold ends the hold under it.
        let max_hold = Duration::from_millis(task.random.u64(20..=60));
        let acquire = task.client.rw_lock(LOCKS[which]).write().max_hold(max_hold);
        let guard = match task.enter(acquire).await {
            Ok(guard) => guard,
            Err(error) => {
                task.failed(&error);
                sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        let token = guard.fencing_token().get();
        let mut hold = task.hold(LOCKS[which], &guard);
        let incremented: Result<Option<i64>, RedisError> = async {
            let value = step(&mut store, which, token, "").await?;
            if value < 0 {
                return Ok(None);
            }
            let pause = pause(&mut task.random);
            let begun = Instant::now();
            hold.stay(&guard, pause).await;
            sleep(pause.saturating_sub(begun.elapsed())).await;
            let written = step(&mut store, which, token, &(value + 1).to_string()).await?;
            Ok((written >= 0).then_some(written))
        }
        .await;
        drop(hold);
        match incremented {
            Ok(written) => task.reporter.wrote(REGISTERS[which], written.is_some()),
            Err(error) => task.reporter.wrong(format!("the register's store failed: {error}")),
        }
        // Mostly lost by now, or not: neither matters to the register.
        if let Err(error) = guard.release().await {
            task.failed(&error);
        }
    }
}

/// Mostly short, sometimes past the end of the hold.
pub(super) fn pause(random: &mut Rng) -> Duration {
    match random.u64(..10) {
        0 => Duration::from_millis(random.u64(60..=200)),
        _ => Duration::from_micros(random.u64(..3000)),
    }
}

/// What a register came to in the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub value: u64,
    pub writes: u64,
}

impl Outcome {
    pub fn lost(self) -> u64 {
        self.writes.saturating_sub(self.value)
    }
}

pub async fn outcomes(store: &mut MultiplexedConnection) -> Result<[Outcome; 2], RedisError> {
    let mut outcomes = [Outcome::default(); 2];
    for (register, outcome) in REGISTERS.iter().zip(&mut outcomes) {
        let mut get = redis::cmd("HMGET");
        get.arg(register).arg("value").arg("writes");
        let (value, writes): (Option<u64>, Option<u64>) = get.query_async(store).await?;
        *outcome = Outcome {
            value: value.unwrap_or(0),
            writes: writes.unwrap_or(0),
        };
    }
    Ok(outcomes)
}

/// What is wrong with them. `reported`: by register, the writes that workers said were confirmed.
pub fn judge(outcomes: [Outcome; 2], reported: &HashMap<String, (u64, u64)>, wrong: &mut impl FnMut(String)) {
    let [fenced, unfenced] = outcomes;
    if fenced.lost() > 0 || fenced.value > fenced.writes {
        wrong(format!("the fence let a stale write through: {fenced:?}"));
    }
    if unfenced.lost() == 0 {
        wrong(format!(
            "the register without a fence lost nothing, so the fence was not tested: {unfenced:?}"
        ));
    }
    for (register, outcome) in REGISTERS.iter().zip(outcomes) {
        let confirmed = reported.get(*register).map_or(0, |(confirmed, _)| *confirmed);
        if confirmed > outcome.writes || outcome.writes == 0 {
            wrong(format!(
                "{register}: {confirmed} writes were confirmed, the register had {outcome:?}"
            ));
        }
    }
}
