//! Random command lines and URLs: none panics, and no text about a URL shows its secret.
//!
//! `FAIRLOCK_EXECUTIONS` is how many of each, `FAIRLOCK_SEED` repeats them: `FAIRLOCK_EXECUTIONS=100000000 cargo test
//! --release -p fairlock-cli --bin fairlock fuzz:: -- --nocapture`.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use crate::args::Cli;
use crate::manual;
use crate::url::Place;
use clap::FromArgMatches;
use fairlock_support::random::{self, Rng};
use std::time::Instant;

/// No other part of a URL contains it.
const SECRET: &str = "s3cr3tZQ";

fn executions(default: u64) -> u64 {
    std::env::var("FAIRLOCK_EXECUTIONS").map_or(default, |n| n.parse().expect("FAIRLOCK_EXECUTIONS is a number"))
}

fn noise(random: &mut Rng) -> String {
    const CHARS: [char; 26] = [
        'a',
        'Z',
        '0',
        '9',
        ':',
        '/',
        '@',
        '?',
        '#',
        '&',
        '=',
        '%',
        '+',
        ',',
        '.',
        '-',
        '_',
        '[',
        ']',
        ' ',
        '\0',
        '\n',
        '"',
        'ä',
        '\u{202e}',
        '\u{10ffff}',
    ];
    let len = random.usize(..12);
    (0..len).map(|_| CHARS[random.usize(..CHARS.len())]).collect()
}

fn url(random: &mut Rng) -> String {
    const PARTS: [&str; 34] = [
        "redis",
        "rediss",
        "valkey",
        "valkeys",
        "unix",
        "redis+cluster",
        "redis+sentinel",
        "rediss+sentinel",
        "REDIS",
        "redis+unix",
        "://",
        "://",
        "://",
        ":",
        "/",
        "//",
        "@",
        ",",
        "?",
        "&",
        "=",
        "#",
        "host",
        "127.0.0.1:6379",
        "[::1]:6379",
        "mine/0",
        "/3",
        "user:",
        "sentinel_password=",
        "sentinel_username=",
        "password=",
        "%40",
        "%",
        "99999",
    ];
    let mut url = String::new();
    if random.bool() {
        url.push_str(PARTS[random.usize(..10)]);
        url.push_str("://");
        if random.bool() {
            url.push_str(&format!("user:{SECRET}@"));
        }
    }
    for _ in 0..random.usize(..9) {
        match random.usize(..12) {
            0 => url.push_str(&noise(random)),
            // A password with a `#` that is not escaped, and a secret in an option.
            1 => url.push_str(&format!("#{SECRET}@")),
            2 => url.push_str(&format!("?sentinel_password={SECRET}")),
            _ => url.push_str(PARTS[random.usize(..PARTS.len())]),
        }
    }
    url
}

#[test]
fn random_urls_are_read_or_refused_and_what_is_shown_of_them_has_no_secret() {
    let (mut random, n) = (random::seeded(), executions(30_000));
    let (begun, mut read) = (Instant::now(), 0_u64);
    for _ in 0..n {
        let url = url(&mut random);
        let shown = match Place::read(&url) {
            Ok(place) => {
                read += 1;
                assert!(!place.hosts.is_empty(), "{url:?}");
                place.shown
            }
            Err(error) => error.to_string(),
        };
        assert!(!shown.contains(SECRET), "{url:?} is shown as {shown:?}");
    }
    println!("{n} URLs, {read} of them read, in {:?}", begun.elapsed());
    assert!(read > n / 100 && read < n, "{read} of {n}");
}

/// The words of all subcommands and options, and what may follow them.
fn words() -> Vec<String> {
    let command = manual::command();
    let mut words: Vec<String> = [
        "--",
        "-",
        "",
        "1s",
        "10m",
        "-1",
        "0",
        "99999999999999999999",
        "1e9s",
        "NAME",
        "=",
        "%{x}",
    ]
    .map(str::to_owned)
    .into();
    for command in std::iter::once(&command).chain(command.get_subcommands()) {
        words.push(command.get_name().to_owned());
        for argument in command.get_arguments() {
            words.extend(argument.get_long().map(|long| format!("--{long}")));
            words.extend(argument.get_short().map(|short| format!("-{short}")));
        }
    }
    words
}

#[test]
fn random_command_lines_are_parsed_or_refused() {
    let (mut random, n) = (random::seeded(), executions(1_500));
    let (begun, words, mut parsed) = (Instant::now(), words(), 0_u64);
    let mut command = manual::command();
    command.build();
    for _ in 0..n {
        let mut line = vec!["fairlock".to_owned()];
        for _ in 0..random.usize(..7) {
            line.push(match random.usize(..6) {
                0 => noise(&mut random),
                1 => format!("{}={}", words[random.usize(..words.len())], noise(&mut random)),
                _ => words[random.usize(..words.len())].clone(),
            });
        }
        let matches = command.try_get_matches_from_mut(&line);
        match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
            Ok(_) => parsed += 1,
            Err(error) => assert!(!error.to_string().is_empty(), "{line:?}"),
        }
    }
    println!("{n} command lines, {parsed} of them parsed, in {:?}", begun.elapsed());
    assert!(parsed > 0 && parsed < n, "{parsed} of {n}");
}
