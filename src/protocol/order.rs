//! A call of a script, and the command that the call becomes for the server at hand.
//!
//! An [`Order`] is encoded late, because servers differ in three things: their dialect, the scripts that they know, the
//! rest of their quarantine. An order that has to wait for its server becomes a [`Draft`], which owns its arguments.

use super::channel::Channel;
use super::functions::{self, Functions, read_refusal};
use super::hello::Dialect;
use super::key::Lock;
use super::script::{Name, Script};
use crate::types::mode::{Admission, Policy};
use redis::{Arg, Cmd, ErrorKind, RedisError, ServerErrorKind};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

/// A call of a script about a lock.
#[derive(Clone, Copy)]
pub(crate) struct ScriptCall<'a> {
    pub(crate) lock: &'a Lock,
    pub(crate) channel: Channel,
    /// Some client listens to events of this lock.
    pub(crate) listened: bool,
    pub(crate) ask: Ask<'a>,
}

/// Which script, and its own arguments.
#[derive(Clone, Copy)]
pub(crate) enum Ask<'a> {
    Acquire(&'a AskToAcquire<'a>),
    /// At most [`CHUNK`](super::script::CHUNK) requests.
    Release(&'a [&'a str]),
    /// At most [`CHUNK`](super::script::CHUNK) requests, each with its lease.
    Renew(&'a [(&'a str, AskedLease)]),
    /// Renews one request so that the server writes.
    Confirm(&'a str, Duration),
    Downgrade {
        from: &'a str,
        to: &'a str,
        lease: Duration,
    },
    Evict(&'a str),
    Place(&'a AskToPlace<'a>),
    Status(&'a AskForStatus<'a>),
}

#[derive(Clone, Copy)]
pub(crate) struct AskForStatus<'a> {
    /// The rank of the first waiter to list.
    pub(crate) first: usize,
    pub(crate) waiters: usize,
    pub(crate) holders: usize,
    /// The request whose place is asked for.
    pub(crate) place_of: Option<&'a str>,
}

#[derive(Clone, Copy)]
pub(crate) struct AskToAcquire<'a> {
    pub(crate) request: &'a str,
    pub(crate) lease: AskedLease,
    pub(crate) only_now: bool,
    pub(crate) admission: Admission,
    /// With so many waiters or more the request does not queue.
    pub(crate) max_queue: Option<usize>,
    pub(crate) origin: Origin,
}

/// Of a lock that several servers keep: where a majority of them agreed that the request stands.
#[derive(Clone, Copy)]
pub(crate) struct AskToPlace<'a> {
    pub(crate) request: &'a str,
    pub(crate) lease: Duration,
    /// Its ticket. `None`: the request stays where it is.
    pub(crate) ticket: Option<u64>,
    /// The token of the hold that the request gives up if another one waits before that place.
    pub(crate) given_up: Option<u64>,
    /// What the lock's counter must reach at least.
    pub(crate) least: Option<u64>,
}

/// The ticket before all others, which no server draws: of a request of a quorum that holds, where it lacks a vote.
pub(crate) const FIRST_PLACE: u64 = 1;

/// What a request was before the client asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    New,
    /// New, and a vote of a quorum.
    Vote,
    /// A request with that ticket, which lost its place in the queue.
    Requeued(u64),
    /// A read hold with that token, which is to become a write hold.
    Upgrade(u64),
}

impl Origin {
    fn is_new(self) -> bool {
        matches!(self, Self::New | Self::Vote)
    }
}

