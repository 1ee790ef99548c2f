//! States without what differs between two runs: names and times in their order only.

use super::{Cast, IS_OVER, LASTS, Op};
use crate::lua_world::Kept;
use crate::model::{BAND, BOUNDED, Lock};
use crate::record::Script;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

pub(super) fn shown(op: &Op) -> String {
    match op {
        Op::Call(script, args) => format!("{} {args:?}", script.name()),
        Op::ReleaseAll => "release of all that live".to_owned(),
        Op::RenewAll => "renew of all that live".to_owned(),
        Op::WaitMs(ms) => format!("{ms} ms later"),
    }
}

pub(super) enum Doing {
    Call(Script, Vec<String>),
    Wait(u64),
}

pub(super) fn concrete(cast: Cast, op: &Op, lock: &Lock) -> Option<Doing> {
    let lives = |request: &str| lock.deadline_ms(request).is_some();
    let alive = || cast.requests.iter().copied().filter(|request| lives(request));
    match op {
        Op::WaitMs(ms) => Some(Doing::Wait(*ms)),
        // One request that is unknown is like another.
        Op::Call(Script::Release | Script::Renew, args) if args.first().is_some_and(|request| !lives(request)) => {
            let unknown = cast.requests.iter().copied().find(|request| !lives(request));
            let Op::Call(script, _) = op else { return None };
            (unknown == args.first().map(String::as_str)).then(|| Doing::Call(*script, args.clone()))
        }
        Op::Call(Script::Acquire, args) => {
            let mut args = args.clone();
            match args[4].as_str() {
                LASTS => args[4] = format!("u{}", lock.token),
                IS_OVER => args[4] = format!("u{}", lock.first.saturating_sub(1)),
                _ => {}
            }
            Some(Doing::Call(Script::Acquire, args))
        }
        Op::Call(script, args) => Some(Doing::Call(*script, args.clone())),
        Op::ReleaseAll | Op::RenewAll if alive().nth(1).is_none() => None,
        Op::ReleaseAll => Some(Doing::Call(Script::Release, alive().map(str::to_owned).collect())),
        Op::RenewAll => {
            let pairs = alive().flat_map(|request| [request.to_owned(), cast.lease_ms.to_string()]);
            Some(Doing::Call(Script::Renew, pairs.collect()))
        }
    }
}

/// 128 bits of a state and of all that are the same but for the names of two requests that are alike.
pub(super) fn fingerprint(kept: &Kept, now_us: u64, alike: Option<[&str; 2]>) -> u128 {
    let texts = kept
        .words
        .each_ref()
        .map(|words| words.iter().map(|word| text_of(word)).collect::<Vec<_>>());
    let same = hashed(&normal(&texts, now_us));
    match alike.and_then(|alike| exchanged(&texts, alike)) {
        Some(texts) => same.min(hashed(&normal(&texts, now_us))),
        None => same,
    }
}

/// As it would be had each of the two requests the other's name. `None`: neither is there.
fn exchanged(texts: &[Vec<String>; 3], [one, other]: [&str; 2]) -> Option<[Vec<String>; 3]> {
    let mut words = texts.iter().flatten();
    if !words.any(|word| word.contains(one) || word.contains(other)) {
        return None;
    }
    let renamed = |word: &String| word.replace(one, "\0").replace(other, one).replace('\0', other);
    let [hash, queue, leases] = texts
        .each_ref()
        .map(|words| words.iter().map(renamed).collect::<Vec<_>>());
    // Of one score, a sorted set has its members in the order of their names. Scores are whole numbers.
    let sorted = |words: Vec<String>| {
        let mut pairs: Vec<_> = words
            .chunks_exact(2)
            .map(|pair| (pair[1].parse::<i64>(), pair))
            .collect();
        pairs.sort_by_key(|(score, pair)| (score.clone().unwrap_or_default(), pair[0].clone()));
        pairs.into_iter().flat_map(|(_, pair)| pair.to_vec()).collect()
    };
    Some([hash, sorted(queue), sorted(leases)])
}

