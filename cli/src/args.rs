//! What can be written on the command line.

use crate::server::ServerArgs;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use fairlock::Policy;
#[cfg(unix)]
use std::ffi::OsString;
use std::time::Duration;

/// Run commands under fair locks in Redis or Valkey, and look into these locks.
///
/// A lock has a name, readers that share it and writers that have it alone. Who asks first enters first. Every hold and
/// every place in the queue has a lease that is renewed in the background, so what a dead process held is free again
/// when its lease has run out. The locks are those of the Rust crate fairlock: services and this command use the same
/// ones.
#[derive(Debug, Parser)]
#[command(name = "fairlock", version, max_term_width = 100, disable_help_subcommand = true)]
#[command(override_usage = "fairlock [OPTIONS] COMMAND")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command under a lock
    ///
    /// Waits for the lock, runs COMMAND, releases the lock when COMMAND ends, and exits with its status. COMMAND finds
    /// the lock's fencing token in FAIRLOCK_TOKEN and the lock's name in FAIRLOCK_NAME: give the token to whatever the
    /// lock protects, and let that refuse a smaller token than the greatest it has seen.
    ///
    /// INT, TERM, HUP, QUIT, USR1 and USR2 are passed on to COMMAND; while fairlock waits for the lock they end it, and
    /// its place in the queue is free at once. When the lock is lost (an operator evicted its owner, the server was out
    /// of reach for a lease, --max-hold is over) COMMAND gets TERM, and KILL after the grace: others may be inside
    /// already.
    ///
    /// Without a terminal COMMAND leads a process group of its own, and signals go to the group. With one it stays in
    /// the terminal's group, so that keys such as Ctrl-C and Ctrl-Z reach it from the terminal, and other signals go to
    /// COMMAND alone. In the terminal's foreground INT and QUIT count as keys: from elsewhere, as by kill(1), they are
    /// not passed on; TERM is. On Linux COMMAND is killed when fairlock is killed (not if it is a set-user-ID program);
    /// its own children are not. Processes that COMMAND leaves in the background are not waited for.
    #[cfg(unix)]
    Run(RunArgs),

    /// List the locks that are held or waited for
    ///
    /// Goes through all keys of the server's database in small steps (SCAN, which an ACL user must be allowed, as for top
    /// and blockers) and looks at each lock that it finds. The ones with the longest queues come first.
    Ls(LsArgs),

    /// Show who holds a lock and who waits for it, in order
    Show(ShowArgs),

    /// Print what happens to locks, as it happens
    ///
    /// Runs until it is interrupted. While it runs, the users of the locks publish their events; nothing of it is kept,
    /// and what happened before is not shown.
    Watch(WatchArgs),

    /// Show the busiest locks, live
    ///
    /// The lock with the longest queue comes first; below is who holds the selected lock and who waits for it. A queue
    /// is drawn from its head: W waits to write, R to read, U reads and waits to write. Keys: up and down (or k and j)
    /// select a lock, space pauses, q ends.
    Top(TopArgs),

    /// Show what an owner waits for and who stands before it
    ///
    /// For each lock that it waits for: who holds it and who is ahead in the queue, with process, host and label. If a
    /// holder waits for another lock itself, that lock follows, and so on: so the owner to blame is in the output.
    Blockers(BlockersArgs),

    /// Throw an owner out of a lock: an operator's last resort
    ///
    /// Whatever OWNER holds of the lock and waits for is taken away, and whoever is next enters at once. OWNER learns
    /// it a moment later, or if it is frozen, much later: until then it believes that it holds the lock. Only fencing
    /// tokens keep the two apart. End the process first if you can.
    Evict(EvictArgs),

    /// Check whether a server is fit for locks
    ///
    /// Looks at the server's version, role, memory policy, persistence and clock, measures the latency, tries every
    /// right that the locks' users need on a lock of its own, which it removes again, and says what to do about each
    /// finding.
    Doctor(OutputArgs),

    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },

    /// Print a man page
    ///
    /// For instance: fairlock man run | man -l -
    Man {
        /// The command that the page is about; none: the page about fairlock itself
        page: Option<String>,
    },
}

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct OutputArgs {
    /// Print one JSON document (watch: one JSON object per line)
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(unix)]
#[derive(Args, Debug)]
#[command(override_usage = "fairlock run [OPTIONS] NAME [--] COMMAND...")]
pub(crate) struct RunArgs {
    /// The lock's name
    pub(crate) name: String,
    /// Share the lock with other readers
    #[arg(long)]
    pub(crate) read: bool,
    /// Wait at most so long [default: without limit]
    #[arg(long, short = 'w', value_name = "TIME", value_parser = duration, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,
    /// Do not wait at all
    #[arg(long, short = 'n')]
    pub(crate) no_wait: bool,
    /// How long others wait if this process dies, and how long it may be cut off from the server without losing the
    /// lock
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    pub(crate) lease: Duration,
    /// Hold the lock at most so long, then end COMMAND [default: without limit]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) max_hold: Option<Duration>,
    /// How long COMMAND has between TERM and KILL when the lock is lost
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "5s")]
    pub(crate) grace: Duration,
    /// Who enters first when several wait; all users of the lock must agree
    #[arg(long, value_enum, default_value_t)]
    pub(crate) policy: PolicyArg,
    /// What the lock's status shows of this process [default: COMMAND's name]
    #[arg(long)]
    pub(crate) label: Option<String>,
    /// The exit status when the lock is busy (--no-wait) or was not acquired in time (--wait)
    #[arg(
        long,
        short = 'E',
        visible_alias = "conflict-exit-code",
        value_name = "STATUS",
        default_value_t = 75
    )]
    pub(crate) busy_status: u8,
    /// The exit status when the lock was lost
    #[arg(long, value_name = "STATUS", default_value_t = 76)]
    pub(crate) lost_status: u8,
    /// The exit status when the server cannot be reached or refuses
    #[arg(long, value_name = "STATUS", default_value_t = 69)]
    pub(crate) unavailable_status: u8,
    /// The command and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub(crate) command: Vec<OsString>,
}

