//! A password of the URL: nothing that the command prints, keeps in the server or shows to `ps` contains it.

use crate::command::{BINARY, Cli, Ended, ended, piped};
use crate::scene::queue;
use fairlock_support::server::{Server, content, eventually};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;

const PASSWORD: &str = "hunter2hunter2";

/// A server that everybody must log in to, once clients without a login are connected.
async fn locked(server: &Server) -> Cli {
    for command in [
        vec![
            "ACL",
            "SETUSER",
            "ann",
            "on",
            &format!(">{PASSWORD}"),
            "~*",
            "&*",
            "+@all",
        ],
        vec!["CONFIG", "SET", "requirepass", PASSWORD],
    ] {
        let mut cmd = redis::cmd(command[0]);
        cmd.arg(&command[1..])
            .exec_async(&mut server.redis().await)
            .await
            .unwrap();
    }
    Cli::at(format!("redis://ann:{PASSWORD}@127.0.0.1:{}", server.port()))
}

fn is_clean(what: &[&str], ended: &Ended) {
    let said = format!("{}{}", ended.stdout, ended.stderr);
    assert!(!said.contains(PASSWORD), "{what:?} shows the password: {ended:?}");
}

#[tokio::test]
async fn no_command_shows_the_password_whether_it_succeeds_is_refused_or_finds_nobody() {
    let server = Server::start().await;
    let (owner, _clients) = queue(&server, "a").await;
    let cli = locked(&server).await;
    let owner = owner.to_string();
    let away = Cli::at(format!(
        "redis://ann:{PASSWORD}@127.0.0.1:{}",
        fairlock_support::server::free_port()
    ));
    let wrong = Cli::at(format!("redis://bob:{PASSWORD}@127.0.0.1:{}", server.port()));
    for arguments in [
        &["ls"][..],
        &["ls", "--json"],
        &["show", "a"],
        &["show", "--raw", "a"],
        &["show", "a", "--json"],
        &["blockers", "a"],
        &["top", "--once"],
        &["doctor"],
        &["doctor", "--json"],
        &["leader", "nobody"],
        &["run", "b", "--", "true"],
        &["run", "--no-wait", "a", "--", "true"],
        &["run", "b", "--", "false"],
        &["evict", "a", &owner, "--yes"],
    ] {
        let succeeded = cli.run(arguments).await;
        assert_ne!(succeeded.status, 69, "{arguments:?}: {succeeded:?}");
        is_clean(arguments, &succeeded);
        let refused = wrong.run(arguments).await;
        assert_ne!(refused.status, 0, "{arguments:?}: {refused:?}");
        is_clean(arguments, &refused);
        is_clean(arguments, &away.run(arguments).await);
    }
}

/// A server repeats the arguments of a command that it does not know, and HELLO has the password.
#[tokio::test]
async fn a_server_that_does_not_know_the_login_tells_no_password() {
    let server = Server::start_with(&["--rename-command", "HELLO", ""]).await;
    let port = server.port();
    for url in ["redis", "redis+cluster", "redis+sentinel"] {
        let master = if url == "redis+sentinel" { "/master" } else { "" };
        let login = format!("{url}://:{PASSWORD}@127.0.0.1:{port}{master}?protocol=resp3");
        for arguments in [&["ls"][..], &["doctor"], &["run", "a", "--", "true"]] {
            let refused = Cli::at(login.clone()).run(arguments).await;
            assert_ne!(refused.status, 0, "{url} {arguments:?}: {refused:?}");
            is_clean(arguments, &refused);
        }
    }
}

#[tokio::test]
async fn a_password_that_stands_where_a_user_belongs_is_refused_and_not_shown() {
    let port = fairlock_support::server::free_port();
    let hosts = format!("{PASSWORD}@127.0.0.1:{port}");
    let other = format!("redis://127.0.0.1:{port}");
    let quorum = format!("redis://{hosts} {other}1 {other}2");
    let urls = ["redis", "rediss", "redis+cluster", "redis+sentinel"].map(|scheme| format!("{scheme}://{hosts}"));
    for url in urls.into_iter().chain([quorum]) {
        let of_quorum = ["--quorum", "q", "--longest-lease", "30s", "run", "a", "--", "true"];
        for arguments in [
            &["ls"][..],
            &["top", "--once"],
            &["doctor"],
            &["serve", "--listen", "127.0.0.1:0"],
            &["run", "a", "--", "true"],
            &of_quorum[if url.contains(' ') { 0 } else { 4 }..],
        ] {
            let mut command = Command::new(BINARY);
            command.args(arguments);
            let by_variable = ended(piped(command).env("REDIS_URL", &url).spawn().unwrap()).await;
            for refused in [by_variable, Cli::at(url.clone()).run(arguments).await] {
                assert_eq!(refused.status, 64, "{url} {arguments:?}: {refused:?}");
                assert!(
                    refused.stderr.contains(":PASSWORD@"),
                    "{url} {arguments:?}: {refused:?}"
                );
                is_clean(arguments, &refused);
            }
        }
    }
}

#[tokio::test]
async fn neither_ps_nor_the_server_shows_a_password_of_redis_url() {
    let server = Server::start().await;
    let cli = locked(&server).await;
    let mut command = Command::new(BINARY);
    command.args(["run", "a", "--", "sh", "-c", "cat /proc/$PPID/cmdline; exec sleep 600"]);
    let mut command = piped(command);
    let running = command.env("REDIS_URL", &cli.url).spawn().unwrap();
    let pid = running.id().unwrap();
    let client = redis::Client::open(&*cli.url).unwrap();
    let mut redis = client.get_multiplexed_async_connection().await.unwrap();
    let all = async |redis: &mut redis::aio::MultiplexedConnection| {
        let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(redis).await.unwrap();
        keys.sort();
        keys
    };
    let here = redis.clone();
    eventually("it holds, and has introduced itself", async || {
        let keys = all(&mut here.clone()).await;
        keys.iter().any(|key| key.contains(":client:")) && keys.iter().any(|key| key == "fairlock:{a}")
    })
    .await;
    let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    assert!(line.contains("run") && !line.contains(PASSWORD), "{line}");
    for key in all(&mut redis).await {
        for part in content(&mut redis, &key).await {
            assert!(!String::from_utf8_lossy(&part).contains(PASSWORD), "{key}");
        }
    }
    let clients: String = redis::cmd("CLIENT").arg("LIST").query_async(&mut redis).await.unwrap();
    assert!(clients.contains("user=ann") && !clients.contains(PASSWORD), "{clients}");
    // Not SIGKILL: the sleep would go on, with the pipe.
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::TERM).unwrap();
    is_clean(&["run"], &ended(running).await);
}
