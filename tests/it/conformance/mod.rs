//! The conformance suite, `tests/conformance`, run on the scripts in `lua`. Its README says what a step means.

mod client;
mod pattern;
mod python;
mod scenario;
mod scripts;
mod suite;

use crate::lua::{Lock, PAST, State};
use crate::server::{PATIENCE, Server, patient, soon};
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, PushKind};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use tokio::sync::mpsc;

use pattern::matches;
use scenario::{Keys, Left, Step, scenarios};
use scripts::Scripts;

/// How grants are published.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Publish {
    Plainly,
    Sharded,
}

impl Publish {
    fn command(self) -> &'static str {
        match self {
            Self::Plainly => "PUBLISH",
            Self::Sharded => "SPUBLISH",
        }
    }
}

/// One run of a scenario, on a lock of its own.
struct Run<'a> {
    scripts: &'a Scripts,
    publish: Publish,
    /// What is no script's is done by an administrator.
    lock: Lock,
    user: redis::aio::MultiplexedConnection,
    channels: String,
    pushes: mpsc::UnboundedReceiver<(String, String)>,
    /// Ends the subscriptions when it is dropped.
    _listening: redis::aio::MultiplexedConnection,
    /// The one to the lock's events. In a cluster it exists while a step says that somebody listens.
    events: redis::aio::MultiplexedConnection,
    numbers: BTreeMap<String, i64>,
}

/// What came on the channels after a step: grants by client, and events.
type Heard = (BTreeMap<String, String>, Vec<String>);

impl<'a> Run<'a> {
    async fn new(server: &Server, url: &str, scripts: &'a Scripts, publish: Publish, name: &str) -> Self {
        let user = redis::Client::open(url).expect("a URL");
        let user = user.get_multiplexed_async_connection_with_config(&patient()).await;
        let user = user.expect("a connection");
        let lock = Lock::through(server.redis().await, name);
        let (told, pushes) = mpsc::unbounded_channel();
        let config: AsyncConnectionConfig = patient().set_push_sender(move |push: PushInfo| {
            let text = |at: usize| redis::from_redis_value::<String>(push.data[at].clone());
            if matches!(push.kind, PushKind::Message | PushKind::SMessage) {
                let _ = told.send((text(0).expect("a channel"), text(1).expect("a message")));
            }
            Ok::<(), redis::aio::SendError>(())
        });
        let listener = redis::Client::open(server.url()).expect("a URL");
        let info = listener.get_connection_info();
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let listener = redis::Client::open(info.clone().set_redis_settings(settings)).expect("a URL");
        let connect = async || {
            let connection = listener.get_multiplexed_async_connection_with_config(&config).await;
            connection.expect("a connection")
        };
        let mut listening = connect().await;
        let (command, channels) = match publish {
            Publish::Plainly => ("SUBSCRIBE", "fairlock:c:".to_owned()),
            Publish::Sharded => ("SSUBSCRIBE", format!("{}:c:", lock.keys[0])),
        };
        let mut subscribe = redis::cmd(command);
        for client in 0..10 {
            subscribe.arg(format!("{channels}{client}"));
        }
        subscribe.exec_async(&mut listening).await.expect("a subscription");
        let mut run = Self {
            scripts,
            publish,
            events: connect().await,
            lock,
            user,
            channels,
            pushes,
            _listening: listening,
            numbers: BTreeMap::new(),
        };
        if publish == Publish::Plainly {
            run.events_by("SUBSCRIBE").await;
        }
        run
    }

    async fn events_by(&mut self, command: &str) {
        let mut subscribe = redis::cmd(command);
        subscribe.arg(format!("{}:events", self.lock.keys[0]));
        subscribe.exec_async(&mut self.events).await.expect("a subscription");
    }

    async fn step(&mut self, step: &Step) -> Result<(), String> {
        let same = step.error.is_some() || matches!(step.keys, Some(Left::Same(_)));
        let before = if same { self.lock.dump().await } else { Vec::new() };
        self.act_for_all(step).await?;
        if same && self.lock.dump().await != before {
            return Err("the keys are not the same as before".to_owned());
        }
        match &step.keys {
            Some(Left::Keys(keys)) => self.check_keys(keys).await,
            Some(Left::Same(word)) if word != "same" => panic!("no such keys: {word}"),
            _ => Ok(()),
        }
    }

