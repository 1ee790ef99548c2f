//! The conformance suite, `tests/conformance`, run on the scripts in `lua`. Its README says what a step means.

mod client;
mod python;
mod suite;

use crate::lua::{Lock, PAST, State};
use crate::server::{PATIENCE, Server, patient, soon};
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, PushKind};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;
use tokio::sync::mpsc;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    scenario: String,
    steps: Vec<Step>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Step {
    call: String,
    args: Vec<Value>,
    reply: Value,
    error: Option<String>,
    listened: bool,
    until: bool,
    #[serde(rename = "for")]
    range: Option<(u64, u64)>,
    messages: BTreeMap<String, Value>,
    events: Vec<(String, String, Value)>,
    expire: Vec<String>,
    redis: Vec<String>,
    keys: Option<Left>,
}

/// What a step leaves.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Left {
    Keys(Keys),
    /// "same": what was there before the step.
    Same(String),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    state: BTreeMap<String, Value>,
    queue: Vec<String>,
    leases: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Composition {
    files: Vec<String>,
    flags: String,
}

/// The scripts by name, as text.
struct Scripts(BTreeMap<String, String>);

fn suite() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance")
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

impl Scripts {
    /// Composed of files that `change` may have changed.
    fn new(flagged: bool, change: impl Fn(&str, String) -> String) -> Self {
        let compositions: BTreeMap<String, Composition> = read(&suite().join("scripts.json"));
        let lua = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
        let compose = |composition: Composition| {
            let texts = composition.files.iter().map(|file| {
                let text = std::fs::read_to_string(lua.join(file)).expect("a script");
                change(file, text)
            });
            let text: String = texts.collect();
            match (flagged, composition.flags.as_str()) {
                (false, _) => text,
                (true, "") => format!("#!lua\n{text}"),
                (true, flags) => format!("#!lua flags={flags}\n{text}"),
            }
        };
        Self(
            compositions
                .into_iter()
                .map(|(name, files)| (name, compose(files)))
                .collect(),
        )
    }

    fn released(flagged: bool) -> Self {
        Self::new(flagged, |_, text| text)
    }
}

/// How grants are published.
#[derive(Clone, Copy, Debug)]
enum Publish {
    Plainly,
    Sharded,
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
    numbers: BTreeMap<String, i64>,
}

/// What came on the channels after a step: grants by client, and events.
type Heard = (BTreeMap<String, String>, Vec<String>);

impl<'a> Run<'a> {
    async fn new(server: &Server, url: &str, scripts: &'a Scripts, publish: Publish, name: &str) -> Self {
        let user = redis::Client::open(url).expect("a URL");
        let user = user.get_multiplexed_async_connection_with_config(&patient()).await;
        let user = user.expect("a connection");
        let lock = Lock::new(server, name).await;
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
        let listening = listener.get_multiplexed_async_connection_with_config(&config).await;
        let mut listening = listening.expect("a connection");
        let (command, channels) = match publish {
            Publish::Plainly => ("SUBSCRIBE", "fairlock:c:".to_owned()),
            Publish::Sharded => ("SSUBSCRIBE", format!("{}:c:", lock.keys[0])),
        };
        let mut subscribe = redis::cmd(command);
        subscribe.arg(format!("{}:events", lock.keys[0]));
        for client in 0..10 {
            subscribe.arg(format!("{channels}{client}"));
        }
        subscribe.exec_async(&mut listening).await.expect("a subscription");
        Self {
            scripts,
            publish,
            lock,
            user,
            channels,
            pushes,
            _listening: listening,
            numbers: BTreeMap::new(),
        }
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
        let [state, _, leases] = &self.lock.keys;
        let past = PAST.to_string();
        let moved = self.lock.run("ZADD", &[leases, "XX", "CH", &past, request]).await;
        if moved == redis::Value::Int(0) {
            self.lock
                .run("HSET", &[state, "sole", &format!("{request} {past}")])
                .await;
        }
    }

