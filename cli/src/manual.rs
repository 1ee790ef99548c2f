//! The longer texts for `--help` and the man pages; the man pages and completions made from the command line.

use crate::args::Cli;
use crate::outcome::{Failure, Outcome, Status, say};
use crate::text::safe;
use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use std::io;

/// A heading, and the text under it with its line breaks.
type Section = (&'static str, &'static str);

const STATUSES: Section = (
    "EXIT STATUS",
    "0    done
1    evict, blockers: there is no such owner or waiter; evict: you said no; leader: nobody leads;
     doctor: something is wrong
64   wrong usage, or a lock's name or a time that cannot be; evict: no terminal to ask at, and no --yes
66   show, evict: there is no such lock under the prefix (never used, or forgotten a minute after its last lease)
69   the server does not answer or refuses; no majority of several servers answers;
     ls, top, blockers: a lock could not be read, after all lines of the others
70   something else went wrong
128+N  signal N ended fairlock; 141: nobody reads the output any more",
);

const RUN_STATUSES: Section = (
    "EXIT STATUS",
    "COMMAND's own status, or 128+N if signal N ended COMMAND. Otherwise:
64   wrong usage, a lock's name or a time that cannot be, a lock that others use with another
     policy, or one that COMMAND would wait for under itself; another kind of server or quorum than
     the URLs and options name
69   the server does not answer or refuses, or was away for a lease while fairlock held some of its
     locks (--and) and waited for the next; then COMMAND has not run (--unavailable-status)
70   something else went wrong
75   the lock is busy, its queue is full (--max-queue), the wait timed out, an operator evicted the
     waiting request, or it waited in a deadlock (--and); COMMAND has not run (--busy-status, -E)
76   the lock was lost, even if COMMAND then ended with status 0 (--lost-status)
126  COMMAND cannot be executed
127  COMMAND was not found
128+N  signal N ended fairlock while it waited for the lock",
);

const ELECT_STATUSES: Section = (
    "EXIT STATUS",
    "COMMAND's own status, or 128+N if signal N ended COMMAND. Otherwise:
64   wrong usage, or a name or a time that cannot be; a lock that others use with another policy, or
     one that COMMAND would wait for under itself; another kind of server than the URLs name
69   the server does not answer the first campaign, or refuses
70   something else went wrong
76   the term was lost before COMMAND ended by itself or by a signal
126  COMMAND cannot be executed
127  COMMAND was not found
128+N  signal N ended fairlock while it campaigned",
);

const VARIABLES: Section = (
    "ENVIRONMENT",
    "REDIS_URL  the server, unless --url names one; several, with blanks between them, are a quorum.
           The list of processes shows a password in --url, and does not show one in REDIS_URL.",
);

const RUN_VARIABLES: Section = (
    "ENVIRONMENT",
    "REDIS_URL       the server, unless --url names one; several, with blanks between them, are a quorum.
                COMMAND inherits the variable, and with it a password: write
                env -u REDIS_URL COMMAND if COMMAND must not have it
FAIRLOCK_TOKEN  for COMMAND: the fencing token, a number never smaller than that of an earlier
                grant of the lock, and to write greater than that of every other owner
                before. Readers and permits that are inside together may share it
FAIRLOCK_TOKENS for COMMAND, with --and: a line \"TOKEN NAME\" for each lock
FAIRLOCK_NAME   for COMMAND: the lock's name
FAIRLOCK_HELD   for a fairlock inside COMMAND: which locks COMMAND runs under, so that it does not
                wait for itself",
);

const NOT_PROMISED: Section = (
    "WHAT IS NOT PROMISED",
    "fairlock sends TERM a moment before the server gives the lock to others. COMMAND may still go on:
it may catch TERM, be frozen, or have work under way elsewhere. Only the resource can refuse
such late work, by the token. Do not stop fairlock by STOP or TSTP: COMMAND would go on, and
nobody would renew its lock. A server that loses its data loses the locks.",
);

const RUN_EXAMPLES: Section = (
    "EXAMPLES",
    "fairlock run nightly-backup -- /usr/local/bin/backup
fairlock run --no-wait report -- make report
fairlock run --read --wait 30s catalog -- ./export
fairlock run --semaphore 4 --permits 2 gpu -- ./train
fairlock run --no-wait --at-least 1h nightly -- ./report
fairlock run --and account:3 account:7 -- ./transfer
fairlock run --max-queue 10 report -- make report
fairlock run deploy -- sh -c 'curl -H \"Fence: $FAIRLOCK_TOKEN\" ...'",
);

const URLS: Section = (
    "SERVERS",
    "redis://HOST:6379/0                      a server, any node of a cluster, a Sentinel with one master
redis+cluster://HOST:6379,HOST:6379      nodes of a cluster
redis+sentinel://HOST:26379,HOST/MASTER  sentinels and their master; /MASTER/3 for its database 3
rediss, rediss+cluster, rediss+sentinel  the same with TLS
The login, USER:PASSWORD@ or :PASSWORD@, stands once, before the first host. It is that of the
servers that keep the locks. Sentinels have their own:
?sentinel_username=USER&sentinel_password=PASSWORD. Write an @ of a password as %40.",
);

const EXAMPLES: Section = (
    "EXAMPLES",
    "fairlock run nightly-backup -- /usr/local/bin/backup
fairlock ls 'invoice:*'
fairlock blockers billing-7f9c
fairlock doctor",
);

