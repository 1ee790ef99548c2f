//! The command line: its subcommands and options, each with its help text.

use crate::server::ServerArgs;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use fairlock::Policy;
#[cfg(unix)]
use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

/// Run commands under fair locks in Redis or Valkey, and look into these locks.
///
/// Readers share a lock, and a writer holds it alone. Requests enter in the order in which they were made. Every hold and
/// every place in the queue has a lease, which the holder or waiter renews in the background. When a process dies, its
/// locks are free as soon as their leases have run out. Services that use the Rust crate fairlock share these locks.
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
    /// fairlock waits for the lock, runs COMMAND, releases the lock when COMMAND ends, and exits with COMMAND's status.
    /// COMMAND finds the lock's name in FAIRLOCK_NAME and the fencing token of the grant in FAIRLOCK_TOKEN. With --and,
    /// FAIRLOCK_TOKENS has a line "TOKEN NAME" for each lock. Let COMMAND pass the token to the resource, and let the resource refuse a token that is smaller than one it has seen.
    ///
    /// A `fairlock run` inside COMMAND must not wait for the same lock, because it would wait for itself. fairlock refuses
    /// that, unless --wait or --no-wait limits the wait.
    ///
    /// Signals: fairlock forwards INT, TERM, HUP, QUIT, USR1 and USR2 to COMMAND. While fairlock still waits for the lock,
    /// such a signal ends fairlock, which leaves the queue at once.
    ///
    /// Loss: an operator may evict the owner, the server may be out of reach for a lease, or --max-hold may be over. Then
    /// fairlock sends TERM to COMMAND, and KILL after the grace, because another process may hold the lock by then.
    ///
    /// Without a terminal COMMAND leads a process group of its own, and fairlock signals that group. With a terminal
    /// COMMAND stays in the terminal's group, so that keys such as Ctrl-C and Ctrl-Z reach COMMAND directly, and fairlock
    /// signals COMMAND alone. In the foreground of a terminal fairlock takes every INT and QUIT for a key and does not
    /// forward it; use TERM with kill(1).
    ///
    /// On Linux the kernel kills COMMAND when fairlock is killed. That excludes a set-user-ID program and COMMAND's own
    /// children. fairlock does not wait for processes that COMMAND leaves in the background.
    ///
    /// With several --url a majority of the servers keeps the lock, so that the loss of any minority of them neither loses
    /// it nor lets others in. New servers, and those that lost their data, do not vote before the longest lease is over.
    #[cfg(unix)]
    Run(RunArgs),

    /// Run a command while this process leads an election
    ///
    /// Of all processes that campaign under one NAME one leads at a time, in the order in which they came. fairlock runs
    /// COMMAND while it leads. When the term is lost, fairlock ends COMMAND as `fairlock run` does, and campaigns again,
    /// also while the server is away. When COMMAND ends by itself, fairlock resigns and exits with COMMAND's status.
    ///
    /// COMMAND finds the term's number in FAIRLOCK_TOKEN and the election's name in FAIRLOCK_NAME. Signals and groups of
    /// processes are those of `fairlock run`. After INT, TERM or HUP fairlock does not campaign again.
    ///
    /// The election is the write lock of its name, so `fairlock show NAME` lists the candidates.
    #[cfg(unix)]
    Elect(ElectArgs),

    /// Show who leads an election
    ///
    /// The exit status is 1 if nobody leads. With --watch fairlock prints who leads, then each change, until a signal ends
    /// it.
    Leader(LeaderArgs),

    /// List the locks that are held or waited for
    ///
    /// The locks with the longest queues come first. fairlock finds locks among all keys of the database, in small steps.
    /// An ACL user needs the right +scan for that, as for top and blockers.
    Ls(LsArgs),

    /// Show who holds a lock and who waits for it, in order
    Show(ShowArgs),

    /// Print the events of locks as they happen
    ///
    /// Each event names the client that made the request, with label, process and host. --owner, --label and --host take
    /// the beginning of what they look for. An event must have all that are given.
    ///
    /// fairlock runs until a signal ends it. Clients publish events only while somebody watches, and no server stores
    /// them: fairlock cannot show earlier events.
    Watch(WatchArgs),

    /// Show the busiest locks, live
    ///
    /// The lock with the longest queue comes first. The lower part shows the holders and waiters of the selected lock. The
    /// column QUEUE shows the waiters in order: W waits to write, R waits to read, U reads and waits to write. Keys: up and
    /// down (or k and j) select a lock, Enter opens it with its events, / filters, s sorts, space pauses, q ends, ? lists
    /// all. In an opened lock e evicts an owner after a question, and o copies it.
    Top(TopArgs),

    /// Show the locks on a page for the browser
    ///
    /// fairlock prints the page's address and serves the page until a signal ends fairlock. The page shows the locks with
    /// their holders and queues, who waits for whom, the events as they happen, and the waits that have ended lately. The
    /// page needs nothing from any other host. In a cluster there are events of single locks only, and of a quorum none.
    ///
    /// By default nobody can change a lock by the page, and only this host can reach it. To see it from another one, use
    /// ssh -L 7379:127.0.0.1:7379 HOST there. The page has no login: other users of this host can read it too.
    Serve(ServeArgs),

    /// Show whom to blame: who blocks a lock, or an owner that waits
    ///
    /// Of a lock fairlock shows the holders and the queue. For each lock that an owner waits for, fairlock lists the holders
    /// and the waiters ahead, with process, host and label. If a holder waits for another lock, that lock follows, and so
    /// on. At the end the output names the processes to blame, and the commands to type next. If owners wait for each
    /// other, in two readings, the output says that this is a deadlock, and names them.
    Blockers(BlockersArgs),

    /// Evict an owner from a lock: an operator's last resort
    ///
    /// OWNER loses all its holds of the lock and its places in the queue, and the next waiter enters at once. OWNER learns
    /// of the loss a moment later, or much later if its process is frozen. Until then OWNER believes that it holds the
    /// lock, and only fencing tokens keep the two holders apart. End the process first if you can.
    ///
    /// With several --url fairlock evicts OWNER at all servers of the quorum.
    Evict(EvictArgs),

    /// Check whether a server is fit for locks
    ///
    /// fairlock looks at the server's version, role, memory policy, persistence and clock, and measures the latency. It
    /// tries every right that users of locks need, on a lock of its own, and removes that lock again. Each finding says
    /// what to do.
    ///
    /// With several --url fairlock looks at each server of the quorum and at all of them together: whether they are
    /// independent, agree on the quorum's name and longest lease, and how far their clocks are apart.
    Doctor(OutputArgs),

    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },

    /// Print a man page
    ///
    /// Example: fairlock man run | man -l -
    Man {
        /// The subcommand that the page describes [default: fairlock itself]
        page: Option<String>,
    },
}

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct OutputArgs {
    /// Print JSON: one document, or one object per line for watch and leader
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
    /// Hold this lock too, in the same mode, or to write beside permits; repeat it for more. fairlock acquires the locks in
    /// the order of their names, so that commands under several locks cannot deadlock
    #[arg(long, value_name = "NAME", conflicts_with = "at_least")]
    pub(crate) and: Vec<String>,
    /// Take permits of a semaphore that has LIMIT of them, instead of the whole lock; the last user to ask sets LIMIT
    #[arg(long, value_name = "LIMIT", conflicts_with_all = ["read", "policy"])]
    pub(crate) semaphore: Option<u32>,
    /// How many permits to take
    #[arg(long, value_name = "N", default_value_t = 1, requires = "semaphore")]
    pub(crate) permits: u32,
    /// Give up at once if so many wait already
    #[arg(long, value_name = "N", conflicts_with = "no_wait")]
    pub(crate) max_queue: Option<usize>,
    /// Wait at most this long [default: no limit]
    #[arg(
        long,
        short = 'w',
        value_name = "TIME",
        value_parser = duration,
        allow_negative_numbers = true,
        conflicts_with = "no_wait"
    )]
    pub(crate) wait: Option<Duration>,
    /// Do not wait at all
    #[arg(long, short = 'n')]
    pub(crate) no_wait: bool,
    /// While fairlock waits, tell the position in the queue and who holds the lock, and each change of these
    #[arg(long, short = 'v', conflicts_with_all = ["no_wait", "and"])]
    pub(crate) verbose: bool,
    /// How long others wait if this process dies; also how long this process may be cut off from the server without
    /// losing the lock [default: 10s, or a quorum's longest lease if that is shorter]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) lease: Option<Duration>,
    /// Hold the lock at most this long, then end COMMAND [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) max_hold: Option<Duration>,
    /// Hold the lock at least this long, also if COMMAND ends earlier: hosts whose clocks differ then run COMMAND once.
    /// fairlock does not wait for that
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) at_least: Option<Duration>,
    /// How long COMMAND has between TERM and KILL when the lock is lost
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "5s")]
    pub(crate) grace: Duration,
    /// Which waiter enters first; all users of the lock must choose the same policy
    #[arg(long, value_enum, default_value_t)]
    pub(crate) policy: PolicyArg,
    /// The label of this process in the lock's status [default: COMMAND's name]
    #[arg(long)]
    pub(crate) label: Option<String>,
    /// The exit status when the lock is busy (--no-wait), the wait timed out (--wait), the queue is full (--max-queue),
    /// the waiting request was evicted, or the wait would never have ended, because it was part of a deadlock (--and)
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
    /// The exit status when the server does not answer or refuses
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