    async fn act_for_all(&mut self, step: &Step) -> Result<(), String> {
        match step.range {
            Some((first, last)) => {
                for n in first..=last {
                    let at = |arg: &Value| match arg {
                        Value::String(text) => Value::from(text.replace('#', &n.to_string())),
                        other => other.clone(),
                    };
                    let mut one = step.clone();
                    one.args = step.args.iter().map(at).collect();
                    for word in one.expire.iter_mut().chain(&mut one.redis) {
                        *word = word.replace('#', &n.to_string());
                    }
                    self.act(&one).await?;
                }
                Ok(())
            }
            None => self.act(step).await,
        }
    }

    async fn act(&mut self, step: &Step) -> Result<(), String> {
        if step.call.is_empty() {
            self.arrange(step).await;
            return Ok(());
        }
        self.call(step).await
    }

    /// What no script does.
    async fn arrange(&self, step: &Step) {
        for request in &step.expire {
            self.expire(request).await;
        }
        self.set(&step.set).await;
        if let [command, args @ ..] = step.redis.as_slice() {
            let [state, queue, leases] = &self.lock.keys;
            let args: Vec<_> = args
                .iter()
                .map(|arg| {
                    arg.replace("{state}", state)
                        .replace("{queue}", queue)
                        .replace("{leases}", leases)
                })
                .collect();
            let args: Vec<_> = args.iter().map(String::as_str).collect();
            self.lock.run(command, &args).await;
        }
    }

    /// Its deadline has passed, wherever it is kept.
    async fn expire(&self, request: &str) {
        let past = PAST.to_string();
        self.lock
            .run("ZADD", &[&self.lock.keys[2], "XX", "CH", &past, request])
            .await;
        self.set(&[("near".to_owned(), PAST)].into()).await;
    }

    /// Replaces numbers of the packed state.
    async fn set(&self, numbers: &BTreeMap<String, u64>) {
        const COUNTS: [&str; 3] = ["reads", "writes", "waiting"];
        const NUMBERS: [&str; 6] = ["seq", "token", "first", "near", "keep", "cap"];
        if numbers.is_empty() {
            return;
        }
        let mut redis = self.lock.redis.clone();
        let mut command = redis::cmd("HGET");
        let read = command.arg(&self.lock.keys[0]).arg("s");
        let mut packed: Vec<u8> = read.query_async(&mut redis).await.expect("a state");
        for (name, number) in numbers {
            if let Some(n) = COUNTS.iter().position(|count| count == name) {
                let bytes = u32::try_from(*number).expect("a count").to_le_bytes();
                packed[3 + 4 * n..][..4].copy_from_slice(&bytes);
            } else if let Some(n) = NUMBERS.iter().position(|number| number == name) {
                packed[15 + 8 * n..][..8].copy_from_slice(&(*number as f64).to_le_bytes());
            } else {
                assert_eq!(name, "version", "no such number");
                packed[0] = u8::try_from(*number).expect("a byte");
            }
        }
        let mut command = redis::cmd("HSET");
        let write = command.arg(&self.lock.keys[0]).arg("s").arg(packed);
        write.exec_async(&mut redis).await.expect("a hash");
    }

    async fn call(&mut self, step: &Step) -> Result<(), String> {
        let sharded_listener = step.listened && self.publish == Publish::Sharded;
        if sharded_listener {
            self.events_by("SSUBSCRIBE").await;
        }
        let called = self.call_until(step).await;
        if sharded_listener {
            self.events_by("SUNSUBSCRIBE").await;
        }
        called
    }