impl ScriptCall<'_> {
    fn script(&self) -> &'static Script {
        let name = match self.ask {
            Ask::Acquire(_) => Name::Acquire,
            Ask::Release(_) => Name::Release,
            Ask::Renew(_) | Ask::Confirm(..) => Name::Renew,
            Ask::Downgrade { .. } => Name::Downgrade,
            Ask::Evict(_) => Name::Evict,
            Ask::Place(_) => Name::Place,
            Ask::Status(_) => Name::Status,
        };
        name.script()
    }

    /// All options are letters of one argument, which is mostly empty.
    fn add_options(&self, cmd: &mut Cmd, asks: bool) {
        let mut letters = String::new();
        match self.channel {
            Channel::OfClient if self.listened => letters.push('e'),
            Channel::OfClient => {}
            // A cluster's node knows who listens to events.
            #[cfg(feature = "cluster")]
            Channel::InSlot => letters.push('s'),
        }
        if asks {
            letters.push('a');
        }
        if let Ask::Acquire(ask) = self.ask {
            if ask.only_now {
                letters.push('t');
            }
            match ask.origin {
                Origin::Upgrade(_) => letters.push('u'),
                Origin::Vote => letters.push('q'),
                Origin::New | Origin::Requeued(_) => {}
            }
            match ask.admission.policy {
                Policy::Fifo => {}
                Policy::WriterFirst => letters.push('w'),
                Policy::ReaderFirst => letters.push('r'),
                Policy::Bounded => letters += &format!("n{}", ask.admission.limit),
            }
            // Who had a place keeps it, and an upgrade stands before everybody.
            if let Some(most) = ask.max_queue.filter(|_| ask.origin.is_new()) {
                letters += &format!("m{most}");
            }
        }
        cmd.arg(letters);
    }

    /// The place of the rest of a quarantine, which only acquire takes.
    fn quarantine(&self) -> Option<Place> {
        match self.ask {
            Ask::Acquire(ask) if ask.origin.is_new() => Some(Place::AfterNext),
            Ask::Acquire(_) => Some(Place::Next),
            _ => None,
        }
    }

    fn add_args(&self, cmd: &mut Cmd, asks: bool) {
        let lock = self.lock;
        cmd.arg(&*lock.state).arg(&lock.queue).arg(&lock.leases);
        self.add_options(cmd, asks);
        match self.ask {
            Ask::Acquire(ask) => {
                cmd.arg(ask.request);
                ask.lease.add_to(cmd);
                if let Origin::Requeued(number) | Origin::Upgrade(number) = ask.origin {
                    cmd.arg(number);
                }
            }
            Ask::Release(requests) => {
                for request in requests {
                    cmd.arg(request);
                }
            }
            Ask::Renew(requests) => {
                for (request, lease) in requests {
                    cmd.arg(request);
                    lease.add_to(cmd);
                }
            }
            Ask::Confirm(request, lease) => {
                // A lease longer by a millisecond makes the server write: WAIT is about what its connection wrote last.
                cmd.arg(request).arg(millis(lease) + 1);
            }
            Ask::Downgrade { from, to, lease } => {
                cmd.arg(from).arg(to).arg(millis(lease));
            }
            Ask::Evict(owner) => {
                cmd.arg(owner);
            }
            Ask::Place(ask) => {
                cmd.arg(ask.request).arg(millis(ask.lease));
                for number in [ask.ticket, ask.given_up, ask.least] {
                    cmd.arg(number.map(|number| number.to_string()).unwrap_or_default());
                }
            }
            Ask::Status(ask) => {
                cmd.arg(ask.first).arg(ask.waiters).arg(ask.holders).arg(ask.place_of);
            }
        }
    }
}

/// The lease that a call asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedLease {
    pub(crate) span: Duration,
    /// It makes no deadline earlier. A call that was sent before a grant may come after calls that asked for the hold's
    /// least time.
    pub(crate) only_later: bool,
}

impl AskedLease {
    fn add_to(self, cmd: &mut Cmd) {
        match self.only_later {
            false => cmd.arg(millis(self.span)),
            true => cmd.arg(format!("+{}", millis(self.span))),
        };
    }
}

impl From<Duration> for AskedLease {
    fn from(span: Duration) -> Self {
        Self {
            span,
            only_later: false,
        }
    }
}

fn millis(lease: Duration) -> u64 {
    // The builder has checked that a lease is at most a year.
    lease.as_millis() as u64
}

/// The server at the other end of a connection, as far as a command has to suit it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) dialect: Dialect,
    /// The server has restarted and may have forgotten holds: nobody enters a lock that looks free for that long.
    pub(crate) quarantine_left: Option<Duration>,
}

/// What a server has got over a connection: the functions, and otherwise scripts. The first call of each script carries its
/// text. The server executes the calls of a connection in order, so it refuses no later call for want of a script.
#[derive(Debug)]
pub(crate) struct Known {
    scripts: AtomicU8,
    functions: AtomicU8,
}

/// How a command names what the server has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A command of the server's own, and no script.
    Command,
    /// By the text of that script.
    Text(u8),
    /// By the hash of that script.
    Hash(u8),
    /// By the name of a function.
    Function,
}

impl Known {
    pub(crate) fn new(functions: Functions) -> Self {
        Self {
            scripts: AtomicU8::default(),
            functions: AtomicU8::new(functions as u8),
        }
    }

    fn has(&self, functions: Functions) -> bool {
        self.functions.load(Ordering::Relaxed) == functions as u8
    }

    /// Whether to load the functions again.
    pub(crate) fn lacks_functions(&self) -> bool {
        self.has(Functions::Missing)
    }

    pub(crate) fn set_functions(&self, functions: Functions) {
        self.functions.store(functions as u8, Ordering::Relaxed);
    }

    fn knows(&self, script: &Script) -> bool {
        self.scripts.load(Ordering::Relaxed) & script.bit() != 0
    }

    /// A call of that form is on its way: later calls may rely on its text.
    pub(crate) fn learn(&self, form: Form) {
        if let Form::Text(script) = form {
            self.scripts.fetch_or(script, Ordering::Relaxed);
        }
    }

    fn forget(&self, script: u8) {
        self.scripts.fetch_and(!script, Ordering::Relaxed);
    }