#[cfg(unix)]
impl RunArgs {
    /// All locks that COMMAND runs under.
    pub(crate) fn locks(&self) -> Vec<&str> {
        let further = self.and.iter().map(String::as_str);
        std::iter::once(self.name.as_str()).chain(further).collect()
    }

    pub(crate) fn waits_for_ever(&self) -> bool {
        !self.no_wait && self.wait.is_none()
    }
}

#[cfg(unix)]
#[derive(Args, Debug)]
#[command(override_usage = "fairlock elect [OPTIONS] NAME [--] COMMAND...")]
pub(crate) struct ElectArgs {
    /// The election's name; no lock should have the same name
    pub(crate) name: String,
    /// How long the others wait for the next leader if this process dies as the leader
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    pub(crate) lease: Duration,
    /// How long COMMAND has between TERM and KILL when the term is lost
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "5s")]
    pub(crate) grace: Duration,
    /// The label of this process [default: COMMAND's name]
    #[arg(long)]
    pub(crate) label: Option<String>,
    /// The command and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct LeaderArgs {
    /// The election's name
    pub(crate) name: String,
    /// Print who leads, then each change
    #[arg(long, short = 'w')]
    pub(crate) watch: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// The policy of a lock, as it is written.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum PolicyArg {
    /// First come, first served
    #[default]
    Fifo,
    /// Writers overtake readers that wait
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
    /// List only locks whose names match: * stands for any text, ? for one character, [ab] for a or b
    #[arg(value_parser = pattern)]
    pub(crate) pattern: Option<String>,
    /// Also list free locks that the server still has: for 30 to 60 seconds after their last lease
    #[arg(long, short = 'a')]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// The lock's name
    pub(crate) name: String,
    /// Show the lock's state too, as it lies in the server: PROTOCOL.md explains each number
    #[arg(long)]
    pub(crate) raw: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct WatchArgs {
    /// The lock's name [default: all locks]
    pub(crate) name: Option<String>,
    /// Only events of owners whose text begins so
    #[arg(long, value_name = "PREFIX")]
    pub(crate) owner: Option<String>,
    /// Only events of clients whose label begins so
    #[arg(long, value_name = "PREFIX")]
    pub(crate) label: Option<String>,
    /// Only events of clients whose host begins so
    #[arg(long, value_name = "PREFIX")]
    pub(crate) host: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Show only locks whose names match, as for ls
    #[arg(value_parser = pattern)]
    pub(crate) pattern: Option<String>,
    /// How long to wait between two looks
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "1s")]
    pub(crate) interval: Duration,
    /// Print one frame as text, then end
    #[arg(long)]
    pub(crate) once: bool,
    /// Columns and lines of a frame with --once, or into a pipe
    #[arg(long, value_name = "COLUMNSxLINES", value_parser = size, default_value = "100x28")]
    pub(crate) size: (u16, u16),
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    /// The address to listen on; port 0 is any free one. Whoever reaches an address other than loopback sees all locks
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7379")]
    pub(crate) listen: SocketAddr,
    /// Answer browsers that know this host by that name or address too, such as a proxy's; repeat it for more. Without
    /// it browsers must use localhost or the address that fairlock listens on
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Vec<String>,
    /// How often the page asks for what it shows
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "1s")]
    pub(crate) interval: Duration,
    /// Let the page evict owners. Each eviction needs a token: that of the variable FAIRLOCK_SERVE_TOKEN, or a random one
    /// that fairlock prints
    #[arg(long)]
    pub(crate) evict: bool,
}

