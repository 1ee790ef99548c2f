//! What work a server did meanwhile: its CPU time, the time of its scripts, and the commands that it executed.

use crate::env::{connection, usec};
use crate::monitor::Monitor;
use fairlock_support::server::Server;
use redis::aio::MultiplexedConnection;

/// All ways to call a script.
const SCRIPTS: [&str; 3] = ["eval", "evalsha", "fcall"];

pub struct Cost {
    pub cpu_us: f64,
    pub scripts_us: f64,
}

pub struct Meter {
    redis: MultiplexedConnection,
}

impl Meter {
    pub async fn new(server: &Server) -> Self {
        Self {
            redis: connection(&server.url()).await,
        }
    }

    /// The CPU time is read last here and first in `end`, because INFO itself needs some.
    pub async fn begin(&mut self) -> Cost {
        let scripts_us = self.scripts_us().await;
        let cpu_us = cpu_us(&self.info("cpu").await);
        Cost { cpu_us, scripts_us }
    }

    /// Since `begin`.
    pub async fn end(&mut self, before: Cost) -> Cost {
        let cpu_us = cpu_us(&self.info("cpu").await);
        Cost {
            cpu_us: cpu_us - before.cpu_us,
            scripts_us: self.scripts_us().await - before.scripts_us,
        }
    }

    async fn scripts_us(&mut self) -> f64 {
        let stats = self.info("commandstats").await;
        SCRIPTS.iter().map(|command| usec(&stats, command)).sum()
    }

    async fn info(&mut self, section: &str) -> String {
        let mut info = redis::cmd("INFO");
        info.arg(section).query_async(&mut self.redis).await.expect("INFO")
    }
}

/// In the kernel and outside it.
fn cpu_us(info: &str) -> f64 {
    ["used_cpu_sys:", "used_cpu_user:"]
        .iter()
        .map(|name| {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            line.expect("the server's CPU time").parse::<f64>().expect("seconds") * 1e6
        })
        .sum()
}

/// Commands that clients sent, and commands that scripts called.
#[derive(Debug, Default, PartialEq)]
pub struct Counts {
    pub sent: usize,
    pub inner: usize,
}

impl Counts {
    /// A line of MONITOR.
    fn count(&mut self, line: &str) {
        let Some((head, command)) = line.split_once(" \"") else {
            return;
        };
        if head.ends_with(" lua]") {
            self.inner += 1;
            return;
        }
        // The bench's own connections, and what any client says when it connects.
        let name = command.split('"').next().unwrap_or_default().to_lowercase();
        if !["info", "echo", "hello", "client"].contains(&name.as_str()) {
            self.sent += 1;
        }
    }
}

pub struct Counter(Monitor);

impl Counter {
    pub async fn start(server: &Server) -> Self {
        Self(Monitor::start(server).await)
    }

    /// Since `start`.
    pub async fn end(&mut self, server: &Server) -> Counts {
        let mut counts = Counts::default();
        for line in self.0.until_now(server).await {
            counts.count(&line);
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_that_of_the_kernel_and_of_the_program() {
        let info = "# CPU\r\nused_cpu_sys:1.000250\r\nused_cpu_user:0.500000\r\nused_cpu_sys_children:9.0\r\n\
            used_cpu_user_children:9.0\r\nused_cpu_sys_main_thread:7.0\r\n";
        assert_eq!(cpu_us(info).round(), 1_500_250.0);
    }

    #[test]
    fn commands_of_scripts_are_told_from_those_of_clients() {
        let mut counts = Counts::default();
        for line in [
            r#"+1.5 [0 127.0.0.1:9] "EVALSHA" "0f" "1" "k""#,
            r#"+1.5 [0 lua] "GET" "k""#,
            r#"+1.5 [0 lua] "DEL" "k""#,
            r#"+1.5 [0 127.0.0.1:9] "blpop" "client" "1""#,
            r#"+1.5 [0 127.0.0.1:9] "CLIENT" "SETINFO" "LIB-NAME" "x""#,
            r#"+1.5 [0 127.0.0.1:9] "info" "commandstats""#,
        ] {
            counts.count(line);
        }
        assert_eq!(counts, Counts { sent: 2, inner: 2 });
    }
}
