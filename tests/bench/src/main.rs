//! `bench`: what fairlock costs, as ratios measured in one run beside the least that Redis can do and beside other
//! locks. Each row of the table is a module of its own; both sides of a ratio take turns in many short slices, so that a
//! machine that speeds up or slows down does so for both.

mod answers;
mod bare;
mod charts;
mod check;
mod clock;
mod contend;
mod cores;
mod counter;
mod crowd;
mod env;
mod handover;
mod hot;
mod instructions;
mod instructions_client;
mod instructions_floor;
mod kinds;
mod languages;
mod least_client;
mod lua;
mod masters;
mod memory;
mod missed;
mod mixes;
mod monitor;
mod names;
mod p1;
mod p10;
mod p2;
mod p3;
mod p4;
mod p5;
mod p6;
mod p7;
mod p8;
mod p9;
mod page;
mod peers;
mod picture;
mod quorum;
mod quorum_contest;
mod quorum_ring;
mod raw;
mod report;
mod ring;
mod runs;
mod svg;
mod worker;

use clap::{Args, Parser, Subcommand};
use cores::Cores;
use env::{Env, Machine};
use report::Report;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser, Debug)]
#[command(
    name = "bench",
    about = "Measures what fairlock costs, beside floors and beside other locks"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Measures the rows, prints a table and writes bench.json
    Run(Run),
    /// Compares the rows that are quick to measure with the ratios kept in the repository
    Check(check::Args),
    /// Writes the page of results and its pictures
    Page(page::Args),
    /// Draws who waits how long for one lock, under a lock that polls and under fairlock: the README's picture
    Picture(picture::Args),
    /// A process that a row starts: it talks over stdin and stdout
    #[command(hide = true)]
    Worker(worker::Args),
}

/// Which rows to measure, and how.
#[derive(Args, Debug)]
struct Run {
    /// The rows to measure, such as `p1 p3`: all but `peers` if none are given. The file keeps what it has of the others.
    /// `peers` builds drivers in Go, Java and Node.js, which takes minutes and a network the first time
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(ROWS))]
    rows: Vec<String>,
    /// Rounds of each row: its number is their median [default: 9, or 3 with --quick]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: Option<u64>,
    /// Fewer and shorter rounds: under a minute, for a look
    #[arg(long)]
    quick: bool,
    /// The server's program
    #[arg(long, default_value = "redis-server")]
    server: String,
    /// Where the numbers go
    #[arg(long, default_value = "target/bench.json")]
    json: PathBuf,
}

/// The rows in their order.
const ROWS: [&str; 17] = [
    "p1",
    "p2",
    "p3",
    "p4",
    "p5",
    "p6",
    "p7",
    "p8",
    "p9",
    "p10",
    "mix",
    "runs",
    "kinds",
    "masters",
    "quorum",
    "instructions",
    "peers",
];

/// Measured only when it is asked for: it needs the toolchains of other languages.
const ON_REQUEST: &str = "peers";

/// Rows of several servers, and of programs with many threads.
const ON_ANY_CORE: [&str; 3] = ["masters", "quorum", "peers"];

async fn measure(row: &str, env: &Env, retention: &mut Option<p9::Retention>, report: &mut Report) {
    match row {
        "p1" => p1::run(env, report).await,
        "p2" => p2::run(env, report).await,
        "p3" => p3::run(env, report).await,
        "p4" => p4::run(env, report).await,
        "p5" => p5::run(env, report).await,
        "p6" => p6::run(env, report).await,
        "p7" => p7::run(env, report).await,
        "p8" => p8::run(env, report).await,
        "p9" => p9::run(env, retention.take().expect("begun"), report).await,
        "p10" => p10::run(env, report).await,
        "mix" => mixes::run(env, report).await,
        "runs" => runs::run(env, report).await,
        "kinds" => kinds::run(env, report).await,
        "masters" => masters::run(env, report).await,
        "quorum" => quorum::run(env, report).await,
        "instructions" => instructions::run(env, report).await,
        "peers" => languages::run(env, report).await,
        _ => unreachable!("the names of the rows are checked"),
    }
}

/// One thread in each process: where there are two cores, the server has one of them. With more threads the numbers would be
/// about which of them the runtime wakes.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(run) => {
            let json = run.json.clone();
            let report = measured(run).await;
            report.save(&json).unwrap_or_else(|error| {
                eprintln!("bench: cannot write {}: {error}", json.display());
                std::process::exit(1);
            });
            print!("{}", report.table());
            if let Some(tables) = languages::table::tables(&report.json()) {
                print!("\n{tables}");
            }
        }
        Command::Check(args) => return check::run(args).await,
        Command::Page(args) => return said(page::run(&args)),
        Command::Picture(args) => return said(picture::run(&args).await),
        Command::Worker(args) => worker::run(args).await,
    }
    ExitCode::SUCCESS
}

fn said(result: Result<String, String>) -> ExitCode {
    match result {
        Ok(text) => println!("{text}"),
        Err(error) => {
            eprintln!("bench: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

impl Run {
    /// A quick look at some rows, which writes no file.
    fn quick(rows: &[&str], server: &str) -> Self {
        Self {
            rows: rows.iter().map(|row| (*row).to_owned()).collect(),
            rounds: None,
            quick: true,
            server: server.to_owned(),
            json: PathBuf::new(),
        }
    }
}

/// Measures what was asked for.
async fn measured(run: Run) -> Report {
    let rounds = run
        .rounds
        .map_or(if run.quick { 3 } else { 9 }, |rounds| rounds as usize);
    let env = Env::start(&run.server, rounds, run.quick).await;
    let before = Machine::look(&env).await;
    eprintln!("{}", before.summary());
    let mut report = Report::new(before);
    let wanted = |row: &str| match run.rows.as_slice() {
        [] => row != ON_REQUEST,
        rows => rows.iter().any(|asked| asked == row),
    };
    // What p9 waits for begins now, a minute before it is looked at.
    let mut retention = match wanted("p9") {
        true => Some(p9::Retention::begin(&env).await),
        false => None,
    };
    for row in ROWS {
        if wanted(row) {
            report.begin(row);
            env.place(if ON_ANY_CORE.contains(&row) {
                Cores::Any
            } else {
                Cores::Apart
            });
            measure(row, &env, &mut retention, &mut report).await;
        }
    }
    report.end();
    report
}