const WATCH_FORM: Section = (
    "OUTPUT",
    "queued    the request could not enter at once and joined the queue
granted   the request entered the lock
released  the holder released the lock
expired   the lease of a holder or waiter ran out
left      the waiter left the queue and did not enter
evicted   an operator evicted the holder or waiter
With --json an object with \"event\": \"missed\" stands for events that fairlock missed.",
);

const SERVE: Section = (
    "WHO MAY SEE AND CHANGE WHAT",
    "The page has no login. Everybody who reaches its address sees the names of locks, owners, labels,
hosts and process numbers. Answers go only to browsers that know this host as localhost, by the
address of the connection, or by a name of --host. No other page in the same browser can read
them. Without --evict nothing that a browser sends changes a lock.",
);

const SERVE_VARIABLES: Section = (
    "ENVIRONMENT",
    "FAIRLOCK_SERVE_TOKEN  with --evict: the token, 16 or more letters, digits and signs, instead of
                      a random one",
);

const QUORUM: Section = (
    "SEVERAL SERVERS",
    "With 3, 5, 7 or 9 --url a majority of these servers keeps each lock: a quorum. Its locks are
others than those of the single servers: their prefix is PREFIX.q.
run, ls, show, top, serve, evict and doctor work on a quorum. watch and blockers look at one of its
servers: give them a single --url and --prefix PREFIX.q. elect, leader, and of run the options --and,
--semaphore, --max-queue, --at-least and --verbose need locks of a single server.
The servers keep the quorum's name and its longest lease. Only the first client has to name them,
by --quorum and --longest-lease; all clients must name the same.",
);

const DOCTOR_RIGHTS: Section = (
    "WHAT DOCTOR DOES TO THE SERVER",
    "Doctor tries commands on the keys of a lock with a random name and deletes the keys. Doctor
publishes to a channel of its own. Doctor changes no setting. A user without the right to INFO
sees fewer findings; locks do not need INFO. Doctor tries the rights of the user in the URL.
Some users may look at locks and not use them. The last line tells that, and with --json the
field \"fit_for\" does: locking, looking or nothing.",
);

fn sections(name: &str) -> &'static [Section] {
    match name {
        "fairlock" => &[STATUSES, VARIABLES, URLS, QUORUM, EXAMPLES],
        "run" => &[RUN_STATUSES, RUN_VARIABLES, NOT_PROMISED, RUN_EXAMPLES],
        "elect" => &[ELECT_STATUSES, RUN_VARIABLES, NOT_PROMISED],
        "watch" => &[WATCH_FORM, STATUSES],
        "serve" => &[SERVE, SERVE_VARIABLES, STATUSES],
        "doctor" => &[DOCTOR_RIGHTS, STATUSES],
        "completions" | "man" => &[],
        _ => &[STATUSES],
    }
}

/// The description of the command line, with the longer texts.
pub(crate) fn command() -> clap::Command {
    let with_sections = |command: clap::Command| {
        let sections = sections(command.get_name()).iter();
        let texts: Vec<_> = sections
            .map(|(heading, text)| format!("{heading}:\n  {}", text.replace('\n', "\n  ")))
            .collect();
        match texts.is_empty() {
            true => command,
            false => command.after_long_help(texts.join("\n\n")),
        }
    };
    with_sections(Cli::command()).mut_subcommands(with_sections)
}

pub(crate) fn completions(shell: Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "fairlock", &mut script);
    say(&String::from_utf8_lossy(&script))?;
    Ok(Status::OK)
}

pub(crate) fn man(page: Option<&str>) -> Outcome {
    let mut command = command();
    // Gives the subcommands their full names and the global options.
    command.build();
    let name = page.unwrap_or("fairlock");
    let command = match page {
        None => command,
        Some(name) => {
            let unknown = || Failure::usage(format!("there is no page about {}", safe(name)));
            command.find_subcommand(name).cloned().ok_or_else(unknown)?
        }
    };
    let mut page = Vec::new();
    render(command, name, &mut page)
        .map_err(|error| Failure::new(Status::BROKEN, format!("cannot make the page: {error}")))?;
    say(&String::from_utf8_lossy(&page))?;
    Ok(Status::OK)
}

fn render(command: clap::Command, name: &str, page: &mut Vec<u8>) -> io::Result<()> {
    let title = match name {
        "fairlock" => name.to_owned(),
        _ => format!("fairlock-{name}"),
    };
    let has_subcommands = command.has_subcommands();
    // The section NAME has the first line already.
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let long = command.get_long_about().map(ToString::to_string).unwrap_or_default();
    let long = long
        .trim_start_matches(&about)
        .trim_start_matches('.')
        .trim_start()
        .to_owned();
    let command = if long.is_empty() {
        command
    } else {
        command.long_about(long)
    };
    let version = concat!("fairlock ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.display_name(&title))
        .title(title.to_uppercase())
        .source(version);
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    man.render_options_section(page)?;
    if has_subcommands {
        man.render_subcommands_section(page)?;
    }
    let mut further = Roff::new();
    for (heading, text) in sections(name) {
        further.control("SH", [*heading]).control("nf", []);
        for line in text.lines() {
            further.text([roman(line)]);
        }
        further.control("fi", []);
    }
    further.to_writer(page)
}