/// The policy of a lock, as it is written.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum PolicyArg {
    /// First come, first served
    #[default]
    Fifo,
    /// Writers pass readers that wait
    WriterFirst,
    /// Readers enter whenever no writer is inside
    ReaderFirst,
}

impl From<PolicyArg> for Policy {
    fn from(policy: PolicyArg) -> Self {
        match policy {
            PolicyArg::Fifo => Self::Fifo,
            PolicyArg::WriterFirst => Self::WriterFirst,
            PolicyArg::ReaderFirst => Self::ReaderFirst,
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct LsArgs {
    /// Only locks whose names match: * stands for any text, ? for a character, [ab] for one of them
    pub(crate) pattern: Option<String>,
    /// Also locks that are free and were used within the last minute or so
    #[arg(long, short = 'a')]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// The lock's name
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct WatchArgs {
    /// The lock's name; none: all locks
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Only locks whose names match, as for ls
    pub(crate) pattern: Option<String>,
    /// How often to look
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s")]
    pub(crate) interval: Duration,
    /// Print one frame as text and end
    #[arg(long)]
    pub(crate) once: bool,
    /// Columns and lines of a frame that is not shown live
    #[arg(long, value_name = "COLUMNSxLINES", value_parser = size, default_value = "100x28")]
    pub(crate) size: (u16, u16),
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct BlockersArgs {
    /// An owner, the label or the number of a client, or the number of a process
    #[arg(value_name = "OWNER-OR-LABEL")]
    pub(crate) subject: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct EvictArgs {
    /// The lock's name
    pub(crate) name: String,
    /// The owner, as show, ls and blockers print it
    pub(crate) owner: String,
    /// Do not ask
    #[arg(long, short = 'y')]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `30s`, `10m`, `1h 30m`; a bare number is seconds, as in flock(1).
fn duration(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().map(Duration::try_from_secs_f64);
    match seconds {
        Some(Ok(duration)) => Ok(duration),
        Some(Err(error)) => Err(error.to_string()),
        None => humantime::parse_duration(text).map_err(|_| "write it like 500ms, 30s, 10m or 1h".to_owned()),
    }
}

fn size(text: &str) -> Result<(u16, u16), String> {
    let (columns, lines) = text.split_once('x').ok_or("write it like 100x28")?;
    match (columns.parse(), lines.parse()) {
        (Ok(columns @ 40..=400), Ok(lines @ 10..=200)) => Ok((columns, lines)),
        _ => Err("from 40x10 to 400x200".to_owned()),
    }
}