    async fn call_until(&mut self, step: &Step) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            let reply = self.send(step).await;
            let heard = self.hear().await;
            if let Some(text) = &step.error {
                let Err(error) = &reply else {
                    return Err(format!("no error with {text:?}: {reply:?}"));
                };
                // Redis 6.2 has the code in the text only.
                let (code, detail) = (error.code().unwrap_or_default(), error.detail().unwrap_or_default());
                if !format!("{code} {detail}").contains(text) && !error.to_string().contains(text) {
                    return Err(format!("not the error {text:?}: {error:?}"));
                }
                return self.check_heard(step, heard);
            }
            let reply = reply.map_err(|error| format!("failed: {error}"))?;
            let mut numbers = self.numbers.clone();
            let answered = matches(&step.reply, &reply, &mut numbers);
            match answered {
                Err(_) if step.until && begun.elapsed() < PATIENCE => {
                    if heard != Heard::default() {
                        return Err(format!("replied {reply:?}, and published {heard:?} already"));
                    }
                    continue;
                }
                Err(why) => return Err(format!("replied {reply:?}: {why}")),
                Ok(()) => {}
            }
            self.numbers = numbers;
            return self.check_heard(step, heard);
        }
    }

    async fn send(&self, step: &Step) -> redis::RedisResult<redis::Value> {
        let (way, script) = &self.scripts.0[&step.call];
        let mut command = redis::cmd(way);
        command.arg(script).arg(3).arg(&self.lock.keys);
        let more = match self.publish {
            Publish::Sharded => "s",
            Publish::Plainly if step.listened => "e",
            Publish::Plainly => "",
        };
        command.arg(format!("{}{more}", step.options));
        for arg in &step.args {
            match arg {
                Value::String(text) => command.arg(text),
                Value::Object(object) => command.arg(self.numbers[object["value"].as_str().expect("a name")]),
                other => command.arg(other.as_u64().expect("a number")),
            };
        }
        command.query_async(&mut self.user.clone()).await
    }

    /// All that came until now: what is published here comes after it.
    async fn hear(&mut self) -> Heard {
        let mark = format!("{}0", self.channels);
        self.lock.run(self.publish.command(), &[&mark, "end"]).await;
        let (mut grants, mut events) = (BTreeMap::new(), Vec::new());
        loop {
            let (channel, payload) = soon("the mark", self.pushes.recv()).await.expect("a connection");
            match channel.strip_prefix(&self.channels) {
                _ if channel == mark => return (grants, events),
                Some(client) => assert_eq!(grants.insert(client.to_owned(), payload), None, "one message a client"),
                None => events.push(payload),
            }
        }
    }

    fn check_heard(&mut self, step: &Step, (grants, events): Heard) -> Result<(), String> {
        let clients: BTreeSet<_> = grants.keys().collect();
        if clients != step.messages.keys().collect() {
            return Err(format!("messages came: {grants:?}"));
        }
        for (client, expected) in &step.messages {
            let message = &grants[client];
            let (words, key) = message.split_once('\n').ok_or("a message without a key")?;
            let words: Vec<_> = words.split(' ').collect();
            if key != self.lock.keys[0] {
                return Err(format!("a message about {key}"));
            }
            let Value::Array(groups) = expected else {
                let requests = words.iter().filter(|word| word.parse::<u64>().is_err()).count();
                if Some(requests as u64) != expected.as_u64() {
                    return Err(format!("{requests} requests"));
                }
                continue;
            };
            let patterns = groups.iter().flat_map(|group| group.as_array().expect("a group"));
            self.check_words(message, &words, &patterns.collect::<Vec<_>>())?;
        }
        let lines: Vec<_> = events.iter().flat_map(|event| event.split('\n').skip(1)).collect();
        if events.len() > 1 || events.len() != usize::from(!step.events.is_empty()) || lines.len() != step.events.len()
        {
            return Err(format!("events came: {events:?}"));
        }
        for (line, (what, request, token)) in lines.iter().zip(&step.events) {
            let words: Vec<_> = line.split(' ').collect();
            self.check_words(line, &words, &[&what.as_str().into(), &request.as_str().into(), token])?;
        }
        Ok(())
    }

    fn check_words(&mut self, text: &str, words: &[&str], patterns: &[&Value]) -> Result<(), String> {
        if words.len() != patterns.len() {
            return Err(format!("came: {text:?}"));
        }
        for (word, pattern) in words.iter().zip(patterns) {
            let word = match word.parse() {
                Ok(number) => redis::Value::Int(number),
                Err(_) => redis::Value::SimpleString((*word).to_owned()),
            };
            matches(pattern, &word, &mut self.numbers).map_err(|why| format!("came: {text:?}: {why}"))?;
        }
        Ok(())
    }

    async fn check_keys(&mut self, keys: &Keys) -> Result<(), String> {
        let mut found = self.lock.state().await;
        let wrong = |what: &str, found: &State| Err(format!("{what}: {found:?}"));
        let now_ms = found.now_ms;
        let left = |deadline: u64, most: u64| {
            let left = deadline.saturating_sub(now_ms);
            left <= most && left + 30_000 > most
        };
        let leases = keys.leases.iter().map(|(request, most)| {
            let at = found.leases.get(request);
            at.is_some_and(|at| left(*at, *most))
        });
        if found.leases.len() != keys.leases.len() || leases.into_iter().any(|right| !right) {
            return wrong("leases", &found);
        }
        if found.queue != keys.queue {
            return wrong("queue", &found);
        }
        let exist = [
            !found.hash.is_empty(),
            !found.queue.is_empty(),
            !found.leases.is_empty(),
        ];
        if exist.into_iter().zip(found.ttl).any(|(exists, ttl)| exists && ttl <= 0) {
            return wrong("a key does not expire", &found);
        }
        if let Some((least, most)) = keys.keep {
            let last = found.leases.values().max().copied().unwrap_or(found.packed.near);
            let expire_when_kept = exist
                .into_iter()
                .zip(self.lock.expire_at().await)
                .all(|(exists, at_ms)| {
                    !exists || at_ms.is_none_or(|at_ms| u64::try_from(at_ms) == Ok(found.packed.keep))
                });
            if !(last + least..=last + most).contains(&found.packed.keep) || !expire_when_kept {
                return wrong("keep", &found);
            }
        }
        self.check_state(&keys.state, &mut found, left)
    }

    fn check_state(
        &mut self,
        expected: &BTreeMap<String, Value>,
        found: &mut State,
        left: impl Fn(u64, u64) -> bool,
    ) -> Result<(), String> {
        let wrong = |what: &str, found: &State| Err(format!("{what}: {found:?}"));
        if expected.is_empty() {
            return if found.hash.is_empty() {
                Ok(())
            } else {
                wrong("state", found)
            };
        }
        let constants = [("policy", "2"), ("seq", "0")];
        if constants.map(|(field, value)| found.hash.remove(field).is_some_and(|text| text == value)) != [true; 2] {
            return wrong("the fields by which layout 1 sees another one", found);
        }
        let packed = &found.packed;
        let sole = expected.get("sole").map(|ms| ms.as_u64().expect("ms"));
        let nearest = found.leases.values().min().copied();
        let near_is_right = match (sole, nearest) {
            (Some(ms), _) => left(packed.near, ms),
            (None, Some(nearest)) => (1..=nearest).contains(&packed.near),
            (None, None) => packed.near == 0 || packed.holds() > 0,
        };
        if packed.sole != sole.is_some() || !near_is_right {
            return wrong("near", found);
        }
        let numbers = [
            ("policy", u64::from(packed.policy)),
            ("reads", packed.reads.into()),
            ("writes", packed.writes.into()),
            ("waiting", packed.waiting.into()),
            ("seq", packed.seq),
            ("token", packed.token),
            ("first", packed.first),
            ("more", packed.more.into()),
            ("up", packed.up.into()),
            ("limit", packed.limit.into()),
            ("used", packed.used.into()),
        ];
        for (name, number) in numbers {
            let number = redis::Value::Int(i64::try_from(number).expect("less than 2^53"));
            let pattern = expected.get(name).cloned().unwrap_or(0.into());
            matches(&pattern, &number, &mut self.numbers).map_err(|why| format!("{name}: {why}"))?;
        }
        if expected
            .get("holder")
            .map_or("", |name| name.as_str().expect("a request"))
            != packed.holder
        {
            return wrong("holder", found);
        }
        let owners = expected.iter().filter(|(field, _)| field.contains(':'));
        let owners = owners.map(|(field, text)| (field.as_str(), text.as_str().expect("text")));
        if !owners.eq(found.hash.iter().map(|(field, text)| (field.as_str(), text.as_str()))) {
            return wrong("fields", found);
        }
        Ok(())
    }
}