#[derive(Args, Debug)]
pub(crate) struct BlockersArgs {
    /// A lock's name, an owner, a client's label or number, or a process number
    #[arg(value_name = "LOCK-OR-OWNER", value_parser = subject)]
    pub(crate) subject: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct EvictArgs {
    /// The lock's name
    pub(crate) name: String,
    /// The owner, as show and blockers print it; or a label, a client's number or a process number that only one owner of
    /// this lock has
    #[arg(value_parser = subject)]
    pub(crate) owner: String,
    /// Evict without asking
    #[arg(long, short = 'y')]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `30s`, `10m`, `1h 30m`; a bare number is seconds, as in flock(1).
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    if text.trim_start().starts_with('-') {
        return Err("a time cannot be negative".to_owned());
    }
    let seconds = text.parse().ok().map(Duration::try_from_secs_f64);
    match seconds {
        Some(Ok(duration)) => Ok(duration),
        Some(Err(error)) => Err(error.to_string()),
        None => humantime::parse_duration(text).map_err(|_| "write it like 500ms, 30s, 10m or 1h".to_owned()),
    }
}

/// Between two looks at what is to be shown live. Browsers count their pauses with 31 bits of milliseconds.
fn interval(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        interval if interval > Duration::from_secs(24 * 3600) => Err("at most 24h".to_owned()),
        interval => Ok(interval),
    }
}

/// What names a lock or an owner. An empty one is what a script makes of a variable that is not set.
fn subject(text: &str) -> Result<String, String> {
    match text {
        "" => Err("it is empty, and neither a lock nor an owner has an empty name".to_owned()),
        text => Ok(text.to_owned()),
    }
}

fn pattern(text: &str) -> Result<String, String> {
    match text {
        "" => Err("it is empty, and no lock has an empty name; leave it out for all locks".to_owned()),
        text => Ok(text.to_owned()),
    }
}

fn size(text: &str) -> Result<(u16, u16), String> {
    let (columns, lines) = text.split_once('x').ok_or("write it like 100x28")?;
    match (columns.parse(), lines.parse()) {
        (Ok(columns @ 40..=400), Ok(lines @ 10..=200)) => Ok((columns, lines)),
        _ => Err("from 40x10 to 400x200".to_owned()),
    }
}
