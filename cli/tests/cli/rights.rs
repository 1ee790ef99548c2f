//! What the users of SECURITY.md may do: each runs every command that it is for, and no other one. `fairlock::rights` has the
//! rules; tests/it compares them with the page.

use crate::command::{Cli, Ended, ended, said};
use crate::quorum::fleet;
use crate::scene::{client, queue};
use fairlock::redis::{ErrorKind, RedisError, ServerErrorKind};
use fairlock::rights::Role;
use fairlock_support::server::{Server, soon};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;

/// How rules begin, so that nothing else is allowed.
const NOTHING: [&str; 5] = ["on", ">SECRET", "resetkeys", "resetchannels", "-@all"];
const EVERYBODYS: [&str; 3] = ["show", "watch", "doctor"];
const OPERATORS: [&str; 4] = ["ls", "top", "blockers", "serve"];

fn rules(role: Role) -> Vec<String> {
    let rules = NOTHING.into_iter().map(str::to_owned);
    rules.chain(role.rules("fairlock")).collect()
}

/// The rules that an error names, as somebody would copy them, and two that `ls` and `doctor` need.
fn rules_of_the_remedy() -> Vec<String> {
    let denied = RedisError::from((ErrorKind::Server(ServerErrorKind::NoPerm), "denied"));
    let (_, text) = fairlock::__cli::remedy(&denied).split_once("run ").expect("rights");
    let (rights, rest) = text.split_once(" on keys ").expect("keys");
    let (places, _) = rest.split_once(" (").expect("places");
    let places = places.split(' ').filter(|word| word.starts_with(['~', '&']));
    let words = NOTHING.into_iter().chain(rights.split(' ')).chain(places);
    words.chain(["+scan", "+info"]).map(str::to_owned).collect()
}

/// The command as a user with these rules.
async fn as_user(server: &Server, user: &str, rules: &[String]) -> Cli {
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg(user).arg("reset").arg(rules);
    command
        .exec_async(&mut server.redis().await)
        .await
        .expect("rules of an ACL");
    Cli::at(format!("redis://{user}:SECRET@127.0.0.1:{}", server.port()))
}

/// Runs a command as that user. `watch` and `serve` end once they have begun.
async fn run(server: &Server, cli: &Cli, command: &str) -> Ended {
    let lock = format!("lock-{}", uuid::Uuid::new_v4());
    let (owner, _clients) = queue(server, &lock).await;
    let owner = owner.to_string();
    let arguments: &[&str] = match command {
        "run" => &["run", "free", "--", "true"],
        "show" => &["show", &lock],
        "watch" => return watch(server, cli).await,
        "top" => &["top", "--once"],
        "serve" => return serve(cli).await,
        "blockers" => &["blockers", "mailing"],
        "evict" => &["evict", &lock, &owner, "--yes"],
        command => &[command],
    };
    cli.run(arguments).await
}

/// Ends it once it has said of an event who acts, which it asks of the server.
async fn watch(server: &Server, cli: &Cli) -> Ended {
    let mut child = cli.command(&["watch"]).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    soon("its first word", stderr.read_line(&mut line)).await.unwrap();
    let has_begun = line.contains("watching all locks");
    // Open to the end: without a reader the command would end.
    let mut events = BufReader::new(child.stdout.take().unwrap()).lines();
    if has_begun {
        let acting = client(server, "printing").await;
        let guard = acting.rw_lock("watched").write().acquire_fair().await.unwrap();
        let event = soon("an event", events.next_line()).await.unwrap().unwrap();
        assert!(said(&event, &["watched", "printing"]), "{event}");
        guard.release().await.unwrap();
    }
    let ended = interrupted(child, has_begun).await;
    Ended { stderr: line, ..ended }
}

/// Ends it once it serves: it has looked at all locks by then.
async fn serve(cli: &Cli) -> Ended {
    let mut child = cli.command(&["serve", "--listen", "127.0.0.1:0"]).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    soon("its first word", stdout.read_line(&mut line)).await.unwrap();
    interrupted(child, line.starts_with("http://")).await
}

/// Ends a command that has begun, and waits for the end of another one. An end by that signal is a good one.
async fn interrupted(child: Child, has_begun: bool) -> Ended {
    if has_begun {
        let pid = rustix::process::Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    }
    let mut ended = ended(child).await;
    if ended.status == 130 {
        ended.status = 0;
    }
    ended
}

/// Each of the first ones succeeds, each of the others is refused for want of a right.
async fn every_command(server: &Server, cli: &Cli, allowed: &[&str], refused: &[&str]) {
    for command in allowed {
        let ended = run(server, cli, command).await;
        assert_eq!(ended.status, 0, "{command}: {ended:?}");
        assert!(!ended.stderr.contains("permission"), "{command}: {ended:?}");
    }
    for command in refused {
        let ended = run(server, cli, command).await;
        assert_eq!(ended.status, 69, "{command}: {ended:?}");
        assert!(said(&ended.stderr, &["+"]), "{command} names no right: {ended:?}");
    }
}