/// The scenarios of a file, whose scripts are run by the user of the URL. The first one that fails, and why; otherwise
/// how many passed.
pub async fn run(server: &Server, url: &str, file: &str) -> Result<usize, String> {
    run_scripts(server, url, &Scripts::released(false), Publish::Plainly, file).await
}

/// Those of one file only, if one is named.
async fn run_scripts(
    server: &Server,
    url: &str,
    scripts: &Scripts,
    publish: Publish,
    only: &str,
) -> Result<usize, String> {
    let mut scenarios = scenarios();
    scenarios.retain(|(file, _)| only.is_empty() || file == only);
    for (n, (file, scenario)) in scenarios.iter().enumerate() {
        let lock = format!("conformance:{n}:{}", uuid::Uuid::new_v4());
        let mut run = Run::new(server, url, scripts, publish, &lock).await;
        for step in &scenario.steps {
            let done = run.step(step).await;
            done.map_err(|why| format!("{file}: {}: {step:?}: {why}", scenario.scenario))?;
        }
    }
    Ok(scenarios.len())
}

/// Version 7 or later.
pub async fn is_modern(server: &Server) -> bool {
    let hello: BTreeMap<String, redis::Value> = redis::cmd("HELLO")
        .query_async(&mut server.redis().await)
        .await
        .expect("HELLO");
    let version: String = redis::from_redis_value(hello["version"].clone()).expect("a version");
    !version.starts_with("6.")
}
