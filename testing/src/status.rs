//! The reply of the script `status`, from the model.

use crate::model::Lock;
use redis::Value;
use std::iter::once;

fn text(of: impl ToString) -> Value {
    Value::BulkString(of.to_string().into_bytes())
}

/// The reply of status. `args`: from the first rank on.
pub fn status(lock: &Lock, args: &[&str], now_us: u64) -> Value {
    let view = lock.view();
    let number = |at: usize| args.get(at).and_then(|arg| arg.parse().ok()).unwrap_or(0);
    let (from, most_waiters, most_holders): (usize, usize, usize) = (number(0), number(1), number(2));
    let holders = view.holders.iter().take(most_holders);
    let holders = holders
        .flat_map(|(request, (deadline, reads, token))| [text(request), text(deadline), text(reads), text(token)]);
    let waiters = view.waiters.iter().skip(from).take(most_waiters);
    let waiters = waiters.flat_map(|(request, score, deadline)| [text(request), text(score), text(deadline)]);
    let packed = &view.packed;
    let numbers = [
        packed.seq,
        packed.token,
        packed.first,
        packed.near_ms,
        packed.keep_ms,
        packed.cap_ms,
        packed.reads,
        packed.writes,
        packed.waiting,
        u64::from(packed.sole),
        // A call stopped at its limit, and the next one goes on.
        u64::from(lock.next_in().is_some()),
        u64::from(packed.up),
    ];
    let state = numbers.into_iter().map(text);
    let state = state.chain([text(&packed.holder), text(packed.limit), text(packed.used)]);
    let place = args.get(3).map(|request| match lock.place(request) {
        Some((rank, score)) => Value::Array(vec![text(rank), text(score)]),
        None => Value::Array(Vec::new()),
    });
    let heads = [
        text(now_us),
        text(&view.mode),
        text(&view.policy),
        text(view.writes),
        text(view.holders.len()),
        text(view.waiters.len()),
        Value::Array(holders.collect()),
        Value::Array(waiters.collect()),
    ];
    let state = once(Value::Array(state.collect()));
    Value::Array(heads.into_iter().chain(state).chain(place).collect())
}