    /// A call of that form failed. Returns the error for the caller: that of an unknown script says that the server
    /// executed nothing, and that the caller should send the text.
    pub(crate) fn on_error(&self, form: Form, error: RedisError) -> RedisError {
        match form {
            Form::Command => {}
            // The server may not have the script.
            Form::Text(script) => self.forget(script),
            Form::Hash(script) if is_unknown_script(&error) => self.forget(script),
            Form::Hash(_) => {}
            Form::Function => {
                if let Some(functions) = read_refusal(&error) {
                    self.set_functions(functions);
                    return RedisError::from((NO_SCRIPT, "the server has lost the functions"));
                }
            }
        }
        error
    }
}

const NO_SCRIPT: ErrorKind = ErrorKind::Server(ServerErrorKind::NoScript);

/// The server restarted, its cache was flushed, or it lost the functions.
pub(crate) fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == NO_SCRIPT
}

/// A command that is encoded for the server at hand.
pub(crate) struct Order<'a> {
    what: What<'a>,
    head: Head,
    /// Whether the command was sent, or was about to be.
    pub(crate) sent: &'a AtomicBool,
}

enum What<'a> {
    Script(ScriptCall<'a>),
    /// A command of the server's own, and no script.
    Command(&'a Cmd),
}

#[derive(Clone, Copy)]
struct Head {
    /// `None`: a command of the server's own, named by its arguments.
    script: Option<&'static Script>,
    /// With the script's text, whatever the server is thought to know.
    whole: bool,
    quarantine: Option<Place>,
}

/// The place of an argument behind those of a call.
#[derive(Clone, Copy)]
enum Place {
    Next,
    /// Behind an empty argument, which stands for a ticket.
    AfterNext,
}

/// An [`Order`] that waits for its server.
pub(crate) struct Draft {
    head: Head,
    args: Cmd,
}

pub(crate) struct Made {
    pub(crate) command: Cmd,
    pub(crate) form: Form,
}

impl<'a> Order<'a> {
    /// `whole`: with the script's text, whatever the server is thought to know.
    pub(crate) fn script_call(call: ScriptCall<'a>, whole: bool, sent: &'a AtomicBool) -> Self {
        let head = Head {
            script: Some(call.script()),
            whole,
            quarantine: call.quarantine(),
        };
        Self {
            what: What::Script(call),
            head,
            sent,
        }
    }

    /// A command of the server's own, and no script.
    pub(crate) fn command(command: &'a Cmd, sent: &'a AtomicBool) -> Self {
        Self {
            what: What::Command(command),
            head: Head {
                script: None,
                whole: false,
                quarantine: None,
            },
            sent,
        }
    }

    /// Whether the call carries the text of its script.
    pub(crate) fn teaches(&self, known: &Known) -> bool {
        matches!(self.head.form(known), Form::Text(_))
    }

    /// `asks`: it is for a node of a cluster that takes over the lock's slot and does not own it yet.
    pub(crate) fn make(&self, peer: Peer, known: &Known, asks: bool) -> Made {
        self.sent.store(true, Ordering::Relaxed);
        self.head.make(peer, known, |cmd| self.add_args(cmd, asks))
    }

    pub(crate) fn draft(&self, asks: bool) -> Draft {
        let mut args = Cmd::new();
        self.add_args(&mut args, asks);
        Draft { head: self.head, args }
    }

    fn add_args(&self, cmd: &mut Cmd, asks: bool) {
        match &self.what {
            What::Script(call) => call.add_args(cmd, asks),
            What::Command(command) => copy_args(command, cmd),
        }
    }
}

impl Draft {
    pub(crate) fn make(&self, peer: Peer, known: &Known) -> Made {
        self.head.make(peer, known, |cmd| copy_args(&self.args, cmd))
    }
}

fn copy_args(from: &Cmd, to: &mut Cmd) {
    for arg in from.args_iter() {
        // fairlock's commands have no cursors.
        if let Arg::Simple(arg) = arg {
            to.arg(arg);
        }
    }
}

impl Head {
    fn form(&self, known: &Known) -> Form {
        match self.script {
            None => Form::Command,
            Some(script) if self.whole => Form::Text(script.bit()),
            Some(_) if known.has(Functions::Loaded) => Form::Function,
            Some(script) if known.knows(script) => Form::Hash(script.bit()),
            Some(script) => Form::Text(script.bit()),
        }
    }

    fn make(&self, peer: Peer, known: &Known, add: impl FnOnce(&mut Cmd)) -> Made {
        let mut command = Cmd::with_capacity(16, 256);
        let form = self.form(known);
        if let Some(script) = self.script {
            let (name, what) = match form {
                Form::Function => ("FCALL", functions::name_of(script.number)),
                Form::Hash(_) => ("EVALSHA", script.hash(peer.dialect)),
                Form::Text(_) | Form::Command => ("EVAL", script.body(peer.dialect)),
            };
            command.arg(name).arg(what).arg(3);
        }
        add(&mut command);
        if let Some((place, left)) = self.quarantine.zip(peer.quarantine_left) {
            if let Place::AfterNext = place {
                command.arg("");
            }
            command.arg(millis(left));
        }
        Made { command, form }
    }
}

#[cfg(test)]
mod tests;
