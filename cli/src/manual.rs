//! The longer texts, for `--help` and for the man pages, and what is made of the command line's description.

use crate::args::Cli;
use crate::outcome::{Failure, Outcome, Status, say};
use crate::text::safe;
use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use std::io;

/// A heading and what stands under it, as it is laid out here.
type Section = (&'static str, &'static str);

const STATUSES: Section = (
    "EXIT STATUS",
    "0    done
1    not there: nothing to evict, nobody who waits; for doctor: something is wrong
64   wrong usage, also a lock's name or a time that is refused
66   show, evict: there is no such lock under the prefix (never used, or unused for a minute)
69   the server cannot be reached or refuses, or is a Sentinel or a node of a cluster
70   something else went wrong: no terminal, a file that cannot be written
128+N  ended by signal N; 141: nobody reads the output any more",
);

const RUN_STATUSES: Section = (
    "EXIT STATUS",
    "COMMAND's own, 128+N if signal N ended it. Otherwise:
64   wrong usage, also a lock's name or a time that is refused
69   the server cannot be reached or refuses, or is a Sentinel or a node of a cluster
     (--unavailable-status)
70   something else went wrong
75   the lock is busy, or was not acquired in time (--busy-status, -E)
76   the lock was lost, also if COMMAND ended well meanwhile (--lost-status)
126  COMMAND cannot be executed
127  COMMAND was not found
128+N  signal N came while fairlock waited for the lock",
);

const VARIABLES: Section = (
    "ENVIRONMENT",
    "REDIS_URL  the server, unless --url is given. A password in it does not show in the list
           of processes, one in --url does.",
);

const RUN_VARIABLES: Section = (
    "ENVIRONMENT",
    "REDIS_URL       the server, unless --url is given
FAIRLOCK_TOKEN  for COMMAND: the fencing token, a number that is greater than that of every
                earlier grant of the lock
FAIRLOCK_NAME   for COMMAND: the lock's name",
);

const NOT_PROMISED: Section = (
    "WHAT IS NOT PROMISED",
    "COMMAND is told to end a moment before others may enter, but nobody can make it stop at once:
it may catch TERM, be frozen, or have work under way elsewhere. Only what it works on can
refuse such late work, by the token. A server that loses its data loses the locks.",
);

const RUN_EXAMPLES: Section = (
    "EXAMPLES",
    "fairlock run nightly-backup -- /usr/local/bin/backup
fairlock run --no-wait report -- make report
fairlock run --read --wait 30s catalog -- ./export
fairlock run deploy -- sh -c 'curl -H \"Fence: $FAIRLOCK_TOKEN\" ...'",
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
    "queued    could not enter at once and took its place in the queue
granted   entered
released  left the lock
expired   its lease ran out, while it held or waited
left      left the queue without having entered
evicted   was thrown out by an operator
With --json events that were missed show as an object of their own, \"event\": \"missed\".",
);

const DOCTOR_RIGHTS: Section = (
    "WHAT IT DOES TO THE SERVER",
    "It tries commands under keys of a lock with a random name and deletes them; it publishes to a
channel of its own. It changes no setting. Whoever may not use INFO or CONFIG sees fewer
findings; locks need neither. With a user's name in the URL it finds out what that user may do.
A user who may look at locks and not use them is fit for that: the last line says so, and with
--json \"fit_for\": locking, looking or nothing.",
);

fn sections(name: &str) -> &'static [Section] {
    match name {
        "fairlock" => &[STATUSES, VARIABLES, EXAMPLES],
        "run" => &[RUN_STATUSES, RUN_VARIABLES, NOT_PROMISED, RUN_EXAMPLES],
        "watch" => &[WATCH_FORM, STATUSES],
        "doctor" => &[DOCTOR_RIGHTS, STATUSES],
        "completions" | "man" => &[],
        _ => &[STATUSES],
    }
}

/// The command line, with its longer texts.
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
    // Gives subcommands their full names and the options that all have.
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
    // What is said in a line of the name need not be said again below it.
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