    async fn call(&mut self, step: &Step) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            let reply = self.send(step).await;
            let heard = self.hear().await;
            if let Some(text) = &step.error {
                match reply {
                    // Redis 6.2 has the code in the text only.
                    Err(error) if error.to_string().contains(text) => return self.check_heard(step, heard),
                    other => return Err(format!("no error with {text:?}: {other:?}")),
                }
            }
            let reply = reply.map_err(|error| format!("failed: {error}"))?;
            let mut numbers = self.numbers.clone();
            let answered = matches(&step.reply, &reply, &mut numbers);
            match answered {
                Err(_) if step.until && begun.elapsed() < PATIENCE => continue,
                Err(why) => return Err(format!("replied {reply:?}: {why}")),
                Ok(()) => {}
            }
            self.numbers = numbers;
            return self.check_heard(step, heard);
        }
    }

    async fn send(&self, step: &Step) -> redis::RedisResult<redis::Value> {
        let mut command = redis::cmd("EVAL");
        command.arg(&self.scripts.0[&step.call]).arg(3).arg(&self.lock.keys);
        command.arg(match self.publish {
            Publish::Plainly => "PUBLISH",
            Publish::Sharded => "SPUBLISH",
        });
        command.arg(&self.channels).arg(if step.listened { "1" } else { "" });
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
        let publish = match self.publish {
            Publish::Plainly => "PUBLISH",
            Publish::Sharded => "SPUBLISH",
        };
        self.lock.run(publish, &[&mark, "end"]).await;
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
            let Value::Array(list) = expected else {
                if Some(words.len() as u64 / 2) != expected.as_u64() {
                    return Err(format!("{} grants", words.len() / 2));
                }
                continue;
            };
            let list = list.iter().map(|grant| (&grant[0], &grant[1])).collect::<Vec<_>>();
            self.check_words(
                message,
                &words,
                &list.iter().flat_map(|(a, b)| [*a, *b]).collect::<Vec<_>>(),
            )?;
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
        let left = |deadline: u64, most: u64| {
            let left = deadline.saturating_sub(found.now_ms);
            left <= most && left + 30_000 > most
        };
        let leases = keys.leases.iter().map(|(request, most)| {
            let at = found.leases.get(request);
            at.is_some_and(|at| left(*at, *most))
        });
        if found.leases.len() != keys.leases.len() || leases.into_iter().any(|right| !right) {
            return wrong("leases", &found);
        }
        let sole = found.sole().map(|(request, at)| (request.to_owned(), at));
        let sole_is_right = match (keys.state.get("sole"), &sole) {
            (None, None) => true,
            (Some(expected), Some((request, at))) => {
                expected[0] == request.as_str() && left(*at, expected[1].as_u64().expect("ms"))
            }
            _ => false,
        };
        if !sole_is_right {
            return wrong("sole", &found);
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
        found
            .hash
            .retain(|field, _| !["keep", "cap", "sole"].contains(&field.as_str()));
        let fields: BTreeSet<_> = found.hash.keys().collect();
        if fields != keys.state.keys().filter(|field| *field != "sole").collect() {
            return wrong("fields", &found);
        }
        for (field, value) in &found.hash {
            let value = redis::Value::SimpleString(value.clone());
            matches(&keys.state[field], &value, &mut self.numbers).map_err(|why| format!("{field}: {why}"))?;
        }
        Ok(())
    }
}

/// Whether a reply fits a pattern; takes note of the numbers that it names.
fn matches(pattern: &Value, reply: &redis::Value, numbers: &mut BTreeMap<String, i64>) -> Result<(), String> {
    let wrong = |why: &str| Err(format!("{reply:?} is not {pattern}{why}"));
    let text = redis::from_redis_value::<String>(reply.clone()).ok();
    let fits = match (pattern, reply) {
        (Value::Array(patterns), redis::Value::Array(replies)) => {
            if patterns.len() != replies.len() {
                return wrong(", it has another length");
            }
            for (pattern, reply) in patterns.iter().zip(replies) {
                matches(pattern, reply, numbers)?;
            }
            true
        }
        (Value::Number(number), redis::Value::Int(reply)) => number.as_i64() == Some(*reply),
        (Value::String(expected), redis::Value::BulkString(_) | redis::Value::SimpleString(_)) => {
            text.as_deref() == Some(expected)
        }
        (Value::Object(object), _) => {
            let Some(number) = text.and_then(|text| text.parse::<i64>().ok()) else {
                return wrong(", and no number");
            };
            let named = |name: &Value| numbers[name.as_str().expect("a name")];
            let fits = object.iter().all(|(condition, value)| match condition.as_str() {
                "from" => number >= value.as_i64().expect("a number"),
                "to" => number <= value.as_i64().expect("a number"),
                "above" => number > named(value),
                "is" => number == named(value),
                "minus" => number == -named(value),
                "as" => true,
                other => panic!("no such condition: {other}"),
            });
            if let Some(name) = object.get("as") {
                numbers.insert(name.as_str().expect("a name").to_owned(), number);
            }
            fits
        }
        _ => false,
    };
    if fits {
        Ok(())
    } else {
        wrong(&format!(", with {numbers:?}"))
    }
}

fn scenarios() -> Vec<(String, Scenario)> {
    let files = std::fs::read_dir(suite().join("scenarios")).expect("the scenarios");
    let mut files: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    files.sort();
    let of_file = |path: &PathBuf| {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        read::<Vec<Scenario>>(path)
            .into_iter()
            .map(move |scenario| (name.clone(), scenario))
    };
    files.iter().flat_map(of_file).collect()
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
