//! The command under the lock as a process: how it starts, how signals reach it, and how the kernel ends it with fairlock.

use crate::outcome::{Failure, Status};
use rustix::process::{
    Pid, Signal, WaitOptions, getpgrp, kill_process, kill_process_group, test_kill_process_group, waitpgid,
};
use rustix::termios::tcgetpgrp;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::ExitStatus;
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

pub(crate) struct Child {
    process: tokio::process::Child,
    pid: Pid,
    /// The terminal whose keys reach the command too, because the command stays in fairlock's process group. `None`: the
    /// command leads a group of its own.
    terminal: Option<File>,
}

impl Child {
    pub(crate) fn start(command: &[OsString], variables: Vec<(&'static str, String)>) -> Result<Self, Failure> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(Failure::usage("there is no command to run"));
        };
        let mut command = prepared(program);
        command.args(arguments).envs(variables).kill_on_drop(true);
        let terminal = File::open("/dev/tty").ok();
        if terminal.is_none() {
            command.process_group(0);
        }
        // A process that ignores SIGCHLD, as this one may have been told to, never learns how its children ended.
        let _ends = signal(SignalKind::child())
            .map_err(|error| Failure::new(Status::BROKEN, format!("cannot hear of the command's end: {error}")))?;
        let process = command.spawn().map_err(|error| cannot_run(program, &error))?;
        let pid = process.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let pid = pid.ok_or_else(|| Failure::new(Status::BROKEN, "the command has no process number"))?;
        Ok(Self { process, pid, terminal })
    }

    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.process.wait().await
    }

    /// Forwards a signal. After [`wait`](Self::wait) has returned only to a [group](Self::has_group): the process number may
    /// be another process's then.
    pub(crate) fn forward(&self, signal: Signal) {
        let of_the_terminal = matches!(signal, Signal::INT | Signal::QUIT);
        if of_the_terminal && self.is_in_the_foreground() {
            // The terminal has sent the key's signal to the command too. A signal from kill(1) looks the same.
            return;
        }
        self.send(signal);
    }

    pub(crate) fn send(&self, signal: Signal) {
        // This fails if the process or group is gone.
        let _ = match self.terminal {
            Some(_) => kill_process(self.pid, signal),
            None => kill_process_group(self.pid, signal),
        };
    }

    /// Whether processes of its group are left, after [`wait`](Self::wait) has returned. The system does not reuse a group's
    /// number while a process is in the group.
    pub(crate) fn has_group(&self) -> bool {
        if self.terminal.is_some() {
            return false;
        }
        // As the first process of a container, fairlock is the parent of what the command left behind. Those that have
        // ended are in the group until their parent waits for them.
        while let Ok(Some(_)) = waitpgid(self.pid, WaitOptions::NOHANG) {}
        test_kill_process_group(self.pid).is_ok()
    }

    fn is_in_the_foreground(&self) -> bool {
        let foreground = self.terminal.as_ref().and_then(|terminal| tcgetpgrp(terminal).ok());
        foreground == Some(getpgrp())
    }
}

/// The status by which a shell shows how a command ended.
pub(crate) fn status_of(ended: ExitStatus) -> Status {
    match (ended.code(), ended.signal()) {
        (Some(code), _) => Status(u8::try_from(code).unwrap_or(u8::MAX)),
        (None, Some(signal)) => Status::of_signal(signal),
        (None, None) => Status::BROKEN,
    }
}

fn cannot_run(program: &OsStr, error: &io::Error) -> Failure {
    let status = match error.kind() {
        io::ErrorKind::NotFound => 127,
        _ => 126,
    };
    let program = crate::text::safe_bytes(program.as_encoded_bytes());
    Failure::new(Status(status), format!("cannot run {program}: {error}"))
}

#[cfg(not(target_os = "linux"))]
fn prepared(program: &OsStr) -> Command {
    Command::new(program)
}

#[cfg(target_os = "linux")]
pub(crate) use on_linux::become_command;
#[cfg(target_os = "linux")]
use on_linux::prepared;

/// On Linux a process can ask the kernel to kill it when its parent ends. Only the process itself can ask, and the wish
/// survives exec. So fairlock starts itself again, and the new process asks and then becomes the command.
#[cfg(target_os = "linux")]
mod on_linux {
    use super::*;
    use rustix::process::{getpid, getppid, set_parent_process_death_signal};
    use std::path::Path;

    /// The subcommand of the new process, hidden from the help.
    const BECOME: &str = "__become";
    const OURSELVES: &str = "/proc/self/exe";

    pub(super) fn prepared(program: &OsStr) -> Command {
        if !Path::new(OURSELVES).exists() {
            return Command::new(program);
        }
        let mut command = Command::new(OURSELVES);
        command
            .arg0("fairlock")
            .arg(BECOME)
            .arg(getpid().to_string())
            .arg(program);
        command
    }

    /// Turns this process into the command and does not return. `None`: this process is not the new one.
    pub(crate) fn become_command() -> Option<Failure> {
        let mut arguments = std::env::args_os().skip(1);
        if arguments.next()? != BECOME {
            return None;
        }
        let parent = arguments.next()?.to_str()?.parse().ok().and_then(Pid::from_raw);
        let program = arguments.next()?;
        // If this fails, the command may outlive fairlock, and nothing else changes.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        if getppid() != parent {
            return Some(Failure::new(Status::of_signal(Signal::KILL.as_raw()), ""));
        }
        let error = std::process::Command::new(&program).args(arguments).exec();
        Some(cannot_run(&program, &error))
    }
}
