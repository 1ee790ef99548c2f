//! What a row is given: a server, how long to measure, other processes; and what the machine is.

use crate::cores::{Cores, Placed};
use crate::worker::Worker;
use fairlock::Client;
use fairlock_support::server::{PATIENCE, Server, connected};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::fs::read_to_string;
use std::io::{IsTerminal, Write, stderr};
use std::process::Command;

pub struct Env {
    /// For all rows. One that leaves much behind starts its own: [`Env::another_server`].
    pub server: Server,
    pub rounds: usize,
    pub quick: bool,
    pub program: String,
    placed: RefCell<Placed>,
}

impl Env {
    pub async fn start(program: &str, rounds: usize, quick: bool) -> Self {
        Self {
            server: Server::start_program(&[program.to_owned()], &[]).await,
            rounds,
            quick,
            program: program.to_owned(),
            placed: RefCell::new(Placed::anywhere()),
        }
    }

    /// From now on this program, its server and what they start run there.
    pub fn place(&self, cores: Cores) {
        let mut placed = self.placed.borrow_mut();
        placed.place(cores);
        placed.place_server(&self.server);
    }

    pub async fn another_server(&self) -> Server {
        self.another_server_with(&[]).await
    }

    pub async fn another_server_with(&self, args: &[&str]) -> Server {
        let server = Server::start_program(std::slice::from_ref(&self.program), args).await;
        self.placed.borrow().place_server(&server);
        server
    }

    /// So many when all is measured, a fifth with `--quick`.
    pub fn times(&self, n: usize) -> usize {
        if self.quick { n.div_ceil(5) } else { n }
    }

    /// The rounds of a row, shown as they go.
    pub fn rounds(&self, what: &str) -> impl Iterator<Item = usize> + use<> {
        self.some_rounds(what, usize::MAX)
    }

    /// At most so many: of what takes long.
    pub fn some_rounds(&self, what: &str, most: usize) -> impl Iterator<Item = usize> + use<> {
        let (what, rounds) = (what.to_owned(), self.rounds.min(most));
        let drawn = stderr().is_terminal();
        (0..rounds).inspect(move |round| {
            let line = format!("{what}: round {}/{rounds}", round + 1);
            // A log gets one line of a row.
            let shown = match (drawn, round) {
                (true, _) => write!(stderr(), "\r{line:<78}{}", if round + 1 == rounds { "\r" } else { "" }),
                (false, 0) => writeln!(stderr(), "{what}: {rounds} rounds"),
                (false, _) => Ok(()),
            };
            // Who closed the other end does not want to see it.
            drop(shown);
        })
    }

    /// A connection of the kind that fairlock uses, for a floor.
    pub async fn connection(&self) -> MultiplexedConnection {
        connection(&self.server.url()).await
    }

    /// Microseconds that the server has spent in a command, what a script calls included.
    pub async fn spent(&self, command: &str) -> f64 {
        let mut info = redis::cmd("INFO");
        info.arg("commandstats");
        let text: String = info.query_async(&mut self.server.redis().await).await.expect("INFO");
        usec(&text, command)
    }

    /// Another process of this program, that knows the server.
    pub async fn worker(&self, job: &str) -> Worker {
        Worker::start(job, &self.server.url()).await
    }
}

/// From the text of INFO; 0 if the command has not been called yet.
pub fn usec(text: &str, command: &str) -> f64 {
    let prefix = format!("cmdstat_{command}:");
    let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
    line.map_or(0.0, |line| {
        let usec = line.split(',').find_map(|field| field.strip_prefix("usec="));
        usec.expect("usec").parse().expect("a number")
    })
}

/// A client of a server that is up, however slow the machine is.
pub async fn connect(url: &str) -> Client {
    connected(Client::builder(), url).await
}

/// A connection of the kind that fairlock uses: at once, and without a timer of the library's own.
pub async fn connection(url: &str) -> MultiplexedConnection {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(1024);
    let connection = plain(url, None)
        .get_multiplexed_async_connection_with_config(&config)
        .await;
    connection.expect("the server answers")
}

/// One that hands what the server pushes to `on_push`, on the connection's own task.
pub async fn listening(url: &str, on_push: impl Fn(PushInfo) + Send + Sync + 'static) -> MultiplexedConnection {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(1024)
        .set_push_sender(move |push| {
            on_push(push);
            Ok::<(), redis::aio::SendError>(())
        });
    let client = plain(url, Some(ProtocolVersion::RESP3));
    let connection = client.get_multiplexed_async_connection_with_config(&config).await;
    connection.expect("the server answers")
}

/// A client whose connections send at once.
pub fn plain(url: &str, protocol: Option<ProtocolVersion>) -> redis::Client {
    let info = redis::Client::open(url)
        .expect("a valid URL")
        .get_connection_info()
        .clone();
    let settings = info.redis_settings().clone();
    let settings = match protocol {
        Some(protocol) => settings.set_protocol(protocol),
        None => settings,
    };
    let tcp = TcpSettings::default().set_nodelay(true);
    redis::Client::open(info.set_tcp_settings(tcp).set_redis_settings(settings)).expect("valid settings")
}

/// What the numbers were measured on.
pub struct Machine {
    cores: usize,
    cpu: String,
    kernel: String,
    server: String,
    date: String,
    load: f64,
    rounds: usize,
    quick: bool,
}

impl Machine {
    pub async fn look(env: &Env) -> Self {
        let cpuinfo = read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let kernel = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let mut redis = env.server.redis().await;
        let info: String = redis::cmd("INFO")
            .arg("server")
            .query_async(&mut redis)
            .await
            .expect("INFO");
        let version = |name: &str| info.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
        let valkey = version("valkey_version:").map(|version| format!("Valkey {version}"));
        let server = valkey.or_else(|| version("redis_version:").map(|version| format!("Redis {version}")));
        Self {
            cores: std::thread::available_parallelism().map_or(0, Into::into),
            cpu: cpu.map_or("unknown", |(_, name)| name.trim()).to_owned(),
            kernel: kernel.trim().to_owned(),
            server: server.unwrap_or_else(|| "unknown".to_owned()),
            date: date(),
            load: load(),
            rounds: env.rounds,
            quick: env.quick,
        }
    }

    pub fn summary(&self) -> String {
        format!(
            "{}, {} cores, Linux {}, {}, load {:.2}; loopback, the server beside the clients; {} rounds{}",
            self.cpu,
            self.cores,
            self.kernel,
            self.server,
            self.load,
            self.rounds,
            if self.quick { " (quick)" } else { "" },
        )
    }

    pub fn json(&self) -> Value {
        json!({
            "cores": self.cores, "cpu": self.cpu, "kernel": self.kernel, "server": self.server, "date": self.date,
            "load_before": self.load, "load_after": load(), "rounds": self.rounds, "quick": self.quick,
        })
    }
}

/// The load average of the last minute.
pub fn load() -> f64 {
    let text = read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ')
        .next()
        .and_then(|load| load.parse().ok())
        .unwrap_or(f64::NAN)
}

/// Of today, in UTC.
pub fn date() -> String {
    let date = Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]).output();
    date.map_or_else(
        |error| format!("unknown: {error}"),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_in_a_command_is_read_from_info() {
        let text = "# Commandstats\r\ncmdstat_setex:calls=1,usec=5,usec_per_call=5.00\r\n\
            cmdstat_set:calls=2,usec=17,usec_per_call=8.50\r\n";
        assert_eq!(usec(text, "set"), 17.0);
        assert_eq!(usec(text, "get"), 0.0);
    }
}