/// What lies under the keys, as it would be had it come about now, and with the least numbers: see the head of this module.
fn normal(texts: &[Vec<String>; 3], now_us: u64) -> Vec<String> {
    let words = || texts.iter().flatten();
    let now_ms = (now_us / 1000) as i64;
    let numbers: Vec<i64> = words()
        .flat_map(|word| pieces(word))
        .filter_map(|piece| piece.ok())
        .collect();
    let past: BTreeSet<i64> = numbers.iter().copied().filter(|n| is_ms(*n) && *n <= now_ms).collect();
    let ranks: BTreeSet<i64> = numbers
        .iter()
        .filter(|n| !is_ms(**n))
        .map(|n| n.rem_euclid(BAND))
        .collect();
    let shown = |piece: Result<i64, &str>| match piece {
        Err(text) => text.to_owned(),
        Ok(ms) if is_ms(ms) && ms <= now_ms => format!("(past {})", past.range(ms..).count()),
        // Nobody looks at when the keys expire.
        Ok(ms) if is_ms(ms) && ms > now_ms + 10_000 => "(far)".to_owned(),
        Ok(ms) if is_ms(ms) => format!("(in {})", ms - now_ms),
        Ok(n) => format!(
            "(band {}, {})",
            n.div_euclid(BAND),
            ranks.range(n.rem_euclid(BAND)..).count()
        ),
    };
    // The order of a hash's fields is of no account.
    let [hash, queue, leases] = texts.each_ref().map(|words| -> Vec<String> {
        let shown = |word: &String| pieces(word).into_iter().map(shown).collect::<String>();
        let pairs = words
            .chunks(2)
            .map(|pair| pair.iter().map(shown).collect::<Vec<_>>().join(" = "));
        pairs.collect()
    });
    let mut all = hash;
    all.sort();
    all.push("queue".to_owned());
    all.extend(queue);
    all.push("leases".to_owned());
    all.extend(leases);
    all
}

/// The words of the packed state (see PROTOCOL.md) as text; any other word as it is.
fn text_of(word: &[u8]) -> String {
    const NUMBERS: usize = 63;
    if word.len() < NUMBERS || word[0] != 2 {
        return String::from_utf8_lossy(word).into_owned();
    }
    let bytes = word[..3].iter().map(|byte| u64::from(*byte));
    let counts = word[3..15]
        .chunks_exact(4)
        .map(|four| u64::from(u32::from_le_bytes(four.try_into().expect("four bytes"))));
    let numbers = word[15..NUMBERS]
        .chunks_exact(8)
        .map(|eight| f64::from_le_bytes(eight.try_into().expect("eight bytes")) as u64);
    let bounds = if word[1] == BOUNDED { 8 } else { 0 };
    let (bounds, holder) = word[NUMBERS..].split_at(bounds);
    let bounds = bounds
        .chunks_exact(4)
        .map(|four| u64::from(u32::from_le_bytes(four.try_into().expect("four bytes"))));
    let all = bytes.chain(counts).chain(numbers).chain(bounds).map(|n| n.to_string());
    let all = all.collect::<Vec<_>>().join(" ");
    format!("{all} {}", String::from_utf8_lossy(holder))
}

/// Times in ms have 13 digits here, tickets and tokens 16.
fn is_ms(n: i64) -> bool {
    (0..100_000_000_000_000).contains(&n)
}

/// A word as long numbers and what stands between them.
fn pieces(word: &str) -> Vec<Result<i64, &str>> {
    let mut pieces = Vec::new();
    let mut rest = word;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let length = rest[at..]
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len() - at);
        // A whole word may be a score below zero.
        let begin = if at == 1 && word.len() == rest.len() && rest.starts_with('-') {
            0
        } else {
            at
        };
        match rest[begin..at + length].parse() {
            Ok(n) if length >= 13 => {
                pieces.push(Err(&rest[..begin]));
                pieces.push(Ok(n));
            }
            _ => pieces.push(Err(&rest[..at + length])),
        }
        rest = &rest[at + length..];
    }
    pieces.push(Err(rest));
    pieces
}

fn hashed(state: &[String]) -> u128 {
    let half = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        state.hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(1) << 64 | half(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_US: u64 = 3_000_000_000_000_000;
    const ALIKE: [&str; 2] = ["w1:2:a", "w1:3:a"];

    /// A state in which this request of `a` holds and that one waits, with the deadlines of the two and of `r2:1:b` as a
    /// sorted set has them.
    fn state(holds: &str, waits: &str, leases: [(&str, u64); 3]) -> u128 {
        let words = |words: &[&str]| words.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
        let leases = leases.map(|(name, ms)| [name.to_owned(), (NOW_US / 1000 + ms).to_string()]);
        let leases: Vec<&str> = leases.iter().flatten().map(String::as_str).collect();
        let kept = Kept {
            words: [
                words(&["holder", holds, "q:a", waits]),
                words(&[waits, "3000000000000001"]),
                words(&leases),
            ],
            ..Kept::default()
        };
        fingerprint(&kept, NOW_US, Some(ALIKE))
    }

    #[test]
    fn states_are_one_if_only_two_requests_that_are_alike_are_exchanged() {
        let [two, three] = ALIKE;
        let both = [(two, 1), (three, 1), ("r2:1:b", 2)];
        assert_eq!(state(two, three, both), state(three, two, both));
        let one_lives_longer = |long| {
            let short = if long == two { three } else { two };
            [("r2:1:b", 1), (short, 1), (long, 2)]
        };
        assert_eq!(
            state(two, three, one_lives_longer(two)),
            state(three, two, one_lives_longer(three))
        );
        assert_ne!(
            state(two, three, one_lives_longer(two)),
            state(two, three, one_lives_longer(three)),
            "the holder lives longer, or the waiter"
        );
        assert_ne!(state(two, three, both), state(two, "r2:1:b", both));
    }
}
