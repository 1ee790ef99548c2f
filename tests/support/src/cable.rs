//! A server in a network namespace, behind a router in another one. The router stops forwarding, and all packets vanish in
//! both directions: no reset, no error, no carrier lost. Needs Linux, root and iproute2.

use crate::server::Server;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

pub struct Cable {
    /// Of the host's end, and the beginning of the namespaces' names.
    name: String,
    host: String,
    switch: Option<Switch>,
}

/// A shell in the router's namespace, which writes what it reads to the setting, and says when it has.
struct Switch {
    shell: Child,
    orders: ChildStdin,
    done: BufReader<ChildStdout>,
}

fn ip(args: &str) -> Result<(), String> {
    let output = Command::new("ip").args(args.split(' ')).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {args}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

impl Cable {
    /// Fails where a cable cannot be laid: without root, or without iproute2.
    pub fn lay() -> Result<Self, String> {
        // Names and addresses of its own among the cables of this process.
        static NUMBER: AtomicU16 = AtomicU16::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id() % 0x10000;
        let name = format!("fl{process:x}-{number}");
        // Of 10.64.0.0/10: process and number choose a block of eight addresses.
        let block = (process.wrapping_mul(61) + u32::from(number)) % (1 << 19);
        let address = |last: u32| {
            let [_, b, c, d] = (block * 8 + last).to_be_bytes();
            format!("10.{}.{c}.{d}", 64 + b % 64)
        };
        let mut cable = Self {
            host: address(6),
            name: name.clone(),
            switch: None,
        };
        // From here on its drop takes away whatever there is by then.
        for command in [
            format!("netns add {name}r"),
            format!("netns add {name}s"),
            format!("link add {name} type veth peer name near netns {name}r"),
            format!("addr add {}/30 dev {name}", address(1)),
            format!("link set {name} up"),
            format!("-n {name}r addr add {}/30 dev near", address(2)),
            format!("-n {name}r link set near up"),
            format!("-n {name}r link add far type veth peer name end netns {name}s"),
            format!("-n {name}r addr add {}/30 dev far", address(5)),
            format!("-n {name}r link set far up"),
            format!("-n {name}s addr add {}/30 dev end", address(6)),
            format!("-n {name}s link set end up"),
            format!("-n {name}s link set lo up"),
            format!("-n {name}s route add default via {}", address(5)),
            format!("route add {}/30 via {}", address(4), address(2)),
        ] {
            ip(&command)?;
        }
        cable.switch = Some(Switch::at(&name)?);
        cable.forward(true)?;
        Ok(cable)
    }

    /// A server at the other end.
    pub async fn server(&self, program: &str) -> Server {
        let namespace = format!("{}s", self.name);
        let program = ["ip", "netns", "exec", &namespace, program].map(str::to_owned);
        Server::start_program(&program, &["--bind", &self.host, "--protected-mode", "no"]).await
    }

    /// The URL of such a server. Its Unix socket needs no cable.
    pub fn url(&self, server: &Server) -> String {
        format!("redis://{}:{}", self.host, server.port())
    }

    /// Whether packets pass. Otherwise all vanish, in both directions, and nobody is told.
    pub fn forward(&mut self, forward: bool) -> Result<(), String> {
        let switch = self.switch.as_mut().ok_or("a cable without a switch")?;
        let said = switch.order(u8::from(forward));
        match said.map_err(|error| format!("the router: {error}"))?.trim() {
            "done" => Ok(()),
            said => Err(format!("the router says {said:?}")),
        }
    }
}

impl Switch {
    fn order(&mut self, order: u8) -> io::Result<String> {
        writeln!(self.orders, "{order}")?;
        let mut said = String::new();
        self.done.read_line(&mut said)?;
        Ok(said)
    }

    fn at(name: &str) -> Result<Self, String> {
        let script = "while read -r v; do echo $v > /proc/sys/net/ipv4/ip_forward && echo done || echo failed; done";
        let mut shell = Command::new("ip")
            .args(["netns", "exec", &format!("{name}r"), "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("ip: {error}"))?;
        let orders = shell.stdin.take().ok_or("no pipe")?;
        let done = BufReader::new(shell.stdout.take().ok_or("no pipe")?);
        Ok(Self { shell, orders, done })
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        if let Some(Switch {
            mut shell,
            orders,
            done,
        }) = self.switch.take()
        {
            // It reads the end of its orders, and ends.
            drop((orders, done));
            if let Err(error) = shell.wait() {
                eprintln!("cable: the router's shell: {error}");
            }
        }
        // With the namespaces go their ends of the links, and with those the other ends and the route.
        for namespace in [format!("{}s", self.name), format!("{}r", self.name)] {
            let known = std::path::Path::new("/var/run/netns").join(&namespace).exists();
            if known && let Err(error) = ip(&format!("netns del {namespace}")) {
                eprintln!("cable: left behind: {error}");
            }
        }
    }
}