#[tokio::test]
async fn the_rights_that_an_error_names_suffice_for_every_command() {
    let server = Server::start().await;
    let cli = as_user(&server, "operator", &rules_of_the_remedy()).await;
    let all = [&EVERYBODYS[..], &OPERATORS, &["run", "evict"]].concat();
    every_command(&server, &cli, &all, &[]).await;
}

#[tokio::test]
async fn the_reader_runs_every_command_that_looks() {
    let server = Server::start().await;
    let mut all = rules(Role::Reader);
    let mut looks = [&OPERATORS[..], &["show"]].concat();
    if !server.is_before_7().await {
        looks.extend(["watch", "doctor"]);
    } else {
        // As the page says: without rules in parentheses, and without events.
        let end = all.iter().position(|rule| rule == "(").expect("parentheses");
        all.truncate(end);
    }
    let cli = as_user(&server, "reader", &all).await;
    every_command(&server, &cli, &looks, &["run", "evict"]).await;
    let doctor = cli.run(&["doctor"]).await;
    assert!(
        said(
            &doctor.stdout,
            &["ok     server", "user reader may look at locks", "Fit to look"]
        ),
        "{doctor:?}"
    );
    assert!(!doctor.stdout.contains("ACL SETUSER reader +h"), "{doctor:?}");
    assert_eq!(cli.json(&["doctor"]).await["fit_for"], "looking");
}

#[tokio::test]
async fn the_service_runs_locks_and_looks_at_single_ones() {
    let server = Server::start().await;
    let cli = as_user(&server, "service", &rules(Role::Service)).await;
    let refused = [&OPERATORS[..], &["evict"]].concat();
    every_command(&server, &cli, &[&EVERYBODYS[..], &["run"]].concat(), &refused).await;
    assert_eq!(cli.json(&["doctor"]).await["fit_for"], "locking");
    let doctor = cli.says(&["doctor"]).await;
    assert!(
        said(&doctor, &["service has all that locks need", "+scan", "+zscan"]),
        "{doctor}"
    );
    let found = cli.run(&["ls"]).await;
    assert!(said(&found.stderr, &["needs +scan"]), "{found:?}");
}

#[tokio::test]
async fn the_evictor_runs_every_command() {
    let server = Server::start().await;
    let cli = as_user(&server, "evictor", &rules(Role::Evictor)).await;
    let all = [&EVERYBODYS[..], &OPERATORS, &["run", "evict"]].concat();
    every_command(&server, &cli, &all, &[]).await;
    let doctor = cli.json(&["doctor"]).await;
    assert_eq!(doctor["fit_for"], "locking", "{doctor}");
    let rights = doctor["findings"].as_array().unwrap().iter();
    let rights: Vec<_> = rights.filter(|finding| finding["about"] == "rights").collect();
    assert!(rights.len() == 1 && rights[0]["level"] == "ok", "{rights:?}");
}

#[tokio::test]
async fn operators_need_the_rights_to_find_and_to_inspect() {
    let server = Server::start().await;
    if server.is_before_7().await {
        println!("skipped: the server has no rules in parentheses");
        return;
    }
    for role in [Role::Reader, Role::Evictor] {
        for (right, commands) in [("+scan", &OPERATORS[..]), ("+info", &["doctor"])] {
            let mut rest = rules(role);
            assert!(rest.iter().any(|rule| rule == right), "{role:?} has no {right}");
            rest.retain(|rule| rule != right);
            let cli = as_user(&server, role.name(), &rest).await;
            for command in commands {
                let ended = run(&server, &cli, command).await;
                let complains = ended.status != 0 || ended.stdout.contains("INFO was refused");
                assert!(complains, "{role:?} runs {command} without {right}: {ended:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_user_without_a_password_logs_in_as_itself() {
    let servers = fleet(3).await;
    for server in &servers {
        for rules in [&["app", "on", "nopass", "~*", "&*", "+@all"][..], &["default", "off"]] {
            let mut set = redis::cmd("ACL");
            set.arg("SETUSER").arg(rules);
            set.exec_async(&mut server.redis().await).await.unwrap();
        }
    }
    let urls: Vec<_> = servers
        .iter()
        .map(|server| server.url().replace("//", "//app:@"))
        .collect();
    let named = ["--quorum", "billing", "--longest-lease", "1s"];
    for (url, options) in [(&urls[0], &[][..]), (&urls.join(" "), &named)] {
        for arguments in [&["ls"][..], &["run", "a", "--", "true"]] {
            let ended = Cli::at(url.clone()).run(&[options, arguments].concat()).await;
            assert_eq!(ended.status, 0, "{url} {arguments:?}: {ended:?}");
        }
    }
}
