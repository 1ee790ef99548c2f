//! Histories, good and bad, and what the checker says of them.

mod histories;
mod intervals;
mod invariants;

use super::*;
use crate::record::{Note, What};

/// A line is `ms script arguments => reply | notes`. Arguments of acquire after its request: `lease=100`, `try`,
/// `policy=`, `ticket=`. Notes are divided by commas. In the reply of release, 2 stands for the token of the request's
/// grant. Further lines: `lost`, `damaged`, `finish`.
fn verdict(history: &str) -> Result<(), Violation> {
    let mut checker = Checker::new();
    let mut tokens = HashMap::new();
    let mut told = |mut record: Record| {
        if record.script == Script::Release {
            for (request, answer) in record.args.iter().zip(&mut record.reply[1..]) {
                if let (2, Some(token)) = (*answer, tokens.get(request)) {
                    *answer = *token;
                }
            }
        }
        for note in record.notes.iter().filter(|note| note.what == What::Granted) {
            tokens.insert(note.request.clone(), note.token.cast_signed());
        }
        record
    };
    for line in history.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match line {
            "lost" => checker.state_lost(None),
            "damaged" => checker.damaged("a"),
            "finish" => checker.finish()?,
            line => checker.check(&told(record(line)))?,
        }
    }
    Ok(())
}

fn record(line: &str) -> Record {
    let (call, outcome) = line.split_once("=>").expect("a reply");
    let (reply, notes) = outcome.split_once('|').unwrap_or((outcome, ""));
    let mut words = call.split_whitespace();
    let ms: u64 = words.next().and_then(|ms| ms.parse().ok()).expect("a time");
    let script = words.next().and_then(Script::of_name).expect("a script");
    let mut args: Vec<String> = words.map(str::to_owned).collect();
    if script == Script::Acquire {
        let option = |name: &str| args.iter().find_map(|arg| arg.strip_prefix(name)).unwrap_or_default();
        let lease = if option("lease=").is_empty() {
            "100"
        } else {
            option("lease=")
        };
        let when = if args.iter().any(|arg| arg == "try") {
            "try"
        } else {
            "queue"
        };
        args = [args[0].as_str(), lease, when, option("policy="), option("ticket=")]
            .map(str::to_owned)
            .to_vec();
    }
    let note = |text: &str| {
        let words: Vec<_> = text.split_whitespace().collect();
        Note {
            what: What::of_name(words[0]).expect("a kind"),
            request: words[1].to_owned(),
            token: words.get(2).map_or(0, |token| token.parse().expect("a token")),
        }
    };
    let mut reply: Vec<i64> = reply.split_whitespace().map(|n| n.parse().expect("a number")).collect();
    // A waiter is told its place too, which the checker does not look at.
    if script == Script::Acquire && reply.len() == 4 && reply[0] == 1 {
        reply.push(0);
    }
    Record {
        lock: "a".to_owned(),
        at_us: ms * 1000,
        script,
        args,
        reply,
        notes: notes
            .split(',')
            .filter(|text| !text.trim().is_empty())
            .map(note)
            .collect(),
    }
}

fn good(history: &str) {
    if let Err(violation) = verdict(history) {
        panic!("{violation}");
    }
}

fn bad(invariant: u8, history: &str) {
    match verdict(history) {
        Ok(()) => panic!("passed, but violates {invariant}: {history}"),
        Err(violation) => assert_eq!(violation.invariant, invariant, "{violation}"),
    }
}
